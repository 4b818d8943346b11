"""Scores of prompts' tokens by the engines, against transformers' own log probabilities."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.executor.engines.sampling import prompt_scores
from services.executor.engines.sampling.prompt_scores import score_tokens, with_scores
from services.executor.engines.sampling.sampler import LEAST, NOT_FINITE
from services.executor.engines.sim import SimEngine
from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.vllm.environment import import_vllm
from shared.latency.linear import LinearLatencyModel
from shared.protocol.prompt_scores import PromptScore, pack_scores, record_bytes, unpack_scores
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine, SampledTokens, Sequence, StepBatch
from tests.services.executor.engines.engine_prompts import encoded_prompts
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model
from tests.shared.replica.test_replica import make_spec
from tests.with_vllm import NEEDS_VLLM

NUM_TOP = 3
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def prompts(shallow_model: Path) -> list[list[int]]:
    return encoded_prompts(shallow_model)[8:12]


@pytest.fixture(scope="module")
def expected(shallow_model: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Log probabilities [num_tokens - 1, vocab_size] of what follows each token but the last."""
    model = AutoModelForCausalLM.from_pretrained(shallow_model, dtype=torch.float32)
    return [transformers_logprobs(model, prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def torch_engine(shallow_model: Path) -> Iterator[TorchEngine]:
    engine = TorchEngine.load(shallow_model, "test", device="cpu", dtype="float32", num_blocks=120, num_threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vllm_engine(shallow_model: Path) -> Iterator[Any]:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    sizes = {"num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    engine = VllmEngine.load(shallow_model, "test", VllmOptions(1, dtype="float32", **sizes))  # type: ignore[arg-type]
    yield engine
    engine.close()


def transformers_logprobs(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logprobs: torch.Tensor = model(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)
    return logprobs


def scored_in_chunks(engine: Engine, prompts: list[list[int]], sizes: list[int], max_tokens: int = 0) -> list[bytes]:
    """All prompts side by side, each in its own chunks, the last of which has what ``sizes`` leave."""
    sampling = SamplingParams(max_tokens, temperature=0.0, prompt_logprobs=NUM_TOP)
    per_prompt = max(-(-len(prompt) // engine.spec.block_size) for prompt in prompts)
    found, done = [b""] * len(prompts), [0] * len(prompts)
    for step in range(1000):
        sequences = []
        for i, prompt in enumerate(prompts):
            end = min(len(prompt), done[i] + sizes[(step + i) % len(sizes)])
            if done[i] == len(prompt):
                continue
            table = list(range(i * per_prompt, (i + 1) * per_prompt))[: -(-end // engine.spec.block_size)]
            asked = {"needs_sample": max_tokens > 0 and end == len(prompt), "scored_ids": prompt[done[i] + 1 : end + 1]}
            sequences.append(Sequence(str(i), prompt[done[i] : end], done[i], table, sampling, **asked))
        if not sequences:
            return found
        result = engine.execute(StepBatch(step, sequences))
        assert not result.failed
        assert set(result.sampled) == {each.request_id for each in sequences if each.needs_sample}
        for sequence in sequences:
            i = int(sequence.request_id)
            found[i] += result.prompt_scores.get(sequence.request_id, b"")
            done[i] += len(sequence.token_ids)
    raise AssertionError("it has no end")


def check(packed: bytes, prompt: list[int], logprobs: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    scores = list(unpack_scores(packed, NUM_TOP))
    assert len(scores) == len(prompt) - 1
    for score, token_id, row in zip(scores, prompt[1:], logprobs, strict=True):
        assert score.logprob == pytest.approx(float(row[token_id]), abs=tolerance)
        assert score.top_logprobs == pytest.approx(row.topk(NUM_TOP).values.tolist(), abs=tolerance)
        assert [float(row[id]) for id in score.top_token_ids] == pytest.approx(score.top_logprobs, abs=tolerance)
        least, most = (int((row > float(row[token_id]) + by).sum()) + 1 for by in (tolerance, -tolerance))
        assert least <= score.rank <= most


@pytest.mark.parametrize("sizes", [[512], [1, 16, 37], [5, 64, 2, 1]])
def test_torch_gives_transformers_log_probabilities(
    torch_engine: TorchEngine, prompts: list[list[int]], expected: list[torch.Tensor], sizes: list[int]
) -> None:
    for i, packed in enumerate(scored_in_chunks(torch_engine, prompts, sizes)):
        check(packed, prompts[i], expected[i])


def test_decodes_that_run_as_graphs_are_scored_beside_them(
    torch_engine: TorchEngine, prompts: list[list[int]], expected: list[torch.Tensor]
) -> None:
    """A chunk of one token looks like a decode."""
    found = scored_in_chunks(torch_engine, prompts[:2], [1], max_tokens=4)
    for i, packed in enumerate(found):
        check(packed, prompts[i], expected[i])


@pytest.mark.slow
@NEEDS_VLLM
@pytest.mark.parametrize("sizes", [[100], [1, 16, 37]])
def test_vllm_gives_transformers_log_probabilities(
    vllm_engine: Any, prompts: list[list[int]], expected: list[torch.Tensor], sizes: list[int]
) -> None:
    for i, packed in enumerate(scored_in_chunks(vllm_engine, prompts, sizes, max_tokens=1)):
        check(packed, prompts[i], expected[i])


OTHERS: dict[str, dict[str, Any]] = {  # whose decoders give more than hidden states, or are found at other places
    "gpt2": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
    "llama4_text": {
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "head_dim": 16,
        "attn_temperature_tuning": False,
    },
}


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_other_families_scale_and_cap_as_transformers_does(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "SLICE_LOGITS", 7 * 300)
    model = save_model(tmp_path, family, **(FAMILIES | OTHERS)[family])
    engine = TorchEngine.load(tmp_path, family, device="cpu", num_blocks=40, block_size=8, num_threads=1)
    prompts = [[(7 * place + 3 * place * place) % 290 + 5 for place in range(length)] for length in (2, 41, 64)]
    for prompt, packed in zip(prompts, scored_in_chunks(engine, prompts, [23, 50]), strict=True):
        check(packed, prompt, transformers_logprobs(model, prompt))
    engine.close()


def test_only_a_slice_of_the_logits_is_there_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scores, "SLICE_LOGITS", 1000)
    weight, hidden, asked = torch.randn(8, 300), torch.randn(20, 8), []

    def logits_of(states: torch.Tensor) -> torch.Tensor:
        asked.append(len(states))
        return states @ weight

    packed = score_tokens(logits_of, hidden, list(range(20)), NUM_TOP)
    assert packed is not None and sum(asked) == 20 and max(asked) == 3
    check(packed, [0, *range(20)], (hidden @ weight).log_softmax(-1), 1e-5)


def test_what_is_not_finite_has_failed_and_what_is_impossible_is_told_as_a_number() -> None:
    hidden = torch.eye(2)
    impossible = torch.tensor([[0.0, -torch.inf], [1.0, 0.0]])
    packed = score_tokens(lambda states: states @ torch.eye(2) * 0 + impossible[: len(states)], hidden, [1, 0], 1)
    assert packed is not None
    assert next(unpack_scores(packed, 1)) == (LEAST, 2, (0,), (0.0,))
    broken = score_tokens(lambda states: torch.full((len(states), 2), torch.nan), hidden, [1, 0], 1)
    assert broken is None
    result = with_scores(SampledTokens({"a": 1, "b": 2}, {}), {"a": packed, "b": broken})
    assert result.prompt_scores == {"a": packed} and result.failed == {"b": NOT_FINITE}


def test_the_sim_engine_scores_as_it_draws() -> None:
    engine = SimEngine(make_spec(), LinearLatencyModel(0, 0, 0, 0, 0, 0, 0), 30.0)
    (packed,) = scored_in_chunks(engine, [[9, 2, 9, 40]], [3])
    eos, first, second = unpack_scores(packed, NUM_TOP)
    assert first.logprob == pytest.approx(second.logprob) and first.logprob < eos.logprob
    assert eos.rank == 1 and first.top_token_ids == (2, 0, 1) and first.top_logprobs[0] == pytest.approx(eos.logprob)


def test_records_are_as_they_are_said_to_be() -> None:
    scores = [PromptScore(-1.5, 7, (4, 5), (-0.25, -0.5)), PromptScore(-2.0, 1, (3, 9), (-2.0, -3.0))]
    packed = pack_scores(scores)
    assert len(packed) == 2 * record_bytes(2) == 48
    assert list(unpack_scores(packed, 2)) == scores
