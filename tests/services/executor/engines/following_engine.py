"""An engine without a model that takes steps ahead, and whose tokens depend on every KV slot that a sequence reads."""

from msgspec.structs import replace

from shared.protocol.executors import EngineSpec
from shared.replica.engine import TO_COME, StepBatch, StepResult
from tests.services.executor.engines.slot_engine import GARBAGE, SlotEngine

NEVER = 1e-300  # a rate


class FollowingEngine(SlotEngine):
    """Steps fail, rows of them get no token, and those that may be interrupted are, each at a rate of its own. What
    they wrote is garbage then."""

    def __init__(
        self, spec: EngineSpec, fail: float = 0.0, fail_row: float = 0.0, interrupt: float = 0.0, seed: int = 0
    ) -> None:
        spec = replace(spec, takes_steps_ahead=True, is_interruptible=True)
        super().__init__(spec, fail=fail or (NEVER if fail_row else 0.0), seed=seed)
        self._fail_row, self._interrupt = fail_row, interrupt
        self.num_void = self.num_interrupted = self.num_failed_rows = 0

    def execute(self, batch: StepBatch) -> StepResult:
        for sequence in batch.sequences:
            assert sequence.history is None or TO_COME not in sequence.history.token_ids, "sampled without a token"
        if not self._last_step.take(batch):
            self.num_void += 1
            return StepResult({}, 0.0, is_interrupted=True)
        if batch.may_be_interrupted and self._rng.random() < self._interrupt:
            self.num_interrupted += 1
            self._copy(batch)
            self._spoil(batch, [sequence.request_id for sequence in batch.sequences])
            return StepResult({}, 1.0, is_interrupted=True)
        result = super().execute(batch)
        failed = [request_id for request_id in result.sampled if self._rng.random() < self._fail_row]
        self._spoil(batch, failed)
        for request_id in failed:
            del result.sampled[request_id]
            result.failed[request_id] = "not a number"
        self.num_failed_rows += len(failed)
        self._last_step.keep(batch.step, result.sampled)  # without those
        return result

    def _spoil(self, batch: StepBatch, request_ids: list[str]) -> None:
        for sequence in batch.sequences:
            if sequence.request_id in request_ids:
                self.slots.update(dict.fromkeys(self._write(sequence), GARBAGE))
