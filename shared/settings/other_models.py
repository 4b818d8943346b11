"""The further models of a stack, as its gateways and offline-queues are told of them: one setting, JSON."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.settings.lora_modules import adapter_names, parse_lora_modules
from shared.settings.setting import listed

OtherModels = Annotated[
    str,
    Meta(
        description='the further models of the stack, as JSON: [{"name": "b", "path": "/models/b"}], with '
        "served_model_name, generation_config, slo and lora_modules as settings of these names; empty: there is one "
        "model"
    ),
]


class OtherModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of them, as settings describe the first: by its name in the stack and the folder that it is prepared in."""

    name: Annotated[str, Meta(min_length=1)]
    path: str = ""
    served_model_name: str = ""
    generation_config: Literal["auto", "none"] = "auto"
    slo: str = ""
    lora_modules: str = ""

    def __post_init__(self) -> None:
        parse_lora_modules(self.lora_modules)

    @property
    def names(self) -> list[str]:
        """What clients call it; the first is in answers."""
        return listed(self.served_model_name) or [self.name]

    @property
    def all_names(self) -> list[str]:
        """With those of its adapters."""
        return [*self.names, *adapter_names(self.lora_modules)]


_decoder = msgspec.json.Decoder(tuple[OtherModel, ...])
_encoder = msgspec.json.Encoder()


def parse_other_models(text: str) -> tuple[OtherModel, ...]:
    """Raises ValueError that says what to write."""
    try:
        return _decoder.decode(text) if text.strip() else ()
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"other_models is no JSON list of models: {error}") from error


def render_other_models(models: Iterable[OtherModel]) -> str:
    """What ``parse_other_models`` reads."""
    found = tuple(models)
    return _encoder.encode(found).decode() if found else ""


def require_distinct(names: Sequence[str]) -> None:
    """Raises ValueError for one that is there twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"two models are called {name!r}: give one another name, or another served_model_name")
