"""Import this before nats-py: it is not to import aiohttp, which it can do without where nobody speaks WebSockets.

With aiohttp each process took a third of a second longer to start.
"""

import sys
from typing import Any

_modules: dict[str, Any] = sys.modules

if "aiohttp" not in _modules:
    _modules["aiohttp"] = None  # an import of it fails, as where it is not installed
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del _modules["aiohttp"]
