"""First come, first served: what an online order is that hears nothing."""

from shared.scheduling.orders.online.order import OnlineOrder


class Fcfs(OnlineOrder):
    """First come, first served."""
