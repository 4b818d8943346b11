"""Echo's evaluation (section 7 of the paper): its settings, and which figures are made with them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.figures.backlog_lab import Backlog, BacklogLab, BacklogOptions, Online, of_day, of_trace
from benchmarks.figures.kinds.distributions import distributions, rates_alone
from benchmarks.figures.kinds.load_forecast import load_forecast
from benchmarks.figures.kinds.speedups import speedups
from benchmarks.figures.kinds.within_a_run import active_requests, block_owners, hit_rates
from benchmarks.harness.page import Figure, Page, Paper
from benchmarks.lab.documents import Documents
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.few_shots import few_shot_prompts, thought_prompts
from benchmarks.lab.lab import System
from benchmarks.lab.samples import BOOSTED
from loadgen.workload.backlog import OfflinePrompt
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW
from shared.scheduling.packing.deadlines.token_slo import TokenSlo

SLO = TokenSlo(ttft_ms=1000.0, tpot_ms=50.0)  # section 7.2
SHAREGPT_PROMPT, SHAREGPT_OUTPUT = Lognormal(308.0, 354.0), Lognormal(234.51, 268.50)  # Table 1; BROS's Table 2
SHORT_ANSWER, LONG_ANSWER = Lognormal(23.0, 22.0), Lognormal(126.0, 60.0)  # LooGLE's own answers; chains of thought
TOOL_CALL = Lognormal(43.0, 16.0)
LOOGLE_PER_S = 2.7  # in 720 s the 1,951 of section 4.1: with fewer documents more is found without any order

HOUR = Online("Azure's conversations of 2023", of_trace, SHAREGPT_PROMPT, SHAREGPT_OUTPUT, rate=6.0)
DAY = Online("a day of ServeGen's m-large", of_day, SHAREGPT_PROMPT, SHAREGPT_OUTPUT, rate=4.0)
RATES = (6.0, 8.0, 10.0, 12.0, 14.0, 16.0)


def drawn(documents: Documents, per_s: float) -> Backlog:
    """Its prompts."""
    return Backlog(documents.name, lambda options, size, seed: documents.draw(size, seed), per_s)


def mmlu(options: BacklogOptions, size: int, seed: int) -> list[OfflinePrompt]:
    """Of its files."""
    assert options.shots is not None and options.questions is not None
    return few_shot_prompts(options.shots, options.questions, seed)[:size]


def bbh(options: BacklogOptions, size: int, seed: int) -> list[OfflinePrompt]:
    """Of its files."""
    assert options.task_prompts is not None and options.tasks is not None
    return thought_prompts(options.task_prompts, options.tasks, seed)[:size]


QA_SHORT = drawn(Documents("LooGLE, short", 23_474, 0.91, SHORT_ANSWER), LOOGLE_PER_S)  # Table 1
QA_LONG = drawn(Documents("LooGLE, long", 23_474, 0.91, LONG_ANSWER), LOOGLE_PER_S)
QA_SORTED = drawn(Documents("LooGLE, sorted", 23_474, 0.91, SHORT_ANSWER, is_shuffled=False), LOOGLE_PER_S)
TOOLS = drawn(Documents("ToolBench", 1_835, 0.85, TOOL_CALL), per_s=40)
CHATS = drawn(Documents("ShareGPT", 308, 0.0, SHAREGPT_OUTPUT), per_s=20)
BACKLOGS = (QA_SHORT, QA_LONG, TOOLS, CHATS, QA_SORTED)
MMLU, BBH = Backlog("MMLU", mmlu, 100, longest_s=300), Backlog("BBH", bbh, 100, longest_s=300)

Given = Mapping[str, Mapping[str, Any]]  # of each system by its name: a preset, and what is not as it has it
DEADLINES = {
    "latency_budget": "deadline",
    "deadline_rule": "first-token",
    "ttft_slo_ms": SLO.ttft_ms,
    "tpot_slo_ms": SLO.tpot_ms,
}
BS_E = {"preset": "bros", "offline_order": "fcfs", "kv_sharing": "recompute", "kv_reserve": "none", **DEADLINES}
WITHOUT_M = {"kv_eviction": "lru", "kv_reserve": "none"}
SYSTEMS: Given = {
    "BS": {"preset": "sarathi++"},
    "BS+E": BS_E,
    "BS+E+S": {"preset": "echo", **DEADLINES, **WITHOUT_M},
    "Echo": {"preset": "echo", **DEADLINES},
}
PARTS: Given = {
    "BS+E": BS_E,
    "with the scheduler": {"preset": "echo", **DEADLINES, **WITHOUT_M},
    "with the eviction": {**BS_E, "kv_eviction": "task-aware"},
    "with the reserve": {**BS_E, "kv_reserve": "burst"},
    "Echo": {"preset": "echo", **DEADLINES},
    "Echo without the eviction": {"preset": "echo", **DEADLINES, "kv_eviction": "lru"},
    "Echo without the reserve": {"preset": "echo", **DEADLINES, "kv_reserve": "none"},
    "Echo, due from the arrival": {"preset": "echo", **DEADLINES, "deadline_rule": "arrival"},
}
COLOURS = (RED, ORANGE, SKY, BLUE)
PAPERS = {"Echo": "78.6%"}


def systems_of(given: Given, *names: str) -> dict[str, System]:
    """Those with these names, all where none is given. They plan with a fitted model."""
    return {name: System.of(planner=BOOSTED, **given[name]) for name in names or given}


of_hour = partial(Figure, files=("online",))
FIGURES = {
    "rates": of_hour(
        lambda lab: rates_alone(lab, HOUR, RATES, SLO), "Not in the paper: what online requests attain alone, by rate."
    ),
    "fig6": of_hour(
        lambda lab: speedups(lab, HOUR, BACKLOGS, systems_of(SYSTEMS), COLOURS, SLO),
        "Offline throughput over BS.",
    ),
    "fig7": of_hour(
        lambda lab: distributions(lab, HOUR, QA_SHORT, systems_of(SYSTEMS), COLOURS, SLO),
        "Distributions of TTFT and TPOT.",
    ),
    "fig9": of_hour(
        lambda lab: hit_rates(lab, HOUR, QA_SHORT, systems_of(SYSTEMS), COLOURS, PAPERS),
        "Prefix cache hit rate over time.",
    ),
    "fig10": of_hour(
        lambda lab: block_owners(lab, HOUR, QA_SHORT, systems_of(SYSTEMS, "BS+E+S", "Echo")), "KV memory by owner."
    ),
    "parts": of_hour(
        lambda lab: speedups(
            lab, HOUR, (QA_SHORT, TOOLS), systems_of(PARTS), (ORANGE, SKY, PINK, GREEN, BLUE, GREY, RED, YELLOW), SLO
        ),
        "Not in the paper: each part alone, and Echo without each.",
    ),
    "fig8": Figure(
        lambda lab: active_requests(lab, DAY, CHATS, systems_of(SYSTEMS, "BS", "Echo")),
        "Online and offline requests over a day.",
        ("clients",),
    ),
    "fig11": Figure(
        lambda lab: load_forecast(lab, DAY, HOUR, (300.0, 900.0, 3600.0), sigmas=2.0),
        "Predicted and actual online load.",
        ("online", "clients"),
    ),
    "texts": Figure(
        lambda lab: speedups(lab, HOUR, (MMLU, BBH), systems_of(SYSTEMS), COLOURS, SLO),
        "Not in the paper: figure 6 with real texts, MMLU and BBH.",
        ("online", "shots", "questions", "task_prompts", "tasks"),
    ),
}

ECHO = Paper(
    Page("echo", "Echo's figures"),
    "Echo's evaluation (section 7 of the paper). What is set is set on one half of the trace and shown on the other.",
    BacklogOptions,
    BacklogLab,
    FIGURES,
)
