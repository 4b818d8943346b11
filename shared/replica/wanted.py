"""What a strict replica would have of others' offline requests, after a step (OOCO section 3.4.3)."""

from collections.abc import Iterable

from shared.latency.bottleneck import saturated_batch_size
from shared.latency.model import LatencyModel
from shared.replica.replica import Replica
from shared.scheduling.placement.pulling import Node, Preference, last_batch, preference
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest


def wanted_by(
    replica: Replica, entries: Iterable[ScheduledRequest], policy: Policy, model: LatencyModel, margin: float
) -> Preference | None:
    """None for nothing. ``entries``: what the last step ran, nothing where none did; ``margin``: of the latency budget,
    the share that has to be left. Under a tolerance there is no such budget but while no online request is here. While
    online requests stand still for lack of time nothing is wanted."""
    if not policy.offline_enabled:
        return None
    table, limits, entries = replica.table, replica.limits, list(entries)
    if policy.sheds_online and not _have_run(table.running(Kind.ONLINE), entries):
        return None
    batch, has_all = last_batch(table, entries)
    num_running = len(table.running(Kind.ONLINE)) + len(table.running(Kind.OFFLINE))
    num_free_blocks = replica.pool.num_free - replica.num_reserved_blocks - num_running  # each may need one more
    node = Node(
        batch,
        has_all,
        model,
        saturated_batch_size(model),
        max(0, num_free_blocks) * limits.block_size,
        max(0, limits.max_num_seqs - num_running),
    )
    limit_ms = policy.latency_budget_ms or policy.budget_ms(table.holds_online, model)
    return preference(node, limit_ms, margin)


def _have_run(request_ids: Iterable[str], entries: Iterable[ScheduledRequest]) -> bool:
    """All of them."""
    scheduled = {entry.request_id for entry in entries}  # membership only
    return all(request_id in scheduled for request_id in request_ids)
