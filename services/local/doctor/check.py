"""One thing that ``slackwater doctor`` has looked at."""

import enum

import msgspec


class State(enum.StrEnum):
    """Whether it is in the way of ``slackwater up``."""

    OK = "ok"
    WARNING = "warning"  # a stack starts, but something will be slow, missing or other than expected
    FAILED = "failed"  # no stack starts


class Check(msgspec.Struct, frozen=True):
    """``found``: what there is. ``remedy``: what to do about it; empty where nothing is to be done."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, State.OK, found)


def warning(name: str, found: str, remedy: str) -> Check:
    return Check(name, State.WARNING, found, remedy)


def failed(name: str, found: str, remedy: str) -> Check:
    return Check(name, State.FAILED, found, remedy)
