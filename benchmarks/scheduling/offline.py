"""Offline requests, and the pool that they wait in."""

import random

from shared.protocol.offline import OfflineRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.offline_pool import OfflinePool
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.registry import OFFLINE_ORDERS, OfflineOrderKnobs, make_offline_order
from shared.scheduling.request import Kind
from shared.scheduling.strategy import NO_OFFLINE_WORK

ORDERS = [order for order in OFFLINE_ORDERS if order != NO_OFFLINE_WORK]


def make_pool(order: str) -> OfflinePool:
    """Empty, told to nobody."""
    made = make_offline_order(order, OfflineOrderKnobs(), iter(random.Random(1).random, None))
    return OfflinePool(FairShare(made), lambda: None, lambda _, __: None)


def offline_request(number: int, prompt: list[int], max_tokens: int = 128, batch: str = "batch_1") -> OfflineRequest:
    """Line ``number`` of a batch."""
    sampling = SamplingParams(max_tokens, seed=number, ignore_eos=True)
    generate = GenerateRequest(f"{batch}.{number}", Kind.OFFLINE, prompt, sampling, 0.0)
    return OfflineRequest(generate, batch, number, f"custom-{number}", "m")
