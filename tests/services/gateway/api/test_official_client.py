"""Every call of the official client that the gateway serves, made by the sync and by the async client."""

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.services.gateway.gateway_rig import MODEL, GatewayRig

MESSAGES: Any = [{"role": "user", "content": "Tell me a story"}]
OPTIONS: Any = {"model": MODEL, "max_tokens": 6, "seed": 1}


class Weather(BaseModel):
    """What an answer is to be parsed into."""

    sunny: bool
    wind: Literal["calm", "breeze", "storm"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", "--sim-time-scale", "0.01")
        made.start_gateway()
        made.wait_ready()
        yield made


@pytest.fixture(params=["sync", "async"])
async def client(rig: GatewayRig, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "sync":
        yield rig.openai
        return
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


async def answer(called: Any) -> Any:
    """What a call of either client gives."""
    return await called if inspect.isawaitable(called) else called


async def each(stream: Any) -> list[Any]:
    """All of a stream, or all items of all pages, of either client."""
    if hasattr(stream, "__aiter__"):
        return [item async for item in stream]
    return list(await answer(stream))


async def test_models(client: Any) -> None:
    assert [model.id for model in await each(client.models.list())] == [MODEL]
    assert (await answer(client.models.retrieve(MODEL))).owned_by == "slackwater"


async def test_embeddings_create(client: Any) -> None:
    made = await answer(client.embeddings.create(model=MODEL, input=["a cat", "a dog"]))
    assert [each.index for each in made.data] == [0, 1] and made.data[0].embedding != made.data[1].embedding
    assert made.usage.prompt_tokens == made.usage.total_tokens > 0


async def test_chat_completions_create(client: Any) -> None:
    made = await answer(client.chat.completions.create(messages=MESSAGES, **OPTIONS))
    assert made.choices[0].message.role == "assistant" and made.choices[0].message.content
    assert made.usage.completion_tokens <= 6


async def test_chat_completions_create_streamed(client: Any) -> None:
    whole = await answer(client.chat.completions.create(messages=MESSAGES, **OPTIONS))
    chunks = await each(await answer(client.chat.completions.create(messages=MESSAGES, stream=True, **OPTIONS)))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_chat_completions_stream(client: Any) -> None:
    options = OPTIONS | {"max_tokens": 2000}  # the client refuses an answer that was cut short
    whole = await answer(client.chat.completions.create(messages=MESSAGES, **options))
    manager = client.chat.completions.stream(messages=MESSAGES, **options)
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            final = await stream.get_final_completion()
    else:
        with manager as stream:
            final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content


async def test_chat_completions_parse(client: Any) -> None:
    options = OPTIONS | {"max_tokens": 200}
    made = await answer(client.chat.completions.parse(messages=MESSAGES, response_format=Weather, **options))
    assert isinstance(made.choices[0].message.parsed, Weather)


async def test_choices_and_log_probabilities(client: Any) -> None:
    made = await answer(
        client.chat.completions.create(messages=MESSAGES, n=2, logprobs=True, top_logprobs=3, **OPTIONS)
    )
    assert [choice.index for choice in made.choices] == [0, 1]
    for choice in made.choices:
        assert all(len(token.top_logprobs) == 3 for token in choice.logprobs.content)


async def test_completions_create_streamed_and_whole(client: Any) -> None:
    whole = await answer(client.completions.create(prompt="Once upon a time", **OPTIONS))
    chunks = await each(await answer(client.completions.create(prompt="Once upon a time", stream=True, **OPTIONS)))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


async def test_raw_and_streaming_responses_have_the_headers(client: Any) -> None:
    raw = await answer(client.chat.completions.with_raw_response.create(messages=MESSAGES, **OPTIONS))
    assert raw.headers["x-request-id"] and raw.parse().choices
    manager = client.chat.completions.with_streaming_response.create(messages=MESSAGES, **OPTIONS)
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            parsed = await response.parse()
    else:
        with manager as response:
            parsed = response.parse()
    assert parsed.choices[0].message.content


async def test_files_go_from_upload_to_deletion(client: Any) -> None:
    made = await answer(client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch"))
    assert (await answer(client.files.retrieve(made.id))).filename == "a.jsonl"
    assert (await answer(client.files.wait_for_processing(made.id))).status == "processed"
    assert made.id in [file.id for file in await each(client.files.list(purpose="batch"))]
    assert (await answer(client.files.content(made.id))).content == b"{}\n"
    assert (await answer(client.files.delete(made.id))).deleted
    with pytest.raises(openai.NotFoundError):
        await answer(client.files.retrieve(made.id))


async def test_batches_go_from_creation_to_cancelling(client: Any) -> None:
    file = await answer(client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch"))
    options: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = [await answer(client.batches.create(**options, metadata={"index": str(index)})) for index in range(3)]
    assert (await answer(client.batches.retrieve(made[0].id))).metadata == {"index": "0"}
    assert {batch.id for batch in made} <= {batch.id for batch in await each(client.batches.list(limit=2))}
    assert (await answer(client.batches.cancel(made[0].id))).status == "cancelling"


async def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await answer(client.completions.create(**(OPTIONS | {"model": "gpt-17"}), prompt="x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await answer(client.completions.create(prompt="x", **(OPTIONS | {"temperature": 9})))
    assert bad.value.param == "temperature" and bad.value.request_id


async def test_a_clients_timeout_ends_the_call(client: Any) -> None:
    slow = client.with_options(timeout=httpx.Timeout(30, read=0.05))
    options: Any = {"model": MODEL, "prompt": "x", "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        await answer(slow.completions.create(**options))
