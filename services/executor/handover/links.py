"""The link of an executor, by its engine."""

import asyncio
import importlib.util
import logging

from services.executor.handover.link import KVLink
from services.executor.handover.shard_calls import ShardStreams
from services.executor.handover.sharded_link import ShardedLink
from services.executor.settings import ExecutorSettings
from shared.errors import LinkError
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.protocol.handover import Place
from shared.replica.engine import Engine, KVRegions
from shared.simulation.link import Link

logger = logging.getLogger(__name__)

NIXL, SIM = "nixl", "sim"


def kv_link_of(engine: Engine) -> str:
    """The kind of link that it can have; empty where its requests stay where they are, which the log explains. Nothing
    is loaded for it."""
    if engine.spec.engine == SIM:
        return SIM
    regions = engine.kv_regions()
    if isinstance(regions, str):
        logger.info("requests do not move from or to this executor", extra={"why": regions})
        return ""
    if importlib.util.find_spec("nixl") is None:
        why = "NIXL is not installed: pip install 'slackwater[handover]'"
        logger.info("requests do not move from or to this executor", extra={"why": why})
        return ""
    return NIXL


async def make_link(engine: Engine, place: Place, settings: ExecutorSettings) -> KVLink:
    """Takes up to seconds, in a thread or in other processes. Raises LinkError."""
    if engine.spec.engine == SIM:
        from services.executor.handover.sim_link import SimLink

        architecture, device = architecture_named(settings.sim_model), device_named(settings.sim_device)
        link = Link.of(architecture, device, settings.tensor_parallel)
        return SimLink(place, engine.spec, link, settings.sim_time_scale)
    regions = engine.kv_regions()
    if isinstance(regions, str):
        raise LinkError(regions)
    if not isinstance(regions, KVRegions):
        assert isinstance(regions, ShardStreams), regions
        return await ShardedLink.begin(place, regions)
    from services.executor.handover.nixl_link import NixlLink  # late: it needs numpy

    return await asyncio.to_thread(NixlLink, place, regions)
