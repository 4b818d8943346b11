"""The profiler's settings."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from loadgen.errors import SloError
from loadgen.report.slo import Slo, parse_slos
from shared.settings.other_models import OtherModels, parse_other_models
from shared.settings.setting import LIST, LogLevel, NatsCa, NatsCreds, NatsReplicas, NatsUrl


class ProfilerSettings(msgspec.Struct, frozen=True):
    """Measure the batch shapes of each new kind of executor once, and publish latency budgets."""

    slo: Annotated[
        str,
        Meta(
            description="SLOs to keep, as ttft_p99<=800ms or tbt_mean<=1.05x of online work alone; several with commas "
            "between them; empty keeps the tolerance",
            extra=LIST,
        ),
    ] = ""
    other_models: OtherModels = ""
    slo_min_requests: Annotated[int, Meta(ge=2, description="online requests before a budget is searched for")] = 100
    slo_min_s: Annotated[float, Meta(gt=0, description="seconds that they must have taken to arrive")] = 60.0
    slo_check_s: Annotated[float, Meta(gt=0, description="seconds between looks for drift")] = 60.0
    slo_drift: Annotated[float, Meta(gt=0, description="share by which the workload must differ for a new search")] = (
        0.3
    )
    nats: NatsUrl = "nats://127.0.0.1:4222"
    nats_creds: NatsCreds = ""
    nats_ca: NatsCa = ""
    nats_replicas: NatsReplicas = "auto"
    log_level: LogLevel = "info"
    cache_dir: Annotated[
        str, Meta(description="profiles are kept below it; empty is SLACKWATER_CACHE, else ~/.cache/slackwater")
    ] = ""
    refresh: Annotated[bool, Meta(description="true measures again what is cached")] = False

    def __post_init__(self) -> None:
        try:
            self.all_slos()
        except SloError as error:
            raise ValueError(str(error)) from error

    def slos_of(self, model_name: str) -> list[Slo]:
        """What executors of this model have to keep; ``slo`` is what those have that no other_models name."""
        others = {model.name: model.slo for model in parse_other_models(self.other_models)}
        return parse_slos(others.get(model_name, self.slo))

    def all_slos(self) -> list[str]:
        """Those of all models."""
        texts = self.slo, *(model.slo for model in parse_other_models(self.other_models))
        return list(dict.fromkeys(slo.expr for text in texts for slo in parse_slos(text)))

    def profiles_dir(self) -> Path:
        """Where the profiles are; the folder may not exist yet."""
        root = self.cache_dir or os.environ.get("SLACKWATER_CACHE") or "~/.cache/slackwater"
        return Path(root).expanduser() / "profiles"


def start_budget_ms(slos: Sequence[Slo]) -> float | None:
    """Before anything is profiled: the time between tokens that the SLOs name themselves, since a step takes no longer;
    None where they name none in milliseconds."""
    named = [slo.limit for slo in slos if slo.metric in ("tbt_ms", "tpot_ms") and not slo.relative]
    return min(named, default=None)
