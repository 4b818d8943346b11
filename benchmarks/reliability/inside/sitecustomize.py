"""Read by each Python process that has this folder on its path: what it holds, written down every ``OBJECTS_PERIOD_S``
into a file of its own in ``OBJECTS_FOLDER``. ``blocks``: of memory that Python has given out, for objects of any kind;
``types``: of those that its collector follows; ``heap_mib``: of the C library's malloc, of which ``free_mib`` are free
and not given back; with ``OBJECTS_TRACED=1`` ``places``, where objects were made. No other module may be named here:
this is imported before the program's own path is there."""

import ctypes
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

NUM_TYPES, NUM_PLACES = 60, 400


def write_counts(folder: Path, period_s: float, is_traced: bool) -> None:
    """Until the process ends."""
    while True:
        time.sleep(period_s)
        gc.collect()
        counts = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        line = {"time_s": time.time(), "argv": sys.argv[:1], "blocks": sys.getallocatedblocks()}
        line |= {"types": dict(counts.most_common(NUM_TYPES)), **heap()}
        if is_traced:
            places = tracemalloc.take_snapshot().statistics("lineno")[:NUM_PLACES]
            line["places"] = {str(each.traceback): each.size for each in places}
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def heap() -> dict[str, float]:
    """Of all of malloc's arenas; nothing where the C library is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_info"):
        return {}
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.malloc_info(0, stream)
    library.fclose(stream)
    root = ElementTree.fromstring(ctypes.string_at(text, size.value))
    library.free(text)
    sizes = {f"{each.tag} {each.get('type')}": int(each.get("size", 0)) for each in root if each.tag != "heap"}
    free = sizes["total fast"] + sizes["total rest"]
    return {"heap_mib": (sizes["system current"] + sizes["total mmap"]) / 2**20, "free_mib": free / 2**20}


def begin() -> None:
    folder = os.environ.get("OBJECTS_FOLDER")
    if folder:
        is_traced = os.environ.get("OBJECTS_TRACED") == "1"
        if is_traced:
            tracemalloc.start()
        period_s = float(os.environ.get("OBJECTS_PERIOD_S", "60"))
        threading.Thread(target=write_counts, args=(Path(folder), period_s, is_traced), daemon=True).start()


begin()
