"""vLLM's ``LLM.chat`` as it comes, in a process of its own that imports nothing of ours: ``rates`` starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

GREEDY = {"temperature": 0.0}
WARM_UP = "Say hello."
TIMEOUT_S = 900.0


def set_by_engines() -> set[str]:
    """Names of variables of this process that our engines' modules set, which vLLM by itself is to run without."""
    return {name for name in os.environ if name.startswith(("GOMP_", "OMP_", "THP_", "VLLM_"))}


def rates(
    path: Path, rounds: list[list[str]], max_tokens: int, threads: int, eager: bool = False, one_process: bool = False
) -> list[float]:
    """Output tokens/s of each round of texts. ``eager``: the model is not compiled; ``one_process``: its engine has no
    process of its own. Raises CalledProcessError, TimeoutExpired."""
    ours = set_by_engines()
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB, as a stack takes; else it is nearly all memory
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one_process))}
    order = json.dumps([str(path), rounds, max_tokens, eager])
    command = [sys.executable, __file__]
    done = subprocess.run(
        command, input=order, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S
    )
    return [float(rate) for rate in json.loads(done.stdout)]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    from vllm import LLM, SamplingParams

    path, rounds, max_tokens, eager = json.load(sys.stdin)
    llm = LLM(model=path, dtype="float32", enforce_eager=eager, generation_config="vllm")

    def rate(texts: list[str]) -> float:
        start_s = time.perf_counter()
        asked = [[{"role": "user", "content": text}] for text in texts]
        outputs = llm.chat(asked, SamplingParams(max_tokens=max_tokens, **GREEDY), use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - start_s)

    rate([WARM_UP])
    json.dump([rate(texts) for texts in rounds], answers)
    answers.close()


if __name__ == "__main__":
    main()
