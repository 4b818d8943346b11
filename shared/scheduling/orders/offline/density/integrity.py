"""Whether all that a sorted tree keeps up along its paths is as if it were made anew."""

from collections.abc import Sequence

from shared.scheduling.orders.offline.density.node import (
    Bundle,
    DensityBranch,
    DensityLeaf,
    Lines,
    Load,
    Placed,
    level_of,
)
from shared.scheduling.orders.offline.density.placing import SortedPrefixTree


def check_places(tree: SortedPrefixTree) -> None:
    """Raises AssertionError where loads, places and units disagree."""
    units: list[Placed] = []
    _check_branch(tree, tree.root, units)
    levels: dict[int, Load] = {}
    for unit in units:
        tokens, double_reads = levels.get(level_of(unit.rank), Load(0, 0))
        levels[level_of(unit.rank)] = Load(tokens + unit.load.tokens, double_reads + unit.load.double_reads)
    assert tree.levels == sorted(levels.items()) and tree.num_units == len(units)
    _check_lines(tree.root, units)


def _check_branch(tree: SortedPrefixTree, branch: DensityBranch, units: list[Placed]) -> None:
    """The load of what is below, whose units are added."""
    assert not branch.is_apart
    placed = list(branch.placed())
    assert branch.num_placed == len(placed)
    assert branch.tokens == sum(each.load.tokens for each in placed)
    assert branch.double_reads == sum(each.load.double_reads for each in placed)
    for bundle in branch.bundles.values():
        _check_bundle(tree, bundle)
    for child in branch.branches():
        assert branch.is_open or not child.is_open
        assert not tree.is_misplaced(child)
        _check_branch(tree, child, units)
    ranked = [each for each in placed if not (isinstance(each, DensityBranch) and each.is_open)]
    assert all(level_of(each.rank) == each.load.level for each in ranked)
    if branch.is_open:
        units += ranked
    else:
        _check_lines(branch, placed)


def _check_bundle(tree: SortedPrefixTree, bundle: Bundle) -> None:
    leaves = [
        child
        for child in bundle.parent.children.values()
        if isinstance(child, DensityLeaf) and child.is_placed and tree.home(child) is bundle
    ]
    assert leaves and bundle.num_waiting == len(leaves)
    made = Bundle(bundle.parent, bundle.rank)
    for leaf in leaves:
        made.count(leaf, 1)
    assert bundle.load == bundle.expected_load() == made.expected_load()
    _check_lines(bundle, leaves)


def _check_lines(owner: Lines, children: Sequence[Placed]) -> None:
    """Those of each group, by rank."""
    groups = dict.fromkeys(group for child in children for group in child.lines_of())
    assert owner.lines.keys() == groups.keys()
    for group, line in owner.lines.items():
        assert list(line) == sorted((child.rank, child) for child in children if group in child.lines_of())
