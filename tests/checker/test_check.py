"""Each invariant, kept and broken once."""

import json
from typing import Any

import pytest

from services.offline_queue.batches.life import LOST_WITH_INPUT
from tests.checker.check import violations
from tests.checker.history import (
    Batch,
    BatchState,
    Ended,
    Event,
    File,
    History,
    Key,
    KeyTry,
    Line,
    LineEnd,
    Piece,
    Process,
    Read,
    ServerError,
    Start,
    Stream,
    Tokens,
)
from tests.checker.pauses import Pauses

MIB = 2**20
END = "\n<stop: 5 + 2 tokens>"  # of an answer


def make_stream(**fields: Any) -> Stream:
    pieces = [Piece(1.0, "Once "), Piece(2.0, "upon")]
    made = {"sent_s": 0.5, "pieces": pieces, "ended": Ended.DONE, "ended_s": 2.5, "status": 200} | fields
    return Stream(**{"name": "a stream", "server": "gateway-0", "sent": "{}", "right": "Once upon"} | made)


def answered(custom_id: str, text: str = "yes") -> str:
    """Of 5 tokens, of which 4 were cached, 2 were made."""
    details = {"cached_tokens": 4}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": details}
    body = {"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage}
    return json.dumps({"custom_id": custom_id, "response": {"body": body}, "error": None})


def failed(custom_id: str, code: str = "invalid") -> str:
    return json.dumps({"custom_id": custom_id, "response": None, "error": {"code": code}})


def make_batch(**fields: Any) -> Batch:
    """Of two lines that are answered, and one that fails."""
    lines = [Line("a", f"yes{END}"), Line("b", f"yes{END}"), Line("c", end=LineEnd.FAILED)]
    made = {"output": [answered("a"), answered("b")], "errors": [failed("c")], "accepted": True, "batch_id": "batch-1"}
    states = [BatchState(1.0, "in_progress", 3, 0, 0), BatchState(2.0, "completed", 3, 2, 1)]
    return Batch(**{"name": "a batch", "lines": lines, "sent_s": 0.0, "states": states} | made | fields)


def make_file(**fields: Any) -> File:
    reads = [Read(20.0, 200, True, "gateway-0")]
    made = {"stored": True, "file_id": "file-1", "reads": reads, "listed": {"gateway-0": True}}
    return File(**{"name": "a file", "num_bytes": 3, "sent_s": 0.0} | made | fields)


def make_key(status: int, **fields: Any) -> Key:
    return Key(**{"name": "a key", "made_s": 1.0, "tries": [KeyTry(30.0, "gateway-0", status)]} | fields)


def make_process(memory: list[tuple[float, int]] | None = None, **fields: Any) -> Process:
    return Process("executor-0", [Start(**{"at_s": 0.0, "pid": 1} | fields)], memory or [])


def broken(**seen: Any) -> list[str]:
    """The invariants that a history with this breaks, with what is said of each."""
    history = History(calm_s=10.0, over_s=400.0, **{name: [each] for name, each in seen.items()})
    return [f"{violation.invariant}: {violation.what}" for violation in violations(history)]


def test_nothing_is_said_of_a_history_in_which_all_is_as_promised() -> None:
    history = History(
        [make_stream(), make_stream(ended=Ended.LEFT, pieces=[Piece(1.0, "Once")])],
        [make_batch(), make_batch(accepted=None, batch_id=None, states=[])],
        [make_file(), make_file(stored=None, file_id=None, reads=[])],
        [make_key(200), make_key(401, revoke_sent_s=2.0, revoked_s=3.0)],
        [make_process(ended_s=3.0, status=-9, reason="killed")],
        calm_s=10.0,
        over_s=400.0,
        left_over={"online_running": 0},
    )
    assert violations(history) == []


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (make_stream(pieces=[Piece(1.0, "Once off")]), "right tokens: wrong from character 5 on"),
        (make_stream(pieces=[Piece(1.0, "Once ")] * 2), "right tokens: wrong from character 5 on"),
        (make_stream(pieces=[Piece(1.0, "Once upon a")]), "right tokens: wrong from character 9 on"),
        (make_stream(pieces=[Piece(1.0, "Once")]), "right tokens: ended after 4 of 9 characters"),
        (make_stream(ended=Ended.ERROR, error="lost"), "no stream ends with an error: status 200: lost"),
        (make_stream(ended=Ended.BROKEN, error="reset"), "no stream breaks off: reset"),
        (make_stream(ended=Ended.REFUSED), "no stream ends with an error: refused after its first token"),
        (
            make_stream(ended=Ended.REFUSED, pieces=[], status=503, error="busy", sent_s=11.0),
            "all is well at the end: refused with 503: busy",
        ),
        (make_stream(ended=Ended.OPEN, ended_s=None), "no stream hangs: it has not ended after 400 s"),
        (make_stream(ended_s=300.0), "no stream hangs: it took 300 s"),
    ],
)
def test_a_stream_that_is_not_as_promised(stream: Stream, what: str) -> None:
    assert broken(streams=stream) == [what]


def test_where_nothing_else_is_to_be_done_tokens_come_as_they_are_made() -> None:
    def of_idle(*streams: Stream) -> list[str]:
        return [each.what for each in violations(History([*streams], idle_s=0.5))]

    at_once = make_stream(pieces=[Piece(1.0, "Once "), Piece(1.0, "upon")])
    slow = make_stream(pieces=[Piece(1.0, "Once "), Piece(22.0, "upon")], ended_s=22.5)
    assert broken(streams=at_once) == broken(streams=slow) == [], "they were not alone"
    assert of_idle(slow) == ["a pause of 21.0 s with nothing else to do"]
    assert of_idle(at_once, at_once) == ["none of 2 came in more than one piece"]
    assert of_idle(at_once, make_stream()) == [], "this machine may have stood still"
    assert of_idle(make_stream(is_whole=True, pieces=[Piece(2.5, "Once upon")])) == []


def test_an_error_is_excused_but_never_a_wrong_token() -> None:
    assert broken(streams=make_stream(ended=Ended.BROKEN, pieces=[], excuse="gateway-0 ended")) == []
    wrong = make_stream(ended=Ended.BROKEN, pieces=[Piece(1.0, "Twice")], excuse="gateway-0 ended")
    assert broken(streams=wrong) == ["right tokens: wrong from character 0 on"]


def final(status: str, total: int = 3, completed: int = 2, failed: int = 1) -> list[BatchState]:
    return [BatchState(2.0, status, total, completed, failed)]


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (make_batch(states=[]), "nothing accepted is gone: the batch was never seen again"),
        (make_batch(states=final("in_progress")), "every batch ends: it is still in_progress"),
        (make_batch(states=final("404")), "every batch ends: it is still 404"),
        (make_batch(states=final("failed")), "every batch ends as it should: it is failed"),
        (make_batch(states=final("cancelled")), "every batch ends as it should: it is cancelled"),
        (make_batch(is_malformed=True), "a malformed batch fails: it is completed"),
        (make_batch(unread="503"), "nothing accepted is gone: its files cannot be read: 503"),
        (
            make_batch(states=[*final("cancelled"), *final("completed")]),
            "an end is for good: completed after cancelled",
        ),
        (
            make_batch(states=[*final("finalizing"), *final("in_progress"), *final("completed")]),
            "states go forward: in_progress after finalizing",
        ),
        (
            make_batch(output=None, errors=None, states=final("expired")),
            "no batch expires in its window: it is expired after 2 s",
        ),
        (
            make_batch(tokens=Tokens(10, 8, 5, 15)),
            "tokens add up: Tokens(num_input=10, num_cached=8, num_output=5, num_total=15), by its answers "
            "Tokens(num_input=10, num_cached=8, num_output=4, num_total=14)",
        ),
        (make_batch(output=[answered("a"), "{"]), "each line has one result: a file has a line that is no JSON"),
        (
            make_batch(output=[answered("a")], states=final("completed", completed=1)),
            "each line has one result: 1 missing: b",
        ),
        (
            make_batch(output=[answered("a"), answered("b"), answered("b")], states=final("completed", completed=3)),
            "each line has one result: 1 doubled: b",
        ),
        (
            make_batch(output=[answered(id) for id in "abx"], states=final("completed", completed=3)),
            "each line has one result: 1 of another batch: x",
        ),
        (
            make_batch(output=[answered("a"), answered("b", "no")]),
            f"right tokens: b: {f'no{END}'!r} instead of {f'yes{END}'!r}",
        ),
        (
            make_batch(listed={"gateway-0": "completed", "gateway-1": "in_progress"}),
            "every gateway tells the same: gateway-1 lists it as in_progress, and it is completed",
        ),
        (
            make_batch(listed={"gateway-0": ""}),
            "every gateway tells the same: gateway-0 lists it as nothing, and it is completed",
        ),
        (
            make_batch(output=[answered(id) for id in "abc"], errors=None, states=final("completed", 3, 3, 0)),
            "each line ends as it should: c was answered",
        ),
        (
            make_batch(output=[answered("a")], errors=[failed("b"), failed("c")], states=final("completed", 3, 1, 2)),
            f"each line ends as it should: b failed: {json.loads(failed('b'))}",
        ),
        (
            make_batch(states=final("completed", completed=1)),
            "counts add up: total, completed, failed: (3, 1, 1), by its files (3, 2, 1)",
        ),
        (
            make_batch(
                output=[answered("a")], errors=[failed("b", "batch_expired"), failed("c")],
                states=final("completed", completed=1),
            ),
            "counts add up: it is completed, but 1 lines have not run",
        ),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_as_promised(batch: Batch, what: str) -> None:
    assert broken(batches=batch) == [what]


def test_a_batch_is_kept_to_what_its_answers_took_and_to_its_window() -> None:
    assert broken(batches=make_batch(tokens=Tokens(10, 8, 4, 14))) == []
    a_day_later = [BatchState(24 * 3600.0, "expired", 3, 2, 1)]
    assert broken(batches=make_batch(states=a_day_later)) == []


def test_a_batch_that_has_all_to_itself_is_soon_done() -> None:
    slow = make_batch(states=[BatchState(70.0, "completed", 3, 2, 1)])
    assert violations(History(batches=[slow])) == []
    assert [each.what for each in violations(History(batches=[slow], idle_s=0.0))] == ["70 s with nothing else to do"]


def test_a_cancelled_batch_may_have_run_in_part() -> None:
    batch = make_batch(
        output=[answered("a")],
        errors=[failed("b", "batch_cancelled"), failed("c")],
        cancelled_s=1.5,
        states=final("cancelled", completed=1),
    )
    assert broken(batches=batch) == []


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (make_file(reads=[Read(5.0, 200, False)]), "a file is what was sent: other bytes at 5.0 s"),
        (make_file(reads=[Read(5.0, 404)]), "nothing accepted is gone: 404 at 5.0 s"),
        (
            make_file(listed={"gateway-0": True, "gateway-1": False}),
            "nothing accepted is gone: it is not in the list of gateway-1",
        ),
        (make_file(reads=[Read(20.0, 503, server="gateway-0")]), "all is well at the end: status 503"),
        (
            make_file(delete_sent_s=3.0, deleted=True, listed={"gateway-0": False}),
            "what is gone stays gone: gateway-0 has it at the end",
        ),
        (
            make_file(delete_sent_s=3.0, deleted=True, reads=[], listed={"gateway-0": False, "gateway-1": True}),
            "what is gone stays gone: it is in the list of gateway-1 at the end",
        ),
        (make_file(stored=False, reads=[]), "what is gone stays gone: it is in the list of gateway-0 at the end"),
    ],
)
def test_a_file_that_is_not_as_promised(file: File, what: str) -> None:
    assert broken(files=file) == [what]


def test_a_key_that_is_not_as_promised() -> None:
    assert broken(keys=make_key(401)) == ["a key is valid: 401 from gateway-0"]
    revoked = make_key(200, revoke_sent_s=2.0, revoked_s=3.0)
    assert broken(keys=revoked) == ["a revoked key is refused: status 200 from gateway-0"]


def test_a_process_that_is_not_as_promised() -> None:
    ended = broken(processes=make_process(ended_s=3.0, status=1, words="KeyError: 3"))
    assert ended == ["no process restarts by itself: executor-0 ended by itself at 3.0 s, status 1: KeyError: 3"]
    growing = make_process([(float(second), (100 + second) * MIB) for second in range(0, 600, 2)])
    assert broken(processes=growing) == ["memory is flat: executor-0 from 399 to 599 MiB"]
    flat = make_process([(float(second), 100 * MIB) for second in range(0, 600, 2)])
    assert broken(processes=flat) == []


def test_memory_that_grows_a_little_is_seen() -> None:
    slowly = make_process([(float(second), (100 + second // 5) * MIB) for second in range(0, 600, 2)])
    assert broken(processes=slowly) == ["memory is flat: executor-0 from 160 to 200 MiB"]


def test_what_is_read_once_is_no_growth() -> None:
    once = [(float(second), (100 if second < 450 else 200) * MIB) for second in range(0, 600, 2)]
    assert broken(processes=make_process(once)) == []
    twice = [(at_s, num_bytes + (50 * MIB if at_s >= 460.0 else 0)) for at_s, num_bytes in once]
    assert broken(processes=make_process(twice)) == ["memory is flat: executor-0 from 100 to 250 MiB"]


def told_to_end(ended_s: float | None, *events: Event, grace_s: float | None = 10.0) -> list[str]:
    """What is broken where it was told to end after 100 s; with the time in which it has to be gone it has 40 s."""
    process = make_process(told_s=100.0, grace_s=grace_s, ended_s=ended_s, status=0, reason="terminated")
    history = History(processes=[process], events=list(events), over_s=400.0)
    return [f"{violation.invariant}: {violation.what}" for violation in violations(history)]


def test_who_is_told_to_end_ends_in_its_time() -> None:
    never = "who is told to end ends: executor-0 was told to at 100.0 s, and has not ended at 400.0 s"
    late = "who is told to end ends: executor-0 was told to at 100.0 s, and ended, status 0, at 141.0 s"
    assert told_to_end(139.0) == []
    assert told_to_end(141.0) == [late]
    assert told_to_end(None) == [never]
    assert told_to_end(None, grace_s=None) == []


def test_what_is_done_to_one_that_ends_takes_of_its_time() -> None:
    stopped, bus_away = Event(0, "stopped", "executor-0", 99.0, 110.0), Event(1, "away", "nats-server", 140.0, 150.0)
    of_another, still = Event(2, "stopped", "executor-1", 99.0, 110.0), Event(3, "stopped", "executor-0", 120.0)
    assert told_to_end(149.0, stopped) == []
    assert len(told_to_end(151.0, stopped)) == 1
    assert told_to_end(189.0, stopped, bus_away) == []
    assert len(told_to_end(191.0, stopped, bus_away)) == 1
    assert len(told_to_end(149.0, of_another)) == 1
    assert told_to_end(None, still) == []


def test_no_client_is_answered_with_an_error_of_the_servers() -> None:
    error = ServerError(3.0, "gateway-0", "GET /v1/files", 500)
    found = broken(server_errors=error)
    assert found == ["no answer is an error of the server's: 500 from gateway-0 at 3.0 s: GET /v1/files"]


GONE = make_file(sent_s=1.0, stored_s=2.0, reads=[Read(20.0, 404)], listed={"gateway-0": False})
BACK = make_file(sent_s=1.0, stored_s=2.0, delete_sent_s=6.0, deleted=True, deleted_s=7.0)
FORGOTTEN = make_key(401, make_sent_s=1.0, made_s=2.0)
VALID_AGAIN = make_key(200, make_sent_s=1.0, made_s=2.0, revoke_sent_s=6.0, revoked_s=7.0)
RESUMED = make_batch(
    output=[answered("a")],
    errors=[failed("b", "batch_cancelled"), failed("c")],
    cancelled_s=1.0,
    states=[BatchState(1.0, "cancelling", 3, 1, 0), BatchState(2.0, "completed", 3, 1, 2)],
)
CUT = make_batch(
    output=[answered("a")],
    errors=[],
    states=[BatchState(1.0, "cancelling", 3, 1, 0), BatchState(2.0, "failed", 3, 0, 0)],
)
LINE_LOST = {"status_code": 500, "body": {"error": {"message": LOST_WITH_INPUT}}}
LINES_LOST = make_batch(
    output=[answered("a")],
    errors=[json.dumps({"custom_id": "b", "response": LINE_LOST, "error": None}), failed("c")],
    states=[BatchState(1.0, "in_progress", 3, 0, 0), BatchState(2.0, "completed", 3, 1, 2)],
)
UNDONE = make_batch(states=[*final("completed"), *final("404")])


@pytest.mark.parametrize(
    ("seen", "lost_s", "kept_s"),
    [
        ({"files": GONE}, 1.5, 3.0),
        ({"files": BACK}, 6.5, 3.0),
        ({"keys": FORGOTTEN}, 1.5, 3.0),
        ({"keys": VALID_AGAIN}, 6.5, 3.0),
        ({"batches": UNDONE}, 1.5, 3.0),
        ({"batches": RESUMED}, 1.5, 3.0),
        ({"batches": CUT}, 1.5, 3.0),
        ({"batches": LINES_LOST}, 1.5, 3.0),
    ],
)
def test_what_a_power_cut_took_before_it_was_synced_may_be_gone_and_nothing_else(
    seen: dict[str, Any], lost_s: float, kept_s: float
) -> None:
    def found(at_s: float) -> list[Any]:
        history = History(calm_s=10.0, not_synced=[(at_s, at_s + 0.2)])
        for name, each in seen.items():
            getattr(history, name).append(each)
        return violations(history)

    assert found(lost_s) == []
    assert found(kept_s)


def test_a_result_is_right_whatever_was_lost() -> None:
    wrong = make_batch(output=[answered("a"), answered("b", "no")])
    found = violations(History(batches=[wrong], not_synced=[(1.0, 2.0)]))
    assert [violation.invariant for violation in found] == ["right tokens"]


def test_errors_that_nobody_foresaw() -> None:
    assert broken(unforeseen="executor-0: KeyError: 3") == ["every error is handled: executor-0: KeyError: 3"]


def test_what_is_left_over() -> None:
    history = History(left_over={"online_running of executor-0": 2})
    assert [violation.what for violation in violations(history)] == ["online_running of executor-0: 2"]
    history.left_over |= {"messages of A_STREAM": 3}
    assert len(violations(history)) == 2
    history.not_synced.append((1.0, 2.0))
    assert [violation.what for violation in violations(history)] == ["online_running of executor-0: 2"]


def test_a_pause_is_put_down_to_what_went_on_beside_it() -> None:
    pauses = Pauses()
    events = [Event(0, "killed", "executor-0", 1.5, 1.5), Event(1, "stopped", "gateway-0", 100.0, 101.0)]
    slow = make_stream(pieces=[Piece(1.0, "Once "), Piece(4.0, "upon")], ended_s=4.5)
    pauses.add([slow, make_stream(is_whole=True, pieces=[Piece(2.4, "Once upon")])], events)
    assert (pauses.longest_s, pauses.beside, pauses.beside_alone) == (3.0, {"killed": 3.0}, {"killed": 3.0})
    pauses.add([slow], [*events, Event(2, "power cut", "nats-server", 0.0)])
    assert pauses.beside == {"killed": 3.0, "power cut": 3.0}
    assert pauses.beside_alone == {"killed": 3.0}
