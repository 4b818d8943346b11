"""Options of commands for typer, out of declarations: of settings, and of groups of options."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from shared.settings.setting import Setting, is_table, settings_of

T = TypeVar("T")
Value = TypeVar("Value", str, str | None)
Given = dict[str, Any]  # what was on the command line, by the settings' names


def with_settings(settings: Sequence[Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command for typer, made of a function whose parameter ``given: Given`` stands for an option of each setting.

    What is not on the command line is not in ``given``, so that the environment and a file can say it."""
    parameters = [_parameter(setting) for setting in settings]
    return lambda command: _expanded(command, {"given": parameters}, lambda _, options: _given(options))


def with_option_groups(command: Callable[..., T]) -> Callable[..., T]:
    """A command for typer: each parameter that is annotated with a dataclass is made of options, its fields, which
    stand in the parameter's place; one that is annotated with a struct of settings is made of those that are given."""
    hints = get_type_hints(command)
    groups = {name: _options(name, hint) for name, hint in hints.items() if is_dataclass(hint) or is_table(hint)}

    def make(name: str, options: Given) -> Any:
        if not is_table(hints[name]):
            return hints[name](**options)
        try:
            return hints[name].of(**_given(options))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return _expanded(command, groups, make)


def one_of(what: str, known: Collection[str]) -> Callable[[Value], Value]:
    """A parameter callback that refuses everything else and names the known values; what was not given may pass."""

    def check(value: Value) -> Value:
        if value is not None and value not in known:
            raise typer.BadParameter(f"unknown {what} {value!r}; known: {', '.join(known)}")
        return value

    return check


def _expanded(
    command: Callable[..., T],
    groups: Mapping[str, Sequence[inspect.Parameter]],
    make: Callable[[str, dict[str, Any]], Any],
) -> Callable[..., T]:
    """A command in which the options of ``groups[name]`` stand in the place of the function's parameter ``name``, whose
    value is ``make(name, options as they were given)``."""
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        own = groups.get(name, [parameter])
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

    @functools.wraps(command)
    def expanded(**given: Any) -> T:
        made = {
            name: make(name, {option.name: given.pop(option.name) for option in options})
            for name, options in groups.items()
        }
        return command(**given, **made)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _given(options: Given) -> Given:
    return {name: value for name, value in options.items() if value is not None}


def _options(name: str, group: Any) -> list[inspect.Parameter]:
    """Settings of a struct are those of a table of the parameter's name."""
    if is_table(group):
        return [_parameter(replace(setting, table=setting.table or name)) for setting in settings_of(group)]
    return list(inspect.signature(group, eval_str=True).parameters.values())


def _parameter(setting: Setting) -> inspect.Parameter:
    """Bounds that exclude their limit are checked with the other sources' values."""
    kind: Any = list[str] if setting.is_list else setting.type
    known = setting.choices
    option: Any = typer.Option(
        setting.flag,
        help=_sentence(setting),
        min=setting.meta.ge,
        max=setting.meta.le,
        callback=one_of(setting.name.replace("_", " "), known) if known else None,
        autocompletion=(lambda: known) if known else None,
        show_default=setting.default_text or False,
    )
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _sentence(setting: Setting) -> str:
    """``tokens of one step`` as ``Tokens of one step.``; a name that comes first stays as it is."""
    text = setting.explanation
    first = text.split()[0]
    starts_with_name = first.endswith((",", ":")) or first in setting.choices
    return f"{text}." if starts_with_name else f"{text[:1].upper()}{text[1:]}."
