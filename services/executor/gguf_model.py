"""Turns a GGUF file of a Llama into a model folder: float32 safetensors, and a tokenizer built from the file's own
vocabulary. The weights go through transformers' GGUF loader."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.executor.gguf_file import GgufFile
from services.executor.gguf_tokenizer import Fields, write_tokenizer
from shared.errors import ModelError

ENDS = (  # of a text, and of a turn in a chat, as llama.cpp goes by: files of ChatML often name </s> as their eos
    *("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
)
KV_HEADS = "llama.attention.head_count_kv"

Progress = Callable[[str], None]


def convert(gguf_file: Path, folder: Path, progress: Progress) -> None:
    """Write a complete model folder from ``gguf_file``. Raises ModelError for a model that it cannot express, OSError
    where the folder cannot be written."""
    try:
        progress(f"reading {gguf_file.name}")
        file = GgufFile.read(gguf_file)
        file.require_llama()
        write_tokenizer(file.fields, folder)
        progress("unpacking the weights to float32")
        _write_model(file, folder, progress)
        _write_generation_config(file.fields, folder)
    except (ModelError, OSError):
        raise
    except Exception as error:  # the libraries have none of their own for a file that is no such model
        raise ModelError(f"{gguf_file} cannot be converted: {error!r}") from error


def _write_model(file: GgufFile, folder: Path, progress: Progress) -> None:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(file.path.parent, gguf_file=file.path.name, dtype=torch.float32)
    described = {name: value for name, value in loaded.config.to_dict().items() if name != "quantization_config"}
    rope = file.rope_parameters()
    described |= {} if rope is None else {"rope_parameters": rope}
    config = AutoConfig.for_model(**described)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # A model loaded from GGUF refuses to be saved; a plain one that takes over its tensors does not.
    plain.load_state_dict(_turned_back(file, loaded), assign=True)
    plain.tie_weights()
    progress("writing safetensors")
    try:
        plain.save_pretrained(folder)
    except SafetensorError as error:  # its own for what the system refuses
        raise OSError(str(error)) from error


def _turned_back(file: GgufFile, loaded: Any) -> dict[str, Any]:
    """The weights of ``loaded``. Where a file does not say how many KV heads there are, which then are as many as the
    others, transformers leaves the rows of queries and keys in the order of llama.cpp: in pairs that turn together."""
    weights: dict[str, Any] = loaded.state_dict()
    if KV_HEADS in file.fields:
        return weights
    num_heads = loaded.config.num_attention_heads
    for name in [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight"))]:
        pairs = weights[name].unflatten(0, (num_heads, -1, 2))
        weights[name] = pairs.transpose(1, 2).flatten(0, 2).contiguous()
    return weights


def _write_generation_config(fields: Fields, folder: Path) -> None:
    """Generation ends at the chat turn's end and at the end of a text, which an instruct model still writes."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    own = (fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id"))
    ends = [*(number for number in own if number is not None), *(tokens.index(end) for end in ENDS if end in tokens)]
    known = {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(ends)),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    text = json.dumps({name: value for name, value in known.items() if value is not None}, indent=2)
    (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")
