"""Model folders with random weights, made on the spot where no model is at hand: sizes of models that are known, and
small ones of several families. With a tokenizer they can be served."""

import json
from pathlib import Path
from typing import Any

import torch

KNOWN: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 32768,  # of its 131072, as many as fit beside each other in a GPU's memory
        "tie_word_embeddings": False,
    },
}  # of the family "llama"
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
TINY = SMALL | {"vocab_size": 40_000}  # with the tokens of the benchmarks' prompts
PAD, EOS = "<pad>", "<eos>"  # the ids 0 and 1
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SMALL_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 12, "head_dim": 16},
    "gpt_neox": {"rotary_pct": 0.25},
    "gemma": {"head_dim": 16},
}  # what each has beside SMALL


def save_random_model(
    folder: Path, family: str, sizes: dict[str, Any], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> None:
    """``device``: where the weights are drawn, which takes a processor minutes for a large model."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **sizes, eos_token_id=1, pad_token_id=0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """Beside a model of this vocabulary, 258 tokens at least: PAD, EOS, the 256 bytes, which texts are encoded in, and
    names that only the model says, as "tok300 ". With a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = [PAD, EOS, *sorted(byte_level.alphabet())]
    (space,) = (piece for piece, _ in byte_level.pre_tokenize_str(" "))
    tokens += [f"tok{number}{space}" for number in range(len(tokens), vocab_size)]
    assert len(tokens) == vocab_size, f"a byte-level vocabulary has {len(tokens)} tokens or more, not {vocab_size}"
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, EOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": EOS}
    config |= {"clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
