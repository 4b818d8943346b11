"""What a completion request may hold, and what it is told when it is wrong."""

from typing import Any

import msgspec
import pytest

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.openai.completions.requests import CHAT, ENDPOINTS, TEXT, CompletionRequest, parse_completion
from shared.openai.errors import RequestError
from shared.openai.served_model import MODEL_MISMATCH, ServedModel
from shared.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None))
MODEL = ServedModel("tiny", 256)
MESSAGES = [{"role": "user", "content": "Hello"}]
PARAMETERS, OLD_CALL = "tools[0].function.parameters", "messages[0].function_call"
ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
VLLM_FIELDS: dict[str, Any] = {  # and one that nobody knows
    "chat_template": "{{ messages }}",
    "vllm_xargs": {"a": 1},
    "cache_salt": "s",
    "guided_whitespace_pattern": " ",
    "use_beam_search": True,
    "temprature": 0,
    "extra_body": {"top_k": 5},
}


def nested(depth: int) -> dict[str, Any]:
    """A schema of arrays of arrays."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def call(arguments: dict[str, Any]) -> dict[str, Any]:
    text = msgspec.json.encode(arguments).decode()
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}


def parse(endpoint: str, served: ServedModel = MODEL, **fields: Any) -> CompletionRequest:
    """A good request with these fields changed; a field that is ``msgspec.UNSET`` is left out."""
    body = {"model": "tiny"} | ({"messages": MESSAGES} if endpoint == CHAT else {"prompt": "Hello"}) | fields
    present = {name: value for name, value in body.items() if value is not msgspec.UNSET}
    return parse_completion(endpoint, msgspec.json.encode(present), TOKENIZER, served)


def json_schema(schema: Any, name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def test_a_model_has_each_of_its_names() -> None:
    """Answers have the first; who may ask for one is not told of the others."""
    model = ServedModel("first", 256, aliases=("second", "third"))
    assert model.names == ["first", "second", "third"]
    for name in model.names:
        assert parse(CHAT, model, model=name).model == "first"
    for other in ("tiny", ""):
        with pytest.raises(RequestError, match="'first' and 'second' and 'third'") as raised:
            parse(CHAT, model, model=other)
        assert (raised.value.status, raised.value.param) == (404, "model")
    limited = msgspec.structs.replace(model, permitted=["second", "else"])
    assert limited.names == ["second"] and parse(TEXT, limited, model="second").model == "first"
    with pytest.raises(RequestError, match="do not have access"):
        parse(TEXT, limited, model="first")


def test_adapters_are_models_of_their_own() -> None:
    model = ServedModel("first", 256, aliases=("second",), others=("else",), adapters={"sql": "./sql", "chat": "c/c"})
    assert model.names == ["first", "second", "sql", "chat"]
    for name, called, adapter in (("second", "first", ""), ("sql", "sql", "sql"), ("chat", "chat", "chat")):
        found = parse(TEXT, model, model=name)
        assert (found.model, found.sampling.adapter) == (called, adapter)
    assert parse(TEXT, msgspec.structs.replace(model, permitted=["sql"]), model="sql").model == "sql"
    with pytest.raises(RequestError, match="do not have access"):
        parse(TEXT, msgspec.structs.replace(model, permitted=["first"]), model="sql")


def test_a_batch_is_of_one_of_them() -> None:
    model = ServedModel("first", 256, aliases=("second",), others=("else",), adapters={"sql": "./sql", "chat": "c/c"})
    for own, names in (("", ["first", "second"]), ("sql", ["sql"]), ("gone", ["gone"])):
        only = model.only(own)
        assert only.names == names and parse(TEXT, only, model=names[-1]).sampling.adapter == own
        for other in {*model.names, "else"} - {*names}:
            with pytest.raises(RequestError, match=f"'{other}' is another one than '{names[0]}'") as raised:
                parse(TEXT, only, model=other)
            assert raised.value.code == MODEL_MISMATCH
        with pytest.raises(RequestError, match="does not exist"):
            parse(TEXT, only, model="nobody")


def test_defaults_are_openais() -> None:
    chat, text = parse(CHAT), parse(TEXT)
    assert chat.sampling.max_tokens == MODEL.max_model_len - len(chat.prompt_token_ids)
    assert text.sampling.max_tokens == 16
    for request in (chat, text):
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop) == (1.0, 1.0, 0, ())
        assert (request.stream, request.include_usage, request.user) == (False, False, None)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_sampling_field_arrives(endpoint: str) -> None:
    request = parse(
        endpoint,
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=40,
        seed=11,
        stop=["a", "b"],
        stop_token_ids=[5],
        ignore_eos=True,
        min_p=0.1,
        presence_penalty=-2,
        frequency_penalty=1.5,
        repetition_penalty=1.2,
        logit_bias={"700": -100, "3": 0.5},
        stream=True,
        stream_options={"include_usage": True},
        user="u",
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.0, 0.5, 40)
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids) == (11, ("a", "b"), (5,))
    assert (sampling.min_p, sampling.repetition_penalty, sampling.logit_bias) == (0.1, 1.2, ((3, 0.5), (700, -100)))
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2, 1.5)
    assert sampling.ignore_eos and request.stream and request.include_usage
    assert (request.endpoint, request.model, request.user) == (endpoint, "tiny", "u")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_response_format_becomes_a_grammar(endpoint: str) -> None:
    grammars = [
        parse(endpoint, response_format=asked).sampling.grammar
        for asked in ({"type": "json_object"}, json_schema({"type": "object"}), json_schema({"enum": ["a", "b"]}))
    ]
    assert grammars[0] == grammars[1] and '"enum"' in grammars[2].replace(" ", "")
    assert parse(endpoint, response_format={"type": "text"}).sampling.grammar == ""


def test_a_top_k_beyond_the_vocabulary_is_all_of_it() -> None:
    body = b'{"model": "tiny", "prompt": "Hello", "top_k": %d}' % (2**80)
    assert parse_completion(TEXT, body, TOKENIZER, MODEL).sampling.top_k == TOKENIZER.vocab_size
    assert parse(TEXT, top_k=-1).sampling.top_k == 0


def test_absent_seeds_differ_and_odd_ones_become_valid() -> None:
    assert parse(TEXT).sampling.seed != parse(TEXT).sampling.seed
    assert parse(TEXT, seed=-1).sampling.seed == parse(TEXT, seed=2**63 - 1).sampling.seed


def test_null_is_as_absent() -> None:
    names = ("max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos", "stream", "user")
    nulls = dict.fromkeys((*names, "stream_options", "n", "logprobs", "tools", "logit_bias", "response_format"))
    assert msgspec.structs.replace(parse(CHAT, **nulls, seed=1)) == parse(CHAT, seed=1)


def test_prompts_as_text_as_ids_and_in_a_list_are_the_same() -> None:
    token_ids = TOKENIZER.encode("Hello there")
    for prompt in ("Hello there", ["Hello there"], token_ids, [token_ids]):
        assert parse(TEXT, prompt=prompt).prompt_token_ids == token_ids


def test_several_prompts_have_their_own_choices() -> None:
    request = parse(TEXT, prompt=["Hello there", [5, 6]], n=3, seed=3)
    assert request.prompts == [TOKENIZER.encode("Hello there"), [5, 6]] and request.num_choices == 6
    first, second = (parse(TEXT, prompt=prompt, n=3, seed=3).choices() for prompt in ("Hello there", [5, 6]))
    assert request.choices() == [*first, *second]


def test_without_a_seed_a_prompt_that_is_there_twice_has_choices_of_other_seeds() -> None:
    choices = parse(TEXT, prompt=["Hello there"] * 3, n=2).choices()
    assert len({choice.sampling.seed for choice in choices}) == len(choices) == 6


def test_outputs_follow_the_text_that_they_go_on_with() -> None:
    """A completion's its own prompt, and a continued message's; an answer is a text of its own."""
    request = parse(TEXT, prompt=["one two three four five six seven eight nine", [5, 6]], n=2)
    ends = [request.prompt_token_ids[-8:]] * 2 + [[5, 6]] * 2
    assert [list(choice.sampling.follows) for choice in request.choices()] == ends
    assert parse(TEXT, prompt=[5, 6, 7], truncate_prompt_tokens=2).sampling.follows == (6, 7)
    assert parse(CHAT).choices()[0].sampling.follows == ()
    begun = parse(CHAT, messages=[*MESSAGES, {"role": "assistant", "content": "So"}], continue_final_message=True)
    assert list(begun.sampling.follows) == begun.prompt_token_ids[-8:]


def test_an_answer_without_content_may_be_sent_back() -> None:
    """As of a model that was cut while it thought."""
    answer = {"role": "assistant", "content": None, "reasoning": "Let me"}
    messages = [{"role": "user", "content": "a"}, answer, {"role": "user", "content": "b"}]
    sent = parse(CHAT, messages=messages).prompt_token_ids
    assert sent == parse(CHAT, messages=[messages[0], answer | {"content": ""}, messages[2]]).prompt_token_ids


@pytest.mark.parametrize(
    ("prompt", "param"), [([[1], [999_999]], "prompt[1][0]"), (["a", ""], "prompt[1]"), (["a", 5], "prompt[1]")]
)
def test_of_several_prompts_the_bad_one_is_named(prompt: list[Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(TEXT, prompt=prompt)
    assert refused.value.param == param


def test_content_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    with_parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    plain = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    assert parse(CHAT, messages=with_parts).prompt_token_ids == TOKENIZER.apply_chat_template(plain)


def test_choices_have_seeds_of_their_own() -> None:
    request = parse(TEXT, n=8, best_of=8, seed=2**63 - 1)
    choices = request.choices()
    assert len({choice.sampling.seed for choice in choices}) == 8
    assert choices[0].sampling.seed == 2**63 - 1 and {choice.sampling.n for choice in choices} == {1}
    assert all(0 <= choice.sampling.seed < 2**63 for choice in choices)
    assert [request.sampling.seed_of_choice(3)] == [choices[2].sampling.seed_of_choice(1)]
    assert choices[:3] == parse(TEXT, n=3, seed=2**63 - 1).choices()


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (CHAT, {}, None),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, None),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (TEXT, {}, None),
        (TEXT, {"logprobs": 0}, 0),
        (TEXT, {"logprobs": 5}, 5),
    ],
)
def test_logprobs_are_asked_for(endpoint: str, fields: dict[str, Any], expected: int | None) -> None:
    assert parse(endpoint, **fields).sampling.logprobs == expected


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (TEXT, {"logprobs": 1}, (None, False, False)),
        (TEXT, {"echo": True}, (None, True, False)),
        (TEXT, {"echo": True, "logprobs": 1, "max_tokens": 0, "stream": True}, (1, True, False)),
        (TEXT, {"echo": True, "logprobs": 1, "prompt_logprobs": 3}, (3, True, True)),
        (TEXT, {"prompt_logprobs": 0, "max_tokens": 0}, (0, False, True)),
        (CHAT, {"prompt_logprobs": 20, "max_tokens": 0}, (20, False, True)),
        (CHAT, {"logprobs": True, "top_logprobs": 2, "echo": False}, (None, False, False)),
    ],
)
def test_scores_of_the_prompt_are_asked_for(
    endpoint: str, fields: dict[str, Any], expected: tuple[int | None, bool, bool]
) -> None:
    sampling = parse(endpoint, **fields).sampling
    assert (sampling.prompt_logprobs, sampling.echo, sampling.lists_prompt) == expected
    assert sampling.shows_prompt is (expected != (None, False, False))
    if "max_tokens" in fields:
        assert sampling.max_tokens == 0


def test_more_scores_than_a_message_holds_are_refused() -> None:
    prompt, model = [5] * 70_000, ServedModel("m", 100_000)
    body = {"model": "m", "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 5}
    with pytest.raises(RequestError, match="70000 tokens in the prompt with 6 log probabilities each"):
        parse_completion(TEXT, msgspec.json.encode(body), TOKENIZER, model)
    assert parse_completion(TEXT, msgspec.json.encode(body | {"logprobs": 4}), TOKENIZER, model).prompt_token_ids


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_belongs_to_the_answer_arrives(endpoint: str) -> None:
    tiers = [parse(endpoint, service_tier=tier).service_tier for tier in ("flex", "auto", "default", "priority", None)]
    assert tiers == ["flex", "default", "default", "default", "default"]
    assert parse(endpoint, metadata={"team": "x"}).metadata == {"team": "x"} and parse(endpoint).metadata is None
    options: list[dict[str, Any]] = [{}, {"include_usage": None}, {"include_usage": False}, {"include_usage": True}]
    found = [parse(endpoint, stream=True, stream_options=each).include_usage for each in options]
    assert found == [False, False, False, True]
    assert (parse(endpoint, stream=True).stream, parse(endpoint, stream=True).include_usage) == (True, False)


def test_prompts_leave_room_for_the_output_by_the_longest_of_them() -> None:
    prompts = [[5] * 100, [5] * 10]
    assert parse(TEXT, prompt=prompts, max_tokens=156).sampling.max_tokens == 156
    with pytest.raises(RequestError, match=r"257 \(100 in prompt, 157 in max_tokens\)"):
        parse(TEXT, prompt=prompts[::-1], max_tokens=157)


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    assert parse(CHAT, max_tokens=5, max_completion_tokens=6).sampling.max_tokens == 6


@pytest.mark.parametrize(
    ("endpoint", "harmless"),
    [
        (CHAT, {"n": 1, "logprobs": False, "top_logprobs": 0, "tools": [], "logit_bias": {}, "presence_penalty": 0}),
        (CHAT, {"response_format": {"type": "text"}, "tool_choice": "none", "service_tier": "auto", "unknown": []}),
        (CHAT, {"modalities": ["text"], "frequency_penalty": 0.0, "parallel_tool_calls": True, "store": False}),
        (TEXT, {"best_of": 1}),
        (TEXT, {"n": 1, "best_of": 1, "echo": False, "suffix": "", "unknown": {"a": None}}),
        (CHAT, {"reasoning_effort": "none", "verbosity": "medium", "functions": [], "prediction": None, "store": True}),
        (CHAT, {"prompt_cache_key": "k", "safety_identifier": "s", "priority": 3, "request_id": "r"}),
        (CHAT, {"continue_final_message": False, "add_generation_prompt": True, "add_special_tokens": False}),
        (TEXT, {"add_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0, "min_tokens": 0}),
        *((endpoint, dict.fromkeys(VLLM_FIELDS)) for endpoint in ENDPOINTS),
        *((endpoint, {"stop_token_ids": [], "bad_words": [], "ignore_eos": False}) for endpoint in ENDPOINTS),
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(endpoint: str, harmless: dict[str, Any]) -> None:
    assert parse(endpoint, seed=1, **harmless) == parse(endpoint, seed=1)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(("name", "value"), VLLM_FIELDS.items())
def test_what_is_not_served_is_refused_by_its_name(endpoint: str, name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as raised:
        parse(endpoint, **{name: value})
    assert (raised.value.status, raised.value.param) == (400, name)
    assert raised.value.code in ("unsupported_parameter", "unsupported_value")


def test_a_name_is_shown_in_part_where_it_is_long() -> None:
    with pytest.raises(RequestError) as raised:
        parse(CHAT, **{"x" * 100_000: 1})
    assert len(raised.value.message) < 200 and len(raised.value.param or "") < 200


BAD_FIELDS: list[tuple[str, dict[str, Any], str | None]] = [
    (CHAT, {"model": msgspec.UNSET}, "model"),
    (CHAT, {"model": 3}, "model"),
    (CHAT, {"messages": msgspec.UNSET}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": ["hi"]}, "messages[0]"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [*MESSAGES, {"role": "tool", "content": "hi"}]}, "messages[1].tool_call_id"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 300}]}, "messages"),
    (CHAT, {"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]}, OLD_CALL),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"max_completion_tokens": 256}, "max_completion_tokens"),
    (CHAT, {"logprobs": 2}, "logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0].type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"response_format": "json"}, "response_format"),
    (CHAT, {"response_format": {}}, "response_format.type"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_object", "schema": {"type": "object"}}}, "response_format"),
    (CHAT, {"response_format": json_schema(nested(700))}, "response_format"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(700)}}]}, PARAMETERS),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [call(nested(700))]}]}, ARGUMENTS),
    (CHAT, {"tool_choice": nested(700)}, "tool_choice"),
    (TEXT, {"prompt": nested(700)}, "prompt"),
    (TEXT, {"metadata": nested(700)}, "metadata"),
    (TEXT, {"unknown": nested(700)}, "unknown"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHAT, {"response_format": json_schema({}, name="")}, "response_format.json_schema.name"),
    (CHAT, {"response_format": json_schema({}, name="a b")}, "response_format.json_schema.name"),
    (CHAT, {"response_format": json_schema({}, name="a\n")}, "response_format.json_schema.name"),
    (CHAT, {"response_format": json_schema([])}, "response_format.json_schema.schema"),
    (CHAT, {"response_format": json_schema({"type": "banana"})}, "response_format"),
    (CHAT, {"response_format": json_schema({"not": {"type": "string"}})}, "response_format"),
    (CHAT, {"response_format": json_schema({"$ref": "#/nowhere"})}, "response_format"),
    (CHAT, {"response_format": json_schema({"type": "string", "pattern": "(?=a)"})}, "response_format"),
    (CHAT, {"response_format": json_schema({"type": "integer", "minimum": 5, "maximum": 2})}, "response_format"),
    (CHAT, {"response_format": json_schema({"enum": ["x" * 70_000]})}, "response_format"),
    (CHAT, {"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    (TEXT, {"response_format": json_schema({"type": 5})}, "response_format"),
    (CHAT, {"modalities": ["audio"]}, "modalities"),
    (TEXT, {"prompt": msgspec.UNSET}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [[]]}, "prompt[0]"),
    (TEXT, {"prompt": {"a": 1}}, "prompt"),
    (TEXT, {"prompt": ["a", ""]}, "prompt[1]"),
    (TEXT, {"prompt": ["a", 5]}, "prompt[1]"),
    (TEXT, {"prompt": ["a"] * 65}, "prompt"),
    (TEXT, {"prompt": ["a", [7] * 256]}, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, "prompt[1]"),
    (TEXT, {"prompt": [1, True]}, "prompt[1]"),
    (TEXT, {"prompt": [1, 2.5]}, "prompt[1]"),
    (TEXT, {"prompt": [-1]}, "prompt[0]"),
    (TEXT, {"prompt": [1, TOKENIZER.vocab_size]}, "prompt[1]"),
    (TEXT, {"prompt": [7] * 256}, "prompt"),
    (TEXT, {"max_tokens": -5}, "max_tokens"),
    (TEXT, {"max_tokens": 0}, "max_tokens"),
    (TEXT, {"max_tokens": "many"}, "max_tokens"),
    (TEXT, {"max_tokens": 2.5}, "max_tokens"),
    (TEXT, {"max_tokens": 256}, "max_tokens"),
    (TEXT, {"temperature": -0.1}, "temperature"),
    (TEXT, {"temperature": 2.1}, "temperature"),
    (TEXT, {"temperature": "hot"}, "temperature"),
    (TEXT, {"top_p": 0}, "top_p"),
    (TEXT, {"top_p": 1.1}, "top_p"),
    (TEXT, {"top_k": -2}, "top_k"),
    (TEXT, {"seed": "x"}, "seed"),
    (TEXT, {"stop": ["a"] * 17}, "stop"),
    (TEXT, {"stop": ""}, "stop"),
    (TEXT, {"stop": "x" * 513}, "stop"),
    (TEXT, {"stop": [1]}, "stop[0]"),
    (TEXT, {"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    (TEXT, {"stop_token_ids": [TOKENIZER.vocab_size]}, "stop_token_ids"),
    (TEXT, {"stop_token_ids": [5] * 129}, "stop_token_ids"),
    (TEXT, {"ignore_eos": "yes"}, "ignore_eos"),
    (TEXT, {"stream": 1}, "stream"),
    (TEXT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (TEXT, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (TEXT, {"user": 5}, "user"),
    (CHAT, {"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
    (TEXT, {"metadata": {"k" * 65: "x"}}, "metadata"),
    (TEXT, {"metadata": {"k": 5}}, "metadata"),
    (TEXT, {"n": 9}, "n"),
    (TEXT, {"n": 0}, "n"),
    (TEXT, {"best_of": 2}, "best_of"),
    (TEXT, {"best_of": 1, "n": 2}, "best_of"),
    (CHAT, {"echo": True}, "echo"),
    (TEXT, {"echo": "yes"}, "echo"),
    (TEXT, {"max_tokens": -1}, "max_tokens"),
    (TEXT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 0, "prompt_logprobs": 1}, "max_completion_tokens"),
    (TEXT, {"prompt_logprobs": 21}, "prompt_logprobs"),
    (TEXT, {"prompt_logprobs": -1}, "prompt_logprobs"),
    (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (TEXT, {"suffix": "end"}, "suffix"),
    (TEXT, {"logprobs": 6}, "logprobs"),
    (TEXT, {"logprobs": True}, "logprobs"),
    (TEXT, {"logit_bias": {"5": 101}}, "logit_bias"),
    (TEXT, {"logit_bias": {"5": -100.5}}, "logit_bias"),
    (TEXT, {"logit_bias": {"five": 1}}, "logit_bias"),
    (TEXT, {"logit_bias": {"05": 1}}, "logit_bias"),
    (TEXT, {"logit_bias": {"-5": 1}}, "logit_bias"),
    (TEXT, {"logit_bias": {str(TOKENIZER.vocab_size): 1}}, "logit_bias"),
    (TEXT, {"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    (TEXT, {"logit_bias": {str(token_id): 1 for token_id in range(1025)}}, "logit_bias"),
    (TEXT, {"logit_bias": {"5": "much"}}, "logit_bias"),
    (TEXT, {"logit_bias": [5]}, "logit_bias"),
    (TEXT, {"presence_penalty": 2.1}, "presence_penalty"),
    (TEXT, {"frequency_penalty": -2.1}, "frequency_penalty"),
    (TEXT, {"repetition_penalty": 0}, "repetition_penalty"),
    (TEXT, {"repetition_penalty": 11}, "repetition_penalty"),
    (TEXT, {"min_p": 1.1}, "min_p"),
    (TEXT, {"service_tier": "gold"}, "service_tier"),
    (TEXT, {"service_tier": ""}, "service_tier"),
]


@pytest.mark.parametrize(("endpoint", "fields", "param"), BAD_FIELDS)
def test_a_bad_field_is_named(endpoint: str, fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as raised:
        parse(endpoint, **fields)
    assert (raised.value.status, raised.value.param) == (400, param)
    assert raised.value.message and "msgspec" not in raised.value.message


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"model": "\xff"}', b'{"x":' + b"[" * 100_000),
        b'{"tools": [{"type": "f", "function": {"name": "f", "parameters": '
        + b'{"a":' * 10_000
        + b"}" * 10_003
        + b"]}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(endpoint: str, body: bytes) -> None:
    with pytest.raises(RequestError, match="request body") as raised:
        parse_completion(endpoint, body, TOKENIZER, MODEL)
    assert (raised.value.status, raised.value.param) == (400, None)


def test_an_unknown_model_is_404() -> None:
    with pytest.raises(RequestError) as raised:
        parse(TEXT, model="gpt-17")
    assert (raised.value.status, raised.value.code, raised.value.param) == (404, "model_not_found", "model")


@pytest.mark.parametrize(("endpoint", "prompt"), [(CHAT, {"messages": []}), (TEXT, {"prompt": [7] * 256})])
def test_a_prompt_that_fills_the_context_has_openais_code(endpoint: str, prompt: dict[str, Any]) -> None:
    if endpoint == CHAT:
        prompt = {"messages": [{"role": "user", "content": "word " * 300}]}
    with pytest.raises(RequestError) as raised:
        parse(endpoint, **prompt)
    assert raised.value.code == "context_length_exceeded"
    assert "256" in raised.value.message


def test_a_prompt_that_leaves_one_token_is_served() -> None:
    assert parse(TEXT, prompt=[7] * 255).sampling.max_tokens == 1
