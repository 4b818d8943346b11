"""What a model thinks in a response: an item of its own, which can be sent back."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response

from services.offline_queue.batches.input import BatchInput
from services.offline_queue.batches.results import ResultWriter
from shared.openai.completions.requests import CHAT, parse_completion
from shared.openai.errors import RequestError
from shared.openai.reasoning import Reasoning
from shared.openai.responses.answers import ended, new_response
from shared.openai.responses.events import ResponseEvents
from shared.openai.responses.requests import RESPONSES, ResponseRequest, parse_response
from shared.openai.served_model import ServedModel
from shared.openai.tools.calls import ToolUse
from shared.protocol.offline.batches import BatchRecord
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.sampling import FinishReason
from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.thinking_model import make_thinking_model
from tests.services.gateway.tool_models import CALLS
from tests.shared.openai.responses.test_answers import USAGE, begun, events, fields_of
from tests.shared.openai.responses.test_calls import check_items

MODEL = ServedModel("tiny", 2048)
MARKED = Reasoning("<think>", "</think>")
TOOLS = ToolUse(ToolFormat.HERMES, ["get_weather"])
CALL = CALLS[ToolFormat.HERMES][0]
THOUGHT: dict[str, Any] = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []}
USER = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def thinking(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(make_thinking_model(model_folder, tmp_path_factory.mktemp("model")))


def parse(tokenizer: Tokenizer, **fields: Any) -> ResponseRequest:
    body = {"model": "tiny", "input": [USER], "seed": 1} | fields
    return parse_response(msgspec.json.encode(body), tokenizer, MODEL)


OUTPUTS = [
    ("<think>\nHm.\n</think>\n\nYes.", None, FinishReason.STOP, ["rs_r1", "msg_r1_1"]),
    (f"<think>Call? {CALL}</think>{CALL}", TOOLS, FinishReason.STOP, ["rs_r1", "fc_r1_1"]),
    (f"<think>Hm.</think>I look.\n{CALL}", TOOLS, FinishReason.STOP, ["rs_r1", "msg_r1_1", "fc_r1_2"]),
    ("<think>Hm", TOOLS, FinishReason.LENGTH, ["rs_r1"]),
    ("<think>Hm.</think>Ye", None, FinishReason.LENGTH, ["rs_r1", "msg_r1_1"]),
    ("Yes.", TOOLS, FinishReason.STOP, ["msg_r1"]),
]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("text", "tools", "reason", "ids"), OUTPUTS)
def test_a_thought_is_an_item_before_the_others(
    text: str, tools: ToolUse | None, reason: FinishReason, ids: list[str], size: int
) -> None:
    first = begun()
    whole = fields_of(ended(first, text, reason, USAGE, 21, tools, MARKED))
    assert [item["id"] for item in whole["output"]] == ids
    *before, last = (item["status"] for item in whole["output"])
    assert set(before) <= {"completed"} and last == whole["status"]
    stream = ResponseEvents(first, lambda: 21.5, tools, MARKED)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    data = stream.start() + b"".join(map(stream.text, pieces)) + stream.finish(reason.value) + stream.end(USAGE)
    found = events(data)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert found[-1]["response"] == whole
    check_items(found, whole["output"])


def test_a_thought_goes_back_with_what_was_said_behind_it(thinking: Tokenizer) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "Yes."}
    encrypted = {"type": "reasoning", "encrypted_content": "x", "summary": []}
    asked = parse(thinking, input=[USER, THOUGHT, said, USER, encrypted, said, THOUGHT])
    thought = {"reasoning": "Hm."}
    messages = [USER, said | thought, USER, said, {"role": "assistant", "content": ""} | thought]
    assert asked.input == messages
    chat = {"model": "tiny", "messages": messages, "seed": 1}
    assert asked.completion == parse_completion(CHAT, msgspec.json.encode(chat), thinking, MODEL)
    with pytest.raises(RequestError, match="takes no tools"):
        parse(thinking, input=[USER, THOUGHT, call])


def test_how_hard_it_is_to_think_is_told_to_the_template(thinking: Tokenizer) -> None:
    asked = parse(thinking, reasoning={"effort": "none", "summary": "auto"})
    chat = {"model": "tiny", "messages": [USER], "seed": 1, "reasoning_effort": "none"}
    assert asked.completion == parse_completion(CHAT, msgspec.json.encode(chat), thinking, MODEL)
    assert asked.completion.prompt_token_ids != parse(thinking).completion.prompt_token_ids
    told = fields_of(new_response(asked, "r1", 17))
    assert told["reasoning"] == {"effort": "none", "summary": "auto"}


def test_a_batch_line_answers_with_its_thought(thinking: Tokenizer) -> None:
    record = BatchRecord("batch_1", RESPONSES, "file-1", "24h", 1, 2, "in_progress", model="tiny")
    body = {"model": "tiny", "input": [USER]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": RESPONSES, "body": body}).encode()
    parsed = BatchInput(record, thinking, MODEL).parse([(1, line)])
    result = OfflineResult("batch_1.1", thinking.encode("<think>Hm.</think>Yes."), FinishReason.STOP)
    written = json.loads(ResultWriter(record, "", thinking).output_line(parsed.lines[0], result))
    answer = Response.model_validate(written["response"]["body"])
    assert ([item.type for item in answer.output], answer.output_text) == (["reasoning", "message"], "Yes.")
