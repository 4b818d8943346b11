"""Commands for typer that are made of functions with fewer parameters than the command has options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints


def expanded_command(
    command: Callable[..., None],
    groups: Mapping[str, Sequence[inspect.Parameter]],
    make: Callable[[str, dict[str, Any]], Any],
) -> Callable[..., None]:
    """A command in which the options of ``groups[name]`` stand in the place of the function's parameter ``name``, whose
    value is ``make(name, options as they were given)``."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += groups.get(name, [own])

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        made = {
            name: make(name, {option.name: given.pop(option.name) for option in options})
            for name, options in groups.items()
        }
        command(**given, **made)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded
