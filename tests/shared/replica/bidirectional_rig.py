"""Runs requests of both kinds on a real engine through a replica whose policy shares blocks, with plans at random."""

import random
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from shared.protocol.executors import ExecutorCounters
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import StepPlan
from shared.replica.engine import Engine, StepResult
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.factories import MODEL

MAX_TOKENS = 14
TEXTS = [
    "The tide comes in twice a day because",
    "A list of rivers in Europe, from the longest to the shortest: the Volga, the Danube, the Ural, the Dnieper,",
    "In the harbour the boats lay still. Nobody spoke of the storm, and nobody looked at the sea for long, since",
    "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n",
]


def greedy_requests(model_folder: Path) -> list[GenerateRequest]:
    """Each text once as an online and once as an offline request, and offline ones that begin alike."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    greedy = SamplingParams(MAX_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = [(kind, tokenizer.encode(text).ids) for text in TEXTS for kind in Kind]
    prompts += [(Kind.OFFLINE, tokenizer.encode(TEXTS[1] + end).ids) for end in (" the Don,", " and then")]
    return [GenerateRequest(str(n), kind, prompt, greedy, 0.0) for n, (kind, prompt) in enumerate(prompts)]


def undisturbed(engine: Engine, requests: list[GenerateRequest]) -> dict[str, list[int]]:
    """Outputs by request id, each alone."""
    replica = Replica(Limits(engine.spec.block_size, engine.spec.num_blocks, 512, 32), engine.spec, None)
    with Steps(replica, engine) as steps:
        for request in requests:
            replica.submit(request)
            while replica.has_work:
                steps.run()
    return {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}


def disturbed(
    engine: Engine, requests: list[GenerateRequest], num_blocks: int, seed: int
) -> tuple[dict[str, list[int]], ExecutorCounters]:
    """Outputs of all together on so few blocks that offline requests give way again and again, with as many steps in
    flight as the engine has stages."""
    rng = random.Random(seed)
    limits = Limits(engine.spec.block_size, num_blocks, 64, 32)
    replica = Replica(limits, engine.spec, None, strategy=Strategy(kv_sharing="bidirectional"))
    waiting = sorted(requests, key=lambda request: request.kind)
    outputs: dict[str, list[int]] = {}
    with Steps(replica, engine) as steps:
        while waiting or replica.has_work:
            if waiting and rng.random() < 0.4:
                replica.submit(waiting.pop())  # offline requests first, so that there is something to take
            steps.run(_random_plan(replica, rng) if rng.random() < 0.6 else None)
            replica.pool.check_integrity()
            outputs |= {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}
    return outputs, replica.totals


class Steps(ThreadPoolExecutor):
    """Of a replica, on its engine."""

    def __init__(self, replica: Replica, engine: Engine) -> None:
        self._depth = engine.spec.pipeline_depth
        super().__init__(self._depth)
        self._replica = replica
        self._engine = engine
        self._in_flight: deque[Future[StepResult]] = deque()  # oldest first

    def run(self, plan: StepPlan | None = None) -> None:
        """Launch one, and end the oldest where there is no room for another, or nothing to launch."""
        batch = self._replica.begin(self._replica.schedule(plan, Policy(), MODEL), 0)
        if batch.sequences:
            for copies in batch.copies:
                self._engine.start_copies(copies)
            self._in_flight.append(self.submit(self._engine.execute, batch))
        if self._in_flight and (len(self._in_flight) == self._depth or not batch.sequences):
            self._replica.finish(self._in_flight.popleft().result())


def _random_plan(replica: Replica, rng: random.Random) -> StepPlan:
    """Some of what is held, in chunks of any length; some give way."""
    held = list(replica.table)
    entries = [ScheduledRequest(r.request_id, r.kind, rng.randint(1, 40)) for r in held if rng.random() < 0.7]
    lost = [r.request_id for r in held if r.kind is Kind.OFFLINE and rng.random() < 0.15]
    return StepPlan("executor-0", "epoch", 0, entries, [], lost, 0.0)
