"""The configuration file as people read and write it: a commented file of all defaults, and the reference page."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.local.stack.catalogue import SERVICES, STRATEGY, tables
from shared.scheduling.strategy import Strategy
from shared.settings.config_file import FILE_NAME
from shared.settings.setting import Setting

WIDTH = 100
PREAMBLE = f"""\
# Slackwater's configuration: {FILE_NAME} in the working directory, or the file that --config or SLACKWATER_CONFIG
# names. What is commented out has its default. Command line and environment come before this file: port is --port
# and SLACKWATER_PORT as well.
"""
STACK_ABOUT = "The stack as a whole; what a service has too, it takes from here."


def config_template() -> str:
    """A file with every setting, its meaning and its default, all of them commented out."""
    parts = [PREAMBLE]
    for name, settings in tables().items():
        lines = [*_comment(about(name)), f"[{name}]"]
        for setting in settings:
            values = "" if setting.choices else f" ({values_text(setting)})"
            lines += ["", *_comment(setting.explanation + values)]
            lines.append(f"#{setting.name} = {toml_value(setting.default)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def reference() -> Iterator[str]:
    """A section of Markdown for each table: the end of docs/configuration.md."""
    for name, settings in tables().items():
        yield f"### [{name}]\n\n{about(name)}\n"
        yield "| setting | default | values | meaning |\n| --- | --- | --- | --- |"
        for setting in settings:
            cells = (f"`{setting.name}`", default_cell(setting), values_text(setting), setting.description)
            yield f"| {' | '.join(cells)} |"
        yield ""


def about(table: str) -> str:
    """What a table's settings are of."""
    of = Strategy if table == STRATEGY else SERVICES.get(table)
    text = STACK_ABOUT if of is None else (of.__doc__ or "")
    return " ".join(text.split())


def values_text(setting: Setting) -> str:
    """The type with its bounds, or the known values."""
    if setting.choices:
        return ", ".join(setting.choices)
    meta = setting.meta
    bounds = {"at least": meta.ge, "over": meta.gt, "at most": meta.le, "below": meta.lt}
    words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    kind = {"int": "integer", "float": "number", "bool": "true or false", "Path": "folder"}.get(
        setting.type.__name__, "list of texts" if setting.is_list else "text"
    )
    return ", ".join([kind, *words])


def default_cell(setting: Setting) -> str:
    """In the reference."""
    return setting.default_text if setting.is_by_base else f"`{toml_value(setting.default)}`"


def toml_value(value: Any) -> str:
    """As TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False) if isinstance(value, str | Path) else str(value)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False)]
