"""The model behind the endpoints: what clients call it, how long a request may be, and what holds where one says
nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shared.openai.errors import RequestError
from shared.settings.lora_modules import parse_lora_modules
from shared.text.embedding_sizes import EmbeddingSizes
from shared.text.generation_defaults import GenerationDefaults

MODEL_MISMATCH = "model_mismatch"
FROM_MODEL, NOWHERE = "auto", "none"
READ_CONTEXTS = 8  # of text are read where it need not fit into one
GENERATION_CONFIGS = (FROM_MODEL, NOWHERE)


class ServedModel(msgspec.Struct, frozen=True):
    """``name`` is in answers; whoever asks may ask for it by any of its names. Its LoRA adapters are models beside it,
    each by its own name."""

    name: str
    max_model_len: int  # tokens, prompt and output together
    max_prompt_tokens: int | None = None  # None: as the context allows
    permitted: list[str] | None = None  # names that whoever asks may ask for; None: any
    aliases: tuple[str, ...] = ()  # beside its name
    others: tuple[str, ...] = ()  # names of the stack's other models
    defaults: GenerationDefaults = GenerationDefaults()
    embedding_sizes: EmbeddingSizes = EmbeddingSizes()
    adapters: dict[str, str] = {}  # by name, the folders or hub ids that they are from
    adapter: str = ""  # that it is the model with; empty: as it is

    @property
    def longest_prompt(self) -> int:
        """In tokens; none has more."""
        return min(self.max_model_len, self.max_prompt_tokens or self.max_model_len)

    @property
    def longest_text(self) -> int:
        """In tokens, of one that is cut or counted."""
        return READ_CONTEXTS * self.max_model_len

    @property
    def told_length(self) -> str:
        """The beginning of what is said of a request that does not fit; clients look for it."""
        return f"this model's maximum context length is {self.max_model_len} tokens"

    def too_long(self, field: str, most: int) -> RequestError:
        """Of a text that was not read to its end."""
        if most < self.max_model_len:
            message = f"{field} has more than {most} tokens, which are the most that this server takes"
        else:
            message = f"{self.told_length}, and {field} has more than {most}"
        return RequestError(message, field, "context_length_exceeded")

    @property
    def names(self) -> list[str]:
        """That whoever asks may ask for."""
        return [name for name in dict.fromkeys((self.name, *self.aliases, *self.adapters)) if self.permits(name)]

    def only(self, adapter: str) -> ServedModel:
        """With one of its adapters, or with "" as it is, and nothing else: the rest are other models."""
        own = (adapter,) if adapter else (self.name, *self.aliases)
        others = (*(name for name in (self.name, *self.aliases, *self.adapters) if name not in own), *self.others)
        name, *aliases = own
        return msgspec.structs.replace(
            self, name=name, aliases=tuple(aliases), others=others, adapters={}, adapter=adapter
        )

    def asked_as(self, name: str) -> ServedModel:
        """What is asked for by this name. Raises RequestError as ``check``."""
        self.check(name)
        return self.only(name) if name in self.adapters else self

    def permits(self, name: str) -> bool:
        """Whether who asks may ask for it, whatever it is."""
        return self.permitted is None or name in self.permitted

    def check(self, name: str) -> None:
        """Raises RequestError: 404 for a name that nobody has, or one that is not permitted; 400 for that of another
        one of the stack."""
        if not self.permits(name):
            message = f"the model {name!r} does not exist or you do not have access to it"
            raise RequestError(message, "model", "model_not_found", 404)
        if name in self.others:
            message = f"the model {name!r} is another one than {self.name!r}, of which all lines of this batch are"
            raise RequestError(message, "model", MODEL_MISMATCH)
        if name not in (self.name, *self.aliases, *self.adapters):
            there = [*self.names, *filter(self.permits, self.others)]
            message = f"the model {name!r} does not exist; this server has {' and '.join(map(repr, there))}"
            raise RequestError(message, "model", "model_not_found", 404)


def defaults_of(folder: Path, generation_config: str) -> GenerationDefaults:
    """Of one of GENERATION_CONFIGS. Raises ModelError."""
    return GenerationDefaults.read(folder) if generation_config == FROM_MODEL else GenerationDefaults()


def adapters_of(lora_modules: str) -> dict[str, str]:
    """Of the setting, for ``ServedModel``. Raises ValueError."""
    return {each.name: each.path for each in parse_lora_modules(lora_modules)}
