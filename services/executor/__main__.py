"""``python -m services.executor``."""

import sys
from pathlib import Path

from services.executor.engines.factory import load_engine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import SlackwaterError
from shared.process.service import configure_logging, run_service
from shared.settings import config
from shared.text.tokenizer import Tokenizer


def main() -> int:
    try:
        settings = config.load(ExecutorSettings, "executor")
        tokenizer = Tokenizer.from_folder(Path(settings.model_path))
        configure_logging(settings.log_level)  # loading takes a while, and has much to say
        engine = load_engine(settings)
    except SlackwaterError as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2

    def make(bus: Bus) -> ExecutorService:
        return ExecutorService(bus, settings, engine, tokenizer, SystemClock())

    return run_service(settings.nats, settings.log_level, settings.executor_id, make)


if __name__ == "__main__":
    sys.exit(main())
