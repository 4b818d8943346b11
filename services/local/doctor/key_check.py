"""What ``slackwater doctor`` says of API keys, by the gateway's own rules."""

import asyncio

from services.gateway.settings import GatewaySettings, are_keys_required, given_key
from services.local.doctor.check import Check, failed, ok, warning
from services.local.stack.data_dir import DataDir
from services.local.stack.keys import open_keys
from services.local.stack.options import StackOptions
from shared.errors import BusError, ConfigError, StackError

NAME = "api-key"
REMEDY = "slackwater key create NAME, or set SLACKWATER_API_KEY, or SLACKWATER_REQUIRE_KEYS=never to serve everyone"


def key_check(gateway: GatewaySettings, options: StackOptions) -> Check:
    """Whether there is one where clients need one. Looks into the store, whose bus it starts where no stack runs."""
    try:
        given = given_key(gateway)
    except ConfigError as error:
        return failed(NAME, str(error), "openssl rand -hex 32 makes one")
    if not are_keys_required(gateway):
        return ok(NAME, f"none is needed on {gateway.host}")
    try:
        num_keys, is_revoked = asyncio.run(_look(options, given.key_hash if given else None))
    except (StackError, BusError, OSError) as error:
        return warning(NAME, f"cannot be looked for: {error}", "correct what is wrong with nats and data-dir")
    if given is not None and not is_revoked:
        return ok(NAME, f"that of SLACKWATER_API_KEY, {num_keys} of slackwater key")
    if num_keys:
        return ok(NAME, f"{num_keys} of slackwater key")
    found = "that of SLACKWATER_API_KEY is revoked" if is_revoked else "there is none"
    return failed(NAME, f"clients need one where the gateway listens on {gateway.host!r}, and {found}", REMEDY)


async def _look(options: StackOptions, given_hash: str | None) -> tuple[int, bool]:
    """The number of keys, and whether the given one is revoked. A store that is not there is not made."""
    if not options.nats and not DataDir(options.data_dir).nats_store.is_dir():
        return 0, False
    async with open_keys(options.data_dir, options.nats or None) as keys:
        return len(await keys.all()), given_hash is not None and await keys.is_revoked(given_hash)
