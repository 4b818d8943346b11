"""What came of runs goes into a file and comes out again."""

from collections import Counter
from pathlib import Path

from rich.console import Console

from tests.checker.pauses import Pauses
from tests.checker.violation import Violation
from tests.faults.summary import Summary
from tests.simulation.records import Record, RecordFile
from tests.simulation.run import Order, Outcome
from tests.simulation.setup import draw_setup
from tests.simulation.totals import Totals


def _outcome(seed: int, *violations: Violation) -> Outcome:
    summary = Summary(
        Counter(kill=2, cut=seed), Counter(done=5), Counter(completed=1), 30, 2, 1, Pauses(seed, {"kill": 1.5}, {})
    )
    summary.violations = list(violations)
    setup = draw_setup(str(seed))
    return Outcome(Order(seed, 0.5, ("kill",)), setup, [], f"digest {seed}", 9, 0.5, 1.25, 100, summary, [])


def test_totals_of_a_file_are_those_of_its_runs(tmp_path: Path) -> None:
    wrong = Violation("a stream's text is right", "it is not", object())
    found = [_outcome(1), _outcome(2, wrong), _outcome(3)]
    file, told, read = RecordFile(tmp_path / "runs"), Totals(), Totals()
    assert list(file.read()) == []
    for outcome in found:
        record = Record.of(outcome)
        told.add(record)
        file.add(record)
    for record in file.read():
        read.add(record)
    assert read == told
    assert (read.hours, read.cpu_s, read.num_runs, read.digest) == (1.5, 3.75, 3, "digest 3")
    assert read.wrong == [found[1].order]
    assert [record.setup for record in file.read()] == [outcome.setup.told() for outcome in found]
    assert read.summary.events == {"kill": 6, "cut": 6} and read.summary.pauses.longest_s == 3
    assert [(each.invariant, each.what) for each in read.summary.violations] == [(wrong.invariant, wrong.what)]


def test_a_torn_line_is_passed_over_and_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    file = RecordFile(path)
    file.add(Record.of(_outcome(1)))
    file.add(Record.of(_outcome(2)))
    path.write_bytes(path.read_bytes()[:-20])
    file.add(Record.of(_outcome(3)))
    assert [record.order.seed for record in file.read()] == [1, 3]


def test_who_reads_the_totals_is_told_how_to_run_a_wrong_seed_again() -> None:
    totals, console = Totals(), Console(width=200)
    totals.add(Record.of(_outcome(7, Violation("all is well", "it is not", None))))
    with console.capture() as captured:
        totals.show(console, 1.0)
    assert (
        "seed 7 is wrong: python -m tests.simulation --seed 7 --hours 0.5 --run-hours 0.5 --faults kill"
        in captured.get()
    )
