"""``python -m tests.fuzzing TARGET --minutes N``: run one of the targets under atheris, whose coverage leads to inputs
that reach further. Begins with the target's seeds; what is found lies in the working directory, as libFuzzer writes it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

MAX_INPUT_BYTES = 4096
OURS = ("services", "shared", "loadgen")  # what is followed as it runs


def main() -> int:
    """The exit status: 2 without atheris; else libFuzzer's, which ends the process itself."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install 'slackwater[fuzz]'", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=list(OURS)):
        from tests.fuzzing.targets import TARGETS, seeds
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=5.0, help="default %(default)g")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--corpus", type=Path, help="where inputs that reached further are kept; else nowhere")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = arguments.corpus or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, each in enumerate(seeds(arguments.target)):
            (corpus / f"seed-{number}").write_bytes(each)
        limits = f"-max_total_time={round(60 * arguments.minutes)}", f"-max_len={MAX_INPUT_BYTES}"
        options = [sys.argv[0], *limits, f"-seed={arguments.seed}", "-rss_limit_mb=2048", "-timeout=30", str(corpus)]
        atheris.Setup(options, TARGETS[arguments.target])
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
