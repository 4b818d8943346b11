"""One stream at a time: a request that fails costs no other its figures."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.vllm import stream
from benchmarks.vllm.workload import Setting
from loadgen.errors import ServerError
from services.executor.prepare_model import DEFAULT_MODEL
from tests.benchmarks.test_vllm_side_by_side import Local
from tests.loadgen.openai_server import OpenAIServer

SETTING = Setting(online="", offline="", model=DEFAULT_MODEL)


@pytest.fixture
def compared(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "COMPARED", [Local(server, name) for name in ("theirs", "ours")])
    monkeypatch.setattr(stream, "SETTLED_S", 0.0)


async def measured(num_requests: int, folder: Path) -> Any:
    requests = [stream.stream_request(DEFAULT_MODEL, [1, 2, 3], 3) for _ in range(num_requests)]
    return await stream.measured(SETTING, requests, folder)


@pytest.mark.usefixtures("compared")
async def test_a_request_that_fails_is_left_out_of_all_figures_and_told(server: OpenAIServer, tmp_path: Path) -> None:
    server.failing_requests = 1
    times, failed = await measured(6, tmp_path)
    assert failed == ["theirs, request 0: 500: out of order | for now"]
    assert [len(own) for own in times] == [5, 5], "the first warms the servers up"
    assert all(ttft_ms > 0 and tbt_ms >= 0 for own in times for ttft_ms, tbt_ms in own)


@pytest.mark.usefixtures("compared")
async def test_a_server_that_fails_again_and_again_ends_it(server: OpenAIServer, tmp_path: Path) -> None:
    server.failing_requests = 12
    with pytest.raises(ServerError, match="2 requests failed: theirs, request 0: 500: out of order"):
        await measured(6, tmp_path)
