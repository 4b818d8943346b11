"""The targets of ``python -m tests.fuzzing``, over their seeds, over those spoilt, and over what Hypothesis makes."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.files import torn
from tests.fuzzing.targets import TARGETS, seeds

NUM_TORN = 3
ANY = st.binary(max_size=200) | st.text(alphabet='{}[]":,a1\\-.\n=\r', max_size=80).map(str.encode)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_torn_ones(name: str) -> None:
    random = Random(name)
    for seed in seeds(name):
        TARGETS[name](seed)
        for spoilt in torn(seed[:2000] or b"\0", random, NUM_TORN):
            TARGETS[name](spoilt)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=ANY)
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)
