"""The command line of a benchmark."""

from __future__ import annotations

from collections.abc import Callable

import typer


def run_command(main: Callable[..., None]) -> None:
    """The program of the module that ``main`` is in: its parameters are options, the module's docstring is the help."""
    module = main.__globals__
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=module["__doc__"])(main)
    app(prog_name=f"python -m {module['__spec__'].name}")
