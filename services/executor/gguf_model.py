"""Turns a GGUF file into a model folder: float32 safetensors, and a tokenizer built from the file's own vocabulary.

The weights go through transformers' GGUF loader. The tokenizer does not: that loader gives every byte-level BPE the
GPT-2 pre-tokenizer, but a file names its own (``tokenizer.ggml.pre``), and SmolLM splits digits one by one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.errors import ModelError

CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of special tokens
SUPPORTED_PRE_TOKENIZERS = ("smollm",)

Progress = Callable[[str], None]


def convert(gguf_file: Path, folder: Path, progress: Progress) -> None:
    """Write a complete model folder from ``gguf_file``. Raises ModelError for a vocabulary it cannot express."""
    try:
        progress(f"reading {gguf_file.name}")
        fields = read_fields(gguf_file)
        _write_tokenizer(fields, folder)
        progress("unpacking the weights to float32")
        _write_model(gguf_file, folder, progress)
        _write_generation_config(fields, folder)
    except (ModelError, OSError):
        raise
    except Exception as error:  # the libraries have none of their own for a file that is no such model
        raise ModelError(f"{gguf_file} cannot be converted: {error!r}") from error


def read_fields(gguf_file: Path) -> dict[str, Any]:
    """What the file says of its tokenizer. Raises ModelError where it is no GGUF file, or a torn one."""
    from gguf import GGUFReader

    try:
        fields = GGUFReader(gguf_file).fields
        return {name: field.contents() for name, field in fields.items() if "tokenizer" in name}
    except Exception as error:  # struct.error, IndexError, UnicodeDecodeError ...: whatever the bytes lead to
        raise ModelError(f"{gguf_file} cannot be read as GGUF: {error!r}") from error


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    kind, pre_tokenizer = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre_tokenizer not in SUPPORTED_PRE_TOKENIZERS:
        raise ModelError(f"cannot convert a GGUF tokenizer of kind {kind}/{pre_tokenizer}: give a safetensors folder")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    special = [token for token, token_kind in zip(tokens, kinds, strict=True) if token_kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "add_bos_token": fields["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": fields["tokenizer.ggml.add_space_prefix"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)


def _write_model(gguf_file: Path, folder: Path, progress: Progress) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    config = AutoConfig.for_model(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # A model loaded from GGUF refuses to be saved; a plain one that takes over its tensors does not.
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    progress("writing safetensors")
    plain.save_pretrained(folder)


def _write_generation_config(fields: dict[str, Any], folder: Path) -> None:
    """Generation ends at the chat turn's end and at the end of a text, which an instruct model still writes."""
    eos_token_ids = [fields["tokenizer.ggml.eos_token_id"]]
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    if "<|endoftext|>" in tokens and tokens.index("<|endoftext|>") not in eos_token_ids:
        eos_token_ids.append(tokens.index("<|endoftext|>"))
    generation_config = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": eos_token_ids,
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    _write_json(folder / "generation_config.json", generation_config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
