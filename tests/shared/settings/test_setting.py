"""Settings as their struct declares them."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from shared.settings.setting import BASE, LIST, SECRET, choices, default_of, listed, settings_of


class Own(msgspec.Struct, frozen=True):
    """A table."""

    preset: Annotated[str, Meta(description="which", extra=BASE)] = "plain"
    weight: Annotated[float, Meta(description="how much")] = 2.0


class Settings(msgspec.Struct, frozen=True):
    """A service's."""

    model_path: Annotated[Path, Meta(description="where")]
    blocks: Annotated[int | None, Meta(description="how many")] = None
    rate: Annotated[float, Meta(description="how fast")] = 2.50
    level: Annotated[str, Meta(description="debug or info", extra=choices(("debug", "info")))] = "info"
    kind: Annotated[str, Meta(description="what for", extra=choices(("a", "b")))] = "a"
    token: Annotated[str, Meta(min_length=3, description="to be let in", extra=SECRET)] = ""
    names: Annotated[str, Meta(description="of all", extra=LIST)] = ""
    own: Own = Own()
    noted: Annotated[int, "no setting"] = 3
    typed: Annotated[int, float] = 3
    inner: int = 4


SETTINGS = {setting.name: setting for setting in settings_of(Settings)}


def test_settings_are_the_fields_that_are_described_and_those_of_tables() -> None:
    assert settings_of(Settings) == list(SETTINGS.values())
    assert list(SETTINGS) == ["model_path", "blocks", "rate", "level", "kind", "token", "names", "preset", "weight"]
    assert {name: setting.table for name, setting in SETTINGS.items() if setting.table} == {
        "preset": "own",
        "weight": "own",
    }
    assert (SETTINGS["model_path"].flag, SETTINGS["model_path"].variable) == ("--model-path", "SLACKWATER_MODEL_PATH")
    assert [name for name, setting in SETTINGS.items() if setting.required] == ["model_path"]
    assert [name for name, setting in SETTINGS.items() if setting.is_secret] == ["token"]
    assert [name for name, setting in SETTINGS.items() if setting.is_list] == ["names"]


def test_a_type_is_that_of_the_value() -> None:
    assert [SETTINGS[name].type for name in ("model_path", "blocks", "rate", "level")] == [Path, int, float, str]


def test_known_values_are_told_once() -> None:
    assert SETTINGS["level"].explanation == "debug or info"
    assert SETTINGS["kind"].explanation == "what for; known: a, b"
    assert SETTINGS["rate"].explanation == "how fast" and SETTINGS["rate"].choices == ()


def test_defaults_as_people_read_them() -> None:
    texts = {name: setting.default_text for name, setting in SETTINGS.items()}
    assert texts["model_path"] == "" and texts["rate"] == "2.5" and texts["level"] == "info"
    assert (texts["preset"], texts["weight"]) == ("plain", "as of the preset"), "which the others of its table go by"
    assert default_of(Settings, "rate") == 2.5
    with pytest.raises(KeyError):
        default_of(Settings, "none")


def refused(name: str, raw: Any, strict: bool = False) -> str:
    with pytest.raises(ValueError) as caught:
        SETTINGS[name].convert(raw, strict)
    return str(caught.value)


def test_values_become_what_they_are_to_be() -> None:
    def converted(name: str, raw: Any, strict: bool = False) -> Any:
        return SETTINGS[name].convert(raw, strict)

    assert converted("model_path", "a/b") == Path("a/b")
    assert converted("rate", "4") == converted("rate", 4, strict=True) == 4.0
    assert converted("names", ["a", 1]) == converted("names", ("a", "1")) == converted("names", "a,1") == "a,1"
    assert converted("kind", "b") == "b"
    assert "Expected `float`, got `str`" in refused("rate", "4", strict=True)
    assert "Expected `str`, got `array`" in refused("kind", ["a"]), "no list"
    for strict in (False, True):
        assert "it is empty" in refused("model_path", "", strict), "which would be the current folder"


def test_what_is_refused_is_shown_unless_it_is_secret_or_long() -> None:
    assert refused("rate", "fast").endswith("(it is 'fast')")
    assert refused("kind", "c") == "unknown kind 'c'; known: a, b"
    assert "xy" not in refused("token", "xy") and "length >= 3" in refused("token", "xy")
    assert refused("kind", "c" * 300) == f"unknown kind '{'c' * 199}...; known: a, b"
    assert refused("kind", "c" * 198) == f"unknown kind '{'c' * 198}'; known: a, b"


def test_a_list_in_one_text() -> None:
    assert listed(" a, b,,c ,") == ["a", "b", "c"]
    assert listed("") == []
