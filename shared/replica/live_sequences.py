"""The requests of a replica, from when they come until they leave, whatever steps are made of them."""

from collections.abc import Callable, Container
from collections.abc import Sequence as Seq

from shared.protocol.executors import EngineSpec, ExecutorCounters
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.replica.block_readers import BlockReaders
from shared.replica.foresight import Foresight
from shared.replica.kv_allocation import KVAllocation
from shared.replica.outputs import Ended
from shared.replica.prompt_scores import BlockScores
from shared.replica.sequence import LiveSequence
from shared.replica.suspects import Suspects
from shared.scheduling.kv.request_cache import HashedRequests
from shared.scheduling.limits import Limits, why_never_held
from shared.scheduling.request import ONLINE, Request
from shared.scheduling.strategy import Strategy
from shared.scheduling.table import RequestTable
from shared.text.tokenizer import Tokenizer

SCORES_LOST = "the prefix cache had KV of the prompt whose scores were not kept"
NO_EMBEDDING = "the engine gave no embedding"
MAX_ENGINE_FAILURES = 2  # in a row, the last of them its own doing: then a request ends with an error


class LiveSequences:
    """With their KV, and all that is known of them. What is to become of one while a step has it in flight is noted,
    and done when that step has ended."""

    def __init__(
        self,
        limits: Limits,
        spec: EngineSpec,
        tokenizer: Tokenizer | None,
        strategy: Strategy,
        arrive: Callable[[Request], None],
        on_admitted: Callable[[LiveSequence], None],
    ) -> None:
        """``arrive``: is told of each that comes, before it is in the table; ``on_admitted``: see ``Replica``."""
        self.limits = limits
        self.spec = spec
        self.tokenizer = tokenizer
        self.table = RequestTable(strategy.make_online_order())
        self.pool = strategy.make_pool(limits, spec.num_host_slots)
        self.totals = ExecutorCounters()
        self.kv = KVAllocation(limits, self.table, self.pool, strategy.sharing, self.totals)
        self.by_id: dict[str, LiveSequence] = {}
        sharing = strategy.sharing
        self.cache = HashedRequests(self.pool, limits.block_size, self.block_hashes, sharing.is_by_kind)
        can_foresee = spec.pipeline_depth == 1 and not strategy.sharing.pauses
        self.foresight = Foresight(self.table, self.pool, self.cache, can_foresee)
        self.readers = BlockReaders(self.pool)
        self.suspects = Suspects()
        self.ahead: Container[str] = ()  # ids in the step that began before the last one had ended
        self.aborting: dict[str, None] = {}  # in flight
        self.voided: dict[str, None] = {}  # in flight on KV that another step's failure made worthless
        self.left: dict[str, LiveSequence] = {}  # ended while the step in flight had them: it writes to their blocks
        self.untold: dict[str, None] = {}  # online requests that came since the scheduler was told
        self.asked: dict[str, None] = {}  # to move to another replica, as soon as they can
        self.stay: dict[str, None] = {}  # were to be pushed there, and nobody took them
        self._arrive = arrive
        self._on_admitted = on_admitted
        self._block_scores = BlockScores(self.pool)
        self._ended: list[Ended] = []  # since take_ended

    def admit(self, request: GenerateRequest, hashes: Seq[bytes] = ()) -> None:
        """A known id is ignored; one that can never run here ends at once with an error."""
        if request.request_id in self.by_id:
            return
        sequence = LiveSequence.admit(request, self.spec, self.tokenizer, hashes)
        self._on_admitted(sequence)
        if problem := self.why_never(sequence):
            self._ended.append(Ended(sequence, FinishReason.ERROR, problem))
            return
        reason = sequence.finished_before(self.spec)
        if reason is not None:
            self._ended.append(Ended(sequence, reason))
            return
        if sequence.kind is ONLINE:
            self.untold[request.request_id] = None
        self.add(sequence)

    def why_never(self, sequence: LiveSequence, trusts_output: bool = False) -> str:
        """Why it can never run here; empty where it can. ``trusts_output``: see ``LiveSequence.why_never_run``."""
        never_held = why_never_held(sequence.request, self.limits, self.spec.max_model_len)
        return never_held or sequence.why_never_run(self.spec, trusts_output)

    def add(self, sequence: LiveSequence) -> None:
        """It is here from now on."""
        self._arrive(sequence.request)
        self.by_id[sequence.request_id] = sequence
        self.table.add(sequence.request)

    def end_choice(self, sequence: LiveSequence, reason: FinishReason) -> None:
        """And the request with it, where it is its last."""
        if reason is FinishReason.LENGTH:
            self.foresight.end(sequence.request)
        else:
            self.foresight.err()
        if sequence.begin_next_choice(reason, self.tokenizer):
            self.foresight.err()
            self.kv.restart(sequence.request)
        else:
            self.end(sequence, reason)

    def end_prompt(self, sequence: LiveSequence, embedding: bytes | None) -> None:
        """It is computed, and nothing is to be generated."""
        sequence.embedding = embedding
        if embedding is None and sequence.sampling.embedding is not None:
            self.foresight.err()
            self.end(sequence, FinishReason.ERROR, NO_EMBEDDING)
        else:
            self.end_choice(sequence, FinishReason.LENGTH)

    def end(self, sequence: LiveSequence, reason: FinishReason, error: str = "", may_be_retried: bool = False) -> None:
        """It leaves, and ``take_ended`` tells of it."""
        self.forget(sequence, has_read=reason is not FinishReason.ABORT and not may_be_retried)
        if reason is FinishReason.ABORT:
            self.totals.aborted += 1
        elif sequence.kind is ONLINE:
            self.totals.finished_online += 1
        else:
            self.totals.finished_offline += 1
        self._ended.append(Ended(sequence, reason, error, may_be_retried))

    def forget(self, sequence: LiveSequence, has_read: bool = True) -> None:
        """Its blocks are free once no step writes to them. ``has_read``: what it was to read of the prefix cache."""
        request_id = sequence.request_id
        if request_id in self.ahead:
            self.left[request_id] = sequence
        elif request_id not in self.left:
            self.pool.free(request_id)
        self.table.remove(request_id)
        del self.by_id[request_id]
        self.readers.leave(request_id, has_read)
        self.suspects.forget(request_id)
        self.aborting.pop(request_id, None)
        self.asked.pop(request_id, None)
        self.stay.pop(request_id, None)

    def fail(self, sequence: LiveSequence, why: str, is_to_blame: bool) -> None:
        """A step gave it nothing, and what it was to write was withdrawn: it is computed anew, or has failed too
        often."""
        sequence.num_failures += 1
        if self.aborts(sequence):
            return
        if is_to_blame and sequence.num_failures >= MAX_ENGINE_FAILURES:
            self.end(sequence, FinishReason.ERROR, why, may_be_retried=True)
        elif sequence.request_id in self.ahead:
            self.voided[sequence.request_id] = None
        else:
            self.kv.lose(sequence.request)

    def takes_scores(self, sequence: LiveSequence, scores: dict[str, bytes]) -> bool:
        """Of the part of its prompt that a step has computed, before that counts as computed."""
        start, request_id = sequence.request.num_computed_tokens, sequence.request_id
        if not sequence.shares_scores or start >= sequence.num_prompt_tokens:
            return True
        assert sequence.scoring is not None
        hashes = sequence.block_hashes(self.limits.block_size)
        if self._block_scores.add(sequence.scoring, hashes, start, scores.get(request_id, b"")):
            return True
        self.foresight.err()
        self.kv.withdraw(sequence)
        self.fail(sequence, SCORES_LOST, is_to_blame=True)
        return False

    def leaves(self, sequence: LiveSequence) -> bool:
        """Free its blocks where it had ended before the step that has just run with it."""
        if self.left.get(sequence.request_id) is not sequence:
            return False
        del self.left[sequence.request_id]
        self.foresight.err()
        self.pool.free(sequence.request_id)
        return True

    def recomputes(self, sequence: LiveSequence) -> bool:
        """Take its KV where it was made worthless while it was in flight."""
        if sequence.request_id not in self.voided:
            return False
        del self.voided[sequence.request_id]
        self.foresight.err()
        if not self.aborts(sequence):
            self.kv.lose(sequence.request)
        return True

    def aborts(self, sequence: LiveSequence) -> bool:
        """End it where that was asked for while it was in flight."""
        if sequence.request_id not in self.aborting:
            return False
        del self.aborting[sequence.request_id]
        self.end(sequence, FinishReason.ABORT)
        return True

    def take_ended(self) -> list[Ended]:
        """Who left since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def block_hashes(self, request_id: str) -> list[bytes]:
        """Of a request's full blocks; not to be changed. Raises KeyError for an unknown id."""
        return self.by_id[request_id].block_hashes(self.limits.block_size)
