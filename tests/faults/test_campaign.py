"""Thirty faults, of those that this machine allows, in a stack of real processes under load. More of them:
``python -m tests.faults``."""

import random
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.kinds.registry import FAULTS
from tests.faults.plan import draw
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack
from tests.faults.stack.store import may_mount

NUM_EVENTS, SEED = 30, 17


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_is_lost_doubled_or_left_over(tmp_path: Path) -> None:
    shape = Shape(has_disk=may_mount(tmp_path / "may"))
    planned = draw(SEED, NUM_EVENTS, list(FAULTS.values()), shape)
    async with Stack(tmp_path / "stack", shape, random.Random(SEED)) as stack:
        campaign = Campaign(stack, SEED, lambda event: None)
        await campaign.begin()
        found = await campaign.run(planned)
    assert found == []
    summary = campaign.summary
    assert summary.events.total() == NUM_EVENTS
    assert summary.streams["done"] > 0 and summary.num_lines > 0 and summary.num_files > 0 and summary.num_keys > 0


@pytest.mark.campaign
@pytest.mark.timeout(600)
async def test_a_token_that_is_wrong_is_found(tmp_path: Path) -> None:
    """A campaign that knows another answer than the stack gives says so, and what the client saw."""
    async with Stack(tmp_path, Shape(num_executors=1), random.Random(SEED)) as stack:
        campaign = Campaign(stack, SEED, lambda event: None)
        await campaign.begin()
        for question in campaign.questions.long:
            campaign.questions.right[question] = "another answer"
        found = await campaign.run(draw(SEED, 1, [FAULTS["clock jump"]], stack.shape))
    assert {violation.invariant for violation in found} == {"right tokens"}
