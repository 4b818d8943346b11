"""One run: a seed, its stack, its faults, and what came of them."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import logging
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, TypeVar

import msgspec

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.text.tool_format import ToolFormat
from tests.checker.history import Ended, Event
from tests.checker.violation import Violation
from tests.faults.load import streams
from tests.faults.load.questions import Questions, chats, schemas, texts, tools
from tests.faults.summary import Summary
from tests.services.gateway.tool_models import make_model
from tests.simulation.faults import KINDS, Fault, draw_faults, only
from tests.simulation.knobs import turned
from tests.simulation.log import RunLog, logging_to
from tests.simulation.loop import VirtualLoop
from tests.simulation.services import files_read_once
from tests.simulation.setup import Pace, Setup, draw_setup
from tests.simulation.takeover import taken_over
from tests.simulation.traffic import MIXED, Traffic
from tests.simulation.world import World

T = TypeVar("T")

logger = logging.getLogger(__name__)

BEGIN_S = 30.0  # until the first fault
CALM_S = 30.0  # without one before the end
THREAD_S = 0.002  # at most, of what runs in a thread
processor_s = time.process_time


class Order(msgspec.Struct, frozen=True):
    """What to run. ``faults``: the numbers of those that are done, None for all; ``kinds``: of faults; ``traffic``: one
    of TRAFFICS."""

    seed: int
    hours: float = 1.0
    kinds: tuple[str, ...] = tuple(KINDS)
    faults: tuple[int, ...] | None = None
    traffic: str = MIXED


@dataclass
class Outcome:
    """``digest``: of the log; ``hours``: virtual ones; ``cpu_s``: that they took; ``num_turns``: of the loop."""

    order: Order
    setup: Setup
    faults: list[Fault]
    digest: str
    num_log_lines: int
    hours: float
    cpu_s: float
    num_turns: int
    summary: Summary
    events: list[Event]

    @property
    def violations(self) -> list[Violation]:
        return self.summary.violations


def faults_of(order: Order) -> list[Fault]:
    """That are done to it. Those of a shorter run of the same seed are the first of a longer one's."""
    seed, until_s = str(order.seed), order.hours * 3600.0
    traffic, mean_s = Traffic.draw(order.traffic, seed, 0.0, until_s), Pace().fault_s
    drawn = draw_faults(seed, draw_setup(seed), traffic, BEGIN_S, until_s - CALM_S, mean_s, order.kinds)
    return only(drawn, order.faults)


def simulate(order: Order, log: TextIO | None = None) -> Outcome:
    """Run it in this interpreter, which is its own for as long."""
    right, seed, start_s = right_answers(), str(order.seed), processor_s()
    until_s, faults, setup = order.hours * 3600.0, faults_of(order), draw_setup(seed)
    summary, events = Summary(), list[Event]()

    async def run(folder: Path) -> float:
        traffic = Traffic.draw(order.traffic, seed, 0.0, until_s)
        logger.info("setup", extra=setup.told())
        world = World(seed, setup, Pace(), model_path(), folder, traffic)
        try:
            await world.begin()
            questions = short_questions()
            questions.right.update({question: right[json.dumps(question.body)] for question in questions.all})
            summary.add(world.history, await world.run(faults, until_s, questions))
            summary.takers.update(world.takers)
        except Exception as error:
            summary.violations.append(Violation("a run comes to its end", repr(error), traceback.format_exc()))
        finally:
            await end_processes(world)
        events.extend(world.history.events)
        return world.now()

    with tempfile.TemporaryDirectory() as folder:
        at_s, digest, num_lines, num_turns = in_virtual_time(seed, lambda: run(Path(folder)), log, setup.knobs)
    cpu_s = processor_s() - start_s
    return Outcome(order, setup, faults, digest, num_lines, at_s / 3600.0, cpu_s, num_turns, summary, events)


def in_virtual_time(
    seed: str,
    main: Callable[[], Coroutine[Any, Any, T]],
    log: TextIO | None = None,
    knobs: Mapping[str, float] = MappingProxyType({}),
) -> tuple[T, str, int, int]:
    """What ``main`` returns; the digest of the log and its lines; the turns that the loop took."""
    lasting = random.Random(f"{seed}:threads")
    loop = VirtualLoop(lambda: lasting.uniform(0.0, THREAD_S))
    handler = RunLog(loop.time, log, loop.unseen_errors.append)
    with ExitStack() as stack:
        stack.enter_context(logging_to(handler))
        stack.enter_context(files_read_once())
        stack.enter_context(turned(knobs))
        stack.enter_context(taken_over(loop, seed))
        try:
            returned = loop.run_until_complete(main())
        finally:
            loop.forget_tasks()
    return returned, handler.digest, handler.num_lines, loop.num_turns


@functools.cache
def model_path() -> str:
    """The default model's folder, prepared once into the cache, with a template that takes tools."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-simulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepared = prepare(DEFAULT_MODEL, default_cache_dir(), lambda _: None)
    shutil.copy(prepared / "config.json", folder)
    return str(make_model(prepared, ToolFormat.HERMES, folder))


def short_questions() -> Questions:
    """Those of the campaign with real processes, with answers that are short: steps are long here."""
    return Questions(texts((8, 20, 60)), texts((4, 8)), chats(20), schemas(), tools())


@functools.cache
def right_answers() -> dict[str, str]:
    """By the bodies of the questions: what a stack says that nothing is done to."""
    questions, right = short_questions(), dict[str, str]()
    setup = Setup(num_gateways=1, num_executors=1, has_standby=False, has_tuning=False, max_num_seqs=64, kv_blocks=4096)

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World("right", setup, Pace(), model_path(), Path(folder))
            try:
                await world.begin()
                clients = world.clients("asks")
                asked = [streams.ask(clients, question, "gateway-0", "", is_whole=True) for question in questions.all]
                for question, answer in zip(questions.all, await asyncio.gather(*asked), strict=True):
                    assert answer.ended is Ended.DONE, answer
                    right[json.dumps(question.body)] = answer.text
            finally:
                await end_processes(world)

    in_virtual_time("right", run)
    return right


async def end_processes(world: World) -> None:
    """Processes are ended from outside of any task."""
    done = asyncio.get_running_loop().create_future()

    def end() -> None:
        world.supervisor.end_all()
        done.set_result(None)

    asyncio.get_running_loop().call_soon(end)
    await done
