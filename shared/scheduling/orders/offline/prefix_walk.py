"""Ways through a prefix trie: depth first, or outward from one of its branches."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from shared.scheduling.orders.offline.prefix_node import Branch, Leaf, Node
from shared.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Walk:
    """What is shown: requests of the ``groups``, which may lose members meanwhile, but for those ``passed``; at each
    branch the ``avoided`` children last."""

    groups: Collection[str]
    passed: Collection[str]
    avoided: Collection[Node]


def below(node: Node, walk: Walk) -> Iterator[Request]:
    """Depth first; of a leaf its own request."""
    path = [iter((node,))]
    while path:
        for each in path[-1]:
            if isinstance(each, Branch):
                path.append(_children(each, walk))
                break
            if each.is_waiting and each.group in walk.groups and each.request.request_id not in walk.passed:
                yield each.request
        else:
            path.pop()


def outward(node: Node, walk: Walk) -> Iterator[Request]:
    """What is below the node, then below its siblings, then below those of its parent, up to the root."""
    yield from below(node, walk)
    done: Node = node
    while done.parent is not None:
        for sibling in _children(done.parent, walk):
            if sibling is not done:
                yield from below(sibling, walk)
        done = done.parent


def waits_below(node: Node, groups: Collection[str]) -> bool:
    """Anybody of the groups; the smaller of both sides is looked through."""
    if isinstance(node, Leaf):
        return node.is_waiting and node.group in groups
    return _waits_below(node, groups)


def _waits_below(branch: Branch, groups: Collection[str]) -> bool:
    if len(groups) < len(branch.parts):
        return any(branch.num_waiting(group) for group in groups)
    return any(part.num_waiting for group, part in branch.parts.items() if group in groups)


def _children(branch: Branch, walk: Walk) -> Iterator[Node]:
    """Those with waiting requests; those that are to be avoided last, each part in its order."""
    if branch not in walk.avoided:
        return branch.waiting(walk.groups)
    return _avoided_last(branch, walk)


def _avoided_last(branch: Branch, walk: Walk) -> Iterator[Node]:
    yield from (child for child in branch.waiting(walk.groups) if child not in walk.avoided)
    yield from (child for child in branch.waiting(walk.groups) if child in walk.avoided)
