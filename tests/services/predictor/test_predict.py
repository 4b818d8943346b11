"""``slackwater predict`` and the predictor's answers, on a real bus."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from services.local.cli import app
from services.local.commands.predict import ListedModel, formula, parse_decodes, parse_prefills
from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.profiler.simulation.setup import read_latency_model
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import BusError
from shared.latency.boosted import BoostedLatencyModel, Curve, Sum
from shared.latency.bros import BrosLatencyModel
from shared.latency.echo import EchoLatencyModel
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import (
    Candidate,
    LatencyModelRecord,
    LinearCoefficients,
    PredictBatch,
    Prediction,
    model_record,
)
from shared.protocol.profiling.measurements import PrefillChunk
from tests.services.profiler.profiling import KEY, TRUTH, executor_info, predicted, running
from tests.shared.latency.shapes import make_shape, roofline

CANDIDATES = [Candidate("linear", 0.0123, 0.2), Candidate("boosted", 0.0111, 0.4)]
LINEAR = LatencyModelRecord(KEY, LinearCoefficients(TRUTH.coefficients()), 500, 0.0123, 1e9, 0.008, CANDIDATES)
CURVES = BoostedLatencyModel(
    9.0, {Sum.TOKENS: Curve((0, 200), (0.0, 0.07)), Sum.DECODE_KV_TOKENS: Curve((0,), (4e-4,))}
)
BOOSTED = LatencyModelRecord(
    "gpu", model_record(CURVES), 900, 0.0111, 1e9, None, CANDIDATES, None, drifts=2, drift_ratio=1.31, drifted_at_s=1e9
)
ROOFLINE = LatencyModelRecord("roof", model_record(roofline("llama2-7b", "a100-40g")), 110, 0.01, 1e9)
ECHO = LatencyModelRecord("echo", model_record(EchoLatencyModel(0.0, 0.2, 30.0, 0.01, 0.02, 0.8)), 90, 0.2, 1e9)


@pytest.fixture
async def predictor(bus: Bus) -> AsyncIterator[Predictor]:
    """One that finds a linear model of two executors on the bus."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    await models.put(KEY, LINEAR)
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    for info in (
        executor_info("executor-0"),
        executor_info("executor-1"),
        executor_info("executor-2", profile_key="gpu"),
    ):
        await executors.put(info.executor_id, info)
    service = Predictor(bus, PredictorSettings(), SystemClock())
    async with running(service):
        await bus.flush()
        yield service


async def ask(bus: Bus, asked: PredictBatch) -> Prediction:
    return await bus.request(subjects.PREDICT, asked, Prediction)


async def slackwater(*arguments: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of the command."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["predict", *arguments])
    return done.exit_code, done.stdout, done.stderr


async def test_an_answer_has_the_whole_and_its_parts(bus: Bus, predictor: Predictor) -> None:
    chunks, contexts = [PrefillChunk(128), PrefillChunk(256, 1024)], [300, 512, 512]
    prediction = await ask(bus, PredictBatch(chunks, contexts))
    shape = make_shape([128, (256, 1024)], contexts)
    assert prediction.latency_ms == pytest.approx(predicted(shape))
    parts = [*prediction.prefill_costs_ms, *prediction.decode_costs_ms]
    assert sum(parts) == pytest.approx(prediction.latency_ms) and len(parts) == 5
    assert prediction.prefill_costs_ms[0] == pytest.approx(predicted(make_shape([128])))
    assert prediction.decode_costs_ms[2] == pytest.approx(
        predicted(shape) - predicted(make_shape([128, (256, 1024)], contexts[:2]))
    )
    assert (prediction.profile_key, prediction.kind, prediction.mape) == (KEY, "linear", 0.0123)
    assert (prediction.noise_floor, prediction.fitted_at_s) == (0.008, 1e9)
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    assert prediction.revision == (await models.get(KEY)).revision


async def test_a_model_is_found_by_key_executor_or_model_name(bus: Bus, predictor: Predictor) -> None:
    batch = PredictBatch([PrefillChunk(10)], [])
    for whose in (KEY, "executor-1", "model"):
        prediction = await ask(bus, msgspec.structs.replace(batch, whose=whose))
        assert prediction.profile_key == KEY and prediction.latency_ms > 0
    for whose in ("executor-2", "gpu", "nobody"):
        refused = await ask(bus, msgspec.structs.replace(batch, whose=whose))
        assert refused.error == f"no latency model of '{whose}'; known: {KEY}"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (PredictBatch([], []), "an empty batch takes no time"),
        (PredictBatch([PrefillChunk(0)], []), "at least 1 token over"),
        (PredictBatch([], [5, 0]), "a decode reads at least 1 token"),
    ],
)
async def test_what_is_no_batch_is_refused(bus: Bus, predictor: Predictor, asked: PredictBatch, said: str) -> None:
    assert said in (await ask(bus, asked)).error


async def test_fewer_than_no_tokens_are_no_message(bus: Bus, predictor: Predictor) -> None:
    with pytest.raises(BusError, match="Expected `int` >= 0"):
        await ask(bus, PredictBatch([PrefillChunk(1, -1)], []))


async def test_several_models_must_be_told_apart(bus: Bus, nats_url: str) -> None:
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    async with running(Predictor(bus, PredictorSettings(), SystemClock())):
        await bus.flush()
        assert (await ask(bus, PredictBatch([], [5]))).error == "no latency model has been fitted yet"
        code, out, _ = await slackwater("--nats", nats_url)
        assert (code, out) == (0, "no latency model has been fitted yet\n")
    await models.put(KEY, LINEAR)
    await models.put("gpu", BOOSTED)
    async with running(Predictor(bus, PredictorSettings(), SystemClock())):
        await bus.flush()
        assert (await ask(bus, PredictBatch([], [5]))).error == f"say whose; known: gpu, {KEY}"
        code, out, err = await slackwater("--nats", nats_url, "--decode", "8x512", "--of", "gpu", "--json")
        assert code == 0, err
        prediction = msgspec.json.decode(out, type=Prediction)
        assert prediction.kind == "boosted"
        assert prediction.latency_ms == pytest.approx(CURVES.predict_ms(make_shape((), [512] * 8)))
    code, out, err = await slackwater("--nats", nats_url)
    assert code == 0, err
    assert "1.23%" in out and "1.11%" in out and "0.80%" in out and "took 1.31 times as long" in out
    assert "25 + 0.8 S_p + 0.002 S_d + 0.0003 S_p²" in out and "0.07 from 200" in out
    code, out, _ = await slackwater("--nats", nats_url, "--json")
    assert [listed.record for listed in msgspec.json.decode(out, type=list[ListedModel])] == [BOOSTED, LINEAR]


async def test_the_command_shows_what_each_request_adds(bus: Bus, nats_url: str, predictor: Predictor) -> None:
    shapes = ("--prefill", "128", "--prefill", "256@1024", "--decode", "300", "--decode", "8x512")
    code, out, err = await slackwater("--nats", nats_url, *shapes)
    assert code == 0, err
    whole = predicted(make_shape([128, (256, 1024)], [300] + [512] * 8))
    assert out.startswith(f"{whole:.2f} ms\n")
    assert "linear model, off by 1.2% on average, noise floor 0.8%" in out
    for name in ("prefill 128@0", "prefill 256@1024", "decode 300", "8 x decode 512"):
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--decode", "300"), 1, "the predictor does not answer"),
        (("--prefill", "0"), 2, "'0' is no prefill: write TOKENS, TOKENS@COMPUTED or COUNTxTOKENS"),
        (("--decode", "5@3"), 2, "'5@3' is no decode"),
        (("--decode", "99999999x3"), 2, "give 1 to 65536 of them"),
        (("--decode", "1000000000001"), 2, "no request has more than 1000000000000 tokens"),
        (("--prefill", "1@99999999999999999999999"), 2, "no request has more than 1000000000000 tokens"),
    ],
)
async def test_errors_are_said_in_a_line(
    bus: Bus, nats_url: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    exit_code, out, err = await slackwater("--nats", nats_url, *arguments)
    assert exit_code == code and out == ""
    assert said in " ".join(err.replace("│", " ").split())


async def test_of_an_echo_model_the_whole_is_what_it_says_of_the_batch(bus: Bus, nats_url: str) -> None:
    """Though the short decode adds nothing and lowers it."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    await models.put("echo", ECHO)
    async with running(Predictor(bus, PredictorSettings(), SystemClock())):
        await bus.flush()
        prediction = await ask(bus, PredictBatch([], [1000, 100]))
        assert prediction.decode_costs_ms == [pytest.approx(24.0), 0.0]
        assert prediction.latency_ms == pytest.approx(0.8 * (0.01 * 1000 + 0.02 * 550))
    code, out, err = await slackwater("--nats", nats_url)
    assert code == 0, err
    assert "0.8 max(p, d) + 0.2 min(p, d)\n" in out
    assert "p = max(0.2 S_p, 30)\n" in out and "d = 0.01 max(L) + 0.02 mean(L)\n" in out


def test_the_formula_of_bros_has_a_line_for_each_phase() -> None:
    record = model_record(BrosLatencyModel(8.0, 0.6, 0.0, 12.0, 0.4, 3e-3))
    assert formula(record) == "8 if prefills + 0.6 S_p + 12 if decodes + 0.4 N_d + 0.003 S_d"


def test_the_formula_of_a_roofline_is_what_its_device_reaches() -> None:
    lines = formula(model_record(roofline("llama2-7b", "a100-40g"))).splitlines()
    assert lines == [
        "F_g 187,200 GFLOP/s, F_ap 156,000 GFLOP/s, F_ad 78,000 GFLOP/s",
        "  M_g 1,244 GB/s, M_a 1,244 GB/s, B_c 240 GB/s",
        "  O_p 1, O_d 1; saturated from 159 decodes on",
    ]


@pytest.mark.parametrize("record", [LINEAR, BOOSTED, ECHO, ROOFLINE])
def test_a_listed_record_is_a_file_for_the_simulator(tmp_path: Path, record: LatencyModelRecord) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(msgspec.json.encode(record))
    assert read_latency_model(path) == record.latency_model()


def test_shapes_are_read() -> None:
    assert parse_prefills(["128", "2x64@32"]) == [PrefillChunk(128), PrefillChunk(64, 32), PrefillChunk(64, 32)]
    assert parse_decodes(["300", "2x5"]) == [300, 5, 5]
