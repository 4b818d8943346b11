"""The command for a GPU: its stages, whatever becomes of them, and what it leaves behind. Without a GPU."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from benchmarks.engine.parity import Agreement
from benchmarks.engine.random_models import save_tokenizer
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import stack_load, stack_run, worker
from benchmarks.gpu.context import Context
from benchmarks.gpu.stage import NAMES, ROOT, SKIPPED, Stage
from benchmarks.gpu.stages import stack
from benchmarks.kernels.beside_rivals import Shape, Speed, speeds
from benchmarks.kernels.rivals import sdpa
from benchmarks.kernels.rivals.installed import Rivals
from benchmarks.kernels.work import Work
from loadgen.client.records import RequestRecord
from loadgen.report.outcome import PhaseOutcome
from loadgen.report.report import OfflineReport
from shared.text.tokenizer import Tokenizer
from tests.kernels.rig import needs_triton

FINE = "import sys; print('| a |\\n| --- |\\n| 1 |'); print('all of it', file=sys.stderr)"
BROKEN = "raise ValueError('no such kernel')"
LACKING = f"import sys; print('flax is not installed', file=sys.stderr); sys.exit({SKIPPED})"
INTERRUPTING = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
HEADS, PARTS = (4, 2, 16), [(40, 1), (17, 1), (9, 12), (0, 3)]


def stages(**programs: str) -> dict[str, Stage]:
    """By name, with underscores; the others are fine."""
    found = {name: programs.get(name.replace("-", "_"), FINE) for name in NAMES}
    return {name: Stage(name, f"about {name}", (sys.executable, "-c", program)) for name, program in found.items()}


def run(out: Path, *options: str, **programs: str) -> int:
    return gpu.main(["--out", str(out), *options], stages(**programs))


def outcomes(out: Path) -> dict[str, tuple[str, str]]:
    kept = json.loads((out / "gpu.json").read_text())
    return {name: (each["finished"]["outcome"], each["finished"]["said"]) for name, each in kept.items()}


def test_a_failing_stage_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, kernel_outputs=BROKEN, engine_tests=LACKING) == 1
    assert outcomes(tmp_path) == dict.fromkeys(NAMES, ("done", "all of it")) | {
        "kernel-outputs": ("failed", "ValueError: no such kernel"),
        "engine-tests": ("skipped", "flax is not installed"),
    }
    assert "[8/8] stack: about stack ... done" in capsys.readouterr().out
    assert "Traceback" in (tmp_path / "gpu.log").read_text()


def test_only_what_is_asked_for_runs_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    chosen = ("--only", "engine-speed", "--only", "kernel-tests")
    assert run(tmp_path, *chosen, "--revision", "first", kernel_outputs=BROKEN) == 0
    assert list(outcomes(tmp_path)) == ["kernel-tests", "engine-speed"]
    assert run(tmp_path, "--only", "kernel-tests", "--revision", "second", kernel_tests=BROKEN) == 1
    page = (tmp_path / "gpu.md").read_text()
    assert page.count("\n## ") == 2 and "| a |\n| --- |\n| 1 |" in page
    assert "`python -m benchmarks.gpu --only kernel-tests`" in page
    assert "revision first" in page and "revision second" in page


def test_files_are_for_the_stages_and_stand_in_the_command(tmp_path: Path) -> None:
    echoing = "import sys; print(' '.join(sys.argv[1:]), file=sys.stderr)"
    files = ["--online", "trace.csv", "--offline", "prompts.csv"]
    assert run(tmp_path, *files, "--model", "a", "--only", "stack", stack=echoing) == 0
    (said,) = [said for _, said in outcomes(tmp_path).values()]
    assert said.endswith(
        f"--model a --online {Path('trace.csv').absolute()} --offline {Path('prompts.csv').absolute()}"
    )
    assert "--only stack --model a --online trace.csv --offline prompts.csv`" in (tmp_path / "gpu.md").read_text()


def test_where_all_is_skipped_nothing_was_shown(tmp_path: Path) -> None:
    assert run(tmp_path, "--only", "engine-tests", engine_tests=LACKING) == 1


def test_without_a_gpu_one_line_says_what_can_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, machine=LACKING) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "flax is not installed" in shown.err and "--device cpu" in shown.err
    assert not (tmp_path / "gpu.json").exists()


def test_an_interrupt_ends_the_stage_and_keeps_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, kernel_tests=INTERRUPTING) == 130
    assert list(outcomes(tmp_path)) == ["machine", "kernel-outputs"]
    assert "done and written: machine, kernel-outputs" in capsys.readouterr().err


def test_a_stage_ends_at_its_limit(tmp_path: Path) -> None:
    sleeping = "import time; print('| b |', flush=True); time.sleep(600)"
    assert run(tmp_path, "--limit-s", "2", "--only", "engine-speed", engine_speed=sleeping) == 1
    assert outcomes(tmp_path)["engine-speed"] == ("failed", "not done within 2 s")
    assert "| b |" in (tmp_path / "gpu.md").read_text()


def test_a_missing_package_is_a_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert worker.run("kernel-speed", Context("cpu", tmp_path, None, 1)) == SKIPPED
    assert capsys.readouterr().err == "triton is not installed\n"


def test_kernels_need_torch_and_triton_and_the_command_nothing() -> None:
    blocked = ["msgspec", "typer", "rich", "nats", "numba", "pytest", "matplotlib", "sortedcontainers", "vllm"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({[*blocked, "torch", "numpy"]}))
import benchmarks.gpu.__main__
del sys.modules["torch"], sys.modules["numpy"]
import benchmarks.gpu.stages.machine, benchmarks.gpu.stages.kernel_outputs, benchmarks.gpu.stages.kernel_speed
import benchmarks.gpu.stages.kernel_tests
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@needs_triton
def test_a_stage_on_a_cpu(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--only", "kernel-outputs", "--out", str(tmp_path)]
    assert gpu.main(options) == 0
    assert outcomes(tmp_path) == {"kernel-outputs": ("done", "steps within tolerance: 1")}
    page = (tmp_path / "gpu.md").read_text()
    assert "| 9, 3, 64 | float32 | 2e-05 |" in page and "FlashInfer: needs a GPU." in page


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="on a GPU the shapes are large")
def test_what_gives_other_results_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(work: Work) -> Callable[[], torch.Tensor]:
        return lambda: torch.zeros_like(work.query)

    rivals = Rivals({"SDPA": sdpa.attention, "wrong": wrong}, {})
    monkeypatch.setattr(Rivals, "installed", lambda device: rivals)
    found: list[Speed] = []
    with torch.inference_mode():
        said = list(speeds("cpu", 1, found))
    assert [sorted(speed.ms) for speed in found] == [["SDPA", "ours"]] * 3
    assert any(str(line).startswith("wrong (SmolLM2-135M, 2 x 40): AssertionError") for line in said)


@pytest.mark.slow
def test_a_stack_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a trace and a backlog of files. Its model has random weights, and a tokenizer that is made with them."""
    size = stack_load.Size(rate_per_s=2.0, window_s=3.0, warm_up_s=1.0, backlog=300, length_scale=1 / 16)
    monkeypatch.setitem(stack_load.SIZES, "cpu", size)
    online, offline = tmp_path / "online.csv", tmp_path / "offline.csv"
    arrivals = [f"2023-11-16 18:00:0{second}.{tenth},{400 + tenth},64" for second in range(4) for tenth in (0, 5)]
    online.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *arrivals]) + "\n")
    offline.write_text("num_prefill_tokens,num_decode_tokens\n" + "2000,320\n" * 300)
    assert worker.run("stack", Context("cpu", tmp_path, None, 1, online, offline)) == 0
    told = capsys.readouterr()
    assert re.fullmatch(r"online TBT [\d.]+x of alone, offline [\d.]+ of alone", told.err.splitlines()[-1])
    assert "; 6 online requests in 3 s." in told.out
    assert re.search(r"^\| together \| 6 \| 0 \|", told.out, re.MULTILINE)
    assert re.search(r"^\| executor-0 \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", told.out, re.MULTILINE)
    assert "| executor-0 | finished_offline |" in told.out
    assert "Llama-3.1-8B-tiny.torch.cpu" in told.out


def test_a_stack_that_does_not_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := tmp_path / "model").mkdir()
    with pytest.raises(RuntimeError, match="stack does not start"):
        worker.run("stack", Context("cpu", tmp_path, str(folder), 1))
    told = capsys.readouterr().err
    assert "the end of prepare-model.log" in told and "config.json" in told


def test_a_stack_needs_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "PACKAGES", ("torch", "no_such_package"))
    assert worker.run("stack", Context("cpu", tmp_path, None, 1)) == SKIPPED


def test_a_stack_is_not_begun_without_what_a_gateway_reads_a_vocabulary_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llguidance" else found(name))
    assert worker.run("stack", Context("cpu", tmp_path, None, 1)) == SKIPPED


def test_what_may_not_be_in_a_run_of_a_stack() -> None:
    counted = {"mode": "batch", "backlog": 2, "completed": 0, "errors": 0, "elapsed_s": 2.0, "exhausted": False}
    some, none = (OfflineReport.counted(**counted, input_tokens=8, output_tokens=count) for count in (4, 0))
    records = [RequestRecord(0.0), RequestRecord(0.0, error="503: full"), RequestRecord(0.0, error="500: lost")]
    report: Any = None
    phases = {"offline only": PhaseOutcome(offline=some), "replay": PhaseOutcome(offline=none, records=records)}
    assert stack_run.Found(report, phases, [], {}).wrong() == [
        "replay: 2 online requests failed: 503: full",
        "replay: no offline token came",
    ]


def test_drawn_requests_have_azures_means() -> None:
    made = stack_load.plan_of(Context("cuda", Path(), None, 1))
    assert len(made.requests) == pytest.approx(stack_load.RATE_PER_S * stack_load.WINDOW_S, rel=0.2)
    assert fmean(each.num_prompt_tokens for each in made.requests) == pytest.approx(1155, rel=0.2)
    assert fmean(each.num_output_tokens for each in made.requests) == pytest.approx(211, rel=0.2)
    assert fmean(each.num_prompt_tokens or 0 for each in made.prompts) == pytest.approx(6000, rel=0.1)


@pytest.mark.parametrize("vocab_size", [258, 300, 40_000])
def test_a_random_models_tokenizer(vocab_size: int, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, vocab_size)
    tokenizer = Tokenizer.from_folder(tmp_path)
    text = "Grüße,\n 你好  !"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == vocab_size and tokenizer.encode("<pad><eos>") == [0, 1]
    assert tokenizer.token_of(vocab_size) == "" != tokenizer.token_of(vocab_size - 1)
    assert tokenizer.render_chat([{"role": "user", "content": "Hello"}]) == "user: Hello\nassistant: "
    if vocab_size > 299:
        assert tokenizer.decode([299, 1, 260]) == "tok299 tok260 "


def test_rates_count_what_is_read_and_computed() -> None:
    decode = Speed("decode", "Llama-3.1-8B", Shape.of(4, 1000), {"ours": 2.0})
    assert decode.shape.name == "4 x 1000"
    assert decode.tb_per_s("ours") == pytest.approx(4 * 1000 * 8 * 128 * 2 * 2 / 2e-3 / 1e12)
    prefill = Speed("prefill", "Llama-3.1-8B", Shape.of(0, 0, 3, 10), {"ours": 1.0})
    assert prefill.tflop_per_s("ours") == pytest.approx((11 + 12 + 13) * 4 * 32 * 128 / 1e-3 / 1e12)


@pytest.mark.parametrize("right", [False, True])
def test_sdpa_over_gathered_slots_is_the_engines_attention(right: bool) -> None:
    work = Work.of(HEADS, PARTS, "cpu", torch.float32).filled(lambda i: right and i % 2 == 0)
    torch.testing.assert_close(sdpa.attention(work)(), work.step(paged=False)(), atol=1e-5, rtol=1e-5)


class FlashInferInTorch:
    """Both wrappers, as FlashInfer documents them."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool = False) -> None:
        assert layout == "NHD"
        self._rows: torch.Tensor | None = None

    def run(self, query: torch.Tensor, pages: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows = self._rows if self._rows is not None else torch.arange(len(query) + 1)
        outs = []
        for number, first in enumerate(rows[:-1].tolist()):
            start, end = self._indptr[number : number + 2].tolist()
            length = (end - start - 1) * self._page_size + int(self._last[number])
            keys, values = (each[self._indices[start:end].long()].flatten(0, 1)[:length] for each in pages)
            own = query[first : int(rows[number + 1])]
            visible = torch.ones(len(own), length, dtype=torch.bool).tril(length - len(own))
            heads = (each.transpose(0, 1) for each in (own, keys, values))
            attend = torch.nn.functional.scaled_dot_product_attention
            outs.append(attend(*heads, attn_mask=visible, scale=self._scale, enable_gqa=True).transpose(0, 1))
        return torch.cat(outs)

    def _keep(self, indptr: Any, indices: Any, last: Any, shape: tuple[int, ...], sm_scale: float) -> None:
        assert all(each.dtype == torch.int32 for each in (indptr, indices, last))
        self._indptr, self._indices, self._last, self._scale = indptr, indices, last, sm_scale
        assert shape[:3] == HEADS
        self._page_size = shape[3]


class Decode(FlashInferInTorch):
    def plan(self, indptr: Any, indices: Any, last: Any, *shape: int, sm_scale: float, **dtypes: Any) -> None:
        self._keep(indptr, indices, last, shape, sm_scale)


class Prefill(FlashInferInTorch):
    def plan(
        self, rows: Any, indptr: Any, indices: Any, last: Any, *shape: int, causal: bool, sm_scale: float, **dtypes: Any
    ) -> None:
        assert causal
        self._rows = rows
        self._keep(indptr, indices, last, shape, sm_scale)


@pytest.fixture
def flashinfer_rival(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ours of that name, over the library in torch."""
    library, name = types.ModuleType("flashinfer"), "benchmarks.kernels.rivals.flashinfer"
    library.__dict__.update(BatchDecodeWithPagedKVCacheWrapper=Decode, BatchPrefillWithPagedKVCacheWrapper=Prefill)
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    sys.modules.pop(name, None)
    rival: Any = importlib.import_module(name)
    rival.WORKSPACE_BYTES = 8
    yield rival
    del sys.modules[name]


@pytest.mark.parametrize("parts", [PARTS, PARTS[:2]])
def test_flashinfer_is_given_the_same_step(parts: list[tuple[int, int]], flashinfer_rival: Any) -> None:
    work = Work.of(HEADS, parts, "cpu", torch.float32)
    torch.testing.assert_close(flashinfer_rival.attention(work)(), sdpa.attention(work)(), atol=1e-5, rtol=1e-5)


def test_a_token_that_is_not_the_likeliest_falls_short() -> None:
    met = Agreement()
    met.count(torch.tensor([[1.0, 4.0], [-2.0, 0.5]]), [1, 0])
    assert (met.num_tokens, met.num_likeliest, met.shortfall) == (2, 1, 1.25)
