"""Mutants in the simulation of the whole system: whether what clients see tells on them."""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from types import FunctionType

from tests.mutants.campaign import Verdict, in_fork
from tests.mutants.code import Line, exchanged, functions_of, statements_run
from tests.mutants.mutations import Mutant, mutated
from tests.simulation.run import Order, model_path, simulate
from tests.simulation.traffic import BUSY

RUN_HOURS = 0.1
FIRST_SEED = 1
ENDLESS = "an end"  # what a run lacks that takes several times as long
HEAD = "| module | mutants | not run | killed | alive |\n| --- | --- | --- | --- | --- |"
_LACKS_ARGUMENT = re.compile(r"TypeError.*(missing|expected|exactly)")  # a call that no test has to find


class Simulated:
    """Tries each mutant in the same busy runs, in a process that is forked where all is imported, until one of them
    breaks something."""

    def __init__(self, mutants: Sequence[Mutant], num_runs: int) -> None:
        self.verdicts: dict[Mutant, Verdict] = {}
        self.not_run: set[Mutant] = set()  # no run comes to their statement
        self.told_on: Counter[str] = Counter()  # by invariant
        self._mutants = mutants
        self._orders = [Order(FIRST_SEED + number, RUN_HOURS, traffic=BUSY) for number in range(num_runs)]
        self._functions: dict[str, list[FunctionType]] = {}  # by path
        self._lines: list[set[Line]] = []  # that each run comes to
        self._cpu_s = 0.0  # of a run, at most

    def run(self) -> int:
        """The exit status: 1 where a run is wrong without any change."""
        model_path()  # of all runs of this process, those that come later too
        with tempfile.TemporaryDirectory(prefix="slackwater-mutants-") as folder:
            tempfile.tempdir = folder  # also of those that are killed
            try:
                wrong = self._watch()
                for mutant in () if wrong else self._mutants:
                    self._judge(mutant)
            finally:
                tempfile.tempdir = None
        for invariant in wrong:
            print(f"without any change: {invariant}")
        return int(bool(wrong))

    def table(self, paths: Iterable[str]) -> list[str]:
        """A row for each module, and how many of the mutants each invariant has told on."""
        return [HEAD, *map(self._row, paths), *(f"{number} by {name}" for name, number in self.told_on.most_common())]

    def _row(self, path: str) -> str:
        tried = {each: verdict for each, verdict in self.verdicts.items() if each.path == path}
        counts = Counter(verdict for each, verdict in tried.items() if each not in self.not_run)
        num_not_run, killed, alive = len(self.not_run & tried.keys()), counts[Verdict.KILLED], counts[Verdict.ALIVE]
        return f"| `{path}` | {num_not_run + killed + alive} | {num_not_run} | {killed} | {alive} |"

    def _watch(self) -> list[str]:
        """What each run comes to, and what is wrong already. The first run imports what is imported late."""
        simulate(self._orders[0])
        paths = sorted({mutant.path for mutant in self._mutants})
        self._functions, wrong = functions_of(paths), list[str]()
        with statements_run(self._functions) as seen:
            for order in self._orders:
                seen.clear()
                outcome = simulate(order)
                self._lines.append(set(seen))
                self._cpu_s = max(self._cpu_s, outcome.cpu_s)
                wrong += [violation.invariant for violation in outcome.violations]
        return wrong

    def _judge(self, mutant: Mutant) -> None:
        place = (mutant.path, mutant.line)
        orders = [order for order, lines in zip(self._orders, self._lines, strict=True) if place in lines]
        verdict, told_by = self._try(mutant, orders) if orders else (Verdict.ALIVE, "")
        self.verdicts[mutant] = verdict
        if not orders:
            self.not_run.add(mutant)
        if verdict is Verdict.KILLED:
            self.told_on[told_by] += 1
        how = told_by or ("" if orders else "not run")
        print(f"{verdict.name.lower():10} {mutant} {f'({how})' if how else ''}".rstrip(), flush=True)

    def _try(self, mutant: Mutant, orders: Sequence[Order]) -> tuple[Verdict, str]:
        """What became of it, and the invariant that tells on it."""
        most_s = 10.0 + 5.0 * self._cpu_s * len(orders)
        run = partial(self._run, mutant, orders)
        verdict, told_by = in_fork(run, most_s, 10 * most_s)  # by the clock, beside others
        return verdict, told_by or (ENDLESS if verdict is Verdict.KILLED else "")

    def _run(self, mutant: Mutant, orders: Sequence[Order], telling: int) -> None:
        """In a process of its own, which ends here."""
        try:
            with exchanged(mutant.path, mutated(mutant), self._functions[mutant.path]):
                outcomes = (simulate(order).violations for order in orders)
                for violations in outcomes:
                    if _LACKS_ARGUMENT.search(str(violations)):
                        os._exit(Verdict.IMPOSSIBLE.value)
                    if violations:
                        os.write(telling, violations[0].invariant.encode())
                        os._exit(Verdict.KILLED.value)
        except ValueError:
            os._exit(Verdict.IMPOSSIBLE.value)
        os._exit(Verdict.ALIVE.value)
