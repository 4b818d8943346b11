"""What a run leaves behind: a page of Markdown, and the same for the next run, which replaces only the stages that it
runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.stage import NAMES, Finished
from benchmarks.harness.table import Row, Table

PAGE, STORE, LOG = "gpu.md", "gpu.json", "gpu.log"
TITLE = "# On a GPU: tests, kernels and the engine"


@dataclass(frozen=True, slots=True)
class Origin:
    """Of one stage. ``revision``: None where it is not known."""

    date: str
    command: str
    machine: str
    revision: str | None

    def line(self) -> str:
        return f"`{self.command}`, {self.date}, {self.machine}, revision {self.revision or 'unknown'}."


class Report:
    """The stages that were run into this folder, each with its origin."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where it cannot be made. What is there of another kind is replaced."""
        self._folder = folder
        self._stages: dict[str, tuple[Finished, Origin]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / STORE).exists():
            self._stages = {
                name: (Finished(**kept["finished"]), Origin(**kept["origin"]))
                for name, kept in json.loads((folder / STORE).read_text()).items()
            }

    @property
    def log(self) -> Path:
        return self._folder / LOG

    def add(self, name: str, finished: Finished, origin: Origin) -> None:
        """Written at once."""
        self._stages[name] = finished, origin
        self._stages = {each: self._stages[each] for each in sorted(self._stages, key=_place)}
        kept = {
            each: {"finished": asdict(done), "origin": asdict(where)} for each, (done, where) in self._stages.items()
        }
        (self._folder / STORE).write_text(json.dumps(kept, indent=1) + "\n")
        (self._folder / PAGE).write_text(self.markdown())

    def markdown(self) -> str:
        parts = [TITLE, summary({name: finished for name, (finished, _) in self._stages.items()}).markdown()]
        for name, (finished, origin) in self._stages.items():
            about = NAMES.get(name, name)
            parts += [f"## {name}", f"{about[0].upper()}{about[1:]}. {origin.line()}"]
            parts += [f"{finished.outcome.capitalize()}: {finished.said}", finished.markdown]
        return "\n\n".join(part for part in parts if part) + "\n"


def summary(stages: Mapping[str, Finished]) -> Table:
    """A row for each stage, one at least."""
    rows: Sequence[Row] = [
        {"stage": name, "outcome": each.outcome, "seconds": f"{each.seconds:.0f}", "what came of it": _cell(each.said)}
        for name, each in stages.items()
    ]
    return Table("What each stage came to.", rows)


def _cell(said: str) -> str:
    return said.replace("|", "\\|")


def _place(name: str) -> int:
    """Of the stage; unknown ones come last."""
    return list(NAMES).index(name) if name in NAMES else len(NAMES)
