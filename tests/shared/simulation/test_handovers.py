"""Executors in pools, in virtual time: whatever moves, all that came ends once, with the tokens that it has anyway."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.offline_queue.offline_pool import PackedRequest
from shared.protocol.handover import Taken
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import StepStarted
from shared.scheduling.placement.role import Role
from shared.scheduling.request import Kind, Request
from shared.simulation.executor import Progress
from shared.simulation.link import Link, LinkTimeline
from shared.simulation.setup import ExecutorSetup, acting_roles, in_pools
from tests.shared.simulation.test_system import NUM_BLOCKS, Run, make_offline, make_online, make_setup

NUM_ONLINE, NUM_OFFLINE = 40, 40
RELAXED, STRICT = Role.RELAXED, Role.STRICT


class Watched(Run):
    """What came of it by request and executor."""

    def __init__(self, setups: Sequence[ExecutorSetup], message_s: float = 0.0) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.gains: dict[str, list[tuple[str, float]]] = {}  # of each request: where and when it got a token
        super().__init__(setups, message_s)

    def take(self, progress: Progress) -> None:
        super().take(progress)
        for _, output in progress.outputs:
            self.gains.setdefault(output.request_id, []).append((progress.executor_id, self.last_s))
        for ended in progress.ended:
            self.tokens[ended.sequence.request_id] = ended.sequence.output_token_ids

    @property
    def moved(self) -> tuple[int, int]:
        totals = [executor.replica.totals for executor in self.system.executors.values()]
        return sum(each.handed_over for each in totals), sum(each.taken_over for each in totals)

    def ids(self, *roles: Role) -> set[str]:
        return {key for key, executor in self.system.executors.items() if executor.role in roles}

    def check_empty(self) -> None:
        for executor in self.system.executors.values():
            replica = executor.replica
            assert not replica.has_work and replica.pool.num_free == executor.setup.limits.num_blocks
            replica.pool.check_integrity()
            replica.table.check_integrity()
        self.system.queue.pool.check_integrity()
        assert not len(self.system.queue.pool)


def online(count: int = NUM_ONLINE, seconds: float = 3.0, seed: int = 0) -> list[GenerateRequest]:
    rng = random.Random(seed)
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    return [make_online(number, time_s, number % 4) for number, time_s in enumerate(times)]


def played(setups: Sequence[ExecutorSetup], message_s: float = 0.0, num_offline: int = NUM_OFFLINE) -> Watched:
    run = Watched(setups, message_s)
    run.system.queue.add([make_offline(number) for number in range(num_offline)])
    run.play(online())
    return run


def linked(setup: ExecutorSetup, **link: float) -> ExecutorSetup:
    return replace(setup, link=Link(**link))


def large(setup: ExecutorSetup) -> ExecutorSetup:
    """With room for all."""
    return linked(replace(setup, limits=replace(setup.limits, num_blocks=16 * NUM_BLOCKS)), latency_s=0.0)


@cache
def tokens_of_one(preset: str, depth: int) -> dict[str, list[int]]:
    """Of each request, where there is one executor."""
    return played([make_setup(preset, depth)]).tokens


@pytest.mark.parametrize("message_s", [0.0, 0.002])
@pytest.mark.parametrize("handover", ["pulled", "pushed"])
def test_where_one_that_leaves_was_in_the_way_of_the_next_that_begins_once_it_has_left(
    handover: str, message_s: float
) -> None:
    """Of 40 blocks each needs 24, the relaxed executor's; it has nothing to run when one is on its way."""

    def document(number: int) -> tuple[Request, PackedRequest]:
        token_ids = [100_000 + 1000 * number + index for index in range(380)]
        sampling = SamplingParams(40, seed=number, ignore_eos=True)
        request = GenerateRequest(f"batch.{number}", Kind.OFFLINE, token_ids, sampling, 0.0)
        return Request(request.request_id, Kind.OFFLINE, 380, 420), PackedRequest.of(request)

    setup = make_setup("ooco", budget_ms=30.0, offline_handover=handover)
    limits, spec = replace(setup.limits, num_blocks=40), structs.replace(setup.spec, num_blocks=40)
    run = Watched(in_pools(replace(setup, limits=limits, spec=spec), 2, 1), message_s)
    run.system.queue.add([document(number) for number in range(6)])
    run.play([])
    assert run.ended == Counter(f"batch.{number}" for number in range(6)) and run.moved[0] == run.moved[1] > 0
    run.check_empty()


@pytest.mark.parametrize("preset", ["hygen", "fcfs", "ooco", "echo"])
@pytest.mark.parametrize(("num_executors", "num_strict"), [(2, 1), (3, 1), (4, 2)])
@pytest.mark.parametrize("message_s", [0.0, 0.004])
@pytest.mark.parametrize("depth", [1, 2])
def test_everything_ends_once(preset: str, depth: int, num_executors: int, num_strict: int, message_s: float) -> None:
    setup = linked(make_setup(preset, depth), s_per_token=1e-4, latency_s=0.002)
    run = played(in_pools(setup, num_executors, num_strict), message_s)
    expected = [*(f"on-{n}" for n in range(NUM_ONLINE)), *(f"batch.{n}" for n in range(NUM_OFFLINE))]
    assert run.ended == Counter(expected) and run.tokens == tokens_of_one(preset, depth)
    num_given, num_taken = run.moved
    assert num_given == num_taken > 10
    run.check_empty()


@pytest.mark.parametrize("preset", ["hygen", "fcfs", "ooco"])
def test_each_pool_does_its_part(preset: str) -> None:
    """With room for all: prompts on relaxed executors, what online requests generate on strict ones."""
    run = played(in_pools(large(make_setup(preset)), 3, 1))
    (strict,), relaxed = run.ids(STRICT), run.ids(RELAXED)
    for request_id, gains in run.gains.items():
        first, *later = [executor_id for executor_id, _ in gains]
        assert first in relaxed, request_id
        assert later.count(strict) >= len(later) - 1, "its next step may have begun when it was taken"
    totals = run.system.executors[strict].replica.totals
    assert totals.prompt_tokens <= 2, "all but the last token of a prompt, at the most, is computed before it moves"
    assert totals.handed_over == 0
    assert {run.ran_on[f"on-{n}"] for n in range(NUM_ONLINE)} <= {strict, *relaxed}


def test_pushed_offline_requests_generate_on_strict_executors_as_well() -> None:
    run = played(in_pools(large(make_setup("fcfs")), 2, 1))
    num_on_strict = sum(run.ran_on[f"batch.{n}"] in run.ids(STRICT) for n in range(NUM_OFFLINE))
    assert num_on_strict > NUM_OFFLINE / 2


def test_strict_executors_pull_offline_requests_as_their_budget_allows() -> None:
    """None under one that no decode fits. Without online requests, too: some may come."""
    num_taken = []
    for budget_ms in (5.2, 30.0):
        setup = linked(make_setup("ooco", budget_ms=budget_ms), latency_s=0.001)
        run = Watched(in_pools(setup, 2, 1))
        run.system.queue.add([make_offline(number) for number in range(NUM_OFFLINE)])
        run.play([])
        assert len(run.ended) == NUM_OFFLINE
        run.check_empty()
        num_taken.append(run.moved[1])
    assert num_taken[0] == 0 < 5 < num_taken[1]


@pytest.mark.parametrize("role", [RELAXED, STRICT])
def test_a_pool_without_the_other_is_as_if_there_were_none(role: Role) -> None:
    """To the last number."""
    setup = make_setup("ooco", budget_ms=30.0)
    mixed, others = played([setup] * 2), played([replace(setup, role=role)] * 2)
    assert others.gains == mixed.gains and others.moved == (0, 0)
    assert (others.last_s, others.ran_on, others.num_tokens) == (mixed.last_s, mixed.ran_on, mixed.num_tokens)


@pytest.mark.parametrize("roles", [(STRICT, Role.MIXED), (STRICT, Role.MIXED, RELAXED), (RELAXED, Role.MIXED)])
def test_mixed_executors_beside_others(roles: tuple[Role, ...]) -> None:
    setup = linked(make_setup("ooco", budget_ms=30.0), latency_s=0.001)
    run = played([replace(setup, role=role) for role in roles])
    assert len(run.ended) == NUM_ONLINE + NUM_OFFLINE and set(run.ended.values()) == {1}
    assert (run.moved[1] > 0) == (RELAXED in roles and STRICT in roles)
    run.check_empty()


def test_what_a_strict_executor_has_no_room_for_goes_on_where_it_is() -> None:
    setup = linked(make_setup("fcfs"), latency_s=0.001)
    strict, relaxed = in_pools(setup, 2, 1)
    small = replace(strict, limits=replace(strict.limits, num_blocks=16))
    run = played([small, relaxed])
    assert len(run.ended) == NUM_ONLINE + NUM_OFFLINE and set(run.ended.values()) == {1}
    assert set(run.ran_on.values()) == run.ids(STRICT, RELAXED)
    run.check_empty()


def test_what_only_a_strict_executor_could_hold_is_refused() -> None:
    """Offline requests begin on relaxed ones alone: it does not wait for ever."""
    strict, relaxed = in_pools(make_setup("ooco", budget_ms=30.0), 2, 1)
    small = replace(
        relaxed, limits=replace(relaxed.limits, num_blocks=16), spec=structs.replace(relaxed.spec, num_blocks=16)
    )
    run = Watched([strict, small])
    sampling = SamplingParams(10, ignore_eos=True)
    large = GenerateRequest("large", Kind.OFFLINE, list(range(300)), sampling, 0.0)
    run.system.queue.add([make_offline(0), (Request("large", Kind.OFFLINE, 300, 310), PackedRequest.of(large))])
    run.play([])
    assert run.ended == {"batch.0": 1, "large": 1} and run.ran_on["large"] == "", "on none"
    run.check_empty()


def test_what_was_asked_for_and_has_ended_is_forgotten() -> None:
    """Asked for while its last token was generated."""
    setups = in_pools(linked(make_setup("ooco", budget_ms=30.0), latency_s=0.001), 2, 1)
    run, asked = Watched(setups, message_s=0.004), dict[str, None]()
    (relaxed,) = (each for each in run.system.executors.values() if each.role is RELAXED)
    ask = relaxed.ask
    relaxed.ask = lambda request_ids: (asked.update(dict.fromkeys(request_ids)), ask(request_ids))[1]  # type: ignore
    run.system.queue.add([make_offline(number) for number in range(NUM_OFFLINE)])
    run.play([])
    assert len(asked) > run.moved[1] > 0, "one of them did not go"
    run.system._handovers.on_heartbeats()
    assert not run.system._handovers._pulled


def test_a_token_waits_for_the_link() -> None:
    """The first that a request generates where it has moved to."""
    gaps = []
    for latency_s in (0.0, 0.5):
        run = Watched(in_pools(linked(make_setup("fcfs"), latency_s=latency_s), 2, 1))
        run.play([make_online(0, 0.0)])
        times = [time_s for _, time_s in run.gains["on-0"]]
        gaps.append(times[1] - times[0])
    assert gaps[1] == pytest.approx(gaps[0] + 0.5)


def test_a_link_reads_one_after_the_other() -> None:
    timeline = LinkTimeline(Link(s_per_token=0.01, latency_s=0.5))
    assert timeline.read("a", "c", 100, 10.0) == pytest.approx(11.5)
    assert timeline.read("b", "d", 100, 10.0) == pytest.approx(11.5), "others"
    assert timeline.read("a", "d", 50, 10.0) == pytest.approx(12.5), "the same giver, and a taker that is busy"
    assert timeline.read("e", "d", 0, 10.0) == pytest.approx(13.0), "a giver that is free, and a taker that is busy"
    assert timeline.read("b", "c", 0, 20.0) == pytest.approx(20.5)


def test_what_a_gpus_link_takes() -> None:
    """Llama-3.1-8B has 131 KB of KV a token; of four GPUs each moves its quarter."""
    architecture, device = architecture_named("llama3.1-8b"), device_named("a100-80g")
    one, four = (Link.of(architecture, device, count) for count in (1, 4))
    assert one.read_s(1000) - one.latency_s == pytest.approx(131.072e6 / (0.8 * 300e9))
    assert four.s_per_token == pytest.approx(one.s_per_token / 4)


def test_who_acts_as_what() -> None:
    setup = make_setup()
    assert acting_roles(in_pools(setup, 3, 1)) == [STRICT, RELAXED, RELAXED]
    assert acting_roles(in_pools(setup, 3)) == [Role.MIXED] * 3
    assert [each.info("some").role for each in in_pools(setup, 2, 1)] == [STRICT, RELAXED]


def test_what_makes_no_pools_is_said() -> None:
    with pytest.raises(ValueError, match="at least one must be relaxed"):
        in_pools(make_setup(), 2, 2)
    with pytest.raises(ValueError, match=r"^with kv_sharing bidirectional KV is paused"):
        in_pools(make_setup("bros"), 2, 1)


def test_the_kinds_that_are_pushed() -> None:
    assert make_setup("ooco").strategy.pushed_kinds == (Kind.ONLINE,)
    assert make_setup("fcfs").strategy.pushed_kinds == (Kind.ONLINE, Kind.OFFLINE)


def test_a_takers_word_from_before_it_took_a_request_takes_nothing_away() -> None:
    """It comes after that of who moved: the request does not wait again."""
    run = Watched(in_pools(large(make_setup("ooco", budget_ms=30.0)), 2, 1))
    queue, words, num_held = run.system.queue, dict[str, StepStarted](), 0
    hear, move = queue.on_step, queue.on_taken

    def hear_and_keep(message: StepStarted) -> None:
        words[message.executor_id] = message
        hear(message)

    def move_first(taken: Taken) -> None:
        nonlocal num_held
        move(taken)
        hear(words[taken.taker.executor_id])
        num_held += queue.pool.is_held(taken.request_id, taken.taker.executor_id)

    queue.on_step, queue.on_taken = hear_and_keep, move_first  # type: ignore[method-assign]
    queue.add([make_offline(number) for number in range(NUM_OFFLINE)])
    run.play([])
    assert num_held == run.moved[1] > 5 and len(run.ended) == NUM_OFFLINE
