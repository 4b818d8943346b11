"""Plans and what is told of steps name each request once."""

from collections.abc import Callable

import msgspec
import pytest

from shared.protocol.codec import decode, encode
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest


def plan_of(request_ids: list[str]) -> StepPlan:
    entries = [ScheduledRequest(each, Kind.OFFLINE, 1) for each in request_ids]
    return StepPlan("executor-0", "epoch-1", 3, entries, [], [], 5.0)


def started_with(request_ids: list[str]) -> StepStarted:
    states = [Request(each, Kind.ONLINE, 20, 30) for each in request_ids]
    return StepStarted("executor-0", "epoch-1", 3, PlanSource.PLAN, False, [], states, [], 9)


@pytest.mark.parametrize("make", [plan_of, started_with])
def test_a_request_is_named_once(make: Callable[[list[str]], StepPlan | StepStarted]) -> None:
    """Also by who sends it: it cannot be made otherwise."""
    message = make(["a", "b"])
    assert decode(encode(message), type(message)) == message
    with pytest.raises(ValueError, match="a request has one"):
        make(["a", "b", "a"])
    told = msgspec.to_builtins(message)
    name = "entries" if isinstance(message, StepPlan) else "states"
    told[name] = [*told[name], told[name][0]]
    with pytest.raises(msgspec.ValidationError, match="a request has one"):
        decode(encode(told), type(message))
