"""The torch engine: a transformers model on our paged KV cache and attention, on CPU or CUDA.

A step is one flattened forward of all scheduled tokens, prefill chunks and decodes alike.
"""

from __future__ import annotations

from services.executor.engines.torch.threads import cpu_count

# isort: split

import logging
import math
from pathlib import Path

import msgspec
import numpy as np
import torch

from kernels.cpu import row_attention
from kernels.cpu.attention import GatherBuffer
from kernels.padded_decodes import PaddedDecodes
from kernels.paged_attention import AttentionMetadata
from kernels.slots import Ints, StepLayout
from services.executor.engines.sampling.grammar_masks import GrammarMasks
from services.executor.engines.sampling.prompt_scores import score_tokens, with_scores
from services.executor.engines.sampling.sample_row import SampleRow
from services.executor.engines.sampling.sampler import NO_TOKEN, NOT_FINITE, gather_logprobs, read_logprobs, sample
from services.executor.engines.sampling.seen_tokens import SeenTokens
from services.executor.engines.torch.attention import AttentionStep, Layer, paged_step
from services.executor.engines.torch.base import EngineOnTorch
from services.executor.engines.torch.device import (
    choose_device,
    device_name,
    keep_freed_memory,
    kv_memory_bytes,
    make_current,
    zeros,
)
from services.executor.engines.torch.embeddings import embeddings_of, with_embeddings
from services.executor.engines.torch.graphs import DecodeGraphs, Recorder, cuda_recorder
from services.executor.engines.torch.host_pool import HostPool, host_pool_of
from services.executor.engines.torch.kv_regions import regions_of
from services.executor.engines.torch.model import Forward, LoadedModel, first_line
from services.executor.engines.torch.pieces import PiecewiseGraphs, cuda_piece_recorder
from services.executor.engines.torch.pieces import Recorder as PieceRecorder
from services.executor.engines.torch.warm_up import warm_up_batches
from shared.errors import ConfigError, EngineError
from shared.protocol.executors import EngineSpec
from shared.replica.engine import KVRegions, SampledTokens, Sequence
from shared.text.model_folder import ModelFacts, read_architecture

logger = logging.getLogger(__name__)

KVCaches = dict[Layer, torch.Tensor]


class TorchEngine(EngineOnTorch):
    """Runs a step in one thread at a time."""

    def __init__(
        self,
        spec: EngineSpec,
        forward: Forward,
        kv_caches: KVCaches,
        host: HostPool | None,
        grammars: GrammarMasks,
        num_threads: int,
        fused_attention: bool = False,
    ) -> None:
        super().__init__(spec, next(iter(kv_caches.values())).device, host, num_threads)
        self._grammars = grammars
        self._seen = SeenTokens()
        self._model = forward
        self._kv_caches = kv_caches
        self._buffer = GatherBuffer()
        self._graphs: DecodeGraphs | None = None
        self._pieces: PiecewiseGraphs | None = None
        self._fused_attention = fused_attention

    @classmethod
    def load(
        cls,
        path: Path,
        name: str,
        device: str = "auto",
        dtype: str = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        num_threads: int | None = None,
        max_model_len: int | None = None,
        num_host_slots: int | None = 0,
        max_graph_decodes: int = 0,
        max_graph_tokens: int = 0,
        fused_attention: bool = False,
    ) -> TorchEngine:
        """Load the model folder ``path`` under the name that clients use; takes seconds, on a machine for the first
        time more, until every kernel is compiled. Raises ModelError for a model that cannot be run, ConfigError for
        settings that cannot be met.

        None: ``num_blocks`` sizes the KV cache from memory, ``num_threads`` is every core, ``max_model_len`` the
        model's own context or what the KV blocks hold, ``num_host_slots`` as many as the blocks have or as memory
        allows. On CUDA, steps of up to ``max_graph_decodes`` decodes are recorded as graphs, and others of up to
        ``max_graph_tokens`` that sample no more in pieces; with ``fused_attention`` a step's chunks and decodes share a
        launch of attention."""
        facts = ModelFacts.read(path)
        threads = num_threads or cpu_count()
        torch.set_num_threads(threads)
        chosen = choose_device(device)
        if chosen.type == "cuda" and block_size & (block_size - 1):
            raise ConfigError(f"block_size {block_size}: our kernels on a GPU take powers of two; leave it at 0")
        make_current(chosen)
        if chosen.type == "cpu":
            keep_freed_memory()
        with torch.inference_mode():
            model = LoadedModel.load(path, chosen, dtype, max_model_len or facts.max_model_len)
            kv_caches = _allocate(model, block_size, num_blocks, chosen)
            host = host_pool_of(list(kv_caches.values()), num_host_slots)
        blocks = next(iter(kv_caches.values())).shape[0]
        spec = EngineSpec(
            model=name,
            engine="torch",
            device=device_name(chosen, threads),
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=_context(max_model_len, facts.max_model_len, blocks * block_size),
            vocab_size=facts.vocab_size,
            block_size=block_size,
            num_blocks=blocks,
            eos_token_ids=facts.eos_token_ids,
            num_host_slots=host.num_slots if host is not None else 0,
            swap_ms_per_slot=host.ms_per_slot if host is not None else 0.0,
            is_interruptible=True,
            takes_steps_ahead=chosen.type == "cuda",  # on a CPU a step needs the interpreter all the time
            architecture=read_architecture(path, name, model.dtype.itemsize),
        )
        engine = cls(spec, model.forward, kv_caches, host, GrammarMasks(path), threads, fused_attention)
        if chosen.type == "cuda":
            for batch in warm_up_batches(spec, fused_attention):
                engine.execute(batch)
            engine.record_decodes(max_graph_decodes)
            engine.record_pieces(max_graph_tokens, max_graph_decodes)
            engine.spec = msgspec.structs.replace(spec, device=spec.device + engine.variant)
        else:
            for shape in dict.fromkeys(model.shapes.values()):
                row_attention.prepare(model.dtype, shape.k_dim, shape.v_dim)
        logger.info("model loaded", extra={"model": name, "device": engine.spec.device, "num_blocks": blocks})
        return engine

    def record_decodes(self, max_decodes: int, record: Recorder | None = None) -> None:
        """Have steps of up to ``max_decodes`` decodes replay recorded forward passes; 0 is none. Leaves the engine as
        it is, with a warning, where the model's forward cannot be recorded. ``record``: None is CUDA's."""
        self._graphs = None
        if max_decodes == 0:
            return
        try:
            with torch.inference_mode():
                inputs = PaddedDecodes(max_decodes, self.spec.max_model_len, self.spec.block_size, self._device)
                record = record or cuda_recorder(self._device)
                self._graphs = DecodeGraphs(self._forward_decodes, inputs, max_decodes, record)
        except (RuntimeError, ValueError) as error:
            logger.warning("decodes run without CUDA graphs", extra={"reason": first_line(error)})

    def record_pieces(self, max_tokens: int, max_rows: int, record: PieceRecorder | None = None) -> None:
        """Have any other steps of up to ``max_tokens`` tokens, ``max_rows`` of which are sampled after, replay what was
        recorded between their layers' attention; 0 is none. Otherwise as ``record_decodes``."""
        self._pieces = None
        if max_tokens == 0 or max_rows == 0:
            return
        try:
            with torch.inference_mode():
                record = record or cuda_piece_recorder(self._device)
                self._pieces = PiecewiseGraphs(self._model, self._kv_caches, max_tokens, max_rows, record)
        except (RuntimeError, ValueError) as error:
            logger.warning("chunks run without CUDA graphs", extra={"reason": first_line(error)})

    @property
    def graph_sizes(self) -> list[int]:
        """Numbers of decodes that forward passes are recorded for, ascending."""
        return self._graphs.sizes if self._graphs is not None else []

    @property
    def piece_sizes(self) -> list[int]:
        """Numbers of tokens, likewise."""
        return self._pieces.sizes if self._pieces is not None else []

    @property
    def variant(self) -> str:
        """Of the device in the profile key, on CUDA: how its steps are launched, on which their latency hangs."""
        num_decodes, num_tokens = max(self.graph_sizes, default=0), max(self.piece_sizes, default=0)
        launched = f"graphs{num_decodes}x{num_tokens}" if num_decodes or num_tokens else "eager"
        return f"-{launched}-fused" if self._fused_attention else f"-{launched}"

    def kv_regions(self) -> KVRegions | str:
        """See ``Engine.kv_regions``; the layout is the same on every device, for the same forward pass."""
        layout = f"torch {self.spec.model}, {self._model.key_order}"
        return regions_of(self._kv_caches.values(), self.spec.num_blocks, layout)

    def close(self) -> None:
        super().close()
        self._grammars.close()
        self._graphs = self._pieces = None
        self._kv_caches.clear()
        self._buffer = GatherBuffer()
        del self._model
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, sequences: list[Sequence]) -> SampledTokens:
        # Decodes lead, longest first, so that the kernels can group those of like length.
        sequences = sorted(sequences, key=lambda s: (len(s.token_ids) > 1, -s.num_computed_tokens))
        self._grammars.prefetch(sequence.sampling.grammar for sequence in sequences)
        layout = StepLayout.of(sequences, self.spec.num_blocks, self.spec.block_size)
        input_ids = np.array([token for sequence in sequences for token in sequence.token_ids])
        if input_ids.min() < 0 or input_ids.max() >= self.spec.vocab_size:
            raise EngineError(f"a token id is outside the vocabulary of {self.spec.vocab_size}")
        sampling = [i for i, sequence in enumerate(sequences) if sequence.needs_sample]
        scored = [i for i, sequence in enumerate(sequences) if sequence.scored_ids]
        embedded = [i for i, sequence in enumerate(sequences) if sequence.needs_embedding]
        if scored or embedded:
            return self._run_reading(layout, input_ids, sequences, sampling, scored, embedded)
        logits = self._step_logits(layout, input_ids, sampling)
        return self._sample(logits, [sequences[i] for i in sampling])

    def _sample(self, logits: torch.Tensor, sequences: list[Sequence]) -> SampledTokens:
        """``logits``: a row for each sequence."""
        if not sequences:
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()  # the step has ended when its KV is written
            return SampledTokens({}, {})
        return _sampled(logits, sequences, self._grammars, self._seen)

    def _step_logits(self, layout: StepLayout, input_ids: Ints, sampling: list[int]) -> torch.Tensor:
        """[num_sampling, vocab_size], of the last token of the sequences whose numbers ``sampling`` holds."""
        logits = self._graphs.logits(layout, input_ids) if self._graphs is not None else None
        if logits is not None:
            return logits if len(sampling) == len(logits) else logits[sampling]
        metadata, rows = self._metadata(layout), layout.row_ends[sampling] - 1
        if self._pieces is not None:
            logits = self._pieces.logits(metadata, layout, input_ids, rows, self._interruption.check)
            if logits is not None:
                return logits
        token_ids, chosen = (torch.from_numpy(each).to(self._device) for each in (input_ids, rows))
        return self._forward(token_ids, metadata, chosen)

    def _run_reading(
        self,
        layout: StepLayout,
        input_ids: Ints,
        sequences: list[Sequence],
        sampling: list[int],
        scored: list[int],
        embedded: list[int],
    ) -> SampledTokens:
        """A step with hidden states that more is made of than tokens: scores of the sequences whose numbers ``scored``
        holds, and embeddings of those that ``embedded`` holds."""
        sampled_rows, embedded_rows = (layout.row_ends[numbers] - 1 for numbers in (sampling, embedded))
        chunks = [_scored_rows(layout, sequences, i) for i in scored]
        first, last, *others = self._states(layout, input_ids, [sampled_rows, embedded_rows, *chunks])
        scores = {
            sequences[i].request_id: self._scores(states, sequences[i])
            for i, states in zip(scored, others, strict=True)
        }
        embeddings = {sequences[i].request_id: each for i, each in zip(embedded, embeddings_of(last), strict=True)}
        sampled = self._sample(self._model.logits(first), [sequences[i] for i in sampling])
        return with_embeddings(with_scores(sampled, scores), embeddings)

    def _states(self, layout: StepLayout, input_ids: Ints, rows: list[Ints]) -> tuple[torch.Tensor, ...]:
        """Hidden states [num_rows, hidden_size] of the tokens that each of ``rows`` holds the numbers of."""
        metadata = self._metadata(layout)
        chosen = torch.from_numpy(np.concatenate(rows)).to(self._device)
        token_ids = torch.from_numpy(input_ids).to(self._device)
        hidden = self._model.hidden(token_ids, metadata.position_ids, chosen, self._attention_step(metadata))
        return torch.split(hidden, [len(each) for each in rows])

    def _scores(self, states: torch.Tensor, sequence: Sequence) -> bytes | None:
        """None where they are not finite."""
        num_top = sequence.sampling.prompt_logprobs
        assert num_top is not None, "tokens are scored where that is asked for"
        return score_tokens(self._model.logits, states, sequence.scored_ids, num_top)

    def _metadata(self, layout: StepLayout) -> AttentionMetadata:
        kv_cache = next(iter(self._kv_caches.values()))
        return AttentionMetadata.of(layout, kv_cache, fused=self._fused_attention)

    def _forward_decodes(self, input_ids: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return self._forward(input_ids, metadata, torch.arange(len(input_ids), device=self._device))

    def _forward(self, input_ids: torch.Tensor, metadata: AttentionMetadata, rows: torch.Tensor) -> torch.Tensor:
        return self._model(input_ids, metadata.position_ids, rows, self._attention_step(metadata))

    def _attention_step(self, metadata: AttentionMetadata) -> AttentionStep:
        return paged_step(self._kv_caches, metadata, self._buffer, self._interruption.check)


def _scored_rows(layout: StepLayout, sequences: list[Sequence], number: int) -> Ints:
    """Of the tokens that the scored ones follow."""
    sequence = sequences[number]
    start = int(layout.row_ends[number]) - len(sequence.token_ids)
    return np.arange(start, start + len(sequence.scored_ids))


def _sampled(
    logits: torch.Tensor, sequences: list[Sequence], grammars: GrammarMasks, seen: SeenTokens
) -> SampledTokens:
    """``logits``: a row for each sequence."""
    rows = [SampleRow(s.sampling, s.num_computed_tokens + len(s.token_ids), s.history, s.request_id) for s in sequences]
    tokens = sample(logits, rows, grammars, seen)
    sampled = dict(zip([s.request_id for s in sequences], tokens, strict=True))
    failed = {request_id: NOT_FINITE for request_id, token in sampled.items() if token == NO_TOKEN}
    gathered = gather_logprobs(logits, rows, tokens)
    logprobs = {}
    if gathered is not None:
        for sequence, token_ids, values in zip(sequences, *(each.tolist() for each in gathered), strict=True):
            if sequence.sampling.logprobs is not None and sequence.request_id not in failed:
                logprobs[sequence.request_id] = read_logprobs(token_ids, values, sequence.sampling.logprobs)
    return SampledTokens({key: token for key, token in sampled.items() if key not in failed}, logprobs, failed)


def _allocate(model: LoadedModel, block_size: int, num_blocks: int | None, device: torch.device) -> KVCaches:
    blocks_of_layers = {
        layer: (block_size, shape.num_kv_heads, shape.k_dim + shape.v_dim) for layer, shape in model.shapes.items()
    }
    block_bytes = sum(math.prod(block) for block in blocks_of_layers.values()) * model.dtype.itemsize
    blocks = kv_memory_bytes(device) // block_bytes if num_blocks is None else num_blocks
    if blocks < 1:
        raise ConfigError(f"no memory for one KV block of {block_bytes} bytes on {device}")
    try:
        return {layer: zeros((blocks, *block), model.dtype, device) for layer, block in blocks_of_layers.items()}
    except (RuntimeError, OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"no memory for {blocks} KV blocks of {block_bytes} bytes: ask for fewer") from error


def _context(asked: int | None, of_model: int, of_blocks: int) -> int:
    if asked is not None and asked > of_model:
        raise ConfigError(f"a context of {asked} tokens is beyond the model's {of_model}")
    if asked is not None and asked > of_blocks:
        raise ConfigError(f"a context of {asked} tokens does not fit KV blocks for {of_blocks}: ask for more blocks")
    return asked or min(of_model, of_blocks)
