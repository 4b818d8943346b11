"""What a full block of KV is known by, everywhere: a hash of its tokens and of all tokens before them."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import NamedTuple

from shared.scheduling.packed_prompt import TOKEN_BYTES, pack_tokens

HASH_BYTES = 16
SHARED_TOPS = 9  # scores with so many most probable tokens or more take too much memory to be kept
_EACH = Struct(f"{HASH_BYTES}s")
_SCORED, _GROUP = b"scored", b"adapter"
_BLANK = blake2b(digest_size=HASH_BYTES)  # copied for each hash: three times as fast as a new one


class KVScope(NamedTuple):
    """Whose blocks a prompt may find, beside those that have its tokens: of requests with the same scope."""

    num_top: int | None = None  # of a prompt whose tokens are scored: see ``scored_chain``; None: they are not
    adapter: str = ""  # of the model, by its name: KV is another one with each
    owner: str = ""  # whose KV it is alone; empty: whoever has the prompt may find it

    @property
    def group(self) -> str:
        """The adapter and the owner, as one text; empty without either."""
        return f"{self.adapter}\0{self.owner}" if self.owner else self.adapter

    @property
    def root(self) -> bytes:
        """What stands before the first block: ``parent`` of its hash."""
        group = self.group
        return blake2b(_GROUP + group.encode(), digest_size=HASH_BYTES).digest() if group else b""


PLAIN = KVScope()


@lru_cache(maxsize=256)
def kv_scope(num_top: int | None, adapter: str, owner: str = "") -> KVScope:
    """The same object for all that are alike: each of many waiting requests has one."""
    return KVScope(num_top, adapter, owner) if adapter or owner or num_top is not None else PLAIN


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Of a block's tokens after the block with the hash ``parent``; the scope's ``root`` for the first one."""
    hasher = _BLANK.copy()
    hasher.update(parent + pack_tokens(token_ids))
    return hasher.digest()


def hash_chain(
    tokens: Sequence[int] | bytes, block_size: int, max_blocks: int | None = None, parent: bytes = b""
) -> list[bytes]:
    """The hashes of the full blocks that a prompt begins with, ``max_blocks`` of them at most. ``tokens``: ids, or
    ids that are packed already; ``parent`` as of ``block_hash``."""
    packed = tokens if isinstance(tokens, bytes) else pack_tokens(tokens)
    block_bytes = block_size * TOKEN_BYTES
    num_blocks = len(packed) // block_bytes
    if max_blocks is not None:
        num_blocks = min(num_blocks, max_blocks)
    blank, hashes = _BLANK.copy, []
    for start in range(0, num_blocks * block_bytes, block_bytes):
        hasher = blank()
        hasher.update(parent + packed[start : start + block_bytes])
        parent = hasher.digest()
        hashes.append(parent)
    return hashes


def scored_chain(
    tokens: Sequence[int] | bytes, block_size: int, num_top: int, max_blocks: int | None = None, root: bytes = b""
) -> list[bytes]:
    """As ``hash_chain``, of the blocks of a prompt whose tokens are scored, with ``num_top`` most probable ones each.
    ``root``: the scope's.

    Who finds such a block finds scores with its KV. A token is scored by what is computed of the one before it; so a
    block goes with the scores of its tokens but the first and of the one that follows it, and is known by them: the
    chain is that of the tokens from the second on, after the first. It meets no chain of ``hash_chain``."""
    packed = tokens if isinstance(tokens, bytes) else pack_tokens(tokens)
    if not num_top < SHARED_TOPS or not packed:
        return []
    first, rest = packed[:TOKEN_BYTES], packed[TOKEN_BYTES:]
    return hash_chain(rest, block_size, max_blocks, _SCORED + bytes([num_top]) + first + root)


def prompt_chain(
    tokens: Sequence[int] | bytes, block_size: int, scope: KVScope, max_blocks: int | None = None
) -> list[bytes]:
    """What a prompt finds its beginning by: ``scored_chain`` where its tokens are scored, else ``hash_chain``."""
    if scope.num_top is None:
        return hash_chain(tokens, block_size, max_blocks, scope.root)
    return scored_chain(tokens, block_size, scope.num_top, max_blocks, scope.root)


def split_hashes(packed: bytes) -> list[bytes]:
    """Of hashes that stand one behind the other; a part of one at the end is left out."""
    whole = packed[: len(packed) - len(packed) % HASH_BYTES]
    return list(chain.from_iterable(_EACH.iter_unpack(whole)))
