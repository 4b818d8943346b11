"""A run of tests, once to see what each of them runs, then for each mutant those that run the changed statement."""

import os
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutants.code import Line, exchanged, functions_of, statements_run
from tests.mutants.mutations import Mutant, mutated

_MORE_MEMORY_BYTES = 2 << 30


class Verdict(Enum):
    """The exit status of the process that tries a mutant. ``IMPOSSIBLE``: a call lacks an argument that it has to have,
    which no test has to find."""

    ALIVE = 0
    KILLED = 1
    IMPOSSIBLE = 3


class Campaign:
    """A plugin of pytest that runs the collected tests in its own way. Each mutant has a process of its own, forked
    where all is imported; the first test that fails ends it, and so does time: several times what the tests take, of
    the processor's or of waiting."""

    def __init__(self, mutants: Sequence[Mutant], most_s: float) -> None:
        """``most_s``: of processor time that a mutant's tests may take without it; the fastest are taken."""
        self.verdicts: dict[Mutant, Verdict] = {}
        self.untested: list[Mutant] = []
        self._mutants = mutants
        self._paths = sorted({mutant.path for mutant in mutants})
        self._functions: dict[str, list[FunctionType]] = {}  # by path, once the tests have run
        self._most_s = most_s
        self._seconds: dict[str, float] = {}  # of processor time, by test
        self._waits_s: dict[str, float] = {}  # from beginning to end
        self._tests: dict[Line, list[pytest.Item]] = {}
        self._num_kills: Counter[str] = Counter()  # by test
        self._plugins: pytest.PytestPluginManager | None = None
        self._found: int | None = None  # where a mutant's process says which test has found it

    def pytest_sessionstart(self) -> None:
        """The same examples for each mutant, and none of them made smaller."""
        phases = (Phase.explicit, Phase.generate)
        checks = list(HealthCheck)
        settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None, phases=phases, suppress_health_check=checks
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._plugins = session.config.pluginmanager
        self._watch(session.items)
        if not session.testsfailed:
            self._functions = functions_of(self._paths)
            for mutant in self._mutants:
                self._judge(mutant)
        return True

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if self._found is None or call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
            return
        os.write(self._found, item.nodeid.encode())
        os._exit((Verdict.IMPOSSIBLE if _lacks_argument(call.excinfo.value) else Verdict.KILLED).value)

    def _watch(self, items: list[pytest.Item]) -> None:
        """Which statements each test runs, and how long it takes."""
        with statements_run(functions_of(self._paths)) as lines:
            for item, following in zip(items, [*items[1:], None], strict=True):
                lines.clear()
                begun_s, begun_at_s = time.process_time(), time.monotonic()
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                self._seconds[item.nodeid] = time.process_time() - begun_s
                self._waits_s[item.nodeid] = time.monotonic() - begun_at_s
                for line in lines:
                    self._tests.setdefault(line, []).append(item)

    def _judge(self, mutant: Mutant) -> None:
        tests, seconds = self._chosen(self._tests.get((mutant.path, mutant.line), []))
        if not tests:
            self.untested.append(mutant)
        wait_s = 5 + 5 * sum(self._waits_s[item.nodeid] for item in tests)
        verdict = self._try(mutant, tests, 5 + 5 * seconds, wait_s) if tests else Verdict.ALIVE
        self.verdicts[mutant] = verdict
        print(f"{verdict.name.lower():10} {mutant}", flush=True)

    def _chosen(self, tests: Iterable[pytest.Item]) -> tuple[list[pytest.Item], float]:
        """Those that have found other mutants, then the fastest; and what they take together."""
        chosen: list[pytest.Item] = []
        total_s = 0.0
        for item in sorted(tests, key=lambda each: (-self._num_kills[each.nodeid], self._seconds[each.nodeid])):
            seconds = self._seconds[item.nodeid]
            if total_s + seconds <= self._most_s:
                total_s += seconds
                chosen.append(item)
        return chosen, total_s

    def _try(self, mutant: Mutant, tests: list[pytest.Item], most_s: float, wait_s: float) -> Verdict:
        def run(telling: int) -> None:
            self._found = telling
            self._run(mutant, tests)

        verdict, found_by = in_fork(run, most_s, wait_s)
        self._num_kills.update(found_by.splitlines())
        return verdict

    def _run(self, mutant: Mutant, tests: list[pytest.Item]) -> None:
        """In a process of its own, which ends here."""
        assert self._plugins is not None
        self._plugins.unregister(name="terminalreporter")
        memory_bytes = _virtual_memory_bytes() + _MORE_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        try:
            with exchanged(mutant.path, mutated(mutant), self._functions[mutant.path]):
                for item, following in zip(tests, [*tests[1:], None], strict=True):
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        except ValueError:
            os._exit(Verdict.IMPOSSIBLE.value)
        os._exit(Verdict.ALIVE.value)


def in_fork(run: Callable[[int], None], most_s: float, wait_s: float) -> tuple[Verdict, str]:
    """With what ``run`` ends a process of its own, and what it says to the pipe that it is given; it is killed where it
    takes more of the processor's time or of waiting. Its output is dropped."""
    hears, tells = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        try:
            os.setpgid(0, 0)
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            seconds = int(time.process_time() + most_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            run(tells)
        finally:
            os._exit(Verdict.KILLED.value)
    os.close(tells)
    code = exit_code(process_id, wait_s)
    with os.fdopen(hears) as pipe:
        said = pipe.read()
    return Verdict(code) if code in {each.value for each in Verdict} else Verdict.KILLED, said


def exit_code(group_id: int, wait_s: float) -> int:
    """Of the process that leads this group, a child of this one. What it has started ends with it, servers of tests for
    one, and all of them where it has not ended in time."""
    leader = os.pidfd_open(group_id)
    try:
        select.select([leader], [], [], wait_s)
    finally:
        os.close(leader)
        os.killpg(group_id, signal.SIGKILL)  # its id is nobody else's before it is waited for
    return os.waitstatus_to_exitcode(os.waitpid(group_id, 0)[1])


def _lacks_argument(error: BaseException) -> bool:
    return isinstance(error, TypeError) and any(word in str(error) for word in ("missing", "expected", "exactly"))


def _virtual_memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
