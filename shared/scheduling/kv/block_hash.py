"""What a full block of KV is known by, everywhere: a hash of its tokens and of all tokens before them."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from shared.scheduling.packed_prompt import TOKEN_BYTES, pack_tokens

HASH_BYTES = 16
_BLANK = blake2b(digest_size=HASH_BYTES)  # copied for each hash: three times as fast as a new one


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Of a block's tokens after the block with the hash ``parent``; b"" for the first one."""
    hasher = _BLANK.copy()
    hasher.update(parent + pack_tokens(token_ids))
    return hasher.digest()


def hash_chain(tokens: Sequence[int] | bytes, block_size: int, max_blocks: int | None = None) -> list[bytes]:
    """The hashes of the full blocks that a prompt begins with, ``max_blocks`` of them at most. ``tokens``: ids, or
    ids that are packed already."""
    packed = tokens if isinstance(tokens, bytes) else pack_tokens(tokens)
    block_bytes = block_size * TOKEN_BYTES
    num_blocks = len(packed) // block_bytes
    if max_blocks is not None:
        num_blocks = min(num_blocks, max_blocks)
    blank, parent, hashes = _BLANK.copy, b"", []
    for start in range(0, num_blocks * block_bytes, block_bytes):
        hasher = blank()
        hasher.update(parent + packed[start : start + block_bytes])
        parent = hasher.digest()
        hashes.append(parent)
    return hashes


def split_hashes(packed: bytes) -> Iterator[bytes]:
    """Of hashes that stand one behind the other."""
    return (packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES))
