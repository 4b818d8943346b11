"""Prompt files in every form."""

import json
from pathlib import Path

import pytest

from loadgen.client.abilities import COMPLETIONS, Abilities, RequestMaker
from loadgen.errors import TraceError
from loadgen.offline.bodies import OfflineMaker, batch_lines, fit_backlog, write_files
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.prompts import token_id_prompts
from tests.loadgen.conftest import shared_data


def maker(mark: str = "") -> OfflineMaker:
    abilities = Abilities(COMPLETIONS, token_ids=True, exact_output=True, batches=True)
    return OfflineMaker(RequestMaker(abilities, "tiny", token_id_prompts(None, None, "salt")), mark)


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


BATCH_LINE = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "other", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5},
}


@pytest.mark.parametrize("field", ["prompt", "question", "text", "input"])
def test_text_fields(tmp_path: Path, field: str) -> None:
    (prompt,) = load_backlog(write(tmp_path / "prompts.jsonl", {field: "Why?", "answer": "So."}))
    assert (prompt.text, prompt.max_tokens) == ("Why?", 128)


def test_multiple_choice_asks_for_one_letter(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "choices": ["1", "2"], "answer": "B"}
    (prompt,) = load_backlog(write(tmp_path / "prompts.jsonl", row))
    assert (prompt.text, prompt.max_tokens) == ("1 + 1?\nA. 1\nB. 2\nAnswer:", 1)


def test_batch_lines_keep_their_body_but_the_model(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.jsonl", BATCH_LINE)
    (prompt,) = load_backlog(path)
    assert maker().endpoint(prompt) == "/v1/chat/completions"
    body = maker().body(prompt, 0)
    assert body == BATCH_LINE["body"] | {"model": "tiny", "stream": False}  # type: ignore[operator]
    (capped,) = load_backlog(path, max_tokens=2)
    assert capped.body is not None
    assert capped.body["max_tokens"] == 2
    assert "max_completion_tokens" not in capped.body


def test_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (prompt,) = load_backlog(write(tmp_path / "prompts.jsonl", {"messages": messages}))
    assert maker().endpoint(prompt) == "/v1/chat/completions"
    assert maker().body(prompt, 0)["messages"] == messages


def test_lengths_make_exact_prompts(tmp_path: Path) -> None:
    path = write(tmp_path / "lengths.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens", "100,20,120")
    body = maker().body(load_backlog(path)[0], 0)
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (100, 20, True)
    (scaled,) = fit_backlog(load_backlog(path), length_scale=0.5, max_context=30, model_path=None)
    assert (scaled.num_prompt_tokens, scaled.max_tokens) == (20, 10)


def test_lengths_may_share_what_they_begin_with() -> None:
    about = [OfflinePrompt(1, num_prompt_tokens=60, block_ids=(block,), block_tokens=40) for block in (7, 7, 8)]
    first, second, other = (maker().body(prompt, index)["prompt"] for index, prompt in enumerate(about))
    assert first[:40] == second[:40] != other[:40] and first[40] != second[40]
    assert len(first) == len(second) == 60
    scaled = fit_backlog(about, length_scale=0.5, max_context=None, model_path=None)
    assert [(prompt.num_prompt_tokens, prompt.block_tokens) for prompt in scaled] == [(30, 20)] * 3


def test_csv_with_a_prompt_column(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.csv", 'act,prompt\r\nx,"two\nlines, quoted"\r\ny,second\r')
    assert [prompt.text for prompt in load_backlog(path)] == ["two\nlines, quoted", "second"]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('"act","prompt"\nx,y\n', ["y"]),
        ('act, prompt\nx, "y, z"\n', ["y, z"]),
        ('act,prompt\nx,"y\r\nz"\r\n', ["y\r\nz"]),
        ("prompt,act\ny,x,more\n", ["y"]),
        ("\ufeffprompt\nÄ\n", ["Ä"]),
        ('\ufeff{"prompt": "Ä"}\n', ["Ä"]),
    ],
    ids=[
        "quoted names",
        "blanks after commas",
        "line ends in a text",
        "more fields than names",
        "a mark",
        "a mark, JSON",
    ],
)
def test_files_as_spreadsheets_write_them(tmp_path: Path, content: str, texts: list[str]) -> None:
    (path := tmp_path / "prompts").write_text(content, encoding="utf-8", newline="")
    assert [prompt.text for prompt in load_backlog(path)] == texts


def test_a_row_may_say_its_own_max_tokens(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "max_tokens": 5},
        {"messages": [{"role": "user", "content": "b"}], "max_tokens": 9, "max_completion_tokens": 7},
        {"question": "c", "choices": ["1", "2"], "max_tokens": 3},
        {"prompt": "d", "max_tokens": None},
        {"prompt": "e", "max_tokens": 0},
    ]
    path = write(tmp_path / "prompts.jsonl", *rows)
    prompts = load_backlog(path)
    assert [prompt.max_tokens for prompt in prompts] == [5, 7, 3, 128, 1]
    assert [maker().body(prompt, 0)["max_tokens"] for prompt in prompts[:2]] == [5, 7]
    assert {prompt.max_tokens for prompt in load_backlog(path, max_tokens=2)} == {2}
    path = write(tmp_path / "prompts.csv", "prompt,max_tokens", "a,5", "b,")
    assert [prompt.max_tokens for prompt in load_backlog(path)] == [5, 128]


def test_limit_and_max_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.jsonl", *({"prompt": str(index)} for index in range(10)))
    prompts = load_backlog(path, limit=3, max_tokens=9)
    assert [(prompt.text, prompt.max_tokens) for prompt in prompts] == [("0", 9), ("1", 9), ("2", 9)]


def test_the_mark_is_in_front_of_every_text() -> None:
    prompts = [
        OfflinePrompt(1, text="t"),
        OfflinePrompt(1, messages=({"role": "user", "content": "m"},)),
        OfflinePrompt(1, endpoint=COMPLETIONS, body={"prompt": "p"}),
    ]
    text, chat, body = (maker("Set 1.\n").body(prompt, 0) for prompt in prompts)
    assert text["prompt"] == "Set 1.\nt"
    assert chat["messages"][0]["content"] == "Set 1.\nm"
    assert body["prompt"] == "Set 1.\np"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a"}, "{oops"], "line 2: "),
        ([{"prompt": "a"}, "[1]"], "line 2: Expected `object`, got `array`"),
        ([{"answer": "a"}], "line 1: no prompt: one of prompt, question"),
        ([{"prompt": "a"}, {"prompt": "b", "max_tokens": -1}], "line 2: Expected `int` >= 0 - at `$.max_tokens`"),
        (["prompt,max_tokens", "a,many"], "line 2: Expected `int`, got `str` - at `$.max_tokens`"),
        ([BATCH_LINE | {"url": "/v1/embeddings"}], "line 1: url must be one of"),
        ([BATCH_LINE, BATCH_LINE | {"url": COMPLETIONS}], "a batch has one endpoint"),
        (["name,answer", "a,b"], "line 1: no prompt column"),
        (["act,prompt", "a"], "line 2: 1 fields instead of 2"),
        (["prompt"], "no prompts in the file"),
        (
            ["num_prefill_tokens,num_decode_tokens", "a,b"],
            "line 2: Expected `int`, got `str` - at `$.num_pre",
        ),
        (["num_prefill_tokens,num_decode_tokens", "7,-2"], "line 2: Expected `int` >= 0 - at `$.num_decode_tokens`"),
        ([{"messages": ["hi"]}], "line 1: Expected `object`, got `str` - at `$.messages[0]`"),
        ([BATCH_LINE | {"body": {"messages": ["hi"]}}], "line 1: Expected `object`, got `str` - at `$.messages[0]`"),
    ],
)
def test_bad_files_name_file_and_line(tmp_path: Path, rows: list[object], message: str) -> None:
    path = write(tmp_path / "prompts", *rows)
    with pytest.raises(TraceError) as caught:
        load_backlog(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_batch_files_stay_within_the_limits(tmp_path: Path) -> None:
    lines = list(batch_lines(maker(), [OfflinePrompt(1, text=f"prompt {index}") for index in range(10)]))
    by_lines = write_files(lines, tmp_path, max_lines=4)
    assert [len(path.read_bytes().splitlines()) for path in by_lines] == [4, 4, 2]
    by_bytes = write_files(lines, tmp_path, max_bytes=len(lines[0]) * 3)
    assert b"".join(path.read_bytes() for path in by_bytes) == b"".join(lines)
    assert all(path.stat().st_size <= len(lines[0]) * 3 for path in by_bytes)
    assert [json.loads(line)["custom_id"] for line in lines] == [f"replay-{number}" for number in range(1, 11)]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("offline/mmlu_test.jsonl.gz", 14_042),
        ("offline/gsm8k_test.jsonl.gz", 1_319),
        ("offline/bbh.jsonl.gz", 6_511),
        ("offline/humaneval.jsonl.gz", 164),
        ("offline/truthfulqa.csv.gz", 817),
        ("online/awesome_chatgpt_prompts.csv.gz", 471),
        ("traces/arxiv_summarization_lengths.csv.gz", 28_257),
    ],
)
def test_published_prompts(name: str, count: int) -> None:
    prompts = load_backlog(shared_data(name))
    assert len(prompts) == count
    assert all(prompt.text or prompt.num_prompt_tokens for prompt in prompts)
