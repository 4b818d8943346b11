"""GGUF files of Llamas, made on the spot, as models; and those that are refused."""

import json
import random
import string
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from services.executor.engines.torch.engine import TorchEngine
from services.executor.gguf_file import GgufFile
from services.executor.prepare_model import find_prepared, prepare
from services.local.stack.options import StackOptions
from shared.errors import ModelError
from shared.protocol.sampling import SamplingParams
from shared.text.model_folder import ModelFacts
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.engine_driver import EngineDriver, Request

HIDDEN, HEADS, KV_HEADS, LAYERS, INTERMEDIATE, CONTEXT = 256, 8, 2, 2, 512, 16_384
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
TEXT = "Once upon a time, in 1984, it's said: 日本 was far"


@dataclass
class Vocabulary:
    """As a file tells it. ``kinds``: 1 is a piece, 3 special, 6 a byte."""

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    bos: int
    eos: int
    scores: list[float] | None = None
    merges: list[str] | None = None

    @classmethod
    def llama_3(cls) -> "Vocabulary":
        letters = sorted(ByteLevel.alphabet())
        merged = ["in", "Ġt", "19", "198", "84"]
        special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
        merges = ["i n", "Ġ t", "1 9", "19 8", "8 4"]
        tokens = [*letters, *merged, *special]
        kinds = [1] * (len(tokens) - 3) + [3] * 3
        first = len(tokens) - 3
        return cls("gpt2", "llama-bpe", tokens, kinds, first, first + 2, merges=merges)

    @classmethod
    def sentencepiece(cls) -> "Vocabulary":
        pieces = ["▁t", "▁ti", "me", "▁time", *"▁,:'", *string.ascii_letters, *string.digits]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
        scores = [0.0] * 259 + [-float(number) for number in range(len(pieces))]
        return cls("llama", "default", tokens, kinds, 1, 2, scores=scores)


@dataclass
class Llama:
    """A small model with random weights, and the file that it is written to."""

    vocabulary: Vocabulary
    kind: Kind = Kind.F32
    architecture: str = "llama"
    rope: dict[str, Any] | None = None
    tied: bool = False
    rope_factor_scale: float = 1.0
    kv_heads: int | None = KV_HEADS  # None: the file says nothing of them, and there are as many as heads
    more: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    num_files: int = 1
    without: str = "no tensor"

    def model(self) -> Any:
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=len(self.vocabulary.tokens),
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_key_value_heads=self.kv_heads or HEADS,
            num_hidden_layers=LAYERS,
            intermediate_size=INTERMEDIATE,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=self.tied,
            rope_parameters=self.rope or {"rope_type": "default", "rope_theta": 10_000.0},
        )
        return LlamaForCausalLM(config).eval()

    def write(self, path: Path) -> Any:
        """The model as its weights are in the file."""
        model = self.model()
        writer = GGUFWriter(path, self.architecture)
        self._write_fields(writer)
        weights = model.state_dict()
        for name, tensor in weights.items():
            if _gguf_name(name) != self.without and (name != "lm_head.weight" or not self.tied):
                weights[name] = self._write_tensor(writer, name, tensor.numpy())
        if self.rope is not None:
            factors = self._rope_factors(model) * self.rope_factor_scale
            writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
        for name, values in self.more.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model.load_state_dict(weights)
        model.tie_weights()
        return model

    def _write_tensor(self, writer: GGUFWriter, name: str, values: np.ndarray[Any, Any]) -> torch.Tensor:
        kind = self.kind if values.ndim == 2 else Kind.F32
        heads = HEADS if "q_proj" in name else self.kv_heads or HEADS
        stored = _permuted(values, heads) if _is_turned(name) else values
        packed = _k_quants(stored.shape) if kind is Kind.Q4_K else quantize(stored, kind)
        writer.add_tensor(_gguf_name(name), packed, raw_dtype=kind)
        read = dequantize(packed, kind)
        if _is_turned(name):
            read = _permuted_back(read, heads)
        return torch.from_numpy(np.ascontiguousarray(read, dtype=np.float32))

    def _write_fields(self, writer: GGUFWriter) -> None:
        vocabulary = self.vocabulary
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INTERMEDIATE)
        writer.add_head_count(HEADS)
        if self.kv_heads is not None:
            writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10_000.0)
        writer.add_rope_dimension_count(HIDDEN // HEADS)
        if self.num_files > 1:
            writer.add_uint16("split.count", self.num_files)
        for name, scale in self.scales.items():
            writer.add_float32(f"llama.rope.{name}", scale)
        writer.add_vocab_size(len(vocabulary.tokens))
        writer.add_tokenizer_model(vocabulary.model)
        writer.add_tokenizer_pre(vocabulary.pre)
        writer.add_token_list(vocabulary.tokens)
        writer.add_token_types(vocabulary.kinds)
        if vocabulary.scores is not None:
            writer.add_token_scores(vocabulary.scores)
        if vocabulary.merges is not None:
            writer.add_token_merges(vocabulary.merges)
        writer.add_bos_token_id(vocabulary.bos)
        writer.add_eos_token_id(vocabulary.eos)

    def _rope_factors(self, model: Any) -> np.ndarray[Any, Any]:
        dim = HIDDEN // HEADS
        plain = 1.0 / 10_000.0 ** (np.arange(0, dim, 2) / dim)
        factors: np.ndarray[Any, Any] = plain / model.model.rotary_emb.inv_freq.numpy()
        return factors


def _gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in fixed:
        return f"{fixed[stem]}.weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.weight"


def _is_turned(name: str) -> bool:
    return "q_proj" in name or "k_proj" in name


def _permuted(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """As llama.cpp has the rows of queries and keys."""
    halves = values.reshape(heads, 2, -1, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _permuted_back(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _k_quants(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Blocks of 256 weights: two scales in float16, and 140 bytes of smaller ones and of weights."""
    rng, num_blocks = np.random.default_rng(shape[0]), shape[1] // 256
    blocks = rng.integers(0, 256, (shape[0], num_blocks, 144), dtype=np.uint8)
    scales = np.full((shape[0], num_blocks, 2), (2e-5, 1.6e-4), dtype=np.float16)
    blocks[:, :, :4] = scales.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def prepared(path: Path, cache: Path) -> Path:
    return prepare(str(path), cache, lambda line: None)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_K])
def test_the_folder_has_the_weights_of_the_file(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "Small-Llama.gguf"
    expected = Llama(Vocabulary.llama_3(), kind).write(path)
    assert find_prepared(str(path), tmp_path) is None
    folder = prepared(path, tmp_path)
    found: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token_ids = torch.arange(5, 45)[None]
    with torch.inference_mode():
        assert torch.allclose(found(token_ids).logits, expected(token_ids).logits, atol=1e-4)
    assert find_prepared(str(path), tmp_path) == folder == prepared(path, tmp_path)
    facts = ModelFacts.read(folder)
    tokens = Vocabulary.llama_3().tokens
    ends = [tokens.index(end) for end in ("<|eot_id|>", "<|end_of_text|>")]
    assert (facts.max_model_len, facts.vocab_size, list(facts.eos_token_ids)) == (CONTEXT, len(tokens), ends)
    assert StackOptions(model=str(path)).model_name == "Small-Llama"


def test_a_chat_ends_at_the_end_of_its_turn_where_the_file_names_another_end(tmp_path: Path) -> None:
    vocabulary = Vocabulary.sentencepiece()
    vocabulary.tokens += ["<|im_start|>", "<|im_end|>"]
    vocabulary.kinds += [3, 3]
    vocabulary.scores = [*(vocabulary.scores or []), 0.0, 0.0]
    path = tmp_path / "ChatML.gguf"
    Llama(vocabulary).write(path)
    ends = ModelFacts.read(prepared(path, tmp_path)).eos_token_ids
    assert [vocabulary.tokens[end] for end in ends] == ["</s>", "<|im_end|>"]


def test_a_file_that_says_nothing_of_kv_heads_has_as_many_as_heads(tmp_path: Path) -> None:
    """As of Llama 1; its queries and keys are ordered as in any other file."""
    path = tmp_path / "llama.gguf"
    expected = Llama(Vocabulary.sentencepiece(), kv_heads=None).write(path)
    found: Any = AutoModelForCausalLM.from_pretrained(prepared(path, tmp_path), dtype=torch.float32)
    token_ids = torch.arange(5, 45)[None]
    with torch.inference_mode():
        assert torch.allclose(found(token_ids).logits, expected(token_ids).logits, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_the_torch_engine_runs_it(tmp_path: Path, tied: bool) -> None:
    """Of Llama 3.1's kind, whose rotary embedding is scaled by factors in the file."""
    path = tmp_path / "llama.gguf"
    expected = Llama(Vocabulary.llama_3(), Kind.Q8_0, rope=LLAMA_3_ROPE, tied=tied).write(path)
    folder = prepared(path, tmp_path)
    assert json.loads((folder / "config.json").read_text())["rope_parameters"] == LLAMA_3_ROPE
    engine = TorchEngine.load(folder, "llama", device="cpu", num_blocks=64, num_threads=1)
    rng = random.Random(1)
    greedy = SamplingParams(8, temperature=0.0)
    prompts = {str(length): [rng.randrange(250) for _ in range(length)] for length in (3, 70)}
    requests = [Request(request_id, prompt, greedy) for request_id, prompt in prompts.items()]
    found = EngineDriver(engine, seed=1).run(requests)
    for request_id, prompt in prompts.items():
        ends = list(engine.spec.eos_token_ids)
        with torch.inference_mode():
            whole = expected.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=ends)
        assert found[request_id] == whole[0, len(prompt) :].tolist()
    engine.close()


def test_texts_are_cut_as_llama_3_cuts_them(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    vocabulary = Vocabulary.llama_3()
    Llama(vocabulary).write(path)
    tokenizer = Tokenizer.from_folder(prepared(path, tmp_path))
    token_ids = tokenizer.encode(TEXT)
    tokens = [vocabulary.tokens[id] for id in token_ids]
    assert tokens[0] == "<|begin_of_text|>" and {"in", "Ġt", "198", "4"} <= set(tokens), "1984 is 198 and 4"
    assert tokenizer.decode(token_ids[1:]) == TEXT
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False) == [vocabulary.eos]


def test_texts_are_cut_as_sentencepiece_cuts_them(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    vocabulary = Vocabulary.sentencepiece()
    Llama(vocabulary).write(path)
    tokenizer = Tokenizer.from_folder(prepared(path, tmp_path))
    token_ids = tokenizer.encode(TEXT)
    tokens = [vocabulary.tokens[id] for id in token_ids]
    assert tokens[:6] == ["<s>", "▁", "O", "n", "c", "e"] and "▁time" in tokens
    assert {f"<0x{byte:02X}>" for byte in "日".encode()} <= set(tokens), "what is no piece is its bytes"
    assert tokenizer.decode(token_ids[1:]) == TEXT


def test_a_file_that_was_written_anew_is_another_model(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    Llama(Vocabulary.llama_3()).write(path)
    before = prepared(path, tmp_path)
    Llama(Vocabulary.sentencepiece()).write(path)
    assert prepared(path, tmp_path) != before


@pytest.mark.parametrize(
    ("llama", "said"),
    [
        (Llama(Vocabulary.llama_3(), architecture="qwen2"), "its architecture is qwen2, and only llama"),
        (Llama(Vocabulary("gpt2", "tekken", ["a"], [1], 0, 0, merges=[])), "kind gpt2/tekken"),
        (Llama(Vocabulary.llama_3(), rope=LLAMA_3_ROPE, rope_factor_scale=1.5), "rotary embedding is scaled"),
        (Llama(Vocabulary.llama_3(), num_files=2), "it is one of 2 files that are the model together"),
        (Llama(Vocabulary.llama_3(), without="blk.1.ffn_up.weight"), "it lacks the tensor blk.1.ffn_up.weight"),
        (Llama(Vocabulary.llama_3(), scales={"scaling.factor": 4.0}), "rotary embedding is scaled (linear)"),
        (Llama(Vocabulary.sentencepiece(), scales={"scale_linear": 4.0}), "rotary embedding is scaled (linear)"),
        (
            Llama(Vocabulary.llama_3(), more={"blk.0.attn_q.bias": np.zeros(HIDDEN, dtype=np.float32)}),
            "it has the tensor blk.0.attn_q.bias",
        ),
    ],
)
def test_what_would_be_another_model_is_refused_before_anything_is_made(
    tmp_path: Path, llama: Llama, said: str
) -> None:
    path = tmp_path / "model.gguf"
    llama.write(path)
    with pytest.raises(ModelError) as refused:
        find_prepared(str(path), tmp_path)
    assert said in str(refused.value) and str(path) in str(refused.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        prepare(str(path), tmp_path, print)
    with pytest.raises(ModelError, match="of a GGUF file"):
        prepare(str(tmp_path / "other.gguf"), tmp_path, print)
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        GgufFile.read(path)


def test_where_there_is_no_room_for_the_weights_nothing_is_left(tmp_path: Path) -> None:
    """No file may become larger than half a megabyte, as on a disk that is nearly full."""
    path, cache = tmp_path / "llama.gguf", tmp_path / "cache"
    Llama(Vocabulary.llama_3()).write(path)
    command = [sys.executable, "-m", "services.executor.prepare_model", "--model", str(path), "--cache-dir", str(cache)]
    limited = ["bash", "-c", 'ulimit -f 512; exec "$@"', "bash", *command]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"error: cannot write {cache}") and "set SLACKWATER_CACHE" in last
    assert [each.suffix for each in (cache / "models").iterdir()] == [".lock"]
