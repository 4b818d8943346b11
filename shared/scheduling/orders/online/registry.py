"""The online orders by name."""

from __future__ import annotations

from collections.abc import Callable

from shared.named import named
from shared.scheduling.orders.online.fcfs import Fcfs
from shared.scheduling.orders.online.order import OnlineOrder
from shared.scheduling.orders.online.vtc import Vtc

_MAKERS: dict[str, Callable[[float, float], OnlineOrder]] = {
    "fcfs": lambda weight_input, weight_output: Fcfs(),
    "vtc": Vtc,
}
ONLINE_ORDERS = tuple(_MAKERS)


def make_online_order(name: str, vtc_weight_input: float = 1.0, vtc_weight_output: float = 2.0) -> OnlineOrder:
    """A new order. Raises ValueError that lists the known ones, or says what is wrong with the weights of vtc."""
    return named(_MAKERS, name, "online order")(vtc_weight_input, vtc_weight_output)
