"""Copies between two steps are consolidated: what is executed is one copy into each slot, from where it is now."""

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
