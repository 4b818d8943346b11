"""The shape of the command line: named errors become exit status 1, or 2 where the configuration is at fault, and a
command is imported when it is used."""

import errno
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from shared.errors import ConfigError, SlackwaterError
from shared.nowhere import write_nowhere

FAILURE, MISUSE = 1, 2


class CommandGroup(TyperGroup):
    """Its commands may raise SlackwaterError, and OSError for what they read and write. ``deferred``: by name the line
    that the list of commands shows, and ``module:name`` of a function or of a typer application."""

    deferred: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (help_line, target) in self.deferred.items():
            self.add_command(DeferredCommand(name, help_line, target))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SlackwaterError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(MISUSE if isinstance(error, ConfigError) else FAILURE) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # of a pipe that nobody reads any more nothing is said
                raise
            print(f"error: {error}", file=sys.stderr)
            try:
                sys.stdout.flush()
            except OSError:
                write_nowhere(sys.stdout.fileno())
            raise typer.Exit(FAILURE) from error


class DeferredCommand(TyperCommand):
    """A command that is imported when it is used, so that the list of commands is shown at once."""

    def __init__(self, name: str, help_line: str, target: str) -> None:
        super().__init__(name, help=help_line, short_help=help_line)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The loaded command's own context, so that it parses, explains and runs itself."""
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> Any:
        """The command with its options, or the group with its commands."""
        found = resolve_name(self._target)
        app = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name, help=self.help)
            apps: Any = get_command(app)
            return _as_shown(apps.commands[self.name])
        app.command(self.name)(found)
        return _as_shown(get_command(app))


def _as_shown(command: Any) -> Any:
    """Each paragraph of its help is one line, which is broken where the terminal ends. A number that is none, or
    infinite, is no usable value of any option: no bound of theirs keeps it out."""
    for each in getattr(command, "commands", {}).values():
        _as_shown(each)
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))
    for param in command.params:
        param.callback = partial(_require_finite, param.callback)
    return command


def _require_finite(then: Callable[[Any, Any, Any], Any] | None, ctx: Any, param: Any, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value) and value != param.default:
        raise typer.BadParameter(f"{value} is no finite number", ctx=ctx, param=param)
    return value if then is None else then(ctx, param, value)
