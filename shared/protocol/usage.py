"""Tokens that a batch or a response took, as OpenAI's clients see them."""

from __future__ import annotations

import msgspec


class InputTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` came from the prefix cache; nothing is written to it at an extra price."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """There is no reasoning apart from the output."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one response, or of a batch so far."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, input_tokens: int, cached_tokens: int, output_tokens: int) -> Usage:
        """``cached_tokens``: of the input."""
        details = InputTokensDetails(cached_tokens), OutputTokensDetails()
        return cls(input_tokens, details[0], output_tokens, details[1], input_tokens + output_tokens)
