"""The faults of a run, drawn from its seed before it begins, so that some of them can be left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import msgspec

from tests.simulation.setup import Setup
from tests.simulation.traffic import Traffic

AT_ONCE_SHARE = 0.25  # of faults, which begin with the one before
LASTS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 13.0, 30.0)  # leases end after 10 s
MIN_WAIT_S = 0.01


class Fault(msgspec.Struct, frozen=True):
    """``target``: a service, or the bus; ``lasts_s``: of those that are undone; ``draw``: in [0, 1), for what the kind
    has to choose."""

    number: int
    kind: str
    target: str
    at_s: float
    lasts_s: float
    draw: float


def _all(setup: Setup) -> list[str]:
    return setup.names


def _executors(setup: Setup) -> list[str]:
    return [name for name in setup.names if name.startswith("executor")]


def _bus(setup: Setup) -> list[str]:
    return ["bus"]


def _spare(setup: Setup) -> list[str]:
    return [f"executor-{setup.num_executors + index}" for index in range(2)]


# kind -> how often it is drawn beside the others, whom it can hit
KINDS: dict[str, tuple[float, Callable[[Setup], list[str]]]] = {
    "kill": (4.0, _all),
    "term": (2.0, _all),
    "stop": (3.0, _all),
    "cut": (2.0, _all),
    "cut-up": (1.0, _all),
    "cut-down": (1.0, _all),
    "slow": (1.5, _all),
    "lossy": (1.5, _all),
    "break": (2.0, _all),  # its connections are reset
    "bus-kill": (1.5, _bus),
    "bus-power": (1.0, _bus),
    "bus-stop": (0.5, _bus),
    "disk-full": (1.0, _bus),
    "clock": (1.0, _all),
    "hang": (0.5, _executors),
    "drain": (1.0, _executors),
    "join": (1.0, _spare),
    "wrong-version": (1.0, _bus),
}


def draw_faults(
    seed: str,
    setup: Setup,
    traffic: Traffic,
    from_s: float,
    until_s: float,
    mean_wait_s: float,
    kinds: Sequence[str] = tuple(KINDS),
) -> list[Fault]:
    """Every one of them has been undone by ``until_s``. ``mean_wait_s``: in a burst."""
    rng = random.Random(f"{seed}:faults")
    shares = [KINDS[kind][0] for kind in kinds]
    at_s, faults = from_s, list[Fault]()
    while kinds:
        if rng.random() >= AT_ONCE_SHARE:
            at_s = traffic.next_fault_s(at_s + MIN_WAIT_S, mean_wait_s, rng)
        kind = rng.choices(kinds, shares)[0]
        target, lasts_s, draw = rng.choice(KINDS[kind][1](setup)), rng.choice(LASTS_S), rng.random()
        if at_s + lasts_s >= until_s:
            break
        faults.append(Fault(len(faults), kind, target, round(at_s, 3), lasts_s, draw))
    return faults


def only(faults: Sequence[Fault], numbers: Collection[int] | None) -> list[Fault]:
    """Those, in their order; all for None."""
    return [fault for fault in faults if numbers is None or fault.number in numbers]
