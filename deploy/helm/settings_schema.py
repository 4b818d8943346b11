"""``python -m deploy.helm.settings_schema``: the settings of the services in the chart's values.schema.json, made anew.

A setting that the chart has a value of its own for is not among them.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.offline_queue.settings import OfflineQueueSettings
from services.predictor.settings import PredictorSettings
from services.profiler.settings import ProfilerSettings
from shared.scheduling.strategy import Strategy
from shared.settings.setting import Setting, settings_of

SCHEMA = Path(__file__).parent / "slackwater/values.schema.json"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "strategy": Strategy,
    "gatewaySettings": GatewaySettings,
    "offlineQueueSettings": OfflineQueueSettings,
    "predictorSettings": PredictorSettings,
    "profilerSettings": ProfilerSettings,
    "executorSettings": ExecutorSettings,
}
OF_BOTH = "strategy"  # a table that has a place of its own
SET_BY_CHART = {
    *("nats", "nats_creds", "nats_ca", "nats_replicas", "log_level", "cache_dir"),
    *("model_path", "model_name", "served_model_name", "generation_config", "lora_modules", "other_models", "slo"),
    *("host", "port", "drain_s", "api_key"),  # of the gateway
    *("executor_id", "role", "engine", "device", "tensor_parallel", "drain_on_stop_s"),  # of an executor
}
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def definitions() -> dict[str, dict[str, Any]]:
    """By the names that the schema has for them."""
    return {name: _definition(struct) for name, struct in STRUCTS.items()}


def _definition(struct: type[msgspec.Struct]) -> dict[str, Any]:
    own = [each for each in settings_of(struct) if each.table != OF_BOTH and each.name not in SET_BY_CHART]
    properties = {each.name: _property(each) for each in own}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(setting: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {"description": setting.description, "type": TYPES[setting.type]}
    if setting.is_list:
        found |= {"type": ["string", "array"], "items": {"type": "string"}}
    if setting.choices:
        found["enum"] = list(setting.choices)
    bounds = {theirs: getattr(setting.meta, ours) for ours, theirs in BOUNDS.items()}
    return found | {name: bound for name, bound in bounds.items() if bound is not None}


def main() -> None:
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"] |= definitions()
    SCHEMA.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
