"""One search for a budget, in a process of its own that ends with the profiler: ``python -m services.profiler.slo.job``
reads a SloJob in JSON on stdin and writes a SloProfileRecord on stdout."""

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from itertools import cycle, islice

import msgspec

from loadgen.errors import LoadgenError
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.simulated import SimulatedTrials, search_slos
from services.profiler.slo.workload import ALL_MIXED, Pools, Workload, executor_facts
from shared.errors import SlackwaterError
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.process.tether import tied
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.requests import OfflineLength
from shared.protocol.profiling.latency_models import FittedModel, LatencyModelRecord
from shared.protocol.profiling.slo_profile import SloProfileRecord
from shared.simulation.executor import FIRST_OUTPUT_ID
from shared.simulation.link import Link
from shared.simulation.setup import ExecutorSetup

logger = logging.getLogger(__name__)

RUNS_ON = "simulator"
MAX_BACKLOG = 20_000  # offline requests of a run
SPARE = 1.2  # of the most that a run can take
SIGMA_PER_MAPE = 1.2533  # a normal error with sigma 1 has a mean absolute value of sqrt(2 / pi)
NICENESS = 5


class SearchError(SlackwaterError):
    """A search came to no end; the message says why."""


class SloJob(msgspec.Struct, frozen=True):
    """All that a search needs: the executor as it is registered, the fitted model, the recorded workload, and how many
    executors like this one have it together."""

    info: ExecutorInfo
    model: LatencyModelRecord
    model_revision: int
    slos: list[str]
    requests: list[tuple[float, int, int]]  # arrival in seconds from the beginning, prompt and output tokens
    duration_s: float
    offline: list[OfflineLength]
    offline_source: str
    now_s: float  # unix time
    why: str
    pools: Pools = ALL_MIXED

    def run(self) -> SloProfileRecord:
        """Raises ValueError and LoadgenError for what cannot be simulated."""
        slos = [parse_slo(expr) for expr in self.slos]
        workload = Workload([TraceRequest(*request) for request in self.requests], self.duration_s)
        model = self.model.latency_model()
        setup = self._setup(model)
        plan = ReplayPlan(workload.requests, self._prompts(model), Scaling(duration_s=self.duration_s), slos=())
        num_executors, num_strict = self.pools.num_executors, self.pools.num_strict
        simulated = SimulatedWorkload(plan, setup, num_executors=num_executors, num_strict=num_strict)
        search = search_slos(SimulatedTrials(simulated, setup, self.duration_s, NoProgress()), slos)
        lengths = [(each.num_prompt_tokens, each.max_tokens) for each in self.offline]
        facts = workload.facts(self.offline_source, lengths)
        run = facts, RUNS_ON, self.now_s, self.model_revision, self.why
        return search.record(self.info.profile_key, *run, executor_facts(self.info, self.pools))

    def _setup(self, model: FittedModel) -> ExecutorSetup:
        """The executor as it is registered, its steps on average as the model has them, and no token that ends an
        answer."""
        spec, noise = self.info.spec, SIGMA_PER_MAPE * self.model.mape
        mean_of_noise = math.exp(noise * noise / 2)  # a lognormal factor's, whose median is 1
        return ExecutorSetup(
            self.info.limits(),
            msgspec.structs.replace(spec, vocab_size=FIRST_OUTPUT_ID, eos_token_ids=()),
            self.info.strategy,
            planner=model,
            latency=model.scaled(1 / mean_of_noise),
            noise=noise,
            link=Link(latency_s=self.pools.handover_ms / 1e3),
        )

    def _prompts(self, model: LatencyModel) -> list[OfflinePrompt]:
        """The backlog's lengths over and over, more of them than a run with nothing else to do could take."""
        mean_s = sum(_marginal_ms(model, self.info, each) for each in self.offline) / len(self.offline) / 1e3
        most = self.duration_s / mean_s if mean_s > 0 else MAX_BACKLOG
        of_each = int(SPARE * most) + self.info.max_num_seqs
        count = max(len(self.offline), min(MAX_BACKLOG, of_each * self.pools.num_executors))
        return [
            OfflinePrompt(max_tokens=each.max_tokens, num_prompt_tokens=each.num_prompt_tokens)
            for each in islice(cycle(self.offline), count)
        ]


def _marginal_ms(model: LatencyModel, info: ExecutorInfo, length: OfflineLength) -> float:
    """The least that a request costs: a share of full prefill steps for its prompt and of full decode steps for its
    output, their fixed cost left out."""
    prefill, decodes = BatchFeatures(), BatchFeatures()
    prefill.add_scheduled(info.max_num_batched_tokens, 0)
    for _ in range(info.max_num_seqs):
        decodes.add_scheduled(1, length.num_prompt_tokens)
    one = BatchFeatures()
    one.add_scheduled(1, length.num_prompt_tokens)
    fixed_ms = model.predict_ms(one)
    per_prompt_token_ms = max(0.0, model.predict_ms(prefill) - fixed_ms) / info.max_num_batched_tokens
    per_output_token_ms = max(0.0, model.predict_ms(decodes) - fixed_ms) / info.max_num_seqs
    return length.num_prompt_tokens * per_prompt_token_ms + length.max_tokens * per_output_token_ms


async def search_aside(job: SloJob) -> SloProfileRecord:
    """Takes at most one core, at a low priority; cancelling kills it. Raises SearchError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *tied(sys.executable, "-m", "services.profiler.slo.job"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is the profiler's to handle
        )
    except OSError as error:  # too many open files, or no memory for another process
        raise SearchError(f"no process can be started for the search: {error.strerror}") from error
    try:
        out, err = await process.communicate(msgspec.json.encode(job))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    said = err.decode(errors="replace").strip().splitlines()
    if process.returncode != 0:
        raise SearchError(said[-1] if said else f"the search ended with status {process.returncode}")
    logger.info("search ended", extra={"profile_key": job.info.profile_key, "why": job.why, "took": said[-1:]})
    return msgspec.json.decode(out, type=SloProfileRecord)


def main() -> int:
    """At a low priority: executors on the same machine come first."""
    os.nice(NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SloJob)
    start_s = time.monotonic()
    try:
        record = job.run()
    except (ValueError, LoadgenError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(record))
    print(f"{len(record.trials)} runs in {time.monotonic() - start_s:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
