"""What ``slackwater doctor --nats URL`` finds of a bus that is there: who is let in, and what it can lose."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from services.gateway.settings import is_loopback
from services.local.doctor.check import Check, failed, ok, warning
from services.local.stack.data_dir import DataDir, bus_at
from services.local.stack.gpu_pinning import DeviceShare
from services.local.stack.options import StackOptions
from services.local.stack.readiness import taken_names
from services.local.stack.service_commands import ModelPlace, service_commands
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import SlackwaterError, StackError
from shared.protocol import subjects
from shared.watch.stack_status import ping_all

LET_IN_S = 2.0


class BusFacts(msgspec.Struct, frozen=True):
    """``copies``: of each stream of ours that is there, by its name on the server. ``services``: those that answer."""

    num_servers: int
    replicas: int
    copies: dict[str, int]
    services: list[str]


def bus_checks(options: StackOptions) -> list[Check]:
    """Of the bus that the options name."""
    address = BusAddress.of(options, BusRole.OPERATOR)
    try:
        facts = asyncio.run(_looked_at(address))
    except SlackwaterError as error:
        return [failed("nats", str(error), f"start it, or correct --nats {address.shown} and --nats-creds")]
    servers = f"{facts.num_servers} server{'s' * (facts.num_servers != 1)}"
    there = f"{address.shown} answers: {servers} with JetStream"
    return [ok("nats", there), *_access(address), copies_check(facts), services_check(facts, _names(options))]


def copies_check(facts: BusFacts) -> Check:
    """Every stream has as many copies as it is to have, and whether what is stored may be lost."""
    fewer = sorted(name for name, copies in facts.copies.items() if copies < facts.replicas)
    if fewer:
        found = f"fewer copies than {facts.replicas}: {', '.join(fewer)}"
        return warning("bus-copies", found, "the offline-queue raises them within a minute; is it at work?")
    least = min(facts.copies.values(), default=facts.replicas)  # more than asked here, where services ask for more
    if least == 1:
        return ok("bus-copies", "1: what its server's disk loses is lost")
    return ok("bus-copies", f"{least} of each of {len(facts.copies)} streams")


def services_check(facts: BusFacts, names: Sequence[str]) -> Check:
    """Who answers is of no other stack. ``names``: of the services that are to start."""
    if taken := taken_names(facts.services, names):
        found = f"another stack is on this bus: {', '.join(taken)} answered"
        return failed("bus-services", found, "stop that stack, or give each a bus of its own")
    return ok("bus-services", ", ".join(facts.services) or "none answers yet")


def _access(address: BusAddress) -> list[Check]:
    """Every role that a stack needs has credentials, and nobody is let in without."""
    remedy = "slackwater bus init FOLDER, and see docs/guides/bus_security.md"
    if not address.is_encrypted:
        local = all(is_loopback(urlsplit(each).hostname or "") for each in address.servers)
        found = f"{address.shown} is not encrypted"
        return [
            ok("bus-access", f"{found}, and of this machine alone") if local else warning("bus-access", found, remedy)
        ]
    if not address.creds:
        return [warning("bus-access", "it lets in who shows nothing", remedy)]
    lacking = [role for role in BusRole if not _is_let_in(msgspec.structs.replace(address, role=role))]
    if lacking:
        found = f"{address.creds} does not open it for: {', '.join(lacking)}"
        return [failed("bus-access", found, "give a folder with the credentials of each role that is to run here")]
    return [ok("bus-access", f"encrypted; {address.creds} opens it for every role")]


def _names(options: StackOptions) -> list[str]:
    """Of the services that a stack of these options would start."""
    places = [ModelPlace(each, Path(), [DeviceShare(0)] * each.executors) for each in options.models]
    commands = service_commands(DataDir(options.data_dir), BusAddress(options.nats), places)
    return [command.name for command in commands]


def _is_let_in(address: BusAddress) -> bool:
    async def connect() -> None:
        async with bus_at(address, "doctor", LET_IN_S):
            pass

    try:
        asyncio.run(connect())
    except StackError:
        return False
    return True


async def _looked_at(address: BusAddress) -> BusFacts:
    """Raises StackError and BusError."""
    async with bus_at(address, "doctor") as bus:
        sizes = await bus.sizes()
        copies = {name: size.copies for name, size in sizes.items() if name in subjects.STORED}
        return BusFacts(bus.num_servers, bus.replicas, copies, sorted(await ping_all(bus)))
