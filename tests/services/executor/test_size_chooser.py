"""Which sizes of an executor's steps stand, as latency models come."""

from services.executor.service import executor_info
from services.executor.settings import ExecutorSettings
from services.executor.size_chooser import SizeChooser
from shared.latency.linear import LinearLatencyModel
from shared.scheduling.step_sizes import LARGEST, USUAL, StepSizes
from tests.shared.replica.factories import SPEC

EVEN = LinearLatencyModel(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
FREE = LinearLatencyModel(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
MIDDLE = LinearLatencyModel(50.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0)


def settings(**given: int) -> ExecutorSettings:
    return ExecutorSettings(model_path="", **given)


def test_the_first_model_decides_and_a_later_one_that_differs_much() -> None:
    chooser, info = SizeChooser(settings()), executor_info(settings(), SPEC)
    assert (info.sizes, info.largest, info.largest_sizes) == (USUAL, LARGEST, LARGEST)
    info = chooser.choose(info, MIDDLE)
    assert info.sizes == StepSizes(1024, 512)
    assert chooser.choose(info, LinearLatencyModel(30.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0)) is info
    info = chooser.choose(info, FREE)
    assert info.sizes == LARGEST
    assert info.limits().max_num_batched_tokens == LARGEST.max_num_batched_tokens


def test_what_the_settings_give_stands() -> None:
    both, one = settings(max_num_batched_tokens=100, max_num_seqs=3), settings(max_num_seqs=700)
    info = executor_info(both, SPEC)
    assert info.sizes == info.largest_sizes == StepSizes(100, 3)
    assert SizeChooser(both).choose(info, FREE) is info
    info = executor_info(one, SPEC)
    assert info.sizes == StepSizes(USUAL.max_num_batched_tokens, 700)
    assert SizeChooser(one).choose(info, EVEN).sizes == StepSizes(USUAL.max_num_batched_tokens, 700)
