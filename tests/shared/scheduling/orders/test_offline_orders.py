"""Prefix trie and the orders against naive models, and what the orders promise."""

import random
from itertools import chain, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.orders.offline.order import OfflineOrder, Turn
from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.orders.offline.psm import PsmOrder
from shared.scheduling.orders.offline.psm_fair import PsmFairOrder
from shared.scheduling.orders.offline.registry import OFFLINE_ORDERS, OfflineOrderKnobs, make_offline_order
from shared.scheduling.orders.offline.view import OfflineView
from shared.scheduling.packed_prompt import TOKEN_BYTES, pack_tokens, unpack_tokens
from shared.scheduling.strategy import PRESETS
from tests.shared.scheduling.orders.naive_orders import NaiveOrder, make_waiting, num_common_blocks, numbered

PROMPTS = st.lists(st.integers(0, 2), max_size=12)
READERS = ("executor-0", "executor-1", "executor-2")
GROUPS = ("x", "y", "z")
LONG_PROMPTS = st.lists(st.sampled_from([[0] * 40, [1] * 40, [2] * 3]), max_size=4).map(lambda runs: list(chain(*runs)))


def read(order: OfflineOrder, turn: Turn | None = None) -> list[str]:
    return [request.request_id for request in order.in_order(turn=turn)]


class OrderMachine(RuleBasedStateMachine):
    """All three orders beside one naive model, through arrivals, starts, losses and ends."""

    block_size = 1

    @initialize(utility_ratio=st.sampled_from([0.0, 0.3, 0.8, 1.0]), seed=st.integers(0, 999))
    def start(self, utility_ratio: float, seed: int) -> None:
        block_size = self.block_size
        self.naive = NaiveOrder(block_size)
        self.ids = numbered("batch_1")
        self.utility_ratio = utility_ratio
        self.fcfs, self.psm = FcfsOrder(), PsmOrder(block_size)
        self.fair = PsmFairOrder(block_size, utility_ratio, iter(random.Random(seed).random, None))
        self.orders: list[OfflineOrder] = [self.fcfs, self.psm, self.fair]
        self.numbers = iter(random.Random(seed).random, None)
        self.draws: list[float] = []
        self.group_of: dict[str, str] = {}
        self.last: dict[str, list[int]] = {}  # reader to the prompt that it took last

    def some(self, ids: list[str], index: int) -> str:
        return ids[index % len(ids)]

    def read_fair(self) -> list[str]:
        """What the fair order should be; as many draws stand as were ever read and not used up."""
        self.draws += islice(self.numbers, max(0, len(self.naive.waiting()) + 1 - len(self.draws)))
        return self.naive.fair(self.utility_ratio, self.draws)

    @rule(prompt=PROMPTS | LONG_PROMPTS, copies=st.integers(1, 3), group=st.sampled_from(GROUPS))
    def add(self, prompt: list[int], copies: int, group: str) -> None:
        for request_id in islice(self.ids, copies):
            self.naive.add(request_id, prompt)
            for order in self.orders:
                order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt), group)
            self.group_of[request_id] = group

    @precondition(lambda self: self.naive.waiting())
    @rule(index=st.integers(0, 3), reader=st.sampled_from([None, *READERS]))
    def take(self, index: int, reader: str | None) -> None:
        """The next one mostly, as a plan does; sometimes any, as when an executor is recognized."""
        request_id = self.read_fair()[0] if index else self.some(self.naive.waiting(), index + 5)
        self.naive.held[request_id] = None
        del self.draws[0]
        if reader is not None:
            self.last[reader] = self.naive.prompts[request_id]
        for order in self.orders:
            order.take(request_id, reader)

    @rule(reader=st.sampled_from(READERS))
    def leave(self, reader: str) -> None:
        self.last.pop(reader, None)
        for order in self.orders:
            order.leave(reader)

    @precondition(lambda self: self.naive.held)
    @rule(index=st.integers(0, 50))
    def give_back(self, index: int) -> None:
        request_id = self.some(list(self.naive.held), index)
        del self.naive.held[request_id]
        for order in self.orders:
            order.give_back(request_id)

    @precondition(lambda self: self.naive.prompts)
    @rule(index=st.integers(0, 50))
    def remove(self, index: int) -> None:
        request_id = self.some(list(self.naive.prompts), index)
        self.naive.remove(request_id)
        for order in self.orders:
            order.remove(request_id)

    @invariant()
    def orders_agree(self) -> None:
        if not hasattr(self, "naive"):
            return
        expected = [self.naive.waiting(), self.naive.depth_first(), self.read_fair()]
        for order, ids in zip(self.orders, expected, strict=True):
            order.check_integrity()
            assert [request.request_id for request in order.in_order()] == ids
            assert order.num_waiting == len(ids)
        reader = READERS[len(self.naive.prompts) % len(READERS)]
        others = [prompt for other, prompt in self.last.items() if other != reader]
        by_prefix = [request.request_id for request in self.psm.in_order(OfflineView(reader))]
        assert by_prefix == self.naive.depth_first(others)
        assert sorted(request.request_id for request in self.fair.in_order(OfflineView(reader))) == sorted(expected[0])

    @invariant()
    def turns_are_parts_of_the_order(self) -> None:
        if not hasattr(self, "naive"):
            return
        groups = dict.fromkeys(GROUPS[: len(self.naive.prompts) % 3 + 1])
        for order, naive in ((self.fcfs, self.naive.waiting()), (self.psm, self.naive.depth_first())):
            of_groups = [request_id for request_id in naive if self.group_of[request_id] in groups]
            assert read(order, Turn(groups)) == of_groups
            assert read(order, Turn(groups, set(of_groups[::2]))) == of_groups[1::2]
        every, whole = dict.fromkeys(GROUPS), read(self.fair)
        assert read(self.fair, Turn(every)) == whole
        assert read(self.fair, Turn(every, set(whole[:3]))) == whole[3:]
        assert sorted(read(self.fair, Turn(groups))) == sorted(read(self.fcfs, Turn(groups)))

    @invariant()
    def whose_turn_ends_is_not_shown(self) -> None:
        if not hasattr(self, "naive"):
            return
        for order in self.orders:
            groups, shown = dict.fromkeys(GROUPS), []
            for request in order.in_order(turn=Turn(groups)):
                group = self.group_of[request.request_id]
                shown.append(group)
                assert group in groups
                if shown.count(group) == 2:
                    del groups[group]
            waiting = [self.group_of[request_id] for request_id in self.naive.waiting()]
            assert sorted(shown) == sorted(group for group in GROUPS for _ in range(min(2, waiting.count(group))))


class PairsMachine(OrderMachine):
    block_size = 2


class LargeBlocksMachine(OrderMachine):
    block_size = 4


TestOrders = OrderMachine.TestCase
TestOrdersByPairs = PairsMachine.TestCase
TestOrdersByLargeBlocks = LargeBlocksMachine.TestCase
TestOrders.settings = TestOrdersByPairs.settings = TestOrdersByLargeBlocks.settings = settings(
    max_examples=10, stateful_step_count=60
)


@given(
    block_size=st.integers(1, 4),
    prompts=st.lists(PROMPTS | LONG_PROMPTS, max_size=10),
    changes=st.lists(st.tuples(st.sampled_from(["hold", "remove"]), st.integers(0, 20)), max_size=8),
    avoiding=st.lists(PROMPTS, max_size=2),
)
def test_a_trie_is_as_one_that_is_walked_anew(
    block_size: int, prompts: list[list[int]], changes: list[tuple[str, int]], avoiding: list[list[int]]
) -> None:
    """And from each of its parts on, what is there comes first, then what is near."""
    trie, naive = PrefixTrie(block_size), NaiveOrder(block_size)
    for number, prompt in enumerate(prompts):
        naive.add(str(number), prompt)
        trie.add(make_waiting(str(number), len(prompt)), pack_tokens(prompt), GROUPS[number % 2])
    for change, index in changes:
        if waiting := naive.waiting():
            request_id = waiting[index % len(waiting)]
            if change == "hold":
                naive.held[request_id] = None
                assert trie.hold(request_id) == pack_tokens(naive.prompts[request_id])
            else:
                naive.remove(request_id)
                trie.remove(request_id)
    trie.check_integrity()
    assert [each.request_id for each in trie.depth_first(map(pack_tokens, avoiding))] == naive.depth_first(avoiding)
    for group in GROUPS[:2]:
        of_group = [each for each in naive.depth_first() if GROUPS[int(each) % 2] == group]
        turn = Turn([group], set(of_group[1::3]))
        assert [each.request_id for each in trie.depth_first(turn=turn)] == [
            each for each in of_group if each not in turn.passed
        ]
    for prompt in prompts:
        common = {each: num_common_blocks(prompt, naive.prompts[each], block_size) for each in naive.waiting()}
        most = max(common.values(), default=0)
        near = [each for each in naive.depth_first() if common[each] == most]
        node = trie.deepest_waiting(pack_tokens(prompt))
        assert (node is None) is (most == 0)
        if node is not None:
            assert [each.request_id for each in trie.below(node)] == near
            outward = [each.request_id for each in trie.outward(node)]
            assert outward[: len(near)] == near and sorted(outward) == sorted(common)
            shared = [num_common_blocks(naive.prompts[near[0]], naive.prompts[each], block_size) for each in outward]
            assert shared[len(near) :] == sorted(shared[len(near) :], reverse=True)


def test_a_trie_under_thousands_of_operations() -> None:
    rng = random.Random(3)
    trie, naive, ids = PrefixTrie(4), NaiveOrder(4), numbered("r")
    shared = [[rng.randrange(3) for _ in range(rng.randrange(60))] for _ in range(12)]
    for operation in range(6000):
        known = list(naive.prompts)
        if rng.random() < (0.6 if operation < 3000 else 0.4) or not known:
            request_id, start = next(ids), rng.choice(shared)
            prompt = start[: rng.randrange(len(start) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(9))]
            naive.add(request_id, prompt)
            trie.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt), rng.choice(GROUPS))
        else:
            request_id = rng.choice(known)
            naive.remove(request_id)
            trie.remove(request_id)
        if operation % 20 == 0:
            trie.check_integrity()
            assert [request.request_id for request in trie.depth_first()] == naive.depth_first()
    for request_id in list(naive.prompts):
        trie.remove(request_id)
    trie.check_integrity()
    assert trie.num_waiting == 0 and list(trie.depth_first()) == []


def test_the_papers_example() -> None:
    """HyGen section 4.3: What is ML, How to code, What is AI, How to debug."""
    order = PsmOrder(block_size=2)
    for name, prompt in (("ML", [1, 2, 3]), ("code", [4, 5, 6]), ("AI", [1, 2, 7]), ("debug", [4, 5, 8])):
        order.add(make_waiting(name, 3), pack_tokens(prompt))
    assert [request.request_id for request in order.in_order()] == ["ML", "AI", "code", "debug"]


def lone_turn(utility_ratio: float, num_older: int, seed: int, num_turns: int) -> tuple[int | None, list[float]]:
    """The turn in which a request that shares nothing is taken, while at each turn two come that share their prompt
    and one is taken; and the numbers that were drawn, one a turn."""
    drawn: list[float] = []
    rng = random.Random(seed)

    def draw() -> float:
        drawn.append(rng.random())
        return drawn[-1]

    order, ids = PsmFairOrder(4, utility_ratio, iter(draw, None)), numbered("sharing")

    def add_sharing() -> None:
        order.add(make_waiting(request_id := next(ids), 9), pack_tokens([7] * 8 + [int(request_id[8:])]))

    for _ in range(num_older):
        add_sharing()
    order.add(make_waiting("lone", 9), pack_tokens([9] * 9))
    for turn in range(num_turns):
        add_sharing()
        add_sharing()
        request_id = next(order.in_order()).request_id
        order.take(request_id)
        order.remove(request_id)
        if request_id == "lone":
            return turn, drawn
    return None, drawn


@settings(max_examples=60)
@given(utility_ratio=st.floats(0.0, 0.95), num_older=st.integers(1, 20), seed=st.integers(0, 10_000))
def test_a_stream_of_sharing_requests_never_starves_a_lone_one(utility_ratio: float, num_older: int, seed: int) -> None:
    turn, drawn = lone_turn(utility_ratio, num_older, seed, num_turns=2500)
    assert turn is not None and len(drawn) == turn + 1
    by_age = sum(number >= utility_ratio for number in drawn)
    assert 1 <= by_age <= num_older + 1  # each turn by age serves one of the older requests, or the lone one


def test_without_any_share_by_age_it_does_starve() -> None:
    assert lone_turn(1.0, num_older=1, seed=0, num_turns=1000)[0] is None


def test_a_stale_request_that_does_not_fit_yet_is_not_passed_over() -> None:
    order = PsmFairOrder(4, 0.5, iter([0.9, 0.1, 0.1, 0.1]))
    order.add(make_waiting("stale", 100), pack_tokens(list(range(100))))
    for number in range(3):
        order.add(make_waiting(f"later-{number}", 8), pack_tokens([1] * 8))
    for _ in range(20):  # plans that break at the first request
        assert next(order.in_order()).request_id == "stale"


@pytest.mark.parametrize("utility_ratio", [0.0, 1.0])
def test_those_whose_turn_it_is_are_shown_by_age_and_by_prefix(utility_ratio: float) -> None:
    order = PsmFairOrder(2, utility_ratio, iter(lambda: 0.5, None))
    for number, (prefix, group) in enumerate(((1, "x"), (2, "x"), (1, "y"), (1, "x"))):
        order.add(make_waiting(str(number), 3), pack_tokens([prefix, prefix, number]), group)
    assert read(order, Turn(["x"])) == [*("013" if utility_ratio == 0.0 else "031")]
    assert read(order, Turn(["y"])) == ["2"]
    assert read(order, Turn(["x", "y"])) == read(order)


@pytest.mark.parametrize(("drawn", "shown"), [(0.5, "1-1"), (0.4, "2-0")])
def test_who_is_drawn_by_its_age_does_not_lead_its_reader_to_its_prompt(drawn: float, shown: str) -> None:
    """So another reader need not keep away from there. A draw is by prefix below the ratio, and by age from it on."""
    order = PsmFairOrder(2, 0.5, iter([drawn, 0.1, 0.1, 0.1]))
    for prefix, number in ((1, 0), (1, 1), (2, 0)):
        order.add(make_waiting(f"{prefix}-{number}", 3), pack_tokens([prefix, prefix, number]))
    assert next(order.in_order(OfflineView("executor-0"))).request_id == "1-0"
    order.take("1-0", "executor-0")
    assert next(order.in_order(OfflineView("executor-1"))).request_id == shown
    order.leave("executor-0")
    assert next(order.in_order(OfflineView("executor-1"))).request_id == "1-1"


ACTIONS = st.tuples(st.sampled_from(["add", "add", "take", "give back", "remove"]), PROMPTS, st.integers(0, 9))


@settings(max_examples=50)
@given(
    utility_ratio=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 99),
    actions=st.lists(ACTIONS, min_size=5, max_size=20),
)
def test_the_fair_order_is_the_algorithms_whatever_comes_and_goes(
    utility_ratio: float, seed: int, actions: list[tuple[str, list[int], int]]
) -> None:
    naive, order, ids = (
        NaiveOrder(2),
        PsmFairOrder(2, utility_ratio, iter(random.Random(seed).random, None)),
        numbered("r"),
    )
    numbers, draws, shown = iter(random.Random(seed).random, None), list[float](), list[str]()
    group_of: dict[str, str] = {}
    for action, prompt, index in actions:
        if action == "add":
            request_id = next(ids)
            group_of[request_id] = GROUPS[index % 2]
            naive.add(request_id, prompt)
            order.add(make_waiting(request_id, len(prompt)), pack_tokens(prompt), group_of[request_id])
        elif action == "take" and shown:
            naive.held[shown[0]] = None
            order.take(shown[0])
            del draws[0]
        elif action == "give back" and naive.held:
            request_id = list(naive.held)[index % len(naive.held)]
            del naive.held[request_id]
            order.give_back(request_id)
        elif action == "remove" and naive.prompts:
            request_id = list(naive.prompts)[index % len(naive.prompts)]
            naive.remove(request_id)
            order.remove(request_id)
        draws += islice(numbers, max(0, len(naive.waiting()) + 1 - len(draws)))
        shown = naive.fair(utility_ratio, draws)
        order.check_integrity()
        assert read(order) == shown and order.num_waiting == len(shown)
    for index, group in enumerate(GROUPS[:2]):
        of_group = [each for each in shown if group_of[each] == group]
        passed = set(of_group[:index])
        assert sorted(read(order, Turn([group], passed))) == sorted(each for each in of_group if each not in passed)
    assert read(order, Turn(GROUPS, set(shown[:2]))) == shown[2:]


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_an_id_waits_once(name: str) -> None:
    order = make_offline_order(name, OfflineOrderKnobs(utility_ratio=0.5), iter(random.Random(0).random, None))
    order.add(make_waiting("a", 1), pack_tokens([1]))
    with pytest.raises(ValueError, match="request a is here already"):
        order.add(make_waiting("a", 2), pack_tokens([1, 2]))
    order.check_integrity()
    assert [request.num_tokens for request in order.in_order()] == [1]
    for act in (order.take, order.give_back, order.remove):
        with pytest.raises(KeyError, match="b"):
            act("b")


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_an_order_remembers_nothing_before_anything_has_ended(name: str) -> None:
    order = make_offline_order(name, OfflineOrderKnobs(), iter(random.Random(0).random, None))
    assert order.remember() == b""
    order.recall(b"")
    with pytest.raises(ValueError, match="bytes"):
        order.recall(b"of something else")
    assert all(isinstance(value, float) for value in order.details().values())


def test_presets_name_orders_that_exist() -> None:
    assert {preset.offline_order for preset in PRESETS.values()} <= set(OFFLINE_ORDERS)
    assert {name: PRESETS[name].offline_order for name in ("hygen", "sarathi++", "online-only")} == {
        "hygen": "psm-fair",
        "sarathi++": "fcfs",
        "online-only": "none",
    }


def test_bad_input_says_what_to_write() -> None:
    numbers = iter(random.Random(0).random, None)
    with pytest.raises(ValueError, match="unknown offline order 'lifo'; known: fcfs, psm, psm-fair"):
        make_offline_order("lifo", OfflineOrderKnobs(), numbers)
    for ratio in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"utility_ratio must be from 0 to 1, not {ratio}"):
            make_offline_order("psm-fair", OfflineOrderKnobs(utility_ratio=ratio), numbers)
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        PrefixTrie(0)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_packing_loses_nothing(token_ids: list[int]) -> None:
    assert unpack_tokens(pack_tokens(token_ids)) == token_ids
    assert len(pack_tokens(token_ids)) == TOKEN_BYTES * len(token_ids)


@pytest.mark.parametrize("name", ["psm", "psm-fair", "kv-aware", "blend"])
def test_executors_share_the_work_and_no_group_is_torn_while_another_is_whole(name: str) -> None:
    """Eight groups of ten requests; at each turn an executor takes as many as its slack allows."""
    rng = random.Random(5)
    order = make_offline_order(name, OfflineOrderKnobs(utility_ratio=1.0), iter(rng.random, None))
    group_of: dict[str, int] = {}
    for number in range(80):
        request_id, group = f"batch_1.{number}", rng.randrange(8)
        group_of[request_id] = group
        order.add(make_waiting(request_id, 100), pack_tokens([7] * 48 + [group] * 32 + [number] * 20))
    touched: dict[int, dict[str, None]] = {}
    while order.num_waiting:
        reader = rng.choice(READERS)
        for request in list(islice(order.in_order(OfflineView(reader)), rng.randrange(1, 4))):
            group = group_of[request.request_id]
            torn = bool(touched.get(group)) and reader not in touched[group]
            assert not torn or len(touched) == 8, "other groups were whole"
            touched.setdefault(group, {})[reader] = None
            order.take(request.request_id, reader)
    assert sum(len(readers) for readers in touched.values()) <= 8 + 2 * len(READERS)
    assert {reader for readers in touched.values() for reader in readers} == set(READERS)
