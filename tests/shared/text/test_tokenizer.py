"""Tokenizing as transformers does, and streams of text that always join to the decoded whole."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from shared.errors import ChatTemplateError, ModelError, TextTooLongError
from shared.text.token_stream import MAX_PENDING_TOKENS
from shared.text.tokenizer import Tokenizer

FOLDER = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None)
BYTE_LEVEL = Tokenizer.from_folder(FOLDER)
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "héllo 😀 漢字"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "<|im_end|>"},
    ],
]
# The model's vocabulary has no byte of most control characters and of some planes without characters.
CHARACTERS = st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_categories=("Cc", "Cs"))
MIXED_TEXT = st.text(st.one_of(CHARACTERS, st.sampled_from("😀👩🏽‍🚀漢é \n▁")), max_size=60)


def byte_fallback_backend() -> tokenizers.Tokenizer:
    """As SentencePiece models are: few whole words, a token for each byte, and a stripped first space."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeéhlo", "▁a", "▁h", "he", "ll"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "h"), ("h", "e"), ("l", "l")]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


BYTE_FALLBACK = Tokenizer(byte_fallback_backend(), None, {})


def stream(
    tokenizer: Tokenizer, token_ids: list[int], cuts: list[int], stop: tuple[str, ...] = (), **options: Any
) -> list[str]:
    """Push in pieces whose lengths are ``cuts``, over and over."""
    detokenizer = tokenizer.detokenizer(stop, **options)
    pieces, start, turn = [], 0, 0
    while start < len(token_ids):
        length = cuts[turn % len(cuts)]
        pieces.append(detokenizer.push(token_ids[start : start + length]))
        start, turn = start + length, turn + 1
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("text", ["x1!?", "hello world ", " ", "日本語"])
def test_a_long_text_with_too_many_tokens_is_refused(text: str) -> None:
    long, num_tokens = text * (1_000_000 // len(text)), len(BYTE_LEVEL.encode(text * 500))
    with pytest.raises(TextTooLongError, match=f"more than {num_tokens} tokens"):
        BYTE_LEVEL.encode(long, most=num_tokens)


@pytest.mark.parametrize("text", ["x1!?", "hello world ", " " * 1000, "日本語" * 9, "a"])
def test_a_text_that_is_not_too_long_is_read_whole(text: str) -> None:
    long = text * 300
    token_ids = BYTE_LEVEL.encode(long)
    assert BYTE_LEVEL.encode(long, most=len(token_ids)) == token_ids
    assert BYTE_LEVEL.encode(f"a{long}b", most=len(token_ids)) == BYTE_LEVEL.encode(f"a{long}b")


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    text, num_turns = "The quick brown fox jumps over the lazy dog. " * 20_000, 0
    encoding = threading.Thread(target=BYTE_LEVEL.encode, args=(text,))
    encoding.start()
    while encoding.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert num_turns > 10


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chat_template_gives_what_transformers_gives(messages: list[dict[str, str]]) -> None:
    reference = AutoTokenizer.from_pretrained(FOLDER)
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert BYTE_LEVEL.apply_chat_template(messages) == expected


@given(MIXED_TEXT)
def test_encode_and_decode_round_trip(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@given(MIXED_TEXT, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.booleans())
def test_streamed_text_joins_to_the_decoded_text(text: str, cuts: list[int], byte_fallback: bool) -> None:
    tokenizer = BYTE_FALLBACK if byte_fallback else BYTE_LEVEL
    token_ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, token_ids, cuts)) == tokenizer.decode(token_ids)


BROKEN_BYTE_IDS = [token_id for token_id in range(BYTE_LEVEL.vocab_size) if "\ufffd" in BYTE_LEVEL.decode([token_id])]


@given(
    st.lists(st.one_of(st.sampled_from(BROKEN_BYTE_IDS), st.integers(0, BYTE_LEVEL.vocab_size - 1)), max_size=80),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_any_token_ids_join_to_the_decoded_text(token_ids: list[int], cuts: list[int]) -> None:
    assert "".join(stream(BYTE_LEVEL, token_ids, cuts)) == BYTE_LEVEL.decode(token_ids)


@given(MIXED_TEXT, st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_no_piece_of_a_stream_breaks_a_character(text: str, cuts: list[int]) -> None:
    text = text.replace("\ufffd", "")
    pieces = stream(BYTE_LEVEL, BYTE_LEVEL.encode(text), cuts)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_multi_token_character_comes_whole_with_its_last_token() -> None:
    token_ids = BYTE_LEVEL.encode("🦜")
    assert len(token_ids) > 1
    assert stream(BYTE_LEVEL, token_ids, [1]) == [""] * (len(token_ids) - 1) + ["🦜", ""]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    token_ids = BYTE_LEVEL.encode("ok🦜")[:-1]
    assert stream(BYTE_LEVEL, token_ids, [1])[-1] == "\ufffd"


def test_broken_byte_tokens_do_not_stall_a_stream_with_byte_fallback() -> None:
    """An invalid byte makes the library's decoder void the whole run of bytes; the stream goes on after it."""
    emoji = [1 + byte for byte in "😀".encode()]
    pieces = stream(BYTE_FALLBACK, [*emoji, 1 + 0xFF, *BYTE_FALLBACK.encode("hello")], [1])
    assert pieces[3] == "😀"
    assert "".join(pieces).endswith(" hello")


def test_an_endless_run_of_broken_bytes_is_given_out_in_bounded_memory() -> None:
    detokenizer = BYTE_LEVEL.detokenizer()
    pieces = [detokenizer.push([BROKEN_BYTE_IDS[0]]) for _ in range(10 * MAX_PENDING_TOKENS)]
    assert sum(map(len, pieces)) >= 9 * MAX_PENDING_TOKENS - 1


def test_bytes_wait_for_their_character_as_long_as_one_can_be() -> None:
    """Whatever was shown before them."""
    for before in ("", "hello"):
        detokenizer = BYTE_LEVEL.detokenizer()
        shown = detokenizer.push(BYTE_LEVEL.encode(before))
        pieces = [detokenizer.push([BROKEN_BYTE_IDS[0]]) for _ in range(MAX_PENDING_TOKENS + 1)]
        assert shown == before and pieces[:-1] == [""] * MAX_PENDING_TOKENS and pieces[-1]


@given(
    st.lists(st.sampled_from([BROKEN_BYTE_IDS[:20], BROKEN_BYTE_IDS, BYTE_LEVEL.encode("😀")]), max_size=3),
    st.data(),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_long_runs_of_broken_bytes_join_to_the_decoded_text(
    pools: list[list[int]], data: st.DataObject, cuts: list[int]
) -> None:
    runs = [data.draw(st.lists(st.sampled_from(pool), min_size=20, max_size=60)) for pool in pools]
    token_ids = [token_id for run in runs for token_id in run]
    assert "".join(stream(BYTE_LEVEL, token_ids, cuts)) == BYTE_LEVEL.decode(token_ids)


@given(MIXED_TEXT, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([(), ("ab", "a\n")]))
def test_what_is_known_of_a_text_is_counted(text: str, cuts: list[int], stop: tuple[str, ...]) -> None:
    """What is held back, since a stop string may have begun, too."""
    token_ids, turn = BYTE_LEVEL.encode(text), 0
    detokenizer, plain = BYTE_LEVEL.detokenizer(stop), BYTE_LEVEL.detokenizer()
    num_known = 0
    while token_ids and not detokenizer.stopped:
        length = cuts[turn % len(cuts)]
        turn += 1
        detokenizer.push(token_ids[:length])
        num_known += len(plain.push(token_ids[:length]))
        token_ids = token_ids[length:]
        assert detokenizer.num_decoded == num_known


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 8),
    st.booleans(),
)
def test_text_ends_with_the_stop_string_that_is_complete_first(
    text: str, stop: list[str], cuts: list[int], min_tokens: int, includes_stop: bool
) -> None:
    """Of those that are not whole within ``min_tokens`` tokens, each of which is a letter here."""
    tokenizer = BYTE_LEVEL
    token_ids = [tokenizer.encode(letter)[0] for letter in text]
    places = [(at + len(each), at) for each in stop for at in range(len(text)) if text.startswith(each, at)]
    ends = [(end, at) for end, at in places if end > min_tokens]
    expected = text[: min(ends)[0 if includes_stop else 1]] if ends else text
    options = {"min_tokens": min_tokens, "includes_stop": includes_stop}
    assert "".join(stream(tokenizer, token_ids, cuts, tuple(stop), **options)) == expected


def test_a_tail_that_may_become_a_stop_string_is_held_back() -> None:
    detokenizer = BYTE_LEVEL.detokenizer(("STOP",))
    assert detokenizer.push(BYTE_LEVEL.encode("one ST")) == "one "
    assert detokenizer.push(BYTE_LEVEL.encode("ART")) == "START"
    assert detokenizer.push(BYTE_LEVEL.encode(" ST")) == " "
    assert detokenizer.push(BYTE_LEVEL.encode("OP now")) == ""
    assert detokenizer.stopped
    assert detokenizer.push(BYTE_LEVEL.encode("more")) == ""
    assert detokenizer.finish() == ""


def test_special_tokens_have_no_text_unless_they_are_to_be_shown() -> None:
    token_ids = [*BYTE_LEVEL.encode("a"), *BYTE_LEVEL.encode("<|im_end|>"), *BYTE_LEVEL.encode("b")]
    assert "".join(stream(BYTE_LEVEL, token_ids, [1])) == "ab"
    assert "".join(stream(BYTE_LEVEL, token_ids, [1], shows_special=True)) == "a<|im_end|>b"


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("{{ messages[0]['content'] | tojson }}", '"<é>"'),
        ("{% for m in messages %}{% break %}{% endfor %}done", "done"),
        ("{% if true %}\nx\n{% endif %}\n", "x\n"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ bos_token }}|{{ add_generation_prompt }}", "<s>|True"),
    ],
)
def test_templates_have_what_hugging_face_gives_them(template: str, rendered: str, tmp_path: Path) -> None:
    tokenizer = folder_with(tmp_path, {"chat_template": template, "bos_token": {"content": "<s>"}})
    assert tokenizer.render_chat([{"role": "user", "content": "<é>"}]) == rendered


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ messages[0].content.x.y }}", "{{ messages.append(1) }}"]
)
def test_a_template_that_refuses_raises(template: str, tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError):
        folder_with(tmp_path, {"chat_template": template}).render_chat([{"role": "user", "content": "a"}])


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        folder_with(tmp_path, {}).apply_chat_template([{"role": "user", "content": "a"}])


def test_named_templates_give_the_default(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert folder_with(tmp_path, {"chat_template": templates}).render_chat([]) == "D"


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "<|im_end|>"),
        ({}, "<|im_end|>"),
        ({"eos_token": "<|endoftext|>"}, "<|im_end|>"),
        ({"eos_token": "<|endoftext|>", "added_tokens_decoder": {}}, "<|endoftext|>"),
    ],
)
def test_the_names_of_tokens_are_read_as_transformers_reads_them(
    config: dict[str, object] | None, name: str, tmp_path: Path
) -> None:
    """Older models have them in a file of their own, some in that alone."""
    folder_with(tmp_path, config or {})
    if config is None:
        (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 128, "vocab_size": 49152}))
    tokenizer, reference = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert tokenizer.render_chat([]) == reference.eos_token == name
    assert tokenizer.eos_token_ids == {reference.eos_token_id}


@pytest.mark.parametrize("has_default", [True, False])
def test_a_template_for_tools_that_is_a_file_is_read_as_transformers_reads_it(
    has_default: bool, tmp_path: Path
) -> None:
    """In place of what the config has, also where that is all but the one for tools."""
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("{{ tools | length }} tools")
    if has_default:
        (tmp_path / "chat_template.jinja").write_text("no tools")
    config = {"chat_template": "of the config", "tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer, messages, tools = folder_with(tmp_path, config), CONVERSATIONS[0], [{"type": "function"}]
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    expected = reference.apply_chat_template(messages, tools=tools, tokenize=False)
    assert tokenizer.render_chat(messages, tools) == expected == "1 tools"
    if has_default:
        assert tokenizer.render_chat(messages) == reference.apply_chat_template(messages, tokenize=False) == "no tools"
        return
    with pytest.raises(ValueError, match="no default"):
        reference.apply_chat_template(messages, tokenize=False)
    with pytest.raises(ChatTemplateError):
        tokenizer.render_chat(messages)


@pytest.mark.parametrize(
    ("filename", "contents"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("special_tokens_map.json", "[]"),
        ("chat_template.jinja", "{% if %}"),
    ],
)
def test_an_unusable_folder_raises_a_named_error(filename: str, contents: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {})
    (tmp_path / filename).write_text(contents)
    with pytest.raises(ModelError):
        Tokenizer.from_folder(tmp_path)


def folder_with(folder: Path, config: dict[str, object]) -> Tokenizer:
    (folder / "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)
