"""What clients sent and saw, and what could be seen of the processes from outside: all that the checker knows.

Filled while a run goes on, by one writer each; times are seconds since the run's begin, by a clock that no fault sets.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from enum import Enum

BUS = ("nats-server", "bus")  # what faults of it have as their target


class Ended(Enum):
    """How one answer ended for its client."""

    OPEN = "open"  # it has not
    DONE = "done"  # whole, as the protocol says: [DONE], or the body of a 200
    ERROR = "error"  # an error after it was accepted: an error event, or a status of 500 that is no refusal
    REFUSED = "refused"  # an error status in place of an answer, which says that it may be tried again: 429, 503
    BROKEN = "broken"  # the connection broke, or was never made
    LEFT = "left"  # the client left


@dataclass(slots=True)
class Event:
    """One fault. ``until_s``: when the nemesis had undone its part, as woken a stopped process; None: not yet."""

    number: int
    kind: str
    target: str
    at_s: float
    until_s: float | None = None
    note: str = ""

    def concerns(self, process: str) -> bool:
        """Whether it was done to that one, or to the bus that it is at."""
        return self.target in (process, *BUS)

    def overlaps(self, from_s: float, to_s: float, after_s: float = 0.0) -> bool:
        """Whether it, or the ``after_s`` behind it, lies in that time."""
        return self.at_s <= to_s and (self.until_s is None or from_s <= self.until_s + after_s)


@dataclass(slots=True)
class Piece:
    """Text that came at once. Token ids, where a client sees those, stand in it as their decimal digits, each after a
    space."""

    at_s: float
    text: str


@dataclass(slots=True)
class Stream:
    """One online or flex request and its answer; one that is not streamed comes in one piece.

    ``right``: the whole answer that is right, with its end (``answer_end``), which stands in the last piece.
    ``is_whole``: it was not asked for as a stream. ``server``: the gateway that it was sent to. ``excuse``: why it
    might not end as it should, without fault of the system: its gateway died, or no executor lived; empty for none.
    """

    name: str
    server: str
    sent: str
    right: str
    sent_s: float
    is_flex: bool = False
    is_whole: bool = False
    status: int | None = None
    pieces: list[Piece] = field(default_factory=list)
    ended: Ended = Ended.OPEN
    ended_s: float | None = None
    error: str = ""
    excuse: str = ""

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def longest_pause(self) -> tuple[float, float]:
        """Between which moments the client waited longest for a piece or the end, the first piece included."""
        ends = [] if self.ended_s is None else [self.ended_s]
        moments = [self.sent_s, *(piece.at_s for piece in self.pieces), *ends]
        pauses = list(itertools.pairwise(moments))
        return max(pauses, key=lambda pause: pause[1] - pause[0], default=(self.sent_s, self.sent_s))


class LineEnd(Enum):
    """What has to become of a batch's line that is not cancelled."""

    ANSWERED = "answered"  # in the output file
    FAILED = "failed"  # in the error file: it is well-formed, and cannot be served


@dataclass(slots=True)
class Line:
    """``right``: its answer, with its end (``answer_end``); None where it is not known beforehand, as with a schema."""

    custom_id: str
    right: str | None = None
    end: LineEnd = LineEnd.ANSWERED


@dataclass(slots=True)
class BatchState:
    """A batch as a client saw it."""

    at_s: float
    status: str
    total: int
    completed: int
    failed: int


@dataclass(slots=True)
class Tokens:
    """That a batch says its answers took; ``num_cached`` of the input."""

    num_input: int
    num_cached: int
    num_output: int
    num_total: int


@dataclass(slots=True)
class Batch:
    """``accepted``: its creation was answered with 200; False: with an error; None: not at all, so it may be there.

    ``is_malformed``: its file is none of a batch, so it has to fail as a whole. ``cancelled_s``: when a cancellation
    was first sent. ``output`` and ``errors``: its files' lines, as downloaded at the end; None where the batch names
    none. ``tokens``: as of its last state; None where it was not seen. ``listed``: by gateway, the state that its list
    had at the end, empty where it was not in it; those that were asked. ``unread``: why a file that it names could not
    be downloaded.
    """

    name: str
    lines: list[Line]
    sent_s: float
    accepted: bool | None = None
    batch_id: str | None = None
    is_malformed: bool = False
    cancelled_s: float | None = None
    states: list[BatchState] = field(default_factory=list)
    output: list[str] | None = None
    errors: list[str] | None = None
    tokens: Tokens | None = None
    listed: dict[str, str] = field(default_factory=dict)
    unread: str = ""

    @property
    def status(self) -> str:
        """That which was seen last; empty before."""
        return self.states[-1].status if self.states else ""


@dataclass(slots=True)
class Read:
    """A client's attempt to read a file. ``status``: None where no answer came; ``is_same``: byte by byte; ``server``:
    the gateway that was asked when all was well again, empty for any and before."""

    at_s: float
    status: int | None
    is_same: bool = False
    server: str = ""


@dataclass(slots=True)
class File:
    """``stored``: its upload was answered with 200; False: with an error, or broken off by the client; None: no answer
    came. ``deleted``: in the same way, None where nothing is known; ``delete_sent_s``: when a deletion was first sent.
    ``stored_s``, ``deleted_s``: when that was answered. ``listed``: by gateway, whether its list of files named it at
    the end; those that were asked."""

    name: str
    num_bytes: int
    sent_s: float
    stored: bool | None = None
    stored_s: float | None = None
    file_id: str | None = None
    reads: list[Read] = field(default_factory=list)
    delete_sent_s: float | None = None
    deleted: bool | None = None
    deleted_s: float | None = None
    listed: dict[str, bool] = field(default_factory=dict)


@dataclass(slots=True)
class KeyTry:
    """A request with a key: the status that came, None for none."""

    at_s: float
    server: str
    status: int | None


@dataclass(slots=True)
class Key:
    """``made_s``, ``revoked_s``: when the command for it had ended well; None while it has not. ``make_sent_s``,
    ``revoke_sent_s``: when it began."""

    name: str
    make_sent_s: float | None = None
    made_s: float | None = None
    revoke_sent_s: float | None = None
    revoked_s: float | None = None
    tries: list[KeyTry] = field(default_factory=list)


@dataclass(slots=True)
class Start:
    """Of a process. ``ended_s``, ``status``: of its end, as Popen has it; ``reason``: the fault or the order by which
    it ended, empty where it ended by itself; ``told_s``: when it was made to; ``grace_s``: that it had from then on to
    end in order, None where it was killed; ``words``: what it said last; ``started_s``: when it began to serve, where
    that is known."""

    at_s: float
    pid: int
    ended_s: float | None = None
    status: int | None = None
    reason: str = ""
    told_s: float | None = None
    grace_s: float | None = None
    words: str = ""
    started_s: float | None = None


@dataclass(slots=True)
class Process:
    """``memory``: resident bytes of the last start, by seconds."""

    name: str
    starts: list[Start] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class ServerError:
    """An answer of 500 and more that does not say that it may be tried again, to a request that is no stream's."""

    at_s: float
    server: str
    asked: str
    status: int


@dataclass(slots=True)
class History:
    """A whole run. ``calm_s``: since when nothing was done to the system; ``idle_s``: since when nobody else asked it
    for anything, and all that had been asked for was over; ``over_s``: when it was looked at for the last time.
    ``left_over``: what was left in the system then, as ``{"online_running executor-0": 0}``; ``unforeseen``: errors
    with a traceback that processes have told of, in words. ``not_synced``: times in which what the bus stored may not
    have been on its disk when its power was cut."""

    streams: list[Stream] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    server_errors: list[ServerError] = field(default_factory=list)
    unforeseen: list[str] = field(default_factory=list)
    not_synced: list[tuple[float, float]] = field(default_factory=list)
    calm_s: float = 0.0
    idle_s: float = math.inf
    over_s: float = 0.0
    left_over: dict[str, int] = field(default_factory=dict)

    def may_have_lost(self, from_s: float | None, to_s: float | None) -> bool:
        """What was stored then, by a client that asked for it at ``from_s`` and was answered at ``to_s``; None where
        neither was."""
        until_s = math.inf if to_s is None else to_s
        return from_s is not None and any(lost_s <= until_s and from_s <= cut_s for lost_s, cut_s in self.not_synced)
