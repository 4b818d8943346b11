"""What is kept of a benchmark: a file of its rows and their origin, and with it a place in a page of the documentation,
where the file is shown.

Below the folder of the pages ``results/PAGE/NAME.jsonl`` has the origin as its first line, and then a row or a string a
line; it stands in ``PAGE.md`` between ``<!-- NAME -->`` and ``<!-- /NAME -->``, a picture of it in
``images/PAGE/NAME.png``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from PIL import Image

from benchmarks.harness.origin import Origin
from benchmarks.harness.table import Told, markdown
from loadgen.errors import WorkloadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path("docs")
MAX_COLOURS = 64  # lines and text need few; a palette keeps a picture under 60 kB
BEGINS = re.compile(r"^<!-- (?P<name>[\w-]+) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """PAGE/NAME."""

    page: str
    name: str

    @classmethod
    def of(cls, text: str) -> Place:
        """Raises ValueError for what is no PAGE/NAME."""
        page, slash, name = text.partition("/")
        if not (page and slash and re.fullmatch(r"[\w-]+", name)):
            raise ValueError(f"a place is PAGE/NAME, not {text!r}")
        return cls(page, name)

    def __str__(self) -> str:
        return f"{self.page}/{self.name}"

    def page_file(self, docs: Path) -> Path:
        return docs / f"{self.page}.md"

    def file(self, docs: Path) -> Path:
        return docs / "results" / self.page / f"{self.name}.jsonl"

    def picture_file(self, docs: Path) -> Path:
        return docs / "images" / self.page / f"{self.name}.png"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a benchmark told, and where that comes from."""

    origin: Origin
    told: Told

    @classmethod
    def read(cls, file: Path) -> Kept:
        """Raises WorkloadError for a file that is none of these."""
        first, *lines = file.read_text().splitlines()
        try:
            origin = msgspec.json.decode(first, type=Origin)
            return cls(origin, [msgspec.json.decode(line, type=dict[str, str] | str) for line in lines])
        except msgspec.DecodeError as error:
            raise WorkloadError(f"{file}: {error}") from error

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.Encoder().encode_lines([self.origin, *self.told]))

    def markdown(self) -> str:
        return f"{markdown(self.told)}\n\n{self.origin.line()}"


def keep(docs: Path, place: Place, kept: Kept, picture: Figure | None = None, title: str = "") -> None:
    """The file, the picture and the place in the page, at its end where it has none; ``title``: of a new page. Raises
    WorkloadError for a folder that cannot be written to, and for a page with half a place."""
    page = place.page_file(docs)
    try:
        kept.write(place.file(docs))
        if picture is not None:
            place.picture_file(docs).parent.mkdir(parents=True, exist_ok=True)
            write_picture(picture, place.picture_file(docs))
        text = page.read_text() if page.exists() else f"# {title or place.page}\n"
        page.write_text(with_section(text, place.name, kept.markdown()))
    except OSError as error:
        raise WorkloadError(f"cannot write below {docs}: {error.strerror}") from error


def all_kept(docs: Path) -> Mapping[Place, Kept]:
    """In the order of the pages' names and of what stands in them; what stands in none is last."""
    files = sorted((docs / "results").glob("*/*.jsonl"))
    found = {Place(file.parent.name, file.stem): Kept.read(file) for file in files}
    order = {place: number for number, place in enumerate(_places(docs))}
    return dict(sorted(found.items(), key=lambda item: (item[0].page, order.get(item[0], len(order)))))


def rendered(text: str, kept: Mapping[str, Kept]) -> str:
    """A page with all of its own, by name, in their places."""
    for name, each in kept.items():
        text = with_section(text, name, each.markdown())
    return text


def with_section(text: str, name: str, content: str) -> str:
    """``text`` with ``content`` between the markers of ``name``, each a line of its own, which are appended where they
    are missing. Raises WorkloadError where only the first is there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    section = f"{begin}\n\n{content}\n\n{end}"
    begins = re.search(f"^{begin}$", text, re.MULTILINE)
    if begins is None:
        return f"{text.rstrip()}\n\n{section}\n"
    ends = re.compile(f"^{end}$", re.MULTILINE).search(text, begins.end())
    if ends is None:
        raise WorkloadError(f"{begin} has no {end}")
    return text[: begins.start()] + section + text[ends.end() :]


def write_picture(picture: Figure, path: Path) -> None:
    """A PNG with a palette."""
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png")
    buffer.seek(0)
    with Image.open(buffer) as image:
        flat = image.convert("RGB").quantize(MAX_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        flat.save(path, optimize=True)


def _places(docs: Path) -> list[Place]:
    """That pages have, in their order."""
    pages = sorted(docs.glob("*.md"))
    return [Place(page.stem, match["name"]) for page in pages for match in BEGINS.finditer(page.read_text())]
