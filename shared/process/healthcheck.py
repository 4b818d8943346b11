"""``python -m shared.process.healthcheck TARGET``: exit status 0 where a process is well, 1 where it is not.

TARGET is a service's name (``predictor``), asked over the bus at ``SLACKWATER_NATS`` with its credentials, or a URL
that must answer 2xx.
"""

import argparse
import asyncio
import os
import sys
import urllib.request
from collections.abc import Mapping

from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import BusError, ConfigError
from shared.protocol import subjects
from shared.protocol.services import OFFLINE_QUEUE, ServiceStatus, is_queue_at_work

DEFAULT_NATS = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT_S = 2.0
ANSWER_WAIT_S = 1.0
MODEL_NAME = "SLACKWATER_MODEL_NAME"  # of a container with a service of one model


async def service_health(address: BusAddress | str, name: str, model: str = "") -> str:
    """ "ok", or what is wrong with the service of this name. ``model``: whose offline-queue is meant by that name."""
    try:
        bus = await Bus.connect(address, f"healthcheck of {name}", CONNECT_TIMEOUT_S)
    except (BusError, ConfigError) as error:
        return str(error)
    try:
        statuses = await bus.gather(subjects.PING, {}, ServiceStatus, ANSWER_WAIT_S)
    finally:
        await bus.close()
    meant = (status.health for status in statuses if _is_meant(status, name, model))
    return next(meant, f"{name} does not answer")


def _is_meant(status: ServiceStatus, name: str, model: str) -> bool:
    """An offline-queue is asked for by one name, whatever models there are."""
    is_own = name == OFFLINE_QUEUE and is_queue_at_work(status.name) and status.details.get("model") == model
    return status.name == name or is_own


def address_of(name: str, environ: Mapping[str, str]) -> BusAddress:
    """Of the bus, as this service is let in: by its own role's credentials, which are all that are there."""
    url, creds, ca = (environ.get(f"SLACKWATER_{each}", "") for each in ("NATS", "NATS_CREDS", "NATS_CA"))
    roles = [role for role in BusRole if name == role or (role is BusRole.OFFLINE_QUEUE and is_queue_at_work(name))]
    role = roles[0] if roles else BusRole.EXECUTOR
    return BusAddress(url or DEFAULT_NATS, creds, ca, role)


def url_health(url: str) -> str:
    """ "ok", or why the URL does not answer 2xx. No proxy is asked for a process of the same container, whatever the
    environment says of others."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=CONNECT_TIMEOUT_S):
            return "ok"
    except OSError as error:  # an HTTP status of 400 and beyond is one too
        return f"{url}: {error}"


def main() -> int:
    """Print what is wrong, if anything is."""
    parser = argparse.ArgumentParser(prog="python -m shared.process.healthcheck", description=__doc__)
    parser.add_argument("target", help="name of a service, or an http URL")
    target: str = parser.parse_args().target
    if target.startswith(("http://", "https://")):
        health = url_health(target)
    else:
        health = asyncio.run(service_health(address_of(target, os.environ), target, os.environ.get(MODEL_NAME, "")))
    print(health)
    return 0 if health == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
