"""Scores of a prompt's tokens over HTTP, as evaluations ask for them, by the official client."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder

PRESET = ("--preset", "sarathi++")
PROMPT = "Once upon a time 😀 there was"
TOKENS = Tokenizer.from_folder(model_folder()).encode(PROMPT)
OPTIONS: Any = {"model": MODEL, "max_tokens": 6, "seed": 1, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path_factory.mktemp("gateway")) as made:
        made.start_executor("executor-0", *PRESET, "--sim-time-scale", "0.01")
        made.start_offline_queue(*PRESET)
        made.start_gateway()
        made.wait_ready()
        yield made


@pytest.mark.parametrize("prompt", [PROMPT, [TOKENS]])
def test_an_echo_has_the_prompts_tokens_before_those_of_the_output(rig: GatewayRig, prompt: Any) -> None:
    plain = rig.openai.completions.create(prompt=prompt, logprobs=2, **OPTIONS).choices[0]
    whole = rig.openai.completions.create(prompt=prompt, logprobs=2, echo=True, **OPTIONS).choices[0]
    assert whole.text == PROMPT + plain.text
    found, own = whole.logprobs, plain.logprobs
    assert found is not None and own is not None and found.tokens and own.tokens
    assert found.tokens[len(TOKENS) :] == own.tokens and len(own.tokens) == 6
    assert found.token_logprobs is not None and own.token_logprobs is not None
    assert found.token_logprobs[0] is None and None not in found.token_logprobs[1:]
    assert found.token_logprobs[len(TOKENS) :] == own.token_logprobs
    assert found.top_logprobs is not None and found.top_logprobs[0] is None
    for name, logprob, top in zip(found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
        assert top[name] == logprob and len(top) in (2, 3)
    assert found.text_offset is not None and found.text_offset == sorted(found.text_offset)
    for name, offset in zip(found.tokens, found.text_offset, strict=True):
        assert name.startswith("bytes:") or whole.text.startswith(name, offset)


def test_a_prompt_alone_is_scored_and_nothing_is_generated(rig: GatewayRig) -> None:
    made = rig.openai.completions.create(prompt=PROMPT, logprobs=0, echo=True, **OPTIONS | {"max_tokens": 0})
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert len(choice.logprobs.tokens) == len(TOKENS)
    assert made.usage is not None and (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(TOKENS), 0)
    bare = rig.openai.completions.create(prompt=PROMPT, echo=True, **OPTIONS | {"max_tokens": 0}).choices[0]
    assert (bare.text, bare.logprobs) == (PROMPT, None)


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"logprobs": 1}, {"logprobs": 1, "n": 2}, {"max_tokens": 0}])
def test_streams_with_an_echo_are_the_whole_answer(rig: GatewayRig, options: dict[str, Any]) -> None:
    asked = OPTIONS | {"prompt": PROMPT, "echo": True} | options
    whole = rig.openai.completions.create(**asked).choices
    texts, logprobs, reasons = [""] * len(whole), [list[Any]() for _ in whole], [""] * len(whole)
    for chunk in rig.openai.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or ""
        found = choice.logprobs
        if found is not None:
            entries = zip(found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True)
            logprobs[choice.index] += entries
    for choice, text, entries, reason in zip(whole, texts, logprobs, reasons, strict=True):
        assert (choice.text, choice.finish_reason) == (text, reason)
        own = choice.logprobs
        expected = own and list(
            zip(own.tokens or (), own.token_logprobs or (), own.top_logprobs or (), own.text_offset or (), strict=True)
        )
        assert entries == (expected or [])


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_answered_in_their_order(rig: GatewayRig, stream: bool) -> None:
    """As an evaluation with a batch size asks."""
    prompts: Any = [TOKENS, TOKENS[:4], [9, 8, 7]]
    asked = OPTIONS | {"n": 2, "logprobs": 1, "echo": True}
    alone = [rig.openai.completions.create(prompt=[prompt], **asked) for prompt in prompts]
    expected = [choice for made in alone for choice in made.choices]
    if stream:
        chunks = rig.openai.completions.create(prompt=prompts, stream=True, **asked)
        texts, offsets = [""] * 6, [list[int]() for _ in range(6)]
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].text
            found = chunk.choices[0].logprobs
            offsets[chunk.choices[0].index] += found.text_offset if found is not None else []
        assert texts == [choice.text for choice in expected]
        assert offsets == [choice.logprobs and choice.logprobs.text_offset for choice in expected]
        return
    made = rig.openai.completions.create(prompt=prompts, **asked)
    assert [choice.index for choice in made.choices] == list(range(6))
    assert [(choice.text, choice.logprobs) for choice in made.choices] == [
        (choice.text, choice.logprobs) for choice in expected
    ]
    for field in ("prompt_tokens", "completion_tokens"):
        assert getattr(made.usage, field) == sum(getattr(each.usage, field) for each in alone)


def test_prompt_logprobs_are_as_vllm_has_them(rig: GatewayRig) -> None:
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 1}
    (choice,) = rig.complete(**body).json()["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == len(TOKENS) - 1
    for token_id, entry in zip(TOKENS[1:], others, strict=True):
        assert next(iter(entry)) == str(token_id) and len(entry) in (2, 3)
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}
        assert sorted(each["rank"] for each in entry.values())[:2] == [1, 2]
    assert "prompt_logprobs" not in rig.complete(prompt=PROMPT, echo=True, logprobs=1).json()["choices"][0]
    messages: Any = [{"role": "user", "content": "Hi"}]
    chat: Any = rig.openai.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=0, extra_body={"prompt_logprobs": 0}
    )
    assert chat.prompt_logprobs[0] is None and len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert chat.choices[0].message.content == "" and chat.choices[0].finish_reason == "length"


def test_what_the_url_asks_for_runs_as_flex(rig: GatewayRig) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, "seed": 1}
    online = rig.http.post("/v1/completions", json=body).json()
    flex = rig.http.post("/v1/completions?service_tier=flex", json=body).json()
    assert (online["service_tier"], flex["service_tier"]) == ("default", "flex")
    assert flex["choices"] == online["choices"]
    refused = rig.http.post("/v1/completions?service_tier=gold", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "service_tier"


def test_prompts_that_begin_alike_are_scored_once(rig: GatewayRig) -> None:
    """As the choices of a question: of all but the first only what is new is computed."""
    stem = [7 + 3 * number for number in range(400)]
    cached = []
    for choice in range(4):
        made = rig.openai.completions.create(prompt=[[*stem, choice]], logprobs=1, echo=True, **OPTIONS)
        assert made.usage is not None and made.usage.prompt_tokens_details is not None
        cached.append(made.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == 0 and set(cached[1:]) == {384}
