"""Which tokens may not come next in outputs whose requests forbid some, and which alone may where few are allowed.

Where nothing would be left (an allowed token is also a bad word, a grammar has nothing but an end before ``min_tokens``
have come) the weaker wish gives way: first bad words and ``min_tokens``, then the allowed tokens, never the grammar."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.sample_row import SampleRow
from shared.protocol.sampling import SamplingParams


def banned_tokens(row: SampleRow, eos_token_ids: Sequence[int]) -> list[int]:
    """Of a row with a history: the ends that come too early, and what would make its output hold a bad word."""
    assert row.history is not None
    sampling, output = row.sampling, row.history.output
    banned = [word[-1] for word in sampling.bad_words if _may_complete(output, word)]
    if len(output) < sampling.min_tokens:
        banned += ending_tokens(sampling, eos_token_ids)
    return banned


def ending_tokens(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> list[int]:
    """That end an output of this sampling."""
    return [*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)]


def allowed_tokens(
    rows: list[SampleRow], vocab_size: int, eos_token_ids: Sequence[int], grammars: GrammarMasks | None
) -> npt.NDArray[np.bool_]:
    """[num_rows, vocab_size], of rows with a history: at least one token of each. ``grammars``: where a row has one."""
    found = np.ones((len(rows), vocab_size), dtype=np.bool_)
    constrained = [place for place, row in enumerate(rows) if row.sampling.grammar]
    if constrained:
        assert grammars is not None, "an engine that is given grammars can compile them"
        found[constrained] = grammars.allowed([rows[place] for place in constrained], vocab_size)
    for place, row in enumerate(rows):
        if row.sampling.allowed_token_ids:
            only = np.zeros(vocab_size, dtype=np.bool_)
            only[list(row.sampling.allowed_token_ids)] = True
            _narrow(found[place], only)
        if banned := banned_tokens(row, eos_token_ids):
            others = np.ones(vocab_size, dtype=np.bool_)
            others[banned] = False
            _narrow(found[place], others)
    return found


def _narrow(allowed: npt.NDArray[np.bool_], to: npt.NDArray[np.bool_]) -> None:
    """``allowed`` [vocab_size], in place; as it is where nothing would be left."""
    both = allowed & to
    if both.any():
        allowed[:] = both


def _may_complete(output: list[int], word: tuple[int, ...]) -> bool:
    """All but the word's last token have just come."""
    begun = word[:-1]
    return len(begun) <= len(output) and output[len(output) - len(begun) :] == list(begun)
