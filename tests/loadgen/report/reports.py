"""Records, facts and offline figures of made runs."""

from loadgen.client.records import RequestRecord
from loadgen.report.report import OfflineReport, RunFacts


def record(due_s: float, *times_s: float, **fields: object) -> RequestRecord:
    """Sent in time, with an event of text at each of ``times_s``, and answered with the last."""
    made = RequestRecord(due_s, sent_s=due_s, token_times_s=list(times_s), finished_s=max((due_s, *times_s)))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def facts() -> RunFacts:
    """Of ten minutes of a trace, with prompts beside it."""
    scaling = (60.0, 600.0, None, None, 1.0, 1.0, None, 7)
    return RunFacts(
        "2026-11-28T12:00:00Z", "http://server/v1", "tiny", "week.csv", "prompts.jsonl", *scaling, "token ids", True
    )


def offline(
    input_tokens: int | None, output_tokens: int | None, elapsed_s: float = 10.0, exhausted: bool = False
) -> OfflineReport:
    """40 of 100 requests answered, and one failed."""
    return OfflineReport.counted(
        mode="batch",
        backlog=100,
        completed=40,
        errors=1,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        elapsed_s=elapsed_s,
        exhausted=exhausted,
    )
