"""What an offline-queue reads before it is at work."""

from pathlib import Path

import llguidance
import pytest

from services.offline_queue.__main__ import prepared
from services.offline_queue.settings import OfflineQueueSettings
from shared.clock import SystemClock
from shared.openai.grammars import schema_grammar
from shared.text.tokenizer import Tokenizer


def test_the_first_grammar_of_a_batch_finds_the_vocabulary_ready(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making it ready holds up every plan of an offline-queue at work, also from a thread."""
    read: list[Tokenizer] = []
    from_folder = Tokenizer.from_folder

    def note(folder: Path) -> Tokenizer:
        read.append(from_folder(folder))
        return read[-1]

    monkeypatch.setattr(Tokenizer, "from_folder", note)
    assert callable(prepared(OfflineQueueSettings(str(model_folder)), SystemClock()))
    monkeypatch.delattr(llguidance, "LLTokenizer")
    assert schema_grammar({"type": "integer"}, read[0], "response_format")
