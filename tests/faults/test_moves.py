"""Requests that move with their KV between real processes, with the torch engine and SmolLM2, while those are killed,
stopped and cut off from each other. More of it: ``python -m tests.faults --engine torch --strict 1``."""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.kinds.registry import FAULTS
from tests.faults.plan import Planned
from tests.faults.stack.hosts import may_make_hosts
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack

SEED = 16
STRICT, *RELAXED = Shape("torch").executors
EVENTS = (  # kind, target, seconds after the one before has begun, seconds that it lasts
    ("data link cut", RELAXED[0], 3.0, 4.0),
    ("stopped", RELAXED[1], 2.0, 2.0),
    ("data link cut", STRICT, 4.0, 4.0),
    ("killed", RELAXED[1], 2.0, 0.0),
    ("stopped", STRICT, 4.0, 4.0),
    ("data link cut", RELAXED[0], 1.0, 1.0),
    ("killed", STRICT, 4.0, 0.0),
    ("stopped", RELAXED[0], 2.0, 4.0),
)


def campaign_on(stack: Stack) -> Campaign:
    return Campaign(stack, SEED, lambda event: None)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
async def test_no_token_is_lost_or_doubled_whoever_has_the_request(tmp_path: Path) -> None:
    """All answers are those of one mixed executor that nothing is done to."""
    alone = Shape("torch", num_executors=1, num_gateways=1)
    async with Stack(tmp_path / "mixed", alone, random.Random(SEED)) as stack:
        mixed = campaign_on(stack)
        await mixed.begin()
    shape = Shape("torch", num_strict=1, has_hosts=may_make_hosts())
    possible = [event for event in EVENTS if event[1] in FAULTS[event[0]].targets(shape)]
    planned = [
        Planned(number, kind, target, wait_s, lasts_s, number)
        for number, (kind, target, wait_s, lasts_s) in enumerate(possible)
    ]
    async with Stack(tmp_path / "pools", shape, random.Random(SEED)) as stack:
        campaign = campaign_on(stack)
        await campaign.begin(mixed.questions.right)
        found = await campaign.run(planned)
    assert found == []
    summary = campaign.summary
    assert summary.events.total() == len(planned)
    assert summary.streams["done"] > 0 and summary.num_lines > 0
    assert [*summary.takers] == [STRICT] and summary.takers[STRICT] > 0
