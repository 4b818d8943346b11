"""What could be bought, from the smallest up."""

from itertools import pairwise

import pytest

from services.profiler.capacity.resources import Resources, fitting_tensor_parallels, from_the_smallest
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named


def test_from_the_smallest_each_way_once() -> None:
    ways = list(from_the_smallest([1, 2, 4], 3))
    assert len(set(ways)) == len(ways) == 9
    assert [(way.executors, way.tensor_parallel) for way in ways[:5]] == [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2)]
    assert all(before.gpus <= after.gpus for before, after in pairwise(ways))


def test_one_executor_fewer_comes_before() -> None:
    ways = list(from_the_smallest([2, 1, 8], 6))
    for index, way in enumerate(ways):
        fewer = Resources(way.executors - 1, way.tensor_parallel)
        assert way.executors == 1 or fewer in ways[:index]


def test_each_stage_of_a_pipeline_has_gpus_of_its_own() -> None:
    ways = list(from_the_smallest([1, 2], 2, stages=2))
    assert [(way.executors, way.tensor_parallel, way.gpus) for way in ways] == [
        (1, 1, 2),
        (2, 1, 4),
        (1, 2, 4),
        (2, 2, 8),
    ]
    assert str(ways[0]) == "1 executor of 2 GPUs"
    yi, device = architecture_named("yi-34b"), device_named("a100-40g")
    assert fitting_tensor_parallels(yi, device, [1, 2], 16, stages=2) == [1, 2]


@pytest.mark.parametrize(
    ("model", "wanted", "fitting"),
    [
        ("llama3.1-8b", [1, 2, 4, 8], [1, 2, 4, 8]),
        ("yi-34b", [8, 4, 2, 1], [2, 4, 8]),  # 69 GB of weights
        ("qwen-14b", [3, 2, 2], [2]),  # 40 heads
    ],
)
def test_only_what_holds_the_model_is_tried(model: str, wanted: list[int], fitting: list[int]) -> None:
    assert fitting_tensor_parallels(architecture_named(model), device_named("a100-40g"), wanted, 16) == fitting


def test_where_nothing_holds_it_the_reason_is_said() -> None:
    with pytest.raises(ValueError, match="GB of weights on each of 1 a100-40g"):
        fitting_tensor_parallels(architecture_named("yi-34b"), device_named("a100-40g"), [1], 16)
