"""Pages that are made of the code are as the code is."""

from pathlib import Path

import pytest

from services.gateway.api.http_reference import http_reference
from services.gateway.metrics_reference import metrics_reference
from services.local.cli_reference import cli_reference
from services.local.strategy_reference import strategy_reference

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "module", "pieces"),
    [
        ("cli.md", "services.local.cli_reference", cli_reference),
        ("http_api.md", "services.gateway.api.http_reference", http_reference),
        ("metrics.md", "services.gateway.metrics_reference", metrics_reference),
        ("strategies.md", "services.local.strategy_reference", strategy_reference),
    ],
    ids=["cli", "http_api", "metrics", "strategies"],
)
def test_the_page_is_as_the_code_is(page: str, module: str, pieces: object) -> None:
    assert callable(pieces)
    current = "\n".join(pieces()).rstrip() + "\n"
    assert (DOCS / page).read_text() == current, f"run: python -m {module} > docs/{page}"
