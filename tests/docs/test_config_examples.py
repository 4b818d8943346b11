"""Configuration files in the docs can be read as they stand."""

import re
from pathlib import Path

import pytest

from services.local.stack.catalogue import stack_options

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md")) if EXAMPLE.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES)
def test_examples_are_configurations(page: str, tmp_path: Path) -> None:
    for example in EXAMPLE.findall((DOCS / page).read_text()):
        file = tmp_path / "slackwater.toml"
        file.write_text(example)
        assert stack_options({}, str(file), {}).config_file == file.resolve()
