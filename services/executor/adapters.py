"""LoRA adapters of a model, in folders as PEFT writes them: what is in each, and whether the model can run with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.executor.gguf_model import Progress
from services.executor.hub import HUB_ID, cached, fetch
from shared.errors import ModelError
from shared.settings.lora_modules import LoraModule, parse_lora_modules
from shared.text.model_folder import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512  # vLLM's
FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
NUMBER = re.compile(r"\.\d+(?=\.)")  # of a layer
NOT_ADAPTED = ("embed_tokens", "lm_head")  # outside of the layers
# Of the configuration what the model could not be run with as PEFT does, where it says anything.
UNSUPPORTED = ("modules_to_save", "use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapter:
    """``rank``: the largest of its matrices, and no less than its configuration's, which vLLM asks for also where each
    matrix has one of its own; ``modules``: those that it changes, by the last parts of their names."""

    name: str
    folder: Path
    rank: int
    modules: tuple[str, ...]


def prepare_adapters(lora_modules: str, model_folder: Path, progress: Progress) -> list[Adapter]:
    """Those of the setting, fetched where they are a hub's. Raises ModelError, and ValueError for the setting."""

    def folder_of(module: LoraModule) -> Path:
        return _find(module) or fetch(module.path, (CONFIG, WEIGHTS), _check_files, progress)

    return _read_all(lora_modules, model_folder, folder_of)


def find_adapters(lora_modules: str, model_folder: Path) -> list[Adapter]:
    """Those of the setting that are here. Raises ModelError as ``prepare_adapters``."""
    return _read_all(lora_modules, model_folder, _find)


def require_adapters(lora_modules: str, model_folder: Path) -> list[Adapter]:
    """As ``find_adapters``. Raises ModelError as well for one that is not here."""

    def folder_of(module: LoraModule) -> Path:
        folder = _find(module)
        if folder is None:
            raise ModelError(f"the adapter {module.name!r} is not here: {module.path} was not fetched from the hub")
        return folder

    return _read_all(lora_modules, model_folder, folder_of)


def _read_all(lora_modules: str, model_folder: Path, folder_of: Callable[[LoraModule], Path | None]) -> list[Adapter]:
    """Those that have a folder. What the model consists of is read once. Raises ModelError that names the adapter."""
    modules = parse_lora_modules(lora_modules)
    model = dict(_shapes_of(model_folder)) if modules else {}
    found = []
    for module in modules:
        folder = folder_of(module)
        if folder is None:
            continue
        try:
            found.append(_read(module.name, folder, model, model_folder))
        except ModelError as error:
            raise ModelError(f"the adapter {module.name!r} cannot be run: {error}") from error
    return found


def _find(module: LoraModule) -> Path | None:
    """Its folder; None where it is to be fetched first. Raises ModelError where it is neither a folder nor a hub id."""
    folder = Path(module.path).expanduser()
    if folder.is_dir():
        _check_files(folder)
        return folder.resolve()
    if HUB_ID.fullmatch(module.path):
        return cached(module.path, (CONFIG, WEIGHTS), _check_files)
    raise ModelError(
        f"no adapter {module.name!r}: there is no folder {folder.absolute()}; write the path of a folder with {CONFIG} "
        f"and {WEIGHTS}, or a Hugging Face hub id"
    )


def _check_files(folder: Path) -> None:
    for filename in (CONFIG, WEIGHTS):
        if not (folder / filename).is_file():
            raise ModelError(f"{folder} is no LoRA adapter: it has no {filename}")


def _read(name: str, folder: Path, model: dict[str, Shape], model_folder: Path) -> Adapter:
    config = read_json(folder / CONFIG)
    _check_config(config, folder)
    factors = _factors(folder)
    _check_shapes(factors, model, bool(config.get("fan_in_fan_out")), model_folder)
    rank = max(config["r"], *(shapes["A"][0] for shapes in factors.values()))
    if rank > MAX_RANK:
        raise ModelError(f"its rank is {rank}, and vLLM takes ranks up to {MAX_RANK}")
    return Adapter(name, folder, rank, tuple(sorted({module.rpartition(".")[2] for module in factors})))


def _check_config(config: dict[str, Any], folder: Path) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ModelError(f"{folder} holds one of the kind {kind}, not of LORA")
    asked = [key for key in UNSUPPORTED if config.get(key)]
    if config.get("bias", "none") != "none":
        asked.append("bias")
    if asked:
        raise ModelError(f"its {CONFIG} has {', '.join(asked)}, which vLLM does not run")
    if not isinstance(config.get("r"), int) or not isinstance(config.get("lora_alpha"), int | float):
        raise ModelError(f"its {CONFIG} says no r, or no lora_alpha")


def _factors(folder: Path) -> dict[str, dict[str, Shape]]:
    """By module, the shapes of its two matrices: A [rank, in_features], B [out_features, rank]."""
    factors: dict[str, dict[str, Shape]] = {}
    for key, shape in _shapes(folder / WEIGHTS):
        found = FACTOR.fullmatch(key)
        if found is None or found["module"].rpartition(".")[2] in NOT_ADAPTED:
            raise ModelError(f"it changes {key}: only matrices within the layers can be adapted")
        factors.setdefault(found["module"], {})[found["factor"]] = shape
    if not factors:
        raise ModelError(f"its {WEIGHTS} is empty")
    for module, shapes in factors.items():
        if len(shapes) < 2 or shapes["A"][0] != shapes["B"][-1]:
            raise ModelError(f"its two matrices for {module} do not go together")
    return factors


def _check_shapes(
    factors: dict[str, dict[str, Shape]], model: dict[str, Shape], is_transposed: bool, model_folder: Path
) -> None:
    """Of all modules that the model's folder has in full, by their names. Raises ModelError; also for a layer that is
    not there where others have the same module, which vLLM would pass over."""
    weights = {module: model[f"{module}.weight"] for module in factors if f"{module}.weight" in model}
    prefixes = {key.rpartition(".")[0] for key in model}
    missing = [module for module in factors if module not in prefixes]
    kinds = {NUMBER.sub("", prefix) for prefix in prefixes}
    beyond = [module for module in missing if NUMBER.sub("", module) in kinds]
    if beyond or len(missing) == len(factors):
        raise ModelError(f"it is one of another model: {model_folder} has no {(beyond or missing)[0]}")
    for module, weight in weights.items():
        changed = factors[module]["B"][0], factors[module]["A"][-1]
        if (changed[::-1] if is_transposed else changed) != weight:
            raise ModelError(
                f"it is one of another model: for {module} it is made for {_said(changed)}, and {model_folder} has "
                f"{_said(weight)}"
            )


def _shapes_of(model_folder: Path) -> Iterator[tuple[str, Shape]]:
    for path in sorted(model_folder.glob("*.safetensors")):
        yield from _shapes(path)


def _shapes(path: Path) -> Iterator[tuple[str, Shape]]:
    """Of all tensors; only the file's header is read. Raises ModelError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            for key in file.keys():  # noqa: SIM118 - it is no dict
                yield key, tuple(file.get_slice(key).get_shape())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _said(shape: Shape) -> str:
    return " x ".join(map(str, shape))
