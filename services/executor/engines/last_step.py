"""What an engine keeps of the step that it ran last."""

from shared.replica.engine import TO_COME, StepBatch

ANY_TOKEN = 0  # for a row that got none: what comes of it is not looked at


class LastStep:
    """For a step that was built before the one that it follows had ended. Of an engine that runs one step at a time:
    ``take`` when one begins, ``keep`` when it has ended well."""

    def __init__(self) -> None:
        self._step: int | None = None  # None: the last one has no outcome
        self._sampled: dict[str, int] = {}

    def take(self, batch: StepBatch) -> bool:
        """Put the tokens to come in their places; False where the step that the batch follows has no outcome."""
        step, sampled = self._step, self._sampled
        self._step, self._sampled = None, {}
        if batch.follows is None:
            return True
        if batch.follows != step:
            return False
        for sequence in batch.sequences:
            if sequence.token_ids[-1] == TO_COME:
                sequence.token_ids[-1] = sampled.get(sequence.request_id, ANY_TOKEN)
        return True

    def keep(self, step: int, sampled: dict[str, int]) -> None:
        """It has ended, with these tokens by request id."""
        self._step, self._sampled = step, sampled
