"""The folders of the project: none too full, and imports that run one way."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("services", "shared", "kernels", "loadgen", "benchmarks")
MAX_MODULES = 20
SMALL_FACE = 50  # characters of an __init__.py that defines nothing


def modules() -> dict[str, Path]:
    """By dotted name."""
    files = (file for top in TOPS for file in (ROOT / top).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(file: Path, known: dict[str, Path]) -> Iterator[Path]:
    """Files of the project that it takes names from."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found = known.get(name) or known.get(name.rpartition(".")[0])
            if found is not None and found != file and not is_face(found):
                yield found


def is_face(file: Path) -> bool:
    return file.name == "__init__.py" and file.stat().st_size < SMALL_FACE


def parting(file: Path, other: Path) -> tuple[Path, Path, Path]:
    """The one folder that has two files in different parts of it, and these parts: files, or folders they stand in."""
    depth = next(depth for depth, names in enumerate(zip(file.parts, other.parts, strict=False)) if len(set(names)) > 1)
    return Path(*file.parts[:depth]), Path(*file.parts[: depth + 1]), Path(*other.parts[: depth + 1])


def test_no_folder_has_more_modules_than_can_be_held_in_the_head() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for file in modules().values():
        counts[file.parent] += file.name != "__init__.py"
    assert {str(folder): count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_between_the_parts_of_a_folder_imports_run_one_way() -> None:
    """Files and folders: no circle at any level, so that each can be read once what it stands on is."""
    known = modules()
    below: dict[Path, dict[Path, set[Path]]] = defaultdict(lambda: defaultdict(set))
    for file in known.values():
        for target in imports(file, known):
            folder, ours, theirs = parting(file, target)
            below[folder][ours].add(theirs)
    for folder, arrows in sorted(below.items()):
        try:
            TopologicalSorter(arrows).prepare()
        except CycleError as circle:
            names = " -> ".join(str(each.relative_to(ROOT)) for each in circle.args[1])
            raise AssertionError(f"a circle in {folder.relative_to(ROOT)}: {names}") from circle
