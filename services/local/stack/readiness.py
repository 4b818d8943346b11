"""When a stack is ready: the gateway says so, every service answers, and the latency profile is there."""

from collections.abc import Collection, Iterable

import httpx

from services.local.stack.progress import Progress
from shared.bus import Bus
from shared.errors import BusError, StackError
from shared.protocol.services import ServiceStatus
from shared.watch.stack_status import PING_WAIT_S, ping_all

Step = tuple[str, str]  # an activity, and how far it is

PROFILER = "profiler"
PROFILE_DONE = "done"
PROFILE_LACKING = {  # states in which the stack serves without one, and why there is none
    "deferred": "the step latencies are not measured yet: the executors have work; it is done when they are idle",
    "failed": "the step latencies cannot be measured here; the latency model is learned from the executors' own steps",
}


async def require_own_bus(bus: Bus, names: Collection[str]) -> None:
    """Raises StackError where services of these names are there already."""
    if taken := taken_names(await ping_all(bus), names):
        raise StackError(
            f"another stack is on this bus: {', '.join(taken)} answered. To add an executor to it: "
            "python -m services.executor --nats URL --executor-id ID --model-path FOLDER"
        )


def taken_names(there: Collection[str], names: Iterable[str]) -> list[str]:
    """Of a stack's services that are to start those whose names others have; only gateways may be several."""
    return [name for name in names if name in there and name != "gateway"]


async def wait_ready(bus: Bus, url: str, names: Collection[str], progress: Progress) -> None:
    """Return once the stack serves; asks again and again, telling ``progress`` what is missing."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5.0) as client:
        while True:
            statuses = await _answers(bus)
            missing = _missing(statuses, names, await _gateway_ready(client))
            if missing is None:
                break
            progress.step(*missing)
    lacking = PROFILE_LACKING.get(str(statuses[PROFILER].details.get("profile_state")))
    if lacking:
        progress.note(lacking)


async def _answers(bus: Bus) -> dict[str, ServiceStatus]:
    try:
        return await ping_all(bus)
    except BusError:  # the server is being started again
        await bus.wait_reconnected(bus.reconnects, PING_WAIT_S)
        return {}


async def _gateway_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _missing(statuses: dict[str, ServiceStatus], names: Collection[str], gateway_ready: bool) -> Step | None:
    """What is not there yet; None where nothing is missing."""
    silent = [name for name in names if name not in statuses]
    if silent:
        return f"starting {', '.join(silent)}", ""
    details = statuses[PROFILER].details
    if details.get("profile_state") not in (PROFILE_DONE, *PROFILE_LACKING):
        done, total = details.get("shapes_measured"), details.get("shapes_total")
        how_far = f"{done} of {total} batch shapes" if total else ""
        return "measuring step latencies on this machine (once per model and device)", how_far
    return None if gateway_ready else ("waiting for the gateway", "")
