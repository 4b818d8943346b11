"""One large batch through the whole stack: ``python -m benchmarks.gateway.batch_scale``. Upload, validation, every
request on an executor with the simulated engine, output file; what each phase takes, and the most memory that each
process has in it. The engine is scaled so that it is not what is waited for.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.gateway.large_batch import ENDED, batch_stack, submit, write_input
from benchmarks.harness.command import Results, benchmark
from benchmarks.harness.stack import wait_until
from benchmarks.harness.usage import Usage, usage_of
from services.local.commands.server import ApiClient

POLL_S, LONGEST_S = 0.2, 3600.0
PHASES: dict[str, Callable[[str], bool]] = {  # and whether a status ends it
    "validation": lambda status: status != "validating",
    "run": lambda status: status not in ("validating", "in_progress"),
    "output file": lambda status: status in ENDED,
}


def run(
    client: ApiClient, processes: Mapping[str, psutil.Process], source: Path, output: Path
) -> tuple[dict[str, Any], dict[str, Usage]]:
    """The batch at its end, and what its phases took."""
    batch: dict[str, Any] = {}

    def status() -> str:
        batch.update(client.get(f"/v1/batches/{batch['id']}"))
        print(batch["status"], batch["request_counts"], file=sys.stderr)
        return str(batch["status"])

    def ends(has_ended: Callable[[str], bool]) -> bool:
        return has_ended(status())

    taken: dict[str, Usage] = {}
    with usage_of(processes) as taken["before"]:
        pass
    with usage_of(processes) as taken["upload"]:
        batch["id"] = submit(client, source)
    for name, has_ended in PHASES.items():
        with usage_of(processes) as taken[name]:
            wait_until(partial(ends, has_ended), LONGEST_S, POLL_S)
    with usage_of(processes) as taken["download"]:
        if batch["output_file_id"]:
            client.download(batch["output_file_id"], output)
    return batch, taken


@benchmark
def main(
    lines: int = 50_000,
    mb: Annotated[int, typer.Option(help="Of the input file.")] = 200,
    max_tokens: int = 4,
    queue_options: Annotated[list[str] | None, typer.Argument(help="After --: options of the offline-queue.")] = None,
) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "input.jsonl", Path(folder) / "output.jsonl"
        write_input(source, lines, mb * 1000 * 1000, max_tokens)
        print(f"input: {source.stat().st_size} bytes", file=sys.stderr)
        with batch_stack(queue_options or [], "0.0001") as running, ApiClient(running.url) as client:
            processes = dict(running.processes)
            batch, taken = run(client, processes, source, output)
    print(json.dumps({name: batch[name] for name in ("status", "request_counts", "usage")}), file=sys.stderr)
    for name, usage in taken.items():
        used = {f"{each}: MiB / CPU s": f"{usage.most_mib[each]:.0f} / {usage.cpu_s[each]:.0f}" for each in processes}
        yield {"phase": name, "s": f"{usage.seconds:.1f}", **used}
