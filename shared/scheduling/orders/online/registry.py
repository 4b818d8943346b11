"""The online orders by name, and their knobs."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.named import named
from shared.scheduling.orders.online.order import OnlineOrder
from shared.scheduling.orders.online.vtc import Vtc


class OnlineOrderKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of all of them."""

    vtc_weight_input: Annotated[float, Meta(ge=0, description="vtc: what a prompt token counts")] = 1.0
    vtc_weight_output: Annotated[float, Meta(ge=0, description="vtc: what an output token counts")] = 2.0


_MAKERS: dict[str, Callable[[OnlineOrderKnobs], OnlineOrder]] = {
    "fcfs": lambda knobs: OnlineOrder(),
    "vtc": lambda knobs: Vtc(knobs.vtc_weight_input, knobs.vtc_weight_output),
}
ONLINE_ORDERS = tuple(_MAKERS)


def make_online_order(name: str, knobs: OnlineOrderKnobs) -> OnlineOrder:
    """A new order. Raises ValueError that lists the known ones, or says what is wrong with the knobs."""
    return named(_MAKERS, name, "online order")(knobs)
