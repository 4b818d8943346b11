"""What could be bought, from the smallest up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.latency.architectures import Architecture
from shared.latency.devices import Device
from shared.latency.roofline import num_kv_blocks

TENSOR_PARALLELS = (1, 2, 4, 8)  # GPUs of one machine that share a model


@dataclass(frozen=True, slots=True)
class Resources:
    """Executors, alike, with ``tensor_parallel`` GPUs for each of their pipeline's ``stages``."""

    executors: int
    tensor_parallel: int
    stages: int = 1

    @property
    def gpus_each(self) -> int:
        return self.tensor_parallel * self.stages

    @property
    def gpus(self) -> int:
        return self.executors * self.gpus_each

    def __str__(self) -> str:
        gpus = "" if self.gpus_each == 1 else f" of {self.gpus_each} GPUs"
        return f"{self.executors} executor{'' if self.executors == 1 else 's'}{gpus}"


def from_the_smallest(tensor_parallels: Sequence[int], max_executors: int, stages: int = 1) -> Iterator[Resources]:
    """All of at most so many executors, by GPUs; of as many GPUs those first that share the model among fewer, which
    lose nothing to all-reduces (Echo section 5.4, step 1)."""
    ways = [Resources(count, each, stages) for each in tensor_parallels for count in range(1, max_executors + 1)]
    yield from sorted(ways, key=lambda way: (way.gpus, way.tensor_parallel))


def fitting_tensor_parallels(
    architecture: Architecture, device: Device, wanted: Sequence[int], block_size: int, stages: int = 1
) -> list[int]:
    """Those of ``wanted`` that share out the model's heads and, with so many ``stages`` of them, leave room for KV
    beside the weights. Raises ValueError with the reason of the last one where none does."""
    fitting, why = [], "no number of GPUs to share the model is given"
    for each in sorted(set(wanted)):
        try:
            num_kv_blocks(architecture, device, each, block_size, stages)
        except ValueError as error:
            why = str(error)
        else:
            fitting.append(each)
    if not fitting:
        raise ValueError(why)
    return fitting
