"""What a test run of a workload measured, and how SLOs judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report.report import OfflineReport, OnlineReport
from loadgen.report.slo import Slo
from shared.protocol.slo_profile import SloVerdict, Trial


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """One test run. It does not depend on any SLO, so that any set of SLOs may judge it."""

    online: OnlineReport
    offline: OfflineReport | None  # None where there was no offline work

    def judge(self, value: float, slos: Sequence[Slo], online_only: TrialOutcome) -> Trial:
        """``value``: the knob's; ``online_only``: the run that relative SLOs compare with, this one itself where it
        has no offline work."""
        verdicts = [self._verdict(slo, online_only.online) for slo in slos]
        offline = self.offline
        return Trial(
            value=value,
            verdicts=verdicts,
            met=all(verdict.met for verdict in verdicts) and self.online.errors <= online_only.online.errors,
            online_completed=self.online.completed,
            online_errors=self.online.errors,
            offline_requests_per_s=offline.requests_per_s if offline else 0.0,
            offline_tokens_per_s=(offline.total_tokens_per_s if offline else None) or 0.0,
            offline_output_tokens_per_s=(offline.output_tokens_per_s if offline else None) or 0.0,
            backlog_ran_out=offline.exhausted if offline else False,
        )

    def _verdict(self, slo: Slo, online_only: OnlineReport) -> SloVerdict:
        bound_ms, value_ms = slo.bound_ms(online_only), slo.value_ms(self.online)
        return SloVerdict(slo.expr, bound_ms, value_ms, slo.is_met(value_ms, bound_ms))
