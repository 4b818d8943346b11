"""A stack whose settings are in a configuration file, as its processes have them."""

from collections.abc import Callable
from pathlib import Path

from tests.integration.conftest import LocalStack

FILE = """
[stack]
engine = "sim"
executors = 2
kv_blocks = 96
slo = ["ttft_p99<=700ms", "tbt_p99<=90ms"]
port = 1

[strategy]
preset = "bros"

[executor]
max_num_seqs = 7
max_num_batched_tokens = 128
"""


def test_every_process_of_a_stack_reads_the_file(make_stack: Callable[..., LocalStack], tmp_path: Path) -> None:
    file = tmp_path / "stack.toml"
    file.write_text(FILE)
    stack = make_stack("--config", str(file), "--executors", "1", "--kv-blocks", "64")  # and --port, of its own
    assert stack.start() == f"ready {stack.url} model smollm2-135m-instruct"
    found = stack.wait_healthy()
    (beat,) = found["executors"]
    info = beat["info"]
    assert (info["spec"]["engine"], info["max_num_seqs"], info["max_num_batched_tokens"]) == ("sim", 7, 128)
    assert (info["spec"]["num_blocks"], info["strategy"]["kv_sharing"]) == (64, "bidirectional")
    assert (info["strategy"]["ttft_slo_ms"], info["strategy"]["tpot_slo_ms"]) == (700.0, 90.0)
    details = {process["name"]: process["details"] for process in found["processes"]}
    assert details["offline-queue"]["preset"] == "bros"
    shown = stack.run("top", "--once")
    assert shown.returncode == 0 and "executor-0" in shown.stdout
    in_the_way = stack.run("doctor", "--config", str(file), "--port", str(stack.port))
    assert in_the_way.returncode == 1
    failed = {line.split()[0] for line in in_the_way.stdout.splitlines() if " failed " in line}
    assert failed == {"port", "data-dir"}
    assert stack.stop() == 0
