"""To whom a request is offered once it decodes, by what heartbeats tell."""

from typing import cast

import pytest
from msgspec.structs import replace

from services.executor.handover.giving import Giving
from services.executor.handover.peers import Peers
from services.executor.handover.pushing import Pushing
from services.executor.handover.sim_link import SimLink
from shared.bus import Bus
from shared.protocol.executors import ExecutorCounters, Heartbeat
from shared.protocol.handover import Carried, Place
from shared.scheduling.kv.pool import BlockOwners
from shared.scheduling.request import Kind
from shared.text.tokenizer import Tokenizer
from shared.watch.tuning import Tuning
from tests.services.executor.handover.test_pulling import NO_TIME, OWN, STRICT
from tests.shared.replica.test_handover import held_at, make_rig, request_of
from tests.shared.replica.test_look_ahead import SPEC
from tests.shared.replica.test_readers import ManualClock

TAKER = Place("taker", "one")


class NothingGoes(Giving):
    """That is on its way."""

    def __init__(self) -> None:
        """Without anything to give with."""

    def on_their_way_to(self, place: Place) -> list[Carried]:
        return []


@pytest.mark.parametrize(
    ("kind", "num_free", "num_reserved", "has_room"),
    [
        (Kind.OFFLINE, 10, 7, True),
        (Kind.OFFLINE, 10, 8, False),
        (Kind.ONLINE, 1, 8, True),
        (Kind.ONLINE, 0, 8, False),
    ],
)
async def test_who_has_room_by_its_heartbeat(
    tokenizer: Tokenizer, kind: Kind, num_free: int, num_reserved: int, has_room: bool
) -> None:
    """For a request of three blocks: two that offline requests hold are for online ones, and so is the reserve."""
    link, peers = SimLink(OWN, SPEC, NO_TIME), Peers(OWN, SPEC.model, ManualClock())
    await link.connect(replace(link.address, place=TAKER))
    info = replace(STRICT, executor_id=TAKER.executor_id)
    owners = BlockOwners(offline=2, empty=num_free)
    peers.hear(
        Heartbeat(
            info, ExecutorCounters(), False, 0, 0, 0, 1, num_free, blocks=owners, num_reserved_blocks=num_reserved
        )
    )
    pushing = Pushing(peers, link, NothingGoes(), Tuning(cast(Bus, None), lambda: None))
    (carried,) = held_at(make_rig(tokenizer), request_of("a", kind))
    assert pushing.taker(carried) == (TAKER if has_room else None)


@pytest.mark.parametrize(("lacking", "adapter"), [({"adapters": ("other",)}, "sql"), ({"max_model_len": 41}, "")])
async def test_who_cannot_run_it_is_passed_over(tokenizer: Tokenizer, lacking: dict[str, object], adapter: str) -> None:
    """It was offered to the one that suits best again and again, who refused it each time, and to nobody else."""
    rig = make_rig(tokenizer, adapters=("sql",))
    link, peers = SimLink(OWN, SPEC, NO_TIME), Peers(OWN, SPEC.model, ManualClock())
    able = replace(SPEC, adapters=("sql",))
    for executor_id, spec, num_free in (("best", replace(able, **lacking), 30), ("able", able, 20)):
        await link.connect(replace(link.address, place=Place(executor_id, "one")))
        info = replace(STRICT, executor_id=executor_id, spec=spec)
        peers.hear(Heartbeat(info, ExecutorCounters(), False, 0, 0, 0, 0, num_free))
    pushing = Pushing(peers, link, NothingGoes(), Tuning(cast(Bus, None), lambda: None))
    (carried,) = held_at(rig, request_of("a", Kind.ONLINE, adapter=adapter))
    assert pushing.taker(carried) == Place("able", "one")
