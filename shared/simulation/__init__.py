"""The whole system in virtual time: the live system's replicas, schedulers, pool and router on one event heap."""
