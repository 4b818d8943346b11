"""Which tests are tried on a module's mutants: those of the nearest folder."""

from pathlib import Path

CORE = "tests/shared/scheduling"
REPLICA = "tests/shared/replica"
SIMULATION = "tests/shared/simulation"
SKIPPED = "not interrupted and not grows"  # what is asserted of time and sizes finds no mutant, and takes half of it
TESTS = {
    "shared/scheduling": (f"{CORE}/test_*.py",),
    "shared/scheduling/packing": (f"{CORE}/test_*.py", f"{REPLICA}/test_replica.py", f"{REPLICA}/test_look_ahead.py"),
    "shared/scheduling/kv": (f"{CORE}/kv", f"{REPLICA}/test_*replica.py"),
    "shared/scheduling/orders": (f"{CORE}/orders",),
    "shared/scheduling/planning": (f"{CORE}/test_*.py", REPLICA),
    "shared/replica": (REPLICA,),
    "shared/simulation": (SIMULATION,),
}


def nearest_tests(path: str) -> tuple[str, ...]:
    """Files and folders. Raises ``KeyError`` for a module that no tests are named for."""
    folders = [folder for folder in TESTS if path.startswith(f"{folder}/")]
    if not folders:
        raise KeyError(path)
    patterns = TESTS[max(folders, key=len)]
    return tuple(str(found) for pattern in patterns for found in sorted(Path().glob(pattern)))
