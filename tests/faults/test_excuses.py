"""What a process that ended, and an answer that broke off, are not blamed for; all else is seen."""

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.local.stack.processes.process import Command
from tests.checker.check import violations
from tests.checker.history import History, Process, Start
from tests.faults.stack.gaps import gaps_of, in_all
from tests.faults.stack.last_words import AT_WORK, STARTED, STOPPED_BY, named_error, said
from tests.faults.stack.member import Member
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack

INF, AN_HOUR_S = float("inf"), 3600.0
CUT = "link cut of executor-0"


def says(event: str, **fields: str) -> str:
    """Of a script: an event of a service's log."""
    return f"print({json.dumps({'event': event, **fields})!r}, flush=True)\n"


def ends_by(error: str) -> str:
    return says(STOPPED_BY, error=f"{error}: so it is") + "raise SystemExit(1)"


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # it is another process
        await asyncio.sleep(0.01)


async def ended(folder: Path, name: str, script: str, disturbance: str, settled_s: float = 0.0) -> Start:
    """How a process that runs it is found to have ended, beside what keeps it from the bus. ``settled_s``: at work, in
    which it may not have all that it needs from there."""
    record = Process(name)
    command = Command(name, (sys.executable, "-c", script), folder / f"{name}.log")
    member = Member(command, record, time.monotonic, folder / "clock")
    member.is_disturbed, member.settled_s = lambda: disturbance, settled_s
    member.start()
    await until(lambda: bool(record.starts) and record.starts[0].ended_s is not None)
    await member.take_away("the end")
    return record.starts[0]


@pytest.mark.parametrize(
    ("name", "script", "reason"),
    [
        ("executor-0", ends_by("BusError"), CUT),
        ("executor-0", ends_by("EngineLostError"), ""),
        ("executor-0", says(STARTED) + ends_by("BusError"), ""),
        ("executor-0", "raise KeyError('a defect')", ""),
        ("executor-0", ends_by("LeaseLostError"), ""),
        ("offline-queue-0", says(STARTED) + ends_by("BusError"), CUT),
        ("offline-queue-0", says(AT_WORK) + ends_by("BusError"), ""),
        ("offline-queue-0", says(AT_WORK) + ends_by("LeaseLostError"), CUT),
        ("offline-queue-0", says(AT_WORK) + "raise KeyError('a defect')", ""),
        ("offline-queue-0", says("failed", exception="Traceback") + ends_by("LeaseLostError"), ""),
    ],
)
async def test_who_ends_by_itself_is_excused_by_a_named_error_alone(
    tmp_path: Path, name: str, script: str, reason: str
) -> None:
    assert (await ended(tmp_path, name, script, CUT)).reason == reason
    assert (await ended(tmp_path, name, script, "")).reason == ""


@pytest.mark.parametrize(("name", "said"), [("gateway-0", STARTED), ("offline-queue-0", AT_WORK)])
async def test_who_has_just_begun_may_not_have_all_that_it_needs_from_the_bus(
    tmp_path: Path, name: str, said: str
) -> None:
    assert (await ended(tmp_path, name, says(said) + ends_by("BusError"), CUT, AN_HOUR_S)).reason == CUT
    assert (await ended(tmp_path, name, says(said) + "raise KeyError('a defect')", CUT, AN_HOUR_S)).reason == ""


WAITS = "import signal, time\n{}\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"
IN_ORDER = "signal.signal(signal.SIGTERM, lambda *_: exit())"
BY_AN_ERROR = "signal.signal(signal.SIGTERM, lambda *_: 1 / 0)"
NOT_AT_ALL = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


async def waiting(tmp_path: Path, does: str) -> tuple[Member, Process]:
    """A member that waits for its SIGTERM, at which it does that, and its record."""
    record, log = Process("executor-0"), tmp_path / "log"
    command = Command("executor-0", (sys.executable, "-c", WAITS.format(does)), log)
    member = Member(command, record, time.monotonic, tmp_path / "clock")
    member.start()
    await until(lambda: log.exists() and "ready" in log.read_text())
    return member, record


@pytest.mark.parametrize(
    ("does", "invariants"),
    [(IN_ORDER, []), (BY_AN_ERROR, ["no process restarts by itself"]), (NOT_AT_ALL, ["who is told to end ends"])],
)
async def test_who_is_told_to_end_has_to_in_order(tmp_path: Path, does: str, invariants: list[str]) -> None:
    member, record = await waiting(tmp_path, does)
    member.terminate("terminated")
    await until(lambda: does == NOT_AT_ALL or record.starts[0].ended_s is not None)
    history = History(processes=[Process("executor-0", record.starts[:1])], over_s=time.monotonic() + AN_HOUR_S)
    assert [each.invariant for each in violations(history)] == invariants
    assert member.is_ending() == (does == NOT_AT_ALL)
    await member.take_away("the end")


async def test_who_is_stopped_in_order_is_seen_not_to(tmp_path: Path) -> None:
    member, record = await waiting(tmp_path, BY_AN_ERROR)
    await member.stop("upgraded")
    assert [start.reason for start in record.starts] == [""]


@pytest.mark.parametrize("ends", [Member.stop, Member.take_away])
async def test_who_is_told_to_end_while_it_is_being_started_is_not_blamed(
    tmp_path: Path, ends: Callable[[Member, str], Awaitable[None]]
) -> None:
    record = Process("executor-0")
    command = Command("executor-0", (sys.executable, "-c", WAITS.format(NOT_AT_ALL)), tmp_path / "log")
    member = Member(command, record, time.monotonic, tmp_path / "clock")
    member.start()
    await asyncio.sleep(0)  # it is on its way
    async with asyncio.timeout(60.0):
        await ends(member, "away")
    assert [start.reason for start in record.starts] == ["away"]


async def test_who_was_killed_need_not_end_in_order(tmp_path: Path) -> None:
    """Its end is seen a moment later, in which something else may be done to it."""
    member, record = await waiting(tmp_path, IN_ORDER)
    member.kill("killed")
    member.terminate("terminated")
    await until(lambda: record.starts[0].ended_s is not None)
    await member.take_away("the end")
    assert (record.starts[0].status, record.starts[0].reason) == (-signal.SIGKILL, "terminated")


def test_a_named_error_is_one_without_a_traceback() -> None:
    named = json.dumps({"event": STOPPED_BY, "error": "BusError: no NATS server answers"})
    assert named_error(named) == named_error(f"no JSON\n[1]\n{named}") == "BusError"
    assert named_error(f"Traceback (most recent call last):\n{named}") == ""
    assert named_error(json.dumps({"event": "failed", "exception": "KeyError"}) + f"\n{named}") == ""
    assert named_error("") == named_error(json.dumps({"event": STARTED})) == ""


def test_what_was_said_before_is_not_said_again(tmp_path: Path) -> None:
    log, line = tmp_path / "log", json.dumps({"event": STARTED}) + "\n"
    assert not said(log, 0, STARTED)
    log.write_text(line)
    assert said(log, 0, STARTED) and not said(log, 0, AT_WORK)
    assert not said(log, len(line), STARTED)
    assert said(log, 2 * len(line), STARTED)  # it has been cut since


async def test_a_traceback_in_a_log_is_told_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    member = Member(Command("executor-0", (), log), Process("executor-0"), time.monotonic, tmp_path / "clock")
    assert member.take_tracebacks() == []
    logged = {"event": "failed", "exception": "Traceback (most recent call last):\n  ...\nKeyError: 3"}
    log.write_text(json.dumps({"event": STARTED}) + "\n" + json.dumps(logged) + "\n")
    assert member.take_tracebacks() == ["executor-0: failed: KeyError: 3"]
    assert member.take_tracebacks() == []
    with log.open("a") as file:
        file.write("Traceback (most recent call last):\n  ...\nKeyError: 4\n")
    assert member.take_tracebacks() == ["executor-0: Traceback (most recent call last):"]


def test_a_process_is_away_from_its_end_until_it_serves() -> None:
    killed = Start(100.0, 2, started_s=108.0, ended_s=200.0)
    record = Process("executor-0", [Start(0.0, 1, told_s=90.0, ended_s=95.0), killed, Start(201.0, 3)])
    assert gaps_of(record, 0.0) == [(-INF, 0.0), (90.0, 100.0), (200.0, 201.0)]
    assert gaps_of(record, 60.0) == [(-INF, 60.0), (90.0, 113.0), (200.0, 261.0)]
    again_and_again = Process("executor-0", [Start(0.0, 1, ended_s=50.0), Start(51.0, 2, ended_s=70.0)])
    assert gaps_of(again_and_again, 60.0) == [(-INF, INF)]


def test_nobody_is_there_only_while_all_are_away() -> None:
    one = gaps_of(Process("executor-0", [Start(0.0, 1, ended_s=100.0), Start(150.0, 2)]), 0.0)
    other = gaps_of(Process("executor-1", [Start(0.0, 1, ended_s=140.0), Start(300.0, 2)]), 0.0)
    later = gaps_of(Process("executor-2", [Start(120.0, 1)]), 0.0)
    assert in_all([one, other]) == [(-INF, 0.0), (140.0, 150.0)]
    assert in_all([one, later]) == [(-INF, 0.0), (100.0, 120.0)]
    assert in_all([one, other, later]) == [(-INF, 0.0)]


@pytest.mark.parametrize(
    ("back_s", "from_s", "to_s", "excuse"),
    [
        (300.0, 100.0, 221.0, "no executor lived"),
        (300.0, 100.0, 180.0, ""),
        (190.0, 100.0, 221.0, ""),
        (300.0, 0.0, 99.0, ""),
    ],
)
def test_an_answer_may_break_off_where_nobody_lived_for_two_minutes(
    tmp_path: Path, back_s: float, from_s: float, to_s: float, excuse: str
) -> None:
    """Both executors are away from the 100th second on, one of them until ``back_s``."""
    stack = Stack(tmp_path, Shape(num_executors=2), random.Random(0))
    gateway = Process("gateway-0", [Start(-60.0, 1)])
    stack.members["gateway-0"] = Member(
        Command("gateway-0", (), tmp_path / "log"), gateway, stack.now, tmp_path / "clock"
    )
    one = Process("executor-0", [Start(-60.0, 2, ended_s=90.0), Start(back_s, 3, started_s=back_s)])
    other = Process("executor-1", [Start(-60.0, 4, ended_s=100.0)])
    stack.history.processes += [gateway, one, other]
    assert stack.excuse("gateway-0", from_s, to_s, was_connected=True) == excuse
