"""vLLM's EngineCore as ``benchmarks.vllm.throughput`` times it: in this process, with its own scheduler."""

import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.decode_bench_connector import DecodeBenchConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor
from vllm.v1.request import Request

KV_BYTES = 1 << 30  # only so that vLLM does not measure the memory: the number of blocks is given
DECODE = "decode"  # begins the ids of requests whose prompt is not computed


class DecodesOnly(DecodeBenchConnector):
    """Hands over the KV of decodes, which costs nothing, and of no other request."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not request.request_id.startswith(DECODE):
            return 0, False
        matched: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return matched


class VllmSubject:
    """Does what ``benchmarks.vllm.throughput.TorchSubject`` does. ``limits``: arguments of EngineArgs."""

    turn: Callable[[], list[int]] = list

    def __init__(self, path: Path, **limits: int) -> None:
        connector = KVTransferConfig(
            kv_connector=DecodesOnly.__name__,
            kv_connector_module_path=__name__,
            kv_role="kv_both",
            kv_connector_extra_config={"startup_fill": True},
        )
        config = EngineArgs(
            model=str(path),
            dtype="float32",
            enforce_eager=True,
            enable_prefix_caching=False,
            distributed_executor_backend="uni",
            async_scheduling=False,
            kv_cache_memory_bytes=KV_BYTES,
            kv_transfer_config=connector,
            **limits,
        ).create_engine_config()
        self._core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self._added: list[str] = []

    def decode(self, prompts: list[list[int]], max_steps: int) -> Callable[[], list[int]]:
        """Of the last token of each prompt first, then of what follows; for so many steps at most."""
        for number, prompt in enumerate(prompts):
            self._add(f"{DECODE}-{number}", prompt, max_steps)
        return lambda: [self._step()]

    def prefill(self, prompt: list[int]) -> Callable[[], list[int]]:
        def run() -> list[int]:
            self._add("prefill", prompt, 1)
            sampled = []
            while self._core.scheduler.has_unfinished_requests():
                sampled.append(self._step())
            self._step()  # what has finished is told to the runner
            return sampled

        return run

    def finish(self) -> None:
        self._core.abort_requests(self._added)
        self._added = []
        while self._core.scheduler.has_requests():
            self._step()

    def _step(self) -> int:
        """Returns how many tokens were sampled."""
        outputs, ran = self._core.step_fn()
        self._core.post_step(ran)
        return sum(len(output.new_token_ids) for client in (outputs or {}).values() for output in client.outputs)

    def _add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))
        self._added.append(request_id)
