"""Bodies of a backlog's requests, as servers take them, and files of them."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.client.abilities import CHAT, COMPLETIONS, Abilities, RequestMaker
from loadgen.client.sse import Usage
from loadgen.errors import ServerError, WorkloadError
from loadgen.offline.bodies import (
    OfflineMaker,
    batch_lines,
    fit_backlog,
    output_failures,
    output_usages,
    per_output,
    write_files,
)
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import load_tokenizer, token_id_prompts

TEXT = OfflinePrompt(5, text="Hello")
MESSAGES = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"})
CONVERSATION = OfflinePrompt(6, messages=MESSAGES)
LENGTH = OfflinePrompt(7, num_prompt_tokens=20)


def maker(mark: str = "", exact_output: bool = True, endpoint: str = COMPLETIONS, **extra: Any) -> OfflineMaker:
    prompts = token_id_prompts(None, None, "salt")
    return OfflineMaker(RequestMaker(Abilities(endpoint, True, exact_output, True), "tiny", prompts), mark, extra)


def line(body: dict[str, Any], endpoint: str = COMPLETIONS) -> OfflinePrompt:
    """Of a batch's file."""
    return OfflinePrompt(8, endpoint=endpoint, body=body)


def test_texts_and_conversations_are_sent_as_they_are() -> None:
    (text_path, text), (chat_path, chat) = maker().bodies([TEXT, CONVERSATION])
    assert (text_path, chat_path) == (COMPLETIONS, CHAT)
    assert text == {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "temperature": 0}
    assert chat == {"model": "tiny", "messages": list(MESSAGES), "max_tokens": 6, "temperature": 0}
    ((path, of_chat),) = maker(endpoint=CHAT).bodies([TEXT])
    assert path == CHAT and of_chat["messages"] == [{"role": "user", "content": "Hello"}]
    ((_, empty),) = maker().bodies([OfflinePrompt(5)])
    assert empty["prompt"] == ""


@pytest.mark.parametrize("exact_output", [True, False])
def test_lengths_become_prompts_that_share_nothing_but_blocks(exact_output: bool) -> None:
    """With outputs of the wanted length, where the server takes that."""
    blocks = OfflinePrompt(7, num_prompt_tokens=20, block_ids=(1,), block_tokens=12)
    made = maker(exact_output=exact_output)
    bodies = [body for _, body in made.bodies([LENGTH, LENGTH, blocks, blocks])]
    assert [len(body["prompt"]) for body in bodies] == [20] * 4
    first, second, third, fourth = (body["prompt"] for body in bodies)
    assert first[:8] != second[:8] and third[:12] == fourth[:12] and third[12:] != fourth[12:]
    assert all(body.get("ignore_eos", False) is exact_output and body["max_tokens"] == 7 for body in bodies)
    assert made.body(LENGTH, 0) == bodies[0] and made.body(LENGTH, 1) == bodies[1]


def test_a_files_own_bodies_keep_all_but_the_model_and_the_stream() -> None:
    own = {"model": "theirs", "stream": True, "temperature": 0.5, "prompt": "Hello"}
    chat = {"model": "theirs", "messages": list(MESSAGES), "max_tokens": 3}
    bodies = list(maker("Mark. ").bodies([line(own), line(chat, CHAT), line({"prompt": [5, 6]}), line({})]))
    served = {"model": "tiny", "stream": False}
    marked = [{"role": "user", "content": "Mark. Hi"}, MESSAGES[1]]
    assert bodies == [
        (COMPLETIONS, own | served | {"prompt": "Mark. Hello"}),
        (CHAT, chat | served | {"messages": marked}),
        (COMPLETIONS, served | {"prompt": [5, 6]}),
        (COMPLETIONS, served),
    ]
    assert own["prompt"] == "Hello" and MESSAGES[0]["content"] == "Hi", "what was read stays as it is"


def test_a_mark_stands_before_the_first_message_alone() -> None:
    parts = ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, *MESSAGES)
    found = [body["messages"] for _, body in maker("Mark. ").bodies([CONVERSATION, OfflinePrompt(5, messages=parts)])]
    assert found == [[{"role": "user", "content": "Mark. Hi"}, MESSAGES[1]], list(parts)]
    assert [body["prompt"] for _, body in maker("Mark. ").bodies([TEXT])] == ["Mark. Hello"]
    assert maker("Mark. ").body(line({"messages": []}), 0)["messages"] == []


def test_further_fields_go_before_those_that_are_made() -> None:
    ((_, body),) = maker(priority=1, temperature=0.5).bodies([TEXT])
    assert (body["priority"], body["temperature"], body["prompt"]) == (1, 0.5, "Hello")


def test_prompt_tokens_for_each_output_token_are_known_of_lengths() -> None:
    lengths = [OfflinePrompt(2, num_prompt_tokens=8), OfflinePrompt(4, num_prompt_tokens=16)]
    assert maker().inputs_per_output(lengths) == 4.0
    assert maker(exact_output=False).inputs_per_output(lengths) is None, "outputs may be shorter"
    assert maker().inputs_per_output([*lengths, TEXT]) is None
    assert maker().inputs_per_output([]) is None
    assert [per_output(*each) for each in ((8, 2), (0, 2), (None, 2), (8, 0), (8, None))] == [
        4.0,
        0.0,
        None,
        None,
        None,
    ]


def test_lengths_are_scaled_and_cut_to_the_context() -> None:
    long = OfflinePrompt(30, num_prompt_tokens=100, block_ids=(1, 2), block_tokens=16)
    (scaled,) = fit_backlog([long], 0.5, None, None)
    assert (scaled.num_prompt_tokens, scaled.max_tokens, scaled.block_tokens) == (50, 15, 8)
    assert scaled.block_ids == (1, 2)
    (cut,) = fit_backlog([long], 0.5, 40, None)
    assert (cut.num_prompt_tokens, cut.max_tokens, cut.block_tokens) == (25, 15, 8)
    (tiny,) = fit_backlog([long], 0.001, None, None)
    assert (tiny.num_prompt_tokens, tiny.max_tokens, tiny.block_tokens) == (1, 1, 1)


def test_texts_are_cut_where_a_tokenizer_can_measure_them(
    tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer, text = load_tokenizer(tokenizer_folder), " ".join(f"word{number}" for number in range(50))
    prompts = [OfflinePrompt(8, text=text), TEXT, CONVERSATION, line({"prompt": text})]
    num_tokens = len(tokenizer.encode(text).ids)
    for max_context, kept in ((num_tokens + 8, num_tokens), (num_tokens + 7, num_tokens - 1), (20, 12)):
        first, *others = fit_backlog(prompts, 3.0, max_context, tokenizer_folder)
        assert first.text == tokenizer.decode(tokenizer.encode(text).ids[:kept]) and first.max_tokens == 8
        assert others == prompts[1:]
    (halved,) = fit_backlog(prompts[:1], 1.0, 10, tokenizer_folder)
    assert (halved.text, halved.max_tokens) == (tokenizer.decode(tokenizer.encode(text).ids[:5]), 5)
    bare = tmp_path_factory.mktemp("bare")
    assert fit_backlog(prompts, 3.0, None, bare) == prompts == fit_backlog(prompts, 3.0, 10, None)
    with pytest.raises(WorkloadError, match=r"has no tokenizer\.json"):
        fit_backlog(prompts, 1.0, 10, bare)


def test_lines_are_numbered_from_1() -> None:
    lines = list(batch_lines(maker(), [TEXT, CONVERSATION]))
    assert all(each.endswith(b"\n") and each.count(b"\n") == 1 for each in lines)
    first, second = map(msgspec.json.decode, lines)
    assert first == {
        "custom_id": "replay-1",
        "method": "POST",
        "url": COMPLETIONS,
        "body": maker().body(TEXT, 0),
    }
    assert (second["custom_id"], second["url"]) == ("replay-2", CHAT)


@pytest.mark.parametrize(
    ("lengths", "max_bytes", "max_lines", "expected"),
    [
        ([], 10, 2, []),
        ([4, 4, 2], 10, 9, [3]),
        ([4, 4, 3], 10, 9, [2, 1]),
        ([5, 5, 5, 5], 10, 9, [2, 2]),
        ([11, 1, 11], 10, 9, [1, 1, 1]),
        ([1, 1, 1], 10, 3, [3]),
        ([1, 1, 1, 1, 1, 1, 1], 10, 3, [3, 3, 1]),
        ([8, 1, 1, 8], 10, 3, [3, 1]),
    ],
)
def test_files_keep_to_their_limits(
    tmp_path: Path, lengths: list[int], max_bytes: int, max_lines: int, expected: list[int]
) -> None:
    letters = itertools.cycle(b"abc")
    lines = [bytes([next(letters)]) * (length - 1) + b"\n" for length in lengths]
    paths = write_files(iter(lines), tmp_path, max_bytes, max_lines)
    assert [path.name for path in paths] == [f"replay-{number}.jsonl" for number in range(1, len(expected) + 1)]
    assert [path.read_bytes().count(b"\n") for path in paths] == expected
    assert b"".join(path.read_bytes() for path in paths) == b"".join(lines)


def test_an_error_file_says_what_lines_failed_of() -> None:
    lines = [
        {"response": {"status_code": 400, "body": {"error": {"message": "too long"}}}, "error": None},
        {"response": None, "error": {"code": "batch_cancelled", "message": "did not run"}},
        {"response": {"status_code": 500}},
    ]
    content = b"\n".join(map(msgspec.json.encode, lines))
    assert list(output_failures(content)) == ["400: too long", "500: null"]
    assert list(output_failures(b"")) == []
    with pytest.raises(ServerError, match="the batch's error file is not OpenAI's"):
        list(output_failures(content + b"\n<html>"))


def test_an_output_file_says_what_answers_used() -> None:
    bodies: list[Any] = [
        {"usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}},
        {"usage": None},
        None,
    ]
    lines: list[Any] = [{"response": {"body": body}} for body in bodies]
    lines += [{"response": None}, {}, {"response": {"body": {"usage": {"completion_tokens": 3}}}}]
    content = b"\n".join(map(msgspec.json.encode, lines))
    assert list(output_usages(content)) == [Usage(4, 2), Usage(0, 3)]
    for torn in (b"\n<html>", b'\n{"response": "none"}'):
        with pytest.raises(ServerError, match="the batch's output file is not OpenAI's"):
            list(output_usages(content + torn))
