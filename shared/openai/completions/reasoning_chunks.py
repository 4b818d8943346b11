"""A chat that is streamed, of a model that thinks before it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.openai.completions.answers import CompletionUsage
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.reasoning import Parted, Reasoning, ReasoningParser
from shared.openai.shown_text import ShownToken


@dataclass
class ReasoningChunks:
    """Reasoning comes in chunks of its own, or where it is not to be shown as empty text; all else as ``writer`` has
    it. Tokens with logprobs, those of the reasoning too, come with the text that is shown next."""

    writer: ChunkWriter
    use: Reasoning

    def __post_init__(self) -> None:
        self._parsers = [ReasoningParser(self.use) for _ in range(self.writer.num_choices)]

    def start(self) -> bytes:
        """As of ``ChunkWriter``."""
        return self.writer.start()

    def text(self, text: str, tokens: Sequence[ShownToken] = (), index: int = 0) -> bytes:
        """As of ``ChunkWriter``."""
        parser = self._parsers[index]
        return self._chunks(parser.push(text), tokens, index, parser.is_inside and self.use.is_shown)

    def finish(self, finish_reason: str, index: int = 0) -> bytes:
        """As of ``ChunkWriter``."""
        rest = self._parsers[index].push("", is_whole=True)
        shown = self._chunks(rest, (), index, False) if any(rest) else b""
        return shown + self.writer.finish(finish_reason, index)

    def end(self, usage: CompletionUsage) -> bytes:
        """As of ``ChunkWriter``."""
        return self.writer.end(usage)

    def fail(self, why: str) -> bytes:
        """As of ``ChunkWriter``."""
        return self.writer.fail(why)

    def _chunks(self, parted: Parted, tokens: Sequence[ShownToken], index: int, thinks_on: bool) -> bytes:
        shown = b""
        if thinks_on or (parted.reasoning and self.use.is_shown):
            shown = self.writer.reasoning(parted.reasoning, tokens, index)
            tokens = ()
        return shown + self.writer.text(parted.content, tokens, index) if parted.content or not shown else shown
