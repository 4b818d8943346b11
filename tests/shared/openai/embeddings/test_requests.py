"""What a request for embeddings may hold, and what it is told when it is wrong."""

from typing import Any

import msgspec
import pytest

from shared.openai.completions.requests import CompletionRequest
from shared.openai.embeddings.requests import EMBEDDINGS, MAX_INPUTS, parse_embedding
from shared.openai.errors import RequestError
from shared.openai.served_model import ServedModel
from shared.protocol.sampling import EmbeddingShape, SamplingParams
from shared.text.embedding_sizes import EmbeddingSizes
from tests.shared.text.test_tokenizer import BYTE_LEVEL

MODEL = ServedModel("tiny", 16, aliases=("other",), adapters={"sql": "./sql"}, embedding_sizes=EmbeddingSizes(8, (4,)))


def parse(model: ServedModel = MODEL, **fields: Any) -> CompletionRequest:
    body = msgspec.json.encode({"model": "tiny", "input": "Hello there"} | fields)
    return parse_embedding(body, BYTE_LEVEL, model)


def test_every_input_is_a_prompt_without_an_output() -> None:
    found = parse(input=["Hello there", [5, 6], "a"])
    assert found.prompts == [BYTE_LEVEL.encode("Hello there"), [5, 6], BYTE_LEVEL.encode("a")]
    assert (found.endpoint, found.model, found.user, found.service_tier) == (EMBEDDINGS, "tiny", None, "default")
    assert (found.stream, found.include_usage) == (False, False)
    assert found.sampling == SamplingParams(0, temperature=0.0, ignore_eos=True, embedding=EmbeddingShape())
    assert parse(input=[5, 6]).prompts == [[5, 6]]
    assert len(parse(input=["a"] * MAX_INPUTS).prompts) == MAX_INPUTS


def test_what_is_asked_for_is_kept() -> None:
    assert parse(user="u", service_tier="flex").user == "u"
    assert [parse(service_tier=tier).service_tier for tier in ("flex", "auto", None)] == ["flex", "default", "default"]
    shapes = [
        parse(**fields).sampling.embedding
        for fields in ({"encoding_format": "base64"}, {"encoding_format": "float", "dimensions": 4}, {"dimensions": 8})
    ]
    assert shapes == [EmbeddingShape(True), EmbeddingShape(False, 4), EmbeddingShape(False, 8)]
    for name, model, adapter in (("other", "tiny", ""), ("sql", "sql", "sql")):
        found = parse_embedding(msgspec.json.encode({"model": name, "input": "a"}), BYTE_LEVEL, MODEL)
        assert (found.model, found.sampling.adapter) == (model, adapter)


def test_an_input_leaves_room_for_a_token_of_the_context() -> None:
    """As long as prompts may be, where they may not be as long as that."""
    for model, most in ((MODEL, 15), (msgspec.structs.replace(MODEL, max_prompt_tokens=7), 7)):
        assert parse(model, input=[[5], [5] * most]).num_choices == 2
        with pytest.raises(
            RequestError, match=f"^input has {most + 1} tokens; this server takes at most {most}$"
        ) as long:
            parse(model, input=[[5] * (most + 1), [5]])
        assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")
    assert parse(msgspec.structs.replace(MODEL, max_prompt_tokens=99), input=[5] * 15).prompts == [[5] * 15]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"model": "unknown"}, "model", "does not exist"),
        ({"input": None}, "input", "input is missing"),
        ({"input": [[5], []]}, "input[1]", "is empty"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "2049 inputs; a request takes 2048 at most"),
        ({"encoding_format": "int8"}, "encoding_format", "Invalid enum value"),
        ({"dimensions": 0}, "dimensions", ">= 1"),
        ({"dimensions": 5}, "dimensions", "^dimensions: the model was trained for 4, not 5$"),
        ({"dimensions": 9}, "dimensions", "have 8, not 9"),
        ({"unknown": 1}, "unknown", "leave it out"),
        ({"normalize": False}, "normalize", "leave it out or set it to true"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(fields: dict[str, Any], param: str, said: str) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": "a"} | fields
    with pytest.raises(RequestError, match=f"(?i){said}") as refused:
        parse_embedding(msgspec.json.encode(body), BYTE_LEVEL, MODEL)
    assert refused.value.param == param
