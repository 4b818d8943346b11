"""Facts of a prepared model folder that need no model library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from shared.bounds import Positive, TokenId
from shared.errors import ModelError
from shared.latency.architectures import Architecture
from shared.latency.configured import architecture_of
from shared.text.embedding_sizes import EmbeddingSizes

TOKENIZER_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """From config.json and generation_config.json, and from the tokenizer what it calls its end: as vLLM has it, that
    ends an output too, also where the other files, as of a model that was trained further, do not name it."""

    max_model_len: int  # tokens of context
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    embedding_sizes: EmbeddingSizes

    @classmethod
    def read(cls, folder: Path) -> ModelFacts:
        """Raises ModelError where the folder is not a prepared model."""
        config = read_json(folder / "config.json")
        text = config.get("text_config", config)
        try:
            sizes = msgspec.convert(text, _Sizes, strict=False)
        except msgspec.ValidationError as error:
            raise ModelError(f"{folder / 'config.json'} lacks what is needed: {error}") from error
        max_model_len = sizes.max_position_embeddings or sizes.n_positions
        if max_model_len is None:
            raise ModelError(f"{folder / 'config.json'} lacks what is needed: max_position_embeddings")
        named = dict.fromkeys([*_ends(folder, config), *_ends_of_tokenizer(folder)])
        ends = tuple(end for end in named if end < sizes.vocab_size)  # a tokenizer may have tokens beyond the model's
        return cls(max(max_model_len, _stretched(text)), sizes.vocab_size, ends, EmbeddingSizes.of(config))


class _Sizes(msgspec.Struct):
    vocab_size: Positive
    max_position_embeddings: Positive | None = None
    n_positions: Positive | None = None  # the same in GPT-2's family


def _stretched(text: Mapping[str, Any]) -> int:
    """Tokens of context that YaRN makes of those that the model was trained on, where both are said: as with vLLM, also
    where ``max_position_embeddings`` is the latter. 0 without."""
    longest = 0
    for rope in ropes_of(text):
        factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
        is_yarn = rope.get("rope_type", rope.get("type")) == "yarn"
        if is_yarn and isinstance(factor, int | float) and isinstance(original, int):
            longest = max(longest, int(original * factor))
    return longest


def ropes_of(text: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a text model's config says of rotary embeddings: of the whole model, or of each of its kinds of layers."""
    for name in ("rope_parameters", "rope_scaling"):
        found = text.get(name)
        for each in (found, *found.values()) if isinstance(found, dict) else ():
            if isinstance(each, dict):
                yield each


class _Ends(msgspec.Struct):
    eos_token_id: TokenId | tuple[TokenId, ...] | None = None


def _ends(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Of generation_config.json where that names any, or none; else of config.json. Raises ModelError."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    said, path = (generation, path) if "eos_token_id" in generation else (config, folder / "config.json")
    try:
        ends = msgspec.convert(said, _Ends, strict=False).eos_token_id
    except msgspec.ValidationError as error:
        raise ModelError(f"{path} cannot be used: {error}") from error
    return ends if isinstance(ends, tuple) else () if ends is None else (ends,)


class _AddedToken(msgspec.Struct):
    id: TokenId
    content: str


class _AddedTokens(msgspec.Struct):
    """Of a tokenizer.json, whose vocabulary is passed over."""

    added_tokens: list[_AddedToken] = []


_added_tokens_decoder = msgspec.json.Decoder(_AddedTokens)


def _ends_of_tokenizer(folder: Path) -> list[int]:
    """The token of this name, where there is one. Raises ModelError."""
    path, named = folder / "tokenizer.json", read_tokenizer_config(folder).get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    if not isinstance(name, str) or not path.exists():
        return []
    try:
        added = _added_tokens_decoder.decode(path.read_bytes()).added_tokens
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    return [token.id for token in added if token.content == name]


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, and of older ones, which have no ``added_tokens_decoder``, the names of tokens as
    special_tokens_map.json has them, as with transformers; a model may have neither. Raises ModelError."""
    paths = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    config, names = (read_json(path) if path.exists() else {} for path in paths)
    return config if "added_tokens_decoder" in config else config | names


def read_architecture(folder: Path, name: str, bytes_per_value: int) -> Architecture | None:
    """The model's sizes under this name, with weights of so many bytes; None where it is no dense decoder. Raises
    ModelError."""
    return architecture_of(read_json(folder / "config.json"), name, bytes_per_value)


def tokenizer_digest(folder: Path) -> str:
    """The same for folders whose tokenizer is the same file. Raises ModelError."""
    path = folder / "tokenizer.json"
    try:
        return blake2b(path.read_bytes(), digest_size=TOKENIZER_DIGEST_BYTES).hexdigest()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """One of the folder's files. Raises ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} is not a prepared model: it has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value
