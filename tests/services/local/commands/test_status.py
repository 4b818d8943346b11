"""What ``slackwater status`` says of an executor."""

import pytest
from msgspec.structs import replace

from services.local.commands.status.table import describe
from shared.protocol.executors import ExecutorCounters, Heartbeat
from shared.scheduling.strategy import Strategy
from tests.services.profiler.profiling import executor_info


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Strategy(), "blocks   500 of 600 free"),
        (
            Strategy(kv_eviction="task-aware"),
            "blocks   500 of 600 free, 120 of them to be read by offline requests",
        ),
        (Strategy(kv_reserve="burst"), "blocks   500 of 600 free, 70 to be left for online requests"),
        (
            Strategy(kv_eviction="task-aware", kv_reserve="burst"),
            "blocks   500 of 600 free, 120 of them to be read by offline requests, 70 to be left for online requests",
        ),
    ],
)
def test_free_blocks_are_told_by_what_they_are_kept_for(strategy: Strategy, said: str) -> None:
    info = replace(executor_info(num_blocks=600), strategy=strategy)
    beat = Heartbeat(info, ExecutorCounters(), False, 0, 0, 0, 0, 500, num_wanted_blocks=120, num_reserved_blocks=70)
    assert describe(beat).splitlines()[-1].strip() == said


def test_it_is_told_when_tokens_are_due_where_anybody_goes_by_that() -> None:
    def due(strategy: Strategy) -> list[str]:
        beat = Heartbeat(replace(executor_info(), strategy=strategy), ExecutorCounters(), False, 0, 0, 0, 0, 500)
        return [line.strip() for line in describe(beat).splitlines() if line.startswith("  due")]

    assert due(Strategy()) == []
    words = "due      first tokens within 1000 ms, later ones 50 ms each (counted from the first token)"
    assert due(Strategy.of("echo")) == [words]
