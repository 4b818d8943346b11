"""What a benchmark's figures rest on: parts of modules, from those of its own on whatever they name."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from benchmarks.results.parts import ALL, LOADING, Name, parts_of
from benchmarks.results.tree import Tree


def reached(first: str, tree: Tree, left_out: Collection[str] = ()) -> Mapping[str, frozenset[str]]:
    """Names of parts by the paths of modules, from all parts of the module ``first`` on, without the modules
    ``left_out``. Of a module that is only loaded, what runs then."""
    reach = _Reach(tree, left_out)
    reach.follow(first)
    return {path: frozenset(parts) for path, parts in reach.reached.items()}


class _Reach:
    def __init__(self, tree: Tree, left_out: Collection[str]) -> None:
        self.reached: defaultdict[str, set[str]] = defaultdict(set)
        self._tree = tree
        self._left_out = left_out
        self._loaded = set[str]()
        self._left: deque[tuple[str, str]] = deque()

    def follow(self, first: str) -> None:
        self._load(first)
        self._take_all(first)
        while self._left:
            path, part = self._left.popleft()
            for name in sorted(parts_of(self._tree.text(path)).needs[part]):
                self._need(path, name)

    def _need(self, path: str, name: Name) -> None:
        """By what is in ``path``. Nothing comes of a name that nobody of the project has, as ``len``."""
        if not name.module:
            self._take(path, name)
            return
        self._load_named(name.module)
        module, inner = self._tree.module(name.module), f"{name.module}.{name.part}"
        if module is not None and name.part == ALL:  # import a: a.f names f; import a.b: a.b.f is not looked into
            self._take_named(module, "" if "." in name.module else name.attribute)
        elif module is not None and self._take(module, name):
            pass
        elif (found := self._tree.module(inner)) is not None:
            self._load_named(inner)
            self._take_named(found, name.attribute)

    def _take_named(self, path: str, attribute: str) -> None:
        """A part of a module, or all of one that is named itself."""
        if attribute:
            self._take(path, Name("", attribute))
        else:
            self._take_all(path)

    def _take_all(self, path: str) -> None:
        for part in parts_of(self._tree.text(path)).meanings:
            self._take(path, Name("", part))

    def _take(self, path: str, name: Name) -> bool:
        """False where there is none of this name."""
        parts = parts_of(self._tree.text(path))
        if name.part in parts.meanings:
            if path not in self._left_out and name.part not in self.reached[path]:
                self.reached[path].add(name.part)
                self._left.append((path, name.part))
        elif name.part in parts.imports:
            self._need(path, parts.imports[name.part]._replace(attribute=name.attribute))
        return name.part in parts.meanings or name.part in parts.imports

    def _load_named(self, module: str) -> None:
        """With the packages that it is in."""
        words = module.split(".")
        for depth in range(1, len(words) + 1):
            path = self._tree.module(".".join(words[:depth]))
            if path is not None:
                self._load(path)

    def _load(self, path: str) -> None:
        if path in self._loaded or path in self._left_out:
            return
        self._loaded.add(path)
        self._take(path, Name("", LOADING))
        for module in sorted(parts_of(self._tree.text(path)).loads):
            self._load_named(module)
