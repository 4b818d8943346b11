"""As what executors act beside the others that beat, and how that reads."""

import pytest
from msgspec.structs import replace

from shared.protocol.executors import Heartbeat
from shared.scheduling.placement.role import Role
from shared.watch.pools import acting_roles, role_text
from tests.shared.watch.test_stack_watch import INFO, SPEC, beat

MIXED, STRICT, RELAXED = Role.MIXED, Role.STRICT, Role.RELAXED


def of_pool(executor_id: str, role: Role, model: str = "m", draining: bool = False, kv_link: str = "nixl") -> Heartbeat:
    spec = replace(SPEC, model=model)
    return beat(replace(INFO, executor_id=executor_id, role=role, spec=spec, kv_link=kv_link), draining=draining)


def test_what_each_acts_as_depends_on_who_takes_requests_of_its_model() -> None:
    strict, relaxed = of_pool("a", STRICT), of_pool("b", RELAXED)
    assert acting_roles(iter([strict, relaxed])) == {"a": STRICT, "b": RELAXED}
    assert acting_roles([strict, of_pool("b", RELAXED, model="another")]) == {"a": MIXED, "b": MIXED}
    assert acting_roles([strict, of_pool("b", RELAXED, draining=True)]) == {"a": MIXED, "b": RELAXED}
    assert acting_roles([strict, of_pool("b", RELAXED, kv_link="")]) == {"a": STRICT, "b": MIXED}
    assert acting_roles([of_pool("a", STRICT, draining=True)]) == {"a": MIXED}, "nobody takes requests"


@pytest.mark.parametrize(
    ("role", "acts_as", "shown"),
    [
        (MIXED, MIXED, ""),
        (STRICT, STRICT, "strict"),
        (RELAXED, RELAXED, "relaxed"),
        (RELAXED, MIXED, "relaxed, acts as mixed"),
    ],
)
def test_a_role_as_people_read_it(role: Role, acts_as: Role, shown: str) -> None:
    assert role_text(of_pool("a", role), acts_as) == shown
