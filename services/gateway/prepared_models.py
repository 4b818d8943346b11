"""The models of a gateway, as their folders and the settings describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.gateway.settings import GatewaySettings
from shared.openai.served_model import ServedModel, adapters_of, defaults_of
from shared.settings.other_models import OtherModel
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """``name``: in the stack; ``slo``: what is to be kept of its online requests."""

    name: str
    served: ServedModel
    tokenizer: Tokenizer
    slo: str

    @classmethod
    def read(cls, described: OtherModel, others: tuple[str, ...], max_prompt_tokens: int | None) -> PreparedModel:
        """``others``: names of the other models. Raises ModelError."""
        folder = Path(described.path)
        tokenizer = Tokenizer.from_folder(folder)
        tokenizer.prepare_for_grammars()
        facts = ModelFacts.read(folder)
        name, *aliases = described.names
        served = ServedModel(
            name,
            facts.max_model_len,
            max_prompt_tokens,
            aliases=tuple(aliases),
            others=others,
            embedding_sizes=facts.embedding_sizes,
            defaults=defaults_of(folder, described.generation_config),
            adapters=adapters_of(described.lora_modules),
        )
        return cls(described.name, served, tokenizer, described.slo)


def read_models(settings: GatewaySettings) -> list[PreparedModel]:
    """The first is the default. Raises ModelError."""
    described = settings.models()
    found = []
    for each in described:
        others = tuple(name for other in described if other is not each for name in other.all_names)
        found.append(PreparedModel.read(each, others, settings.max_prompt_tokens or None))
    return found
