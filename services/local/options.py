"""What `slackwater up` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.executor.prepare_model import BUNDLED_MODELS, DEFAULT_MODEL

DEFAULT_DATA_DIR = Path(".slackwater")
DEFAULT_PORT = 8000
ENGINES = ("torch", "sim")
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """One stack on this machine. None leaves a setting to the service's own default or environment."""

    model: str = DEFAULT_MODEL  # a known name, a local folder or a hub id
    engine: str = "torch"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    executors: int = 1
    threads: int | None = None
    kv_blocks: int | None = None
    kv_policy: str | None = None
    sim_model: str | None = None  # what the sim engine stands for
    sim_device: str | None = None
    preset: str = "hygen"
    utility_ratio: float | None = None
    online_order: str = "fcfs"
    budget_ms: float | None = None
    offline_qps: float | None = None
    target_tbt_ms: float | None = None
    ttft_slo_ms: float | None = None  # the deadlines of bros
    tpot_slo_ms: float | None = None
    slos: tuple[str, ...] = ()
    data_dir: Path = DEFAULT_DATA_DIR
    nats: str | None = None  # None: a server of our own
    log_level: str = "info"

    @property
    def model_name(self) -> str:
        """What clients call the model: a folder's own name, otherwise the model as it was given."""
        folder = Path(self.model).expanduser()
        is_folder = self.model not in BUNDLED_MODELS and folder.is_dir()
        return folder.resolve().name if is_folder else self.model

    @property
    def url(self) -> str:
        """Where clients on this machine reach the gateway."""
        host = WILDCARD_HOSTS.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
