"""The bytes of tokens: together those of the text that they are of."""

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from shared.text.token_bytes import TokenBytes
from tests.shared.text.test_tokenizer import byte_fallback_backend

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
FOREIGN, BEHIND, SPECIAL = "漢字", chr(0x144), "<|end é|>"  # the second is the first behind the letters of bytes


def byte_level_backend() -> tokenizers.Tokenizer:
    """A token for each byte, some of more, one that is no letters of bytes, and an added one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate([*letters, "he", "Ġa", FOREIGN, BEHIND, "".join(letters)])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("Ġ", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    return backend


BYTE_LEVEL, BYTE_FALLBACK = byte_level_backend(), byte_fallback_backend()
OF_LEVEL, OF_FALLBACK = TokenBytes(BYTE_LEVEL), TokenBytes(BYTE_FALLBACK)


@given(ANY_TEXT)
def test_tokens_of_letters_of_bytes_are_the_bytes_of_their_text(text: str) -> None:
    assert b"".join(map(OF_LEVEL.of, BYTE_LEVEL.encode(text).ids)) == text.encode()


@given(ANY_TEXT)
def test_tokens_of_pieces_and_bytes_are_the_bytes_of_their_text(text: str) -> None:
    """Behind a space, as the tokenizer begins a text; a piece's own mark of a space reads as one."""
    token_ids = BYTE_FALLBACK.encode(f"a{text}").ids
    assert b"".join(map(OF_FALLBACK.of, token_ids)) == f" a{text}".replace("\u2581", " ").encode()


def test_each_byte_is_a_token_of_letters() -> None:
    """One that no text has, too; other tokens are more than one, or no bytes."""
    tokens, letters = TokenBytes(BYTE_LEVEL), sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_of = {letter: tokens.of(BYTE_LEVEL.token_to_id(letter)) for letter in letters}
    assert set(bytes_of.values()) == {bytes([byte]) for byte in range(256)} and bytes_of["\u00ff"] == b"\xff"
    for piece in ("he", "Ġa", "".join(letters)):
        assert tokens.of(BYTE_LEVEL.token_to_id(piece)) == b"".join(bytes_of[letter] for letter in piece)
    for text in (FOREIGN, BEHIND, SPECIAL):
        assert tokens.of(BYTE_LEVEL.token_to_id(text)) == text.encode()
    assert tokens.of(9_999) == b"" and not tokens.single_bytes


def test_each_byte_is_a_token_by_its_number() -> None:
    tokens = TokenBytes(BYTE_FALLBACK)
    assert tokens.single_bytes == {BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    assert all(tokens.of(token_id) == bytes([byte]) for token_id, byte in tokens.single_bytes.items())
    assert tokens.of(9_999) == b""


def test_a_vocabulary_without_bytes_is_text() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"<0x41>": 0, "a\u2581b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokens = TokenBytes(backend)
    assert not tokens.single_bytes and tokens.of(1) == b"a b" and tokens.of(2) == b"[UNK]"
