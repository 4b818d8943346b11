"""A page of KV: see ``pages``."""

from dataclasses import dataclass, field

from shared.scheduling.request import Kind


@dataclass(slots=True, eq=False)
class Page:
    """Positions [0, used) of a table entry; those below ``resident`` are on the device, the rest on the host."""

    number: int  # by creation
    index: int  # of its entry in the tables that hold it
    kind: Kind
    block_id: int | None = None
    used: int = 0
    resident: int = 0
    computed: int = 0  # positions whose KV is written
    host_slots: list[int] = field(default_factory=list)  # of positions used - 1, used - 2, ... resident
    holders: dict[str, None] = field(default_factory=dict)
    num_active: int = 0  # holders that are not paused
    hash: bytes | None = None  # set while its full contents are known; see ``PageCache``
    is_held: bool | None = None  # None while it is not found, False while anybody may take its block
    num_hits: int = 0  # requests that have found them
    is_alone: bool = False  # offline, held, and without an online page in its block
    is_beside: bool = False  # offline, held, and with one
    is_kept: bool = False  # offline, and neither idle nor without room in its block
    idle_key: tuple[int, int] | None = None  # place among the idle ones, which see

    @property
    def is_whole(self) -> bool:
        return not self.host_slots
