"""Hosts of a test, on one machine: network namespaces, each with an end of two networks, whose links can be cut."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from types import TracebackType

BUS, DATA = "bus", "data"  # networks: one for the message bus, one for what executors send each other
_ids = itertools.count(os.getpid() * 16)  # others than those that tests beside it have
KV_BY_DATA = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": DATA}  # else UCX takes whichever it likes: a cut would cut nothing


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def may_make_hosts() -> bool:
    """Network namespaces need a right that not every machine gives."""
    if shutil.which("ip") is None:
        return False
    name = f"sw-may-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


class Hosts:
    """Use as a context manager. This process is on no host, but reaches all of them at ``address`` and is reached at
    ``own_address``."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._id = next(_ids) % 12_800
        self._bridges = {network: f"sw{self._id}{network[0]}" for network in (BUS, DATA)}

    def __enter__(self) -> Hosts:
        try:
            for network, bridge in self._bridges.items():
                _ip("link", "add", bridge, "type", "bridge")
                _ip("addr", "add", f"{self.own_address(network)}/24", "dev", bridge)
                _ip("link", "set", bridge, "up")
            for name in self._names:
                _ip("netns", "add", self._namespace(name))
                _ip("-n", self._namespace(name), "link", "set", "lo", "up")
                for network in self._bridges:
                    self._connect(name, network)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def own_address(self, network: str = BUS) -> str:
        return self._address(network, 1)

    def address(self, name: str, network: str = BUS) -> str:
        return self._address(network, 2 + self._names.index(name))

    def on(self, name: str) -> list[str]:
        """What to put before a command that is to run there."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut(self, name: str, network: str) -> None:
        """Nothing comes through any more, in either direction, until ``mend``."""
        _ip("link", "set", self._link(name, network), "down")

    def mend(self, name: str, network: str) -> None:
        _ip("link", "set", self._link(name, network), "up")

    def _connect(self, name: str, network: str) -> None:
        link, namespace = self._link(name, network), self._namespace(name)
        _ip("link", "add", link, "type", "veth", "peer", "name", network, "netns", namespace)
        _ip("link", "set", link, "master", self._bridges[network], "up")
        _ip("-n", namespace, "addr", "add", f"{self.address(name, network)}/24", "dev", network)
        _ip("-n", namespace, "link", "set", network, "up")

    def _address(self, network: str, number: int) -> str:
        high, low = divmod(2 * self._id + (network == DATA), 256)
        return f"10.{150 + high}.{low}.{number}"

    def _namespace(self, name: str) -> str:
        return f"sw-{self._id}-{name}"

    def _link(self, name: str, network: str) -> str:
        return f"sw{self._id}{network[0]}{self._names.index(name)}"

    def _remove(self) -> None:
        """What is there of it."""
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._namespace(name)], capture_output=True, check=False)
        for bridge in self._bridges.values():
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
