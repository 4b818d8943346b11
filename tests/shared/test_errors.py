"""Which error a task group's are told as."""

import pytest

from shared.errors import BusError, ConfigError, LeaseLostError, SlackwaterError, first_of

LOST, AWAY = LeaseLostError("executor-0"), BusError("away")


@pytest.mark.parametrize(
    ("errors", "kinds", "first"),
    [
        ([AWAY, LOST], (SlackwaterError,), AWAY),
        ([AWAY, LOST], (LeaseLostError,), LOST),
        ([ValueError(), ExceptionGroup("", [ExceptionGroup("", [AWAY]), LOST])], (LeaseLostError, BusError), AWAY),
        ([ExceptionGroup("", [ValueError()]), AWAY], (ConfigError, LeaseLostError), None),
    ],
)
def test_the_first_of_its_kinds_however_deep(
    errors: list[Exception], kinds: tuple[type[Exception], ...], first: Exception | None
) -> None:
    assert first_of(ExceptionGroup("", errors), *kinds) is first
