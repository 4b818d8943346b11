"""A systemd unit that runs ``slackwater up``."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from services.local.command_group import MISUSE
from shared.errors import StackError

UNIT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
KILLED_AFTER_S = 30.0  # beyond drain_s: executors, queue and bus end after the gateway
ENVIRONMENT = "slackwater.env"  # in the user's configuration folder; nothing is wrong where it is not there


@dataclass(frozen=True, slots=True)
class SystemdUnit:
    """Paths are absolute. ``config``: None where the stack has no configuration file. ``drain_s``: what open answers
    have, and after them what runs on executors. ``user``: whom a unit of the system runs as; None for a unit of the
    user's own systemd."""

    name: str
    program: Path
    config: Path | None
    data_dir: Path
    working_dir: Path
    environment: Path
    drain_s: float
    user: str | None = None

    def text(self) -> str:
        """The file. The supervisor alone gets SIGTERM and drains all else; what is left is killed."""
        config = "" if self.config is None else str(self.config)  # empty: none, whatever the user has of his own
        command = [str(self.program), "up", "--config", config, "--data-dir", str(self.data_dir)]
        return "\n".join(
            [
                "[Unit]",
                "Description=Slackwater, online and offline LLM requests",
                "After=network-online.target",
                "Wants=network-online.target",
                "",
                "[Service]",
                "Type=exec",
                *([f"User={self.user}"] if self.user else []),
                f"WorkingDirectory={_escaped(str(self.working_dir))}",
                f"EnvironmentFile=-{_escaped(str(self.environment))}",
                f"ExecStart={' '.join(map(_quoted, command))}",
                "KillMode=mixed",
                f"TimeoutStopSec={self.drain_s + KILLED_AFTER_S:.0f}",
                "Restart=on-failure",
                "RestartSec=5",
                f"RestartPreventExitStatus={MISUSE}",
                "",
                "[Install]",
                f"WantedBy={'multi-user.target' if self.user else 'default.target'}",
                "",
            ]
        )


def installed_program() -> Path:
    """``slackwater`` beside this Python, else on the path. Raises StackError."""
    beside = Path(sys.executable).parent / "slackwater"
    found = str(beside) if beside.exists() else shutil.which("slackwater")
    if found is None:
        raise StackError("the slackwater command is not installed: pip install slackwater")
    return Path(found).absolute()


def unit_path(name: str, is_user: bool, config_home: Path) -> Path:
    """Where systemd looks for it. Raises StackError for a name that a unit cannot have."""
    if not UNIT_NAME.fullmatch(name):
        raise StackError(f"a unit's name has 1 to 64 of A-Z, a-z, 0-9, _, . and -; {name!r} is none")
    folder = config_home / "systemd/user" if is_user else Path("/etc/systemd/system")
    return folder / f"{name}.service"


def _quoted(word: str) -> str:
    """As one word of ExecStart, with nothing replaced in it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_escaped(escaped)}"'


def _escaped(value: str) -> str:
    return value.replace("%", "%%")
