"""Backlogs that never run out: copies of all their prompts follow, which share nothing with the first ones. And
backlogs that come at a rate."""

from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import token_id_prompts
from services.profiler.simulation.encoding import PromptEncoder
from services.profiler.simulation.requests import Backlog, PreparedBacklog
from shared.scheduling.packed_prompt import pack_tokens

PREAMBLE = "Answer the question in one word. " * 30


def prepared() -> PreparedBacklog:
    prompts = [
        OfflinePrompt(5, num_prompt_tokens=100),
        OfflinePrompt(5, text=f"{PREAMBLE}How many?"),
        OfflinePrompt(5, text=f"{PREAMBLE}Who is it?"),
    ]
    return PreparedBacklog(prompts, PromptEncoder(None), token_id_prompts(None, None, "salt"), 4096)


def test_copies_are_as_long_and_share_among_each_other_only() -> None:
    backlog = prepared()
    first, second = ([backlog.token_ids(copy * 3 + place) for place in range(3)] for copy in (0, 1))
    assert [len(tokens) for tokens in first] == [len(tokens) for tokens in second]
    assert first[1][:200] == first[2][:200] and second[1][:200] == second[2][:200]
    assert all(tokens[0] != copied[0] for tokens, copied in zip(first, second, strict=True))


def test_the_order_gets_to_know_the_copy_s_beginning() -> None:
    backlog = prepared()
    for index in range(9):
        packed = backlog.prompt(index).packed
        assert pack_tokens(backlog.token_ids(index)).startswith(packed)


def test_the_next_set_comes_when_half_of_one_has_ended() -> None:
    backlog = Backlog(prepared(), is_endless=True)
    assert [request.request_id for request, _ in backlog.begin()] == ["offline-0", "offline-1", "offline-2"]
    assert backlog.end(1.0) == []
    following = backlog.end(2.0)
    assert [request.request_id for request, _ in following] == ["offline-3", "offline-4", "offline-5"]
    assert len(backlog) == 6 and all(request.arrival_s == 2.0 for request, _ in following)
    made = following[1][1].unpack()
    assert made.request_id == "offline-4" and made.prompt_token_ids == prepared().token_ids(4)


def test_one_that_ends_submits_all_once() -> None:
    backlog = Backlog(prepared())
    assert len(backlog.begin()) == len(backlog) == 3
    assert [backlog.end(1.0) for _ in range(3)] == [[], [], []]


def test_at_a_rate_one_comes_after_the_other_copies_with_them() -> None:
    backlog = Backlog(prepared(), per_s=2.0)
    assert [request.request_id for request, _ in backlog.begin()] == ["offline-0"] and backlog.next_s == 0.5
    assert backlog.take(0.4) == [] and len(backlog) == 1
    following = backlog.take(2.0)
    assert [request.request_id for request, _ in following] == [f"offline-{number}" for number in range(1, 5)]
    assert all(request.arrival_s == 2.0 for request, _ in following) and backlog.next_s == 2.5
    assert following[2][1].unpack().prompt_token_ids == prepared().token_ids(3)
    assert backlog.end(3.0) == [] and len(backlog) == 5
    assert Backlog(prepared()).next_s is None
