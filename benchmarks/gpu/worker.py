"""One stage, in its process: ``python -m benchmarks.gpu.worker STAGE``. Tables go to stdout as they are made; the last
line of stderr says what came of it."""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.gpu.context import Context, Found, SkippedError
from benchmarks.gpu.stage import NAMES, ROOT, SKIPPED
from benchmarks.harness.table import Row, show


class Told:
    """What a stage yields; once it is at its end, ``outcome`` is what it returned."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.outcome = ""

    def __iter__(self) -> Iterator[Row | str]:
        self.outcome = yield from self._found


def run(name: str, context: Context) -> int:
    """The exit status."""
    try:
        module = importlib.import_module(f"benchmarks.gpu.stages.{name.replace('-', '_')}")
        stage: Callable[[Context], Found] = module.stage
        told = Told(stage(context))
        show(told)
    except SkippedError as why:
        print(why, file=sys.stderr)
        return SKIPPED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or (ROOT / package).exists():
            raise
        print(f"{package} is not installed", file=sys.stderr)
        return SKIPPED
    print(told.outcome, file=sys.stderr)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.worker", description=__doc__)
    parser.add_argument("stage", choices=NAMES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--model")
    parser.add_argument("--online", type=Path)
    parser.add_argument("--offline", type=Path)
    arguments = parser.parse_args()
    given = arguments.device, arguments.out, arguments.model, cpu_count(), arguments.online, arguments.offline
    return run(arguments.stage, Context(*given))


if __name__ == "__main__":
    sys.exit(main())
