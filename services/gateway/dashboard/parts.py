"""What the page shows: a stack as a whole, and of several models each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from services.gateway.dashboard.history import History
from services.gateway.http.tally import HttpTally
from shared.protocol.executors import Heartbeat
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.online import OnlineServed
from shared.watch.stack_watch import StackWatch

ALL = ""  # the part that is the whole
MAX_EXECUTORS = 4096  # whose models are known; those that were heard of last


class Part:
    """``model``: its name in the stack, or ALL; ``label``: as clients call it."""

    def __init__(self, model: str, label: str, tally: HttpTally) -> None:
        """``tally``: of this gateway's own answers, to all models."""
        self.model = model
        self.label = label
        self.watch = StackWatch()
        self.history = History(tally)
        self.num_rows_told = 0


class Parts:
    """Told what comes over the bus, as a ``StackWatch`` is; each part hears what is its own. With one model there is
    the whole alone."""

    def __init__(self, names: Mapping[str, str], tally: HttpTally) -> None:
        """``names``: what clients call each model, by its name in the stack; the first is the default."""
        self.names = names
        self.whole = Part(ALL, ", ".join(names.values()), tally)
        own = names.items() if len(names) > 1 else ()
        self._own = {model: Part(model, label, tally) for model, label in own}
        self._default = next(iter(names))
        self._models: dict[str, str] = {}  # by executor

    def __iter__(self) -> Iterator[Part]:
        return iter((self.whole, *self._own.values()))

    def of(self, label: str) -> Part:
        """That of the model which clients call so; the whole where none is."""
        return next((part for part in self._own.values() if part.label == label), self.whole)

    def label_of(self, model: str) -> str:
        """What clients call a model of the stack, where there are several."""
        return self.names.get(model, model) if self._own else ""

    def model_of(self, record: BatchRecord) -> str:
        """By its name in the stack."""
        return record.model_name or self._default

    def on_heartbeat(self, now_s: float, beat: Heartbeat) -> None:
        self._models.pop(beat.info.executor_id, None)
        self._models[beat.info.executor_id] = beat.info.spec.model
        if len(self._models) > MAX_EXECUTORS:
            del self._models[next(iter(self._models))]
        for watch in self._watches(beat.info.spec.model):
            watch.on_heartbeat(now_s, beat)

    def on_served(self, now_s: float, served: OnlineServed) -> None:
        for watch in self._watches(self._models.get(served.executor_id, ALL)):
            watch.on_served(now_s, served)

    def on_budget(self, profile_key: str, record: BudgetRecord | None) -> None:
        for part in self:
            part.watch.on_budget(profile_key, record)

    def on_batch(self, now_s: float, batch_id: str, record: BatchRecord | None) -> None:
        own = None if record is None else self.model_of(record)
        for part in self:
            if part is self.whole or own in (None, part.model):
                part.watch.on_batch(now_s, batch_id, record)

    def has_beaten(self, executor_ids: Iterable[str], num_beats: int) -> bool:
        return self.whole.watch.has_beaten(executor_ids, num_beats)

    def _watches(self, model: str) -> Iterator[StackWatch]:
        yield self.whole.watch
        if model in self._own:
            yield self._own[model].watch
