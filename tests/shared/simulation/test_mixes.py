"""Nobody stands still for ever, whatever comes together: of all strategies, with hardly enough blocks."""

import pytest

from tests.shared.simulation.mixes import play

NUM_SEEDS, NUM_TOGETHER = 500, 50


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, NUM_TOGETHER))
def test_everything_ends_once_where_blocks_are_short(first: int) -> None:
    for seed in range(first, first + NUM_TOGETHER):
        play(seed)
