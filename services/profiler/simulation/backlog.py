"""The offline requests of a simulation, waiting to enter."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import PromptMaker
from loadgen.workload.scaling import fit_context
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.encoding import PromptEncoder
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.offline_pool import Packed
from shared.scheduling.orders.offline.registry import DEFAULT_BLOCK_SIZE
from shared.scheduling.packed_prompt import pack_tokens, unpack_tokens
from shared.scheduling.request import Kind, Request

Waiting = tuple[Request, Packed]  # as ``OfflinePool.keep`` takes it


@dataclass(frozen=True, slots=True)
class BacklogPrompt:
    """``packed``: the tokens of a text; of a length, those of its first block, which no other prompt begins with."""

    num_tokens: int
    max_tokens: int
    packed: bytes
    is_length: bool


class PreparedBacklog:
    """Prompts read and encoded once, for any number of runs."""

    def __init__(
        self, prompts: Sequence[OfflinePrompt], encoder: PromptEncoder, maker: PromptMaker[int], max_context: int
    ) -> None:
        """``maker``: makes prompts of lengths; texts too long for ``max_context`` tokens are cut."""
        self._maker = maker
        self.prompts: list[BacklogPrompt] = []
        for index, prompt in enumerate(prompts):
            token_ids = encoder.token_ids(prompt)
            wanted = prompt.num_prompt_tokens if token_ids is None else len(token_ids)
            num_tokens, max_tokens = fit_context(wanted or 1, prompt.max_tokens, max_context)
            known = self._of_length(min(num_tokens, DEFAULT_BLOCK_SIZE), index) if token_ids is None else token_ids
            packed = pack_tokens(known[:num_tokens])
            self.prompts.append(BacklogPrompt(num_tokens, max_tokens, packed, token_ids is None))

    def __len__(self) -> int:
        return len(self.prompts)

    def token_ids(self, index: int) -> list[int]:
        """The whole prompt."""
        prompt = self.prompts[index]
        return self._of_length(prompt.num_tokens, index) if prompt.is_length else unpack_tokens(prompt.packed)

    def _of_length(self, num_tokens: int, index: int) -> list[int]:
        made = self._maker.prompt(TraceRequest(0.0, num_tokens, 1), index)
        assert isinstance(made, list)
        return made


class Backlog:
    """One run's requests, as they come into the pool. The prompt of a length is made when its request enters an
    executor: it shares no block with another, and so the order gets to know its first block only."""

    def __init__(self, prepared: PreparedBacklog, wave_size: int | None = None) -> None:
        """``wave_size``: so many are submitted at a time, the next when all of them have ended (BROS section 7.1);
        None submits all at once."""
        self._prepared = prepared
        self._wave_size = wave_size or max(1, len(prepared))
        self._num_submitted = 0
        self._num_open = 0  # submitted, and not ended

    def __len__(self) -> int:
        """All of them."""
        return len(self._prepared)

    def begin(self) -> list[Waiting]:
        """What waits from the start."""
        return self._submit(0.0)

    def end(self, now_s: float) -> list[Waiting]:
        """One has ended; what comes then."""
        self._num_open -= 1
        return [] if self._num_open else self._submit(now_s)

    def _submit(self, now_s: float) -> list[Waiting]:
        """The next wave."""
        start, end = self._num_submitted, min(self._num_submitted + self._wave_size, len(self._prepared))
        self._num_submitted = end
        self._num_open += end - start
        return [self._waiting(index, now_s) for index in range(start, end)]

    def _waiting(self, index: int, now_s: float) -> Waiting:
        prompt, request_id = self._prepared.prompts[index], f"offline-{index}"
        total = prompt.num_tokens + prompt.max_tokens
        request = Request(request_id, Kind.OFFLINE, prompt.num_tokens, total, arrival_s=now_s)
        return request, _PackedPrompt(self._prepared, index, now_s)


@dataclass(frozen=True, slots=True)
class _PackedPrompt:
    """What the pool keeps of a request that waits."""

    prepared: PreparedBacklog
    index: int
    arrival_s: float

    @property
    def prompt(self) -> bytes:
        return self.prepared.prompts[self.index].packed

    def unpack(self) -> GenerateRequest:
        index, prepared = self.index, self.prepared
        max_tokens = prepared.prompts[index].max_tokens
        sampling = SamplingParams(max_tokens, temperature=0.0, seed=index, ignore_eos=True)
        token_ids = prepared.token_ids(index)
        return GenerateRequest(f"offline-{index}", Kind.OFFLINE, token_ids, sampling, self.arrival_s)
