"""What ``slackwater doctor`` asks of a model: its folder, and the adapters that are to be loaded with it."""

from __future__ import annotations

from pathlib import Path

from services.executor.adapters import find_adapters
from services.executor.prepare_model import default_cache_dir, find_prepared, require_runnable
from services.local.doctor.check import Check, failed, ok, warning
from services.local.stack.options import StackOptions
from shared.errors import ModelError
from shared.settings.lora_modules import adapter_names

PACKAGES = "pip install 'slackwater[executor]'"


class ModelChecks:
    """Of one of a stack's models. Its folder is looked for once: to see that it is complete takes reading it."""

    def __init__(self, options: StackOptions) -> None:
        self.options = options
        self._folder: Path | None = None  # also where it cannot be had
        self._error: ModelError | ImportError | None = None
        try:
            self._folder = find_prepared(options.model, default_cache_dir())
        except (ModelError, ImportError) as error:
            self._error = error

    @property
    def weights_bytes(self) -> int:
        """Of the prepared model's files; 0 where it is not there or not loaded."""
        if self._folder is None or self.options.engine == "sim":
            return 0
        return sum(path.stat().st_size for path in self._folder.glob("*.safetensors"))

    def model_check(self) -> Check:
        """Whether the model is there, or can be made."""
        try:
            if self._error is not None:
                raise self._error
            if self._folder is not None:
                require_runnable(self._folder, self.options.engine)
        except ModelError as error:
            return failed("model", str(error), "name another with --model")
        except ImportError as error:
            return failed("model", f"cannot be looked for: {error}", PACKAGES)
        if self._folder is None:
            what = f"{self.options.model} is not prepared"
            return warning("model", what, "the first start prepares it; it takes a minute, or a download")
        return ok("model", f"{self.options.model} in {self._folder}")

    def adapters_check(self) -> Check:
        """Whether the LoRA adapters of the model are there, and are its own."""
        modules = self.options.lora_modules
        try:
            found = [] if self._folder is None else find_adapters(modules, self._folder)
        except ModelError as error:
            return failed("adapters", str(error), "correct or leave out what --lora-modules names")
        except ImportError as error:
            return failed("adapters", f"cannot be looked for: {error}", PACKAGES)
        there = [each.name for each in found]
        if missing := [name for name in adapter_names(modules) if name not in there]:
            remedy = "the first start prepares the model and them" if self._error is None else "correct --model first"
            return warning("adapters", f"not looked at: {', '.join(missing)}", remedy)
        return ok("adapters", ", ".join(f"{each.name} of rank {each.rank} in {each.folder}" for each in found))
