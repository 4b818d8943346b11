"""Where the bus is, and how a process of a role is let in."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any, Self

import msgspec

from shared.bus.credentials import Credentials
from shared.bus.permissions import BusRole
from shared.errors import ConfigError

CA_FILE = "ca.pem"  # beside credentials: whom they take for the server, where nothing else is said
TLS = "tls://"
LOGIN = re.compile(r"^(\w+://)?.*@")
WEBSOCKETS = ("ws://", "wss://")


class BusAddress(msgspec.Struct, frozen=True):
    """``url``: one server, or several of one cluster with commas between them. ``creds``: a file, or a folder with one
    for each role; empty for a bus that lets everyone in. ``ca``: a PEM file with those who may have signed the server's
    certificate; empty: that beside the credentials, else the system's. ``role``: what this process is to the bus.
    ``replicas``: copies of what it makes the bus store; 0 goes by the number of its servers.
    """

    url: str
    creds: str = ""
    ca: str = ""
    role: BusRole | None = None
    replicas: int = 0

    @classmethod
    def of(cls, settings: Any, role: BusRole) -> Self:
        """What a service's settings say."""
        replicas = 0 if settings.nats_replicas == "auto" else int(settings.nats_replicas)
        return cls(settings.nats, settings.nats_creds, settings.nats_ca, role, replicas)

    @property
    def servers(self) -> list[str]:
        return [each.strip() for each in self.url.split(",") if each.strip()]

    @property
    def shown(self) -> str:
        """For logs: without the user and password, or the token, that a URL may have."""
        return ",".join(map(without_login, self.servers))

    @property
    def is_cluster(self) -> bool:
        """Whether there is another server to go to: several are named, or are asked to keep copies behind one name."""
        return len(self.servers) > 1 or self.replicas > 1

    @property
    def is_encrypted(self) -> bool:
        """Also where but one of several servers is to be."""
        return any(each.startswith(TLS) for each in self.servers)

    def require_usable(self) -> None:
        """Raises ConfigError for an address whose servers nobody here could speak to."""
        for each in self.servers:
            if each.startswith(WEBSOCKETS):
                shown = without_login(each)
                raise ConfigError(f"the bus {shown} is one of WebSockets; write its nats:// or tls:// address")

    def credentials(self) -> Credentials | None:
        """None where none are given. Raises ConfigError where there are none for the role."""
        if not self.creds:
            return None
        return Credentials.found(Path(self.creds).expanduser(), self.role)

    def tls_context(self) -> ssl.SSLContext | None:
        """None for a bus without TLS. Raises ConfigError for a file that cannot be used."""
        if not self.is_encrypted:
            return None
        ca = self._ca_file()
        try:
            return ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{ca} is no PEM file of certificates: {error}") from error

    def _ca_file(self) -> Path | None:
        if self.ca:
            return Path(self.ca).expanduser()
        if not self.creds:
            return None
        creds = Path(self.creds).expanduser()
        beside = (creds if creds.is_dir() else creds.parent) / CA_FILE
        return beside if beside.is_file() else None


def without_login(url: str) -> str:
    return LOGIN.sub(r"\1", url)
