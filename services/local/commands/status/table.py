"""``slackwater status``, and what it prints."""

import asyncio
import time

from rich.table import Table

from services.local.commands.asked_stack import AskedStackOptions
from services.local.commands.output import stdout_console
from services.local.commands.parameters import JsonOption, show
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.profiling.budgets import BudgetRecord, SloStatus
from shared.protocol.profiling.slo_profile import SloVerdict
from shared.protocol.services import is_well
from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import Strategy
from shared.settings.command_options import with_option_groups
from shared.watch.pools import acting_roles, role_text
from shared.watch.stack_status import ProcessStatus, Status, figure_text


@with_option_groups
def status(stack: AskedStackOptions, as_json: JsonOption = False) -> None:
    """Show every process of a stack, its executors and its queues."""
    show(asyncio.run(read_status(stack)), as_json, print_status)


async def read_status(options: AskedStackOptions) -> Status:
    """Raises StackError, BusError and ApiError where none answers."""
    async with options.opened("status", num_beats=1) as stack:
        return (await stack.report()).status


def print_status(status: Status) -> None:
    """Tables on stdout."""
    console = stdout_console()
    bus = f"bus {status.nats}" if status.nats else None
    console.print("  ".join(word for word in (status.url, status.url and status.model, bus) if word))
    console.print(_process_table(status.processes))
    roles = acting_roles(status.executors)
    names_models = len({beat.info.spec.model for beat in status.executors}) > 1
    for beat in status.executors:
        console.print(describe(beat, roles[beat.info.executor_id], names_models))
    for budget in status.budgets:
        console.print(f"budget     {budget_text(budget)}  {budget.profile_key}", soft_wrap=True)
    for slo in status.slos:
        console.print(slo_text(slo, time.time()), soft_wrap=True)
    console.print("queues")
    queues = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in status.queues.items():
        queues.add_row(name.replace("_", " "), figure_text(value))
    console.print(queues)


def budget_text(budget: BudgetRecord) -> str:
    idle = f", {budget.idle_budget_ms:g} ms without online requests" if budget.idle_budget_ms else ""
    if budget.tolerance is not None:
        return f"online tokens come at most {budget.tolerance:.0%} later in the mean{idle} ({budget.source})"
    return f"{budget.latency_budget_ms:g} ms a step{idle} ({budget.source})"


def _process_table(processes: list[ProcessStatus]) -> Table:
    table = Table("process", "pid", "health", "restarts", box=None, header_style="bold")
    for process in processes:
        style = "" if is_well(process.name, process.health) else "red"
        pid, restarts = process.pid or "", "" if process.restarts is None else process.restarts
        table.add_row(process.name, str(pid), process.health, str(restarts), style=style)
    return table


def describe(beat: Heartbeat, acts_as: Role = Role.MIXED, names_model: bool = False) -> str:
    """``acts_as``: beside the others."""
    info, counters = beat.info, beat.counters
    model = f"{info.spec.model} by " if names_model else ""
    adapters = f"  adapters {', '.join(info.spec.adapters)}\n" if info.spec.adapters else ""
    waits, slow = (f"           {words}\n" if words else "" for words in (beat.offline_waits, beat.slow_step))
    return (
        f"{info.executor_id}  {model}{info.spec.engine} on {info.spec.device}{role_and_draining_text(beat, acts_as)}\n"
        f"{adapters}"
        f"  online   {beat.online_running} running, {beat.online_waiting} waiting, "
        f"{counters.finished_online} finished, {counters.online_tokens} tokens\n{_describe_deadlines(info.strategy)}"
        f"  offline  {beat.offline_running} running, {beat.offline_waiting} waiting, "
        f"{counters.finished_offline} finished, {counters.offline_tokens} tokens\n{waits}"
        f"  steps    {counters.steps}: {counters.steps_planned} planned, {counters.steps_local} local, "
        f"{counters.steps_idle} from idle\n{_describe_sizes(info)}{slow}"
        f"  entering {counters.entrant_tokens_planned} tokens planned, {counters.entrant_tokens_computed} computed, "
        f"{counters.cached_tokens} found in the prefix cache\n{_describe_moves(beat)}"
        f"  blocks   {beat.num_free_blocks} of {info.spec.num_blocks} free"
        f"{_describe_kept(beat)}{_describe_sharing(beat)}"
    )


def _describe_sizes(info: ExecutorInfo) -> str:
    chosen = "" if info.largest is None else ", by what steps take"
    return f"           of up to {info.max_num_batched_tokens} tokens and {info.max_num_seqs} requests{chosen}\n"


def role_and_draining_text(beat: Heartbeat, acts_as: Role) -> str:
    """What stands behind an executor's name."""
    drains = "drained" if beat.is_drained else "drains" if beat.draining else ""
    return "".join(f" ({words})" for words in (role_text(beat, acts_as), drains) if words)


def _describe_moves(beat: Heartbeat) -> str:
    given, taken = beat.counters.handed_over, beat.counters.taken_over
    if beat.info.role is Role.MIXED and not given and not taken:
        return ""
    held_s = beat.counters.handover_s
    each = f" in {held_s / given * 1e3:.0f} ms each" if held_s else ""
    return f"  moved    {given} requests to other executors with their KV{each}, {taken} from them\n"


def _describe_deadlines(strategy: Strategy) -> str:
    if not strategy.uses_deadlines:
        return ""
    first, later, rule = strategy.ttft_slo_ms, strategy.tpot_slo_ms, strategy.deadline_rule.replace("-", " ")
    return f"  due      first tokens within {first:g} ms, later ones {later:g} ms each (counted from the {rule})\n"


def _describe_kept(beat: Heartbeat) -> str:
    """What of the free blocks is not for any offline request that comes."""
    strategy, words = beat.info.strategy, ""
    if strategy.needs_readers:
        words += f", {beat.num_wanted_blocks} of them to be read by offline requests"
    if strategy.kv_reserve != "none":
        words += f", {beat.num_reserved_blocks} to be left for online requests"
    return words


def _describe_sharing(beat: Heartbeat) -> str:
    counters = beat.counters
    if not beat.info.strategy.sharing.pauses:
        return ""
    return (
        f", {counters.pauses} times an offline request was paused, {counters.checkpointed_slots} slots to the host, "
        f"{counters.restored_slots} back, for which steps waited {counters.copy_wait_s:.1f} s"
    )


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
