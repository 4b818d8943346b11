"""An executor's prefix cache as it will be when the step that is planned starts."""

from collections.abc import Sequence

from shared.scheduling.kv.prefix_cache import CachedPrefix, PrefixCache, pair_by_kind
from shared.scheduling.request import Kind


class ExpectedCache:
    """What the executor told, and on top of it what the steps between are expected to do: blocks that they compute are
    found, and held, by requests of the kind that computed them, or of both; and what enters holds what it has found."""

    def __init__(self, told: PrefixCache, is_by_kind: bool = False) -> None:
        """``is_by_kind``: requests find nothing that one of the other kind computed."""
        self._told = told
        self._held = pair_by_kind(set[bytes], is_by_kind)  # membership only, never iterated

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """As a ``PrefixCache``."""
        expected = self._held[kind]
        if not expected:
            return self._told.look_up(hashes, kind)
        told = self._told.look_up(hashes, kind)
        num_blocks, num_held = told
        while num_blocks < len(hashes) and hashes[num_blocks] in expected:
            num_blocks += 1
            num_held += 1
        if told.num_held < told.num_blocks:
            again = (key for key in hashes[: told.num_blocks] if key in expected)
            num_held += sum(not self._told.look_up((key,), kind).num_held for key in again)
        return CachedPrefix(num_blocks, num_held)

    def hold(self, hashes: Sequence[bytes], kind: Kind) -> None:
        """These are computed by a request of this kind, or found by one that enters."""
        self._held[kind].update(hashes)

    def forget(self) -> None:
        """The executor has told how it is."""
        for held in self._held:
            held.clear()
