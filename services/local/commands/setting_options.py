"""Options of a command that are settings: each says on the command line what its setting's declaration says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from services.local.commands.parameters import one_of
from shared.settings.expanded_command import expanded_command
from shared.settings.setting import Setting

Given = dict[str, Any]  # what was on the command line, by the settings' names


def with_settings(settings: Sequence[Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command for typer, made of a function whose parameter ``given: Given`` stands for an option of each setting.

    What is not on the command line is not in ``given``, so that the environment and a file can say it."""
    parameters = [_parameter(setting) for setting in settings]

    def given(_: str, options: Given) -> Given:
        return {name: value for name, value in options.items() if value is not None}

    return lambda command: expanded_command(command, {"given": parameters}, given)


def _parameter(setting: Setting) -> inspect.Parameter:
    kind: Any = list[str] if setting.is_list else setting.type
    annotation = Annotated[kind | None, _option(setting)]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(setting: Setting) -> Any:
    """Bounds that exclude their limit are checked with the other sources' values."""
    known = setting.choices
    label = setting.name.replace("_", " ")
    return typer.Option(
        setting.flag,
        help=_sentence(setting),
        min=setting.meta.ge,
        max=setting.meta.le,
        callback=one_of(label, known) if known else None,
        autocompletion=(lambda: known) if known else None,
        show_default=setting.default_text or False,
    )


def _sentence(setting: Setting) -> str:
    """``tokens of one step`` as ``Tokens of one step.``; a name that comes first stays as it is."""
    text = setting.explanation
    first = text.split(maxsplit=1)[0]
    starts_with_name = first.endswith((",", ":")) or first in setting.choices
    return f"{text}." if starts_with_name else f"{text[:1].upper()}{text[1:]}."
