"""Each accepted line has exactly one result in exactly one file, counts and tokens add up, states only go forward, and
no accepted batch is gone or expires in its time."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.checker.answers import whole_answer
from tests.checker.history import Batch, History, LineEnd, Tokens
from tests.checker.violation import Limits, Violation

FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
STAGES = {"validating": 0, "in_progress": 1, "finalizing": 2, "cancelling": 2, **dict.fromkeys(FINAL, 3)}
NOT_RUN = frozenset({"batch_cancelled", "batch_expired"})
LOST = "the store has lost the request, and its input file is gone"


def check_batches(history: History, limits: Limits) -> Iterator[Violation]:
    for batch in history.batches:
        if batch.batch_id is not None and batch.accepted is not False:
            last_s = batch.states[-1].at_s if batch.states else None
            if not history.may_have_lost(batch.sent_s, last_s):
                yield from _check(batch, limits)
                if batch.sent_s >= history.idle_s:
                    yield from _late(batch, limits)
            elif batch.output is not None and batch.errors is not None:
                yield from _check_files(batch, may_have_lost=True)


def _check(batch: Batch, limits: Limits) -> Iterator[Violation]:
    if not batch.states:
        yield Violation("nothing accepted is gone", "the batch was never seen again", batch)
        return
    yield from _broken_order(batch)
    for server, status in batch.listed.items():
        if status != batch.status:
            what = f"{server} lists it as {status or 'nothing'}, and it is {batch.status}"
            yield Violation("every gateway tells the same", what, batch)
    if batch.status not in FINAL:
        yield Violation("every batch ends", f"it is still {batch.status}", batch)
    elif batch.status == "expired" and batch.states[-1].at_s - batch.sent_s < limits.window_s:
        after_s = batch.states[-1].at_s - batch.sent_s
        yield Violation("no batch expires in its window", f"it is expired after {after_s:.0f} s", batch)
    elif batch.is_malformed:
        if batch.status not in ("failed", "cancelled"):
            yield Violation("a malformed batch fails", f"it is {batch.status}", batch)
    elif batch.status == "failed" or (batch.status == "cancelled" and batch.cancelled_s is None):
        yield Violation("every batch ends as it should", f"it is {batch.status}", batch)
    elif batch.unread:
        yield Violation("nothing accepted is gone", f"its files cannot be read: {batch.unread}", batch)
    elif batch.output is not None or batch.errors is not None or batch.status == "completed":
        yield from _check_files(batch)


def _late(batch: Batch, limits: Limits) -> Iterator[Violation]:
    """A small one that has all to itself."""
    took_s = batch.states[-1].at_s - batch.sent_s if batch.states else math.inf
    if took_s > limits.idle_batch_s:
        yield Violation("no batch waits for nothing", f"{took_s:.0f} s with nothing else to do", batch)


def _broken_order(batch: Batch) -> Iterator[Violation]:
    """Nothing goes back, and an end is for good."""
    for before, after in itertools.pairwise(state.status for state in batch.states):
        if before in FINAL and after != before:
            yield Violation("an end is for good", f"{after} after {before}", batch)
            return
        if after in STAGES and before in STAGES and STAGES[after] < STAGES[before]:
            yield Violation("states go forward", f"{after} after {before}", batch)
            return


def _check_files(batch: Batch, may_have_lost: bool = False) -> Iterator[Violation]:
    """``may_have_lost``: the bus may have forgotten that it was cancelled. It goes on then, and lines that were written
    as not run have failed; or it fails, since its requests are gone, and what is in the files stays. Where it has
    forgotten requests and the input file, those lines fail."""
    is_resumed, is_cut = (may_have_lost and batch.status == status for status in ("completed", "failed"))
    output, errors = _parsed(batch.output), _parsed(batch.errors)
    if output is None or errors is None:
        yield Violation("each line has one result", "a file has a line that is no JSON", batch)
        return
    counts = Counter(line["custom_id"] for line in (*output, *errors))
    wanted = {line.custom_id for line in batch.lines}
    missing = sorted(wanted - counts.keys())
    doubled = sorted(id for id, count in counts.items() if count > 1)
    foreign = sorted(counts.keys() - wanted)
    for what, ids in (("missing", missing), ("doubled", doubled), ("of another batch", foreign)):
        if ids and not (is_cut and ids is missing):
            yield Violation("each line has one result", f"{len(ids)} {what}: {', '.join(ids[:5])}", batch)
    run = [result for result in errors if not (may_have_lost and _is_lost(result))]
    yield from _wrong_results(batch, output, run)
    if is_cut:
        return
    yield from _wrong_counts(batch, output, [result for result in errors if is_resumed or not _has_not_run(result)])
    if batch.status == "completed" and not is_resumed and (not_run := sum(map(_has_not_run, errors))):
        yield Violation("counts add up", f"it is completed, but {not_run} lines have not run", batch)
    yield from _wrong_tokens(batch, output)


def _parsed(lines: list[str] | None) -> list[dict[str, Any]] | None:
    try:
        return [json.loads(line) for line in lines or ()]
    except ValueError:
        return None


def _wrong_results(batch: Batch, output: list[dict[str, Any]], errors: list[dict[str, Any]]) -> Iterator[Violation]:
    by_id = {line.custom_id: line for line in batch.lines}
    for result in output:
        line = by_id.get(result["custom_id"])
        if line is None:
            continue
        if line.end is LineEnd.FAILED:
            yield Violation("each line ends as it should", f"{line.custom_id} was answered", batch)
        elif line.right is not None and (said := whole_answer(result["response"]["body"])) != line.right:
            yield Violation("right tokens", f"{line.custom_id}: {said!r} instead of {line.right!r}", batch)
    for result in errors:
        line = by_id.get(result["custom_id"])
        is_meant = line is None or line.end is LineEnd.FAILED or _has_not_run(result)
        if not is_meant:
            yield Violation("each line ends as it should", f"{result['custom_id']} failed: {result}", batch)


def _is_lost(result: dict[str, Any]) -> bool:
    return bool(result["response"]) and result["response"]["body"]["error"]["message"] == LOST


def _has_not_run(result: dict[str, Any]) -> bool:
    return (result.get("error") or {}).get("code") in NOT_RUN


def _wrong_counts(batch: Batch, output: list[dict[str, Any]], failed: list[dict[str, Any]]) -> Iterator[Violation]:
    last = batch.states[-1]
    seen, wanted = (last.total, last.completed, last.failed), (len(batch.lines), len(output), len(failed))
    if seen != wanted:
        yield Violation("counts add up", f"total, completed, failed: {seen}, by its files {wanted}", batch)


def _wrong_tokens(batch: Batch, output: list[dict[str, Any]]) -> Iterator[Violation]:
    """A batch took what its answers took."""
    wanted = Tokens(0, 0, 0, 0)
    for result in output:
        usage = result["response"]["body"]["usage"]
        wanted.num_input += usage["prompt_tokens"]
        wanted.num_cached += usage["prompt_tokens_details"]["cached_tokens"]
        wanted.num_output += usage["completion_tokens"]
        wanted.num_total += usage["total_tokens"]
    if batch.tokens is not None and batch.tokens != wanted:
        yield Violation("tokens add up", f"{batch.tokens}, by its answers {wanted}", batch)
