"""What the router of a simulation knows of executors when it chooses one."""

import random
from collections.abc import Sequence

from shared.latency.features import BatchFeatures
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.placement.prompt import Prompt
from shared.scheduling.placement.role import Role
from shared.scheduling.placement.routing import Option, RoutingTarget
from shared.simulation.executor import Progress
from shared.simulation.setup import ExecutorSetup, in_pools
from shared.simulation.system import VirtualSystem
from tests.shared.simulation.test_executor import request
from tests.shared.simulation.test_handovers import large
from tests.shared.simulation.test_system import MODEL, make_setup


class Watching:
    """A system whose choice falls on the first executor, and notes what was known of each then."""

    def __init__(self, setups: Sequence[ExecutorSetup]) -> None:
        order = setups[0].strategy.make_offline_order(iter(random.Random(0).random, None))
        self.system = VirtualSystem(setups, FairShare(order), self._take, choose=self._choose)
        self.known: list[dict[str, BatchFeatures]] = []  # of each choice
        self.cached: list[int] = []  # tokens of the prompt that should be on the first
        self.num_output_tokens: list[float] = []
        self.ended_tokens: dict[str, int] = {}

    def _choose(self, options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget:
        assert all(option.model is MODEL for option in options)
        self.known.append({option.target.executor_id: option.target.work() for option in options})
        self.cached.append(options[0].target.num_cached_tokens(prompt))
        self.num_output_tokens.append(num_output_tokens)
        return options[0].target

    def _take(self, progress: Progress) -> None:
        self.ended_tokens |= {each.sequence.request_id: each.sequence.num_output_tokens for each in progress.ended}

    def run(self, until_s: float = float("inf")) -> None:
        events = self.system.events
        while events.next_s is not None and events.next_s <= until_s:
            events.run_next()

    def known_now(self, number: int = 99) -> dict[str, BatchFeatures]:
        """As a request is told that comes now."""
        self.system.submit(request(number, 5, 1))
        return self.known[-1]


def test_a_request_counts_where_it_was_sent_until_it_ends() -> None:
    run = Watching([make_setup("online-only")] * 2)
    assert not run.system.router.has_open
    run.system.submit(request(0, 40, 30))
    prompt, none = BatchFeatures(), BatchFeatures()
    prompt.add_prefill(40, 0)
    assert run.known_now(1) == {"executor-0": prompt, "executor-1": none}
    run.run(until_s=0.1)
    generating = BatchFeatures()
    generating.add_decode(40)
    assert run.known_now(2) == {"executor-0": generating, "executor-1": none}
    run.run()
    assert run.known_now(3) == {"executor-0": none, "executor-1": none}
    assert run.system.router.has_open
    run.run()
    assert not run.system.router.has_open and len(run.ended_tokens) == 4


def test_how_long_answers_are_is_learnt_from_those_that_ended() -> None:
    run = Watching([make_setup("online-only")] * 2)
    for number, num_tokens in enumerate((10, 20, 1)):
        run.system.submit(request(number, 10, num_tokens))
        run.run()
    assert run.num_output_tokens[1:] == [10, 15]


def test_heartbeats_tell_of_requests_that_others_sent() -> None:
    """While this router waits for an answer, once a second."""
    run = Watching([make_setup("online-only")] * 2)
    executor = run.system.executors["executor-1"]
    unknown = request(7, 30, 470)
    executor.submit(unknown, run.system.queue.on_inbox("executor-1", unknown))
    run.run(until_s=0.5)
    run.system.submit(request(0, 40, 400))
    run.run(until_s=1.4)
    assert run.known_now(1)["executor-1"].is_empty
    run.run(until_s=1.6)
    assert run.known_now(2)["executor-1"].decode_requests == 1
    another = request(8, 30, 400)
    executor.submit(another, run.system.queue.on_inbox("executor-1", another))
    run.run(until_s=2.4)
    assert run.known_now(3)["executor-1"].decode_requests == 1
    run.run(until_s=2.6)
    assert run.known_now(4)["executor-1"].decode_requests == 2
    run.run()
    assert len(run.ended_tokens) == 7


def test_heartbeats_come_once_a_second_whatever_happens() -> None:
    run = Watching([make_setup("online-only")] * 2)
    beaten_s: list[float] = []
    run.system.router.on_heartbeats = lambda: beaten_s.append(run.system.events.now_s)  # type: ignore[method-assign]
    for number in range(3):
        run.system.submit(request(number, 40, 450))
    run.run(until_s=3.9)
    assert beaten_s == [1.0, 2.0, 3.0]


def test_what_an_executor_has_cached_is_known_from_its_steps() -> None:
    run = Watching([make_setup("online-only")] * 2)
    for _ in range(2):
        run.system.submit(request(0, 100, 1))
        run.run()
    assert run.cached == [0, 96], "full blocks"


def test_one_executor_is_chosen_without_a_word() -> None:
    """Whoever generates only is none of those that there are to choose from."""
    for setups in ([make_setup("online-only")], in_pools(make_setup("fcfs"), 2, 1)):
        run = Watching(setups)
        run.system.submit(request(0, 40, 5))
        run.run()
        assert run.known == [] and run.ended_tokens == {"on-0": 5} and not run.system.router.chooses


def test_a_request_that_moved_counts_where_it_goes_on() -> None:
    """On a strict executor, which is none of those that take prompts; and back among mixed ones it counts in full."""
    run = Watching(in_pools(large(make_setup("fcfs")), 3, 1))
    (strict,) = (key for key, each in run.system.executors.items() if each.role is Role.STRICT)
    run.system.submit(request(0, 40, 200))
    run.run(until_s=0.2)
    known = run.known_now(1)
    assert strict not in known and all(work.is_empty for work in known.values())
    assert run.system.executors[strict].replica.has_work
    run.run()
    assert run.ended_tokens["on-0"] == 200 and not run.system.router.has_open
