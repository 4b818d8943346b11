"""Which of several executors gets the next online request: the one that is expected to answer it first.

What an executor has to do already and how much of the prompt its prefix cache spares it are times by its latency
model, so that a long shared prefix outweighs a longer queue exactly where it saves more time: the weighing of prefix
reuse against load of Preble's E2 (Srivatsa et al., ICLR 2025), with predicted times for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.latency.revisable import RevisableFeatures
from shared.scheduling.kv.prefix_cache import PrefixCache
from shared.scheduling.placement.prompt import Prompt, SentPrompts
from shared.scheduling.request import Kind

TOKEN_COUNTS = LinearLatencyModel(0, 1, 0, 0, 0, 0, 1)  # where no model is fitted yet: each token counts the same


@dataclass(slots=True, eq=False)
class RoutingTarget:
    """One incarnation of an executor, and what is known of its online requests: those that went there from here as
    they are, those of others as of the executor's last word."""

    executor_id: str
    epoch: str
    max_num_batched_tokens: int  # of a step
    block_size: int  # tokens of a KV block
    num_blocks: int
    cache: PrefixCache  # as far as it is known here
    _uncomputed: SentPrompts = field(default_factory=SentPrompts)
    _num_given_blocks: int = 0
    _sent: RevisableFeatures = field(default_factory=RevisableFeatures)
    _others: BatchFeatures = field(default_factory=BatchFeatures)

    @property
    def num_given_blocks(self) -> int:
        """Of the prompts that were sent there, as many as it has room for."""
        return min(self._num_given_blocks, self.num_blocks)

    def num_cached_tokens(self, prompt: Prompt) -> int:
        """How much of the prompt's beginning should be there when its turn comes."""
        hashes = prompt.hashes(self.block_size)
        num_cached = self.cache.look_up(hashes, Kind.ONLINE).num_blocks
        return max(num_cached, self._uncomputed.num_leading(hashes)) * self.block_size

    def observe(self, work: BatchFeatures) -> None:
        """The executor's own word on all its online requests: as prefill what is not computed of their prompts, as
        decode those that generate."""
        sent = self._sent
        self._others = BatchFeatures(
            max(0, work.prefill_tokens - sent.prefill_tokens),
            max(0, work.prefill_requests - sent.prefill_requests),
            max(0, work.decode_kv_tokens - sent.decode_kv_tokens),
            max(0, work.decode_requests - sent.decode_requests),
            max(0, work.prefill_pairs - sent.prefill_pairs),
            work.longest_decode if work.decode_requests > sent.decode_requests else 0,  # whoever's it is
        )

    def work(self) -> BatchFeatures:
        """What its online requests have it do, in the terms of ``observe``."""
        sent, others = self._sent, self._others
        return BatchFeatures(
            sent.prefill_tokens + others.prefill_tokens,
            sent.prefill_requests + others.prefill_requests,
            sent.decode_kv_tokens + others.decode_kv_tokens,
            sent.decode_requests + others.decode_requests,
            sent.prefill_pairs + others.prefill_pairs,
            max(sent.longest_decode, others.longest_decode),
        )

    def answer_ms(self, prompt: Prompt, model: LatencyModel, num_output_tokens: float) -> float:
        """Until a request that is sent now has ``num_output_tokens``: the prompts before it, then its own but for what
        should be cached, then decode steps beside all that is there. Constant time but for the prefix, which takes as
        long as it is."""
        work = self.work()
        num_cached = self.num_cached_tokens(prompt)
        num_new = prompt.num_tokens - num_cached
        decodes = BatchFeatures(
            decode_kv_tokens=work.decode_kv_tokens + work.prefill_tokens + prompt.num_tokens,
            decode_requests=work.decode_requests + work.prefill_requests + 1,
            longest_decode=max(work.longest_decode, prompt.num_tokens),
        )
        return (
            self._prefill_ms(model, work.prefill_tokens, work.prefill_requests, work.prefill_pairs)
            + self._prefill_ms(model, num_new, 1, attention_pairs(num_new, num_cached))
            + num_output_tokens * model.predict_ms(decodes)
        )

    def wait_ms(self, model: LatencyModel, num_output_tokens: float, max_num_seqs: int) -> float:
        """Until a request that is sent now has its turn: the prompts before it; and where no place is left, of
        ``max_num_seqs`` or as many as have room in the KV cache, until enough of those before it have their
        ``num_output_tokens``. Constant time."""
        work = self.work()
        prompts_ms = self._prefill_ms(model, work.prefill_tokens, work.prefill_requests, work.prefill_pairs)
        num_before = work.prefill_requests + work.decode_requests
        if not num_before:
            return prompts_ms
        mean_tokens = max(1.0, (work.prefill_tokens + work.decode_kv_tokens) / num_before + num_output_tokens)
        num_places = min(max_num_seqs, max(1, int(self.num_blocks * self.block_size / mean_tokens)))
        num_to_end = max(0, num_before + 1 - num_places)
        step = BatchFeatures(decode_kv_tokens=int(num_places * mean_tokens), decode_requests=num_places)
        return prompts_ms + num_to_end * num_output_tokens * model.predict_ms(step) / num_places

    def send(self, prompt: Prompt) -> Route:
        """It counts as loaded by this request until the route's end."""
        num_cached, hashes = self.num_cached_tokens(prompt), prompt.hashes(self.block_size)
        self._uncomputed.add(hashes)
        self._num_given_blocks += len(hashes)
        return Route(self, prompt.num_tokens - num_cached, num_cached, self._sent, hashes)

    def take_over(self, route: Route) -> Route:
        """A request of another executor goes on here, with its KV: it counts as answered, and there no more."""
        route.end()
        moved = Route(self, 0, route.num_tokens, self._sent, ())
        moved.answered()
        return moved

    def computed(self, hashes: Sequence[bytes]) -> None:
        """A prompt with these blocks is not on its way any more: its executor says what it has of it."""
        self._uncomputed.remove(hashes)

    def _prefill_ms(self, model: LatencyModel, num_tokens: int, num_requests: int, pairs: int) -> float:
        """In steps of equal size, as few as there can be."""
        num_steps = -(-num_tokens // self.max_num_batched_tokens)
        if num_steps == 0:
            return 0.0
        step = BatchFeatures(
            prefill_tokens=-(-num_tokens // num_steps),
            prefill_requests=-(-num_requests // num_steps),
            prefill_pairs=-(-pairs // num_steps),
        )
        return num_steps * model.predict_ms(step)


@dataclass(slots=True)
class Route:
    """One request at its executor: a prompt to compute until ``answered``, a decode until ``end``."""

    target: RoutingTarget
    num_new_tokens: int
    num_cached_tokens: int
    _load: RevisableFeatures  # of the target, which it becomes a part of
    _hashes: Sequence[bytes]  # of the prompt's blocks
    _is_answered: bool = False
    _has_ended: bool = False

    def __post_init__(self) -> None:
        self._load.add_prefill(self.num_new_tokens, self.num_cached_tokens)

    @property
    def num_tokens(self) -> int:
        """Of the prompt."""
        return self.num_new_tokens + self.num_cached_tokens

    def answered(self) -> None:
        """Its first token has come; a later call changes nothing."""
        if not self._is_answered and not self._has_ended:
            self._is_answered = True
            self._leave_prefill()
            self._load.add_decode(self.num_tokens)

    def end(self) -> None:
        """It is at this executor no more; a second call changes nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_answered:
            self._load.remove_decode(self.num_tokens)
        else:
            self._leave_prefill()

    def _leave_prefill(self) -> None:
        self._load.remove_prefill(self.num_new_tokens, self.num_cached_tokens)
        self.target.computed(self._hashes)


@dataclass(frozen=True, slots=True)
class Option:
    """An executor that would take the request. ``model``: None where none is fitted yet."""

    target: RoutingTarget
    model: LatencyModel | None


def choose(options: Sequence[Option], prompt: Prompt, num_output_tokens: float) -> RoutingTarget | None:
    """The executor that should answer first; of equals the one whose cache was given least, then by id. None without
    options.

    ``num_output_tokens``: of an answer, on average. Where an executor has no latency model yet, all are compared by
    token counts.
    """
    has_models = all(option.model is not None for option in options)

    def rank(option: Option) -> tuple[float, int, str]:
        model = option.model if has_models and option.model is not None else TOKEN_COUNTS
        target = option.target
        return target.answer_ms(prompt, model, num_output_tokens), target.num_given_blocks, target.executor_id

    return min(options, key=rank).target if options else None
