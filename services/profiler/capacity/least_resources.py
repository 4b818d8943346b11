"""Step 1 of a capacity plan: the fewest GPUs that keep the SLOs of online work alone at its peak (Echo section 5.4)."""

from collections.abc import Callable, Iterable, Sequence

from loadgen.progress import ReplayProgress
from loadgen.report.slo import Slo
from services.profiler.capacity.lost_slos import LostSlos
from services.profiler.capacity.record import PeakTrial
from services.profiler.capacity.resources import Resources
from services.profiler.capacity.watched_run import SloWatch, are_kept, verdicts_of
from services.profiler.capacity.workload import PlannedWorkload
from services.profiler.simulation.simulation import tell
from shared.simulation.setup import ExecutorSetup


def peak_trials(
    ways: Iterable[Resources],
    setup_of: Callable[[Resources], ExecutorSetup],
    workload: PlannedWorkload,
    slos: Sequence[Slo],
    progress: ReplayProgress,
) -> list[PeakTrial]:
    """In the order of ``ways``, up to the first that keeps every SLO: the last one, or none where no way does.
    ``setup_of``: one of its executors. Enumerated rather than bisected, as the paper has it: latencies need not fall
    with each executor more, and those far too few are found out within seconds."""
    trials: list[PeakTrial] = []
    for way in ways:
        trials.append(_run(way, setup_of(way), workload, slos, progress))
        if trials[-1].met:
            break
    return trials


def _run(
    way: Resources, setup: ExecutorSetup, workload: PlannedWorkload, slos: Sequence[Slo], progress: ReplayProgress
) -> PeakTrial:
    online = workload.online_at_peak(setup, way.executors)
    progress.phase(f"{way}, online alone at the peak", len(online.requests), 0)
    watch = SloWatch([LostSlos(slos, online.requests)], lambda phase: tell(phase, progress))
    phase = online.phase(setup, workload.peak_s, online=True, offline=False, on_change=watch)
    phase.run()
    sizes = (way.executors, way.tensor_parallel, way.gpus)
    if watch.lost is not None:
        return PeakTrial(*sizes, met=False, verdicts=[], lost=watch.lost.expr, lost_after_s=phase.now_s)
    report = phase.outcome().online
    assert report is not None
    verdicts = verdicts_of(slos, report)
    return PeakTrial(*sizes, met=are_kept(verdicts, report), verdicts=verdicts)
