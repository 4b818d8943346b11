"""Whatever stands in the file, the environment or on the command line of a service: its settings, or an error in words
that names the setting."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.local.stack.catalogue import SERVICES
from shared.errors import ConfigError
from shared.settings.config import load
from shared.settings.config_file import ConfigFile
from shared.settings.setting import Setting, settings_of

FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
KNOWN = [(service, setting) for service, struct in SERVICES.items() for setting in settings_of(struct)]
DIGITS = 5000  # more than Python reads as a number
LONG = "9" * DIGITS
WORDS = ("", " ", "-", "--", "-1", "0", "1", "1e400", "nan", "inf", "-inf", "true", "no", "null", "[]", "{}", ",", LONG)
STRANGE = ("\x01", "ü" * 100, "\udcff", "a,,b", "../..", "http://", "nats://[::1", "tbt_mean<=", "%s", "{0}")
texts = st.sampled_from((*WORDS, *STRANGE)) | st.text(max_size=20).filter(lambda text: "\0" not in text)
TOML = (
    *("1", "-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "true", '"x"', '""', "[]", "[1, 2]", '["a", []]', "{}"),
    *("{ a = 1 }", "1979-05-27", "07:32:00", "0x10", LONG, "-" + LONG, "9223372036854775808", '"\\u0000"', "[" * 400),
)


def loaded(service: str, argv: list[str], environ: dict[str, str]) -> Any:
    """None where it was refused, the error's words being checked."""
    own = {} if any(each.startswith("--model-path") for each in argv) else {"SLACKWATER_MODEL_PATH": "m"}
    try:
        return load(SERVICES[service], service, argv, own | environ)
    except ConfigError as error:
        return str(error)


def assert_named_or_taken(found: Any, setting: Setting) -> None:
    if isinstance(found, str):
        names = setting.name, setting.flag, setting.variable, setting.name.replace("_", " ")
        assert any(name in found.lower() for name in map(str.lower, names)), found
        assert len(found) < 2000
        return
    if not setting.table:
        value = getattr(found, setting.name)
        assert not (isinstance(value, float) and math.isnan(value))


@FEW
@example(known=next(each for each in KNOWN if each[1].choices), text=LONG)
@example(known=next(each for each in KNOWN if each[1].name == "other_models"), text="\udcff")
@example(known=next(each for each in KNOWN if each[1].name == "lora_modules"), text=LONG)
@example(known=next(each for each in KNOWN if each[1].name == "slo"), text=LONG)
@given(known=st.sampled_from(KNOWN), text=texts)
def test_texts_of_the_command_line_and_the_environment(known: tuple[str, Setting], text: str) -> None:
    service, setting = known
    assert_named_or_taken(loaded(service, ["--config=", f"{setting.flag}={text}"], {}), setting)
    assert_named_or_taken(loaded(service, ["--config="], {setting.variable: text}), setting)


@FEW
@given(known=st.sampled_from(KNOWN), value=st.sampled_from(TOML))
def test_values_of_the_file(tmp_path_factory: pytest.TempPathFactory, known: tuple[str, Setting], value: str) -> None:
    service, setting = known
    path = tmp_path_factory.mktemp("config") / "slackwater.toml"
    path.write_text(f"[{setting.table or service}]\n{setting.name} = {value}\n")
    found = loaded(service, [f"--config={path}"], {})
    if isinstance(found, str) and "cannot be read" in found:
        assert str(path) in found
    else:
        assert_named_or_taken(found, setting)


@FEW
@given(content=st.binary(max_size=60) | st.text(alphabet='[]{}="a1.\n#,', max_size=40).map(str.encode))
def test_files_of_any_content(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("config") / "slackwater.toml"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        ConfigFile.read(path)


UNREADABLE = (b"a = " + b"[" * 100_000, b"[executor]\nthreads = " + b"9" * DIGITS, b"\xff\xfe", b"\0")


@pytest.mark.parametrize("content", UNREADABLE, ids=("nested", "digits", "no text", "nul"))
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "slackwater.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        ConfigFile.read(path)


@pytest.mark.parametrize("path", ["/", "/nowhere/slackwater.toml", "/dev/full/x"])
def test_files_that_are_none(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ConfigFile.read(Path(path))
