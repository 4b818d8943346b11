"""The order blend against a naive one, and what it promises."""

import random
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from operator import eq, lt

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.orders.offline.blend import BlendOrder
from shared.scheduling.orders.offline.density.lengths import MAX_PREFIXES, PRIOR_TOKENS, OutputLengths, quantized
from shared.scheduling.orders.offline.density.node import DensityLeaf, Placed, level_of, request_load
from shared.scheduling.orders.offline.density.tree import MAX_TOLD
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import OfflineOrder, Turn
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.share import Share
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request
from tests.shared.scheduling.orders.naive_blend import Known, NaiveBlend
from tests.shared.scheduling.orders.naive_orders import numbered

PROMPTS = st.lists(st.integers(0, 1), max_size=14)
LONG_PROMPTS = st.integers(1, 40).flatmap(lambda n: PROMPTS.map(lambda prompt: [1] * n + prompt))
OUTPUTS = st.sampled_from([1, 2, 5, 60, 1000, 16_000])
READERS = ("executor-0", "executor-1", "executor-2")
GROUPS = ("x", "y", "z")
SHARED = [7] * 64
ROOM_BLOCKS = 1000  # for what runs


def make(request_id: str, num_tokens: int, most: int, is_known: bool = True) -> Request:
    return Request(request_id, Kind.OFFLINE, num_tokens, num_tokens + most, ends_at_limit=is_known)


def make_order(threshold: float = 0.01, sample_share: float = 0.0, block_size: int = 16) -> BlendOrder:
    return BlendOrder(block_size, sample_share, threshold)


def add(
    order: OfflineOrder, request_id: str, prompt: list[int], most: int, is_known: bool = True, group: str = ""
) -> None:
    order.add(make(request_id, len(prompt), most, is_known), pack_tokens(prompt), group)


def read(order: OfflineOrder, view: OfflineView = NOBODY, turn: Turn | None = None) -> list[str]:
    return [request.request_id for request in order.in_order(view, turn)]


class BlendMachine(RuleBasedStateMachine):
    """Beside the naive order, through arrivals, starts, losses, ends and what they teach."""

    threshold = 0.0

    @initialize(block_size=st.integers(1, 4), sample_share=st.sampled_from([0.0, 0.0, 0.4]))
    def start(self, block_size: int, sample_share: float) -> None:
        self.order = BlendOrder(block_size, sample_share, self.threshold)
        self.naive = NaiveBlend(block_size, self.order._tree)
        self.samples: dict[str, None] = {}  # that wait
        self.taken: dict[str, Request] = {}
        self.ids = numbered("batch_1")

    def waiting(self) -> list[str]:
        return [request_id for request_id in self.naive.known if request_id not in self.taken]

    def some(self, ids: Sequence[str], index: int) -> str:
        return ids[index % len(ids)]

    @rule(
        prompt=PROMPTS | LONG_PROMPTS,
        most=OUTPUTS,
        is_known=st.booleans(),
        copies=st.integers(1, 3),
        group=st.sampled_from(GROUPS),
    )
    def add(self, prompt: list[int], most: int, is_known: bool, copies: int, group: str) -> None:
        for request_id in islice(self.ids, copies):
            request = make(request_id, len(prompt), most, is_known)
            self.order.add(request, pack_tokens(prompt), group)
            is_sample = self.order._tree.leaf(request_id).is_sample
            assert not (is_sample and is_known)
            self.naive.known[request_id] = Known(request, prompt, group, not is_sample)
            if is_sample:
                self.samples[request_id] = None

    @precondition(lambda self: self.waiting())
    @rule(index=st.integers(0, 9), reader=st.sampled_from(READERS))
    def take(self, index: int, reader: str) -> None:
        view = OfflineView(reader, running_offline=list(self.taken.values()))
        request_id = read(self.order, view)[0] if index else self.some(self.waiting(), index)
        root, known = self.naive.root(), self.naive.known[request_id]
        is_left = known.is_waiting and self.naive.is_left(root, self.naive.path_of(root, request_id))
        self.order.take(request_id, reader)
        assert not known.is_waiting or self.order._tree.leaf(request_id).is_left == is_left
        self.naive.known[request_id].is_waiting = False
        self.samples.pop(request_id, None)
        self.taken[request_id] = known.request

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 50))
    def give_back(self, index: int) -> None:
        request_id = self.some(list(self.taken), index)
        self.order.give_back(request_id)
        del self.taken[request_id]
        if self.order._tree.leaf(request_id).is_sample:
            self.samples[request_id] = None
        else:
            self.naive.known[request_id].is_waiting = True

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, 50), num_tokens=OUTPUTS, ends=st.booleans())
    def learn(self, index: int, num_tokens: int, ends: bool) -> None:
        request_id = self.some(list(self.taken), index)
        self.order.learn(request_id, num_tokens)
        learnt = self.order.remember()
        self.order.learn(request_id, 3 * num_tokens)
        assert self.order.remember() == learnt
        if ends:
            self.remove_one(request_id)

    @precondition(lambda self: self.naive.known)
    @rule(index=st.integers(0, 50))
    def remove(self, index: int) -> None:
        self.remove_one(self.some(list(self.naive.known), index))

    def remove_one(self, request_id: str) -> None:
        self.order.remove(request_id)
        del self.naive.known[request_id]
        self.samples.pop(request_id, None)
        self.taken.pop(request_id, None)

    @rule(reader=st.sampled_from(READERS))
    def leave(self, reader: str) -> None:
        self.order.leave(reader)

    @invariant()
    def loads_agree(self) -> None:
        if not hasattr(self, "order"):
            return
        self.order.check_integrity()
        self.order.details()
        root = self.naive.root()
        nodes = [root]
        for node in nodes:
            nodes += [child for child in node.children if child.children]
        loads = {tuple(node.prompt): node.load for node in nodes if node.requests}
        branches = [self.order._tree.root]
        for branch in branches:
            branches += branch.branches()
        counted = [branch for branch in branches if branch.num_waiting_below]
        assert loads == {_tokens(branch.prompt[: branch.end]): branch.load for branch in counted}

    @invariant()
    def orders_agree(self) -> None:
        if not hasattr(self, "order"):
            return
        tree, running = self.order._tree, list(self.taken.values())
        samples = sorted(self.samples, key=lambda each: (tree.leaf(each).prompt, tree.leaf(each).rank))
        in_use = [0.0, 0.0]
        for request_id in self.taken:
            leaf = tree.leaf(request_id)
            in_use[not leaf.is_left] += leaf.request.num_tokens + leaf.expected_tokens / 2
        for request_id in samples:
            leaf = tree.leaf(request_id)
            in_use[not tree.is_left(leaf)] += leaf.request.num_tokens + leaf.expected / 2
        view = OfflineView(running_offline=running)
        ids = read(self.order, view)
        assert ids == samples + self.naive.in_order(GROUPS, in_use)
        assert ids == read(self.order, view) and self.order.num_waiting == len(ids)

    @invariant()
    def readers_and_turns_see_all(self) -> None:
        if not hasattr(self, "order"):
            return
        groups = dict.fromkeys(GROUPS[: len(self.naive.known) % 3 + 1])
        of_groups = sorted(each for each in self.waiting() if self.naive.known[each].group in groups)
        for reader in READERS:
            view = OfflineView(reader, running_offline=list(self.taken.values()))
            assert sorted(read(self.order, view)) == sorted(self.waiting())
            assert sorted(read(self.order, view, Turn(groups))) == of_groups
            passed = set(of_groups[::2])
            assert sorted(read(self.order, view, Turn(groups, passed))) == of_groups[1::2]

    @invariant()
    def whose_turn_ends_is_not_shown(self) -> None:
        if not hasattr(self, "order"):
            return
        groups, shown = dict.fromkeys(GROUPS), []
        for request in self.order.in_order(turn=Turn(groups)):
            group = self.naive.known[request.request_id].group
            shown.append(group)
            assert group in groups
            if shown.count(group) == 2:
                del groups[group]
        waiting = [self.naive.known[request_id].group for request_id in self.waiting()]
        assert sorted(shown) == sorted(group for group in GROUPS for _ in range(min(2, waiting.count(group))))


def _tokens(packed: bytes) -> tuple[int, ...]:
    return tuple(memoryview(packed).cast("I"))


class SeldomOpenMachine(BlendMachine):
    threshold = 0.01


class HalfOpenMachine(BlendMachine):
    threshold = 0.2


class OpenMachine(BlendMachine):
    threshold = 3.0


TestBlend = BlendMachine.TestCase
TestSeldomOpenBlend = SeldomOpenMachine.TestCase
TestHalfOpenBlend = HalfOpenMachine.TestCase
TestOpenBlend = OpenMachine.TestCase
TestBlend.settings = TestSeldomOpenBlend.settings = settings(max_examples=6, stateful_step_count=40)
TestHalfOpenBlend.settings = TestOpenBlend.settings = settings(max_examples=6, stateful_step_count=40)


def units(order: BlendOrder) -> list[list[str]]:
    """The requests of each unit, from the left."""
    return [requests_below(unit) for unit in order._tree.root.in_line(["", *GROUPS])]


def requests_below(node: Placed) -> list[str]:
    if isinstance(node, DensityLeaf):
        return [node.request.request_id]
    return [request_id for child in node.in_line(["", *GROUPS]) for request_id in requests_below(child)]


def figure_4(threshold: float) -> BlendOrder:
    """Requests 1 to 3 share a prefix, and so do 4 to 6; of those 2 has a long answer, of these 5 a short one."""
    order = make_order(threshold)
    for number, (prefix, most) in enumerate([(1, 8), (1, 9000), (1, 4), (2, 4000), (2, 4), (2, 5000)], start=1):
        add(order, str(number), [prefix] * 32 + [100 + number] * 100, most)
    return order


def test_layers_are_sorted_and_prefixes_stay_together() -> None:
    """Alg. 1. Of both prefixes the first has less to read for what it computes."""
    assert units(figure_4(0.0)) == [["5", "4", "6"], ["3", "1", "2"]]


def test_outliers_are_relocated_where_that_costs_little() -> None:
    """Alg. 2: to open the second prefix, of 32 tokens, may cost 96 again, which is 1% of the 9,304 below it."""
    assert units(figure_4(96 / 9304)) == units(figure_4(1.0)) == [["3"], ["5"], ["1"], ["4"], ["6"], ["2"]]


def test_a_prefix_is_opened_and_closed_again_with_what_comes_and_goes() -> None:
    order = make_order(0.01)
    for number in range(8):
        add(order, f"short-{number}", SHARED + [number] * 16, 4)
    assert len(units(order)) == 1
    add(order, "long", SHARED + [99] * 16, 90_000)
    assert len(units(order)) == 9
    order.check_integrity()
    order.take("long")
    assert len(units(order)) == 1
    order.give_back("long")
    assert len(units(order)) == 9
    order.check_integrity()


def test_a_prefix_is_opened_from_its_share_on() -> None:
    """At a half: 64 tokens for each of three, 192, of 20 below it, 108, and 16 with the longest answer."""
    for longest, is_open in ((240, True), (239, False)):
        order = make_order(0.5)
        for number, (request_id, most) in enumerate((("short", 4), ("middle", 92), ("long", longest))):
            add(order, request_id, SHARED + [number] * 16, most)
        assert (len(units(order)) == 3) is is_open
        order.check_integrity()


def test_an_open_prefix_is_closed_beyond_twice_its_share() -> None:
    """Once the longest has gone: 64 tokens for each of two, 128, of 20 and 16 with the middle answer below it."""
    for middle, is_open in ((92, True), (91, False)):
        order = make_order(0.5)
        for number, (request_id, most) in enumerate((("short", 4), ("middle", middle), ("long", 4000))):
            add(order, request_id, SHARED + [number] * 16, most)
        assert len(units(order)) == 3
        order.take("long")
        assert (len(units(order)) == 2) is is_open
        order.check_integrity()


def test_no_prefix_is_open_below_one_that_is_closed() -> None:
    """The inner one would be, for the answers below it; once there is little else below the outer one both are."""
    order = make_order(0.01)
    for number in range(200):
        add(order, f"short-{number}", SHARED + [number] * 16, 4)
    for number in range(2):
        add(order, f"long-{number}", SHARED + [900] * 16 + [number] * 16, 10_000)
    assert len(units(order)) == 1
    order.check_integrity()
    for number in range(200):
        order.take(f"short-{number}")
    assert len(units(order)) == 2
    order.check_integrity()


def test_who_waits_alone_below_an_open_prefix_is_ranked_without_it() -> None:
    """It has 76 tokens for 6,600 that are read; with the prefix it would be denser than the other, 160 for 9,600."""
    order = make_order(1.0)
    add(order, "held", SHARED + [1] * 16, 60)
    order.take("held")
    add(order, "waits", SHARED + [2] * 16, 60)
    add(order, "other", [3] * 80, 80)
    assert units(order) == [["other"], ["waits"]]
    order.check_integrity()


def test_memory_is_parted_as_in_figure_5() -> None:
    """60 GB for KV, as many compute-bound requests for each memory-bound one as make the whole as dense as there, 1.27
    of 3.73: 19.3 and 40.7 GB."""
    left, right = request_load(512, 512, 256), request_load(256, 256, 16_384)
    assert left.density / right.density == pytest.approx(3.73 / 0.096, rel=0.01)
    root = left.density * 1.27 / 3.73
    compute = (right.tokens - root * right.double_reads / 2) / (root * left.double_reads / 2 - left.tokens)
    order = make_order()
    for number in range(50):
        add(order, f"right-{number}", [100_000 + number] * 256, 16_384)
    for number in range(round(50 * compute)):
        add(order, f"left-{number}", [number] * 512, 256)
    assert order._tree.root.load.density / left.density == pytest.approx(1.27 / 3.73, rel=0.01)
    held = {"left": 0.0, "right": 0.0}
    for request in islice(order.in_order(), 340):
        side = request.request_id.partition("-")[0]
        held[side] += 512 + 128 if side == "left" else 256 + 8192
    gb = {side: 60 * tokens / sum(held.values()) for side, tokens in held.items()}
    assert gb == {"left": pytest.approx(19.3, abs=1.0), "right": pytest.approx(40.7, abs=1.0)}


def three_densities() -> BlendOrder:
    """In the group x all is denser than the whole, in y nothing is."""
    order = make_order()
    for number, (group, most) in enumerate([("x", 2), ("x", 20), ("x", 8), ("y", 3000), ("y", 9000), ("y", 5000)]):
        add(order, f"{group}-{most}", [number] * (10_000 if group == "x" else 100), most, group=group)
    return order


def test_where_nothing_is_on_one_side_the_nearer_end_has_all() -> None:
    order = three_densities()
    assert read(order, turn=Turn(["x"])) == ["x-20", "x-8", "x-2"]
    assert read(order, turn=Turn(["y"])) == ["y-3000", "y-5000", "y-9000"]
    assert sorted(read(order)[:2]) == ["x-2", "y-9000"]


def test_what_runs_counts_on_the_side_from_which_it_was_taken() -> None:
    order = make_order()
    for number in range(400):
        add(order, f"left-{number}", [number] * 160, 60)
    for number in range(40):
        add(order, f"right-{number}", [1000 + number] * 160, 600)
    first = read(order)[:20]
    assert {request_id.partition("-")[0] for request_id in first} == {"left", "right"}
    running = []
    for number in range(12):
        request_id = f"right-{number}"
        order.take(request_id, "executor-0")
        running.append(make(request_id, 160, 600))
    view = OfflineView("executor-0", running_offline=running)
    shown = read(order, view)
    assert all(request_id.startswith("left") for request_id in shown[:10])
    assert shown[:5] != read(order, OfflineView("executor-0"))[:5]


def chats(order: BlendOrder, count: int, prefix: list[int], first: int = 0) -> list[str]:
    ids = [f"chat-{number}" for number in range(first, first + count)]
    for number, request_id in enumerate(ids, start=first):
        add(order, request_id, prefix + [1000 + number] * 32, 4096, is_known=False)
    return ids


def end(order: BlendOrder, request_id: str, num_tokens: int) -> None:
    order.take(request_id)
    order.learn(request_id, num_tokens)
    order.remove(request_id)


def estimates(order: BlendOrder, ids: Iterable[str]) -> list[int]:
    return [order._tree.leaf(request_id).expected for request_id in ids]


def test_estimates_are_of_the_nearest_that_have_ended() -> None:
    order = make_order()
    asked, told = chats(order, 4, SHARED + [1] * 16), chats(order, 4, SHARED + [2] * 16, first=10)
    alone = chats(order, 2, [9] * 80, first=20)
    capped = [f"capped-{number}" for number in range(2)]
    for number, request_id in enumerate(capped):
        add(order, request_id, SHARED + [2] * 16 + [77 + number] * 16, 5, is_known=False)
    assert estimates(order, [*asked, *told, *alone]) == [PRIOR_TOKENS] * 10
    end(order, asked[0], 800)
    assert estimates(order, [*asked[1:], *told, *alone]) == [quantized(800)] * 9, "siblings, and whoever else is there"
    assert estimates(order, capped) == [5, 5]
    end(order, told[0], 20)
    assert estimates(order, asked[1:]) == [quantized(800)] * 3
    assert estimates(order, told[1:]) == [quantized(20)] * 3
    assert estimates(order, alone) == [quantized(410)] * 2, "the root's mean"
    end(order, told[1], 30)
    assert estimates(order, told[2:]) == [quantized(25)] * 2
    order.check_integrity()


def test_those_that_share_no_more_are_better_neighbours_than_those_that_do() -> None:
    order = make_order()
    ids = chats(order, 3, SHARED)
    questions = [f"question-{number}" for number in range(3)]
    for number, request_id in enumerate(questions):
        add(order, request_id, SHARED + [5] * 32 + [200 + number] * 16, 4096, is_known=False)
    end(order, questions[0], 2)
    end(order, ids[0], 1000)
    assert estimates(order, ids[1:]) == [quantized(1000)] * 2
    assert estimates(order, questions[1:]) == [2, 2]


def test_many_branches_hear_of_an_estimate_a_few_at_a_time() -> None:
    order, count = make_order(), 5 * MAX_TOLD
    for number in range(count):
        chats(order, 2, SHARED + [100 + number] * 16, first=2 * number)
    first, last = "chat-0", f"chat-{2 * count - 1}"
    end(order, first, 2000)
    assert estimates(order, [last]) == [PRIOR_TOKENS]
    for number in range(2, 14, 2):
        end(order, f"chat-{number}", 2000)
    assert estimates(order, [last]) == [quantized(2000)]
    order.check_integrity()


def test_samples_run_first_and_nobody_waits_for_them() -> None:
    order = make_order(sample_share=0.1)
    for number in range(1000):
        add(order, f"r-{number}", [number % 7] * 32 + [number] * 32, 4096, is_known=False)
        add(order, f"known-{number}", [number % 7] * 32 + [5000 + number] * 32, 4096)
    shown = read(order)
    samples = [request_id for request_id in shown if order._tree.leaf(request_id).is_sample]
    assert 60 < len(samples) < 140 and shown[: len(samples)] == samples
    prefixes = [order._tree.leaf(request_id).prompt[:128] for request_id in samples]
    assert len([1 for one, other in pairwise(prefixes) if one != other]) == 6, "each prefix once"
    for request_id in samples:
        order.take(request_id, "executor-0")
    assert read(order)[0] in shown[len(samples) :]
    order.give_back(samples[3])
    assert read(order)[0] == samples[3]


def test_what_was_learnt_outlives_the_order() -> None:
    order = make_order()
    asked, told = chats(order, 4, SHARED + [1] * 16), chats(order, 4, SHARED + [2] * 16, first=10)
    end(order, asked[0], 800)
    end(order, told[0], 20)
    errors = [(800 - PRIOR_TOKENS) / 800, (quantized(800) - 20) / 20]
    assert order.details()["output_length_error"] == pytest.approx(sum(errors) / 2)
    again = make_order()
    again.recall(order.remember())
    for request_id in [*asked[1:], *told[1:]]:
        leaf = order._tree.leaf(request_id)
        again.add(leaf.request, leaf.prompt)
    ids = [*asked[1:], *told[1:]]
    assert estimates(again, ids) == estimates(order, ids) == [quantized(800)] * 3 + [quantized(20)] * 3
    assert again.remember() == order.remember()
    again.check_integrity()


def test_an_estimate_is_looked_back_on_as_it_was_when_its_request_was_taken() -> None:
    """One that waits again is expected to be as what has ended since."""
    order = make_order()
    first, runs, comes_back = chats(order, 3, SHARED)
    order.take(runs)
    order.take(comes_back)
    order.give_back(comes_back)
    end(order, first, 800)
    order.learn(runs, 100)
    order.learn(comes_back, 100)
    of_both = quantized((800 + 100) // 2)
    errors = [(800 - PRIOR_TOKENS) / 800, (PRIOR_TOKENS - 100) / 100, (of_both - 100) / 100]
    assert order.details()["output_length_error"] == pytest.approx(sum(errors) / 3)


def test_details_tell_what_waits() -> None:
    order = make_order(threshold=0.0)
    kinds = {"dense": (640, 1, 3), "light": (16, 1000, 2)}
    for number, (name, (num_prompt, num_output, count)) in enumerate(kinds.items()):
        for each in range(count):
            add(order, f"{name}-{each}", [100 * number + each + 1] * num_prompt, num_output)
    loads = {name: request_load(prompt, prompt, output) for name, (prompt, output, _) in kinds.items()}
    tokens = {name: kinds[name][2] * load.tokens for name, load in loads.items()}
    details = order.details()
    assert details["waiting_tokens"] == sum(tokens.values())
    assert details["waiting_reads"] == sum(kinds[name][2] * load.double_reads for name, load in loads.items()) / 2
    assert details["compute_share"] == pytest.approx(tokens["dense"] / sum(tokens.values()))
    assert details["units"] == order._tree.num_units > 1
    for name, (_, _, count) in kinds.items():
        for each in range(count):
            order.take(f"{name}-{each}")
    assert order.details() == {"output_lengths": 0.0, "units": 0.0}


def test_every_request_of_unknown_length_may_be_a_sample() -> None:
    order = make_order(sample_share=1.0)
    ids = chats(order, 5, SHARED)
    add(order, "known", SHARED, 10)
    assert all(order._tree.leaf(each).is_sample for each in ids) and not order._tree.leaf("known").is_sample


def test_a_damaged_tree_is_found() -> None:
    order = make_order()
    chats(order, 2, SHARED)
    order._tree.root.num_waiting_below += 1
    order._tree.num_waiting += 1
    with pytest.raises(AssertionError):
        order.check_integrity()


def test_memory_of_lengths_is_bounded() -> None:
    order = make_order()
    for number in range(MAX_PREFIXES + 500):
        chats(order, 2, [10_000 + number] * 16, first=2 * number)
        end(order, f"chat-{2 * number}", 50)
        order.remove(f"chat-{2 * number + 1}")
    assert order.details()["output_lengths"] == MAX_PREFIXES
    assert len(order.remember()) < 200_000


@pytest.mark.parametrize("data", [b"x", b"\x93\xa1x\x10\x90", OutputLengths(16).remember() + b"y"])
def test_bytes_of_others_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"output lengths"):
        make_order().recall(data)
    order = make_order(block_size=4)
    end(order, chats(order, 1, [])[0], 7)
    with pytest.raises(ValueError, match="blocks of 4 tokens"):
        make_order().recall(order.remember())


def test_bad_knobs_say_what_they_may_be() -> None:
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="sample_share must be from 0 to 1"):
            make_order(sample_share=share)
    for threshold in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="split_threshold must not be negative"):
            make_order(threshold)
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        make_order(block_size=0)


def mixed(rng: random.Random, count: int) -> list[tuple[str, list[int], int]]:
    """Chats, few-shot questions of 40 subjects, and videos, each kind with a system prompt: (id, prompt, length)."""
    systems = {kind: rng.choices(range(49_152), k=40) for kind in ("chat", "question", "video")}
    subjects = [rng.choices(range(49_152), k=450) for _ in range(40)]
    made = []
    for number in range(count):
        kind = rng.choices(list(systems), (50, 45, 5))[0]
        prefix = systems[kind] + (rng.choice(subjects) if kind == "question" else [])
        most = {"chat": rng.randrange(20, 600), "question": 2, "video": rng.randrange(2000, 6000)}[kind]
        made.append((f"{kind}-{number}", prefix + rng.choices(range(49_152), k=rng.randrange(60, 260)), most))
    return made


@pytest.mark.parametrize("is_known", [True, False])
def test_prefixes_are_shared_as_depth_first(is_known: bool) -> None:
    """At least 97% of it over a cache with little more room than what runs, in which order of arrival shares half."""
    requests = mixed(random.Random(3), 2000)
    orders: list[OfflineOrder] = [PsmOrder(16), make_order(sample_share=0.01), FcfsOrder()]
    shared = []
    for order in orders:
        for request_id, prompt, most in requests:
            add(order, request_id, prompt, most, is_known)
        shared.append(num_cached_tokens(order, {each[0]: each[1] for each in requests}, {r[0]: r[2] for r in requests}))
    assert shared[1] >= 0.97 * shared[0]
    assert shared[2] < 0.6 * shared[0]


def num_cached_tokens(order: OfflineOrder, prompts: dict[str, list[int]], outputs: dict[str, int]) -> int:
    """All are served, each in the room of those that have run longest, for as many steps as it has output."""
    cache = BlockPool(ROOM_BLOCKS * 6 // 5, 16)
    running: dict[str, Request] = {}
    num_cached = 0
    while order.num_waiting:
        view = OfflineView("executor-0", running_offline=list(running.values()))
        request = next(order.in_order(view))
        request_id, prompt = request.request_id, prompts[request.request_id]
        total = len(prompt) + outputs[request_id]
        while sum(each.max_total_tokens for each in running.values()) + total > ROOM_BLOCKS * 16:
            shortest = min(running, key=outputs.__getitem__)
            steps = outputs[shortest]
            for each in list(running):
                outputs[each] -= steps
                if not outputs[each]:
                    cache.free(each)
                    order.learn(each, running.pop(each).max_total_tokens - len(prompts[each]))
                    order.remove(each)
        order.take(request_id, "executor-0")
        hashes = hash_chain(prompt, 16)
        num_cached += cache.start(request_id, Kind.OFFLINE, len(prompt), hashes)
        assert cache.grow(request_id, len(prompt))
        cache.commit(request_id, len(prompt), hashes)
        running[request_id] = Request(request_id, Kind.OFFLINE, len(prompt), total, len(prompt), -(-total // 16))
    return num_cached


def test_readers_begin_in_parts_of_equal_compute_and_the_roots_density() -> None:
    """Section 6.1, of four readers over units of many densities."""
    rng, order = random.Random(8), make_order()
    for number in range(6000):
        add(order, f"r-{number}", [number] * 300, rng.choice([2, 5, 20, 50, 200, 600, 2000]))
    readers, parts, root = [f"executor-{n}" for n in range(4)], order._readers._parts, order._tree.root
    for reader in readers:
        order.take(read(order, OfflineView(reader))[0], reader)
    ends = [*(parts.start(reader) for reader in readers)]
    assert ends[0] == (None, None)
    lows, highs = [0, *(low or 0 for low, _ in ends[1:])], [1 << 99, *(high or 0 for _, high in ends[1:])]
    assert lows == sorted(lows) and highs == sorted(highs, reverse=True) and lows[-1] < highs[-1]
    lows.append(highs[-1])  # the last part is all that is between
    for index in range(4):
        mine = [*root.in_line([""], low=lows[index], high=lows[index + 1])]
        mine += root.in_line([""], low=highs[index + 1], high=highs[index]) if index < 3 else ()
        tokens = sum(unit.load.tokens for unit in mine)
        reads = sum(unit.load.double_reads for unit in mine)
        assert tokens == pytest.approx(root.tokens / 4, rel=0.03)
        assert reads == pytest.approx(root.double_reads / 4, rel=0.03)


def test_a_reader_goes_on_where_it_took_from_and_others_come_there_last() -> None:
    """Of four prefixes that are denser than the whole, one request is due from the left; the rest comes from the right,
    after all of the fifth, which is not."""
    order = make_order(0.0)
    for prefix, most in enumerate((2, 4, 8, 16, 3000)):
        for number in range(6 if most < 3000 else 20):
            add(order, f"{prefix}-{number}", [prefix] * 64 + [100 * prefix + number] * 16, most)

    def prefixes(view: OfflineView) -> str:
        return "".join(dict.fromkeys(request_id[0] for request_id in read(order, view)))

    assert prefixes(NOBODY) == "04321"
    order.take("2-0", "executor-0")
    assert (prefixes(OfflineView("executor-0")), prefixes(OfflineView("executor-1"))) == ("24310", "04312")
    order.take("3-0", "executor-1")
    assert (prefixes(OfflineView("executor-0")), prefixes(OfflineView("executor-1"))) == ("24103", "34102")
    order.leave("executor-0")
    order.leave("executor-1")
    assert prefixes(OfflineView("executor-2")) == "04321"


def test_a_place_within_a_level_has_its_share_of_the_units_there_ahead_of_it() -> None:
    """Of those of the group that has most."""
    rng, order = random.Random(1), make_order()
    for number in range(300):
        group = "x" if number % 7 else "y"
        add(order, f"r-{number}", [number] * 100, rng.choice([5, 50, 500]), group=group)
    tree = order._tree
    ranks = [unit.rank for unit in tree.root.in_line(["x"])]
    assert len(tree.levels) == 3
    for level, _ in tree.levels:
        num_before, num_here = (sum(compare(level_of(rank), level) for rank in ranks) for compare in (lt, eq))
        for share in (0.0, 0.3, 0.5, 1.0):
            place = tree.rank_at(level, share)
            assert sum(rank < place for rank in ranks) == num_before + int(num_here * share)


def test_each_reader_has_its_own_part_and_then_what_is_left() -> None:
    order = make_order()
    for number in range(400):
        add(order, f"r-{number}", [number] * 300, 2 if number % 2 else 1000)
    for reader in READERS:
        order.take(read(order, OfflineView(reader))[0], reader)
    firsts = [read(order, OfflineView(reader))[:40] for reader in READERS]
    assert not set(firsts[0]) & set(firsts[1]) and not set(firsts[1]) & set(firsts[2])
    for reader in READERS[1:]:
        order.leave(reader)
    assert read(order, OfflineView(READERS[0])) == read(order)
    assert len(read(order)) == 397


def test_nothing_is_lost_or_done_twice_while_readers_come_and_go() -> None:
    rng, order = random.Random(4), make_order(sample_share=0.02)
    for request_id, prompt, most in mixed(rng, 600):
        add(order, request_id, prompt, most, rng.random() < 0.5)
    everything, done = set(read(order)), list[str]()
    running: dict[str, list[str]] = {}
    while order.num_waiting:
        reader = f"executor-{rng.randrange(5)}"
        held = running.setdefault(reader, [])
        for request in list(islice(order.in_order(OfflineView(reader)), rng.randrange(1, 6))):
            order.take(request.request_id, reader)
            held.append(request.request_id)
        if rng.random() < 0.3:
            for request_id in held:
                order.remove(request_id)
            done += held
            held.clear()
        elif rng.random() < 0.1:
            order.leave(reader)
            for request_id in running.pop(reader):
                order.give_back(request_id)
        if rng.random() < 0.1:
            order.check_integrity()
    done += [request_id for held in running.values() for request_id in held]
    assert len(done) == len(everything) and set(done) == everything


def enter(order: OfflineOrder, view: OfflineView, most: int = 1 << 30) -> list[str]:
    """As a step does it: who is shown enters it, but for those of more tokens than so many, which are passed over."""
    entered = []
    for request in order.in_order(view):
        if request.max_total_tokens <= most:
            view.features.add_scheduled(request.num_tokens, 0)
            entered.append(request.request_id)
    return entered


def test_what_has_yet_to_grow_keeps_its_room() -> None:
    """1,000 blocks of 16 tokens, 16,000: of requests of 160 tokens and 3,000 more five that begin together; others once
    these have come so far that they have ended before the others are long."""
    order = make_order()
    for number in range(40):
        add(order, f"r-{number}", [number] * 160, 3000)
    assert len(enter(order, OfflineView("executor-0", num_free_blocks=1000))) == 5
    running = []
    for request_id in read(order)[:5]:
        order.take(request_id, "executor-0")
        running.append(Request(request_id, Kind.OFFLINE, 161, 3160, 160, 10))
    assert len(enter(order, OfflineView("executor-0", num_free_blocks=950, running_offline=running))) == 0
    for request in running[:3]:
        request.num_tokens, request.num_computed_tokens, request.num_blocks = 2560, 2559, 160
    assert len(enter(order, OfflineView("executor-0", num_free_blocks=500, running_offline=running))) == 3
    for request in running:
        request.num_tokens, request.num_computed_tokens, request.num_blocks = 3101, 3100, 194
    assert enter(order, OfflineView("executor-0", num_free_blocks=30, running_offline=running)) == []
    lone = make_order()
    add(lone, "larger than all", [1] * 16_000, 3000)
    assert read(lone, OfflineView("executor-0", num_free_blocks=1000)) == ["larger than all"]


def test_who_enters_with_its_prompt_in_the_cache_keeps_its_room_too() -> None:
    """As above; each comes into the step as a decode."""
    order = make_order()
    for number in range(40):
        add(order, f"r-{number}", [number] * 160, 3000)
    view, entered = OfflineView("executor-0", num_free_blocks=1000), 0
    for request in order.in_order(view):
        view.features.add_decode(request.num_tokens)
        entered += 1
    assert entered == 5


def test_what_is_memory_bound_enters_as_far_as_its_part_of_the_room_goes() -> None:
    """In the step in which all of it is longest: M_R = M (rho_L - rho) / (rho_L - rho_R)."""
    left, right = request_load(512, 512, 64), request_load(100, 100, 900)
    order = make_order()
    for number in range(200):
        add(order, f"left-{number}", [number] * 512, 64)
        if number < 100:
            add(order, f"right-{number}", [1000 + number] * 100, 900)
    rho = order._tree.root.load.density
    part = (left.density - rho) / (left.density - right.density)
    assert 0.2 < part < 0.9
    entered = enter(order, OfflineView("executor-0", num_free_blocks=1000))
    assert sum(each.startswith("right") for each in entered) == int(part * 16_000 / 1000)


@pytest.mark.parametrize("num_free_blocks", [0, 1000])
def test_what_runs_there_of_others_does_not_count(num_free_blocks: int) -> None:
    """Nor what has been given back: whatever an executor says."""
    order = three_densities()
    stranger = Request("stranger", Kind.OFFLINE, 100, 200, 99, 7)
    back = Request("x-2", Kind.OFFLINE, 10_001, 10_002, 10_000, 7)
    views = [
        OfflineView("executor-0", num_free_blocks=num_free_blocks, running_offline=running)
        for running in ([], [stranger, back])
    ]
    assert read(order, views[0], Turn(["x", "y"])) == read(order, views[1], Turn(["x", "y"])) != []


@pytest.mark.parametrize("num_running", [0, 5])
def test_nobody_waits_behind_what_the_executor_can_never_hold(num_running: int) -> None:
    order = make_order()
    for number in range(20):
        add(order, f"never-{number}", [number] * 160, 20_000)
        add(order, f"r-{number}", [100 + number] * 160, 3000)
    running = [Request(f"r-{number}", Kind.OFFLINE, 161, 3160, 160, 10) for number in range(num_running)]
    for request in running:
        order.take(request.request_id, "executor-0")
    view = OfflineView("executor-0", num_free_blocks=1000 - 10 * num_running, running_offline=running)
    assert len(enter(order, view, most=16_000)) == 5 - num_running


def test_nobody_takes_the_room_for_which_another_client_waits() -> None:
    shares = {"long": Share("ann"), "short": Share("ben")}
    order = FairShare(make_order(), lambda batch_id: shares[batch_id], slack_tokens=1)
    for line in range(10):
        order.add(make(f"long.{line}", 160, 3000), pack_tokens([line] * 160))
        order.add(make(f"short.{line}", 160, 2), pack_tokens([100 + line] * 160))
    order.take("long.0", "executor-0")
    running = [Request("long.0", Kind.OFFLINE, 1601, 3160, 1600, 101)]
    view = OfflineView("executor-0", num_free_blocks=120, running_offline=running)
    shown = [request.request_id for request in order.in_order(view)]
    assert shown and all(request_id.startswith("short") for request_id in shown), "until ben has had as much as ann"
    for request_id in shown:
        order.take(request_id, "executor-0")
        order.remove(request_id)
    for line in range(10, 40):
        order.add(make(f"short.{line}", 160, 2), pack_tokens([100 + line] * 160))
    served = 0
    while shown := [request.request_id for request in order.in_order(view)]:
        order.take(shown[0], "executor-0")
        order.remove(shown[0])
        served += 1
    assert served < 20 and order.num_waiting > 20
    assert next(order.in_order(OfflineView("executor-0", num_free_blocks=1000))).request_id.startswith("long")
    order.check_integrity()
