"""JetStream: streams, consumers, and the API that makes and reads them."""

from tests.simulation.nats.jetstream.jetstream import JetStream

__all__ = ["JetStream"]
