"""Which tokens may come next in outputs that have to keep to a grammar (llguidance), from their tokens so far alone."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.executor.engines.sample_row import SampleRow
from shared.text.model_folder import ModelFacts

if TYPE_CHECKING:  # imported late: most executors never see a grammar
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

MAX_GRAMMARS = 256  # compiled ones that are kept
MAX_MATCHERS = 1024  # of requests; one that was dropped is made again from the request's tokens


class GrammarMasks:
    """Grammars are compiled in a thread of their own, each once; a request's matcher takes one token a step, or all of
    them again where it is not known here. Called by one thread at a time."""

    def __init__(self, model_path: Path) -> None:
        """Nothing is read before the first grammar comes."""
        self._path = model_path
        self._tokenizer: LLTokenizer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._future = lru_cache(MAX_GRAMMARS)(lambda grammar: self._thread.submit(self._compile, grammar))
        self._matchers: OrderedDict[str, _OutputMatcher] = OrderedDict()

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
            bits = np.unpackbits(self._matcher_of(row).mask(), bitorder="little")[:vocab_size]
            found[place, : len(bits)] = bits
        return found

    def close(self) -> None:
        """Compiling ends."""
        self._thread.shutdown(cancel_futures=True)

    def _matcher_of(self, row: SampleRow) -> _OutputMatcher:
        """After the row's output so far."""
        assert row.history is not None
        output = row.history.token_ids[row.history.num_prompt_tokens :]
        matcher = self._matchers.pop(row.request_id, None)
        if matcher is None or not matcher.goes_on(row.sampling.grammar, output):
            matcher = _OutputMatcher(row.sampling.grammar, self._future(row.sampling.grammar).result().deep_copy())
        matcher.advance(output, row.request_id)
        self._matchers[row.request_id] = matcher
        if len(self._matchers) > MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLTokenizer

        if self._tokenizer is None:
            facts = ModelFacts.read(self._path)
            eos_token_ids = list(facts.eos_token_ids) or None
            self._tokenizer = LLTokenizer(str(self._path / "tokenizer.json"), facts.vocab_size, eos_token_ids)
        return LLMatcher(self._tokenizer, grammar, log_level=0)


class _OutputMatcher:
    """One output's place in its grammar."""

    def __init__(self, grammar: str, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._output: list[int] = []

    def goes_on(self, grammar: str, output: list[int]) -> bool:
        """Whether it stands at the beginning of this output, or within it."""
        return grammar == self._grammar and output[: len(self._output)] == self._output

    def advance(self, output: list[int], request_id: str) -> None:
        """To the end of an output that goes on from where it stands."""
        new = output[len(self._output) :]
        if new and not self._matcher.is_error() and not self._matcher.consume_tokens(new):
            # It cannot go on: what it allows from here on is the end.
            logger.warning("grammar broken off", extra={"request_id": request_id, "why": self._matcher.get_error()})
        self._output = output

    def mask(self) -> npt.NDArray[np.uint8]:
        """A bit for each token, the lowest first."""
        return np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
