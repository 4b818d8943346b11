"""Chat templates of models, which are programs: what they may use, and how much of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import ChatTemplateError, ModelError

MAX_CHARACTERS = 64 * 1024**2  # of a prompt
MAX_REPEATED = 1024**2  # items of a text or a list that is multiplied
MAX_RANGES = 10**6  # numbers of all ranges together
MAX_BITS = 4096  # of a power


class ChatTemplate:
    """One template, compiled."""

    def __init__(self, source: str) -> None:
        """Raises ModelError where it does not parse."""
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # Jinja makes Python of it, which may be none: a break outside a loop
            raise ModelError(f"the chat template does not parse: {error}") from error

    def render(self, values: Mapping[str, Any]) -> str:
        """Raises ChatTemplateError where the template refuses the values, fails, or does not come to an end."""
        pieces: list[str] = []
        num_left = MAX_CHARACTERS
        try:
            for piece in self._template.generate({**values, "range": _bounded_range()}):
                pieces.append(piece)
                num_left -= len(piece)
                if num_left < 0:
                    raise SecurityError(f"it makes more than {MAX_CHARACTERS} characters")
        except Exception as error:  # it is a program, and can fail like any other
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
        return "".join(pieces)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """As Hugging Face's, without products that take all the memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(left).bit_length() * right > MAX_BITS:
                raise SecurityError(f"a power of more than {MAX_BITS} bits")
        elif operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, Sequence) and isinstance(times, int) and len(items) * times > MAX_REPEATED:
                    raise SecurityError(f"a product of more than {MAX_REPEATED} items")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(jinja2.ext.Extension):
    """What stands between ``{% generation %}`` and ``{% endgeneration %}``, by which those who train a model tell its
    own tokens: as if the tags were not there, but that what is set between them is gone behind them."""

    tags = {"generation"}  # noqa: RUF012  # of the type that Jinja gives it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


def _environment() -> jinja2.Environment:
    """With the tags, filters and functions that Hugging Face's chat templates may use."""
    extensions = [_GenerationTag, jinja2.ext.loopcontrols]
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _bounded_range() -> Callable[..., range]:
    """``range``, for one rendering."""
    num_left = MAX_RANGES

    def bounded(*arguments: int) -> range:
        nonlocal num_left
        made = range(*arguments)
        num_left -= len(made)
        if num_left < 0:
            raise SecurityError(f"ranges of more than {MAX_RANGES} numbers")
        return made

    return bounded


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def find_templates(config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Of tokenizer_config.json: the template of conversations, and the one for those with tools where it is another."""
    template = config.get("chat_template")
    if isinstance(template, list):
        whole = [each for each in template if isinstance(each, Mapping) and isinstance(each.get("template"), str)]
        named = {each.get("name"): each["template"] for each in whole if isinstance(each.get("name"), str)}
        return named.get("default"), named.get("tool_use")
    return (template, None) if isinstance(template, str) else (None, None)
