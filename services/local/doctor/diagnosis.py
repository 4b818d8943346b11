"""``slackwater doctor``: would ``slackwater up`` work here, and what to do where it would not."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import typer
from rich.table import Table

from services.gateway.settings import GatewaySettings
from services.local.command_group import FAILURE
from services.local.commands.output import stdout_console
from services.local.commands.parameters import ConfigOption, JsonOption, show
from services.local.doctor import machine_checks, stack_checks
from services.local.doctor.bus_checks import bus_checks
from services.local.doctor.check import Check, State, failed, ok
from services.local.doctor.model_checks import ModelChecks
from services.local.stack.catalogue import STACK_SETTINGS, gateway_access, stack_options
from services.local.stack.gpu_pinning import VISIBLE, DeviceShare, device_of, shares_of_models
from services.local.stack.machine import gpus
from services.local.stack.options import StackOptions
from shared.errors import ConfigError, StackError
from shared.settings.command_options import Given, with_settings

STYLES = {State.OK: None, State.WARNING: "yellow", State.FAILED: "red"}


class Diagnosis(msgspec.Struct, frozen=True):
    """What ``doctor --json`` prints. ``ok``: nothing would stop ``slackwater up``."""

    ok: bool
    checks: list[Check]


@with_settings(STACK_SETTINGS)
def doctor(given: Given, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Tell whether slackwater up would work here with these options, and what to do where it would not.

    The exit status is 1 if something would stop it.
    """
    diagnosis = diagnose(given, config, os.environ)
    show(diagnosis, as_json, _print_checks)
    raise typer.Exit(0 if diagnosis.ok else FAILURE)


def diagnose(given: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> Diagnosis:
    """With the options that ``slackwater up`` would have. Where those are at fault, with the defaults."""
    try:
        options = stack_options(given, config, environ)
        devices = [device_of(model, environ) for model in options.models]
        gateway = gateway_access(options, environ)
        configured = ok("config", str(options.config_file or "no file"))
    except ConfigError as error:
        options, devices, gateway = StackOptions(), ["auto"], GatewaySettings(model_path="")
        configured = failed("config", str(error), "correct it; slackwater config show tells what holds")
    there = gpus()
    models = [ModelChecks(model) for model in options.models]
    num_executors = sum(model.executors for model in options.models)
    weights_bytes = sum(model.options.executors * model.weights_bytes for model in models)
    engines = [model.engine for model in options.models]
    engine = next((each for each in engines if each == "vllm"), engines[0])
    gpu = [machine_checks.gpu_check(there, *each) for each in zip(devices, engines, strict=True)]
    checks = [
        configured,
        stack_checks.environment_check(environ),
        machine_checks.python_check(),
        machine_checks.cores_check(),
        machine_checks.memory_check(weights_bytes // num_executors, num_executors),
        max(gpu, key=lambda check: list(State).index(check.state)),
        machine_checks.packages_check(),
        machine_checks.triton_check(bool(there)),
        machine_checks.vllm_check(engine, bool(there)),
        machine_checks.nixl_check(engine, max(model.strict for model in options.models)),
        *(bus_checks(options) if options.nats else [stack_checks.nats_check()]),
        stack_checks.port_check(options.host, options.port),
        stack_checks.data_dir_check(options.data_dir),
        stack_checks.cache_check(),
        *(model.model_check() for model in models),
        *(model.adapters_check() for model in models if model.options.lora_modules and model.options.engine == "vllm"),
        stack_checks.key_check(gateway, options),
    ]
    if options.executors > 1 or options.others:
        checks.append(executors_check(options, environ))
    return Diagnosis(all(check.state is not State.FAILED for check in checks), checks)


def executors_check(options: StackOptions, environ: Mapping[str, str]) -> Check:
    """What each of several executors would run on."""
    try:
        of_models = zip(options.models, shares_of_models(options, environ), strict=True)
        devices = ((device_of(model, environ), model, shares) for model, shares in of_models)
        found = [_runs_on(model, share, device) for device, model, shares in devices for share in shares]
    except StackError as error:
        return failed("executors", f"{sum(model.executors for model in options.models)}", str(error))
    told = f"{found[0]} each" if len(set(found)) == 1 else ", ".join(found)
    return ok("executors", f"{len(found)}: {told}")


def _runs_on(options: StackOptions, share: DeviceShare, device: str) -> str:
    if options.engine == "sim":
        return "a simulated GPU"
    kind, _, number = device.partition(":")
    if VISIBLE in share.environ or (kind == "cuda" and number):
        return f"GPU {share.environ.get(VISIBLE, number)}"
    return f"{share.threads} CPU thread{'s' * (share.threads != 1)}" if share.threads else "a CPU thread per core"


def _print_checks(diagnosis: Diagnosis) -> None:
    """A line for each check, with what to do below those that need it."""
    table = Table(box=None, show_header=False)
    for check in diagnosis.checks:
        table.add_row(check.name, check.state, check.found, style=STYLES[check.state])
        if check.remedy:
            table.add_row("", "", f"-> {check.remedy}")
    stdout_console().print(table)
