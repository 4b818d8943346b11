"""Models as a gateway reads them when it starts."""

from pathlib import Path
from typing import Any

import llguidance
import pytest

from services.gateway.prepared_models import PreparedModel
from shared.openai.errors import RequestError
from shared.openai.grammars import schema_grammar
from shared.settings.other_models import OtherModel


def read(folder: Path) -> PreparedModel:
    return PreparedModel.read(OtherModel("m", str(folder)), (), None)


def test_the_first_grammar_finds_the_vocabulary_ready(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it ready holds up every stream of a gateway at work."""
    prepared = read(model_folder)
    monkeypatch.delattr(llguidance, "LLTokenizer")
    assert schema_grammar({"type": "integer"}, prepared.tokenizer, "response_format")


def test_a_vocabulary_that_fits_no_grammar_is_tried_once_and_serves_all_else(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise ValueError("no bytes")

    monkeypatch.setattr(llguidance, "LLTokenizer", refuse)
    prepared = read(model_folder)
    monkeypatch.delattr(llguidance, "LLTokenizer")
    with pytest.raises(RequestError, match="cannot be matched with a grammar: no bytes"):
        schema_grammar({"type": "integer"}, prepared.tokenizer, "response_format")
    assert prepared.tokenizer.encode("all else")
