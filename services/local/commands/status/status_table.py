"""What ``slackwater status`` prints."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from services.local.commands.status.slo_text import slo_text
from services.local.commands.status.status import ProcessStatus, Status
from shared.process.service import Details
from shared.protocol.messages import Heartbeat
from shared.scheduling.kv.policy import KV_POLICIES


def print_status(status: Status) -> None:
    """Tables on stdout."""
    console = Console(highlight=False, markup=False)
    where = f"{status.url}  {status.model}  " if status.url else ""
    console.print(f"{where}bus {status.nats}")
    console.print(_process_table(status.processes))
    for beat in status.executors:
        console.print(_describe(beat))
    for budget in status.budgets:
        idle = f", {budget.idle_budget_ms:g} ms without online requests" if budget.idle_budget_ms else ""
        line = f"budget     {budget.latency_budget_ms:g} ms a step{idle} ({budget.source})  {budget.profile_key}"
        console.print(line, soft_wrap=True)
    for slo in status.slos:
        console.print(slo_text(slo, time.time()), soft_wrap=True)
    console.print("queues")
    console.print(_queue_table(status.queues))


def _process_table(processes: list[ProcessStatus]) -> Table:
    table = Table("process", "pid", "health", "restarts", box=None, header_style="bold")
    for process in processes:
        style = "" if process.health == "ok" else "red"
        pid, restarts = process.pid or "", "" if process.restarts is None else process.restarts
        table.add_row(process.name, str(pid), process.health, str(restarts), style=style)
    return table


def _describe(beat: Heartbeat) -> str:
    info, counters = beat.info, beat.counters
    return (
        f"{info.executor_id}  {info.engine} on {info.device}{draining_text(beat)}\n"
        f"  online   {beat.online_running} running, {beat.online_waiting} waiting, "
        f"{counters.finished_online} finished, {counters.online_tokens} tokens\n"
        f"  offline  {beat.offline_running} running, {beat.offline_waiting} waiting, "
        f"{counters.finished_offline} finished, {counters.offline_tokens} tokens\n"
        f"  steps    {counters.steps}: {counters.steps_planned} planned, {counters.steps_local} local, "
        f"{counters.steps_idle} from idle\n"
        f"  blocks   {beat.num_free_blocks} of {info.num_blocks} free{_describe_sharing(beat)}"
    )


def draining_text(beat: Heartbeat) -> str:
    """What stands behind an executor's name."""
    return " (drained)" if beat.is_drained else " (drains)" if beat.draining else ""


def _describe_sharing(beat: Heartbeat) -> str:
    counters = beat.counters
    kv_policy = KV_POLICIES.get(beat.info.kv_policy)
    if kv_policy is None or not kv_policy.shares_blocks:
        return ""
    return (
        f", {counters.pauses} times an offline request was paused, {counters.checkpointed_slots} slots to the host, "
        f"{counters.restored_slots} back"
    )


def _queue_table(queues: Details) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in queues.items():
        table.add_row(name.replace("_", " "), str(value))
    return table
