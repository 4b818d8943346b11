"""What `slackwater up` was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loadgen.errors import SloError
from loadgen.report.slo import Slo, parse_slos
from services.executor.prepare_model import BUNDLED_MODELS, DEFAULT_MODEL, is_gguf
from services.executor.settings import ExecutorSettings, require_adapters_run
from services.gateway.settings import GatewaySettings
from services.profiler.settings import ProfilerSettings
from shared.protocol.services import short_name
from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import Strategy
from shared.settings.lora_modules import adapter_names
from shared.settings.other_models import require_distinct
from shared.settings.setting import default_of, listed

DEFAULT_DATA_DIR = Path(".slackwater")
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class StackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One stack on this machine: what it alone has, and what its services take over from it. ``config_file`` is read
    by the services as well. Raises ValueError for options that exclude each other."""

    model: Annotated[
        str, Meta(description="a known model, a local folder, a GGUF file of a Llama or a Hugging Face hub id")
    ] = DEFAULT_MODEL
    served_model_name: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "served_model_name")
    generation_config: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "generation_config")
    lora_modules: Annotated[str, ExecutorSettings] = default_of(ExecutorSettings, "lora_modules")
    engine: Annotated[str, ExecutorSettings] = default_of(ExecutorSettings, "engine")
    host: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "host")
    port: Annotated[int, GatewaySettings] = default_of(GatewaySettings, "port")
    drain_s: Annotated[float, GatewaySettings] = default_of(GatewaySettings, "drain_s")
    executors: Annotated[int, Meta(ge=1, le=64, description="model replicas, a process each")] = 1
    strict: Annotated[
        int, Meta(ge=0, description="of the executors, those for what online requests generate; 0: all are mixed")
    ] = 0
    threads: Annotated[int, ExecutorSettings] = default_of(ExecutorSettings, "threads")
    kv_blocks: Annotated[int, ExecutorSettings] = default_of(ExecutorSettings, "kv_blocks")
    vllm_attention: Annotated[str, ExecutorSettings] = default_of(ExecutorSettings, "vllm_attention")
    sim_model: Annotated[str, ExecutorSettings] = default_of(ExecutorSettings, "sim_model")
    sim_device: Annotated[str, ExecutorSettings] = default_of(ExecutorSettings, "sim_device")
    slo: Annotated[str, ProfilerSettings] = default_of(ProfilerSettings, "slo")
    data_dir: Annotated[Path, Meta(description="where the stack keeps its store and its logs")] = DEFAULT_DATA_DIR
    nats: Annotated[str, Meta(description="URL of an existing NATS server with JetStream; empty starts one")] = ""
    nats_creds: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "nats_creds")
    nats_ca: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "nats_ca")
    nats_replicas: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "nats_replicas")
    trace_endpoint: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "trace_endpoint")
    log_level: Annotated[str, GatewaySettings] = default_of(GatewaySettings, "log_level")
    strategy: Strategy = Strategy()
    config_file: Path | None = None
    executor_drain_s: float = 0.0  # as drain_on_stop_s of its executors says
    name: str = ""  # the model's in the stack; empty: by what it is
    tables: Mapping[str, Mapping[str, Any]] = {}  # settings that services of this model have of their own
    others: tuple[StackOptions, ...] = ()  # the stack with each of its other models

    def __post_init__(self) -> None:
        strategy = self.strategy
        if strategy.budget_ms and self.slo:
            raise ValueError("give one of --budget-ms and --slo, not both")
        if self.slo and not (strategy.uses_latency_budget or strategy.uses_deadlines):
            raise ValueError(f"preset {strategy.preset} has no latency budget to keep an SLO with: leave --slo out")
        require_adapters_run(self.engine, self.lora_modules)
        require_distinct(self.all_names)
        strategy.make_offline_rate()
        if self.strict and self.strict >= self.executors:
            raise ValueError(self._too_many_strict())
        if self.strict and strategy.why_no_pools:
            raise ValueError(f"--strict {self.strict}: {strategy.why_no_pools}")
        try:
            self.kept_strategy()
        except SloError as error:
            raise ValueError(str(error)) from error

    def require_models_apart(self) -> None:
        """Raises ValueError where two models, or their processes, would have the same name."""
        require_distinct([name for model in self.models for name in model.all_names])
        adapters = [name for model in self.models for name in adapter_names(model.lora_modules)]
        require_distinct([*(model.model_name for model in self.models), *adapters])
        short = [short_name(model.model_name) for model in self.models]
        if len(set(short)) < len(short):
            called = " and ".join(model.model_name for model in self.models)
            raise ValueError(f"processes of {called} would have the same names: give one of them another name")

    @property
    def models(self) -> tuple[StackOptions, ...]:
        """The stack with each of its models; the first is the default."""
        return (self, *self.others)

    def role(self, index: int) -> Role | None:
        """Of one of the executors; None where its own setting says it."""
        if not self.strict:
            return None
        return Role.STRICT if index < self.strict else Role.RELAXED

    def _too_many_strict(self) -> str:
        if self.executors == 1:
            return "--strict needs --executors 2 or more: somebody has to compute the prompts"
        there = f"{self.strict} strict of {self.executors} executors"
        return f"{there} leave none for prompts: choose --strict {self.executors - 1} or less, or more --executors"

    def kept_strategy(self) -> Strategy:
        """The strategy, its deadlines those of the SLOs where it goes by deadlines."""
        slos = parse_slos(self.slo)
        if not self.strategy.uses_deadlines:
            return self.strategy
        ttft_ms, tpot_ms = deadlines_of(slos)
        bounds = {"ttft_slo_ms": ttft_ms, "tpot_slo_ms": tpot_ms}
        return msgspec.structs.replace(self.strategy, **{name: ms for name, ms in bounds.items() if ms is not None})

    @property
    def model_name(self) -> str:
        """Of the stack's own: as it is told, else a folder's name, a GGUF file's without its end, otherwise the model
        as it was given."""
        if self.name:
            return self.name
        folder = Path(self.model).expanduser()
        if is_gguf(self.model):
            return folder.stem
        is_folder = self.model not in BUNDLED_MODELS and folder.is_dir()
        return folder.resolve().name if is_folder else self.model

    @property
    def client_names(self) -> list[str]:
        """What clients call the model; the first is in answers."""
        return listed(self.served_model_name) or [self.model_name]

    @property
    def all_names(self) -> list[str]:
        """With those of its LoRA adapters."""
        return [*self.client_names, *adapter_names(self.lora_modules)]

    @property
    def served_name(self) -> str:
        """What is in answers; of all models."""
        return ", ".join(model.client_names[0] for model in self.models)

    @property
    def url(self) -> str:
        """Where clients on this machine reach the gateway."""
        host = WILDCARD_HOSTS.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def deadlines_of(slos: Sequence[Slo]) -> tuple[float | None, float | None]:
    """Milliseconds to a first token and to a later one: the tightest bounds on TTFT, and on TPOT and TBT. None where
    there is none. Raises ValueError for an SLO that is no deadline of a token."""
    ttft_ms: list[float] = []
    tpot_ms: list[float] = []
    for slo in slos:
        if slo.relative or slo.metric == "normalized_latency_ms":
            raise ValueError(f"{slo.expr}: deadlines need bounds in ms on ttft, tpot or tbt")
        (ttft_ms if slo.metric == "ttft_ms" else tpot_ms).append(slo.limit)
    return min(ttft_ms, default=None), min(tpot_ms, default=None)
