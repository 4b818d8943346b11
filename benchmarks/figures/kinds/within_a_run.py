"""What goes on within runs: who runs (Echo figure 8), what the prefix cache has (figure 9), whose the KV blocks are
(figure 10)."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from statistics import StatisticsError, correlation, fmean, pstdev

from benchmarks.figures.backlog_lab import Backlog, BacklogLab, Online
from benchmarks.harness.charts import Curve, Panel, draw
from benchmarks.harness.command import Row, Table, formatted
from benchmarks.harness.page import Result
from benchmarks.lab.lab import System
from benchmarks.lab.recording import Moment, Recording
from shared.pictures import BLUE, GREY, ORANGE, PINK, SKY

PART_S, LEAST_PARTS = 30.0, 3  # of hit rates
SHOWN_MOMENTS = 300  # of a curve: each the mean of those that it stands for
OWNERS = {
    "online": ("online", BLUE),
    "both": ("shared", PINK),
    "offline": ("offline", ORANGE),
    "cached": ("cached", SKY),
    "empty": ("empty", "#e8e8e8"),
}


def active_requests(lab: BacklogLab, online: Online, backlog: Backlog, systems: Mapping[str, System]) -> Result:
    """Online and offline requests that run, a row of panels for each system."""
    rows, panels = [], []
    for name, system in systems.items():
        moments = _recorded(lab, online, backlog, system).moments
        of_online = [moment.online_running + moment.online_waiting for moment in moments]
        of_offline = [moment.offline_running for moment in moments]
        curves = [_curve("online", moments, of_online, BLUE), _curve("offline", moments, of_offline, ORANGE)]
        panels.append([Panel(curves, title=name, ylabel="requests")])
        rows.append(
            {
                "system": name,
                **formatted(".1f", {"online requests, mean": fmean(of_online), "most": max(of_online)}),
                **formatted(".1f", {"offline requests, mean": fmean(of_offline), "deviation": pstdev(of_offline)}),
                "correlation": _correlation(of_online, of_offline),
            }
        )
    caption = f"Requests in the executor. Beside {backlog.name}. {lab.where(online, backlog)}."
    return Result([Table(caption, rows)], draw(panels, 0.8 + 1.9 * len(panels), "minutes"))


def hit_rates(
    lab: BacklogLab,
    online: Online,
    backlog: Backlog,
    systems: Mapping[str, System],
    colours: Sequence[str],
    papers: Mapping[str, str],
) -> Result:
    """The share of prompt tokens that the prefix cache had, of both kinds of requests. ``papers``: what the paper has,
    by system."""
    rows: list[Row] = []
    curves = []
    for (name, system), colour in zip(systems.items(), colours, strict=True):
        recording = _recorded(lab, online, backlog, system)
        parts = recording.parts(min(PART_S, recording.length_s / LEAST_PARTS))
        shares = [100 * part.cached_share for part in parts]
        middles = [(part.moments[0].time_s + part.length_s / 2) / 60 for part in parts]
        curves.append(Curve(name, middles, shares, colour, "-"))
        spread = {"least": min(shares), "most": max(shares), "deviation": pstdev(shares)}
        rows.append(
            {
                "system": name,
                "hit rate": f"{100 * recording.cached_share:.1f}%",
                **formatted(".1f", spread),
                "paper": papers.get(name, ""),
            }
        )
    busy = _recorded(lab, online, backlog, next(iter(systems.values()))).moments
    load = _curve("online requests", busy, [each.online_running + each.online_waiting for each in busy], GREY)
    panels = [[Panel(curves, ylabel="prompt tokens from the cache (%)")], [Panel([load], ylabel="online requests")]]
    caption = f"In parts of {PART_S:g} s at most. Beside {backlog.name}. {lab.where(online, backlog)}."
    return Result([Table(caption, rows)], draw(panels, 4.6, "minutes"))


def block_owners(lab: BacklogLab, online: Online, backlog: Backlog, systems: Mapping[str, System]) -> Result:
    """Whose KV blocks are, of all there are."""
    rows, panels = [], []
    for name, system in systems.items():
        moments = _recorded(lab, online, backlog, system).moments
        shares = {label: [_share(moment, owner) for moment in moments] for label, (owner, _) in OWNERS.items()}
        areas = [_curve(label, moments, shares[label], colour) for label, (_, colour) in OWNERS.items()]
        panels.append([Panel(areas, title=name, ylabel="KV blocks (%)", is_stacked=True)])
        means = {label: fmean(values) for label, values in shares.items()}
        occupied = [100 - cached - empty for cached, empty in zip(*list(shares.values())[-2:], strict=True)]
        over_half = f"{sum(value > 50 for value in occupied) / len(occupied):.0%} of the time"
        cells = formatted(".1f", {f"{label}, mean %": value for label, value in means.items()})
        rows.append({"system": name, **cells, "more than half is held": over_half})
    held = "KV blocks by who holds them; cached ones are held by nobody, and can be found."
    caption = f"{held} Beside {backlog.name}. {lab.where(online, backlog)}."
    return Result([Table(caption, rows)], draw(panels, 0.8 + 1.9 * len(panels), "minutes"))


def _recorded(lab: BacklogLab, online: Online, backlog: Backlog, system: System) -> Recording:
    return lab.bench(online, backlog).record(system).after(lab.warm_up_s(backlog))


def _share(moment: Moment, owner: str) -> float:
    """In percent."""
    held: int = getattr(moment.owners, owner)
    total: int = sum(astuple(moment.owners))
    return 100 * held / total


def _curve(label: str, moments: Sequence[Moment], values: Sequence[float], colour: str) -> Curve:
    """Over minutes."""
    each = max(1, -(-len(moments) // SHOWN_MOMENTS))
    firsts = range(0, len(moments), each)
    minutes = [moments[first].time_s / 60 for first in firsts]
    return Curve(label, minutes, [fmean(values[first : first + each]) for first in firsts], colour, "-")


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Empty where one of them never changes."""
    try:
        return f"{correlation(xs, ys):.2f}"
    except StatisticsError:
        return ""
