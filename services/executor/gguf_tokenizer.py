"""A model folder's tokenizer, built from the vocabulary of a GGUF file.

transformers' own loader gives every byte-level BPE the GPT-2 pre-tokenizer, but a file names its own
(``tokenizer.ggml.pre``): SmolLM splits digits one by one, Llama 3 by threes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL_TOKEN, USER_TOKEN = 3, 4  # tokenizer.ggml.token_type of special tokens, and of others that are matched whole
LLAMA_3 = (  # its pre-tokenizer's pattern
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_3_NAMES = ("llama-bpe", "llama-v3", "llama3")
SPACE = "\u2581"  # as SentencePiece writes it

Fields = dict[str, Any]


def why_no_tokenizer(fields: Fields) -> str | None:
    """None for a vocabulary that ``write_tokenizer`` can express."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind == "llama" or (kind == "gpt2" and pre in ("smollm", *LLAMA_3_NAMES)):
        return None
    return f"its tokenizer is of the kind {kind}/{pre}"


def write_tokenizer(fields: Fields, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json."""
    from tokenizers import AddedToken

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    tokenizer = _pieces(fields, tokens) if fields["tokenizer.ggml.model"] == "llama" else _byte_level(fields, tokens)
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    added = [(token, kind) for token, kind in kinds if kind in (CONTROL_TOKEN, USER_TOKEN)]
    for token, kind in added:
        is_special = kind == CONTROL_TOKEN
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([AddedToken(token, special=is_special, normalized=False)])
    _begin_and_end(tokenizer, fields, tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_config(fields, tokens, folder)


def adds(fields: Fields, which: str) -> bool:
    """Whether texts get the ``bos`` or the ``eos``, where it is not said as llama.cpp has it."""
    is_llama = fields["tokenizer.ggml.model"] == "llama" or fields.get("tokenizer.ggml.pre") in LLAMA_3_NAMES
    return bool(fields.get(f"tokenizer.ggml.add_{which}_token", which == "bos" and is_llama))


def _byte_level(fields: Fields, tokens: list[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    is_llama_3 = fields["tokenizer.ggml.pre"] in LLAMA_3_NAMES
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=is_llama_3))
    if is_llama_3:
        split: Any = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    else:
        split = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not is_llama_3)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(fields: Fields, tokens: list[str]) -> Tokenizer:
    """SentencePiece's BPE: two pieces are one where the whole is a piece, the greatest score first."""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from transformers.tokenization_utils_base import generate_merges

    vocab = {token: number for number, token in enumerate(tokens)}
    scores = dict(zip(tokens, fields["tokenizer.ggml.scores"], strict=True))
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = generate_merges(vocab, scores)
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return tokenizer


def _begin_and_end(tokenizer: Tokenizer, fields: Fields, tokens: list[str]) -> None:
    from tokenizers.processors import TemplateProcessing

    ids = {which: fields[f"tokenizer.ggml.{which}_token_id"] for which in ("bos", "eos") if adds(fields, which)}
    if ids:
        begin, end = ([tokens[ids[which]]] if which in ids else [] for which in ("bos", "eos"))
        special = [(tokens[number], number) for number in ids.values()]
        tokenizer.post_processor = TemplateProcessing(single=[*begin, "$A", *end], special_tokens=special)


def _write_config(fields: Fields, tokens: list[str], folder: Path) -> None:
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: fields.get(f"tokenizer.ggml.{other}_token_id") for name, other in named.items()}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {f"{name}_token": tokens[number] for name, number in ids.items() if number is not None}
    config |= {
        "add_bos_token": adds(fields, "bos"),
        "add_prefix_space": fields.get("tokenizer.ggml.add_space_prefix", fields["tokenizer.ggml.model"] == "llama"),
        "clean_up_tokenization_spaces": False,
    }
    template = fields.get("tokenizer.chat_template")
    config |= {} if template is None else {"chat_template": template}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
