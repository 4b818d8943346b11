"""Functions in /v1/responses over real HTTP, bus and executor with the official client."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList

from shared.text.tool_format import ToolFormat
from tests.services.gateway.gateway_rig import MODEL, GatewayRig
from tests.services.gateway.saying_engine import saying
from tests.services.gateway.tool_models import CALLS, TIME, WEATHER, make_model

CALL, OTHER_CALL = CALLS[ToolFormat.HERMES]
THOUGHT = "Which city?"
SAYINGS = (f"I look.\n{CALL}\n{OTHER_CALL}", "It is 18 degrees.", f"<think>\n{THOUGHT}\n</think>\n\n{CALL}")
QUESTION = "What is the weather in Paris?"
TOOLS: Any = [{"type": "function", "strict": False} | tool["function"] for tool in (WEATHER, TIME)]


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template has the marks of reasoning."""
    made = make_model(model_folder, ToolFormat.HERMES, tmp_path_factory.mktemp("model"))
    with (made / "chat_template.jinja").open("a") as template:
        template.write("{#- <think></think> #}")
    return made


@pytest.fixture(scope="module")
def rig(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway("--model-path", str(folder))
        yield made


@pytest.fixture
async def client(rig: GatewayRig, folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with saying(SAYINGS, folder, rig) as made:
        yield made


def asked(number: int, input: Any = QUESTION, **fields: Any) -> Any:
    return {"model": MODEL, "input": input, "tools": TOOLS, "extra_body": {"seed": number}} | fields


def outputs_of(response: Any) -> Any:
    """What its functions return."""
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "Paris"}),
        ("get_time", {}),
    ]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "18"} for call in calls]


async def test_calls_are_answered_by_their_outputs(client: openai.AsyncOpenAI) -> None:
    """The same by what is sent back as by what is stored."""
    first = await client.responses.create(**asked(0))
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert (first.output_text, first.status) == ("I look.", "completed")
    outputs = outputs_of(first)
    sent_back = [{"role": "user", "content": QUESTION}, *[item.to_dict() for item in first.output], *outputs]
    second = await client.responses.create(**asked(1, sent_back))
    stored = await client.responses.create(**asked(1, outputs, previous_response_id=first.id))
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    referring = await client.responses.create(**asked(1, [sent_back[0], *references, *outputs]))
    assert referring.usage is not None and second.usage is not None
    assert referring.usage.input_tokens == second.usage.input_tokens
    assert second.output_text == stored.output_text == SAYINGS[1]
    assert second.usage is not None and stored.usage is not None and first.usage is not None
    assert second.usage.input_tokens == stored.usage.input_tokens > first.usage.input_tokens
    assert await client.responses.retrieve(first.id) == first
    shown = [item async for item in client.responses.input_items.list(stored.id, order="asc")]
    kinds = ["message", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert [item.type for item in shown] == kinds
    assert len({item.id for item in shown}) == len(kinds)
    raw = await client.responses.input_items.with_raw_response.list(stored.id)
    ResponseItemList.model_validate_json(raw.text, strict=True)
    again = [item.to_dict() for item in shown]
    shown_back = await client.responses.create(**asked(1, again))
    assert shown_back.usage is not None and shown_back.usage.input_tokens == second.usage.input_tokens


async def test_the_clients_stream_helper_puts_calls_together(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(**asked(0)) as stream:
        found = [event async for event in stream]
        final = await stream.get_final_response()
    outputs_of(final)
    assert final.output_text == "I look." and [event.sequence_number for event in found] == list(range(len(found)))
    deltas = [event for event in found if event.type == "response.function_call_arguments.delta"]
    assert [json.loads(event.snapshot) for event in deltas] == [{"city": "Paris"}, {}]
    answered = await client.responses.create(**asked(1, outputs_of(final), previous_response_id=final.id))
    assert answered.output_text == SAYINGS[1]


async def test_a_thought_is_an_item_that_is_stored_and_sent_back(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**asked(2))
    thought, call = first.output
    assert thought.type == "reasoning" and thought.content is not None and call.type == "function_call"
    assert ([part.text for part in thought.content], first.output_text) == ([THOUGHT], "")
    async with client.responses.stream(**asked(2)) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.reasoning_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == THOUGHT and [item.type for item in final.output] == ["reasoning", "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18"}
    stored = await client.responses.create(**asked(1, [output], previous_response_id=first.id))
    items = [{"role": "user", "content": QUESTION}, thought.to_dict(), call.to_dict(), output]
    sent_back = await client.responses.create(**asked(1, items))
    for answered in (stored, sent_back):
        assert answered.output_text == SAYINGS[1]
        shown = [item async for item in client.responses.input_items.list(answered.id, order="asc")]
        assert [item.type for item in shown] == ["message", "reasoning", "function_call", "function_call_output"]


async def test_the_tokens_of_an_input_are_those_of_its_response(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**asked(0))
    counted = await client.responses.input_tokens.count(model=MODEL, input=QUESTION, tools=TOOLS)
    assert first.usage is not None and counted.input_tokens == first.usage.input_tokens
    assert counted.object == "response.input_tokens"
    options: Any = {
        "input": outputs_of(first),
        "tools": TOOLS,
        "previous_response_id": first.id,
        "instructions": "Be brief.",
    }
    second = await client.responses.create(model=MODEL, **options)
    counted = await client.responses.input_tokens.count(model=MODEL, **options)
    assert second.usage is not None and counted.input_tokens == second.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_tokens.count(model=MODEL, input="x", previous_response_id="resp_0")


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "file_search", "vector_store_ids": ["a"]}])
async def test_other_tools_are_refused(client: openai.AsyncOpenAI, tool: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="only functions are") as refused:
        await client.responses.create(**asked(0, tools=[*TOOLS, tool]))
    assert (refused.value.param, refused.value.code) == ("tools[2].type", "unsupported_value")
