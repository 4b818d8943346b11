"""What BROS's authors report (section 7 of the paper) beside what the figures of docs/bros.md come to, of those that
were made over ten minutes as the paper's were. Nothing is run.

A reduction or a loss is the mean of those of all rates and models; attainment is compared by its means over them.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.figures.rate_lab import RateOptions
from benchmarks.harness.command import Results, Row, benchmark
from benchmarks.harness.kept import DOCS, Kept, Place

BROS, VLLM, ROUND_ROBIN = "bros", "fcfs", "round-robin"
RATES = ("rates", "rates-opt-30b", "rates-llama3-70b")
LATENCY, OFFLINE, TTFT, TPOT = "normalized latency ms", "offline requests/s", "TTFT attained", "TPOT attained"
TOKENS, SHARE = "online output tokens/s", "share of the step"


@dataclass(frozen=True, slots=True)
class Claims:
    """Of one baseline on one dataset: less latency and offline throughput, in percent, and times the attainment."""

    baseline: str
    dataset: str
    latency: float
    offline: float
    ttft: float
    tpot: float


CLAIMS = (
    Claims(VLLM, "ShareGPT", 74.20, 11.29, 36.38, 1.73),
    Claims(ROUND_ROBIN, "ShareGPT", 54.31, 8.80, 11.75, 1.47),
    Claims(VLLM, "LMSYS-Chat-1M", 69.61, 17.67, 21.42, 2.62),
    Claims(ROUND_ROBIN, "LMSYS-Chat-1M", 25.77, 15.18, 14.23, 2.28),
)


def rates_beside(claims: Claims, rows: Sequence[Row]) -> Iterator[Row]:
    """Nothing where no whole run was made."""
    ours, theirs = of_system(rows, BROS), of_system(rows, claims.baseline)
    if not ours:
        return
    of = f"{claims.dataset}, {len(ours)} runs: "
    name = "vLLM" if claims.baseline == VLLM else "round robin"
    yield cells(
        f"{of}less normalized latency than {name}", f"{claims.latency:.1f}%", f"{reduction(ours, theirs, LATENCY):.1%}"
    )
    yield cells(
        f"{of}less offline throughput than {name}", f"{claims.offline:.1f}%", f"{reduction(ours, theirs, OFFLINE):.1%}"
    )
    for quantity, paper in ((TTFT, claims.ttft), (TPOT, claims.tpot)):
        yield cells(f"{of}{quantity}, times that of {name}", f"{paper:.2f}x", f"{times(ours, theirs, quantity):.2f}x")


def cells(claim: str, paper: str, here: str) -> Row:
    return {"claim": claim, "paper": paper, "here": here}


def reduction(ours: Sequence[Row], theirs: Sequence[Row], quantity: str) -> float:
    """The mean over the runs."""
    return fmean(1 - number(own[quantity]) / number(other[quantity]) for own, other in zip(ours, theirs, strict=True))


def times(ours: Sequence[Row], theirs: Sequence[Row], quantity: str) -> float:
    """Of the means over the runs."""
    mean, other_mean = (fmean(number(row[quantity]) for row in rows) for rows in (ours, theirs))
    return mean / other_mean


def of_system(rows: Sequence[Row], system: str) -> list[Row]:
    return [row for row in rows if row["system"] == system]


def long_rows(name: str) -> list[Row]:
    """Empty where it was made over less than the figures' own ten minutes."""
    kept = read(name)
    if kept is None or not kept.origin.command:
        return []
    words = shlex.split(kept.origin.command)
    is_whole = "--duration" not in words or float(words[words.index("--duration") + 1]) >= RateOptions().duration
    return rows_of(kept) if is_whole else []


def kept_rows(name: str) -> list[Row]:
    kept = read(name)
    assert kept is not None, f"docs/bros.md has no {name}"
    return rows_of(kept)


def read(name: str) -> Kept | None:
    file = Place("bros", name).file(DOCS)
    return Kept.read(file) if file.exists() else None


def rows_of(kept: Kept) -> list[Row]:
    return [row for row in kept.told if not isinstance(row, str)]


def number(text: str) -> float:
    """A share where it is a percentage."""
    value = float(text.replace(",", "").removesuffix("%"))
    return value / 100 if text.endswith("%") else value


@benchmark
def main() -> Results:
    rows = [row for name in RATES for row in long_rows(name)]
    for claims in CLAIMS:
        yield from rates_beside(claims, [row for row in rows if row["dataset"] == claims.dataset])
    alone = long_rows("online")
    if alone:
        ours, theirs = of_system(alone, BROS), of_system(alone, VLLM)
        yield cells(
            "online alone: less normalized latency than vLLM", "29.36%", f"{reduction(ours, theirs, LATENCY):.1%}"
        )
        yield cells("online alone: throughput over vLLM", "1.08x", f"{times(ours, theirs, TOKENS):.2f}x")
    sharing = long_rows("sharing")
    for name, paper in ((TTFT, "1.23x"), (TPOT, "1.63x")) if sharing else ():
        ratio = times(of_system(sharing, "bidirectional"), of_system(sharing, "recompute"), name)
        yield cells(f"OPT-30B at 10 requests/s: {name} over that without shared blocks", paper, f"{ratio:.2f}x")
    shares = [number(row[SHARE]) for row in of_system(kept_rows("overhead"), BROS)]
    yield cells("scheduling over step time", "7.56 to 9.52%", f"{min(shares):.2%} to {max(shares):.2%}")
