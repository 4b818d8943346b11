"""What a prefix trie tells of the requests that share a prompt's beginning, against a look at each of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.packed_prompt import TOKEN_BYTES, pack_tokens
from tests.shared.scheduling.orders.naive_orders import NaiveOrder, make_waiting, num_common_blocks

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=10), max_size=14)
HELD = st.sets(st.integers(0, 13))
GROUPS = ("x", "y", "z", "nobody's")


def group_of(request_id: str) -> str:
    return GROUPS[int(request_id) % 3]


def made(block_size: int, prompts: list[list[int]], held: set[int]) -> tuple[PrefixTrie, NaiveOrder]:
    trie, naive = PrefixTrie(block_size), NaiveOrder(block_size)
    for number, prompt in enumerate(prompts):
        naive.add(str(number), prompt)
        trie.add(make_waiting(str(number), len(prompt)), pack_tokens(prompt), group_of(str(number)))
        if number in held:
            naive.held[str(number)] = None
            trie.hold(str(number))
    trie.check_integrity()
    return trie, naive


@given(st.integers(1, 3), PROMPTS, HELD, st.lists(st.integers(0, 2), max_size=10))
@example(2, [[0], [0, 0]], set(), [0])  # a prompt's last block, in part
def test_how_many_wait_with_each_part_of_a_prompt(
    block_size: int, prompts: list[list[int]], held: set[int], prompt: list[int]
) -> None:
    trie, naive = made(block_size, prompts, held)
    told = list(trie.along(pack_tokens(prompt)))
    ends = [end // TOKEN_BYTES for end, _ in told]
    assert ends == sorted(set(ends)) and all(ends)
    for (_, num_waiting), end in zip(told, ends, strict=True):
        common = (num_common_blocks(prompt, naive.prompts[each], block_size) for each in naive.waiting())
        assert num_waiting == sum(end <= block_size * num for num in common)
    shared = (num_common_blocks(prompt, each, block_size) for each in prompts)
    assert (ends[-1] if ends else 0) == min(len(prompt), block_size * max(shared, default=0))


def test_who_leaves_an_edge_has_nothing_of_what_comes_after_it() -> None:
    trie, _ = made(1, [[1, 2, 3, 4], [1, 2, 3, 5]], set())
    assert [end // TOKEN_BYTES for end, _ in trie.along(pack_tokens([1, 4]))] == [1]


@given(st.integers(1, 3), PROMPTS, HELD, st.sets(st.sampled_from(GROUPS), min_size=1))
def test_those_nearest_to_a_prompt_are_of_those_whose_turn_it_is(
    block_size: int, prompts: list[list[int]], held: set[int], groups: set[str]
) -> None:
    trie, naive = made(block_size, prompts, held)
    turn = Turn(sorted(groups))
    own = [each for each in naive.depth_first() if group_of(each) in groups]
    for prompt in prompts:
        common = {each: num_common_blocks(prompt, naive.prompts[each], block_size) for each in own}
        node = trie.deepest_waiting(pack_tokens(prompt), turn)
        most = max(common.values(), default=0)
        assert (node is None) is (most == 0)
        if node is not None:
            nearest = [each for each in own if common[each] == most]
            assert [each.request_id for each in trie.below(node, turn)] == nearest


def test_the_prompt_that_a_branch_goes_by_stays_while_the_oldest_leave() -> None:
    trie, _ = made(1, [[1, number] for number in range(20)], set())
    (branch,) = trie._root.children.values()
    prompts = []
    for number in range(18):
        trie.remove(str(number))
        prompts.append(branch.prompt)
    assert len(set(prompts)) == 1
    trie.check_integrity()


def test_who_is_held_since_is_not_shown_where_it_was_found() -> None:
    trie, _ = made(1, [[1, 2], [3, 4]], set())
    node = trie.deepest_waiting(pack_tokens([1, 2]))
    assert node is not None and [each.request_id for each in trie.below(node)] == ["0"]
    trie.hold("0")
    assert list(trie.below(node)) == [] and [each.request_id for each in trie.outward(node)] == ["1"]


def test_counts_that_are_wrong_are_found() -> None:
    trie, _ = made(1, [[1, 2], [1, 3]], set())
    node = trie.deepest_waiting(pack_tokens([1]))
    assert node is not None
    parent = node.parent
    assert parent is not None
    parent.parts["x"].num_waiting += 1
    with pytest.raises(AssertionError):
        trie.check_integrity()
