"""Which models the vLLM that is installed serves, read without importing it, which takes seconds."""

import ast
import importlib.util
from collections.abc import Collection
from pathlib import Path

REGISTRY = "model_executor/models/registry.py"  # within the package
TEXT_MODELS = "_TEXT_GENERATION_MODELS"  # its table of them, by the names that config.json has under architectures


def served_architectures() -> Collection[str] | None:
    """Of text models; None where vLLM is not installed, or keeps its table in another way."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse((Path(spec.origin).parent / REGISTRY).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if names == [TEXT_MODELS]:
                return [str(key.value) for key in statement.value.keys if isinstance(key, ast.Constant)]
    return None
