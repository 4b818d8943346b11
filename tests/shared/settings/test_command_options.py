"""Options of commands, made of settings and of groups, as a command line gives them."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
import typer
from msgspec import Meta
from typer.testing import CliRunner, Result

from shared.settings.command_options import Given, one_of, with_option_groups, with_settings
from shared.settings.setting import BASE, LIST, choices, settings_of

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


class Engine(msgspec.Struct, frozen=True):
    """Settings of a service."""

    path: Annotated[str, Meta(description="folder of the model")]
    blocks: Annotated[int, Meta(ge=1, le=99, description="KV blocks")] = 8
    rate: Annotated[float, Meta(description="steps per second")] = 1.5
    engine: Annotated[str, Meta(description="torch, or a simulated one: sim", extra=choices(("torch", "sim")))] = "sim"
    slo: Annotated[str, Meta(description="latencies to keep", extra=LIST)] = ""


class Mixture(msgspec.Struct, frozen=True):
    """A table of settings: by its preset, but for what is given."""

    preset: Annotated[str, Meta(description="which one", extra=BASE)] = "plain"
    share: Annotated[float, Meta(description="of offline work")] = 0.5

    @classmethod
    def of(cls, **given: Any) -> "Mixture":
        if given.get("share", 0.0) > 1:
            raise ValueError("a share is 1 at the most")
        return cls(**{"share": 0.75 if given.get("preset") == "bold" else 0.5} | given)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A group of options."""

    width: Annotated[int, typer.Option(help="across")]
    height: "Annotated[int, typer.Option(help='upwards')]" = 3  # as of a module that does not evaluate them


@dataclass(frozen=True, slots=True)
class Margin:
    """A group of one option, with its name."""

    margin: int = 2


def run(command: Any, *arguments: str, **environ: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments, env=WIDE | environ, prog_name="tool")


def explained(text: str, name: str) -> str:
    """What help says of an option or an argument."""
    (line,) = [line for line in text.splitlines() if name in line.split()]
    return line


class Called:
    """A command of settings, with what it was called with."""

    def __init__(self) -> None:
        self.name = ""
        self.given: Given | None = None

    def run(self, *arguments: str) -> Result:
        @with_settings(settings_of(Engine))
        def command(name: str, given: Given, verbose: bool = False) -> None:
            """Starts it."""
            self.name, self.given = name, given

        return run(command, *arguments)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ((), {}),
        (("--blocks", "99"), {"blocks": 99}),
        (("--path", "x", "--rate", "2", "--engine", "torch"), {"path": "x", "rate": 2.0, "engine": "torch"}),
        (("--slo", "a<=1ms", "--slo", "b<=2ms"), {"slo": ["a<=1ms", "b<=2ms"]}),
    ],
)
def test_only_what_is_on_the_command_line_is_given(arguments: tuple[str, ...], given: Given) -> None:
    called = Called()
    assert called.run("it", *arguments).exit_code == 0
    assert (called.name, called.given) == ("it", given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--blocks", "0"), "--blocks"),
        (("--blocks", "100"), "--blocks"),
        (("--engine", "tpu"), "unknown engine 'tpu'; known: torch, sim"),
        (("--rate", "fast"), "--rate"),
    ],
)
def test_what_no_setting_can_be_is_refused(arguments: tuple[str, ...], said: str) -> None:
    called = Called()
    result = called.run("it", *arguments)
    assert result.exit_code == 2 and said in result.output and called.given is None


def test_a_shell_completes_the_known_values() -> None:
    def completed(words: str) -> list[str]:
        environ = {"_TOOL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}

        @with_settings(settings_of(Engine))
        def command(given: Given) -> None:
            raise AssertionError

        return run(command, **environ).output.split()

    assert completed("tool --engine ") == ["torch", "sim"]
    assert completed("tool --engine s") == ["sim"]
    assert completed("tool --path ") == [], "anything may be there"


def test_help_says_what_each_is_and_its_default() -> None:
    text = Called().run("--help").output
    lines = [" ".join(line.strip(" │").split()) for line in text.splitlines()]
    assert "Starts it." in text
    for option, words, default in (
        ("--path", "Folder of the model.", None),
        ("--blocks", "KV blocks.", "8"),
        ("--rate", "Steps per second.", "1.5"),
        ("--engine", "torch, or a simulated one: sim.", "sim"),
    ):
        (line,) = (line for line in lines if line.startswith(f"{option} "))
        assert words in line and ("default: " in line) == (default is not None)
        assert default is None or f"[default: ({default})]" in line


def test_groups_and_tables_stand_in_the_place_of_their_parameter() -> None:
    made: list[Any] = []

    @with_option_groups
    def command(first: str, sizes: Sizes, mixture: Mixture, last: bool = False) -> None:
        made.append((first, sizes, mixture, last))

    assert run(command, "a", "--width", "7").exit_code == 0
    assert run(command, "b", "--width", "7", "--height", "9", "--last", "--preset", "bold").exit_code == 0
    assert run(command, "c", "--width", "7", "--preset", "bold", "--share", "0.25").exit_code == 0
    assert made == [
        ("a", Sizes(7, 3), Mixture("plain", 0.5), False),
        ("b", Sizes(7, 9), Mixture("bold", 0.75), True),
        ("c", Sizes(7, 3), Mixture("bold", 0.25), False),
    ]
    missing, wrong = run(command, "d"), run(command, "d", "--width", "7", "--share", "2")
    assert missing.exit_code == wrong.exit_code == 2 and len(made) == 3
    assert "--width" in missing.output and "a share is 1 at the most" in wrong.output
    text = run(command, "--help").output
    options = [word for word in text.split() if word.startswith("--")]
    assert options[:4] == ["--width", "--height", "--preset", "--share"]
    assert "[default: (plain)]" in explained(text, "--preset")
    assert "[default: (as of the preset)]" in explained(text, "--share"), "which others of its table go by"


def test_a_group_may_be_called_as_one_of_its_options() -> None:
    made: list[Sizes | Margin] = []

    @with_option_groups
    def command(width: Sizes, margin: Margin) -> None:
        made.extend((width, margin))

    assert run(command, "--width", "7", "--margin", "5").exit_code == 0 and made == [Sizes(7, 3), Margin(5)]


def test_annotations_may_be_texts() -> None:
    """Of the command, and of a group's fields."""

    @with_option_groups
    def command(first: "Annotated[str, typer.Argument(help='which one')]", sizes: "Sizes") -> None:
        raise AssertionError

    text = run(command, "--help").output
    for name, words in (("first", "which one"), ("--width", "across"), ("--height", "upwards")):
        assert words in explained(text, name)


def test_help_that_begins_with_a_known_value_stays_as_it_is() -> None:
    class Device(msgspec.Struct, frozen=True):
        device: Annotated[str, Meta(description="cuda or cpu", extra=choices(("cuda", "cpu")))] = "cpu"

    @with_settings(settings_of(Device))
    def command(given: Given) -> None:
        raise AssertionError

    assert " cuda or cpu." in run(command, "--help").output


def test_a_value_that_is_not_given_may_pass() -> None:
    check = one_of("colour", ["red", "blue"])
    assert (check("red"), check(None)) == ("red", None)
    with pytest.raises(typer.BadParameter, match="unknown colour 'green'; known: red, blue"):
        check("green")
