"""The command lines of a stack's services."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import Placement
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import Command

Setting = str | int | float | None


def prepare_command(options: StackOptions, data_dir: DataDir) -> Command:
    """Makes the model's folder, and prints it as the last line of its stdout."""
    argv = _python("services.executor.prepare_model", model=options.model)
    return Command("prepare-model", argv, data_dir.log("prepare-model"))


def service_commands(
    options: StackOptions, data_dir: DataDir, nats_url: str, model_path: Path, placed: Sequence[Placement]
) -> list[Command]:
    """In the order in which they start; the gateway, which is where requests come in, is last. ``placed``: the
    executors, one by one."""
    config = str(options.config_file or "")  # empty: none, whatever is where the service starts
    common: dict[str, Setting] = {"config": config, "nats": nats_url, "log_level": options.log_level}
    model = {"model_path": str(model_path), "model_name": options.model_name}
    settings: dict[str, tuple[str, dict[str, Setting]]] = {
        "predictor": ("services.predictor", {}),
        "profiler": (
            "services.profiler",
            {
                "budget_ms": options.budget_ms,
                "idle_budget_ms": options.idle_budget_ms,
                "target_tbt_ms": options.target_tbt_ms,
                "slo": options.budget_slo,
                "preset": options.preset,
                "utility_ratio": options.utility_ratio,
            },
        ),
        "offline-queue": (
            "services.offline_queue",
            {
                **model,
                "preset": options.preset,
                "offline_qps": options.offline_qps,
                "utility_ratio": options.utility_ratio,
            },
        ),
    }
    environs: dict[str, Mapping[str, str]] = {}
    for index, placement in enumerate(placed):
        name = f"executor-{index}"
        settings[name] = ("services.executor", {**_executor(options, name, placement.threads), **model})
        environs[name] = placement.environ
    settings["gateway"] = ("services.gateway", {"host": options.host, "port": options.port, **model})
    return [
        Command(name, _python(module, **common, **given), data_dir.log(name), environs.get(name, {}))
        for name, (module, given) in settings.items()
    ]


def _executor(options: StackOptions, executor_id: str, threads: int) -> dict[str, Setting]:
    ttft_slo_ms, tpot_slo_ms = options.deadlines_ms
    return {
        "executor_id": executor_id,
        "engine": options.engine,
        "threads": threads,
        "kv_blocks": options.kv_blocks,
        "kv_policy": options.kv_policy,
        "vllm_attention": options.vllm_attention,
        "sim_model": options.sim_model,
        "sim_device": options.sim_device,
        "preset": options.preset,
        "online_order": options.online_order,
        "ttft_slo_ms": ttft_slo_ms,
        "tpot_slo_ms": tpot_slo_ms,
    }


def _python(module: str, **settings: Setting) -> tuple[str, ...]:
    flags = ((f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items() if value is not None)
    return (sys.executable, "-m", module, *(word for pair in flags for word in pair))
