"""The faults of a run, drawn from a seed before anything runs: the same seed, the same faults."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tests.faults.kinds.fault import Fault
    from tests.faults.stack.shape import Shape

AT_ONCE_SHARE = 0.25  # of events, which begin with the one before
MEAN_WAIT_S = 2.0
LASTS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 13.0)  # leases end after 10 s


class Planned(msgspec.Struct, frozen=True):
    """``wait_s``: after the one before has begun or, where one goes on at a time, ended; ``lasts_s``: of those that
    last; ``draw``: for what the kind has to choose itself."""

    number: int
    kind: str
    target: str
    wait_s: float
    lasts_s: float
    draw: int


def draw(seed: int, num_events: int, faults: Sequence[Fault], shape: Shape) -> list[Planned]:
    """Raises ValueError where no kind can be done to the stack."""
    possible = [(fault, targets) for fault in faults if (targets := fault.targets(shape))]
    if not possible:
        raise ValueError(f"none of these can be done here: {', '.join(fault.name for fault in faults)}")
    rng = random.Random(seed)
    planned = []
    for number in range(num_events):
        ((fault, targets),) = rng.choices(possible, [fault.share for fault, _ in possible])
        wait_s = 0.0 if rng.random() < AT_ONCE_SHARE else rng.expovariate(1 / MEAN_WAIT_S)
        target, lasts_s = rng.choice(targets), rng.choice(LASTS_S)
        planned.append(Planned(number, fault.name, target, round(wait_s, 2), lasts_s, rng.getrandbits(32)))
    return planned


def only(planned: Iterable[Planned], numbers: Collection[int]) -> list[Planned]:
    """Those, in their order; all where none are named."""
    return [each for each in planned if not numbers or each.number in numbers]


def apart(planned: Iterable[Planned], wait_s: float) -> list[Planned]:
    """The same, each so long after the one before."""
    return [msgspec.structs.replace(each, wait_s=wait_s) for each in planned]


def write(path: Path, planned: Sequence[Planned]) -> None:
    """One a line, as JSON."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in planned))


def read(path: Path) -> list[Planned]:
    """As ``write`` left it. Raises msgspec.ValidationError."""
    return [msgspec.json.decode(line, type=Planned) for line in path.read_bytes().splitlines()]
