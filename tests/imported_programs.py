"""Imported by the process that forks for programs: what they import, which no collection of garbage looks at again."""

import gc
from importlib import import_module

for name in (
    *(f"services.{name}.__main__" for name in ("gateway", "executor", "offline_queue", "predictor", "profiler")),
    "services.local.batches.cli",
    "services.local.commands.chat",
    "services.local.commands.key.cli",
    "services.local.commands.status.table",
    "services.local.commands.up",
    "services.local.cli",
    "loadgen.cli",
    "tests.programs",
):
    import_module(name)
gc.collect()
gc.freeze()
