"""nats-server and the server in memory side by side: ``python -m tests.simulation.nats.compare --examples N --seed S``.

It prints, of each kind of difference that it finds, the shortest operations that lead to it; none is what is wanted.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nats
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.conftest import running_nats
from tests.simulation.nats import MemoryClient, MemoryServer
from tests.simulation.nats.operations import Operation, Player, runs

Found = dict[tuple[str, str], tuple[list[Operation], Any, Any]]


async def answers_of_both(real_url: str, operations: list[Operation]) -> tuple[list[Any], list[Any]]:
    """One answer for each operation: (nats-server's, those of a fresh server in memory)."""
    server = MemoryServer("memory://compared", random.Random(0), time.time)
    server.start()
    real, memory = await nats.connect(real_url), MemoryClient()
    await memory.connect(server.url)
    try:
        real_answers, memory_answers = await asyncio.gather(
            Player(real).play(operations), Player(memory).play(operations)
        )
    finally:
        await real.close()
        await memory.close()
    return real_answers, memory_answers


def compare(real_url: str, num_examples: int, seed_number: int) -> Found:
    """The shortest example of each kind of difference."""
    found: Found = {}

    @seed(seed_number)
    @settings(
        max_examples=num_examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operations=runs)
    def play(operations: list[Operation]) -> None:
        answers = asyncio.run(answers_of_both(real_url, operations))
        for index, (one, other) in enumerate(zip(*answers, strict=True)):
            if one != other:
                where, real, memory = _first_difference(one, other)
                kind = operations[index][0], where
                if kind not in found or len(found[kind][0]) > index + 1:
                    found[kind] = operations[: index + 1], real, memory
                return

    play()
    return found


def _first_difference(one: Any, other: Any, where: str = "") -> tuple[str, Any, Any]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *other]:
            if one.get(name) != other.get(name):
                return _first_difference(one.get(name), other.get(name), f"{where}.{name}")
    return where, one, other


def main() -> int:
    """Returns 1 where there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000, help="sequences of up to 33 operations")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_nats(Path(folder)) as url:
        found = compare(url, options.examples, options.seed)
    for (name, where), (operations, real, memory) in sorted(found.items(), key=lambda item: len(item[1][0])):
        print(f"{name}{where}, after")
        for operation in operations:
            print("   ", operation)
        print(f"  nats-server: {real}\n  memory:      {memory}\n")
    print(f"{options.examples} sequences of seed {options.seed}: {len(found)} kinds of differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
