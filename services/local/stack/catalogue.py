"""Every setting of a stack: the tables of the configuration file, and what stands in them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.local.stack.options import StackOptions
from services.offline_queue.settings import OfflineQueueSettings
from services.predictor.settings import PredictorSettings
from services.profiler.settings import ProfilerSettings
from shared.bus.address import BusAddress
from shared.errors import ConfigError
from shared.server_url import without_credentials
from shared.settings.config import Origin, Sources, Value, composed
from shared.settings.config_file import MODELS, OWN_TABLES, STACK, ConfigFile, find_config, nearest
from shared.settings.setting import Setting, settings_of

SERVICES: dict[str, type[msgspec.Struct]] = {
    "gateway": GatewaySettings,
    "offline-queue": OfflineQueueSettings,
    "predictor": PredictorSettings,
    "profiler": ProfilerSettings,
    "executor": ExecutorSettings,
}
STACK_SETTINGS = settings_of(StackOptions)
STACK_NAMES = tuple(setting.name for setting in STACK_SETTINGS)
STRATEGY = "strategy"  # its table
# Else needed by a service that is started by itself.
SET_BY_UP = ("model_path", "model_name", "executor_id", "other_models")
NAME = "name"  # of a model in the stack
EACH_MODELS = ("model", "served_model_name", "lora_modules")  # that no two models have the same
OF_MODELS = (  # of [stack], in a model's own table
    *(*EACH_MODELS, "generation_config", "engine", "executors", "strict", "threads", "kv_blocks"),
    *("vllm_attention", "sim_model", "sim_device", "slo"),
)


def shown_value(name: str, value: str) -> str:
    """A setting's value, to be shown: without what a URL lets in with."""
    return BusAddress(value).shown if name == "nats" else without_credentials(value)


@functools.cache
def tables() -> Mapping[str, Sequence[Setting]]:
    """The settings that a stack reads, each in the one table that it belongs to."""
    settled = (*STACK_NAMES, *SET_BY_UP)
    own = {
        service: [setting for setting in settings_of(struct) if setting.name not in settled]
        for service, struct in SERVICES.items()
    }
    shared = [setting for setting in STACK_SETTINGS if not setting.table]
    return {STACK: shared, STRATEGY: [setting for setting in STACK_SETTINGS if setting.table], **own}


def read_config(given: str | None, environ: Mapping[str, str]) -> ConfigFile | None:
    """The configuration file, all of it checked for names. Raises ConfigError."""
    file = find_config(given, environ)
    if file is None:
        return None
    homes = {setting.name: home for home, settings in tables().items() for setting in settings}
    for table, settings in tables().items():
        own = [setting.name for setting in settings]
        for key in file.table(table):
            if key in homes and key not in own:
                raise ConfigError(f"{file.where(table, key)}: {key} belongs to [{homes[key]}], not to [{table}]")
        fields = SERVICES[table].__struct_fields__ if table in SERVICES else ()
        file.require_known(table, [*own, *(name for name in SET_BY_UP if name in fields)])
    for index, model in enumerate(file.models):
        _check_model(file, index, model, homes)
    return file


def _check_model(file: ConfigFile, index: int, model: Mapping[str, Any], homes: Mapping[str, str]) -> None:
    """Its names. Raises ConfigError."""
    place = (MODELS, str(index))
    for key, value in model.items():
        if key in OWN_TABLES:
            known = [setting.name for setting in tables()[key]]
            for name in value if isinstance(value, dict) else [key]:
                if name not in known:
                    where = file.where(*place, key, name)
                    raise ConfigError(f"{where}: unknown setting {name} of [{MODELS}.{key}]; {nearest(name, known)}")
        elif key == NAME:
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{file.where(*place, key)}: {key} is a text, what the stack calls the model")
        elif key not in OF_MODELS:
            home = homes.get(key)
            hint = f"{key} belongs to [{home}]" if home else f"unknown setting {key}; {nearest(key, OF_MODELS)}"
            raise ConfigError(f"{file.where(*place, key)}: {hint}, not to [[{MODELS}]]")


def stack_options(given: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> StackOptions:
    """What ``slackwater up`` works with. Raises ConfigError that says what to write instead."""
    file = read_config(config, environ)
    if file is None or not file.models:
        return _options_of(given, file, environ)
    for setting in STACK_SETTINGS:
        if setting.name in EACH_MODELS and (setting.name in given or environ.get(setting.variable)):
            where = setting.flag if setting.name in given else setting.variable
            raise ConfigError(f"{where}: {file.path} has [[{MODELS}]]; say there what each of them is")
    try:
        each = [_options_of_model(given, file, index, environ) for index in range(len(file.models))]
        options = msgspec.structs.replace(each[0], others=tuple(each[1:]))
        options.require_models_apart()
        return options
    except ValueError as error:
        raise ConfigError(f"{file.path}: {error}") from error


def _options_of_model(
    given: Mapping[str, Any], file: ConfigFile, index: int, environ: Mapping[str, str]
) -> StackOptions:
    own, view = file.models[index], file.of_model(index)
    if "model" not in own:
        raise ConfigError(f"{file.where(MODELS, str(index))}: this model has no model = ...")
    options = _options_of(given, view, environ)
    found = all_values(view, environ)
    changed = {
        table: {name: value for name in own.get(table, {}) if (value := found[table][name]).origin is Origin.FILE}
        for table in OWN_TABLES
        if table in SERVICES
    }
    values = {table: {name: found.value for name, found in each.items()} for table, each in changed.items()}
    return msgspec.structs.replace(options, name=own.get(NAME, ""), tables=values)


def _options_of(given: Mapping[str, Any], file: ConfigFile | None, environ: Mapping[str, str]) -> StackOptions:
    values = Sources(given, environ, file, (STACK,)).resolve(STACK_SETTINGS)
    own = {  # not only when their processes start
        table: Sources({}, environ, file, (table,)).resolve(settings) for table, settings in list(tables().items())[1:]
    }
    drain_s = own["executor"]["drain_on_stop_s"].value
    try:
        path = None if file is None else file.path.resolve()
        return msgspec.structs.replace(composed(StackOptions, values), config_file=path, executor_drain_s=drain_s)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def gateway_access(options: StackOptions, environ: Mapping[str, str]) -> GatewaySettings:
    """Who may use the stack's gateway: of its settings those that say so. Raises ConfigError."""
    own = all_values(read_config(str(options.config_file or ""), environ), environ)["gateway"]
    keys = {name: own[name].value for name in ("require_keys", "api_key")}
    return GatewaySettings(model_path="", host=options.host, **keys)


def all_values(file: ConfigFile | None, environ: Mapping[str, str]) -> dict[str, dict[str, Value]]:
    """What a stack that starts now would have, by table and name. Raises ConfigError."""
    return {table: Sources({}, environ, file, (table,)).resolve(settings) for table, settings in tables().items()}
