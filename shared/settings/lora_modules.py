"""LoRA adapters of a model, as settings name them: each is a model of its own to clients, and shares the executors of
the one that it belongs to."""

import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from shared.settings.setting import LIST, listed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}")

LoraModules = Annotated[
    str,
    Meta(
        description="LoRA adapters of the model, each a model beside it: name=path of a folder, or name=hub id; with "
        "the engines vllm and sim",
        extra=LIST,
    ),
]


@dataclass(frozen=True, slots=True)
class LoraModule:
    """``name``: what clients call it, and what it is known by on the bus; ``path``: a folder or a hub id."""

    name: str
    path: str


def parse_lora_modules(text: str) -> tuple[LoraModule, ...]:
    """Raises ValueError that says what to write."""
    found = tuple(map(_parsed, listed(text)))
    names = [each.name for each in found]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"lora_modules: two adapters are called {name!r}: give one of them another name")
    return found


def adapter_names(text: str) -> tuple[str, ...]:
    """Raises ValueError as ``parse_lora_modules``."""
    return tuple(each.name for each in parse_lora_modules(text))


def _parsed(text: str) -> LoraModule:
    name, _, path = (part.strip() for part in text.partition("="))
    if not path:
        raise ValueError(f"lora_modules: {text!r} names no adapter: write name=path, as sql=./adapters/sql")
    if not NAME.fullmatch(name):
        raise ValueError(
            f"lora_modules: {name!r} is no name of an adapter: write up to 128 letters, digits and any of . _ - / : @ +"
        )
    return LoraModule(name, path)
