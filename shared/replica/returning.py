"""Whose KV comes back from the host beside a step, rather than before it."""

from msgspec.structs import replace

from shared.scheduling.limits import Limits
from shared.scheduling.request import OFFLINE, ONLINE
from shared.scheduling.schedule import Schedule, ScheduledRequest
from shared.scheduling.table import RequestTable


def split_returning(schedule: Schedule, table: RequestTable, limits: Limits) -> tuple[Schedule, list[ScheduledRequest]]:
    """What is to run now, and whom to leave out: their KV is copied beside the step, and they run in the next one.
    That is so where the others would lose more time, all together, by waiting for the copies than those lose by
    sitting out a step, and also where online requests would wait for longer than the step's budget leaves; never where
    nobody else runs."""
    may_return = any(request.num_missing_slots for request in table.running(OFFLINE).values())
    if limits.swap_ms_per_slot == 0.0 or not may_return:
        return schedule, []
    returning, num_slots = [], 0
    for entry in schedule.entries:
        request = None if entry.kind is ONLINE else table.get(entry.request_id)  # only offline ones are paused
        if request is not None and request.num_missing_slots:
            returning.append(entry)
            num_slots += request.num_missing_slots
    num_others, copies_ms = len(schedule.entries) - len(returning), num_slots * limits.swap_ms_per_slot
    has_online = bool(schedule.entries) and schedule.entries[0].kind is ONLINE  # entries are online first
    is_in_time = copies_ms <= schedule.spare_ms or not has_online
    if not returning or (is_in_time and copies_ms * num_others <= schedule.latency_ms * len(returning)):
        return schedule, []
    left_out = {entry.request_id for entry in returning}
    return replace(schedule, entries=[each for each in schedule.entries if each.request_id not in left_out]), returning
