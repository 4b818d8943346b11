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


def below(branch: Branch, walk: Walk) -> Iterator[Request]:
    """Depth first."""
    path = [_children(branch, walk)]
    while path:
        for node in path[-1]:
            if isinstance(node, Branch):
                path.append(_children(node, walk))
                break
            if _is_shown(node, walk):
                yield node.request
        else:
            path.pop()


def outward(branch: Branch, walk: Walk) -> Iterator[Request]:
    """What is below the branch, then below its siblings, then below those of its parent, up to the root."""
    yield from below(branch, walk)
    done: Branch = branch
    while done.parent is not None:
        for node in _children(done.parent, walk):
            if isinstance(node, Leaf):
                if _is_shown(node, walk):
                    yield node.request
            elif node is not done:
                yield from below(node, walk)
        done = done.parent


def waits_below(branch: Branch, groups: Collection[str]) -> bool:
    """Anybody of the groups; the smaller of both sides is looked through."""
    if len(groups) < len(branch.parts):
        return any(branch.num_waiting(group) for group in groups)
    return any(part.num_waiting for group, part in branch.parts.items() if group in groups)


def _is_shown(leaf: Leaf, walk: Walk) -> bool:
    return leaf.group in walk.groups and leaf.request.request_id not in walk.passed


def _children(branch: Branch, walk: Walk) -> Iterator[Node]:
    """Those with waiting requests; those that are to be avoided last, each part in its order."""
    if branch not in walk.avoided:
        return branch.waiting(walk.groups)
    return _avoided_last(branch, walk)


def _avoided_last(branch: Branch, walk: Walk) -> Iterator[Node]:
    yield from (child for child in branch.waiting(walk.groups) if child not in walk.avoided)
    yield from (child for child in branch.waiting(walk.groups) if child in walk.avoided)
