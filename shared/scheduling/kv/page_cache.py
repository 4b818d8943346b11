"""The pages of a bidirectional pool that can be found by their contents."""

from collections.abc import Iterator, Sequence

from shared.scheduling.kv.cache_log import CacheLog
from shared.scheduling.kv.page import Page
from shared.scheduling.kv.prefix_cache import CacheChanges, CachedPrefix, count_leading
from shared.scheduling.request import Kind


class PageCache:
    """By kind, since requests find pages of their own kind only. A page whose latest positions are on the host is not
    found until it is whole again."""

    def __init__(self) -> None:
        self._pages: tuple[dict[bytes, Page], dict[bytes, Page]] = ({}, {})  # online, offline
        self._log = CacheLog(len(self._pages))

    def __iter__(self) -> Iterator[Page]:
        """All whose contents are known, whole or not."""
        return (page for pages in self._pages for page in pages.values())

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """Leading pages of this kind that are found."""
        pages = self._pages[kind]

        def find(key: bytes) -> bool | None:
            page = pages.get(key)
            return None if page is None else page.is_held

        return count_leading(find, hashes)

    def find(self, key: bytes, kind: Kind) -> Page | None:
        """The whole page with these contents."""
        page = self._pages[kind].get(key)
        return page if page is not None and page.is_whole else None

    def publish(self, page: Page, key: bytes) -> bool:
        """Make a full page findable, which is not yet, unless another one with these contents is: then False."""
        assert page.hash is None
        if key in self._pages[page.kind]:
            return False
        page.hash = key
        self._pages[page.kind][key] = page
        self.update(page)
        return True

    def forget(self, page: Page) -> None:
        """Its contents are worthless; nothing where they are not known."""
        if page.hash is not None:
            self._note(page, page.hash, None)
            del self._pages[page.kind][page.hash]
            page.hash = None

    def update(self, page: Page) -> None:
        """It may be whole or not, and held or not, otherwise than before. A held one's block is for nobody else."""
        if page.hash is not None:
            self._note(page, page.hash, page.num_active > 0 if page.is_whole else None)

    def take_changes(self) -> CacheChanges:
        """Of what is found, since the last call; two entries: online, offline."""
        return self._log.take()

    def snapshot(self) -> CacheChanges:
        """All that was found at the last ``take_changes``."""
        return self._log.snapshot([{key: page.is_held for key, page in pages.items()} for pages in self._pages])

    def _note(self, page: Page, key: bytes, is_held: bool | None) -> None:
        if page.is_held is not is_held:
            self._log.note((key,), page.is_held, is_held, page.kind)
            page.is_held = is_held

    def check_integrity(self) -> None:
        """Raises AssertionError where keys and pages disagree."""
        for kind in Kind:
            for key, page in self._pages[kind].items():
                assert page.kind is kind and page.hash == key
                assert page.is_held is (page.num_active > 0 if page.is_whole else None)
