"""Prompts: exact lengths, shared blocks, and nothing shared otherwise."""

import re
from pathlib import Path

import pytest

from loadgen.errors import WorkloadError
from loadgen.workload.prompts import (
    Calibration,
    load_tokenizer,
    read_filler,
    text_prompts,
    token_id_prompts,
)
from loadgen.workload.traces import TraceRequest
from tests.loadgen.conftest import shared_data


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 4000, 120_000])
def test_token_ids_have_the_wanted_length(num_tokens: int) -> None:
    prompt = token_id_prompts(None, None, "salt").prompt(TraceRequest(0.0, num_tokens, 1), 0)
    assert len(prompt) == num_tokens
    assert all(isinstance(token, int) and token >= 1000 for token in prompt)


def test_equal_blocks_give_equal_prefixes_and_others_share_nothing() -> None:
    prompts = token_id_prompts(None, None, "salt")
    first = prompts.prompt(TraceRequest(0.0, 1300, 1, (1, 2, 3)), 0)
    second = prompts.prompt(TraceRequest(0.0, 1100, 1, (1, 2, 4)), 1)
    assert first[:1024] == second[:1024]
    assert first[1024:1032] != second[1024:1032]
    alone = [prompts.prompt(TraceRequest(0.0, 64, 1), index) for index in range(200)]
    assert len({tuple(prompt[:8]) for prompt in alone}) == 200


def test_blocks_scale_with_the_lengths() -> None:
    prompts = token_id_prompts(None, None, "salt")
    first = prompts.prompt(TraceRequest(0.0, 130, 1, (1, 2, 3), block_tokens=51), 0)
    second = prompts.prompt(TraceRequest(0.0, 110, 1, (1, 2, 4), block_tokens=51), 1)
    assert (len(first), len(second)) == (130, 110)
    assert first[:102] == second[:102]
    assert first[102:110] != second[102:110]


def test_the_salt_decides() -> None:
    prompts, request = token_id_prompts(None, None, "one"), TraceRequest(0.0, 50, 1, (1,))
    assert prompts.prompt(request, 3) == prompts.salted("one").prompt(request, 3)
    assert prompts.prompt(request, 3)[:8] != prompts.salted("two").prompt(request, 3)[:8]


def test_real_tokens_with_a_tokenizer_folder(tokenizer_folder: Path) -> None:
    ids = token_id_prompts(tokenizer_folder, None, "salt").prompt(TraceRequest(0.0, 500, 1), 0)
    assert len(ids) == 500
    assert max(ids) < load_tokenizer(tokenizer_folder).get_vocab_size()


def test_text_is_near_with_a_tokenizer(tokenizer_folder: Path) -> None:
    text = text_prompts(tokenizer_folder, None, "salt").prompt(TraceRequest(0.0, 500, 1), 0)
    assert isinstance(text, str)
    assert len(load_tokenizer(tokenizer_folder).encode(text).ids) == pytest.approx(500, rel=0.05)


def test_words_follow_the_calibration() -> None:
    prompts = text_prompts(None, None, "salt")
    prompts.calibration = Calibration(tokens_per_unit=2.0, overhead=10.0)
    text = prompts.prompt(TraceRequest(0.0, 110, 1), 0)
    assert isinstance(text, str)
    assert len(text.split()) == 50


def test_filler_text_is_used() -> None:
    filler = read_filler(shared_data("offline/tiny_shakespeare.txt.gz"))
    text = text_prompts(None, filler, "salt").prompt(TraceRequest(0.0, 300, 1), 0)
    assert isinstance(text, str)
    assert len({"the", "and", "of", "to", "you"} & set(text.split())) >= 3


def test_bad_folders_and_fillers_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=rf"^{re.escape(str(tmp_path))} .* has no tokenizer\.json$"):
        token_id_prompts(tmp_path, None, "salt")
    for broken in (b"", b"{", b"{}", b"\xff"):
        (tmp_path / "tokenizer.json").write_bytes(broken)
        with pytest.raises(WorkloadError, match=r"tokenizer\.json cannot be read as a tokenizer"):
            load_tokenizer(tmp_path)
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(WorkloadError, match="no words"):
        read_filler(tmp_path / "blank.txt")
