"""A search that runs beside the profiler, in a process that ends with it."""

import asyncio
import contextlib
import logging
import sys

import msgspec

from services.profiler.slo.job import SloJob
from shared.errors import SlackwaterError
from shared.protocol.slo_profile import SloProfileRecord

logger = logging.getLogger(__name__)


class SearchError(SlackwaterError):
    """A search came to no end; the message says why."""


async def search_aside(job: SloJob) -> SloProfileRecord:
    """Takes at most one core, at a low priority; cancelling kills it. Raises SearchError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.profiler.slo.job",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal is the profiler's to handle
    )
    try:
        out, err = await process.communicate(msgspec.json.encode(job))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    said = err.decode(errors="replace").strip().splitlines()
    if process.returncode != 0:
        raise SearchError(said[-1] if said else f"the search ended with status {process.returncode}")
    logger.info("search ended", extra={"profile_key": job.info.profile_key, "why": job.why, "took": said[-1:]})
    return msgspec.json.decode(out, type=SloProfileRecord)
