"""A paper, its figures, and what they leave behind: tables in a Markdown page, pictures beside it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import figure
from PIL import Image

from benchmarks.harness.command import Table
from loadgen.errors import WorkloadError
from loadgen.progress import ReplayProgress

MAX_COLOURS = 64  # lines and text need few; a palette keeps a picture under 60 kB


@dataclass(frozen=True, slots=True)
class Result:
    """One figure."""

    tables: Sequence[Table]
    picture: figure.Figure

    def markdown(self) -> str:
        return "\n\n".join(table.markdown() for table in self.tables)


@dataclass(frozen=True, slots=True)
class Page:
    """A paper's figures."""

    name: str
    title: str

    @property
    def file(self) -> str:
        return f"{self.name}.md"

    @property
    def images(self) -> str:
        """The folder of the pictures."""
        return f"images/{self.name}"

    def write(self, folder: Path, name: str, result: Result) -> None:
        """The picture below ``folder``, the tables into the page, in the place of those that an earlier run of the
        figure ``name`` left there, else at its end. Raises WorkloadError for a folder that cannot be written to, and
        for a page with half a place."""
        try:
            (folder / self.images).mkdir(parents=True, exist_ok=True)
            write_picture(result.picture, folder / self.images / f"{name}.png")
            page = folder / self.file
            text = page.read_text() if page.exists() else f"# {self.title}\n"
            page.write_text(with_section(text, name, result.markdown()))
        except OSError as error:
            raise WorkloadError(f"cannot write below {folder}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Figure:
    """``make``: of what the paper's ``open`` returns; ``files``: the options that it cannot do without."""

    make: Callable[[Any], Result]
    about: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Paper:
    """``options``: a dataclass, whose fields are options of the paper's command; ``open``: what all figures of one
    invocation share, so that they share runs too; ``figures``: those that need the same runs stand together."""

    page: Page
    about: str
    options: type
    open: Callable[[Any, ReplayProgress], Any]
    figures: Mapping[str, Figure]


def with_section(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the markers of ``name``, which are appended where they are missing.

    Raises WorkloadError where only the first is there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    section = f"{begin}\n\n{content}\n\n{end}"
    before, found, rest = text.partition(begin)
    if not found:
        return f"{text.rstrip()}\n\n{section}\n"
    if end not in rest:
        raise WorkloadError(f"{begin} has no {end}")
    return before + section + rest.partition(end)[2]


def write_picture(picture: figure.Figure, path: Path) -> None:
    """A PNG with a palette."""
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png")
    buffer.seek(0)
    with Image.open(buffer) as image:
        flat = image.convert("RGB").quantize(MAX_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        flat.save(path, optimize=True)
