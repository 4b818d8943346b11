"""As what an executor acts beside others."""

import pytest

from shared.scheduling.placement.role import Role, acting_role

MIXED, STRICT, RELAXED = Role.MIXED, Role.STRICT, Role.RELAXED


@pytest.mark.parametrize(
    ("role", "others", "acts_as"),
    [
        (MIXED, [STRICT, RELAXED], MIXED),
        (STRICT, [], MIXED),
        (STRICT, [STRICT], MIXED),
        (STRICT, [RELAXED], STRICT),
        (STRICT, [MIXED], STRICT),
        (RELAXED, [], MIXED),
        (RELAXED, [RELAXED, MIXED], MIXED),
        (RELAXED, [STRICT], RELAXED),
    ],
)
def test_an_executor_is_of_its_pool_while_the_other_one_is_there(role, others, acts_as):
    assert acting_role(role, others) is acts_as
