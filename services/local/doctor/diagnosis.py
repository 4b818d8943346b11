"""``slackwater doctor``: would ``slackwater up`` work here, and what to do where it would not."""

from collections.abc import Mapping
from typing import Any

import msgspec

from services.gateway.settings import GatewaySettings
from services.local.doctor import key_check, machine_checks, package_checks, stack_checks
from services.local.doctor.check import Check, State, failed, ok
from services.local.stack.catalogue import all_values, read_config, stack_options
from services.local.stack.gpu_pinning import VISIBLE, device_shares
from services.local.stack.machine import gpus
from services.local.stack.options import StackOptions
from shared.errors import ConfigError, StackError
from shared.settings.config import Value


class Diagnosis(msgspec.Struct, frozen=True):
    """What ``doctor --json`` prints. ``ok``: nothing would stop ``slackwater up``."""

    ok: bool
    checks: list[Check]


def diagnose(given: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> Diagnosis:
    """With the options that ``slackwater up`` would have. Where those are at fault, with the defaults."""
    try:
        options = stack_options(given, config, environ)
        values = all_values(read_config(config, environ), environ)
        device, gateway = str(values["executor"]["device"].value), _gateway(values["gateway"], options.host)
        configured = ok("config", str(options.config_file or "no file"))
    except ConfigError as error:
        options, device, gateway = StackOptions(), "auto", GatewaySettings(model_path="")
        configured = failed("config", str(error), "correct it; slackwater config show tells what holds")
    checks = [configured, stack_checks.environment_check(environ), *_machine(options, device), *_stack(options)]
    checks.append(key_check.key_check(gateway, options))
    if options.executors > 1:
        checks.append(executors_check(options, environ))
    return Diagnosis(all(check.state is not State.FAILED for check in checks), checks)


def executors_check(options: StackOptions, environ: Mapping[str, str]) -> Check:
    """What each of several executors would run on."""
    try:
        shares = device_shares(options, environ)
    except StackError as error:
        return failed("executors", f"{options.executors}", str(error))
    devices = [f"GPU {each.environ[VISIBLE]}" for each in shares if VISIBLE in each.environ]
    threads = f"{shares[0].threads} CPU thread{'s' * (shares[0].threads != 1)} each"
    return ok("executors", f"{len(shares)}: {', '.join(devices) or threads}")


def _gateway(values: Mapping[str, Value], host: str) -> GatewaySettings:
    """As far as keys are concerned."""
    keys = {name: values[name].value for name in ("require_keys", "api_key")}
    return GatewaySettings(model_path="", host=host, **keys)


def _machine(options: StackOptions, device: str) -> list[Check]:
    there = gpus()
    return [
        machine_checks.python_check(),
        machine_checks.cores_check(),
        machine_checks.memory_check(stack_checks.weights_bytes(options), options.executors),
        machine_checks.gpu_check(there, device, options.engine),
        package_checks.packages_check(),
        package_checks.triton_check(bool(there)),
        package_checks.vllm_check(options.engine, bool(there)),
    ]


def _stack(options: StackOptions) -> list[Check]:
    return [
        stack_checks.nats_check(options.nats),
        stack_checks.port_check(options.host, options.port),
        stack_checks.data_dir_check(options.data_dir),
        stack_checks.cache_check(),
        stack_checks.model_check(options),
    ]
