"""The online requests of a simulation, as they arrive."""

from collections.abc import Sequence

from loadgen.workload.prompts import PromptMaker
from loadgen.workload.traces import TraceRequest
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.scheduling.request import Kind

ONLINE_SEEDS = 1 << 23  # apart from those of offline requests


class Arrivals:
    """A trace's requests, each made when it is due."""

    def __init__(
        self, requests: Sequence[TraceRequest], prompts: PromptMaker[int], client_ids: Sequence[str] | None = None
    ) -> None:
        """``client_ids``: whom each request is from; None is one client."""
        self._requests = requests
        self._prompts = prompts
        self._client_ids = client_ids
        self._num_taken = 0

    def __len__(self) -> int:
        """All of them."""
        return len(self._requests)

    @property
    def next_s(self) -> float | None:
        """When the next is due; None where none is left."""
        return self._requests[self._num_taken].arrival_s if self._num_taken < len(self._requests) else None

    def take(self) -> GenerateRequest:
        """The next. Raises IndexError where none is left."""
        index = self._num_taken
        request = self._requests[index]
        self._num_taken += 1
        token_ids = self._prompts.prompt(request, index)
        assert isinstance(token_ids, list)
        sampling = SamplingParams(
            max(1, request.num_output_tokens), temperature=0.0, seed=ONLINE_SEEDS + index, ignore_eos=True
        )
        client_id = self._client_ids[index] if self._client_ids else ""
        return GenerateRequest(
            f"online-{index}", Kind.ONLINE, token_ids, sampling, request.arrival_s, client_id=client_id
        )
