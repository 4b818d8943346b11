"""An engine without a model: a step takes as long as a latency model says, tokens come from a seeded generator.

With it the whole stack runs at GPU scale on a laptop.
"""

from __future__ import annotations

import math
import random
import struct
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from services.executor.engines.last_step import LastStep
from services.executor.engines.sampling.sample_row import SampleRow
from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.prompt_scores import PromptScore, pack_scores
from shared.protocol.sampling import SamplingParams
from shared.protocol.tokens import TokenLogprobs
from shared.replica.engine import KVRegions, KVShards, Sequence, StepBatch, StepResult, batch_shape
from shared.scheduling.kv.block_hash import kv_scope
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.packed_prompt import pack_tokens
from shared.simulation.copies import CopyTimeline
from shared.simulation.stages import INTERRUPTED_AFTER, Stages
from shared.text.model_folder import ModelFacts

if TYPE_CHECKING:
    from services.executor.engines.sampling.grammar_masks import GrammarMasks

MASK = (1 << 64) - 1
EMBEDDING_SIZE = 64  # without a model
MAX_LOGPROBS = 32  # more than anybody asks for


@dataclass(frozen=True, slots=True)
class Pause:
    """So long, or until that is set."""

    left_s: float
    until: threading.Event


T = TypeVar("T")
Running = Generator[Pause, None, T]


class SimEngine:
    """A step goes through as many stages as the spec has. Slots are copied beside the steps before, as long as the spec
    says, and waited for."""

    def __init__(
        self,
        spec: EngineSpec,
        latency: LatencyModel,
        mean_output_tokens: float = 128.0,
        time_scale: float = 1.0,
        model_path: Path | None = None,
    ) -> None:
        """``mean_output_tokens``: EOS comes with this mean, geometrically; ``time_scale``: 0.1 is ten times as fast;
        ``model_path``: has the tokenizer that grammars need, and tells how long embeddings are; None where no request
        has any."""
        self.spec = spec
        self._copies = CopyTimeline(spec.swap_ms_per_slot / time_scale)
        self._latency = latency
        self._eos_threshold = int((1 << 32) / mean_output_tokens)
        self._time_scale = time_scale
        self._model_path = model_path
        self._closed = threading.Event()
        self._interrupted = threading.Event()  # perhaps a step that has ended
        self._asked: int | None = None
        self._stages = Stages(spec.pipeline_depth)  # on the performance counter
        self._last_step = LastStep()
        self._lock = threading.Lock()

    def start_copies(self, copies: SlotOperations) -> None:
        """See ``Engine.start_copies``."""
        with self._lock:
            self._copies.start(copies, time.perf_counter() * 1e3 / self._time_scale)

    def execute(self, batch: StepBatch) -> StepResult:
        """Takes the predicted time, choosing the tokens included, plus what earlier steps and slots' copies block."""
        running = self.running(batch)
        try:
            while True:
                pause = next(running)
                pause.until.wait(pause.left_s)
        except StopIteration as ended:
            result: StepResult = ended.value
            return result

    def running(self, batch: StepBatch) -> Running[StepResult]:
        """``execute``, which leaves the waiting to its caller."""
        if not self._last_step.take(batch):
            return StepResult({}, 0.0, is_interrupted=True)
        asked = time.perf_counter()
        with self._lock:
            wait_ms = self._copies.wait_ms(batch.copies, asked * 1e3 / self._time_scale) * self._time_scale
        if wait_ms > 0:
            yield Pause(wait_ms / 1e3, self._closed)
        start = time.perf_counter()
        sampled, logprobs, scores, embeddings = {}, {}, {}, {}
        for sequence in batch.sequences:
            if sequence.scored_ids:
                scores[sequence.request_id] = self._scores(sequence)
            if sequence.needs_embedding:
                embeddings[sequence.request_id] = self._embedding(sequence)
            if sequence.needs_sample:
                sampled[sequence.request_id] = token_id = self._token(sequence)
                if sequence.sampling.logprobs is not None:
                    logprobs[sequence.request_id] = self._logprobs(sequence.sampling, token_id)
        with self._lock:
            end = self._stages.leave(start, self._latency.predict_ms(batch_shape(batch)) * self._time_scale / 1e3)
        is_interrupted = yield from self._run_until(end, batch)
        latency_ms, copy_wait_ms = (time.perf_counter() - start) * 1e3, (start - asked) * 1e3
        if is_interrupted:
            self._stages = Stages(self.spec.pipeline_depth)
            return StepResult({}, latency_ms, copy_wait_ms=copy_wait_ms, is_interrupted=True)
        self._last_step.keep(batch.step, sampled)
        return StepResult(sampled, latency_ms, logprobs, copy_wait_ms, prompt_scores=scores, embeddings=embeddings)

    def interrupt(self, step: int) -> None:
        """See ``Engine.interrupt``."""
        self._asked = step
        self._interrupted.set()

    def kv_regions(self) -> KVRegions | KVShards | str:
        """See ``Engine.kv_regions``."""
        return "the sim engine has no KV"

    def close(self) -> None:
        """A step that runs ends at once."""
        self._closed.set()
        self._interrupted.set()

    def _run_until(self, end: float, batch: StepBatch) -> Running[bool]:
        """True where it was interrupted: then it has gone on to the end of a layer."""
        left_s = max(0.0, end - time.perf_counter())
        if not batch.may_be_interrupted:
            yield Pause(left_s, self._closed)
            return False
        layer_s = INTERRUPTED_AFTER * left_s
        while self._asked != batch.step and not self._closed.is_set():
            yield Pause(max(0.0, end - time.perf_counter()), self._interrupted)
            if not self._interrupted.is_set():
                return False
            self._interrupted.clear()
        yield Pause(min(layer_s, max(0.0, end - time.perf_counter())), self._closed)
        return not self._closed.is_set()

    def _token(self, sequence: Sequence) -> int:
        """A function of seed, position and adapter alone, where all tokens may come."""
        position, sampling = sequence.num_computed_tokens + len(sequence.token_ids), sequence.sampling
        draw = _mix(sampling.seed * 0x9E3779B97F4A7C15 + position + _number(kv_scope(None, sampling.adapter).root))
        if sampling.forbids_tokens:
            return self._allowed_token(sequence, position, draw)
        return self._drawn(sampling, draw)

    def _drawn(self, sampling: SamplingParams, draw: int) -> int:
        if self.spec.eos_token_ids and (draw & 0xFFFFFFFF) < self._eos_threshold and not sampling.ignore_eos:
            return self.spec.eos_token_ids[0]
        token_id = (draw >> 32) % self.spec.vocab_size
        while token_id in self.spec.eos_token_ids:
            token_id = (token_id + 1) % self.spec.vocab_size
        return token_id

    def _allowed_token(self, sequence: Sequence, position: int, draw: int) -> int:
        """What is drawn anyway, or any other that may come; with a grammar its end as soon as it may come."""
        from services.executor.engines.sampling.token_bans import allowed_tokens  # late: it needs numpy

        sampling, eos_token_ids = sequence.sampling, self.spec.eos_token_ids
        row = SampleRow(sampling, position, sequence.history, sequence.request_id)
        grammars = self._grammars if sampling.grammar else None
        (allowed,) = allowed_tokens([row], self.spec.vocab_size, eos_token_ids, grammars)
        drawn = self._drawn(sampling, draw)
        if allowed[drawn] and not sampling.grammar:
            return drawn
        ends = [id for id in eos_token_ids if allowed[id] and sampling.grammar]
        token_ids: list[int] = ends or allowed.nonzero()[0].tolist()
        return token_ids[(draw >> 32) % len(token_ids)]

    @cached_property
    def _grammars(self) -> GrammarMasks:
        from services.executor.engines.sampling.grammar_masks import GrammarMasks  # late: it needs numpy

        assert self._model_path is not None, "grammars come with a tokenizer"
        return GrammarMasks(self._model_path)

    def _logprobs(self, sampling: SamplingParams, token_id: int) -> TokenLogprobs:
        """Of what ``_token`` draws from: EOS has its share, all others have the same of what is left."""
        eos_token_ids = () if sampling.ignore_eos else self.spec.eos_token_ids[:1]
        eos_share = self._eos_threshold / (1 << 32) if eos_token_ids else 0.0
        others = math.log((1.0 - eos_share) / (self.spec.vocab_size - len(self.spec.eos_token_ids)))
        logprobs = {id: others for id in range(MAX_LOGPROBS) if id not in self.spec.eos_token_ids}
        logprobs |= dict.fromkeys(eos_token_ids, math.log(eos_share)) if eos_share else {}
        top = sorted(logprobs, key=lambda id: (-logprobs[id], id))[: sampling.logprobs]
        return TokenLogprobs(logprobs.get(token_id, others), top, [logprobs[id] for id in top])

    def _scores(self, sequence: Sequence) -> bytes:
        """Of the prompt's tokens, as ``_logprobs``; those that are as probable have their ranks by their ids."""
        num_top = sequence.sampling.prompt_logprobs or 0
        sampling = msgspec.structs.replace(sequence.sampling, logprobs=num_top)
        scores = []
        for token_id in sequence.scored_ids:
            found = self._logprobs(sampling, token_id)
            rank = 1 if token_id in self.spec.eos_token_ids else 2 + token_id
            scores.append(PromptScore(found.logprob, rank, tuple(found.top_token_ids), tuple(found.top_logprobs)))
        return pack_scores(scores)

    def _embedding(self, sequence: Sequence) -> bytes:
        """A function of the prompt's tokens and the adapter alone."""
        assert sequence.history is not None, "an embedding is that of a whole prompt"
        root = kv_scope(None, sequence.sampling.adapter).root
        digest = blake2b(root + pack_tokens(sequence.history.token_ids), digest_size=8).digest()
        draws = random.Random(_number(digest))
        values = [draws.gauss(0.0, 1.0) for _ in range(self._embedding_size)]
        length = math.hypot(*values)
        return struct.pack(f"<{len(values)}f", *(value / length for value in values))

    @cached_property
    def _embedding_size(self) -> int:
        """That of the model whose tokenizer it has."""
        full = None if self._model_path is None else ModelFacts.read(self._model_path).embedding_sizes.full
        return full or EMBEDDING_SIZE


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = ((value & MASK) ^ ((value & MASK) >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)
