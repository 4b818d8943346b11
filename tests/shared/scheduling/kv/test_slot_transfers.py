"""Copies between two steps are consolidated: what is executed is one copy into each slot, from where it is now."""

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.slot_transfers import SlotOperations, SlotTransfers, worthless


def test_moves_in_a_row_are_one_and_back_is_none() -> None:
    transfers = SlotTransfers(4)
    transfers.move(1, 5)
    transfers.move(5, 9)
    transfers.move(2, 5)
    assert transfers.peek().moves == [(1, 9), (2, 5)]
    transfers.move(9, 1)
    assert transfers.take().moves == [(2, 5)]
    assert not transfers.take()


def test_a_moved_slot_is_checkpointed_from_where_it_is() -> None:
    transfers = SlotTransfers(4)
    transfers.move(1, 5)
    host_slot = transfers.checkpoint(5)
    assert host_slot is not None
    operations = transfers.take()
    assert (operations.moves, operations.checkpoints) == ([], [(1, host_slot)])


def test_a_checkpoint_that_is_restored_before_the_step_is_a_move() -> None:
    transfers = SlotTransfers(4)
    host_slot = transfers.checkpoint(1)
    assert host_slot is not None
    transfers.restore(host_slot, 7)
    operations = transfers.take()
    assert operations == SlotOperations(moves=[(1, 7)])
    assert transfers.num_host_free == 4


def test_a_restore_that_is_checkpointed_before_the_step_stays_on_the_host() -> None:
    transfers = SlotTransfers(1)
    host_slot = transfers.checkpoint(1)
    assert host_slot is not None
    transfers.take()
    transfers.restore(host_slot, 7)
    transfers.move(7, 3)
    assert transfers.checkpoint(3) == host_slot
    assert not transfers.take()
    transfers.check_integrity()


def test_a_host_slot_is_free_only_after_the_step_has_read_it() -> None:
    transfers = SlotTransfers(1)
    host_slot = transfers.checkpoint(1)
    assert host_slot is not None and transfers.checkpoint(2) is None
    transfers.take()
    transfers.restore(host_slot, 7)
    assert transfers.checkpoint(2) is None
    assert transfers.take().restores == [(host_slot, 7)]
    assert transfers.checkpoint(2) == host_slot


def test_what_nobody_needs_is_not_copied() -> None:
    transfers = SlotTransfers(4)
    transfers.move(1, 5)
    transfers.forget(5)
    host_slot = transfers.checkpoint(2)
    assert host_slot is not None
    transfers.release(host_slot)
    assert not transfers.take() and list(transfers.held()) == []


def test_what_failed_operations_wrote_is_followed_through_later_ones() -> None:
    failed = SlotOperations(moves=[(1, 2)], restores=[(0, 3)], checkpoints=[(4, 7)])
    copied_on = SlotOperations(moves=[(2, 5), (9, 2)], restores=[(7, 8)], checkpoints=[(3, 6)])
    assert worthless(failed, []) == ({2, 3}, {7})
    assert worthless(failed, [copied_on]) == ({3, 5, 8}, {6, 7})
    assert worthless(failed, [copied_on, SlotOperations(moves=[(0, 3), (1, 5), (1, 8)])]) == (set(), {6, 7})


Place: TypeAlias = tuple[str, int]  # a slot of the device, or of the host
NUM_SLOTS, NUM_HOST_SLOTS = 6, 4
ACTIONS = ("write", "move", "move", "checkpoint", "checkpoint", "restore", "restore", "forget", "release", "take")


class NaiveTransfers:
    """What is where, and where it was when copies were last taken: what is elsewhere now is to be copied from there."""

    def __init__(self) -> None:
        """All but two slots of the device hold something."""
        written: list[Place] = [("device", slot) for slot in range(NUM_SLOTS - 2)]
        self.origins = {place: place for place in written}  # of what somebody needs, by where it is now
        self.leaving: dict[int, None] = {}  # host slots that the next step still reads, or might have

    def slots(self, side: str) -> list[int]:
        return sorted(slot for where, slot in self.origins if where == side)

    def move(self, source: Place, slot: Place) -> None:
        self.origins[slot] = self.origins.pop(source)

    def copies(self, source: str, destination: str) -> list[tuple[int, int]]:
        return sorted(
            (old, slot)
            for (where, slot), (was, old) in self.origins.items()
            if (was, where) == (source, destination) and (was, old) != (where, slot)
        )

    def take(self) -> None:
        self.origins = {place: place for place in self.origins}
        self.leaving.clear()


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9), st.integers(0, 9)), min_size=20, max_size=40))
def test_what_is_copied_is_what_is_elsewhere_than_it_was(actions: list[tuple[str, int, int]]) -> None:
    """Nothing else, once, and with as many host slots free as nobody needs."""
    transfers, naive = SlotTransfers(NUM_HOST_SLOTS), NaiveTransfers()
    for action, which, where in actions:
        on_device, on_host = naive.slots("device"), naive.slots("host")
        vacant = [slot for slot in range(NUM_SLOTS) if slot not in on_device]
        if action == "take":
            transfers.take()
            naive.take()
        elif action == "write" and vacant:  # as a step does, once its copies are done
            transfers.take()
            naive.take()
            naive.origins["device", vacant[where % len(vacant)]] = "device", vacant[where % len(vacant)]
        elif action == "move" and on_device:
            source = on_device[which % len(on_device)]
            slot = [source, *vacant][where % (len(vacant) + 1)]
            transfers.move(source, slot)
            naive.move(("device", source), ("device", slot))
        elif action == "checkpoint" and on_device:
            slot = on_device[which % len(on_device)]
            was, old = naive.origins["device", slot]
            host_slot = transfers.checkpoint(slot)
            if was == "host":
                assert host_slot == old, "it has not left the host"
                del naive.leaving[old]
            else:
                assert (host_slot is None) is (len(on_host) + len(naive.leaving) == NUM_HOST_SLOTS)
                assert host_slot is None or host_slot not in {*on_host, *naive.leaving}
            if host_slot is not None:
                naive.move(("device", slot), ("host", host_slot))
        elif action == "restore" and on_host and vacant:
            host_slot, slot = on_host[which % len(on_host)], vacant[where % len(vacant)]
            transfers.restore(host_slot, slot)
            if naive.origins["host", host_slot] == ("host", host_slot):
                naive.leaving[host_slot] = None
            naive.move(("host", host_slot), ("device", slot))
        elif action == "forget" and on_device:
            slot = on_device[which % len(on_device)]
            transfers.forget(slot)
            del naive.origins["device", slot]
        elif action == "release" and on_host:
            host_slot = on_host[which % len(on_host)]
            transfers.release(host_slot)
            del naive.origins["host", host_slot]
        check(transfers, naive)


def check(transfers: SlotTransfers, naive: NaiveTransfers) -> None:
    transfers.check_integrity()
    operations = transfers.peek()
    assert sorted(operations.moves) == naive.copies("device", "device")
    assert sorted(operations.restores) == naive.copies("host", "device")
    assert sorted(operations.checkpoints) == naive.copies("device", "host")
    assert bool(operations) is any((operations.moves, operations.restores, operations.checkpoints))
    assert transfers.has_arrivals is any((operations.moves, operations.restores))
    assert list(transfers.held()) == naive.slots("host")
    assert transfers.num_host_free == NUM_HOST_SLOTS - len(naive.slots("host")) - len(naive.leaving)
