"""Which GPUs, or how many CPU threads, each executor of a stack on this machine gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.local.stack.catalogue import all_values, read_config
from services.local.stack.machine import gpus, has_cpu_torch
from services.local.stack.options import StackOptions
from shared.errors import StackError
from shared.process.cores import usable_cores

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as nvidia-smi counts; CUDA itself has the fastest first


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Of one executor: its CPU threads (0: one per core), and what its environment says of GPUs."""

    threads: int
    environ: Mapping[str, str] = field(default_factory=dict)


def device_shares(options: StackOptions, environ: Mapping[str, str]) -> list[DeviceShare]:
    """One for each executor, by its settings and by what is in this machine. Raises ConfigError and StackError."""
    may_use_gpus, gpus_each = _needs(options, environ)
    if options.executors == 1 or options.engine == "sim":
        return [DeviceShare(options.threads)] * options.executors
    there = visible_gpus(environ, gpus()) if may_use_gpus and not has_cpu_torch() else []
    return share_out(options, gpus_each, there, usable_cores())


def shares_of_models(options: StackOptions, environ: Mapping[str, str]) -> list[list[DeviceShare]]:
    """As ``device_shares``, of each model in their order: no two have the same GPU, unless their device names one.
    Raises ConfigError and StackError."""
    if not options.others:
        return [device_shares(options, environ)]
    there = [] if has_cpu_torch() else visible_gpus(environ, gpus())
    num_computing = sum(model.executors for model in options.models if model.engine != "sim")
    found, left = [], list(there)
    for model in options.models:
        may_use_gpus, gpus_each = _needs(model, environ)
        if model.engine == "sim":
            found.append([DeviceShare(model.threads)] * model.executors)
        elif there and may_use_gpus:
            if not left:
                raise StackError(
                    f"no GPU is left for the model {model.model_name}: set device in its [models.executor]"
                )
            found.append(share_out(model, gpus_each, left, usable_cores()))
            left = left[model.executors * gpus_each :]
        else:
            found.append([DeviceShare(model.threads or max(1, usable_cores() // num_computing))] * model.executors)
    return found


def _needs(options: StackOptions, environ: Mapping[str, str]) -> tuple[bool, int]:
    """Whether its executors take GPUs as they come, and how many each. Raises ConfigError."""
    executor = _executor_settings(options, environ)
    may_use_gpus = executor["device"] in ("auto", "cuda")  # one with a number is what the user has chosen for all
    return may_use_gpus, executor["tensor_parallel"] * executor["pipeline_depth"] if options.engine == "vllm" else 1


def device_of(options: StackOptions, environ: Mapping[str, str]) -> str:
    """Which its executors are told to use: ``auto``, ``cpu``, ``cuda``, or ``cuda:1``. Raises ConfigError."""
    return str(_executor_settings(options, environ)["device"])


def _executor_settings(options: StackOptions, environ: Mapping[str, str]) -> dict[str, Any]:
    file = read_config(str(options.config_file or ""), environ)
    executor: dict[str, Any] = {name: found.value for name, found in all_values(file, environ)["executor"].items()}
    executor |= options.tables.get("executor", {})
    return executor


def share_out(options: StackOptions, gpus_each: int, there: Sequence[str], num_cores: int) -> list[DeviceShare]:
    """GPUs in their order, ``gpus_each`` to an executor; where none are ``there``, CPU threads in equal parts unless
    options name a number. Raises StackError where GPUs are too few."""
    count = options.executors
    if not there:
        return [DeviceShare(options.threads or max(1, num_cores // count))] * count
    if count * gpus_each > len(there):
        raise StackError(
            f"{count} executors of {gpus_each} GPU{'s' * (gpus_each > 1)} need {count * gpus_each}, and "
            f"{len(there)} are there: choose --executors {max(1, len(there) // gpus_each)}, or set device in "
            "[executor] to cpu"
        )
    shares = [there[index * gpus_each : (index + 1) * gpus_each] for index in range(count)]
    return [DeviceShare(options.threads, ORDER | {VISIBLE: ",".join(share)}) for share in shares]


def visible_gpus(environ: Mapping[str, str], there: Sequence[str]) -> list[str]:
    """As CUDA names them: those that the environment names, else all of ``there``."""
    if VISIBLE not in environ:
        return [str(index) for index in range(len(there))]
    named = [name.strip() for name in environ[VISIBLE].split(",")]
    return [name for name in named if name and name != "-1"] if there else []
