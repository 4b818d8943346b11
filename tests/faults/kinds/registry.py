"""All kinds of faults, by their names."""

from __future__ import annotations

from tests.faults.kinds.clocks import ClockJump
from tests.faults.kinds.disk import FullDisk, PowerCut
from tests.faults.kinds.fault import Fault
from tests.faults.kinds.links import BAD_LINKS, BrokenLink, DataCut
from tests.faults.kinds.membership import Drained, Joined
from tests.faults.kinds.signals import Away, Killed, Stopped, Terminated
from tests.faults.kinds.upgrades import Upgraded
from tests.faults.kinds.versions import WrongVersion

ALL: tuple[Fault, ...] = (
    Killed(), Terminated(), Stopped(), Away(), *BAD_LINKS, BrokenLink(), DataCut(), FullDisk(), PowerCut(), ClockJump(),
    Joined(), Drained(), WrongVersion(), Upgraded(),
)  # fmt: skip
FAULTS: dict[str, Fault] = {fault.name: fault for fault in ALL}
