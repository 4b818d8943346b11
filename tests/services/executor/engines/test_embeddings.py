"""Embeddings of prompts by the engines, against transformers' own last hidden states."""

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, BertConfig, BertModel, Qwen3Config, Qwen3Model

from services.executor.engines.sampling.sampler import NOT_FINITE
from services.executor.engines.sim import SimEngine
from services.executor.engines.torch.embeddings import embeddings_of, with_embeddings
from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.vllm.environment import import_vllm
from shared.errors import ModelError
from shared.latency.linear import LinearLatencyModel
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import EmbeddingShape, FinishReason, SamplingParams
from shared.protocol.tokens import TokenOutput
from shared.replica.engine import Engine, SampledTokens
from shared.replica.outputs import final_output
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from tests.services.executor.engines.engine_prompts import encoded_prompts
from tests.services.executor.engines.test_torch_models import FAMILIES, save_model
from tests.shared.replica.test_replica import make_spec
from tests.with_vllm import NEEDS_VLLM, WITH_VLLM

EMBEDS = SamplingParams(0, temperature=0.0, ignore_eos=True, embedding=EmbeddingShape())
NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def prompts(shallow_model: Path) -> list[list[int]]:
    stem = encoded_prompts(shallow_model)[8]
    return [*encoded_prompts(shallow_model)[8:12], [*stem, 9, 8, 7], [*stem, 5], [3]]


@pytest.fixture(scope="module")
def expected(shallow_model: Path, prompts: list[list[int]]) -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(shallow_model, dtype=torch.float32)
    return [transformers_embedding(model, prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def torch_engine(shallow_model: Path) -> Iterator[TorchEngine]:
    engine = TorchEngine.load(shallow_model, "test", device="cpu", dtype="float32", num_blocks=160, num_threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vllm_engine(shallow_model: Path) -> Iterator[Any]:
    engine = load_vllm(shallow_model)
    yield engine
    engine.close()


def load_vllm(folder: Path) -> Any:
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    sizes = {"num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    return VllmEngine.load(folder, "test", VllmOptions(1, dtype="float32", **sizes))  # type: ignore[arg-type]


def transformers_embedding(model: Any, prompt: list[int]) -> torch.Tensor:
    """Last layer, behind the final norm, of the last token, of length 1."""
    with torch.inference_mode():
        state: torch.Tensor = model.base_model(torch.tensor([prompt])).last_hidden_state[0, -1]
    return F.normalize(state.float(), dim=0)


def embed(engine: Engine, prompts: list[list[int]], chunk_tokens: int, generated: int = 2) -> dict[str, TokenOutput]:
    """What a replica tells of each, by its number, where a step has so many tokens at most; beside as many requests
    that generate."""
    spec = engine.spec
    replica = Replica(Limits(spec.block_size, spec.num_blocks, chunk_tokens, 16), spec, None)
    for number, prompt in enumerate(prompts):
        replica.submit(GenerateRequest(str(number), Kind.OFFLINE, prompt, EMBEDS, 0.0))
    for number, prompt in enumerate(prompts[:generated]):
        sampling = SamplingParams(4, temperature=0.0, ignore_eos=True)
        replica.submit(GenerateRequest(f"generates-{number}", Kind.ONLINE, prompt, sampling, 0.0))
    found: dict[str, TokenOutput] = {}
    for step in range(1000):
        if not replica.has_work:
            return found
        batch = replica.begin(replica.schedule(None, Policy(), NO_TIME), step)
        replica.finish(engine.execute(batch))
        found |= {ended.sequence.request_id: final_output(ended) for ended in replica.take_ended()}
    raise AssertionError("it has no end")


def check(outputs: dict[str, TokenOutput], expected: list[torch.Tensor]) -> None:
    for number, wanted in enumerate(expected):
        output = outputs[str(number)]
        assert (output.finish_reason, output.token_ids) == (FinishReason.LENGTH, [])
        assert output.embedding is not None
        found = torch.frombuffer(bytearray(output.embedding), dtype=torch.float32)
        assert found.shape == wanted.shape
        assert torch.allclose(found, wanted, atol=TOLERANCE), float((found - wanted).abs().max())
        assert float(found.norm()) == pytest.approx(1.0, abs=1e-5)
    others = [output for key, output in outputs.items() if key.startswith("generates")]
    assert all(output.embedding is None and output.num_output_tokens == 4 for output in others)


@pytest.mark.parametrize("chunk_tokens", [512, 23])
def test_torch_gives_transformers_last_hidden_state(
    torch_engine: TorchEngine, prompts: list[list[int]], expected: list[torch.Tensor], chunk_tokens: int
) -> None:
    """In chunks too, whose last has but a token for some, beside others that generate."""
    check(embed(torch_engine, prompts, chunk_tokens), expected)


def test_a_cached_prefix_changes_no_embedding(
    torch_engine: TorchEngine, prompts: list[list[int]], expected: list[torch.Tensor]
) -> None:
    outputs = embed(torch_engine, prompts, 64, generated=0)
    check(outputs, expected)
    assert [outputs[number].num_cached_tokens > 0 for number in ("0", "4", "5", "6")] == [False, True, True, False]


@pytest.mark.slow
@NEEDS_VLLM
@pytest.mark.parametrize("chunk_tokens", [512, 23])
def test_vllm_gives_transformers_last_hidden_state(
    vllm_engine: Any, prompts: list[list[int]], expected: list[torch.Tensor], chunk_tokens: int
) -> None:
    check(embed(vllm_engine, prompts, chunk_tokens), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_embed_as_transformers_does(family: str, tmp_path: Path) -> None:
    model = save_model(tmp_path, family, **FAMILIES[family])
    engine = TorchEngine.load(tmp_path, family, device="cpu", num_blocks=40, block_size=8, num_threads=1)
    prompts = [[(7 * place + 3 * place * place) % 290 + 5 for place in range(length)] for length in (1, 41, 64)]
    check(embed(engine, prompts, 50, generated=1), [transformers_embedding(model, prompt) for prompt in prompts])
    engine.close()


def save_embedding_model(folder: Path) -> Any:
    """Of Qwen3-Embedding's kind: the decoder alone, without its name within the whole model, and with the files of
    sentence-transformers, by which vLLM takes it for one that only embeds."""
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(1)
    decoder = Qwen3Model(Qwen3Config(**sizes, **heads, max_position_embeddings=128, tie_word_embeddings=False))
    decoder.eval().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    kinds = {"0": "Transformer", "1": "Pooling", "2": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return decoder


@pytest.mark.parametrize("name", ["torch", pytest.param("vllm", marks=WITH_VLLM)])
def test_the_folder_of_an_embedding_model_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    decoder = save_embedding_model(tmp_path)
    engine: Any
    if name == "torch":
        engine = TorchEngine.load(tmp_path, "test", device="cpu", num_blocks=40, num_threads=1)
    else:
        engine = load_vllm(tmp_path)
    prompts = [[5, 6, 7, 8], list(range(20, 90))]
    with torch.inference_mode():
        states = [decoder(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    check(embed(engine, prompts, 64, generated=0), [F.normalize(state, dim=0) for state in states])
    engine.close()


@pytest.mark.slow
@NEEDS_VLLM
def test_vllm_refuses_an_encoder_when_it_is_loaded(tmp_path: Path) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    BertModel(BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=128)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"vLLM cannot run the model in .* generate"):
        load_vllm(tmp_path)


def test_the_sim_engines_depend_on_the_tokens_alone() -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 900) for _ in range(length)] for length in (1, 50, 51)]
    found = []
    for chunk_tokens, seed in ((512, 1), (23, 2)):
        engine = SimEngine(make_spec(), NO_TIME, 30.0 + seed)
        outputs = embed(engine, prompts, chunk_tokens)
        found.append([outputs[str(number)].embedding for number in range(len(prompts))])
    assert found[0] == found[1] and len(set(found[0])) == len(prompts)
    for packed in found[0]:
        assert packed is not None
        values = struct.unpack(f"<{len(packed) // 4}f", packed)
        assert sum(value * value for value in values) == pytest.approx(1.0, abs=1e-5)


def test_a_state_that_is_not_finite_costs_its_request_alone() -> None:
    states = torch.tensor([[3.0, 4.0], [float("nan"), 1.0], [float("inf"), 1.0]], dtype=torch.bfloat16)
    good, *bad = embeddings_of(states)
    assert good == struct.pack("<2f", 0.6, 0.8) and bad == [None, None]
    told = with_embeddings(SampledTokens({}, {}), {"good": good, "bad": None})
    assert (told.embeddings, told.failed) == ({"good": good}, {"bad": NOT_FINITE})
    assert embeddings_of(torch.empty(0, 4)) == []
