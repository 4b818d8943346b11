"""A capacity plan as a picture: for each device how near to their bounds the SLOs are with each count of GPUs, and what
the executors do over the window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import WorkloadError
from services.profiler.capacity.record import BesideOnline, CapacityPlan, DevicePlan, PeakTrial
from shared import pictures
from shared.pictures import BLUE, GREEN, GREY, ORANGE, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
WIDTH_INCHES, ROW_INCHES = 10.0, 2.4
STYLE = pictures.STYLE | {"axes.axisbelow": True, "svg.hashsalt": "plan"}  # the same picture is the same file
LOST_AT = 2.0  # times its bound, where an SLO is drawn of which only is known that it was lost
SERIES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (GREY, "D"))


def require_drawable(file: Path) -> None:
    """Before anything runs. Raises WorkloadError for a kind of file that is none of a picture, a folder that is not
    there, or where nothing can draw."""
    if file.suffix.lower() not in SUFFIXES:
        raise WorkloadError(f"--plot {file}: a picture's name ends with {', '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise WorkloadError(f"--plot {file}: there is no folder {file.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise WorkloadError("--plot needs matplotlib: pip install 'slackwater[plot]', or leave it out") from error


def draw_plan(plan: CapacityPlan, file: Path) -> None:
    """A row for each device. Raises WorkloadError where the file cannot be written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        rows = len(plan.devices)
        figure = Figure(figsize=(WIDTH_INCHES, 0.5 + ROW_INCHES * rows), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 3))
        for (left, right), device in zip(axes, plan.devices, strict=True):
            _draw_trials(left, device, plan.slos)
            _draw_window(right, device, plan)
        for each in axes[0]:
            each.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=8, columnspacing=1.0)
        axes[-1][0].set_xlabel("GPUs")
        axes[-1][1].set_xlabel("minutes")
        try:
            figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise WorkloadError(f"cannot write {file}: {error.strerror}") from error


def _draw_trials(axes: Axes, device: DevicePlan, slos: list[str]) -> None:
    """Each SLO's figure over its bound; those that were lost on the way at the upper edge."""
    for (colour, marker), expr in zip(SERIES, slos, strict=False):
        points = [(trial.gpus, share) for trial in device.trials if (share := share_of_bound(trial, expr)) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], f"{marker}-", color=colour, label=expr, markersize=4)
    lost = [trial.gpus for trial in device.trials if trial.lost]
    axes.plot(lost, [LOST_AT] * len(lost), "x", color=RED, label="lost on the way", clip_on=False)
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    if device.least is not None:
        axes.axvline(device.least.gpus, color=GREY, linestyle=":", linewidth=1)
    most = max((trial.gpus for trial in device.trials), default=1)
    axes.set_xticks(range(1, most + 1, max(1, most // 8)))
    axes.set(ylim=(0, LOST_AT), xlim=(0.5, most + 0.5), ylabel=f"{device.device}\nshare of the bound")


def share_of_bound(trial: PeakTrial, expr: str) -> float | None:
    """At most at the picture's edge; None where it was not measured."""
    for verdict in trial.verdicts:
        if verdict.expr == expr and verdict.value_ms is not None and verdict.bound_ms:
            return min(verdict.value_ms / verdict.bound_ms, LOST_AT)
    return None


def _draw_window(axes: Axes, device: DevicePlan, plan: CapacityPlan) -> None:
    axes.axvspan(plan.peak_start_s / 60, (plan.peak_start_s + plan.peak_s) / 60, color="#f0f0f0", label="the peak")
    axes.set(ylabel="1,000 tokens/s")
    if device.beside is not None:
        _draw_work(axes, device.beside)


def _draw_work(axes: Axes, beside: BesideOnline) -> None:
    minutes = [(part.start_s + part.duration_s / 2) / 60 for part in beside.intervals]
    online = [part.online_tokens_per_s / 1000 for part in beside.intervals]
    offline = [part.offline_tokens_per_s / 1000 for part in beside.intervals]
    axes.stackplot(minutes, online, offline, colors=(BLUE, ORANGE), labels=("online", "offline"), alpha=0.85)
