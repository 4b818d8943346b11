"""NATS in memory: a server and its clients in one event loop, for simulations.

    server = MemoryServer("memory://nats", random.Random(seed), clock)
    server.start()
    bus = await Bus.connect(server.url, "executor-0")  # the product's own Bus
    server.link("executor-0").down.cut()               # one way; .cut() both; .heal()
    server.kill(); server.cut_power(); server.start()  # with what its disk has
    server.die("executor-0")                           # that process is killed: its connections and tasks end

A name given to ``Bus.connect`` is one link, over all its connections. Nothing here reads a clock but the event loop's,
and the server's own. Above its sockets the client is nats-py's own; the server answers as nats-server 2.15 does
(``test_agreement.py`` compares the two), but for this:

- Everything that a command does is done when it arrives, in one order over all connections. nats-server works on
  streams, consumers and API requests beside each other, so that a client's answers may come in another order.
  Consumers learn of what is stored a moment after it is, in both.
- A message waits in a link and nowhere else: no buffers of the system, no write deadline. A client that reads nothing
  is cut off once 64 MiB wait for it, or by its pings.
- What a power cut leaves of a stream is what it held at some moment since its last sync, and perhaps without a message
  that was being replaced. Configurations, and the places of durable consumers, are on the disk at once.
- Ages and TTLs end to the millisecond, where nats-server looks from time to time.
- A full disk refuses what is to be stored; nats-server then turns JetStream off until it is started again.
- There is one server: no cluster, no accounts, no TLS. Mirrors, sources, republishing, transforms, delete markers,
  pausing, priority groups, batches of direct gets and of publishes are not there, and a stream that asks for one of
  them is refused.
- Answers lack what nobody here reads: ``metadata``, ``cluster``; statistics of the account.
- nats-py may send a ping ahead of messages that it still holds back; here it goes behind them.
"""

from tests.simulation.nats.client import MemoryClient
from tests.simulation.nats.links import Direction, Link
from tests.simulation.nats.server import MemoryServer

__all__ = ["Direction", "Link", "MemoryClient", "MemoryServer"]
