"""Everything that needs a GPU, in one command: ``make gpu``, or ``python -m benchmarks.gpu`` with any Python that has
torch and Triton. Kernels and engine are tested, then measured beside what else is installed; what is not is skipped,
with the reason. Nothing is fetched. Tables, pictures and logs go below --out."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.report import LOG, PAGE, Origin, Report, summary
from benchmarks.gpu.stage import NAMES, ROOT, STAGES, Finished, Stage, stage_environment
from benchmarks.harness.table import show

FAILED, NOTHING_TO_RUN_ON, INTERRUPTED = 1, 2, 130
ON_A_CPU = (
    "python -m benchmarks.gpu --device cpu runs the same in small on the processor, kernels in Triton's interpreter: "
    "it shows what works, not how fast"
)


def parser() -> argparse.ArgumentParser:
    stages = "\n".join(f"  {name:15} {about}" for name, about in NAMES.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog=f"stages, in this order:\n{stages}\n\nThe exit status is 1 where a stage failed or all were skipped, "
        "2 where there is nothing to run on, 130 after Ctrl-C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", action="append", choices=NAMES, metavar="STAGE", help="Repeatable; else all.")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="Default: cuda.")
    made.add_argument("--out", type=Path, default=Path("build/gpu"), metavar="FOLDER", help="Default: %(default)s.")
    made.add_argument("--model", metavar="FOLDER", help="Of the engine's stages; default: the prepared one, or random.")
    made.add_argument("--online", type=Path, metavar="TRACE", help="Of stack, as slackwater replay's; default: drawn.")
    made.add_argument("--offline", type=Path, metavar="PROMPTS", help="Likewise.")
    made.add_argument("--limit-s", type=float, default=900.0, metavar="S", help="Of each stage; default: %(default)g.")
    made.add_argument("--revision", help="Of this code, where it is not in git.")
    return made


def main(arguments: Sequence[str] | None = None, stages: Mapping[str, Stage] = STAGES) -> int:
    """The exit status."""
    options = parser().parse_args(arguments)
    names = [name for name in stages if name in (options.only or stages)]
    given = ["--device", options.device, "--out", str(options.out.absolute())]
    given += _named(options, Path.absolute)
    environment, done = stage_environment(options.device), dict[str, Finished]()
    with _ended_as_interrupted():
        try:
            report = Report(options.out.absolute())

            def run(name: str) -> Finished:
                return stages[name].run(given, environment, report.log, options.limit_s)

            machine = run("machine")
            if machine.outcome != "done":
                print(f"nothing to run on: {machine.said}. {ON_A_CPU}", file=sys.stderr)
                return NOTHING_TO_RUN_ON
            print(machine.said)
            for number, name in enumerate(names, start=1):
                print(f"[{number}/{len(names)}] {name}: {stages[name].about} ...", end="", flush=True)
                done[name] = finished = machine if name == "machine" else run(name)
                print(f" {finished.outcome} after {finished.seconds:.0f} s: {finished.said}", flush=True)
                report.add(name, finished, _origin(name, machine.said, options))
        except KeyboardInterrupt:
            print(f"\nstopped; done and written: {', '.join(done) or 'nothing'}", file=sys.stderr)
            return INTERRUPTED
    print()
    show(summary(done).rows)
    print(f"\n{options.out / PAGE}; what the stages told: {options.out / LOG}")
    outcomes = {finished.outcome for finished in done.values()}
    return FAILED if "failed" in outcomes or "done" not in outcomes else 0


def _origin(name: str, machine: str, options: argparse.Namespace) -> Origin:
    """With the command that runs this stage alone."""
    command = ["python", "-m", "benchmarks.gpu", "--only", name]
    command += ["--device", "cpu"] if options.device == "cpu" else []
    command += _named(options, Path)
    date = datetime.now(UTC).date().isoformat()
    return Origin(date, shlex.join(command), machine, options.revision or _revision())


def _named(options: argparse.Namespace, place: Callable[[Path], Path]) -> list[str]:
    """The options that name files, where they are given. ``place``: what stands there for a path."""
    model = ["--model", options.model] if options.model else []
    files = [("--online", options.online), ("--offline", options.offline)]
    return model + [word for name, path in files if path is not None for word in (name, str(place(path)))]


@contextlib.contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the stage under way as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _revision() -> str | None:
    """Of git, and whether something has been changed since; None without git."""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
