"""docs/cli.md, made of the commands themselves: ``python -m services.local.cli_reference > docs/cli.md``."""

from collections.abc import Iterator
from typing import Any

from services.local.cli import command
from services.local.command_group import DeferredCommand

PROGRAM = "slackwater"
HEAD = """\
# Command line

Every command of `slackwater` with its arguments and options, as `--help` shows them. Those of `slackwater up` can stand
in a file and in the environment as well ([Configuration](configuration.md)). The exit status is 0, or 1 with a line on
stderr that begins with `error:`, or 2 where the command line or the configuration is at fault and nothing was done;
commands that have others name them.

A stack is named by its URL (`--url`, `SLACKWATER_URL`), from any machine, with an API key in `SLACKWATER_API_KEY` where
it needs one, and in `SSL_CERT_FILE` who signed its certificate where the system does not know them; without, by the
data directory of the stack that runs here. What the command line names comes before the environment. `key` and
`predict` ask over the bus (`--nats`), as `status`, `top` and `drain` can.
"""


def cli_reference() -> Iterator[str]:
    """The page, in pieces that stand on lines of their own."""
    yield HEAD
    yield from _commands(PROGRAM, command)


def _commands(path: str, group: Any) -> Iterator[str]:
    for name, listed in group.commands.items():
        each = listed.loaded() if isinstance(listed, DeferredCommand) else listed
        if hasattr(each, "commands"):
            yield from _commands(f"{path} {name}", each)
        else:
            yield from _command(f"{path} {name}", each)


def _command(path: str, each: Any) -> Iterator[str]:
    arguments = [param for param in each.params if param.param_type_name == "argument"]
    options = [param for param in each.params if param.param_type_name == "option"]
    yield f"## {path}\n"
    yield f"{_text(each.help)}\n"
    words = [path, "[OPTIONS]" if options else "", *(_argument(argument) for argument in arguments)]
    yield f"```\n{' '.join(word for word in words if word)}\n```\n"
    if arguments:
        yield "| argument | meaning |\n| --- | --- |"
        yield from (f"| `{_argument(argument)}` | {_text(argument.help)} |" for argument in arguments)
        yield ""
    if options:
        yield "| option | default | meaning |\n| --- | --- | --- |"
        yield from (f"| {_flags(option)} | {_default(option)} | {_meaning(option)} |" for option in options)
        yield ""


def _argument(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _flags(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names}, several times" if option.multiple else names


def _default(option: Any) -> str:
    """What is written where there is nothing to say: an empty cell."""
    if option.required:
        return "required"
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    has_default = shown is not None and shown is not False and shown != ""
    default = f"`{getattr(shown, 'value', shown)}`" if has_default else ""
    variable = f"`{option.envvar}`" if option.envvar else ""
    return ", else ".join(word for word in (variable, default) if word)


def _meaning(option: Any) -> str:
    bounds = {"at least": option.min, "at most": option.max}
    words = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    return " ".join([_text(option.help), *([f"({', '.join(words)})"] if words else [])])


def _text(text: str | None) -> str:
    """One paragraph that a cell of a table can hold."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print("\n".join(cli_reference()).rstrip())
