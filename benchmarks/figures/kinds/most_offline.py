"""The most offline work that systems do beside online work before it misses its SLO (OOCO figure 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.figures.kinds.out_of_sample import ANOTHER_SEED, ANOTHER_TRACE, CHOSEN_ON, UNSEEN_STYLES
from benchmarks.figures.pool_run import MOST_BROKEN, PoolRun
from benchmarks.figures.pools_lab import Case, Most, PoolsLab, PoolSystem
from benchmarks.harness.charts import Curve, Curves, Panel, Point, draw
from benchmarks.harness.command import Row, Table
from benchmarks.harness.page import Result
from benchmarks.lab.lab import machine_name
from shared.latency.features import BatchFeatures
from shared.scheduling.packing.deadlines.token_slo import TokenSlo

ALONE = "online alone"
OFFLINE = "offline tokens/s (thousands)"
MISSED = "missed %"  # of the online requests


def most_offline(
    lab: PoolsLab,
    cases: Sequence[Case],
    systems: Mapping[str, PoolSystem],
    colours: Sequence[str],
    baselines: Sequence[str],
) -> Result:
    """A group of bars for each case, all on one machine, and a bar for each system. ``baselines``: those of the systems
    of which the better is what gains are over."""
    cases = lab.chosen(cases)
    done: dict[str, list[float]] = {name: [] for name in systems}
    rows: list[Row] = []
    for case in cases:
        found = {name: lab.most(case, system) for name, system in systems.items()}
        best = max((found[name].run.offline_tokens_per_s for name in baselines), default=0.0)
        for name, most in found.items():
            done[name].append(most.run.offline_tokens_per_s / 1e3)
            gain = f"{most.run.offline_tokens_per_s / best:.2f}x" if best else ""
            where = {"dataset": case.dataset.name, "online/s": f"{lab.rate(case):.2f}"}
            rows.append({**where, "system": name, "over the baseline": gain, **_cells(most)})
    xs = range(len(cases))
    bars = [Curve(name, xs, done[name], colour) for name, colour in zip(systems, colours, strict=True)]
    served, names = cases[0].served, [case.dataset.name for case in cases]
    caption = (
        f"The most offline work that is done while at most {MOST_BROKEN:.0%} of the online requests miss their SLO, on "
        f"two executors; over the better of {' and '.join(baselines)}. {machine_name(served.machine)} each; "
        f"SLO: TTFT {served.slo.ttft_ms:g} ms, mean TPOT {served.slo.tpot_ms:g} ms; {lab.where()}."
    )
    return Result([Table(caption, rows)], draw([[Panel(bars, ylabel=OFFLINE, names=names)]], 3.4))


def most_elsewhere(lab: PoolsLab, cases: Sequence[Case], systems: Mapping[str, PoolSystem], num_seeds: int) -> Result:
    """The rates of ``most_offline``, online and offline, where they were not searched: with requests that other seeds
    draw, and with the arrivals of another trace."""
    cases, seed = lab.chosen(cases), lab.options.seed
    seeded = [lab.elsewhere(seed=seed + number) for number in range(1, num_seeds + 1)]
    labs = [lab, *seeded, lab.elsewhere(online=lab.options.other_online)]
    kinds = [CHOSEN_ON, *[ANOTHER_SEED] * num_seeds, ANOTHER_TRACE]
    rows, points = list[Row](), list[Point]()
    for case in cases:
        rate = lab.rate(case)
        found = {ALONE: (lab.alone, 0.0)}
        found |= {name: (system, lab.most(case, system).rate) for name, system in systems.items()}
        for number, (name, (system, offline_rate)) in enumerate(found.items()):
            runs = [each.run(case, system, rate, offline_rate) for each in labs]
            missed = [{MISSED: 100 * run.broken} for run in runs]
            for kind, values in zip(kinds, missed, strict=True):
                points.append(Point("", case.dataset.name, kind, number, values, {}))
            cells = {"dataset": case.dataset.name, "system": name, "offline/s": f"{offline_rate:.2f}"}
            rows.append({**cells, **_elsewhere(*runs)})
    numbered = ", ".join(f"{number}: {name}" for number, name in enumerate([ALONE, *systems]))
    caption = (
        f"The online and offline rates that were searched, with requests of {num_seeds} other seeds and of another "
        f"trace: who misses the SLO there, where {MOST_BROKEN:.0%} may. {machine_name(cases[0].served.machine)}; "
        f"{lab.where()}. In the picture {numbered}."
    )
    styles = {kind: UNSEEN_STYLES[kind] for kind in kinds}
    curves = Curves("system", styles, bounds={"SLO": lambda _: 100 * MOST_BROKEN})
    return Result([Table(caption, rows)], draw(curves.panels(points), 2.8, "system"))


def _elsewhere(chosen_on: PoolRun, *others: PoolRun) -> Row:
    """``others``: of other seeds, the last of another trace."""
    *seeded, traced = others
    tokens_per_s = [run.offline_tokens_per_s for run in seeded if run.is_whole]
    return {
        f"missed, {CHOSEN_ON}": _missed(chosen_on),
        f"{ANOTHER_SEED}: kept": f"{sum(run.keeps for run in seeded)} of {len(seeded)}",
        f"{ANOTHER_SEED}: worst": _missed(max(seeded, key=lambda run: run.broken)),
        f"missed, {ANOTHER_TRACE}": _missed(traced),
        f"offline tokens/s, {CHOSEN_ON}": f"{chosen_on.offline_tokens_per_s:,.0f}",
        f"offline tokens/s, {ANOTHER_SEED}": " to ".join(f"{f(tokens_per_s):,.0f}" for f in (min, max) if tokens_per_s),
    }


def _missed(run: PoolRun) -> str:
    """A run that is given up had missed as much by then."""
    return f"{run.broken:.1%}" if run.is_whole else f"over {run.broken:.1%}"


def by_tpot_slo(
    lab: PoolsLab, case: Case, systems: Mapping[str, PoolSystem], colours: Sequence[str], tpots_ms: Sequence[float]
) -> Result:
    """Beside as many online requests as under the case's own SLO, under other ones. Steps of mixed executors have so
    many tokens that one of prompts alone takes as long as a token may."""
    rate, points = lab.rate(case), list[Point]()
    for tpot_ms in tpots_ms:
        served = replace(case.served, slo=TokenSlo(case.served.slo.ttft_ms, tpot_ms))
        for name, system in systems.items():
            sized = system if system.strict else replace(system, chunk=_chunk(lab, case, system, tpot_ms))
            most = lab.most(replace(case, served=served), sized, rate)
            cells = {"TPOT SLO ms": f"{tpot_ms:g}", "tokens of a step": f"{sized.chunk:,}"}
            values = {OFFLINE: most.run.offline_tokens_per_s / 1e3}
            points.append(Point("", "", name, tpot_ms, values, {**cells, "system": name, **_cells(most)}))
    styles = {name: ("o-", colour) for name, colour in zip(systems, colours, strict=True)}
    caption = (
        f"The most offline work that is done while at most {MOST_BROKEN:.0%} of the online requests miss their SLO, on "
        f"two executors, {case.name} at {rate:.2f} requests/s; TTFT {case.served.slo.ttft_ms:g} ms; {lab.where()}."
    )
    return Curves("TPOT SLO (ms)", styles).result(points, caption, 2.8)


def _chunk(lab: PoolsLab, case: Case, system: PoolSystem, step_ms: float) -> int:
    latency = lab.setup(case, system).latency
    return max(1, latency.max_prefill_tokens(BatchFeatures(), 0, step_ms, system.chunk))


def _cells(most: Most) -> Row:
    run = most.run
    return {
        "offline/s offered": f"{most.rate:.2f}",
        "ended/s": f"{run.ended_per_s:.2f}",
        "offline tokens/s": f"{run.offline_tokens_per_s:,.0f}",
        "missed": f"{run.broken:.1%}",
        "TTFT p99 ms": f"{run.ttft_p99_ms:,.0f}",
        "TPOT p99 ms": f"{run.tpot_p99_ms:.1f}",
        "busy": ", ".join(f"{share:.0%}" for share in run.busy_shares),
        "moved": f"{run.handed_over:,}",
        "preemptions": f"{run.preemptions:,}",
    }
