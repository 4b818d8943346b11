"""How long answers are, as far as they have ended."""

FIRST_OUTPUT_TOKENS = 64.0  # of an answer, until some have ended
OUTPUT_SAMPLES = 256  # the mean is that of about so many answers


class OutputLengths:
    """Their mean, of which older answers fade out."""

    def __init__(self) -> None:
        self.mean = FIRST_OUTPUT_TOKENS
        self._num_ended = 0

    def add(self, num_output_tokens: int) -> None:
        """An answer is complete."""
        self._num_ended += 1
        weight = 1 / min(self._num_ended, OUTPUT_SAMPLES)
        self.mean += weight * (num_output_tokens - self.mean)
