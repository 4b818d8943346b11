"""Packing by what work earns and what it evicts: KV cache aware offline scheduling of Echo (section 4.1)."""

from collections.abc import Sequence

from shared.latency.model import LatencyModel
from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.giving_way import LEAST_MISSED
from shared.scheduling.packing.kv_aware.kv_changes import OfflineChanges
from shared.scheduling.packing.online_limit import OnlineLimit, TightestDeadline
from shared.scheduling.packing.packing import StepState
from shared.scheduling.packing.two_phase import TwoPhasePacking
from shared.scheduling.request import Request
from shared.scheduling.table import RequestTable


class KvAwarePacking(TwoPhasePacking):
    """Echo's: online work first, in order, before the first deadline; then offline work, one change at a time, each the
    one with the best (benefit - punishment) / time (Eq. 4).

    The last batch is the base of the next: all that has started is looked at before anybody enters. A tight SLO takes
    a request out of a step by leaving it out; it keeps its KV. Where online work takes its blocks, the one that is
    missed the least loses them.

    Under latency budgets other than ``deadline`` the online part is that of two-phase.
    """

    uses_time = True
    keeps_plans = True
    latency_budgets: tuple[str, ...] = ("none", "fixed", "profiled", "deadline")

    def online_limit(self, state: StepState, builder: BatchBuilder, decodes: Sequence[Request]) -> OnlineLimit:
        return TightestDeadline(state, builder, decodes)

    def gives_way(self, table: RequestTable, model: LatencyModel) -> str:
        return LEAST_MISSED

    def offline_phase(
        self, builder: BatchBuilder, state: StepState, offline_queue: OfflineQueue, preempted: Sequence[str]
    ) -> list[str]:
        return OfflineChanges(builder, state, offline_queue, preempted).make()
