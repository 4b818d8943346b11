"""Fewer faults, in less time, that still break something."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tests.simulation.run import Order, faults_of, simulate

LEAST_HOURS = 0.03  # of a run


def shrunk(order: Order, tell: Callable[[Order], None], is_wrong: Callable[[Order], bool] | None = None) -> Order:
    """With as few faults as still break something, and about as short as those need. ``tell`` hears of each that is
    tried; ``is_wrong``: whether it breaks something; without it, it is run."""

    def tried(smaller: Order) -> bool:
        tell(smaller)
        return bool(simulate(smaller).violations) if is_wrong is None else is_wrong(smaller)

    order = shortest(order, tried)
    numbers = [fault.number for fault in faults_of(order)]
    left = fewest(numbers, lambda fewer: tried(replace(order, faults=tuple(fewer))))
    return shortest(replace(order, faults=tuple(left)), tried)


def shortest(order: Order, is_wrong: Callable[[Order], bool]) -> Order:
    """Halved as long as it is wrong and has the faults that are asked for: a shorter run begins as the longer one."""
    asked = order.faults or ()
    while order.hours / 2 >= LEAST_HOURS:
        half = replace(order, hours=order.hours / 2)
        if len(faults_of(half)) < len(asked) or not is_wrong(half):
            break
        order = half
    return order


def fewest(numbers: Sequence[int], is_wrong: Callable[[Sequence[int]], bool]) -> list[int]:
    """Of which none can be left out (delta debugging: Zeller and Hildebrandt 2002, ddmin)."""
    left, num_parts = list(numbers), 2
    while left:
        parts = _split(left, num_parts)
        others = [[number for number in left if number not in part] for part in parts]
        found = next((each for each in (*parts, *others) if len(each) < len(left) and is_wrong(each)), None)
        if found is not None:
            num_parts = max(2, num_parts - 1) if found in others and found not in parts else 2
            left = found
        elif num_parts < len(left):
            num_parts = min(len(left), 2 * num_parts)
        else:
            break
    return left


def _split(numbers: Sequence[int], num_parts: int) -> list[list[int]]:
    size = -(-len(numbers) // num_parts)
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]
