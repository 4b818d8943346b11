"""A folder with all that lets processes into one bus: seeds of the roles, certificates, what the server has to know.

====================  ===============================================================
``ROLE.nk``           the NKey seed of a role; each process needs that of its own only
``ca.pem``            whom clients take for the bus; every process needs it
``ca-key.pem``        signs the server's certificate
``server.pem``        the server's certificate, and ``server-key.pem`` its key
``auth.conf``         for the server: which keys it lets in, and what each may do
``accepted.json``     those keys by role: two while a role's is being replaced
====================  ===============================================================
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import nkeys

from services.local.stack.bus_access.certificates import (
    Signed,
    hosts_of,
    is_fresh,
    is_good_for,
    new_ca,
    new_server,
    utc_now,
)
from services.local.stack.bus_access.server_config import Accepted, authorization, tls
from services.local.stack.private import make_private
from shared.bus.address import CA_FILE, BusAddress
from shared.bus.credentials import Credentials
from shared.bus.permissions import BusRole
from shared.errors import ConfigError, StackError

T = TypeVar("T")

PRIVATE = 0o600
SEED_BYTES = 32


class BusFolder:
    """Only this user may read it. Every method raises StackError where it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ca = path / CA_FILE
        self.server_certificate = path / "server.pem"
        self.server_key = path / "server-key.pem"
        self.auth = path / "auth.conf"
        self._ca_key = path / "ca-key.pem"
        self._accepted = path / "accepted.json"

    def exists(self) -> bool:
        return self.auth.is_file()

    @property
    def hosts(self) -> list[str]:
        """The names and addresses that the server's certificate is for; none where there is no certificate."""
        return _made_of(self.server_certificate, hosts_of) if self.server_certificate.is_file() else []

    def ensure(self, hosts: Sequence[str]) -> None:
        """Make what is absent, about to end, or not for these names of the server; keep the rest, and the names that
        its certificate is for."""
        try:
            make_private(self.path)
            self._ensure_certificates(hosts)
            for role in BusRole:
                if not self._seed(role).is_file():
                    self._write(self._seed(role), _new_seed())
            self._accept(self._present())
        except OSError as error:
            raise StackError(f"cannot keep the bus's credentials in {self.path}: {error.strerror}") from error

    def begin_rotation(self) -> Mapping[BusRole, bytes]:
        """New seeds, which the server lets in beside the present ones once it reads ``auth.conf`` again. They are not
        used before ``use``."""
        seeds = {role: _new_seed() for role in BusRole}
        before = self._read_accepted()
        self._accept({role: [*before.get(role, []), _public_key(seed)] for role, seed in seeds.items()})
        return seeds

    def use(self, seeds: Mapping[BusRole, bytes]) -> None:
        """Each new connection shows these."""
        for role, seed in seeds.items():
            self._write(self._seed(role), seed)

    def finish_rotation(self) -> None:
        """Once the server reads ``auth.conf`` again, it lets in none but those that hold the present seeds."""
        self._accept(self._present())

    def address(self, url: str, role: BusRole) -> BusAddress:
        return BusAddress(url, str(self.path), str(self.ca), role)

    def server_config(self) -> str:
        """Lines of nats-server's configuration file, which is beside this folder."""
        return f'{tls(self.server_certificate, self.server_key)}include "{self.path.name}/{self.auth.name}"\n'

    def _ensure_certificates(self, hosts: Sequence[str]) -> None:
        now = utc_now()
        names = list(dict.fromkeys([*self.hosts, *hosts]))
        if not (self._ca_key.is_file() and self.ca.is_file() and _made_of(self.ca, lambda ca: is_fresh(ca, now))):
            made = new_ca(now)
            self._write(self._ca_key, made.key)
            self._write(self.ca, made.certificate)
            self.server_certificate.unlink(missing_ok=True)
        is_there = self.server_key.is_file() and self.server_certificate.is_file()
        if not (is_there and _made_of(self.server_certificate, lambda server: is_good_for(server, names, now))):
            server = _made_of(self._ca_key, lambda key: new_server(Signed(self.ca.read_bytes(), key), names, now))
            self._write(self.server_key, server.key)
            self._write(self.server_certificate, server.certificate)

    def _present(self) -> Accepted:
        """Raises StackError for a seed that cannot be used."""
        try:
            return {role: [Credentials(self._seed(role)).show("").public_key] for role in BusRole}
        except ConfigError as error:
            raise StackError(f"{error}; remove it, and a new one is made") from error

    def _read_accepted(self) -> Accepted:
        try:
            return msgspec.json.decode(self._accepted.read_bytes(), type=dict[BusRole, list[str]])
        except (OSError, msgspec.DecodeError):
            return self._present()

    def _accept(self, keys: Accepted) -> None:
        self._write(self._accepted, msgspec.json.encode(keys) + b"\n")
        self._write(self.auth, authorization(keys).encode())

    def _seed(self, role: BusRole) -> Path:
        return self.path / f"{role}.nk"

    def _write(self, path: Path, data: bytes) -> None:
        """In one step, for this user alone."""
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "wb") as file:
                file.write(data)
            fresh.replace(path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StackError(f"cannot write {path}: {error.strerror}") from error


def _made_of(path: Path, make: Callable[[bytes], T]) -> T:
    """Of what is in a file. Raises StackError where that is something else than it should be."""
    try:
        return make(path.read_bytes())
    except ValueError as error:
        raise StackError(f"{path} is damaged; remove it, and a new one is made") from error


def _new_seed() -> bytes:
    return bytes(nkeys.encode_seed(secrets.token_bytes(SEED_BYTES), nkeys.PREFIX_BYTE_USER))


def _public_key(seed: bytes) -> str:
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())
