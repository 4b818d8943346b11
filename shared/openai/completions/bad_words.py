"""vLLM's ``bad_words``: the tokens that a text may not have one after another."""

from collections.abc import Iterable

from shared.openai.errors import RequestError
from shared.text.tokenizer import Tokenizer

TokenIds = tuple[int, ...]


def bad_word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> tuple[TokenIds, ...]:
    """Of each word as it begins a text, and as it follows a space where that is another token, as vLLM takes them.
    Raises RequestError for a word without a token."""
    found: dict[TokenIds, None] = {}
    for word in words:
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if not bare:
            raise RequestError(f"bad_words: {word!r} has no token in the model's vocabulary", "bad_words")
        found[tuple(bare)] = None
        spaced = tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found[tuple(spaced)] = None
    return tuple(found)
