"""BlendServe's evaluation (section 5 and appendix A of the paper): its workloads, and which figures are made of
them."""

from dataclasses import replace
from functools import partial

from benchmarks.figures.blend_lab import OVERLAPS, BlendLab, BlendOptions, Chats, Ordering, Work
from benchmarks.figures.kinds.batch_beside_online import batch_beside_online
from benchmarks.figures.kinds.batch_throughput import (
    by_interference,
    by_size,
    executors,
    sharings,
    throughputs,
    variants,
)
from benchmarks.figures.kinds.density_grid import density_grid
from benchmarks.figures.kinds.resource_use import resource_use
from benchmarks.harness.page import Figure, Page, Paper, Result
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.mixture import Recipe
from benchmarks.lab.request_sets import apart, of_quantiles, of_summaries, of_trace
from shared.pictures import BLUE, GREY, ORANGE, SKY, YELLOW

# A.1's compute-bound sets; those of the paper whose lengths are free to be passed on, others by the nearest density
BURSTGPT = Chats(
    "ServeGen's m-mid",
    "BurstGPT",
    "lengths",
    partial(of_quantiles, model="m-mid"),
    apart(Lognormal(279.0, 280.0), Lognormal(47.0, 55.0)),
)
SHAREGPT = Chats(
    "ServeGen's m-large",
    "ShareGPT",
    "lengths",
    partial(of_quantiles, model="m-large"),
    apart(Lognormal(891.0, 880.0), Lognormal(147.0, 190.0)),
)
AZURE = Chats(
    "Azure's conversations",
    "Azure-Trace",
    "online",
    of_trace,
    apart(Lognormal(1155.0, 1110.0), Lognormal(211.0, 163.0)),
)
WILDCHAT = Chats(
    "arXiv's summaries",
    "WildChat",
    "offline",
    of_summaries,
    apart(Lognormal(2588.0, 930.0), Lognormal(291.0, 480.0)),
)

RECIPES = tuple(Recipe(density, sharing) for sharing in (0.35, 0.05) for density in (1.4, 0.9))  # Table 2
DFS, BLEND = "DFS", "BlendServe"
ORDERINGS = {
    BLEND: Ordering("blend"),
    DFS: Ordering("psm"),
    "random": Ordering("fcfs", is_shuffled=True),
    "FCFS": Ordering("fcfs"),
}
COLOURS = (BLUE, ORANGE, SKY, YELLOW, GREY)
TWO = {DFS: ORDERINGS[DFS], BLEND: ORDERINGS[BLEND]}
SAMPLES = {
    DFS: ORDERINGS[DFS],
    **{f"{share:.0%} sampled": Ordering("blend", knobs=(("sample_share", share),)) for share in (0.0, 0.01, 0.1)},
    "all known": Ordering("blend", knows_all=True),
}
EXECUTORS = (1, 2, 4)
SHARES = (0.5, 1.0, 2.0, 4.0)  # of a batch's size


def works(lab: BlendLab) -> list[Work]:
    """The four of Table 2."""
    return [Work(BURSTGPT, recipe, lab.options.size) for recipe in RECIPES]


def trace_2(lab: BlendLab) -> Work:
    """Much to share, and more to read than to compute: that of figure 8."""
    return works(lab)[1]


def sizes(lab: BlendLab) -> list[Work]:
    """Half of it, all of it, and several times as much."""
    return [replace(trace_2(lab), size=round(share * lab.options.size)) for share in SHARES]


def grid(chats: Chats) -> Figure:
    return Figure(
        partial(_grid, chats), f"Gain by density and sharing, with {chats.name} for the paper's {chats.stands_for}."
    )


def _grid(chats: Chats, lab: BlendLab) -> Result:
    return density_grid(lab, chats, ORDERINGS[BLEND], ORDERINGS[DFS])


FIGURES = {
    "fig6": Figure(
        lambda lab: throughputs(lab, works(lab), ORDERINGS, DFS, COLOURS), "Throughput of four workloads by order."
    ),
    "fig7": Figure(
        lambda lab: sharings(lab, works(lab), ORDERINGS, DFS, COLOURS[:-1], OVERLAPS), "Prefix sharing by order."
    ),
    "fig8": Figure(lambda lab: resource_use(lab, trace_2(lab), TWO, OVERLAPS), "Computing and memory over steps."),
    "fig9": grid(BURSTGPT),
    "fig10": grid(AZURE),
    "fig11": grid(SHAREGPT),
    "fig12": grid(WILDCHAT),
    "lengths": Figure(
        lambda lab: variants(lab, trace_2(lab), SAMPLES, DFS, BLUE, OVERLAPS),
        "With 0%, 1%, 10% and all output lengths known.",
    ),
    "interference": Figure(
        lambda lab: by_interference(lab, trace_2(lab), TWO, DFS, (ORANGE, BLUE, GREY)),
        "Not in the paper: gain by what overlapping costs.",
    ),
    "sizes": Figure(
        lambda lab: by_size(lab, sizes(lab), TWO, DFS, (ORANGE, BLUE, GREY), OVERLAPS),
        "Not in the paper: gain by the size of the batch.",
    ),
    "executors": Figure(
        lambda lab: executors(lab, trace_2(lab), TWO, DFS, (ORANGE, BLUE), EXECUTORS, OVERLAPS),
        "Not in the paper: one, two and four executors.",
    ),
    "online": Figure(
        lambda lab: batch_beside_online(lab, trace_2(lab), ORDERINGS, DFS, COLOURS[:-1]),
        "Not in the paper: beside online work under HyGen's budget.",
    ),
}

BLENDSERVE = Paper(
    Page("blendserve", "BlendServe's figures"),
    "BlendServe's evaluation (section 5 and appendix A), on devices that overlap operators and on such that add them.",
    BlendOptions,
    BlendLab,
    FIGURES,
)
