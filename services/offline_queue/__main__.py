"""``python -m services.offline_queue``."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

from services.offline_queue.service import OfflineQueueService
from services.offline_queue.settings import OfflineQueueSettings
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.clock import Clock, SystemClock
from shared.errors import ConfigError, SlackwaterError
from shared.openai.served_model import ServedModel, adapters_of, defaults_of
from shared.process.service import run_service
from shared.protocol.offline.learnt import LearntBy
from shared.scheduling.orders.offline.registry import DEFAULT_BLOCK_SIZE
from shared.settings import config
from shared.settings.other_models import parse_other_models
from shared.settings.setting import listed
from shared.text.model_folder import ModelFacts, tokenizer_digest
from shared.text.tokenizer import Tokenizer


def main() -> int:
    try:
        settings = config.load(OfflineQueueSettings, "offline-queue")
        make = prepared(settings, SystemClock())
    except SlackwaterError as error:
        print(f"offline-queue: {error}", file=sys.stderr)
        return 2
    address = BusAddress.of(settings, BusRole.OFFLINE_QUEUE)
    return run_service(address, settings.log_level, "offline-queue", make)


def prepared(settings: OfflineQueueSettings, clock: Clock) -> Callable[[Bus], OfflineQueueService]:
    """What makes the service, once, of the settings and the model's folder. Raises ConfigError and ModelError."""
    try:
        settings.strategy.make_offline_rate()
        numbers = iter(random.random, None)
        block_size = settings.block_size or DEFAULT_BLOCK_SIZE
        order = settings.strategy.make_offline_order(numbers, block_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    folder = Path(settings.model_path)
    tokenizer = Tokenizer.from_folder(folder)
    tokenizer.prepare_for_grammars()
    facts = ModelFacts.read(folder)
    max_model_len = settings.max_model_len or facts.max_model_len
    name, *aliases = listed(settings.served_model_name) or [settings.model_name]
    defaults = defaults_of(folder, settings.generation_config)
    others = tuple(each for other in parse_other_models(settings.other_models) for each in other.all_names)
    model = ServedModel(
        name,
        max_model_len,
        aliases=tuple(aliases),
        others=others,
        defaults=defaults,
        embedding_sizes=facts.embedding_sizes,
        adapters=adapters_of(settings.lora_modules),
    )
    learnt_by = LearntBy(settings.strategy.offline_order, settings.model_name, tokenizer_digest(folder), block_size)

    def make(bus: Bus) -> OfflineQueueService:
        return OfflineQueueService(bus, settings, model, order, tokenizer, clock, learnt_by)

    return make


if __name__ == "__main__":
    sys.exit(main())
