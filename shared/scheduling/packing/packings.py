"""The packings by name."""

from shared.named import named
from shared.scheduling.packing.arrival import FcfsPacking, RoundRobinPacking
from shared.scheduling.packing.deadlines.deadline import DeadlinePacking
from shared.scheduling.packing.kv_aware.kv_aware import KvAwarePacking
from shared.scheduling.packing.mix_decoding import MixDecodingPacking
from shared.scheduling.packing.packing import Packing
from shared.scheduling.packing.two_phase import TwoPhasePacking

PACKINGS: dict[str, Packing] = {
    "two-phase": TwoPhasePacking(),
    "deadline": DeadlinePacking(),
    "fcfs": FcfsPacking(),
    "round-robin": RoundRobinPacking(),
    "kv-aware": KvAwarePacking(),
    "mix-decoding": MixDecodingPacking(),
}


def packing_named(name: str) -> Packing:
    """Raises ValueError that lists the known names."""
    return named(PACKINGS, name, "packing")
