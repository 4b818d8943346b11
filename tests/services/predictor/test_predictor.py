"""The predictor service on a real bus."""

import random
from functools import partial

import msgspec
import pytest

from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from services.profiler.simulation.setup import Machine
from shared.bus import Bus
from shared.clock import SystemClock
from shared.latency.architectures import Architecture
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients, RooflineRates
from shared.protocol.profiling.measurements import LatencySample
from shared.scheduling.strategy import Strategy
from tests.services.profiler.profiling import KEY, TRUTH, model_of, predicted, running, until
from tests.shared.latency.shapes import make_shape, roofline

SLOWER = LinearLatencyModel(*(2 * coefficient for coefficient in TRUTH.coefficients()))


def predictor(bus: Bus, **changes: float | str) -> Predictor:
    settings = {"refit_interval_s": 0.05, **changes}
    return Predictor(bus, PredictorSettings(**settings), SystemClock())  # type: ignore[arg-type]


def mixed_shapes(count: int) -> list[BatchFeatures]:
    rng = random.Random(11)
    shapes = []
    for number in range(count):
        n_p = 0 if number % 3 == 0 else rng.randint(1, 4)
        n_d = 0 if number % 3 == 1 else rng.randint(1, 32)
        chunks = [(rng.randint(8, 128), rng.choice((0, 0, 512)))] * n_p
        shapes.append(make_shape(chunks, [rng.randint(16, 1500)] * n_d))
    return shapes


async def send(bus: Bus, shapes: list[BatchFeatures], truth: LatencyModel = TRUTH, key: str = KEY) -> None:
    rng = random.Random(12)
    for step, shape in enumerate(shapes):
        sample = LatencySample("executor-0", key, step, shape, predicted(shape, truth) * rng.gauss(1, 0.02))
        await bus.publish(subjects.sample("executor-0"), sample)
    await bus.flush()


async def test_samples_become_a_published_model(bus: Bus) -> None:
    async with running(predictor(bus)):
        await send(bus, mixed_shapes(200))
        record = await model_of(bus)
    model = record.latency_model()
    assert record.profile_key == KEY and record.num_samples >= 24 and record.mape < 0.05
    for shape in mixed_shapes(40):
        assert predicted(shape, model) == pytest.approx(predicted(shape), rel=0.08)


async def test_a_model_that_says_the_same_is_not_published_again(bus: Bus) -> None:
    service = predictor(bus, min_samples=400)
    async with running(service):
        await send(bus, mixed_shapes(400))
        await until(lambda: service.details()["published"] == 1)
        await send(bus, mixed_shapes(460)[400:])
        await until(lambda: service.details()["samples"] == 460)
        await until(lambda: service.details()["fits"] != 1)
        assert service.details()["published"] == 1


async def test_a_slower_machine_gets_a_new_version(bus: Bus) -> None:
    async with running(predictor(bus, window=256)):
        await send(bus, mixed_shapes(200))
        await model_of(bus)
        slow = mixed_shapes(60)
        for _ in range(12):
            await send(bus, slow, SLOWER)
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)

        async def is_slower() -> bool:
            value = (await models.get(KEY)).value
            assert value is not None
            model = value.latency_model()
            errors = [abs(predicted(shape, model) / predicted(shape, SLOWER) - 1) for shape in slow]
            return sum(errors) / len(errors) < 0.1

        await until(is_slower)


async def test_each_profile_key_has_its_own_model(bus: Bus) -> None:
    async with running(predictor(bus)):
        await send(bus, mixed_shapes(100))
        await send(bus, mixed_shapes(100), SLOWER, key="other")
        fast, slow = await model_of(bus), await model_of(bus, "other")
    shape = make_shape([100], [500] * 10)
    assert predicted(shape, slow.latency_model()) == pytest.approx(2 * predicted(shape, fast.latency_model()), rel=0.1)


async def test_an_executor_of_a_new_kind_does_not_wait_for_its_model(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long fits of what has a model already are to rest."""
    for share in ("SETTLED_SHARE", "CHANGING_SHARE"):
        monkeypatch.setattr(f"services.predictor.service.{share}", 1e-9)
    async with running(predictor(bus)):
        await send(bus, mixed_shapes(100))
        await model_of(bus)
        await send(bus, mixed_shapes(100), key="other")
        assert (await model_of(bus, "other")).profile_key == "other"


async def test_a_restarted_predictor_keeps_what_it_knew(bus: Bus) -> None:
    """Decodes alone, the only samples after the restart, must not wipe out the cost of prefills."""
    async with running(predictor(bus)):
        await send(bus, mixed_shapes(300))
        before = await model_of(bus)
    restarted = predictor(bus)
    async with running(restarted):
        assert restarted.details()["models"] == 1
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        revision = (await models.get(KEY)).revision
        decodes = [make_shape((), [100 * (1 + n % 3)] * n) for n in range(1, 60)]
        await send(bus, decodes * 3, SLOWER)
        after = await model_of(bus, newer_than=revision)
    prefill = make_shape([100, 100])
    old, new = (predicted(prefill, record.latency_model()) for record in (before, after))
    assert new > 0.9 * old


async def test_a_published_model_that_is_none_hides_no_other(bus: Bus) -> None:
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    sound = LinearCoefficients(TRUTH.coefficients())
    for key, model in (("first", LinearCoefficients((-1.0, *sound.coefficients[1:]))), ("second", sound)):
        await models.put(key, LatencyModelRecord(key, model, 100, 0.01, 1.0))
    service = predictor(bus)
    async with running(service):
        assert (service.details()["profiles"], service.details()["models"]) == (2, 1)


async def test_models_of_ever_new_kinds_are_no_more_than_kinds_may_be(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.predictor.service.MAX_KINDS", 2)
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    service, model = predictor(bus), LinearCoefficients(TRUTH.coefficients())
    async with running(service):
        for number in range(4):  # heard one by one: of those that are there already only the newest word is
            await models.put(f"kind-{number}", LatencyModelRecord(f"kind-{number}", model, 100, 0.01, 1.0))
            await until(lambda least=min(number + 1, 2): service.details()["profiles"] == least)
        changed = LatencyModelRecord("kind-0", model, 100, 0.25, 1.0)
        await models.put("kind-0", changed)
        await until(lambda: service.details()["worst_mape"] == changed.mape)
        assert service.details()["profiles"] == 2


async def test_kinds_that_are_heard_no_more_make_room_for_new_ones(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus keeps the model of every kind that there ever was: once these were MAX_KINDS no new one got any."""
    monkeypatch.setattr("services.predictor.service.MAX_KINDS", 2)
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    once = LatencyModelRecord("once", LinearCoefficients(SLOWER.coefficients()), 100, 0.01, 1.0)
    for number in range(3):
        await models.put(f"once-{number}", msgspec.structs.replace(once, profile_key=f"once-{number}"))
    service = predictor(bus)
    async with running(service):
        await send(bus, mixed_shapes(100), key="new")
        assert (await model_of(bus, "new")).profile_key == "new"
        await send(bus, mixed_shapes(100), key="newer")
        assert (await model_of(bus, "newer")).profile_key == "newer"
        await send(bus, mixed_shapes(30), key="third")
        await until(lambda: service.details()["samples_refused"] == 30)  # those two are heard
        monkeypatch.setattr("services.predictor.service.FORGOTTEN_S", -1.0)
        await send(bus, [make_shape((), [100])], SLOWER, key="once-0")
        await until(lambda: "once-0" in service._kinds and service._kinds["once-0"].record is not None)
        assert service.details()["profiles"] == 2


async def test_a_model_lost_from_the_bus_is_published_again(bus: Bus) -> None:
    """Without a sample or a fit: offline work may wait for it, and no step be run."""
    async with running(predictor(bus, refit_interval_s=1e6)):
        await send(bus, mixed_shapes(100))
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        before = await model_of(bus)
        revision = (await models.get(KEY)).revision
        await models.delete(KEY)
        assert await model_of(bus, newer_than=revision) == before


class Later(msgspec.Struct):
    """A model as another version writes it."""

    formula: str


async def test_a_model_that_another_version_has_written_stays(bus: Bus) -> None:
    service = predictor(bus, refit_interval_s=1e6)
    async with running(service):
        await send(bus, mixed_shapes(100))
        ours = await model_of(bus)
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        theirs = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, Later)
        await theirs.put(KEY, Later("of tomorrow"))
        await models.put("another", msgspec.structs.replace(ours, profile_key="another"))
        await until(lambda: service.details()["models"] == 2)
        assert (await theirs.get(KEY)).value == Later("of tomorrow")


async def test_a_roofline_is_fitted_where_the_executor_tells_its_model(bus: Bus) -> None:
    """Steps of a GPU bend; the executor has gone by the time of a later fit."""
    llama = Machine("llama2-7b", "a100-40g").setup(Strategy(), 0)
    info = msgspec.structs.replace(llama.info("executor-0"), profile_key=KEY)
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await executors.put(info.executor_id, info)
    service = predictor(bus, latency_model="roofline", min_samples=100)
    async with running(service):
        await send(bus, mixed_shapes(200), llama.latency)
        record = await model_of(bus)
        assert record.kind == "roofline"
        await until(lambda: service.details()["roofline"] == 1)  # its writer may hear later that it is there
        assert {candidate.kind for candidate in record.candidates} >= {"linear", "roofline"}
        assert isinstance(record.model, RooflineRates) and record.model.architecture == info.spec.architecture
        await executors.delete(info.executor_id)
        revision = (await (await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)).get(KEY)).revision
        slower = roofline("llama2-7b", "a40")
        for _ in range(6):
            await send(bus, mixed_shapes(100), slower)
        again = await model_of(bus, newer_than=revision)
        assert again.kind == "roofline"


async def test_a_roofline_is_that_of_the_model_that_has_the_name_now(bus: Bus) -> None:
    """A folder may have another model in it than before, and the executor is of the same kind."""
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)

    async def is_of(architecture: Architecture | None) -> bool:
        entries = [entry.value for entry in await models.entries() if entry.value is not None]
        return any(
            isinstance(each.model, RooflineRates) and each.model.architecture == architecture for each in entries
        )

    async with running(predictor(bus, latency_model="roofline", min_samples=100)):
        for name in ("llama2-7b", "opt-30b"):
            setup = Machine(name, "a100-80g").setup(Strategy(), 0)
            await executors.put("executor-0", msgspec.structs.replace(setup.info("executor-0"), profile_key=KEY))
            for _ in range(6):
                await send(bus, mixed_shapes(100), setup.latency)
            await until(partial(is_of, setup.spec.architecture), timeout_s=30.0)


async def test_too_few_samples_and_senseless_ones_make_no_model(bus: Bus) -> None:
    service = predictor(bus)
    async with running(service):
        await send(bus, mixed_shapes(20))
        await bus.publish(subjects.sample("e"), LatencySample("e", KEY, 1, make_shape(), 5.0))
        await bus.publish(subjects.sample("e"), LatencySample("e", KEY, 1, make_shape([1]), -5.0))
        await until(lambda: service.details()["samples_refused"] == 2)
        assert service.details()["samples"] == 20
        assert service.details()["fits"] == 0 and service.details()["models"] == 0
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    assert await models.entries() == []
