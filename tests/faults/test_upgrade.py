"""A stack of the version before, whose processes become this one's, one after another, while clients use it."""

import random
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.plan import Planned
from tests.faults.stack.shape import Shape
from tests.faults.stack.stack import Stack
from tests.faults.stack.version import check_out
from tests.shared.protocol.wire import Wire

SEED, APART_S = 5, 3.0


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The code of the last version that was released."""
    try:
        return check_out(Wire.of_the_last_version().revision, tmp_path / "before")
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_strict", [0, 1], ids=["one pool", "two pools"])
async def test_each_process_in_its_turn_and_nothing_is_lost(before: Path, num_strict: int, tmp_path: Path) -> None:
    """In any order, at first executors and gateways of both versions, then whatever is left."""
    shape = Shape(num_strict=num_strict, before=before)
    services = random.Random(SEED + num_strict).sample(shape.services, len(shape.services))
    planned = [Planned(number, "upgraded", name, APART_S, 0.0, 0) for number, name in enumerate(services)]
    async with Stack(tmp_path / "stack", shape, random.Random(SEED)) as stack:
        campaign = Campaign(stack, SEED, lambda event: None, at_once=1)
        await campaign.begin()
        found = await campaign.run(planned)
        running = {name: member.command.argv for name, member in stack.members.items()}
    assert found == []
    assert not [name for name, argv in running.items() if str(before) in argv]
    summary = campaign.summary
    assert summary.events.total() == len(services) and summary.streams["done"] > 0 and summary.num_lines > 0
