"""``python -m tests.mutants shared/scheduling/packing --sample 30``: change the modules in one place at a time, and see
whether the tests of the nearest folder notice. Prints each mutant with what became of it, then the table by module, in
which ``equivalent`` are those that ``equivalents.toml`` tells to do the same as the module itself."""

import argparse
import random
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mutants.campaign import Campaign, Verdict
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.nearest import SKIPPED, nearest_tests
from tests.simulation.hash_seed import fix_hash_seed

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
HEAD = "| module | mutants | killed | equivalent | alive |\n| --- | --- | --- | --- | --- |"


def main() -> int:
    """The exit status: 1 where tests fail, or a run is wrong, without any change."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="+", help="modules, or folders of them")
    parser.add_argument("--sample", type=int, help="so many mutants of each module, drawn; else all")
    parser.add_argument("--seed", type=int, default=1, help="of the draw, default %(default)s")
    parser.add_argument("--match", default="", help="only mutants whose line in the output contains this")
    parser.add_argument("--again", type=Path, help="only those that this file, an output from before, says are alive")
    parser.add_argument("--tests", nargs="+", help="instead of those of the nearest folder")
    parser.add_argument("--most-s", type=float, default=5.0, help="what a mutant's tests may take, default %(default)g")
    simulate = "instead of tests, so many runs of tests.simulation, of six busy minutes each"
    parser.add_argument("--simulate", type=int, metavar="RUNS", help=simulate)
    arguments = parser.parse_args()
    return _simulated(arguments) if arguments.simulate else _tested(arguments)


def _tested(arguments: argparse.Namespace) -> int:
    groups: dict[tuple[str, ...], list[str]] = {}
    for path in _modules(arguments.paths):
        groups.setdefault(tuple(arguments.tests or nearest_tests(path)), []).append(path)
    rows, status = [HEAD], 0
    for tests, paths in groups.items():
        campaign = Campaign(_chosen(paths, arguments), arguments.most_s)
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "-k", SKIPPED]
        status = max(status, int(pytest.main([*options, *tests], plugins=[campaign])))
        rows += [_row(path, campaign) for path in paths]
    print("\n".join(rows))
    return status


def _simulated(arguments: argparse.Namespace) -> int:
    from tests.mutants.simulated import Simulated  # late: it imports all services

    fix_hash_seed("tests.mutants")
    paths = _modules(arguments.paths)
    simulated = Simulated(_chosen(paths, arguments), arguments.simulate)
    status = simulated.run()
    print("\n".join(simulated.table(paths)))
    return status


def _chosen(paths: Iterable[str], arguments: argparse.Namespace) -> list[Mutant]:
    drawn = [each for path in paths for each in _drawn(path, arguments.sample, arguments.seed)]
    chosen = [each for each in drawn if arguments.match in str(each)]
    if not arguments.again:
        return chosen
    alive = set(re.findall(r"alive\s+(.*)", arguments.again.read_text()))
    return [each for each in chosen if str(each) in alive]


def told_equivalents() -> set[tuple[str, str, str, str]]:
    """Module, function, before and after."""
    told = tomllib.loads(EQUIVALENTS.read_text())["equivalent"]
    return {(each["module"], each["function"], each["before"], each["after"]) for each in told}


def _modules(paths: Iterable[str]) -> list[str]:
    found = [[path] if path.endswith(".py") else sorted(map(str, Path(path).rglob("*.py"))) for path in paths]
    return [path for each in found for path in each if mutants_of(path)]


def _drawn(path: str, sample: int | None, seed: int) -> list[Mutant]:
    mutants = mutants_of(path)
    if sample is None or sample >= len(mutants):
        return mutants
    drawn = random.Random(f"{seed}:{path}").sample(mutants, sample)
    return sorted(drawn, key=lambda mutant: mutant.number)


def _row(path: str, campaign: Campaign) -> str:
    equivalents, counts = told_equivalents(), Counter[str]()
    for mutant, verdict in campaign.verdicts.items():
        if mutant.path == path and verdict is not Verdict.IMPOSSIBLE:
            is_equivalent = (path, mutant.function, mutant.before, mutant.after) in equivalents
            counts["equivalent" if is_equivalent and verdict is Verdict.ALIVE else verdict.name.lower()] += 1
    total = sum(counts.values())
    return f"| `{path}` | {total} | {counts['killed']} | {counts['equivalent']} | {counts['alive']} |"


if __name__ == "__main__":
    sys.exit(main())
