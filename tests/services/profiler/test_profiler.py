"""The profiler service on a real bus, with the real predictor."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from services.predictor.fit import fit_best
from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.predictor.window import Observation
from services.profiler.service import Profiler
from services.profiler.settings import ProfilerSettings
from services.profiler.sweep.load_watch import LoadWatch
from services.profiler.sweep.shapes import MOST, fits, num_tokens, sweep_shapes
from services.profiler.sweep.sweep import ENOUGH_SHAPES, ExecutorBusyError, ExecutorSilentError, Sweep
from services.profiler.sweep.sweep_record import SweepFiles, SweepRecord
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ConfigError
from shared.latency.architectures import architecture_named
from shared.latency.features import BatchFeatures
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.profiling.measurements import LatencySample, MeasuredShape, MeasureShape, PrefillChunk
from shared.scheduling.step_sizes import StepSizes
from shared.scheduling.strategy import Strategy
from tests.services.profiler.profiling import (
    KEY,
    TRUTH,
    MeasuringExecutor,
    executor_info,
    model_of,
    predicted,
    running,
    until,
)
from tests.shared.latency.shapes import make_shape
from tests.shared.replica.test_readers import ManualClock

SMALL = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 256, "num_blocks": 200}


def profiler(bus: Bus, cache: Path, first_confirm_s: float = 10.0, **changes: float | bool) -> Profiler:
    return Profiler(bus, ProfilerSettings(cache_dir=str(cache), **changes), SystemClock(), first_confirm_s)  # type: ignore[arg-type]


@pytest.fixture
async def predictor(bus: Bus) -> AsyncIterator[Predictor]:
    service = Predictor(bus, PredictorSettings(refit_interval_s=0.05), SystemClock())
    async with running(service):
        yield service


async def budget_of(bus: Bus) -> BudgetRecord:
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    async with asyncio.timeout(60):
        async for entry in budgets.watch():
            if entry and entry.key == KEY and entry.value:
                return entry.value
    raise AssertionError("the watch ended")


def is_done(service: Profiler) -> bool:
    return service.details()["profile_state"] == "done"


async def test_a_new_executor_gets_a_profile_a_model_and_a_budget(
    bus: Bus, tmp_path: Path, predictor: Predictor
) -> None:
    service = profiler(bus, tmp_path)
    async with running(service), MeasuringExecutor(bus, executor_info()) as executor:
        assert service.details()["profile_state"] == "waiting"
        await until(lambda: is_done(service))
        assert await budget_of(bus) == BudgetRecord(KEY, 0.0, "tolerance", tolerance=0.02)
        assert service.details()["profile_progress"] == 1.0
        samples = sum(shape.repeats for shape in executor.asked[1:])  # the first is the warm-up
        await until(lambda: predictor.details()["samples"] == samples)
        await until(lambda: predictor.details()["fits"] != 0)
    model = (await model_of(bus)).latency_model()
    stored = SweepFiles(tmp_path / "profiles").load(KEY)
    assert stored is not None and len(stored.measurements) == len(executor.asked) - 1
    for measured in stored.measurements:
        assert predicted(measured.shape, model) == pytest.approx(predicted(measured.shape), rel=0.25)


async def test_a_cached_profile_is_replayed_and_not_measured_again(
    bus: Bus, tmp_path: Path, predictor: Predictor
) -> None:
    strategy = Strategy.of("hygen", budget_ms=40.0, idle_budget_ms=90.0)
    async with MeasuringExecutor(bus, executor_info(strategy=strategy)) as executor:
        first = profiler(bus, tmp_path)
        async with running(first):
            await until(lambda: is_done(first))
        measured, samples = len(executor.asked), predictor.details()["samples"]
        again = profiler(bus, tmp_path)
        async with running(again):
            await until(lambda: is_done(again))
            assert await budget_of(bus) == BudgetRecord(KEY, 40.0, "fixed", 90.0)
        assert len(executor.asked) == measured
        assert isinstance(samples, int)
        await until(lambda: predictor.details()["samples"] == 2 * samples)


async def test_the_budget_is_that_of_the_executor_that_came_last(
    bus: Bus, tmp_path: Path, predictor: Predictor
) -> None:
    """One that comes back with another setting, as in an upgrade, or whose registration is left of an earlier run: the
    first budget that the process had seen stayed."""
    service = profiler(bus, tmp_path)
    async with running(service):
        async with MeasuringExecutor(bus, executor_info(strategy=Strategy.of(budget_ms=40.0))):
            await until(lambda: is_done(service))
            assert await budget_of(bus) == BudgetRecord(KEY, 40.0, "fixed")
        budgets, again = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord), executor_info(epoch="epoch-2")

        async def has(budget: BudgetRecord) -> bool:
            return (await budgets.get(KEY)).value == budget

        async with MeasuringExecutor(bus, again) as executor:
            await until(lambda: has(BudgetRecord(KEY, 0.0, "tolerance", tolerance=0.02)), timeout_s=10.0)
            await budgets.put(KEY, BudgetRecord(KEY, 25.0, BudgetSource.FIXED))
            executor.info = replace(again, epoch="epoch-3")
            await executor.register()
            await until(lambda: has(BudgetRecord(KEY, 0.0, "tolerance", tolerance=0.02)), timeout_s=10.0)


@pytest.mark.parametrize("source", [BudgetSource.PROFILING, BudgetSource.SLO])
async def test_what_a_live_search_has_set_outlives_the_profiler(
    bus: Bus, tmp_path: Path, predictor: Predictor, source: BudgetSource
) -> None:
    """One that runs, or one that has ended. Until the settings give another one."""
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    given, earlier = BudgetRecord(KEY, 40.0, BudgetSource.FIXED), BudgetRecord(KEY, 30.0, BudgetSource.SLO)
    before = replace(earlier, before=given) if source is BudgetSource.PROFILING else given
    set_live = BudgetRecord(KEY, 25.0, source, before=before)
    await budgets.put(KEY, set_live)
    for budget_ms, then in ((40.0, set_live), (50.0, BudgetRecord(KEY, 50.0, BudgetSource.FIXED))):
        service, info = profiler(bus, tmp_path), executor_info(strategy=Strategy.of(budget_ms=budget_ms))
        async with running(service), MeasuringExecutor(bus, info):
            await until(lambda: is_done(service))  # noqa: B023
            assert await budget_of(bus) == then


@pytest.mark.parametrize("slo", ["", "tbt_mean<=30ms"])
async def test_a_strategy_with_deadlines_has_no_budget(
    slo: str, bus: Bus, tmp_path: Path, predictor: Predictor
) -> None:
    """Also where it is given SLOs: the first guess at a budget was shown as one that holds."""
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    await budgets.put(KEY, BudgetRecord(KEY, 40.0, BudgetSource.FIXED))  # of a strategy before
    service = profiler(bus, tmp_path, slo=slo)
    async with running(service), MeasuringExecutor(bus, executor_info(strategy=Strategy.of("echo"))):
        await until(lambda: is_done(service))
        assert await budgets.keys() == set()


async def test_refresh_and_larger_limits_measure_again(bus: Bus, tmp_path: Path, predictor: Predictor) -> None:
    async with MeasuringExecutor(bus, executor_info(**SMALL)) as executor:
        for changes in ({}, {"refresh": True}):
            before = len(executor.asked)
            service = profiler(bus, tmp_path, **changes)
            async with running(service):
                await until(lambda: is_done(service))  # noqa: B023
            assert len(executor.asked) > before
    async with MeasuringExecutor(bus, executor_info(**(SMALL | {"max_num_batched_tokens": 128}))) as larger:
        service = profiler(bus, tmp_path)
        async with running(service):
            await until(lambda: is_done(service))
        assert max(num_tokens(shape) for shape in larger.asked) == 128


@pytest.mark.parametrize("other", [{"architecture": architecture_named("opt-30b")}, {"model": "modèle"}])
async def test_another_model_under_the_same_key_is_measured(
    bus: Bus, tmp_path: Path, predictor: Predictor, other: dict[str, object]
) -> None:
    """A model's name is that of its folder, of which two may be called the same; and a key has not all characters that
    a name may have. The sweep of the first was taken for one of the second at each start."""
    info = executor_info(**SMALL, architecture=architecture_named("opt-13b"))
    for model_info in (info, replace(info, spec=replace(info.spec, **other))):
        async with MeasuringExecutor(bus, model_info) as executor:
            for is_first in (True, False):
                before, service = len(executor.asked), profiler(bus, tmp_path)
                async with running(service):
                    await until(lambda: is_done(service))  # noqa: B023
                assert (len(executor.asked) > before) is is_first


def test_a_sweep_over_little_kv_covers_no_executor_with_much() -> None:
    """Decodes over 128,000 tokens of KV were predicted at 0.7 to 3 times theirs by batches over 4,096 at most."""
    few, some, many = (executor_info(num_blocks=number, max_model_len=4096) for number in (256, 500, 20000))
    record = SweepRecord.of(few, [], 0.0)
    assert record.covers(few) and record.covers(some) and not record.covers(many)
    assert SweepRecord.of(many, [], 0.0).covers(few)
    assert replace(record, num_kv_tokens=None).covers(many)  # of a version that did not note it


async def test_a_corrupt_cache_file_is_reported_and_replaced(
    bus: Bus, tmp_path: Path, predictor: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    path = SweepFiles(tmp_path / "profiles").path(KEY)
    path.parent.mkdir()
    path.write_text('{"version": 1, "profile_key":')
    service = profiler(bus, tmp_path)
    async with running(service), MeasuringExecutor(bus, executor_info(**SMALL)) as executor:
        await until(lambda: is_done(service))
    assert executor.asked
    assert "cached sweep cannot be read, measuring anew" in caplog.messages
    assert SweepFiles(path.parent).load(KEY) is not None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_samples_are_sent_again_for_a_predictor_that_starts_late(bus: Bus, tmp_path: Path) -> None:
    service = profiler(bus, tmp_path, first_confirm_s=0.2)
    async with running(service), MeasuringExecutor(bus, executor_info(**SMALL)):
        await until(lambda: is_done(service))  # given up waiting once
        async with running(Predictor(bus, PredictorSettings(refit_interval_s=0.05), SystemClock())):
            assert (await model_of(bus)).profile_key == KEY


async def test_samples_are_sent_again_for_a_predictor_that_begins_anew(bus: Bus, tmp_path: Path) -> None:
    """It knows the model, but not what it was fitted to; live steps may be all alike."""
    service, settings = profiler(bus, tmp_path), PredictorSettings(refit_interval_s=0.05)
    async with running(service), MeasuringExecutor(bus, executor_info()) as executor:
        async with running(Predictor(bus, settings, SystemClock())):
            await until(lambda: is_done(service))
        samples = sum(shape.repeats for shape in executor.asked[1:])  # the first is the warm-up
        begun_anew = Predictor(bus, settings, SystemClock())
        async with running(begun_anew):
            await until(lambda: begun_anew.details()["samples"] == samples)


async def test_an_absent_executor_is_profiled_when_it_is_heard(
    bus: Bus, tmp_path: Path, predictor: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    executor = MeasuringExecutor(bus, executor_info(**SMALL))
    await executor.register()
    service = profiler(bus, tmp_path)
    async with running(service):
        await until(lambda: "executor not profiled; it will be when it is heard again" in caplog.messages)
        assert service.details()["profile_state"] == "waiting"
        async with executor.listening():
            await executor.beat()
            await until(lambda: is_done(service))
    assert (await model_of(bus)).num_samples >= 24


async def test_an_error_of_the_bus_puts_a_profile_off_and_not_for_ever(
    bus: Bus, tmp_path: Path, predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.profiler.service.RETRY_S", 0.1)
    executor = MeasuringExecutor(bus, executor_info(**SMALL))

    def break_once(shape: MeasureShape) -> str:
        if len(executor.asked) == 5:
            raise RuntimeError("the answer does not come")
        return ""

    executor.refuses = break_once
    service = profiler(bus, tmp_path)
    async with running(service), executor:
        await until(lambda: is_done(service))
    assert caplog.messages.count("profiling interrupted") == 1
    assert (await model_of(bus)).num_samples >= 24


async def test_a_busy_executor_is_profiled_once_it_is_idle(bus: Bus, tmp_path: Path, predictor: Predictor) -> None:
    executor = MeasuringExecutor(bus, executor_info(**SMALL))
    executor.busy = True
    service = profiler(bus, tmp_path)
    async with running(service), executor:
        await until(lambda: len(executor.asked) == 1)
        await executor.beat()  # still at work: nothing is asked
        assert service.details()["profile_state"] == "sweeping"
        executor.busy = False

        async def beats_until_done() -> bool:
            await executor.beat()
            return is_done(service)

        await until(beats_until_done)
    assert len(executor.asked) > 10


async def test_a_sweep_that_work_has_cut_short_is_not_cached(
    bus: Bus, tmp_path: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twelve shapes a model may be off by ten times elsewhere: live steps tell more soon, but it was used at each
    later start, too."""
    monkeypatch.setattr("services.profiler.service.Sweep", partial(Sweep, limit_s=2.0))
    executor = MeasuringExecutor(bus, executor_info(**SMALL))
    busy_from = ENOUGH_SHAPES + 2  # the first warms it up

    def refuse(_: MeasureShape) -> str:
        executor.busy = len(executor.asked) >= busy_from
        return ""

    executor.refuses = refuse
    files, first = SweepFiles(tmp_path / "profiles"), profiler(bus, tmp_path)
    async with executor:
        async with running(first):
            await until(lambda: is_done(first))
        assert len(first._measured[KEY][1].measurements) == busy_from - 1 and files.load(KEY) is None
        executor.busy, busy_from = False, 1000
        again = profiler(bus, tmp_path)
        async with running(again):
            await until(lambda: is_done(again))
        stored = files.load(KEY)
        assert stored is not None and len(stored.measurements) > ENOUGH_SHAPES + 2


class SlowExecutor(MeasuringExecutor):
    """So many times as slow; the clock goes on by what it measures."""

    def __init__(self, bus: Bus, info: ExecutorInfo, factor: float, clock: ManualClock) -> None:
        super().__init__(bus, info)
        self._factor, self._clock = factor, clock

    async def _answer(self, shape: MeasureShape) -> MeasuredShape:
        measured = await super()._answer(shape)
        latencies_ms = [self._factor * latency_ms for latency_ms in measured.latencies_ms]
        self._clock.now_s += sum(latencies_ms) / 1e3
        return MeasuredShape(measured.shape, latencies_ms)


@pytest.mark.parametrize("factor", [1.0, 6.0, 10.0, 15.0, 25.0, 40.0])
async def test_a_slow_executor_has_prompts_of_some_length_measured(bus: Bus, factor: float) -> None:
    """A token of a short one takes long, since any step does: longer ones were passed over, and one of 512 tokens was
    predicted at 22 times its time. A very slow one has more time: steps of a second left none for such prompts."""
    load, clock = LoadWatch(bus), ManualClock()
    await load.start()
    info = executor_info(max_num_seqs=256, max_model_len=8192, largest=StepSizes(2048, 512))
    async with SlowExecutor(bus, info, factor, clock):
        measured = await Sweep(bus, load, clock, info, lambda measured, total: None).run()
    assert clock.now_s < (30.0 if factor <= 15.0 else 65.0)
    found = fit_best([Observation(each.shape, latency) for each in measured for latency in each.latencies_ms])
    assert found is not None
    for shape in (make_shape([512]), make_shape([128], [500] * 8), make_shape((), [300] * 64)):
        assert found.model.predict_ms(shape) == pytest.approx(factor * predicted(shape), rel=0.4)
    await load.stop()


async def test_a_refused_shape_is_left_out_and_refusing_all_is_a_failure(
    bus: Bus, tmp_path: Path, predictor: Predictor
) -> None:
    executor = MeasuringExecutor(bus, executor_info(**SMALL))
    executor.refuses = lambda shape: "not enough free KV blocks" if len(shape.decode_context_lens) > 2 else ""
    service = profiler(bus, tmp_path)
    async with running(service), executor:
        await until(lambda: is_done(service))
    stored = SweepFiles(tmp_path / "profiles").load(KEY)
    assert stored is not None
    assert all(measured.shape.decode_requests <= 2 for measured in stored.measurements)

    stubborn = MeasuringExecutor(bus, executor_info("executor-1", profile_key="other", **SMALL))
    stubborn.refuses = lambda _: "no"
    async with running(service), stubborn:
        await until(lambda: service.details()["profile_state"] == "failed")
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    assert {entry.key for entry in await budgets.entries()} == {KEY, "other"}


async def test_a_sweep_names_why_it_ended_early(bus: Bus) -> None:
    load = LoadWatch(bus)
    await load.start()
    info = executor_info(**SMALL)

    def sweep(limit_s: float = 20.0) -> Sweep:
        return Sweep(bus, load, SystemClock(), info, lambda measured, total: None, limit_s)

    with pytest.raises(ExecutorSilentError, match="executor-0"):
        await sweep().run()
    async with MeasuringExecutor(bus, info) as executor:
        executor.busy = True
        with pytest.raises(ExecutorBusyError, match="executor-0"):
            await sweep(limit_s=0.2).run()
    await load.stop()


async def test_a_sweep_measures_no_other_incarnation(bus: Bus, tmp_path: Path, predictor: Predictor) -> None:
    """Which may have another engine: its times are not those of the profile key."""
    info = executor_info(**SMALL)
    service = profiler(bus, tmp_path)
    async with (
        running(service),
        MeasuringExecutor(bus, replace(info, epoch="epoch-2", profile_key="other")) as executor,
    ):
        await until(lambda: is_done(service))
        asked = len(executor.asked)
        executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        await executors.put(info.executor_id, info)  # as a restored store has it
        await until(lambda: len(executor.asked) > asked)
        await executor.beat()
        await until(lambda: is_done(service))
    assert len(executor.asked) == asked + 1
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    assert await models.keys() == {"other"}


async def test_a_sweep_ends_when_the_heartbeats_stop_and_not_before(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.profiler.sweep.sweep.SILENCE_S", 0.5)
    load = LoadWatch(bus)
    await load.start()
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_: MeasureShape) -> MeasuredShape:
        asked.set()
        await never.wait()
        raise AssertionError("the test is over")

    executor = MeasuringExecutor(bus, executor_info())
    await bus.serve(subjects.measure("executor-0"), MeasureShape, hang)
    sweep = Sweep(bus, load, SystemClock(), executor.info, lambda measured, total: None)
    running_sweep = asyncio.create_task(sweep.run())
    await asked.wait()
    for _ in range(10):
        await executor.beat()
        await asyncio.wait((running_sweep,), timeout=0.1)
    assert not running_sweep.done()
    with pytest.raises(ExecutorSilentError, match="no heartbeat"):
        await running_sweep
    await load.stop()


async def test_a_sweep_publishes_each_repeat_as_a_sample(bus: Bus) -> None:
    seen: list[LatencySample] = []

    async def on_sample(sample: LatencySample) -> None:
        seen.append(sample)

    await bus.subscribe(subjects.LATENCY_SAMPLES, LatencySample, on_sample)
    load = LoadWatch(bus)
    await load.start()
    progress: list[tuple[int, int]] = []
    async with MeasuringExecutor(bus, executor_info()) as executor:
        measured = await Sweep(
            bus, load, SystemClock(), executor.info, lambda done, total: progress.append((done, total))
        ).run()
    total = len(sweep_shapes(executor.info))
    assert progress == [*((n, total) for n in range(total)), (total, total)]
    expected = [(m.shape, latency) for m in measured for latency in m.latencies_ms]
    await until(lambda: len(seen) == len(expected))
    assert [(sample.shape, sample.latency_ms) for sample in seen] == expected
    assert {(sample.executor_id, sample.profile_key) for sample in seen} == {("executor-0", KEY)}
    await load.stop()


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 131072, "num_blocks": 20_000},
        {"max_num_batched_tokens": 100, "max_num_seqs": 3, "max_model_len": 40, "num_blocks": 5},
        {"max_num_batched_tokens": 1, "max_num_seqs": 1, "max_model_len": 3, "num_blocks": 1},
    ],
)
def test_shapes_keep_to_the_limits_and_tell_the_kinds_apart(limits: dict[str, int]) -> None:
    info = executor_info(**limits)
    shapes = sweep_shapes(info)
    assert shapes and all(fits(shape, info) for shape in shapes)
    assert any(not shape.decode_context_lens for shape in shapes)
    assert any(not shape.prefills for shape in shapes)
    seen = [(tuple(shape.prefills), tuple(shape.decode_context_lens)) for shape in shapes]
    assert len(set(seen)) == len(seen)
    if not limits:
        first = shapes[:24]
        assert {bool(s.prefills) + 2 * bool(s.decode_context_lens) for s in first} == {1, 2, 3}
        assert max(sum(chunk.num_tokens for chunk in s.prefills) for s in first) == 512
        assert max(len(s.decode_context_lens) for s in first) == 64
        assert max(max(s.decode_context_lens, default=0) for s in first) == 2046
        ends = {c.num_tokens + c.num_computed_tokens for s in first for c in s.prefills if c.num_computed_tokens}
        assert max(ends) == 2047  # the last token of a context is never computed


def test_a_registration_of_any_numbers_asks_for_no_step_that_nobody_runs() -> None:
    most = 2**63 - 1
    shapes = sweep_shapes(executor_info(max_num_seqs=most, max_num_batched_tokens=most, num_blocks=most))
    assert max(num_tokens(shape) for shape in shapes) <= MOST.max_num_batched_tokens
    assert max(len(shape.decode_context_lens) for shape in shapes) <= MOST.max_num_seqs


def test_larger_steps_come_last_where_their_sizes_are_still_to_be_chosen() -> None:
    info = executor_info(max_num_seqs=256, num_blocks=20_000)
    chosen = replace(info, largest=StepSizes(4096, 1024))
    shapes = sweep_shapes(chosen)
    larger = [(len(shape.prefills), num_tokens(shape)) for shape in shapes[-5:]]
    assert larger == [(2, 1024), (0, 512), (4, 2048), (0, 1024), (8, 4096)]
    prompts = [sum(chunk.num_tokens for chunk in shape.prefills) for shape in shapes[:-5]]
    assert (max(prompts), max(len(shape.decode_context_lens) for shape in shapes[:-5])) == (512, 256)
    assert sweep_shapes(chosen.resized(chosen.largest_sizes)) == shapes
    assert SweepRecord.of(chosen, [], 0.0).covers(info) and not SweepRecord.of(info, [], 0.0).covers(chosen)


@pytest.mark.parametrize("key", ["", "..", "../x", "a/b", ".hidden", "ä"])
def test_a_profile_key_that_is_no_file_name_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError):
        SweepFiles(tmp_path).path(key)


def test_a_shape_beyond_the_kv_cache_does_not_fit() -> None:
    info = executor_info(num_blocks=4, block_size=16)
    assert fits(MeasureShape([], [31, 31]), info)
    assert not fits(MeasureShape([], [31, 32]), info)
    assert fits(MeasureShape([PrefillChunk(16, 48)], []), info)
    assert not fits(MeasureShape([PrefillChunk(17, 48)], []), info)


async def test_a_model_record_alone_is_kept(bus: Bus, tmp_path: Path, predictor: Predictor) -> None:
    """With a model on the bus already, a sweep ends as soon as it is measured."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    service = profiler(bus, tmp_path, first_confirm_s=60.0)
    await models.put(KEY, LatencyModelRecord(KEY, LinearCoefficients(TRUTH.coefficients()), 100, 0.01, 1.0))
    async with running(service), MeasuringExecutor(bus, executor_info(**SMALL)):
        await until(lambda: is_done(service))
    assert (await model_of(bus)).latency_model().predict_ms(BatchFeatures(0, 0, 1, 1)) == pytest.approx(26.2, rel=0.2)


@pytest.mark.parametrize("num_blocks", [2, 150, 300])
def test_an_executor_of_few_blocks_takes_every_shape(num_blocks: int) -> None:
    """Fewer than the decodes of the largest step."""
    info = replace(executor_info(max_num_seqs=256, num_blocks=num_blocks), largest=StepSizes(4096, 1024))
    shapes = sweep_shapes(info)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shapes), type=list[MeasureShape]) == shapes
    assert max(len(shape.decode_context_lens) for shape in shapes) <= num_blocks
