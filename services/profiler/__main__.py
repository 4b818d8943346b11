"""``python -m services.profiler``."""

import sys

from services.profiler.service import Profiler
from services.profiler.settings import ProfilerSettings
from shared.process.service import service_main

if __name__ == "__main__":
    sys.exit(service_main(ProfilerSettings, "profiler", Profiler))
