"""OOCO's evaluation (figure 3 and section 5 of the paper): its settings, and which figures are made with them."""

from functools import partial

from benchmarks.figures.kinds.interruptions import interruptions
from benchmarks.figures.kinds.most_offline import by_tpot_slo, most_elsewhere, most_offline
from benchmarks.figures.kinds.rooflines import rooflines
from benchmarks.figures.pools_lab import Case, Dataset, PoolsLab, PoolsOptions, PoolSystem, Served
from benchmarks.harness.page import Figure, Page, Paper, Result
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.lab import Machine, machine_name
from loadgen.progress import ReplayProgress
from services.executor.settings import DEFAULT_BLOCK_SIZE
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, SKY
from shared.scheduling.packing.deadlines.token_slo import TokenSlo
from shared.scheduling.strategy import Strategy

# The paper says only that its TTFT SLO is one of seconds: here about ten times what a mean prompt of OOC's takes alone,
# and four to five times a step of one decode.
SMALL = Served(Machine("qwen2.5-7b", "a100-80g"), TokenSlo(ttft_ms=2000.0, tpot_ms=50.0))
PATIENT = Served(SMALL.machine, TokenSlo(ttft_ms=60_000.0, tpot_ms=50.0))  # whatever comes of TTFT
LARGE = Served(Machine("qwen2.5-72b", "a100-80g", tensor_parallel=4), TokenSlo(ttft_ms=4000.0, tpot_ms=100.0))


def _dataset(name: str, prompt: float, output: float, spreads: tuple[float, float]) -> Dataset:
    """``spreads``: of prompts and of outputs, the deviation over the mean."""
    return Dataset(name, Lognormal(prompt, spreads[0] * prompt), Lognormal(output, spreads[1] * output))


CONVERSATION = 0.96, 0.77  # Azure's of 2023
CODE = 0.93, 1.9  # Azure's of 2023, by means of 2,048 and 28 and medians of 1,500 and 13 (Splitwise, section 2)
OOC = _dataset("OOC", 1892.47, 1062.62, CONVERSATION)  # means: Table 5
AZURE_CONV = _dataset("Azure Conv", 1512.30, 98.75, CONVERSATION)
AZURE_CODE = _dataset("Azure Code", 2317.18, 22.74, CODE)
OFFLINE = _dataset("OOC offline", 1200.52, 671.51, CONVERSATION)
DATASETS = (OOC, AZURE_CONV, AZURE_CODE)

LONG, SHORT = 2048, 512  # tokens of a step: where no token waits for it, and where online tokens do
WITH_PROMPTS = 0.8  # of the TPOT SLO, to steps with offline work: those with online prompts may take longer
IDLE_BUDGET_MS = 1e6  # of a step that cannot be stopped: no bound but its tokens
ALONE = PoolSystem(lambda slo: Strategy.of("online-only"), 1, LONG)
BASE, PRIORITY, OURS, UNSTOPPED = "base P/D", "online priority", "OOCO", "OOCO, no interruption"
SYSTEMS = {
    BASE: PoolSystem(lambda slo: Strategy.of("fcfs"), 1, LONG, interrupts=False),
    PRIORITY: PoolSystem(
        lambda slo: Strategy.of("hygen", budget_ms=slo.tpot_ms, idle_budget_ms=IDLE_BUDGET_MS, offline_order="fcfs"),
        1,
        LONG,
        interrupts=False,
    ),
    OURS: PoolSystem(lambda slo: Strategy.of("ooco", budget_ms=slo.tpot_ms), 1, LONG),
    UNSTOPPED: PoolSystem(
        lambda slo: Strategy.of("ooco", budget_ms=slo.tpot_ms, idle_budget_ms=IDLE_BUDGET_MS), 1, LONG, interrupts=False
    ),
    "mixed, hygen": PoolSystem(lambda slo: Strategy.of("hygen", budget_ms=WITH_PROMPTS * slo.tpot_ms), 0, SHORT),
    "mixed, echo": PoolSystem(
        lambda slo: Strategy.of("echo", ttft_slo_ms=slo.ttft_ms, tpot_slo_ms=slo.tpot_ms), 0, SHORT
    ),
}
COLOURS = (GREY, ORANGE, BLUE, SKY, GREEN, PINK)
BY_TPOT = (PRIORITY, OURS, UNSTOPPED, "mixed, hygen")
TPOTS_MS = (35.0, 40.0, 50.0, 60.0, 100.0)
CHUNKS = (512, 2048, 8192, 32768)
NUM_SEEDS = 5  # that no rate is searched with

LENGTHS = (16, 64, 128, 256, 512, 1024, 4096, 16384)  # of figure 3's prompts
COUNTS = (1, 16, 64, 128, 256, 512, 1024)  # of its decodes
CONTEXTS = (100, 1000, 4000)


def _most(served: Served, lab: PoolsLab) -> Result:
    return most_offline(lab, [Case(served, dataset) for dataset in DATASETS], SYSTEMS, COLOURS, (BASE, PRIORITY))


def _open(options: PoolsOptions, progress: ReplayProgress) -> PoolsLab:
    return PoolsLab(options, progress, OFFLINE, ALONE)


def _figure_3(_: object) -> Result:
    gpus = architecture_named(SMALL.machine.model), device_named(SMALL.machine.device)
    num_slots = num_kv_blocks(*gpus, 1, DEFAULT_BLOCK_SIZE) * DEFAULT_BLOCK_SIZE
    name = machine_name(SMALL.machine)
    return rooflines(RooflineLatencyModel.of(*gpus), LENGTHS, COUNTS, CONTEXTS, num_slots, name)


FIGURES = {
    "fig3": Figure(_figure_3, "What batches reach of a GPU, and how long they take."),
    "fig6-7b": Figure(
        partial(_most, SMALL), "The most offline work beside online work that keeps its SLO: Qwen2.5-7B."
    ),
    "fig6-72b": Figure(partial(_most, LARGE), "The same with Qwen2.5-72B, on four GPUs."),
    "unseen": Figure(
        lambda lab: most_elsewhere(lab, [Case(SMALL, dataset) for dataset in DATASETS], SYSTEMS, NUM_SEEDS),
        "Not in the paper: those rates where they were not searched, other seeds and another trace.",
        ("online", "other_online"),
    ),
    "tpot": Figure(
        lambda lab: by_tpot_slo(
            lab, Case(LARGE, OOC), {name: SYSTEMS[name] for name in BY_TPOT}, (ORANGE, BLUE, SKY, GREEN), TPOTS_MS
        ),
        "Not in the paper: pools and mixed executors by the SLO for a token.",
    ),
    "interruption": Figure(
        lambda lab: interruptions(lab, Case(PATIENT, AZURE_CONV), SYSTEMS[UNSTOPPED], SYSTEMS[OURS], 0.5, CHUNKS),
        "Not in the paper: TTFT of a prompt that arrives in an offline step, by the step's length.",
    ),
}

OOCO = Paper(
    Page("ooco", "OOCO: executors for latency and for throughput"),
    "OOCO's roofline (figure 3 of the paper) and its evaluation (section 5), with the mean lengths of its Table 5.",
    PoolsOptions,
    _open,
    FIGURES,
)
