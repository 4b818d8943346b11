"""Requests that are lost on their way to an executor, while nobody's connection is."""

import tempfile
from pathlib import Path

import pytest

from shared.protocol import subjects
from tests.checker.history import Ended, Stream
from tests.faults.load import streams
from tests.simulation.run import end_processes, in_virtual_time, model_path, short_questions
from tests.simulation.setup import Pace, Setup
from tests.simulation.world import World

SOON_S = 20.0


@pytest.mark.parametrize("num_lost", [1, 2])
def test_one_of_a_gateway_that_its_executor_has_not_heard_of_is_sent_again(num_lost: int) -> None:
    setup = Setup(num_gateways=1, num_executors=1, has_standby=False, has_tuning=False)

    async def run() -> Stream:
        with tempfile.TemporaryDirectory() as folder:
            world = World("lost", setup, Pace(), model_path(), Path(folder))
            try:
                await world.begin()
                way, num_left = world.nats.link("gateway-0").up, num_lost

                def loses(subject: str) -> bool:
                    nonlocal num_left
                    is_lost = subject == subjects.inbox("executor-0") and num_left > 0
                    num_left -= is_lost
                    return is_lost

                way.loses = loses
                begun_s, question = world.now(), short_questions().all[0]
                asked = await streams.ask(world.clients("asks"), question, "gateway-0", "", is_whole=True)
                assert num_left == 0 and world.now() < begun_s + SOON_S
                return asked
            finally:
                await end_processes(world)

    assert in_virtual_time("lost", run)[0].ended is Ended.DONE
