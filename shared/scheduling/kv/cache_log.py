"""What has changed in a pool's prefix cache since it was last told."""

from collections.abc import Iterable, Mapping, Sequence

from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges

_Change = tuple[bool | None, bool | None]  # of a block: as it was last told, as it is; see ``CacheLog.note``


class CacheLog:
    """Changes that cancel out are not kept, so that it is no larger than the cache where nobody takes them."""

    def __init__(self, num_maps: int = 1) -> None:
        """``num_maps``: 2 where requests find blocks of their own kind only."""
        self._version = 0
        self._changes: tuple[dict[bytes, _Change], ...] = tuple({} for _ in range(num_maps))

    def note(self, keys: Iterable[bytes], before: bool | None, after: bool | None, index: int = 0) -> None:
        """These blocks were held (True), free (False), or not to be found (None), and are another of that now."""
        changes, first = self._changes[index], (before, after)
        for key in keys:
            change = changes.get(key)
            if change is None:
                changes[key] = first
            elif change[0] is after:
                del changes[key]
            else:
                changes[key] = change[0], after

    def take(self) -> CacheChanges:
        """Since the last call. A version is counted only where there are any."""
        if not any(self._changes):
            return CacheChanges(self._version)
        self._version += 1
        blocks = tuple(map(_packed, self._changes))
        for changes in self._changes:
            changes.clear()
        return CacheChanges(self._version, False, blocks)

    def snapshot(self, held: Sequence[Mapping[bytes, bool | None]]) -> CacheChanges:
        """All of the cache as it was when changes were last taken, with their version. ``held``: for each map, whether
        what is found now is held."""
        blocks = []
        for now, changes in zip(held, self._changes, strict=True):
            then = {**now, **{key: told for key, (told, _) in changes.items()}}
            blocks.append(_packed({key: (None, is_held) for key, is_held in then.items() if is_held is not None}))
        return CacheChanges(self._version, True, tuple(blocks))


def _packed(changes: Mapping[bytes, _Change]) -> BlockChanges:
    held: list[bytes] = []
    free: list[bytes] = []
    gone: list[bytes] = []
    for key, (_, is_held) in changes.items():
        (gone if is_held is None else held if is_held else free).append(key)
    return BlockChanges(b"".join(held), b"".join(free), b"".join(gone))
