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
from shared.errors import ConfigError
from shared.settings.config import Sources, Value, composed
from shared.settings.config_file import STACK, ConfigFile, find_config
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
SET_BY_UP = ("model_path", "model_name", "executor_id")  # else needed by a service that is started by itself


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
    return file


def stack_options(given: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> StackOptions:
    """What ``slackwater up`` works with. Raises ConfigError that says what to write instead."""
    file = read_config(config, environ)
    values = Sources(given, environ, file, (STACK,)).resolve(STACK_SETTINGS)
    for table, settings in list(tables().items())[1:]:  # not only when their processes start
        Sources({}, environ, file, (table,)).resolve(settings)
    try:
        path = None if file is None else file.path.resolve()
        return msgspec.structs.replace(composed(StackOptions, values), config_file=path)
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
