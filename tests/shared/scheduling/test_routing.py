"""Which executor gets a request: by predicted times, over plain data."""

from collections.abc import Iterable
from dataclasses import fields
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.latency.echo import EchoLatencyModel
from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, PrefixCacheMirror
from shared.scheduling.placement.prompt import Prompt, SentPrompts
from shared.scheduling.placement.routing import Option, Route, RoutingTarget, choose
from tests.shared.scheduling.factories import MODEL

STEP_TOKENS = 512
OUTPUT_TOKENS = 50.0
BLOCK_TOKENS = 32
SHARED = list(range(20 * BLOCK_TOKENS))
SLOW = LinearLatencyModel(*(10 * coefficient for coefficient in MODEL.coefficients()))

works = st.builds(
    BatchFeatures, *(st.integers(0, limit) for limit in (5000, 20, 50_000, 60)), prefill_pairs=st.integers(0, 10**6)
)


def make_target(
    executor_id: str = "executor-0", work: BatchFeatures | None = None, cached: list[int] | None = None
) -> RoutingTarget:
    """``cached``: tokens of a prompt whose full blocks are in its prefix cache."""
    cache = PrefixCacheMirror()
    hashes = hash_chain(cached or [], BLOCK_TOKENS)
    cache.apply(CacheChanges(1, True, (BlockChanges(free=b"".join(hashes)),)))
    target = RoutingTarget(executor_id, "epoch-1", STEP_TOKENS, BLOCK_TOKENS, 3000, cache)
    target.observe(work or BatchFeatures())
    return target


def make_prompt(num_tokens: int, first: int = 0) -> Prompt:
    return Prompt(list(range(first, first + num_tokens)))


def chosen(prompt: Prompt, *targets: RoutingTarget) -> str:
    target = choose([Option(each, MODEL) for each in targets], prompt, OUTPUT_TOKENS)
    assert target is not None
    return target.executor_id


def num_common(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(works, min_size=1, max_size=6), st.integers(1, 3000), st.randoms(use_true_random=False))
def test_the_choice_is_the_fastest_answer_in_whatever_order_executors_are_named(
    loads: list[BatchFeatures], num_tokens: int, random: Random
) -> None:
    targets = [make_target(f"executor-{index}", work) for index, work in enumerate(loads)]
    prompt = make_prompt(num_tokens)
    times = {each.executor_id: each.answer_ms(prompt, MODEL, OUTPUT_TOKENS) for each in targets}
    first = chosen(prompt, *targets)
    assert times[first] == min(times.values())
    random.shuffle(targets)
    assert chosen(prompt, *targets) == first


@given(works, works, st.integers(1, 3000))
def test_more_work_is_never_answered_sooner(work: BatchFeatures, more: BatchFeatures, num_tokens: int) -> None:
    prompt = make_prompt(num_tokens)
    both = BatchFeatures(*(getattr(work, name) + getattr(more, name) for name in work.__struct_fields__))
    before = make_target(work=work).answer_ms(prompt, MODEL, OUTPUT_TOKENS)
    assert make_target(work=both).answer_ms(prompt, MODEL, OUTPUT_TOKENS) >= before * (1 - 1e-9)


@given(works, st.integers(0, 20), st.integers(1, 600))
def test_a_cached_prefix_never_makes_the_answer_later(work: BatchFeatures, num_shared: int, num_own: int) -> None:
    cold, warm = make_target(work=work), make_target(work=work, cached=SHARED)
    prompt = Prompt(SHARED[: num_shared * BLOCK_TOKENS] + list(range(70_000, 70_000 + num_own)))
    without = cold.answer_ms(prompt, MODEL, OUTPUT_TOKENS)
    assert warm.answer_ms(prompt, MODEL, OUTPUT_TOKENS) <= without * (1 + 1e-9)


def test_a_prefix_outweighs_load_exactly_as_far_as_it_saves_time() -> None:
    """640 shared tokens take 320 ms to compute; each prompt of 100 tokens that waits there
    takes 50 and more."""
    warm, cold = make_target("executor-0", cached=SHARED), make_target("executor-1")
    prompt = Prompt([*SHARED, 1, 2, 3])
    waiting = 0
    while chosen(prompt, cold, warm) == "executor-0":
        warm.send(make_prompt(100, first=1000 * (waiting + 1)))
        waiting += 1
    saved_ms = cold.answer_ms(prompt, MODEL, OUTPUT_TOKENS) - make_target().answer_ms(Prompt([1, 2, 3]), MODEL, 50.0)
    assert 1 < waiting < saved_ms / 50
    assert chosen(Prompt([*range(9000, 9000 + 640)]), cold, warm) == "executor-1"


def test_unlike_prompts_spread_over_idle_executors_and_like_ones_stay() -> None:
    targets = [make_target(f"executor-{index}", cached=SHARED if index == 1 else None) for index in range(3)]
    went = [self_ending(make_prompt(65, first=1000 * number), targets) for number in range(1, 7)]
    assert went == ["executor-0", "executor-1", "executor-2"] * 2
    assert [self_ending(Prompt(SHARED), targets) for _ in range(3)] == ["executor-1"] * 3


def test_a_prompt_that_is_on_its_way_counts_as_cached_until_the_executor_has_its_say() -> None:
    target = make_target()
    first, second = target.send(Prompt(SHARED)), target.send(Prompt(SHARED))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 19 * BLOCK_TOKENS)
    first.answered()
    first.end()
    assert target.num_cached_tokens(Prompt(SHARED)) == 19 * BLOCK_TOKENS
    second.end()
    assert target.num_cached_tokens(Prompt(SHARED)) == 0
    assert make_target(cached=SHARED).num_cached_tokens(Prompt([*SHARED, 1])) == 20 * BLOCK_TOKENS


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(1, 4))
def test_a_prompt_is_known_by_its_full_blocks_without_its_last_token(token_ids: list[int], block_size: int) -> None:
    prompt = Prompt(token_ids)
    assert prompt.hashes(block_size) == prompt.hashes(block_size) == hash_chain(token_ids[:-1], block_size)
    assert prompt.num_tokens == len(token_ids)


@given(st.lists(st.text("ab", max_size=6), max_size=12), st.data())
def test_what_was_sent_is_known_by_its_beginning(prompts: list[str], data: st.DataObject) -> None:
    """Against a search through all of them."""
    sent, on_the_way = SentPrompts(), list[str]()
    for letters in prompts:
        known = max((num_common(letters, other) for other in on_the_way), default=0)
        assert sent.num_leading(blocks_of(letters)) == known
        sent.add(blocks_of(letters))
        on_the_way.append(letters)
        if data.draw(st.booleans()):
            sent.remove(blocks_of(on_the_way.pop(data.draw(st.integers(0, len(on_the_way) - 1)))))
    assert len(sent) == len({letters[:end] for letters in on_the_way for end in range(1, len(letters) + 1)})


def blocks_of(letters: str) -> list[bytes]:
    """A block for each letter."""
    return hash_chain([ord(letter) for letter in letters], 1)


def self_ending(prompt: Prompt, targets: list[RoutingTarget]) -> str:
    executor_id = chosen(prompt, *targets)
    next(each for each in targets if each.executor_id == executor_id).send(prompt).end()
    return executor_id


def test_the_faster_executor_gets_more() -> None:
    fast, slow = make_target("fast"), make_target("slow")
    options = [Option(slow, SLOW), Option(fast, MODEL)]
    went = []
    for number in range(150):
        prompt = make_prompt(100, first=1000 * number)
        target = choose(options, prompt, OUTPUT_TOKENS)
        assert target is not None
        target.send(prompt)
        went.append(target.executor_id)
    assert went.count("fast") > 3 * went.count("slow") > 0


@pytest.mark.parametrize("models", [(MODEL, None), (None, MODEL), (None, None)])
def test_without_a_model_of_each_tokens_are_counted(models: tuple[LinearLatencyModel | None, ...]) -> None:
    busy, idle = make_target("executor-0", BatchFeatures(prefill_tokens=10, prefill_requests=1)), make_target("z")
    options = [Option(target, model) for target, model in zip((busy, idle), models, strict=True)]
    assert choose(options, make_prompt(100), OUTPUT_TOKENS) is idle
    assert choose([], make_prompt(100), OUTPUT_TOKENS) is None


def features_of(prompts: Iterable[int], contexts: Iterable[int]) -> BatchFeatures:
    """Of requests whose prompts are to be computed, and of some that decode."""
    features = BatchFeatures()
    for num_tokens in prompts:
        features.add_prefill(num_tokens, 0)
    for context_len in contexts:
        features.add_decode(context_len)
    return features


held_works = st.builds(
    features_of, st.lists(st.integers(1, 3000), max_size=6), st.lists(st.integers(1, 4000), max_size=20)
)


def counting(**of: float) -> LinearLatencyModel:
    """A model that counts one thing of a step, or some."""
    return LinearLatencyModel(*(of.get(each.name, 0.0) for each in fields(LinearLatencyModel)))


@given(held_works, st.integers(1, 3000), st.integers(1, 100))
def test_an_answer_waits_for_the_prompts_before_it_and_decodes_beside_all_that_is_there(
    work: BatchFeatures, num_tokens: int, num_output: int
) -> None:
    """Each thing that a step has counted by itself; prompts are in equal steps, as few as can be."""

    def counted(name: str) -> float:
        return make_target(work=work).answer_ms(make_prompt(num_tokens), counting(**{name: 1.0}), num_output)

    num_requests = work.prefill_requests + work.decode_requests + 1
    before, own = (-(-each // STEP_TOKENS) for each in (work.prefill_tokens, num_tokens))
    assert counted("base") == before + own + num_output
    assert counted("kv_token") == num_output * (work.decode_kv_tokens + work.prefill_tokens + num_tokens)
    assert counted("decode_request") == num_output * num_requests
    for name, least in (
        ("prefill_token", work.prefill_tokens + num_tokens),
        ("prefill_pair", work.prefill_pairs + attention_pairs(num_tokens, 0)),
        ("prefill_request", work.prefill_requests + 1),
    ):
        assert least <= counted(name) < least + max(1, before) + own, "rounded up in each step"


def test_a_step_of_decodes_reads_as_far_as_the_longest() -> None:
    longest = EchoLatencyModel(0.0, 0.0, 0.0, 1.0, 0.0, 1.0)
    work = BatchFeatures(decode_kv_tokens=300, decode_requests=2, longest_decode=250)
    times = [make_target(work=work).answer_ms(make_prompt(num_tokens), longest, 10.0) for num_tokens in (100, 400)]
    assert times == [pytest.approx(10 * 250), pytest.approx(10 * 400)]


@given(st.lists(st.sampled_from(["send", "answered", "end"]), max_size=60), st.data())
def test_what_was_sent_counts_until_it_ends(events: list[str], data: st.DataObject) -> None:
    """Answers and ends come in any order and more than once."""
    target, open_routes, ended = make_target(), list[Route](), list[Route]()
    waiting: dict[int, int] = {}
    for number, event in enumerate(events):
        if event == "send":
            open_routes.append(target.send(make_prompt(40 + number, first=1000 * number)))
            waiting[id(open_routes[-1])] = 40 + number
        elif open_routes or ended:
            route = data.draw(st.sampled_from(open_routes + ended))
            (route.answered if event == "answered" else route.end)()
            waiting.pop(id(route), None)
            if event == "end" and route in open_routes:
                open_routes.remove(route)
                ended.append(route)
        work = target.work()
        assert work.prefill_requests + work.decode_requests == len(open_routes)
        assert (work.prefill_requests, work.prefill_tokens) == (len(waiting), sum(waiting.values()))
    for route in open_routes:
        route.end()
    assert target.work() == BatchFeatures()


requests = st.lists(st.tuples(st.integers(2, 300), st.booleans()), max_size=5)  # tokens, and whether it is answered


@given(mine=requests, others=requests)
def test_an_executors_word_is_of_what_was_sent_and_of_what_others_sent(
    mine: list[tuple[int, bool]], others: list[tuple[int, bool]]
) -> None:
    """And once that has ended of theirs alone."""
    target = make_target()
    routes = [target.send(make_prompt(num_tokens, first=1000 * n)) for n, (num_tokens, _) in enumerate(mine)]
    for route, (_, is_answered) in zip(routes, mine, strict=True):
        if is_answered:
            route.answered()
    word, theirs = (
        features_of(*([num for num, is_answered in held if is_answered is wanted] for wanted in (False, True)))
        for held in (mine + others, others)
    )
    target.observe(word)
    assert target.work() == word
    for route in routes:
        route.end()
    assert target.work().sums == theirs.sums
    assert (
        theirs.longest_decode <= target.work().longest_decode <= (word.longest_decode if theirs.decode_requests else 0)
    )


def test_an_executors_word_adds_what_others_sent() -> None:
    target = make_target()
    route = target.send(make_prompt(100))
    target.observe(BatchFeatures(prefill_tokens=250, prefill_requests=2, decode_kv_tokens=70, decode_requests=1))
    assert (target.work().prefill_tokens, target.work().prefill_requests) == (250, 2)
    route.answered()
    assert (target.work().prefill_tokens, target.work().decode_requests) == (150, 2)
    target.observe(BatchFeatures())  # it had not got this one yet
    assert target.work() == BatchFeatures(decode_kv_tokens=100, decode_requests=1, longest_decode=100)


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_moves_counts_as_a_decode_at_its_taker_alone(is_answered: bool) -> None:
    """Also where its first token is heard of later."""
    giver, taker = make_target("executor-0"), make_target("executor-1")
    route = giver.send(make_prompt(100))
    if is_answered:
        route.answered()
    moved = taker.take_over(route)
    route.answered()
    assert giver.work() == BatchFeatures() and giver.num_cached_tokens(make_prompt(100)) == 0
    assert taker.work() == BatchFeatures(decode_kv_tokens=100, decode_requests=1, longest_decode=100)
    assert (taker.num_given_blocks, moved.target) == (0, taker)
    moved.end()
    route.end()
    assert taker.work() == giver.work() == BatchFeatures()


def test_prompts_take_as_many_steps_as_they_need() -> None:
    """The fixed cost of a step counts once for each chunk of 512 tokens."""
    flat = LinearLatencyModel(10.0, 0, 0, 0, 0, 0, 0)
    assert [make_target().answer_ms(make_prompt(num_tokens), flat, 0.0) for num_tokens in (512, 513, 1500)] == [
        pytest.approx(10.0),
        pytest.approx(20.0),
        pytest.approx(30.0),
    ]


def test_a_turn_comes_after_the_prompts_and_where_no_place_is_left_after_answers() -> None:
    """With steps of 10 ms whatever is in them: a prompt of three steps before it; and with all eight places taken the
    first of eight answers of 100 steps is expected after an eighth of them."""
    steps = LinearLatencyModel(10, 0, 0, 0, 0, 0, 0)
    assert make_target().wait_ms(steps, 100, 8) == 0
    assert make_target(work=BatchFeatures(prefill_requests=1)).wait_ms(steps, 0, 8) >= 0, "of nothing"
    prompt = BatchFeatures(prefill_tokens=3 * STEP_TOKENS, prefill_requests=1)
    assert make_target(work=prompt).wait_ms(steps, 100, 8) == 30
    seven, eight, twelve = (BatchFeatures(decode_kv_tokens=50 * n, decode_requests=n) for n in (7, 8, 12))
    assert make_target(work=seven).wait_ms(steps, 100, 8) == 0
    assert make_target(work=eight).wait_ms(steps, 100, 8) == 1000 / 8
    assert make_target(work=twelve).wait_ms(steps, 100, 8) == 5 * 1000 / 8


def test_until_a_place_is_free_steps_read_what_all_that_have_one_will() -> None:
    """Eight of 50 tokens, with 100 more each: a place is free after an eighth of what reading them takes."""
    eight = BatchFeatures(decode_kv_tokens=8 * 50, decode_requests=8)
    assert make_target(work=eight).wait_ms(counting(kv_token=1.0), 100, 8) == 100 * 8 * 150 / 8
    assert make_target(work=eight).wait_ms(counting(decode_request=1.0), 100, 8) == 100
    waiting = BatchFeatures(prefill_tokens=7 * 50, prefill_requests=7, decode_kv_tokens=50, decode_requests=1)
    assert make_target(work=waiting).wait_ms(counting(kv_token=1.0), 100, 8) == 100 * 8 * 150 / 8


def test_places_are_as_many_as_have_room_in_the_cache() -> None:
    steps = LinearLatencyModel(10, 0, 0, 0, 0, 0, 0)
    room = 3000 * BLOCK_TOKENS
    four = BatchFeatures(decode_kv_tokens=4 * (room // 4 - 100), decode_requests=4)
    assert make_target(work=four).wait_ms(steps, 100, 256) == 1000 / 4
