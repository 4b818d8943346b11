"""Every test that docs/openai_client.md names is there, and every call of the client that a gateway serves is named."""

import ast
import re
from functools import cache
from pathlib import Path

import openai
import pytest

from services.gateway.api.app import make_routes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "openai_client.md").read_text()
TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`")
NAMED = sorted({(match["file"], match["name"]) for match in TEST.finditer(PAGE)})
PREFIX = "/v1/"


@cache
def functions_of(file: str) -> frozenset[str]:
    """The names of the test functions in it."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, functions)
    )


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_is_there(file: str, name: str) -> None:
    assert name in functions_of(file)


def test_every_row_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    without = [row for row in rows if not TEST.search(row)]
    assert [row.rsplit(" | ", 1)[1] for row in without] == ["test |", "test |"]  # the tables' heads


def test_every_served_resource_of_the_client_is_named() -> None:
    """By the endpoints' paths, as /v1/chat/completions is chat.completions."""
    paths = [path for path in make_routes(keys_required=False).openapi()["paths"] if path.startswith(PREFIX)]
    resources = {path.removeprefix(PREFIX).split("/{")[0].replace("/", ".") for path in paths}
    assert {"chat.completions", "batches", "organization.usage.completions"} <= resources
    with openai.OpenAI(base_url="http://127.0.0.1", api_key="none") as client:
        for resource in resources:
            called = f"admin.{resource}" if resource.startswith("organization.") else resource
            found: object = client
            for part in called.split("."):
                found = getattr(found, part)
            assert f"`{called}." in PAGE or f"`{called}(" in PAGE, called
