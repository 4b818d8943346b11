"""How SLOs are kept, in words."""

from __future__ import annotations

from shared.protocol.slo_profile import SloVerdict
from shared.protocol.slo_status import SloStatus


def slo_text(status: SloStatus, unix_s: float) -> str:
    """A paragraph for one kind of executor."""
    lines = [f"SLOs of {status.profile_key}: {status.state}{_age(status, unix_s)}"]
    lines += [f"  {_measured(verdict)}" for verdict in status.measured]
    lines += [f"  {status.note}"] if status.note else []
    return "\n".join(lines)


def _age(status: SloStatus, unix_s: float) -> str:
    if status.profiled_at_s is None:
        return ""
    found = "no offline work" if status.profiled_ms is None else f"{status.profiled_ms:g} ms"
    return f" {_ago(unix_s - status.profiled_at_s)} ago: {found} ({status.profiled_because})"


def _ago(seconds: float) -> str:
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _measured(verdict: SloVerdict) -> str:
    """The last minute: ``tbt_mean<=1.05x  24.1 of 25.3 ms  kept``."""
    bound = "?" if verdict.bound_ms is None else f"{verdict.bound_ms:.4g}"
    if verdict.value_ms is None:
        return f"{verdict.expr:24} no online requests in the last minute (bound {bound} ms)"
    kept = "" if verdict.bound_ms is None else "kept" if verdict.met else "BROKEN"
    return f"{verdict.expr:24} {verdict.value_ms:.4g} of {bound} ms  {kept}".rstrip()
