"""The bytes that each token of a vocabulary stands for, which need not be whole characters."""

import json
import re

import tokenizers

SPACE = "\u2581"  # what SentencePiece writes for one

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Tokenizers keep tokens as text: byte-level ones by a letter for each byte (GPT-2's table), others as they are but
    for spaces, with tokens like ``<0xE6>`` for bytes that no other token has."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
        decoders = _decoders(backend)
        self._letters = _byte_letters() if "ByteLevel" in decoders else None
        self.single_bytes = _single_bytes(backend) if "ByteFallback" in decoders else {}  # by the ids of such tokens

    def of(self, token_id: int) -> bytes:
        """Empty for an id outside the vocabulary."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._letters is not None:
            letters = self._letters
            return bytes(letters[letter] for letter in token) if letters.keys() >= set(token) else token.encode()
        fallback = _FALLBACK.fullmatch(token)
        return bytes.fromhex(fallback[1]) if fallback else token.replace(SPACE, " ").encode()


def _decoders(backend: tokenizers.Tokenizer) -> set[str]:
    """The kinds of the decoder's parts."""
    if backend.decoder is None:
        return set()
    decoder = json.loads(backend.decoder.__getstate__())
    return {part["type"] for part in (decoder, *decoder.get("decoders", ()))}


def _single_bytes(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """The byte that each token like ``<0xE6>`` is."""
    ids = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}


def _byte_letters() -> dict[str, int]:
    """GPT-2's table: printable bytes of Latin-1 are their own letters, the others those from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in sorted(printable)}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}
