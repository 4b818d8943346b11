"""``python -m tests.benchmarks.calls FILE MODULE [OPTION...]``: run a benchmark, and write which of the project's
functions and classes it called, by path and name, as JSON."""

import contextlib
import json
import runpy
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]


def main(file: str, module: str, *options: str) -> None:
    called = set[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: object) -> None:
        """The body of a class, and of a module, is no call; nor is what a module calls while it is imported."""
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(f"{ROOT}/"):
            call = code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname.split(".")[0]
            if call not in called and not is_importing(frame):
                called.add(call)

    sys.argv = [module, *options]
    threading.setprofile(note)
    sys.setprofile(note)
    with contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.setprofile(None)
    named = [(path, name) for path, name in called if not name.startswith("<") and not path.startswith((".", "tests/"))]
    Path(file).write_text(json.dumps(sorted(named)))


def is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
