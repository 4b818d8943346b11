"""Names of processes, and which of them are well."""

import pytest

from shared.protocol.services import LeaseHolder, ServiceStatus, is_queue_at_work, queue_name, short_name


@pytest.mark.parametrize(
    ("model_name", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2-5-0-5b-instruct"),
        ("/models/tiny/", "tiny"),
        ("tiny", "tiny"),
        ("a b__c", "a-b-c"),
        ("org/_x_", "x"),
        ("org/模型", "model"),
        ("//", "model"),
        ("", "model"),
    ],
)
def test_a_model_is_called_by_the_end_of_its_name(model_name: str, expected: str) -> None:
    assert short_name(model_name) == expected
    assert queue_name(model_name, has_others=True) == f"offline-queue-{expected}"
    assert queue_name(model_name, has_others=False) == "offline-queue"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("offline-queue", True),
        ("offline-queue-tiny", True),
        ("offline-queue-standby", False),
        ("offline-queue-tiny-standby", False),
        ("gateway", False),
        ("profiler-standby", False),
    ],
)
def test_a_queue_that_stands_by_is_not_at_work(name: str, expected: bool) -> None:
    assert is_queue_at_work(name) is expected


@pytest.mark.parametrize(
    ("name", "health", "expected"),
    [
        ("gateway", "ok", True),
        ("gateway", "no executor", False),
        ("profiler-standby", "ok", True),
        ("profiler-standby", f"waits for {LeaseHolder('p1', 12, 'a-host')}", True),
    ],
)
def test_who_stands_by_is_well_whatever_it_says(name: str, health: str, expected: bool) -> None:
    assert ServiceStatus(name, 1, health, {}).is_well is expected


def test_a_holder_is_told_by_its_process_and_host() -> None:
    assert str(LeaseHolder("p1", 12, "a-host")) == "pid 12 on a-host"
