"""Sets of strings in the same order in each run."""

import os
import sys

HASH_SEED = "PYTHONHASHSEED"


def fix_hash_seed(module: str) -> None:
    """Start the interpreter anew as ``python -m module`` with the same arguments, unless strings hash alike already."""
    if os.environ.get(HASH_SEED) != "0":
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, HASH_SEED: "0"})
