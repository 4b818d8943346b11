"""Every option of every command that takes a number, with what is none: an error in words that names the option, and
status 2, before anything is done. And files that are torn, for those that read some."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from loadgen.errors import WorkloadError
from services.local.cli import app, command
from services.local.command_group import DeferredCommand
from services.local.stack.data_dir import DataDir
from services.profiler.simulation.setup import read_latency_model
from shared.errors import StackError
from shared.latency.features import BatchFeatures
from tests.fuzzing.files import RUBBISH, bad_files

COUNT = 100
WRONG = {int: ("x", "", "1.5", "nan", "9" * 5000), float: ("x", "", "nan", "inf", "-inf", "1e999")}
PROCESSES = {"gateway": {"pid": 99_999_999, "starts": 1}}
URLS = {"nats_url": "nats://127.0.0.1:1", "http_url": "http://127.0.0.1:1"}
STACK = {"supervisor_pid": 99_999_999, "model": "m", "engine": "sim", "ready": True, "processes": PROCESSES, **URLS}
LINEAR = {"kind": "linear", "coefficients": [1, 0, 0, 0, 0, 0, 0, 0]}
MODEL = {"profile_key": "k", "model": LINEAR, "num_samples": 9, "mape": 0.1, "fitted_at_s": 1.0}


def leaves(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, listed in group.commands.items():
        each = listed.loaded() if isinstance(listed, DeferredCommand) else listed
        if hasattr(each, "commands"):
            yield from leaves(f"{path}{name} ", each)
        else:
            yield f"{path}{name}", each


COMMANDS = dict(leaves("", command))


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(app, arguments)


def wrong_values(param: Any) -> Sequence[str]:
    """None for what is no option, or takes no number."""
    taken = param.type_descriptor.annotation
    kinds = (taken, *get_args(taken)) if param.param_type_name == "option" else ()
    return next((WRONG[kind] for kind in kinds if kind in WRONG), ())


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_number_is_refused(name: str) -> None:
    """One of the wrong values for each option, another one for the next."""
    for number, param in enumerate(COMMANDS[name].params):
        if wrong := wrong_values(param):
            done = run(*name.split(), f"{param.opts[0]}={wrong[number % len(wrong)]}")
            assert done.exit_code == 2 and isinstance(done.exception, SystemExit), (param.opts, done.output)
            assert param.opts[0] in done.output


def test_slos_without_anything_to_search_with_are_refused() -> None:
    done = run("profile", "--slo", "ttft_p99<=800ms")
    assert done.exit_code == 2 and "nothing to search with: give --online, --offline or both" in done.output


def test_a_torn_latency_model_is_no_model(tmp_path: Path) -> None:
    path, good = tmp_path / "model.json", json.dumps(MODEL).encode()
    path.write_bytes(good)
    assert read_latency_model(path)
    for content in bad_files(good, Random(1), COUNT, is_json=True):
        path.write_bytes(content)
        if content in RUBBISH or (len(content) < len(good) and good.startswith(content)):
            with pytest.raises(WorkloadError, match=re.escape(str(path))):
                read_latency_model(path)
            continue
        try:
            read = read_latency_model(path)
        except WorkloadError as error:
            assert str(path) in str(error)
        else:
            assert 0 <= read.predict_ms(BatchFeatures(8, 1, 10, 2, 36)) < math.inf
    path.write_bytes(b"[")
    done = run("simulate", "--online", str(path), "--plan-model", str(path))
    assert done.exit_code and str(path) in done.output and isinstance(done.exception, SystemExit)


def test_a_torn_stack_file_names_no_stack(tmp_path: Path) -> None:
    good = json.dumps(STACK).encode()
    for content in (good, *bad_files(good, Random(1), COUNT, is_json=True)):
        (tmp_path / "stack.json").write_bytes(content)
        with pytest.raises(StackError, match=r"cannot be read|is gone"):
            DataDir(tmp_path).read_stack()
