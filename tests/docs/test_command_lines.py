"""Command lines in the docs name commands, options and modules that there are."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from services.local.cli import command
from services.local.command_group import DeferredCommand

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
CODE = re.compile(r"^ *```\n(?P<block>.*?)^ *```|`(?P<inline>[^`\n]+(?:\n[^`\n]+)?)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:\A|^|[|;&(] *|\$ )(?:\w+=\S+ )*(?:\S*/)?slackwater (?P<words>[a-z][^\n]*)", re.MULTILINE)
MODULE = re.compile(r"python -m (?P<name>(?:services|shared|loadgen|benchmarks|deploy|tests)[a-z0-9_.]*)")
OF_A_SHELL = ("|", "||", "&&", "&", ";", "#", ">")


def command_lines(page: Path) -> list[str]:
    """What follows ``slackwater``, in blocks and within the text."""
    found = [match["block"] or match["inline"] for match in CODE.finditer(page.read_text())]
    whole = [re.sub(r"\\\n\s*", " ", code) for code in found]
    return [line["words"] for code in whole for line in COMMAND.finditer(code)]


def words_of(line: str) -> list[str]:
    """Up to the end of the command."""
    words = shlex.split(line.partition(" #")[0].replace("...", ""))
    return words[: next((at for at, word in enumerate(words) if word in OF_A_SHELL), None)]


def loaded(words: list[str]) -> tuple[Any, list[str]]:
    """The command that they name, and the words that are left."""
    found: Any = command
    while hasattr(found, "commands") and words and words[0] in found.commands:
        named = found.commands[words[0]]
        found, words = named.loaded() if isinstance(named, DeferredCommand) else named, words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_command_lines_name_what_there_is(page: Path) -> None:
    for line in command_lines(page):
        found, words = loaded(words_of(line))
        assert found is not command, f"no such command: slackwater {line}"
        known = {flag for param in found.params for flag in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
        named = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert named <= known, f"slackwater {line}: {named - known}"
    for module in MODULE.finditer(page.read_text()):
        assert find_spec(module["name"].rstrip(".")) is not None, module[0]


def test_command_lines_are_found() -> None:
    assert len(command_lines(ROOT / "README.md")) > 10
    assert "role executor-2 strict          # while it runs" in command_lines(ROOT / "docs/guides/many_gpus.md")
