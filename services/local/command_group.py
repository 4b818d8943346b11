"""The shape of the command line: named errors become exit status 1, and a slow command is loaded when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from shared.errors import SlackwaterError

FAILURE = 1


class CommandGroup(TyperGroup):
    """A group whose commands may raise SlackwaterError."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SlackwaterError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(FAILURE) from error


class DeferredCommand(TyperCommand):
    """A command whose function is imported when the command is used, not when the list of commands is shown."""

    def __init__(self, name: str, help_line: str, load: Callable[[], Callable[..., Any]]) -> None:
        super().__init__(name, help=help_line, short_help=help_line)
        self._load = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The loaded command's own context, so that it parses, explains and runs itself."""
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> Any:
        """The command with its options."""
        app = typer.Typer(add_completion=False)
        app.command(self.name)(self._load())
        return get_command(app)
