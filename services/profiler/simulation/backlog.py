"""The offline requests of a simulation, waiting to enter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.backlog import OfflinePrompt
from loadgen.prompts import PromptMaker
from loadgen.scaling import fit_context
from loadgen.traces import TraceRequest
from services.profiler.simulation.encoding import PromptEncoder
from shared.protocol.messages import GenerateRequest, SamplingParams
from shared.scheduling.offline_order import BLOCK_SIZE, OfflineOrder
from shared.scheduling.packed_prompt import pack_tokens
from shared.scheduling.request import Kind, Request


class Backlog:
    """In the preset's order. The prompt of a length is made when its request enters: it shares no block with another,
    and so the order gets to know its first block only."""

    def __init__(
        self,
        prompts: Sequence[OfflinePrompt],
        encoder: PromptEncoder,
        maker: PromptMaker[int],
        max_context: int,
        order: OfflineOrder,
    ) -> None:
        """``maker``: makes prompts of lengths; texts too long for ``max_context`` tokens are cut."""
        self._maker = maker
        self._order = order
        self._waiting: dict[str, Request] = {}
        self._prompts: dict[str, tuple[int, list[int] | None]] = {}
        for index, prompt in enumerate(prompts):
            token_ids = encoder.token_ids(prompt)
            wanted = prompt.num_prompt_tokens if token_ids is None else len(token_ids)
            num_tokens, max_tokens = fit_context(wanted or 1, prompt.max_tokens, max_context)
            request_id = f"offline-{index}"
            request = Request(request_id, Kind.OFFLINE, num_tokens, num_tokens + max_tokens)
            known = self._length_prompt(min(num_tokens, BLOCK_SIZE), index) if token_ids is None else token_ids
            self._waiting[request_id] = request
            order.add(request, pack_tokens(known[:num_tokens]))
            self._prompts[request_id] = index, token_ids

    def __len__(self) -> int:
        return len(self._waiting)

    def in_order(self) -> Iterator[Request]:
        """What waits, next first; the backlog must not change while this is read."""
        return self._order.in_order()

    def take(self, request_id: str) -> GenerateRequest:
        """A waiting request enters."""
        self._order.remove(request_id)
        request = self._waiting.pop(request_id)
        index, token_ids = self._prompts.pop(request_id)
        if token_ids is None:
            token_ids = self._length_prompt(request.num_tokens, index)
        max_tokens = request.max_total_tokens - request.num_tokens
        sampling = SamplingParams(max_tokens, temperature=0.0, seed=index, ignore_eos=True)
        return GenerateRequest(request_id, Kind.OFFLINE, token_ids[: request.num_tokens], sampling, 0.0)

    def _length_prompt(self, num_tokens: int, index: int) -> list[int]:
        made = self._maker.prompt(TraceRequest(0.0, num_tokens, 1), index)
        assert isinstance(made, list)
        return made
