"""Tests as a stage."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.context import Context, Found, SkippedError

MOST_PROCESSES = 14  # each compiles kernels, on a processor of its own


def run_pytest(context: Context, folder: str, paths: Sequence[str]) -> Found:
    """``folder``: no conftest.py above it is read, since they need a bus. On a GPU the slow tests run too. Raises
    AssertionError where a test fails."""
    if importlib.util.find_spec("pytest") is None:
        raise SkippedError("pytest is not installed")
    with tempfile.TemporaryDirectory() as made:
        report = Path(made) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--confcutdir={folder}", f"--junitxml={report}"]
        if context.device == "cuda":
            options += ["-m", "", "--durations=5", *_processes()]
        command = [sys.executable, "-m", "pytest", *paths, *options]
        status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if not report.exists():
            raise RuntimeError(f"pytest ended with status {status} and without a report")
        suite = next(ElementTree.parse(report).iter("testsuite"))
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    yield {"tests": " ".join(paths), **{name: str(count) for name, count in counts.items() if name != "tests"}}
    bad = list(_bad(suite))
    yield from (f"{name}: {what}" for name, what in bad)
    broken, passed = counts["failures"] + counts["errors"], counts["tests"] - counts["skipped"]
    assert not broken and status == 0, f"{broken} of {counts['tests']} tests failed"
    return f"{passed} tests passed, {counts['skipped']} skipped"


def _processes() -> list[str]:
    if importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(min(MOST_PROCESSES, os.cpu_count() or 1)), "--dist", "worksteal"]


def _bad(suite: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Names of tests that failed, with the first line of why."""
    for case in suite.iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                why = next(iter(found.get("message", "").splitlines()), "")
                yield f"{case.get('classname')}.{case.get('name')}", why[:200]
