"""Fair between clients, by the service that each has received."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from shared.scheduling.orders.online.order import ClientCounters, OnlineOrder
from shared.scheduling.request import Request

MIN_CLIENTS_TO_PRUNE = 1024
MOST_COUNTED = 1e9  # then all count from where a newcomer would: what is told of them is bounded


class _Place(NamedTuple):
    """As in a request table: preempted requests by their first start, then those that have never run by arrival."""

    is_new: bool
    number: int


class Vtc(OnlineOrder):
    """Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, Alg. 2).

    A client's counter grows by ``weight_input`` for each prompt token when a request enters for the first time, and by
    ``weight_output`` for each generated token, both over the client's own weight, that of its newest request: one with
    weight 2 gets twice the service of one with 1 while both have requests waiting (the paper's weighted VTC). The next
    request is the first of the waiting client with the smallest counter, ties by arrival. A client that had nothing
    waiting is lifted to the smallest counter of those that have (or, where none has, of the last that had), so that
    nobody saves up idle time. Between two clients that always have requests waiting, counters differ by at most
    max(weight_input * longest prompt, weight_output * tokens of a batch) over the smaller of their weights.
    """

    counts_output: ClassVar[bool] = True

    def __init__(self, weight_input: float = 1.0, weight_output: float = 2.0) -> None:
        """Raises ValueError for a negative weight, or where both are 0."""
        if min(weight_input, weight_output) < 0 or weight_input + weight_output == 0:
            raise ValueError(f"weights must not be negative, nor both 0: {weight_input:g}, {weight_output:g}")
        self._weight_input = weight_input
        self._weight_output = weight_output
        self._tokens: dict[str, float] = {}
        self._weights: dict[str, float] = {}  # of clients whose weight is not 1
        self._num_held: dict[str, int] = {}  # requests by client
        self._queues: dict[str, dict[str, Request]] = {}  # waiting requests in order, of clients that have any
        self._places: dict[str, _Place] = {}  # of waiting requests among those of all clients
        self._starts: dict[str, int] = {}  # of those that have run, in the order of their first start
        self._num_starts = self._num_waited = 0
        self._last_client_id = ""
        self._prune_at = MIN_CLIENTS_TO_PRUNE

    def add(self, request: Request) -> None:
        self._prune()
        floor = self._floor()
        if floor >= MOST_COUNTED:
            self._count_from(floor)
        self._hold(request)
        self._learn_weight(request)
        if request.is_running:
            self._has_started(request)
        else:
            self._lift(request.client_id)
            self._wait_last(request)

    def start(self, request: Request) -> None:
        self._tokens[request.client_id] += self._input_cost(request) / self._weight_of(request.client_id)
        self._leave(request)
        self._has_started(request)

    def preempt(self, request: Request) -> None:
        self._lift(request.client_id)
        place = self._places[request.request_id] = _Place(False, self._starts[request.request_id])
        queue = list(self._queues.get(request.client_id, {}).values())
        num_ahead = sum(self._places[other.request_id] < place for other in queue)
        queue.insert(num_ahead, request)
        self._queues[request.client_id] = {each.request_id: each for each in queue}

    def remove(self, request: Request) -> None:
        self._starts.pop(request.request_id, None)
        if request.request_id in self._places:
            self._leave(request)
        self._num_held[request.client_id] -= 1
        if not self._num_held[request.client_id]:
            del self._num_held[request.client_id]

    def generate(self, request: Request, num_tokens: int = 1) -> None:
        self._tokens[request.client_id] += self._weight_output * num_tokens / self._weight_of(request.client_id)

    def counters(self) -> ClientCounters:
        told = {**self._num_held, self._last_client_id: 0}
        tokens = {key: self._tokens[key] for key in told if key in self._tokens}
        weights = {key: self._weights[key] for key in tokens if key in self._weights}
        return ClientCounters(tokens, self._last_client_id, weights)

    def restore(self, counters: ClientCounters | None, requests: Iterable[Request]) -> None:
        self._num_held.clear()
        self._queues.clear()
        self._places.clear()
        self._starts.clear()
        if counters is not None:
            self._tokens.update(counters.tokens)
            self._weights = dict(counters.weights)
            self._last_client_id = counters.last_client_id
        for request in requests:
            self._hold(request)
            if request.is_running:
                self._has_started(request)
            else:
                self._wait_last(request)

    def in_order(self, waiting: Mapping[str, Request]) -> Iterator[Request]:
        heads = []
        for client_id, queue in self._queues.items():
            rest = iter(queue.values())
            first = next(rest)
            heads.append((self._tokens[client_id], self._places[first.request_id], first, rest))
        heapq.heapify(heads)
        while heads:
            tokens, _, request, rest = heapq.heappop(heads)
            yield request
            following = next(rest, None)
            if following is not None:
                place = self._places[following.request_id]
                tokens += self._input_cost(request) / self._weight_of(request.client_id)
                heapq.heappush(heads, (tokens, place, following, rest))

    def _hold(self, request: Request) -> None:
        self._num_held[request.client_id] = self._num_held.get(request.client_id, 0) + 1
        self._tokens.setdefault(request.client_id, 0.0)

    def _learn_weight(self, request: Request) -> None:
        """A client's newest request says what its weight is."""
        if request.client_weight == 1.0:
            self._weights.pop(request.client_id, None)
        else:
            self._weights[request.client_id] = request.client_weight

    def _weight_of(self, client_id: str) -> float:
        return self._weights.get(client_id, 1.0)

    def _has_started(self, request: Request) -> None:
        self._num_starts += 1
        self._starts.setdefault(request.request_id, self._num_starts)

    def _wait_last(self, request: Request) -> None:
        self._num_waited += 1
        self._places[request.request_id] = _Place(True, self._num_waited)
        self._queues.setdefault(request.client_id, {})[request.request_id] = request

    def _leave(self, request: Request) -> None:
        queue = self._queues[request.client_id]
        del queue[request.request_id], self._places[request.request_id]
        if not queue:
            del self._queues[request.client_id]
            self._last_client_id = request.client_id

    def _lift(self, client_id: str) -> None:
        if client_id not in self._queues:
            self._tokens[client_id] = max(self._tokens[client_id], self._floor())

    def _floor(self) -> float:
        """What a client starts from, at least."""
        default = self._tokens.get(self._last_client_id, 0.0)
        return min((self._tokens[client_id] for client_id in self._queues), default=default)

    def _input_cost(self, request: Request) -> float:
        return 0.0 if request.was_admitted else self._weight_input * request.num_tokens

    def _count_from(self, floor: float) -> None:
        """Who is far below will be lifted to it before it waits again, in any case."""
        self._tokens = {key: max(-MOST_COUNTED, tokens - floor) for key, tokens in self._tokens.items()}

    def _prune(self) -> None:
        """Forget clients that hold nothing and would be lifted anyway, now and then."""
        if len(self._tokens) < self._prune_at:
            return
        floor = self._floor()
        self._tokens = {
            key: tokens
            for key, tokens in self._tokens.items()
            if tokens > floor or key in self._num_held or key == self._last_client_id
        }
        self._weights = {key: weight for key, weight in self._weights.items() if key in self._tokens}
        self._prune_at = max(MIN_CLIENTS_TO_PRUNE, 2 * len(self._tokens))
