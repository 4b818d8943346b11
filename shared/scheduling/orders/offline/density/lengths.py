"""How long answers were, by what their prompts begin with: what BlendServe (section 3.2) samples."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

PRIOR_TOKENS = 256  # before anything has ended: about what chats have
MAX_PREFIXES = 4096  # that are remembered, those that were told of last
MAX_COUNTED = 1024  # then both sums are halved, so that what was long ago counts for little
_STEPS_PER_OCTAVE = 16
_FORM = "slackwater-output-lengths-1"
_KEY_BYTES = 12


@dataclass(slots=True, eq=False)
class Seen:
    """Requests that have ended whose prompts begin with a prefix, and of them those that shared no more than that with
    others. ``tokens``: of their outputs."""

    key: bytes
    num_requests: int = 0
    num_tokens: int = 0
    num_own_requests: int = 0
    num_own_tokens: int = 0

    @property
    def mean(self) -> int | None:
        return _mean(self.num_tokens, self.num_requests)

    @property
    def own_mean(self) -> int | None:
        return _mean(self.num_own_tokens, self.num_own_requests)

    def count(self, num_tokens: int, is_own: bool) -> None:
        """One more has ended."""
        self.num_requests += 1
        self.num_tokens += num_tokens
        if is_own:
            self.num_own_requests += 1
            self.num_own_tokens += num_tokens
        if self.num_requests >= MAX_COUNTED:
            self.num_requests //= 2
            self.num_tokens //= 2
            self.num_own_requests //= 2
            self.num_own_tokens //= 2


class _Memory(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    form: str
    block_size: int
    prefixes: list[tuple[bytes, int, int, int, int]]  # as ``Seen``, the longest untold first


class OutputLengths:
    """By prefix, in bounded room. Prefixes end where blocks of ``block_size`` tokens do."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._seen: OrderedDict[bytes, Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def of(self, prefix: bytes) -> Seen | None:
        """What is known of a packed prefix; None for nothing."""
        return self._seen.get(_key(prefix)) if self._seen else None

    def begin(self, prefix: bytes) -> Seen:
        """A new one of a prefix of which nothing is known."""
        return Seen(_key(prefix))

    def count(self, seen: Seen, num_tokens: int, is_own: bool) -> None:
        """One more has ended there; it is told of last."""
        seen.count(num_tokens, is_own)
        self._seen[seen.key] = seen
        self._seen.move_to_end(seen.key)
        if len(self._seen) > MAX_PREFIXES:
            self._seen.popitem(last=False)

    def remember(self) -> bytes:
        """Under 200 KB; empty where nothing has ended."""
        if not self._seen:
            return b""
        prefixes = [
            (each.key, each.num_requests, each.num_tokens, each.num_own_requests, each.num_own_tokens)
            for each in self._seen.values()
        ]
        return msgspec.msgpack.encode(_Memory(_FORM, self._block_size, prefixes))

    def recall(self, data: bytes) -> None:
        """In place of what it has. Raises ValueError for bytes that another did not remember, or one with other
        blocks."""
        try:
            memory = msgspec.msgpack.decode(data, type=_Memory)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"these {len(data)} bytes are not what was learnt of output lengths: {error}") from error
        if memory.form != _FORM or memory.block_size != self._block_size:
            raise ValueError(
                f"output lengths as {memory.form!r}, by blocks of {memory.block_size} tokens, "
                f"are not {_FORM!r} by blocks of {self._block_size}"
            )
        seen = [Seen(*each) for each in memory.prefixes[-MAX_PREFIXES:]]
        if not all(_is_sound(each) for each in seen):
            raise ValueError("output lengths that no requests can have had")
        self._seen = OrderedDict((each.key, each) for each in seen)


def quantized(mean: float) -> int:
    """Tokens, to within 2%: so that what is estimated changes seldom, and is the same however it was come to."""
    step = round(math.log2(max(1.0, mean)) * _STEPS_PER_OCTAVE)
    return round(math.exp2(step / _STEPS_PER_OCTAVE))


def _mean(num_tokens: int, num_requests: int) -> int | None:
    return quantized(num_tokens / num_requests) if num_requests else None


def _is_sound(seen: Seen) -> bool:
    return (
        len(seen.key) == _KEY_BYTES
        and 0 <= seen.num_own_requests <= seen.num_requests <= MAX_COUNTED
        and 0 <= seen.num_own_tokens <= seen.num_tokens
        and seen.num_requests > 0
    )


def _key(prefix: bytes) -> bytes:
    return blake2b(prefix, digest_size=_KEY_BYTES).digest()
