"""The parts of the resource-aware prefix tree by themselves: what is learnt, what runs, where readers begin."""

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.orders.offline.density.batch import WORTH_BLENDING, RunningBatch
from shared.scheduling.orders.offline.density.bearings import MAX_PATHS, Readers
from shared.scheduling.orders.offline.density.lengths import MAX_COUNTED, MAX_PREFIXES, OutputLengths, quantized
from shared.scheduling.orders.offline.density.node import DensityLeaf, Load
from shared.scheduling.orders.offline.density.parts import CHANGED_SHARE, MIN_CHANGES, ReaderParts, _both, _cut, _reads
from shared.scheduling.orders.offline.density.tree import DensityTree
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request

GROUPS = ("",)
LIFE = st.tuples(st.integers(1, 60), st.integers(1, 60), st.floats(0.0, 1.0), st.booleans())


def add(
    tree: DensityTree, request_id: str, prompt: list[int], num_output_tokens: int, is_known: bool = True
) -> DensityLeaf:
    total = len(prompt) + num_output_tokens
    request = Request(request_id, Kind.OFFLINE, len(prompt), total, ends_at_limit=is_known)
    return tree.add(request, pack_tokens(prompt), "", is_sample=False)


def run(tree: DensityTree, leaf: DensityLeaf, num_generated: int, is_left: bool) -> Request:
    """As an order takes it; what has KV by now."""
    leaf.is_left, leaf.expected_tokens = is_left, leaf.expected
    tree.hold(leaf)
    request = leaf.request
    num_tokens = request.num_tokens + num_generated
    return Request(request.request_id, Kind.OFFLINE, num_tokens, request.max_total_tokens, num_tokens)


# What was learnt of lengths


def test_what_was_long_ago_counts_for_half_each_time_that_many_have_ended() -> None:
    lengths = OutputLengths(16)
    seen = lengths.begin(b"")
    for number in range(MAX_COUNTED):
        lengths.count(seen, 10, is_own=number % 4 == 0)
    counts = seen.num_requests, seen.num_tokens, seen.num_own_requests, seen.num_own_tokens
    assert counts == (MAX_COUNTED // 2, 10 * MAX_COUNTED // 2, MAX_COUNTED // 8, 10 * MAX_COUNTED // 8)
    for _ in range(MAX_COUNTED // 2):
        lengths.count(seen, 30, is_own=True)
    assert seen.num_requests == MAX_COUNTED // 2 and seen.mean == quantized(20)
    assert seen.own_mean == quantized((10 * MAX_COUNTED / 8 + 30 * MAX_COUNTED / 2) / (MAX_COUNTED * 5 / 8))


def test_the_prefixes_that_were_told_of_last_are_kept() -> None:
    lengths = OutputLengths(16)
    prefixes = [number.to_bytes(4, "little") for number in range(MAX_PREFIXES + 1)]
    for prefix in prefixes:
        lengths.count(lengths.begin(prefix), 7, is_own=True)
    assert len(lengths) == MAX_PREFIXES
    assert lengths.of(prefixes[0]) is None
    assert all(lengths.of(prefix) is not None for prefix in (prefixes[1], prefixes[-1]))


KEY = b"k" * 12
SOUND = (KEY, 5, 50, 2, 20)


@pytest.mark.parametrize(
    "wrong",
    [
        (KEY[1:], 5, 50, 2, 20),
        (KEY, 0, 0, 0, 0),
        (KEY, 5, 50, 6, 20),
        (KEY, 5, 50, -1, 20),
        (KEY, MAX_COUNTED + 1, 9999, 2, 20),
        (KEY, 5, 50, 2, 51),
        (KEY, 5, 50, 2, -1),
        (KEY, 5, -1, 2, -1),
    ],
)
def test_lengths_that_no_requests_can_have_had_are_refused_among_others(wrong: tuple[Any, ...]) -> None:
    lengths = OutputLengths(16)
    lengths.count(lengths.begin(b""), 7, is_own=True)
    form, block_size, _ = msgspec.msgpack.decode(lengths.remember())
    again = OutputLengths(16)
    again.recall(msgspec.msgpack.encode((form, block_size, [SOUND])))
    learnt = again.remember()
    for prefixes in ([wrong], [SOUND, wrong], [wrong, SOUND]):
        with pytest.raises(ValueError, match="no requests can have had"):
            again.recall(msgspec.msgpack.encode((form, block_size, prefixes)))
    assert again.remember() == learnt


def test_a_branch_that_comes_again_knows_what_was_learnt_there() -> None:
    """Not what the branch below it has learnt."""
    tree = DensityTree(1, 0.0)
    long, *_ = [add(tree, name, [1, 2, 3, last], 5000, is_known=False) for name, last in (("a", 4), ("b", 5))]
    tree.hold(long)
    tree.learn(long, 100)
    short = add(tree, "c", [1, 2, 9, 9], 5000, is_known=False)
    tree.hold(short)
    tree.learn(short, 10)
    tree.remove(short)
    assert add(tree, "d", [1, 2, 8, 8], 5000, is_known=False).expected == quantized(10)


def test_what_is_put_below_another_branch_expects_what_that_has_learnt() -> None:
    tree = DensityTree(1, 0.0)
    for name, prompt, length in (("far", [9, 9], 1000), ("c", [1, 2, 7], 10)):
        other = add(tree, f"beside {name}", [*prompt[:-1], 8], 5000, is_known=False)
        leaf = add(tree, name, prompt, 5000, is_known=False)
        tree.hold(leaf)
        tree.learn(leaf, length)
        for each in (leaf, other):
            tree.remove(each)
    below = [add(tree, name, [1, 2, 3, last], 5000, is_known=False) for name, last in (("a", 4), ("b", 5))]
    assert {each.expected for each in below} == {quantized(505)}
    add(tree, "splits", [1, 2, 6], 5000, is_known=False)
    assert {each.expected for each in below} == {quantized(10)}


# What runs


@given(st.lists(LIFE, max_size=8), st.floats(0.01, 5.0))
def test_what_runs_is_weighed_as_its_parts_are(lives: list[tuple[int, int, float, bool]], of_all: float) -> None:
    """Sections 2.3 and 3.4: of p tokens of prompt and d of output, p + d are computed and p d + d^2 / 2 are read."""
    tree, running, parts = DensityTree(1, 0.0), list[Request](), list[tuple[int, int, int, bool]]()
    for number, (p, d, share, is_left) in enumerate(lives):
        leaf = add(tree, str(number), [100 + number] * p, d)
        generated = int(share * d)
        running.append(run(tree, leaf, generated, is_left))
        parts.append((p, d, generated, is_left))
    batch = RunningBatch(tree, running, room=10_000)
    reads = sum(p + generated for p, _, generated, _ in parts)
    computed = sum((p + g) * (p + d) / (p * d + d * d / 2) for p, d, g, _ in parts)
    if abs(computed - of_all * reads) > 1e-6:
        assert batch.lacks_compute(of_all) is (computed < of_all * reads)
    bound = [(p, d, generated) for p, d, generated, is_left in parts if not is_left]
    rests = [(p + g, max(1, d - g)) for p, d, g in bound]
    to_do = sum(rest for _, rest in rests), sum(held * rest + rest * rest / 2 for held, rest in rests)
    assert batch.density == (pytest.approx(to_do[0] / to_do[1]) if bound else 0.0)
    if not bound:
        assert batch.takes(1e9, of_all)
        return
    of_bound = sum(p + d for p, d, _ in bound) / sum(p * d + d * d / 2 for p, d, _ in bound)
    limit = max(of_all, WORTH_BLENDING * of_bound)
    assert batch.takes(limit * 0.999, of_all)
    assert batch.takes(limit * 1.001, of_all) is batch.lacks_compute(of_all)


def test_nothing_lacks_nothing_and_takes_all() -> None:
    batch = RunningBatch(DensityTree(1, 0.0), [], room=1)
    assert batch.density == 0.0 and not batch.lacks_compute(1.0) and batch.takes(1e9, 0.1)


@pytest.mark.parametrize("room", [115, 116])
def test_one_has_room_where_the_most_that_is_held_just_fits(room: int) -> None:
    """Given in whatever order: in 10 steps the two that run hold 30 and 50 more than now, when the next one ends."""
    tree = DensityTree(1, 0.0)
    running = [run(tree, add(tree, name, [n] * n, d), 0, True) for name, n, d in (("long", 40, 50), ("short", 30, 10))]
    entrant = add(tree, "enters", [3] * 6, 10)
    batch = RunningBatch(tree, running, room)
    most = (40 + 10) + (30 + 10) + (6 + 10)
    assert batch.has_room(entrant) is (most <= room) and not batch.has_room(entrant, 0.9)
    batch = RunningBatch(tree, running[::-1], most)
    assert batch.has_room(entrant)


# Where readers begin


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 100)), min_size=1, max_size=6), st.floats(0.05, 0.95))
def test_outside_of_a_cut_is_its_share_of_tokens_and_reads(loads: list[tuple[int, int]], share: float) -> None:
    """Whatever the sums are: also where they are a few tokens."""
    by_density = sorted((Load(*each) for each in loads), key=lambda load: load.density, reverse=True)
    sums = [*accumulate(by_density, _both)]
    total = sums[-1]
    left, right = _cut(sums, share)
    assert 0 <= left <= right <= total.tokens
    assert left + total.tokens - right == pytest.approx(total.tokens * share)
    outside = _reads(sums, left) + total.double_reads - _reads(sums, right)
    assert outside == pytest.approx(total.double_reads * share, rel=1e-3)


def mixed_tree(num_requests: int) -> DensityTree:
    tree = DensityTree(1, 0.0)
    for number in range(num_requests):
        add(tree, str(number), [10 + number] * (1 + 7 * number % 60), 1 + 11 * number % 300)
    return tree


def starts_of(tree: DensityTree, *readers: str) -> list[tuple[int | None, int | None]]:
    parts = ReaderParts()
    for reader in readers:
        parts.join(reader, tree)
    return [parts.start(reader) for reader in readers]


def test_when_one_leaves_the_others_have_its_part() -> None:
    tree, parts = mixed_tree(100), ReaderParts()
    for reader in "abc":
        parts.join(reader, tree)
    three = [parts.start(reader) for reader in "abc"]
    parts.leave("nobody", tree)
    assert [parts.start(reader) for reader in "abc"] == three == starts_of(tree, *"abc")
    parts.leave("b", tree)
    assert [parts.start(reader) for reader in "ac"] == starts_of(tree, *"ac") != [three[0], three[2]]


@pytest.mark.parametrize("num_requests", [40, 1000])
def test_it_is_parted_anew_when_so_many_have_come_or_gone(num_requests: int) -> None:
    """Through the readers, to whom each is told."""
    tree = mixed_tree(num_requests)
    readers = Readers(tree)
    for reader in "ab":
        readers.change(reader)
    before = starts_of(tree, *"ab")
    for number in range(100):
        add(tree, f"more-{number}", [5] * (300 + number), 2)
    after = starts_of(tree, *"ab")
    limit = max(MIN_CHANGES, tree.num_waiting // CHANGED_SHARE)
    assert before != after and limit == (64 if num_requests == 40 else 137)
    num_told = len("ab") - 1  # since it was parted for the second
    while readers._parts.start("b") == before[1]:
        readers.change()
        num_told += 1
    assert (num_told - limit) in (1, 2) and readers._parts.start("b") == after[1]


# Where scanners go


def test_a_reader_goes_on_with_the_last_few_that_it_took() -> None:
    tree = DensityTree(1, 0.0)
    readers = Readers(tree)
    branches = []
    for number in range(MAX_PATHS + 1):
        first = add(tree, f"{number}-a", [number, 1], 10)
        add(tree, f"{number}-b", [number, 2], 10)
        add(tree, f"{number}-c", [number, 3], 10)
        branches.append(first.parent)
        readers.take(first, "a")
        tree.hold(first)
    left, right = readers.bearings("a", GROUPS)
    assert set(left.own.values()) == {branches[1]} and set(right.own.values()) == {branches[-1]}
    elsewhere, _ = readers.bearings("b", GROUPS)
    assert not elsewhere.own and set(branches[1:]) == set(elsewhere.avoided)


def test_what_nobody_in_particular_took_is_avoided_by_nobody() -> None:
    tree = DensityTree(1, 0.0)
    readers = Readers(tree)
    first, *_ = [add(tree, name, [1, last], 10) for name, last in (("a", 1), ("b", 2))]
    readers.take(first, None)
    assert not readers.bearings("a", GROUPS)[0].avoided


@pytest.mark.parametrize(("num_output_tokens", "is_left"), [(1, True), (3000, False)])
def test_a_path_is_gone_on_with_on_its_own_side(num_output_tokens: int, is_left: bool) -> None:
    """And what is about as dense as the whole on both."""
    tree = DensityTree(1, 0.0)
    readers = Readers(tree)
    first, *_ = [add(tree, f"own-{n}", [1] * 30 + [50 + n], num_output_tokens) for n in range(3)]
    readers.take(first, "a")
    left, right = readers.bearings("a", GROUPS)
    assert left.own and right.own, "there is nothing else"
    for number in range(20):
        add(tree, f"other-{number}", [100 + number] * 30, 60)
    left, right = readers.bearings("a", GROUPS)
    assert bool(left.own) is is_left and bool(right.own) is not is_left


def test_a_dense_request_is_on_the_side_of_the_largest_part_that_it_is_of() -> None:
    tree = DensityTree(1, 0.0)
    dense = add(tree, "dense", [1, 1, *[2] * 200], 1)
    for number in range(5):
        add(tree, f"reads-{number}", [1, 1, 10 + number], 4000)
    for number in range(5):
        add(tree, f"alone-{number}", [100 + number] * 300, 1)
    assert dense.load.density > tree.root.load.density > dense.parent.load.density
    assert not tree.is_left(dense) and tree.is_left(tree.leaf("alone-0"))
