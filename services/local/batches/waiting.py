"""Waiting for batches, with a bar or with lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from services.local.batches.batch import FIELDS, counts_of, has_ended, not_done
from services.local.batches.telling import Patience, Telling
from services.local.commands.server import ApiClient, Json

POLL_S = 0.5  # the API has no event for a batch's progress


def wait_for(client: ApiClient, ids: list[str], telling: Telling) -> list[Json]:
    """The batches, when all have ended. A server that is away for some minutes is waited for. Raises ApiError."""
    patience, batches = Patience(telling), dict[str, Json]()
    name = ids[0] if len(ids) == 1 else f"{len(ids)} batches"
    telling.begin(f"waiting for {name}")
    while True:
        for id in ids:
            if id not in batches or not has_ended(batches[id]):
                batches[id] = patience.ask(partial(client.get, f"/v1/batches/{id}", needs=FIELDS))
        _tell(telling, name, list(batches.values()))
        if all(map(has_ended, batches.values())):
            return list(batches.values())
        time.sleep(POLL_S)


def _tell(telling: Telling, name: str, batches: list[Json]) -> None:
    """The status of one; how many of several have which."""
    counts = [counts_of(batch) for batch in batches]
    total, left, failed = (sum(each[what] for each in counts) for what in ("total", "left", "failed"))
    if len(batches) == 1:
        what, facts = f"{name} is {batches[0]['status']}", ", ".join(not_done(batches[0]))
    else:
        statuses = Counter(batch["status"] for batch in batches)
        what = ", ".join(f"{number} {status}" for status, number in statuses.items())
        facts = f"{failed:,} failed" if failed else ""
    telling.update(what, total - left, total or None, facts)
