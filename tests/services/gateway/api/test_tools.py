"""Tools over real HTTP, bus and executor with the official client. The model is one that says what it is told to: the
default one is too small to call tools."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.text.tokenizer import Tokenizer
from shared.text.tool_format import ToolFormat
from tests.services.gateway.gateway_rig import MODEL, GatewayRig
from tests.services.gateway.saying_engine import saying
from tests.services.gateway.tool_models import CALLS, TIME, USER, WEATHER, make_model

CALL, OTHER_CALL = CALLS[ToolFormat.HERMES]
HALF_PAIR = CALL.replace("Paris", "\\ud800")
SAYINGS = (CALL, f"I look.\n{CALL}\n{OTHER_CALL}", "Ordinary words.", "<tool_call>no</tool_call>", HALF_PAIR)


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(model_folder, ToolFormat.HERMES, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rig(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_gateway("--model-path", str(folder))
        yield made


@pytest.fixture
async def client(rig: GatewayRig, folder: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with saying(SAYINGS, folder, rig) as made:
        yield made


def asked(number: int, **fields: Any) -> Any:
    return {"model": MODEL, "messages": [USER], "seed": number, "tools": [WEATHER, TIME]} | fields


@pytest.mark.parametrize(("saying", "city"), [(0, "Paris"), (4, "\N{REPLACEMENT CHARACTER}")])
async def test_a_call_is_answered_and_its_result_goes_back(client: openai.AsyncOpenAI, saying: int, city: str) -> None:
    answer = await client.chat.completions.create(**asked(saying))
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": city}
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    follow_up = asked(2, messages=[USER, choice.message.to_dict(), result])
    second = await client.chat.completions.create(**follow_up)
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("Ordinary words.", "stop")
    assert second.usage is not None and answer.usage is not None
    assert second.usage.prompt_tokens > answer.usage.prompt_tokens


async def test_the_clients_stream_helper_puts_calls_together(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(**asked(1)) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    whole = await client.chat.completions.create(**asked(1))
    message, expected = final.choices[0].message, whole.choices[0].message
    assert (
        (message.content, final.choices[0].finish_reason)
        == ("I look.", "tool_calls")
        == (
            expected.content,
            whole.choices[0].finish_reason,
        )
    )
    names = [call.function.name for call in message.tool_calls or []]
    assert names == ["get_weather", "get_time"]
    assert [event.name for event in events if event.type == "tool_calls.function.arguments.done"] == names
    assert len({call.id for call in message.tool_calls or []}) == 2


@pytest.mark.parametrize("saying", [2, 3])
async def test_text_that_is_no_call_is_content(client: openai.AsyncOpenAI, saying: int) -> None:
    whole = (await client.chat.completions.create(**asked(saying))).choices[0]
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == (SAYINGS[saying], None, "stop")
    stream = await client.chat.completions.create(**asked(saying), stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == SAYINGS[saying]


async def test_a_call_that_is_cut_is_content(client: openai.AsyncOpenAI) -> None:
    cut = (await client.chat.completions.create(**asked(0, max_tokens=8))).choices[0]
    assert cut.finish_reason == "length" and not cut.message.tool_calls
    assert cut.message.content and CALL.startswith(cut.message.content)


async def test_choices_call_each_for_itself_and_their_tokens_are_all_told(client: openai.AsyncOpenAI) -> None:
    options = asked(1, n=2, logprobs=True, top_logprobs=0)
    whole = (await client.chat.completions.create(**options)).choices
    streamed: list[dict[str, Any]] = [{"calls": [], "content": "", "tokens": []} for _ in whole]
    async for chunk in await client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            found = streamed[choice.index]
            found["content"] += choice.delta.content or ""
            found["calls"] += choice.delta.tool_calls or []
            found["tokens"] += [entry.token for entry in (choice.logprobs and choice.logprobs.content) or ()]
    for choice, found in zip(whole, streamed, strict=True):
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert found["tokens"] == [entry.token for entry in choice.logprobs.content]
        assert "".join(found["tokens"]) == SAYINGS[1] and found["content"] == choice.message.content == "I look."
        names = [call.function.name for call in choice.message.tool_calls or []]
        assert [call.function.name for call in found["calls"]] == names == ["get_weather", "get_time"]
    assert len({call.id for found in streamed for call in found["calls"]}) == 4


@pytest.mark.parametrize("num_cut", [0, 5])
async def test_only_one_call_where_they_are_not_parallel(
    client: openai.AsyncOpenAI, folder: Path, num_cut: int
) -> None:
    """It ends the answer, also where the next one would be cut."""
    options = asked(1, max_tokens=len(Tokenizer.from_folder(folder).encode(SAYINGS[1])) + 1 - num_cut)
    (choice,) = (await client.chat.completions.create(**options, parallel_tool_calls=False)).choices
    assert [call.function.name for call in choice.message.tool_calls or []] == ["get_weather"]
    assert choice.finish_reason == "tool_calls"
    stream = await client.chat.completions.create(**options, parallel_tool_calls=False, stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "tool_calls"


async def test_without_tools_or_with_tool_choice_none_calls_are_text(client: openai.AsyncOpenAI) -> None:
    for fields in ({"tools": openai.omit}, {"tool_choice": "none"}):
        answer = await client.chat.completions.create(**asked(0, **fields))
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (CALL, "stop")
