"""A model folder without weights: a tokenizer of single bytes and two merges, a chat template, and sizes."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
CONFIG = {"max_position_embeddings": 128, "vocab_size": 258, "eos_token_id": [1, 2], "model_type": "llama", **SIZES}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TEMPLATES = [{"name": "default", "template": TEMPLATE}]
FILES = {
    "config.json": CONFIG,
    "generation_config.json": {},
    "tokenizer_config.json": {"bos_token": {"content": "a"}, "eos_token": "b", "chat_template": TEMPLATES},
    "model.safetensors.index.json": {"weight_map": {"a": "model-1.safetensors"}},
}


def write_model(folder: Path) -> Path:
    """All that a tokenizer and the facts of a model need; the shard of the index is empty."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc"]
    merges = [("a", "b"), ("ab", "c")]
    backend = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    for name, content in FILES.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model-1.safetensors").touch()
    return folder
