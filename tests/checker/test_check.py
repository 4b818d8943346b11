"""Each invariant, kept and broken once."""

import json
from typing import Any

import pytest

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
    Start,
    Stream,
)
from tests.checker.pauses import Pauses

MIB = 2**20


def make_stream(**fields: Any) -> Stream:
    pieces = [Piece(1.0, "Once "), Piece(2.0, "upon")]
    made = {"sent_s": 0.5, "pieces": pieces, "ended": Ended.DONE, "ended_s": 2.5, "status": 200} | fields
    return Stream(**{"name": "a stream", "server": "gateway-0", "sent": "{}", "right": "Once upon"} | made)


def answered(custom_id: str, text: str = "yes") -> str:
    return json.dumps({"custom_id": custom_id, "response": {"body": {"choices": [{"text": text}]}}, "error": None})


def failed(custom_id: str, code: str = "invalid") -> str:
    return json.dumps({"custom_id": custom_id, "response": None, "error": {"code": code}})


def make_batch(**fields: Any) -> Batch:
    """Of two lines that are answered, and one that fails."""
    lines = [Line("a", "yes"), Line("b", "yes"), Line("c", end=LineEnd.FAILED)]
    made = {"output": [answered("a"), answered("b")], "errors": [failed("c")], "accepted": True, "batch_id": "batch-1"}
    states = [BatchState(1.0, "in_progress", 3, 0, 0), BatchState(2.0, "completed", 3, 2, 1)]
    return Batch(**{"name": "a batch", "lines": lines, "sent_s": 0.0, "states": states} | made | fields)


def make_file(**fields: Any) -> File:
    made = {"stored": True, "file_id": "file-1", "reads": [Read(20.0, 200, True)], "listed": True}
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
        [make_file(), make_file(stored=None, file_id=None, reads=[], listed=True)],
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
        (make_batch(output=[answered("a"), answered("b", "no")]), "right tokens: b: 'no' instead of 'yes'"),
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
        (make_file(listed=False), "nothing accepted is gone: it is not in the list"),
        (make_file(reads=[Read(20.0, 503)]), "all is well at the end: status 503"),
        (make_file(delete_sent_s=3.0, deleted=True), "what is gone stays gone: it is there at the end"),
        (make_file(stored=False, reads=[]), "what is gone stays gone: it is there at the end"),
    ],
)
def test_a_file_that_is_not_as_promised(file: File, what: str) -> None:
    assert broken(files=file) == [what]


def test_a_key_that_is_not_as_promised() -> None:
    assert broken(keys=make_key(401)) == ["a key is valid: 401 from gateway-0"]
    revoked = make_key(200, revoke_sent_s=2.0, revoked_s=3.0)
    assert broken(keys=revoked) == ["a revoked key is refused: status 200 from gateway-0"]


def test_a_process_that_is_not_as_promised() -> None:
    ended = broken(processes=make_process(ended_s=3.0, status=1))
    assert ended == ["no process restarts by itself: executor-0 ended by itself at 3.0 s, status 1"]
    growing = make_process([(float(second), (100 + second) * MIB) for second in range(0, 600, 2)])
    assert broken(processes=growing) == ["memory is flat: executor-0 from 399 to 599 MiB"]
    flat = make_process([(float(second), 100 * MIB) for second in range(0, 600, 2)])
    assert broken(processes=flat) == []


def test_what_is_left_over() -> None:
    history = History(left_over={"online_running of executor-0": 2})
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
