"""``slackwater plan``, as it is called."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local.cli import app
from services.profiler.capacity.record import CapacityPlan
from services.profiler.capacity.table import number
from tests.services.profiler.capacity.planning import make_trace

COMMAND = (sys.executable, "-c", "from services.local.cli import main; main()", "plan")
HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
SLOS = ("--slo", "ttft_p90<=600ms", "--slo", "tpot_p90<=50ms")
MODEL = ("--model", "llama3.1-8b")


def plan(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["plan", *arguments])


def trace_file(folder: Path, name: str = "trace.csv", output_tokens: int | None = None) -> Path:
    rows = [
        f"{each.arrival_s},m,{each.num_prompt_tokens},{output_tokens or each.num_output_tokens},0,Log"
        for each in make_trace()
    ]
    (folder / name).write_text("\n".join([HEAD, *rows]) + "\n")
    return folder / name


@pytest.fixture
def workload(tmp_path: Path) -> tuple[str, ...]:
    """Options for a burst of chats beside summaries."""
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n" + "700,20\n" * 60)
    return ("--online", str(trace_file(tmp_path)), "--offline", str(lengths), "--peak", "3", *MODEL)


def test_table_json_and_picture_agree(workload: tuple[str, ...], tmp_path: Path) -> None:
    json_file, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    done = plan(
        *(*workload, *SLOS, "--device", "a100-40g", "--device", "h100", "--tp", "1", "--budget-ms", "25"),
        *("--backlog", "5000", "--json", str(json_file), "--plot", str(picture), "--progress"),
    )
    assert done.exit_code == 0, done.stderr
    record = msgspec.json.decode(json_file.read_bytes(), type=CapacityPlan)
    assert [device.device for device in record.devices] == ["a100-40g", "h100"] and not record.partial
    rows = {line[:40].strip(): line[40:].split() for line in done.stdout.splitlines()}
    for place, device in enumerate(record.devices):
        assert device.least is not None and device.beside is not None and device.backlog is not None
        assert device.backlog.requests == 5000
        shown = {
            "executors": str(device.least.executors),
            "GPUs": str(device.least.gpus),
            "offline requests/s": number(device.beside.offline_requests_per_s),
            "offline tokens/s": number(device.beside.offline_tokens_per_s),
            "hours beside online work": number(device.backlog.beside_h),
            "GPU-hours on machines of its own": number(device.backlog.alone_gpu_hours),
        }
        assert {name: rows[name][place] for name in shown} == shown
        assert f"{device.device}: 1 executor, online alone at the peak" in done.stderr
    assert "a backlog of 5000 requests" in done.stdout
    drawn = picture.read_text()
    assert drawn.startswith("<?xml") and "</svg>" in drawn


def test_without_a_backlog_the_first_step_goes_to_stdout_as_json(tmp_path: Path) -> None:
    done = plan("--online", str(trace_file(tmp_path)), "--peak", "3", *MODEL, *SLOS, "--json", "-")
    assert done.exit_code == 0, done.stderr
    (device,) = msgspec.json.decode(done.stdout, type=CapacityPlan).devices
    assert device.least is not None and device.beside is None and device.device == "a100-40g"


def test_no_feasible_count_is_said_with_how_near_it_came(workload: tuple[str, ...]) -> None:
    done = plan(*workload, *SLOS, "--tp", "1", "--max-executors", "1")
    assert done.exit_code == 3, done.stderr
    assert "a100-40g: no more than 1 executors keep the SLOs of online work alone at its peak" in done.stdout
    assert "--max-executors allows more" in done.stdout


def test_ctrl_c_prints_what_is_known(workload: tuple[str, ...]) -> None:
    command = [*COMMAND, *workload, *SLOS, "--tp", "1", "--progress"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "nothing held back" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: this is what was known by then" in out
    assert "lost after" in out  # with one executor fewer: the first step had its answer


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slo", "ttft_p90<=1s", "--device", "tpu"], "unknown device 'tpu'; known: a100-40g"),
        (["--slo", "ttft_p90<=1s", "--model", "gpt"], "unknown model 'gpt'; known: llama2-7b"),
        (["--slo", "ttft_p90<=1s", "--model", "yi-34b", "--tp", "1"], "share it among more GPUs"),
        (["--slo", "ttft_p90<=1s", "--preset", "online-only"], "serves no offline work"),
        (["--slo", "ttft_p90<=1s", "--plot", "plan.txt"], "a picture's name ends with .svg, .png, .pdf"),
        (["--slo", "ttft_p90<=1s", "--plot", "nowhere/plan.svg"], "there is no folder"),
        (["--slo", "ttft_p90<=1s", "--step-model", "fitted.json"], "give one --device and one --tp"),
        (["--slo", "ttft_p90<=1s", "--start", "4000"], "before --start 4000"),
        (["--slo", "tbt_mean<=1.05x"], "give a bound in ms or s"),
        (["--slo", "speed<=1"], "is not understood"),
        (["--preset", "bros", "--slo", "normalized_latency_p90<=1s"], "deadlines need bounds in ms"),
        ([], "give --slo"),
    ],
)
def test_bad_input_is_one_line(workload: tuple[str, ...], arguments: list[str], said: str) -> None:
    done = plan(*workload, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_an_slo_that_the_trace_cannot_have(tmp_path: Path) -> None:
    done = plan("--online", str(trace_file(tmp_path, output_tokens=1)), "--slo", "tpot_p90<=50ms")
    assert done.exit_code == 2
    assert "is about the time between tokens" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\n1,2\n", "line 1: not a known trace"), (f"{HEAD}\n5,m,1,1,2,L\n3,m,1,1,2,L\n", "line 3: earlier than")],
)
def test_a_bad_trace_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    done = plan("--online", str(tmp_path / "bad.csv"), *SLOS)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_trace_is_needed() -> None:
    done = plan(*SLOS)
    assert done.exit_code == 2 and "give --online" in done.stderr
