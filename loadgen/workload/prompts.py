"""Online prompts of a wanted length: token ids where the server takes them, else text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Generic, TypeVar

from tokenizers import Tokenizer

from loadgen.errors import WorkloadError
from loadgen.workload.files import open_text
from loadgen.workload.traces import TraceRequest
from shared.errors import ModelError
from shared.text.tokenizer import read_backend

Unit = TypeVar("Unit")

PLAIN_TOKEN_IDS = range(1000, 8000)  # ordinary tokens in every vocabulary of 8k or more: past bytes and control tokens
NUM_GENERATED_WORDS = 2_000
NUM_FILLER_UNITS = 50_000
NUM_DISTINCT_UNITS = 8  # drawn apart at the head of each piece, so that no two pieces share a prefix by chance
_DRAWN = Struct(f"<{NUM_DISTINCT_UNITS + 1}I")  # those, and where in the units the rest of the piece begins


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the server counts for a prompt: ``overhead`` tokens (a chat template) plus so many for each unit."""

    tokens_per_unit: float = 1.0
    overhead: float = 0.0

    def num_units(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self.overhead) / self.tokens_per_unit))


@dataclass(slots=True)
class PromptMaker(Generic[Unit]):
    """Makes the prompt of a trace's request out of ``units`` (token ids or words), the same one for the same salt.
    Prompts with equal block ids begin with equal units; all others differ from the first unit on."""

    units: Sequence[Unit]
    join: Callable[[list[Unit]], list[int] | str]
    salt: str
    calibration: Calibration = Calibration()

    def salted(self, salt: str) -> PromptMaker[Unit]:
        """The same units and calibration, other prompts."""
        return replace(self, salt=salt)

    def prompt(self, request: TraceRequest, index: int) -> list[int] | str:
        """The prompt for the ``index``-th request: ``request.num_prompt_tokens`` long, as far as can be calibrated."""
        num_units = self.calibration.num_units(request.num_prompt_tokens)
        block_units = max(1, round(request.block_tokens / self.calibration.tokens_per_unit))
        units: list[Unit] = []
        for block_id in request.block_ids:
            if len(units) >= num_units:
                break
            units += self._piece(f"block:{block_id}", block_units)
        if len(units) < num_units:
            units += self._piece(f"request:{index}", num_units - len(units))
        return self.join(units[:num_units])

    def sample(self, num_units: int, key: str) -> list[int] | str:
        """A prompt of so many units that is shared with no other key."""
        return self.join(self._piece(key, num_units))

    def spread(self, num_units: int, num_pieces: int, key: str) -> list[int] | str:
        """As ``sample``, of so many pieces of one length, from all over the units."""
        pieces = [self._piece(f"{key}:{place}", num_units // num_pieces) for place in range(num_pieces)]
        return self.join([unit for piece in pieces for unit in piece])

    def _piece(self, key: str, num_units: int) -> list[Unit]:
        *drawn, offset = _DRAWN.unpack(blake2b(f"{self.salt}:{key}".encode(), digest_size=_DRAWN.size).digest())
        offset %= len(self.units)
        piece = [self.units[number % len(self.units)] for number in drawn[:num_units]]
        while len(piece) < num_units:
            piece += self.units[offset : offset + num_units - len(piece)]
            offset = 0
        return piece


def token_id_prompts(model_path: Path | None, filler: str | None, salt: str) -> PromptMaker[int]:
    """Exact lengths. With a model folder the ids are those of real text, that of ``filler`` where there is one, else
    plain ids of any vocabulary."""
    if model_path is None:
        ids = random.Random(salt).choices(PLAIN_TOKEN_IDS, k=NUM_FILLER_UNITS)
        return PromptMaker(ids, list, salt)
    return PromptMaker(_encode(load_tokenizer(model_path), _or_generated(filler)), list, salt)


def text_prompts(model_path: Path | None, filler: str | None, salt: str) -> PromptMaker[int] | PromptMaker[str]:
    """Near lengths: units are the model's tokens with a model folder, else words, to be calibrated by the server."""
    if model_path is None:
        return PromptMaker(_or_generated(filler).split(), " ".join, salt)
    tokenizer = load_tokenizer(model_path)
    return PromptMaker(_encode(tokenizer, _or_generated(filler)), tokenizer.decode, salt)


def load_tokenizer(model_path: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises WorkloadError when it has none that can be read."""
    try:
        return read_backend(model_path)
    except ModelError as error:
        raise WorkloadError(str(error)) from error


def read_filler(filler: Path) -> str:
    """A text that prompts are cut from. Raises TraceError, WorkloadError."""
    with open_text(filler) as file:
        text = file.read()
    if not text.split():
        raise WorkloadError(f"{filler}: the filler file has no words")
    return text


def generated_text(num_words: int) -> str:
    """Words of two to four syllables in sentences, always the same ones."""
    rng = random.Random("filler")
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(NUM_GENERATED_WORDS)]
    sentences = []
    while num_words > 0:
        length = min(num_words, rng.randint(5, 15))
        sentences.append(" ".join(rng.choices(words, k=length)).capitalize() + ".")
        num_words -= length
    return " ".join(sentences)


def _or_generated(filler: str | None) -> str:
    return generated_text(NUM_FILLER_UNITS) if filler is None else filler


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
