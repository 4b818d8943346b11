"""What events carry, for clients that break lines where Python's texts do."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.openai.completions.answers import AnswerHead
from shared.openai.completions.chunks import ChunkWriter
from shared.openai.completions.requests import ENDPOINTS
from shared.openai.event_json import event_json
from shared.openai.responses.events import ResponseEvents
from tests.shared.openai.responses.test_answers import begun

ENDS = "".join(each for each in map(chr, range(sys.maxunicode)) if len(f"a{each}b".splitlines()) > 1)
TEXTS = st.text(st.sampled_from(ENDS) | st.characters(codec="utf-8"))


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS)))
def test_it_is_the_same_json_on_one_line(value: Any) -> None:
    data = event_json(value)
    assert json.loads(data) == value and len(data.decode().splitlines()) == 1


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_chunk_is_one_line_whatever_its_text(endpoint: str) -> None:
    writer = ChunkWriter(AnswerHead(endpoint, "id", 0, f"m{ENDS}"), include_usage=True)
    for data in (writer.text(f"a{ENDS}b"), writer.fail(f"not{ENDS}now"), writer.finish("stop")):
        line, *rest = data.decode().splitlines()
        assert line.startswith("data: {") and json.loads(line.removeprefix("data: ")) and rest == [""]


def test_an_event_of_a_response_is_two_lines_whatever_its_text() -> None:
    events = ResponseEvents(begun(), lambda: 0.0)
    for data in (events.start(), events.text(f"a{ENDS}b"), events.finish("stop")):
        for line in data.decode().splitlines():
            assert line.startswith("event: ") or not line or json.loads(line.removeprefix("data: "))
