"""What an offline order has learnt of the requests that ended."""

from hashlib import blake2b

import msgspec

KEY_BYTES = 16


class LearntBy(msgspec.Struct, frozen=True):
    """Who can use it. ``tokenizer``: a digest of what makes tokens of texts; ``block_size``: tokens of the blocks by
    which prompts are compared."""

    order: str
    model: str
    tokenizer: str
    block_size: int

    @property
    def key(self) -> str:
        """In LEARNT_BUCKET: names of models may have what keys must not."""
        return blake2b(msgspec.msgpack.encode(self), digest_size=KEY_BYTES).hexdigest()


class Learnt(msgspec.Struct, frozen=True):
    """A value of LEARNT_BUCKET. ``data``: what the order remembered."""

    by: LearntBy
    data: bytes
