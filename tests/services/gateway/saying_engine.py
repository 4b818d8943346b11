"""An executor whose model says what it is told to: the default one is too small to call tools."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import openai

from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol.executors import EngineSpec
from shared.protocol.sampling import CHOICE_STRIDE
from shared.protocol.tokens import TokenLogprobs
from shared.replica.engine import StepBatch, StepResult
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import MODEL, GatewayRig


class SayingEngine:
    """Says one of ``sayings``, the one that the request's seed counts to, with every choice, and then its EOS."""

    def __init__(self, sayings: Sequence[str], folder: Path) -> None:
        facts, tokenizer = ModelFacts.read(folder), Tokenizer.from_folder(folder)
        self.spec = EngineSpec(
            MODEL, "saying", "cpu", "none", facts.max_model_len, facts.vocab_size, 16, 1024, facts.eos_token_ids
        )
        self._sayings = [[*tokenizer.encode(text), facts.eos_token_ids[0]] for text in sayings]
        self._said: Counter[str] = Counter()

    def execute(self, batch: StepBatch) -> StepResult:
        sampled = {}
        for sequence in batch.sequences:
            if sequence.needs_sample:
                saying = self._sayings[sequence.sampling.seed % CHOICE_STRIDE % len(self._sayings)]
                sampled[sequence.request_id] = saying[self._said[sequence.request_id]]
                self._said[sequence.request_id] += 1
        logprobs = {request_id: TokenLogprobs(-0.5, [], []) for request_id in sampled}
        return StepResult(sampled, 0.1, logprobs)

    def kv_regions(self) -> str:
        return "it has no KV"

    def close(self) -> None:
        """There is nothing to free."""


@asynccontextmanager
async def saying(sayings: Sequence[str], folder: Path, rig: GatewayRig) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of the rig's gateway while such an executor runs. ``folder``: the model's."""
    bus = await Bus.connect(rig.nats_url, "executor-0")
    settings, tokenizer = ExecutorSettings(model_path=str(folder)), Tokenizer.from_folder(folder)
    service = ExecutorService(bus, settings, SayingEngine(sayings, folder), tokenizer, SystemClock())
    await service.start()
    running = asyncio.create_task(service.run())
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as made:
        yield made
    running.cancel()
    await asyncio.wait((running,))
    await service.stop()
    await bus.close()
