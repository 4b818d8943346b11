"""The SLO profiles of a running stack."""

from collections.abc import Sequence

from services.local.commands.parameters import BusOptions
from shared.errors import NoResponderError, StackError
from shared.protocol import subjects
from shared.protocol.slo_profile import ProfileReply, ProfileRequest, SloProfileRecord

ASKER = "profile"  # its name on the bus
SEARCH_S = 3600.0  # a search runs the recorded workload a dozen times, simulated


async def newest_profiles(stack: BusOptions) -> list[SloProfileRecord]:
    """The latest of each kind of executor, by profile key. Raises StackError where there is none."""
    async with stack.bus(ASKER) as bus:
        bucket = await bus.bucket(subjects.SLO_PROFILES_BUCKET, SloProfileRecord)
        found = [entry.value for entry in await bucket.entries() if entry.value is not None]
    newest = {record.profile_key: record for record in sorted(found, key=lambda record: record.profiled_at_s)}
    if not newest:
        raise StackError("the stack has not searched for a latency budget yet: start it with SLOs to keep (--slo)")
    return [newest[profile_key] for profile_key in sorted(newest)]


async def profile_now(stack: BusOptions, slos: Sequence[str]) -> list[SloProfileRecord]:
    """Let the stack's profiler search anew; without ``slos``, for those that it keeps. Raises StackError."""
    async with stack.bus(ASKER) as bus:
        try:
            reply = await bus.request(subjects.PROFILE, ProfileRequest(slos=list(slos)), ProfileReply, SEARCH_S)
        except NoResponderError as error:
            raise StackError("no profiler answers on the stack's bus") from error
    if reply.error:
        raise StackError(f"the profiler did not search: {reply.error}")
    return reply.records
