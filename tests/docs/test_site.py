"""The documentation as a site: it builds without a warning, and every link leads somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
MARKDOWN_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload"}


class Page(HTMLParser):
    """A built page: the ids that anchors lead to, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.add(str(found["id"]))
        source = found.get(LOADED.get(tag, ""))
        if source and (tag != "link" or LOADED_LINKS & set(str(found.get("rel")).split())):
            self.loaded.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as ``make docs`` builds it, where a link, an anchor or an image that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environ)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """By their paths within the site."""
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_docs_is_built(pages: dict[str, Page]) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert sources <= set(pages)


def test_pages_load_nothing_from_elsewhere_and_what_they_load_is_there(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert page.loaded, f"{name} has no style"
        for source in page.loaded:
            assert not urlsplit(source).netloc, f"{name} loads {source}"
            base = site if source.startswith("/") else (site / name).parent
            assert (base / urlsplit(source).path.lstrip("/")).is_file(), f"{name} loads {source}"


def test_the_readmes_links_lead_to_files_and_headings(pages: dict[str, Page]) -> None:
    links = [match["target"] for match in MARKDOWN_LINK.finditer((ROOT / "README.md").read_text())]
    local = [urlsplit(link) for link in links if not urlsplit(link).netloc]
    assert any(link.path.startswith("docs/") for link in local)
    for link in local:
        assert (ROOT / link.path).exists(), link.path
        if link.fragment:
            page = pages[Path(link.path).relative_to("docs").with_suffix(".html").as_posix()]
            assert link.fragment in page.ids, f"{link.path}#{link.fragment}"
