"""Online requests of whose answers nothing is there yet, how long one more would wait, and who was not let in. No clock
in it."""

from collections import Counter, deque

WINDOW_S = 10.0


class WaitingRoom:
    """Times are monotonic seconds and never go back. The wait is told by Little's law, and only where somebody has been
    waiting for the whole window: then what started within it is what the executors can do. A queue that has just come
    to be says nothing about them."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, int]] = {}  # request id -> client, prompt tokens
        self._clients: Counter[str] = Counter()
        self._started: deque[tuple[float, int]] = deque()  # within the window: when, and prompt tokens
        self._num_started_tokens = 0
        self._refused_s: deque[float] = deque()  # within the window, those that were not let in
        self._since_s: float | None = None  # somebody waits all the time since then
        self._last_start_s = 0.0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def has(self, client_id: str) -> bool:
        """Whether a request of this client waits."""
        return client_id in self._clients

    def enter(self, request_id: str, client_id: str, num_tokens: int, now_s: float) -> None:
        """It waits from now on; a prompt of ``num_tokens``, at least 1."""
        if not self._waiting:
            self._since_s = now_s
            self._started.clear()
            self._num_started_tokens = 0
        self._waiting[request_id] = client_id, num_tokens
        self._clients[client_id] += 1
        self.num_tokens += num_tokens

    def start(self, request_id: str, now_s: float) -> None:
        """It has its first token, or its answer where that has none; nothing where it does not wait."""
        if request_id in self._waiting:
            _, num_tokens = self._waiting[request_id]
            self._started.append((now_s, num_tokens))
            self._last_start_s = now_s
            self._num_started_tokens += num_tokens
            self._forget_started(now_s)
            self.leave(request_id)

    def leave(self, request_id: str) -> None:
        """It ended without an answer; nothing where it does not wait."""
        if request_id not in self._waiting:
            return
        client_id, num_tokens = self._waiting.pop(request_id)
        self.num_tokens -= num_tokens
        self._clients[client_id] -= 1
        if not self._clients[client_id]:
            del self._clients[client_id]
        if not self._waiting:
            self._since_s = None

    def refuse(self, now_s: float) -> None:
        """One more was not let in."""
        self._refused_s.append(now_s)
        self._forget_refused(now_s)

    def crowd(self, now_s: float) -> float:
        """How many times longer the wait would be if all that came within the window had been let in: those and who
        has started, over who has started; 1 where nobody has."""
        self._forget_started(now_s)
        self._forget_refused(now_s)
        return 1 + len(self._refused_s) / len(self._started) if self._started else 1.0

    def standing_s(self, now_s: float) -> float:
        """For how long somebody has been waiting all the time; 0 where nobody waits."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def expected_wait_s(self, now_s: float) -> float | None:
        """For one more request; without a start in the window, the time without one. None where too little is known."""
        if self._since_s is None or now_s - self._since_s < WINDOW_S:
            return None
        self._forget_started(now_s)
        if not self._num_started_tokens:
            return now_s - max(self._since_s, self._last_start_s)
        return self.num_tokens * WINDOW_S / self._num_started_tokens

    def _forget_started(self, now_s: float) -> None:
        while self._started and self._started[0][0] <= now_s - WINDOW_S:
            self._num_started_tokens -= self._started.popleft()[1]

    def _forget_refused(self, now_s: float) -> None:
        while self._refused_s and self._refused_s[0] <= now_s - WINDOW_S:
            self._refused_s.popleft()
