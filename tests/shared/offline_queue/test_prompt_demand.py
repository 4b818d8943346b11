"""How many prompts begin with what, against a count over all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.offline_queue.prompt_demand import PromptDemand
from shared.scheduling.packed_prompt import pack_tokens

BLOCK = 2
prompts = st.lists(st.integers(0, 1), max_size=11)
actions = st.lists(st.tuples(st.booleans(), prompts, st.integers(0, 99)), max_size=30)


def naive_runs(there: list[list[int]], prompt: list[int], first: int, end: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in range(first + 1, end + 1):
        beginning = prompt[: block * BLOCK]
        count = sum(1 for other in there if other[: len(beginning)] == beginning)
        if runs and runs[-1][1] == count:
            runs.pop()
        runs.append((block, count))
    return runs


@given(before=st.lists(prompts, max_size=6), done=actions, asked=prompts, data=st.data())
def test_counts_are_those_of_a_list(
    before: list[list[int]], done: list[tuple[bool, list[int], int]], asked: list[int], data: st.DataObject
) -> None:
    there = {f"before-{number}": prompt for number, prompt in enumerate(before)}
    demand = PromptDemand(BLOCK, [(request_id, pack_tokens(prompt)) for request_id, prompt in there.items()])
    assert demand.runs(pack_tokens(asked)) == naive_runs([], asked, 0, len(asked) // BLOCK)
    demand.catch_up(num_counted := len(there) // 2)
    num_changes, to_come = num_counted, list(there)[num_counted:]
    for number, (is_new, prompt, which) in enumerate(done):
        if is_new or not there:
            there[str(number)] = prompt
            demand.add(str(number), pack_tokens(prompt))
            num_changes += 1
        else:
            request_id = sorted(there)[which % len(there)]
            del there[request_id]
            demand.remove(request_id)
            num_changes += request_id not in to_come
        assert demand.num_changes == num_changes, "of what is counted"
        assert demand.num_requests == len(there)
    demand.catch_up(len(before))
    demand.check_integrity()
    for prompt in (asked, *there.values()):
        num_blocks = len(prompt) // BLOCK
        assert demand.runs(pack_tokens(prompt)) == naive_runs([*there.values()], prompt, 0, num_blocks)
        first = data.draw(st.integers(0, num_blocks))
        end = data.draw(st.integers(first, num_blocks))
        assert demand.runs(pack_tokens(prompt), first, end) == naive_runs([*there.values()], prompt, first, end)


def test_an_id_is_there_once() -> None:
    demand = PromptDemand(BLOCK)
    demand.add("a", pack_tokens([1, 2, 3]))
    with pytest.raises(ValueError, match="request a is here already"):
        demand.add("a", pack_tokens([1, 2, 3]))
    demand.remove("a")
    with pytest.raises(KeyError):
        demand.remove("a")
