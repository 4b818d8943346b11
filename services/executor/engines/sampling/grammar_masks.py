"""Which tokens may come next in outputs that have to keep to a grammar (llguidance), from their tokens so far alone."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.executor.engines.sampling.sample_row import SampleRow
from shared.text.model_folder import ModelFacts

if TYPE_CHECKING:  # imported in the thread that reads the tokenizer
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

MAX_GRAMMARS = 256  # compiled ones that are kept
MAX_MATCHERS = 1024  # of requests; one that was dropped is made again from the request's tokens


class GrammarMasks:
    """Grammars are compiled in a thread of their own, each once; a request's matcher takes one token a step, or all of
    them again where it is not known here. Called by one thread at a time."""

    def __init__(self, model_path: Path) -> None:
        """The tokenizer is read now, in that thread, and not when the first grammar comes: that stops all threads for
        a moment."""
        self._path = model_path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._tokenizer = self._thread.submit(self._read_tokenizer)
        self._future = lru_cache(MAX_GRAMMARS)(lambda grammar: self._thread.submit(self._compile, grammar))
        self._places: OrderedDict[str, _Place] = OrderedDict()  # by request, the last used at the end

    @cached_property
    def facts(self) -> ModelFacts:
        """Of the model whose tokens these are."""
        return ModelFacts.read(self._path)

    def prefetch(self, grammars: Iterable[str]) -> None:
        """Begin to compile those that are not empty; returns at once."""
        for grammar in grammars:
            if grammar:
                self._future(grammar)

    def allowed(self, rows: list[SampleRow], vocab_size: int) -> npt.NDArray[np.bool_]:
        """[num_rows, vocab_size], of rows that have a grammar and a history. EOS only where the grammar may end; it
        alone where nothing else may follow. Waits for grammars that are being compiled."""
        found = np.zeros((len(rows), vocab_size), dtype=np.bool_)
        for place, row in enumerate(rows):
            mask = np.frombuffer(self._matcher_of(row).compute_bitmask(), dtype=np.uint8)
            bits = np.unpackbits(mask, bitorder="little")[:vocab_size]
            found[place, : len(bits)] = bits
        return found

    def close(self) -> None:
        """Compiling ends."""
        self._thread.shutdown(cancel_futures=True)

    def _matcher_of(self, row: SampleRow) -> LLMatcher:
        """After the row's output so far."""
        assert row.history is not None
        grammar, output = row.sampling.grammar, row.history.output
        place = self._places.pop(row.request_id, None)
        if place is None or place.grammar != grammar or output[: len(place.output)] != place.output:
            place = _Place(grammar, self._future(grammar).result().deep_copy())
        matcher, new = place.matcher, output[len(place.output) :]
        if new and not matcher.is_error() and not matcher.consume_tokens(new):
            # It cannot go on: what it allows from here on is the end.
            logger.warning("grammar broken off", extra={"request_id": row.request_id, "why": matcher.get_error()})
        place.output = output
        self._places[row.request_id] = place
        if len(self._places) > MAX_MATCHERS:
            self._places.popitem(last=False)
        return matcher

    def _read_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        file, eos_token_ids = str(self._path / "tokenizer.json"), list(self.facts.eos_token_ids) or None
        try:
            return LLTokenizer(file, self.facts.vocab_size, eos_token_ids)
        except ValueError:  # it has tokens beyond the model's, as where some were added and the model was left as it is
            return LLTokenizer(file, None, eos_token_ids)

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer.result(), grammar, log_level=0)


@dataclass(slots=True)
class _Place:
    """One output's place in its grammar."""

    grammar: str
    matcher: LLMatcher
    output: list[int] = field(default_factory=list)  # that the matcher has taken
