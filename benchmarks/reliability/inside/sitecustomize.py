"""Read by each Python process that has this folder on its path: how many objects of which types it holds, written down
every ``OBJECTS_PERIOD_S`` into a file of its own in ``OBJECTS_FOLDER``; with ``OBJECTS_TRACED=1``, where they were made
as well. No other module may be named here: this is imported before the program's own path is there."""

import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path

NUM_TYPES, NUM_PLACES = 60, 40


def write_counts(folder: Path, period_s: float, is_traced: bool) -> None:
    """Until the process ends. Objects that the collector does not follow, as strings and numbers, are not counted."""
    while True:
        time.sleep(period_s)
        gc.collect()
        counts = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        types = dict(counts.most_common(NUM_TYPES))
        line = {"time_s": time.time(), "argv": sys.argv[:1], "total": counts.total(), "types": types}
        if is_traced:
            places = tracemalloc.take_snapshot().statistics("lineno")[:NUM_PLACES]
            line["places"] = {str(each.traceback): each.size for each in places}
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def begin() -> None:
    folder = os.environ.get("OBJECTS_FOLDER")
    if folder:
        is_traced = os.environ.get("OBJECTS_TRACED") == "1"
        if is_traced:
            tracemalloc.start()
        period_s = float(os.environ.get("OBJECTS_PERIOD_S", "60"))
        threading.Thread(target=write_counts, args=(Path(folder), period_s, is_traced), daemon=True).start()


begin()
