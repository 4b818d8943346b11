"""What a change of a step's batch earns for its time: Eq. 1, 2 and 4 of Echo, for one request more."""

from dataclasses import dataclass

from shared.latency.features import BatchFeatures
from shared.latency.model import added_ms
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.packing import StepState
from shared.scheduling.request import Request

SHORTEST_MS = 1e-3  # what is shorter counts as this; beside a large batch a small chunk may cost nothing


@dataclass(frozen=True, slots=True)
class Change:
    """One request more, with ``num_tokens``. ``gain``: benefit less punishment; ``rate``: that for each millisecond."""

    request: Request
    num_tokens: int
    gain: float
    rate: float


class Worth:
    """By the policy's benefit of a token. The benefit of a change are the tokens that it has computed. Its punishment
    (Eq. 2) are the tokens evicted that somebody needs again: those of blocks that it takes beyond the free ones that
    nobody wants. Time is what it adds to the batch; to an empty one, what it would add beside the smallest prompt,
    since what a step takes at the least is not due to whoever is first.
    """

    def __init__(self, builder: BatchBuilder, state: StepState) -> None:
        """``builder``: with the online part, and all free blocks that offline work may take."""
        self._builder = builder
        self._benefit = state.policy.benefit
        self._block_size = state.limits.block_size
        self._num_wanted = state.num_wanted_blocks  # of the free ones, but for those that were taken since
        self._model = state.model

    def of_decode(self, request: Request) -> Change:
        """A block serves as many tokens as fit it, so that its eviction is spread over those that are to come."""
        gain = self._benefit.decode - self._punishment(request, 1) / self._num_tokens_of_block(request)
        return Change(request, 1, gain, gain / self._added_ms(1, request.num_computed_tokens))

    def of_chunk(self, request: Request) -> Change | None:
        """The longest that fits; None where none does."""
        builder = self._builder
        num_tokens = builder.longest_chunk(request, builder.latency_budget_ms)
        if num_tokens == 0:
            return None
        gain = self._benefit.prefill * num_tokens - self._punishment(request, num_tokens)
        return Change(request, num_tokens, gain, gain / self._added_ms(num_tokens, builder.num_computed(request)))

    def pays(self, request: Request) -> bool:
        """The rest of a waiting prompt is worth the blocks that it takes; of one that is paused the KV is there, and is
        only brought back."""
        num_tokens = request.num_tokens - self._builder.num_computed(request)
        return request.is_paused or self._benefit.prefill * num_tokens > self._punishment(request, num_tokens)

    def of_block(self, request: Request) -> float:
        """Benefit of a block that lets a started request go on."""
        if request.is_decode:
            return self._benefit.decode * self._num_tokens_of_block(request)
        return self._benefit.prefill * min(self._block_size, request.num_remaining_tokens)

    def of_losing(self, request: Request) -> float:
        """Punishment for taking its KV from it: it is prefilled again."""
        return self._benefit.prefill * request.num_computed_tokens

    def reuse(self, num_blocks: int) -> None:
        """So many free blocks hold the beginning of a request that has entered: they are not to be evicted any more."""
        self._num_wanted = max(0, self._num_wanted - num_blocks)

    @property
    def punishes(self) -> bool:
        """Any change evicts anything that is wanted, or may."""
        return self._num_wanted > 0

    def _punishment(self, request: Request, num_tokens: int) -> float:
        if not self.punishes:
            return 0.0
        num_unwanted = max(0, self._builder.num_blocks_left - self._num_wanted)
        num_evicted = max(0, self._builder.num_taken_blocks(request, num_tokens) - num_unwanted)
        return self._benefit.prefill * self._block_size * num_evicted

    def _num_tokens_of_block(self, request: Request) -> int:
        """Tokens to come that a new block serves."""
        return max(1, min(self._block_size, request.max_total_tokens - request.num_tokens + 1))

    def _added_ms(self, num_tokens: int, num_computed: int) -> float:
        features: BatchFeatures = self._builder.features
        if features.is_empty:
            features = BatchFeatures()
            features.add_prefill(1, 0)
        return max(SHORTEST_MS, added_ms(self._model, features, num_tokens, num_computed))
