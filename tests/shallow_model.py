"""The default model without most of its layers, for tests that compare one engine with another or with transformers.

It keeps the tokenizer, the embeddings, the sizes of every layer, and the first two and the last two of its thirty: a
forward pass costs a sixth. What it says makes no sense, but is other for every prompt, and hangs on all of its KV;
with its first layers alone it would say one word over and over, whatever it read.
"""

import json
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file

KEPT_LAYERS = (0, 1, 28, 29)
LAYER_PREFIX = "model.layers."


def make_shallow(model_folder: Path, folder: Path) -> Path:
    """``folder``, with the prepared model of ``model_folder`` in it, cut to KEPT_LAYERS."""
    for path in model_folder.iterdir():
        if path.suffix == ".json":
            shutil.copyfile(path, folder / path.name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": len(KEPT_LAYERS)}))
    with safe_open(model_folder / "model.safetensors", "numpy") as weights:
        kept = {name: new_name for name in weights.keys() if (new_name := renamed(name)) is not None}  # noqa: SIM118
        tensors = {new_name: weights.get_tensor(name) for name, new_name in kept.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def renamed(name: str) -> str | None:
    """A tensor's name in the shallow model; None for one that is left out."""
    if not name.startswith(LAYER_PREFIX):
        return name
    number, _, rest = name.removeprefix(LAYER_PREFIX).partition(".")
    return f"{LAYER_PREFIX}{KEPT_LAYERS.index(int(number))}.{rest}" if int(number) in KEPT_LAYERS else None
