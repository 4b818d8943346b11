"""Who runs with whom after an engine step failed."""

from shared.replica.suspects import Suspects
from shared.scheduling.request import Kind
from shared.scheduling.schedule import Schedule, ScheduledRequest


def names(suspects: Suspects, schedule: Schedule) -> list[str]:
    """Of its next step."""
    return [entry.request_id for entry in suspects.group_of(schedule).entries]


def test_each_failure_halves_a_group_and_each_success_doubles_it() -> None:
    everybody = [f"on-{number}" for number in range(40)]
    suspects = Suspects()
    held = Schedule([ScheduledRequest(request_id, Kind.ONLINE, 1) for request_id in everybody], [], 1.0)
    assert not suspects and suspects.group_of(held) is held
    suspects.add(everybody)
    for size in (20, 10, 5, 2):
        group = names(suspects, held)
        assert group == everybody[:size]
        suspects.add(group)
    cleared = list[str]()
    for size in (1, 2, 4, 8, 16):
        group = [request_id for request_id in names(suspects, held) if request_id not in cleared]
        assert len(group) == size
        for request_id in group:
            suspects.clear(request_id)
        cleared += group
    assert cleared == everybody[:31]
    for request_id in everybody[31:]:
        suspects.forget(request_id)
    assert not suspects and suspects.group_of(held) is held
