"""HyGen's evaluation (section 5 of the paper): its settings, and which figures are made with them."""

from functools import partial

from benchmarks.figures.kinds.model_errors import prediction_error, worse_models
from benchmarks.figures.kinds.out_of_sample import unseen
from benchmarks.figures.kinds.over_time import over_time
from benchmarks.figures.kinds.prefix_sharing import prefix_sharing
from benchmarks.figures.kinds.slo_curves import (
    budgets,
    chunk_sizes,
    naive_budgets,
    online_rates,
    rates_by_metric,
    two_slos,
)
from benchmarks.figures.kinds.slo_sweep import RATIOS, THROUGHPUTS, slo_sweep
from benchmarks.figures.trace_lab import MEAN_TBT, METRICS, P99_TBT, Setting, TraceLab, TraceOptions
from benchmarks.harness.page import Figure, Page, Paper
from benchmarks.lab.lab import Machine

LLAMA = Setting(Machine(model="llama2-7b", device="a100-40g"), qps=1.0)
# One A40 would have room for 18,000 tokens of KV beside the weights: six arXiv summaries.
QWEN = Setting(Machine(model="qwen-14b", device="a40", tensor_parallel=2), qps=0.5)
MISTRAL = Setting(Machine(model="mistral-7b", device="a100-40g"), qps=0.2, has_long=True)
LONG_ON_LLAMA = Setting(LLAMA.machine, qps=0.2, has_long=True)
OTHER = Setting(LLAMA.machine, qps=1.0, has_other=True)
YI = Setting(Machine(model="yi-34b", device="a40", tensor_parallel=2, pipeline_depth=2), qps=0.3)
BOTH = (LLAMA, QWEN)
ELSEWHERE = (
    Setting(Machine(model="llama2-7b", device="a100-80g"), qps=1.0),
    Setting(Machine(model="mistral-7b", device="a100-40g"), qps=1.0),
    Setting(Machine(model="llama2-7b", device="a40"), qps=0.5),
    Setting(Machine(model="llama2-7b", device="h100"), qps=2.0),
)
RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5)  # requests/s; the machine's capacity is a little under 3
TBT_TOLERANCES = (0.1, 0.2, 0.3, 0.4, 0.5)
DISTORTIONS = (0.25, 0.5, 1.0)  # sigmas
BUDGETS_MS = (14.0, 17.0, 20.0, 25.0, 30.0, 40.0, 60.0)

of_trace = partial(Figure, files=("online", "offline"))
FIGURES = {
    "fig3": of_trace(lambda lab: slo_sweep(lab, BOTH, (RATIOS,)), "Interference against tolerance for four metrics."),
    "fig4": of_trace(
        lambda lab: slo_sweep(lab, BOTH, (THROUGHPUTS,), with_summary=True),
        "Offline throughput under each SLO: hygen, hygen-star, sarathi++, online only.",
    ),
    "fig7": of_trace(lambda lab: naive_budgets(lab, BOTH), "The profiler's budget against budget = mean TBT SLO."),
    "fig8": of_trace(lambda lab: over_time(lab, LLAMA, MEAN_TBT, strict=0.1, loose=0.5), "Throughput over time."),
    "fig9": of_trace(
        lambda lab: slo_sweep(lab, (YI,), (RATIOS, THROUGHPUTS)), "Yi-34B on four GPUs: two stages of two."
    ),
    "fig10": of_trace(
        lambda lab: rates_by_metric(lab, LLAMA, RATES, METRICS, tolerance=0.05),
        "Four metrics at 5% tolerance by online rate.",
    ),
    "fig11": of_trace(lambda lab: two_slos(lab, BOTH, TBT_TOLERANCES, ttft_tolerance=0.08), "Two SLOs at once."),
    "fig5": of_trace(
        lambda lab: prediction_error(lab, {LLAMA: "1.78%", QWEN: "1.07%"}, MEAN_TBT, tolerance=0.2),
        "Error of the latency predictor on batches that it never saw.",
    ),
    "fig14": of_trace(
        lambda lab: worse_models(lab, LLAMA, ELSEWHERE, DISTORTIONS, P99_TBT, tolerance=0.05),
        "Plans made with ever worse latency models.",
    ),
    "fig15": of_trace(
        lambda lab: online_rates(lab, LLAMA, RATES, P99_TBT, tolerance=0.05),
        "Growing online rates at 5% p99 TBT tolerance.",
    ),
    "fig6": Figure(
        lambda lab: prefix_sharing(lab, LLAMA, (14.0, 18.0, 25.0, 40.0)),
        "Prefix sharing maximization on MMLU.",
        ("online", "shots", "questions"),
    ),
    "fig12": Figure(
        lambda lab: slo_sweep(lab, (MISTRAL,), (RATIOS, THROUGHPUTS)),
        "A trace of long prompts and Mistral-7B.",
        ("long_online", "offline"),
    ),
    "fig13": Figure(
        lambda lab: slo_sweep(lab, (OTHER,), (RATIOS, THROUGHPUTS)),
        "Another offline workload.",
        ("online", "other_offline"),
    ),
    "unseen": Figure(
        lambda lab: unseen(lab, LLAMA, LONG_ON_LLAMA, METRICS, tolerance=0.1, num_windows=5, num_seeds=4),
        "Not in the paper: budgets on windows, seeds and a trace that they were not found on.",
        ("online", "offline", "long_online"),
    ),
    "chunks": of_trace(
        lambda lab: chunk_sizes(lab, LLAMA, (128, 256, 512, 1024, 2048), (MEAN_TBT, P99_TBT), tolerance=0.05),
        "Not in the paper: the gain over hygen-star by chunk size.",
    ),
    "budgets": of_trace(
        lambda lab: budgets(lab, LLAMA, BUDGETS_MS, times_the_cache=4),
        "Not in the paper: offline throughput by latency budget.",
    ),
}

HYGEN = Paper(
    Page("hygen", "HyGen's figures"),
    "HyGen's evaluation (section 5 of the paper). --duration 3600 takes the whole hour of the trace.",
    TraceOptions,
    TraceLab,
    FIGURES,
)
