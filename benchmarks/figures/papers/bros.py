"""BROS's evaluation (section 7 of the paper): its settings, and which figures are made with them."""

from functools import partial

from benchmarks.figures.kinds.by_rate import (
    LATENCY,
    OFFLINE,
    ONLINE_TOKENS,
    SHARES,
    TTFT_P99,
    by_rate,
    kv_cells,
    online_cells,
    overhead,
    queueing,
)
from benchmarks.figures.rate_lab import Dataset, RateLab, RateOptions, Scene
from benchmarks.harness.page import Figure, Page, Paper
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.lab import ONLINE_ONLY, SLO, System
from benchmarks.lab.samples import BOOSTED
from shared.pictures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY

SHAREGPT = Dataset("ShareGPT", Lognormal(222.76, 256.36), Lognormal(234.51, 268.50))  # Table 2
LMSYS = Dataset("LMSYS-Chat-1M", Lognormal(90.50, 148.52), Lognormal(237.04, 228.21))
WAVE_SIZE = 64  # the paper does not say how many are submitted at a time
RATES = (4.0, 8.0, 12.0, 16.0, 20.0)
BOTH = Scene("opt-13b", (SHAREGPT, LMSYS), RATES, WAVE_SIZE)
ONE = Scene("opt-13b", (SHAREGPT,), RATES, WAVE_SIZE)
LARGER = Scene("opt-30b", (SHAREGPT,), (5.0, 10.0, 15.0), WAVE_SIZE)
LARGEST = Scene("llama3-70b", (SHAREGPT,), (5.0, 10.0, 15.0), WAVE_SIZE)
SHARED = Scene("opt-30b", (SHAREGPT, LMSYS), (10.0,), WAVE_SIZE)
ALONE = Scene("opt-13b", (SHAREGPT,), RATES, wave_size=0)
FIRST = Scene("opt-13b", (SHAREGPT,), (8.0, 16.0, 24.0, 32.0), wave_size=0, num_requests=512)
HURRIED = Scene("opt-13b", (SHAREGPT,), (4.0, 8.0, 10.0), WAVE_SIZE)
SATURATED = Scene("opt-13b", (SHAREGPT,), (10.0, 12.0), WAVE_SIZE)
SHORT_OF_BLOCKS = Scene("llama2-7b", (SHAREGPT,), (1.0, 2.0, 3.0, 4.0), kv_blocks=1000)

KV: dict[str, dict[str, str]] = {  # sharing and eviction
    "bidirectional": {"kv_sharing": "bidirectional"},
    "bidirectional, online-first": {"kv_sharing": "bidirectional", "kv_eviction": "online-first"},
    "recompute": {"kv_sharing": "recompute"},
    "recompute, online-first": {"kv_sharing": "recompute", "kv_eviction": "online-first"},
    "keep-resident": {"kv_sharing": "keep-resident"},
}
fitted = partial(System.of, planner=BOOSTED)
BROS_BY_KV = {name: fitted("bros", **KV[name]) for name in ("bidirectional", "recompute", "keep-resident")}
HYGEN_BY_KV = {name: fitted("hygen", **given) for name, given in KV.items()}
BY_PRESET = {name: fitted(name) for name in ("bros", "hygen", "round-robin", "fcfs")}
WITHOUT_OFFLINE = {"bros": fitted("bros", kv_sharing="recompute"), "fcfs": System.of("fcfs")}
NEVER_MS = 600_000.0
BY_WAIT = {  # due alike and never late, so that who has waited longest is next
    "fcfs": System.of("fcfs"),
    "longest wait first": fitted("bros", ttft_slo_ms=NEVER_MS, tpot_slo_ms=NEVER_MS, kv_sharing="recompute"),
}
HURRIED_MS = 30.0
BY_GROUP = {f"groups of {size}": fitted("bros", tpot_slo_ms=HURRIED_MS, slo_group_tokens=size) for size in (1, 4, 16)}
BY_PLANNER = {
    "what steps take": System.of("bros"),
    "boosted": fitted("bros"),
    "BROS's lines": System.of("bros", "bros"),
}
BY_ROOM = {
    f"{preset}, {room:g}": fitted(preset, growth_room=room)
    for preset, rooms in (("bros", (0.0, 0.25, 1.0)), ("hygen", (0.0, 1.0)), ("online-only", (0.0, 1.0)))
    for room in rooms
}
SLOS = f"SLOs: TTFT {SLO.ttft_ms:g} ms, mean TPOT of a request {SLO.tpot_ms:g} ms."
WAVES = f"{SLOS} Offline requests {WAVE_SIZE} at a time."
ROOMS = f"{SLOS} Each preset with its growth_room."
GROUPS = f"The preset bros, SLOs: TTFT {SLO.ttft_ms:g} ms, mean TPOT of a request {HURRIED_MS:g} ms."
PLANNERS = (
    "The preset bros by what plans are made with: fitted to the machine's steps with their noise, or what they take."
)
SHARINGS = "The preset bros with each sharing of KV."
SHARINGS_AND_EVICTIONS = "The preset hygen with each sharing and eviction of KV, and a small KV cache."

FIGURES = {
    "rates": Figure(
        lambda lab: by_rate(lab, BOTH, BY_PRESET, (BLUE, GREEN, ORANGE, GREY), (LATENCY, *SHARES, OFFLINE), WAVES),
        "Latency, attainment and offline throughput by online rate (figures 10 and 11).",
    ),
    **{
        f"rates-{scene.model}": Figure(
            partial(
                by_rate,
                scene=scene,
                systems=BY_PRESET,
                colours=(BLUE, GREEN, ORANGE, GREY),
                quantities=(LATENCY, *SHARES, OFFLINE),
                caption=WAVES,
            ),
            f"The same of {scene.model} (figures 10 and 11).",
        )
        for scene in (LARGER, LARGEST)
    },
    "online": Figure(
        lambda lab: by_rate(
            lab,
            ALONE,
            WITHOUT_OFFLINE,
            (BLUE, GREY),
            (LATENCY, ONLINE_TOKENS),
            f"Online requests alone. {SLOS}",
            more=online_cells,
        ),
        "Latency and throughput of online requests alone (figure 12).",
    ),
    "preemption": Figure(
        lambda lab: queueing(lab, FIRST, BY_WAIT, (GREY, BLUE)),
        "What requests wait, first come, first served, and with the longest wait first (figure 3).",
    ),
    "groups": Figure(
        lambda lab: by_rate(
            lab, HURRIED, BY_GROUP, (BLUE, GREEN, ORANGE), (LATENCY, *SHARES, OFFLINE), GROUPS, more=online_cells
        ),
        "Not in the paper: token groups (section 4.1) of several sizes under a short TPOT.",
    ),
    "planners": Figure(
        lambda lab: by_rate(
            lab, SATURATED, BY_PLANNER, (BLUE, GREEN, ORANGE), (LATENCY, *SHARES, OFFLINE), PLANNERS, more=online_cells
        ),
        "Not in the paper: its cost model (section 4.1) beside ours.",
    ),
    "kv": Figure(
        lambda lab: by_rate(lab, ONE, BROS_BY_KV, (BLUE, ORANGE, GREY), (*SHARES, OFFLINE), SHARINGS, more=kv_cells),
        "Attainment by sharing of KV, by online rate.",
    ),
    "sharing": Figure(
        lambda lab: by_rate(lab, SHARED, BROS_BY_KV, (BLUE, ORANGE, GREY), (*SHARES, OFFLINE), SHARINGS, more=kv_cells),
        "Attainment by sharing of KV at the paper's rate and model (figure 13).",
    ),
    "room": Figure(
        lambda lab: by_rate(
            lab,
            SATURATED,
            BY_ROOM,
            (SKY, BLUE, GREEN, PINK, ORANGE, GREY, RED),
            (LATENCY, *SHARES, OFFLINE),
            ROOMS,
        ),
        "Not in the paper: what an online request leaves to those that run, where these fill the KV cache.",
    ),
    "overhead": Figure(
        lambda lab: overhead(lab, ONE, {"bros": ("o-", BLUE), "hygen": ("o-", ORANGE)}),
        "Scheduling over step time (figure 14).",
    ),
    "pressure": Figure(
        lambda lab: by_rate(
            lab,
            SHORT_OF_BLOCKS,
            {**HYGEN_BY_KV, "online alone": ONLINE_ONLY},
            (BLUE, SKY, ORANGE, PINK, GREEN, GREY),
            (TTFT_P99, OFFLINE),
            SHARINGS_AND_EVICTIONS,
            more=kv_cells,
        ),
        "Not in the paper: sharing and eviction of KV where memory is short.",
    ),
}

BROS = Paper(
    Page("bros", "BROS's figures"),
    "BROS's evaluation (section 7 of the paper). Requests are drawn from the lengths of its Table 2.",
    RateOptions,
    RateLab,
    FIGURES,
)
