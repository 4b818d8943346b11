"""What a process shows to be let in to the bus: an NKey seed, or a .creds file of NATS's own tools (JWT and seed).

They are read anew for each connection, so that files may be replaced while processes run.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import nkeys

from shared.bus.permissions import BusRole
from shared.errors import ConfigError

SUFFIXES = (".nk", ".creds")
JWT_LINE, SEED_LINE = "BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"


@dataclass(frozen=True, slots=True)
class Shown:
    """``jwt`` is empty where the server knows the key itself."""

    public_key: str
    jwt: str
    signature: str


@dataclass(frozen=True, slots=True)
class Credentials:
    """One file."""

    path: Path

    @classmethod
    def found(cls, path: Path, role: BusRole | None) -> Self:
        """The file itself, or the role's of a folder. Raises ConfigError where it is not there or cannot be used."""
        try:
            found = cls(_of_role(path, role) if path.is_dir() else path)
        except OSError as error:  # of a folder that is another user's
            raise ConfigError(f"cannot look for credentials in {path}: {error.strerror}") from error
        found.show("")
        return found

    def show(self, nonce: str) -> Shown:
        """What answers the server's nonce. Raises ConfigError that never quotes the file."""
        try:
            text = self.path.read_text()
            jwt, seed = _after(text, JWT_LINE), _after(text, SEED_LINE) or text.strip()
            pair = nkeys.from_seed(bytearray(seed.encode()))
            signature = base64.b64encode(pair.sign(nonce.encode())).decode()
            return Shown(pair.public_key.decode(), jwt, signature)
        except OSError as error:
            raise ConfigError(f"cannot read the credentials {self.path}: {error.strerror}") from error
        except (nkeys.NkeysError, ValueError) as error:
            raise ConfigError(f"{self.path} is no NKey seed and no .creds file") from error


def _of_role(folder: Path, role: BusRole | None) -> Path:
    names = [f"{role}{suffix}" for suffix in SUFFIXES]
    there = [folder / name for name in names if (folder / name).is_file()]
    if not there:
        raise ConfigError(f"{folder} has no credentials for the role {role}: no {' or '.join(names)}")
    return there[0]


def _after(text: str, line: str) -> str:
    """What stands below the line that has these words; empty without one."""
    lines = text.splitlines()
    place = next((index for index, each in enumerate(lines) if line in each), len(lines))
    return lines[place + 1].strip() if place + 1 < len(lines) else ""
