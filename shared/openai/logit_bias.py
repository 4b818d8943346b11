"""``logit_bias``: token ids, as the names of a JSON object, with what is added to their logits."""

from __future__ import annotations

from collections.abc import Mapping

from shared.openai.errors import RequestError

MOST = 100.0  # as OpenAI has it: at either end a token is all but certain, or all but impossible
MAX_TOKENS = 1024


def parse_logit_bias(biases: Mapping[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """(token id, bias) by token id. Raises RequestError."""
    if not biases:
        return ()
    if len(biases) > MAX_TOKENS:
        raise RequestError(f"logit_bias has {len(biases)} tokens; at most {MAX_TOKENS} are allowed", "logit_bias")
    return tuple(sorted((_token_id(name, vocab_size), _bias(name, bias)) for name, bias in biases.items()))


def _token_id(name: str, vocab_size: int) -> int:
    if not (name.isascii() and name.isdecimal()) or str(int(name[:20])) != name:
        raise RequestError(f"logit_bias has {name[:40]!r}, which is not a token id", "logit_bias")
    if int(name) >= vocab_size:
        raise RequestError(f"logit_bias: token id {name} is outside the vocabulary of {vocab_size}", "logit_bias")
    return int(name)


def _bias(name: str, bias: float) -> float:
    if not -MOST <= bias <= MOST:
        raise RequestError(f"logit_bias of token {name} is {bias:g}; it must be in -{MOST:g} to {MOST:g}", "logit_bias")
    return bias
