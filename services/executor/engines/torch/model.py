"""A model's forward pass: transformers' own with our attention in it, or ours where we have one for the family."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from services.executor.engines.torch.attention import ATTENTION_NAME, AttentionStep, Layer, LayerShape, ShapeProbe
from services.executor.engines.torch.device import choose_dtype
from services.executor.engines.torch.linear import can_pack, pack_linears
from services.executor.engines.torch.llama import LlamaForward, is_llama
from shared.errors import ConfigError, EngineError, ModelError
from shared.text.model_folder import ropes_of

logger = logging.getLogger(__name__)

PROBE_TOKENS = 5
GO_BY_THE_STEP = ("dynamic", "longrope")  # frequencies that transformers chooses by the longest context of a step
CHUNKED = "chunked_attention"


class Forward(Protocol):
    """A decoder's forward pass over one flattened row of tokens. ``key_order``: of the numbers of a key in its KV slot,
    in words."""

    key_order: str

    def __call__(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, step: AttentionStep) -> Tensor:
        """Input ids and position ids [num_tokens] give the logits [num_rows, vocab_size] of those tokens whose numbers
        ``rows`` holds: no other needs the output layer."""

    def hidden(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, step: AttentionStep) -> Tensor:
        """As a call, but what the output layer takes: [num_rows, hidden_size]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, vocab_size], of some rows of that."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine runs."""

    forward: Forward
    dtype: torch.dtype
    shapes: dict[Layer, LayerShape]  # of its attention layers, in their order

    @classmethod
    def load(cls, path: Path, device: torch.device, dtype: str, max_model_len: int) -> LoadedModel:
        """The fastest forward pass that gives the logits of transformers, of contexts of so many tokens. Raises
        ModelError for a model that cannot be run, ConfigError for a dtype that there is not."""
        with _named_errors(path):
            model, model_dtype = _read_model(path, device, dtype)
            if why := why_not_exact(model.config.to_dict(), max_model_len):  # type: ignore[operator, union-attr]
                raise ModelError(f"the torch engine cannot run {path}: {why}")
            shapes, expected = probe(TransformersForward(model), device)
            layers = list(shapes.values())
            if missing := layers_without_attention(model, len(layers)):
                raise ModelError(missing)
            if not keeps_apart(TransformersForward(model), device):
                raise ModelError(
                    f"the torch engine cannot run {path}: what {type(model).__name__} makes of a token hangs on other "
                    "requests of its step, or on its place there; choose another model"
                )
            del shapes  # its keys are layers, whose weights are freed as they are taken
            for change in (_merged, _packed):
                forward = change(model, layers, can_pack(device, model_dtype))
                if forward is None:
                    continue
                with contextlib.suppress(ModelError):
                    found, logits = probe(forward, device)
                    if list(found.values()) == layers and _are_close(logits, expected):
                        return cls(forward, model_dtype, found)
                logger.warning("model does not run as it could", extra={"path": str(path), "without": change.__name__})
                del forward, model
                model, _ = _read_model(path, device, dtype)
            plain = TransformersForward(model)
            return cls(plain, model_dtype, probe(plain, device)[0])


class TransformersForward:
    """The model's own forward pass; ``step`` reaches its attention as a keyword argument. The model is called whole for
    its logits, too, since some scale or cap what their output layer gives: its decoder then gives back what it gave."""

    key_order = "keys as transformers has them"

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._output_type: Any = None  # of the decoder, once it has run

    def __call__(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, step: AttentionStep) -> Tensor:
        output = self._model(
            input_ids=input_ids[None], position_ids=position_ids[None], use_cache=False, logits_to_keep=rows, paged=step
        )
        logits: Tensor = output.logits[0]
        return logits

    def hidden(self, input_ids: Tensor, position_ids: Tensor, rows: Tensor, step: AttentionStep) -> Tensor:
        output = self._decoder(input_ids=input_ids[None], position_ids=position_ids[None], use_cache=False, paged=step)
        self._output_type = type(output)
        states: Tensor = output.last_hidden_state[0]
        return states.index_select(0, rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of what ``hidden`` gave: the model looks for all that its decoder gives, in its own type."""
        self._decoder.forward = lambda *args, **named: self._output_type(last_hidden_state=hidden[None])
        try:
            output = self._model(input_ids=torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device))
        finally:
            del self._decoder.forward  # of this one; that of its class is there
        logits: Tensor = output.logits[0]
        return logits

    @cached_property
    def _decoder(self) -> Any:
        """The part that the model calls for its hidden states. Not every family tells transformers which it is."""
        model: Any = self._model
        body = model.model if model.base_model is model else model.base_model
        return body.get_decoder()


def _merged(model: torch.nn.Module, shapes: Sequence[LayerShape], packs: bool) -> Forward | None:
    """Ours, where we have one. ``model`` cannot run afterwards."""
    return LlamaForward(model, shapes, packs) if is_llama(model, shapes) else None


def _packed(model: torch.nn.Module, _: Sequence[LayerShape], packs: bool) -> Forward | None:
    """The model's own on packed weights, which cannot be if it reads its layers' weights by itself."""
    if not packs:
        return None
    pack_linears(model)
    return TransformersForward(model)


def _read_model(path: Path, device: torch.device, dtype: str) -> tuple[torch.nn.Module, torch.dtype]:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(path)
    model_dtype = choose_dtype(dtype, device, config.dtype)
    loaded, found = AutoModelForCausalLM.from_pretrained(
        path, dtype=model_dtype, attn_implementation=ATTENTION_NAME, low_cpu_mem_usage=True, output_loading_info=True
    )
    if "logits_to_keep" not in inspect.signature(loaded.forward).parameters:
        raise ModelError(f"{type(loaded).__name__} is not a decoder that this engine can run")
    model: torch.nn.Module = loaded.to(device).eval().requires_grad_(False)
    missing = found["missing_keys"]
    if missing and (lacking := sorted(missing - _dispensable(loaded, path))):
        raise ModelError(f"the weights in {path} lack {lacking[0]}, in whose place transformers puts random numbers")
    return model, model_dtype


def _dispensable(model: Any, path: Path) -> set[str]:
    """The names of the output layer's weights, where a folder has the decoder alone, as an embedding model's: under
    names without that of the decoder within the whole."""
    if any(name.startswith(f"{model.base_model_prefix}.") for name in _weight_names(path)):
        return set()
    output = model.get_output_embeddings()
    own = set() if output is None else set(output.parameters())
    return {name for name, weight in model.named_parameters() if weight in own}


def _weight_names(path: Path) -> Iterator[str]:
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            yield from opened.keys()


def probe(forward: Forward, device: torch.device) -> tuple[dict[Layer, LayerShape], Tensor]:
    """The layers' shapes and some logits, by running the model once on a few tokens. Raises ModelError."""
    probe = ShapeProbe()
    tokens = torch.arange(PROBE_TOKENS, device=device)
    try:
        logits = forward(tokens, tokens, tokens, probe)
    except (EngineError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"the model cannot run on paged attention: {first_line(error)}") from error
    if any(getattr(layer, "is_causal", True) is False for layer in probe.shapes):
        raise ModelError("its tokens attend to those that follow them: it is an encoder, and no decoder")
    return probe.shapes, logits


def keeps_apart(forward: Forward, device: torch.device) -> bool:
    """Whether two sequences in one pass have the same logits when they change places. So they have not where layers mix
    tokens by more than attention, as a convolution or a state beside it does, or where a token's position is counted
    from the beginning of the pass, whatever its position id is."""
    one, other = torch.arange(2 * PROBE_TOKENS, device=device).chunk(2)
    positions = torch.arange(PROBE_TOKENS, device=device).repeat(2)
    rows = torch.arange(2 * PROBE_TOKENS, device=device)
    logits = forward(torch.cat((one, other)), positions, rows, ShapeProbe(2))
    changed = forward(torch.cat((other, one)), positions, rows, ShapeProbe(2))
    return _are_close(changed.roll(PROBE_TOKENS, 0), logits)


def layers_without_attention(model: torch.nn.Module, num_attended: int) -> str:
    """What is wrong with a model in so many of whose layers our attention was called; empty where that is all."""
    num_layers = getattr(model.config, "num_hidden_layers", None)
    if num_attended and num_attended == num_layers:
        return ""
    return (
        f"{type(model).__name__} has {num_layers} layers, of which {num_attended} use plain attention: "
        f"only decoders that attend in every layer can be run"
    )


def why_not_exact(config: Mapping[str, Any], max_model_len: int) -> str:
    """What is wrong with serving so long contexts, by the model's config.json: tokens that would depend on others of a
    step, or on a mask that is not built here. Empty where nothing is."""
    config = config.get("text_config") or config
    for rope in ropes_of(config):
        kind = rope.get("rope_type", rope.get("type"))
        original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        trained = original or config.get("max_position_embeddings") or max_model_len
        if kind in GO_BY_THE_STEP and max_model_len > trained:
            what = f"beyond {trained} tokens its rotary embedding ({kind}) goes by the longest request of a step"
            return f"{what}: limit its context with max_model_len = {trained}, or choose --engine vllm"
    if config.get("attn_temperature_tuning"):
        return "it scales attention by a token's place in the step (attn_temperature_tuning): choose --engine vllm"
    chunk = config.get("attention_chunk_size") or max_model_len
    if CHUNKED in (config.get("layer_types") or ()) and chunk < max_model_len:
        what = f"it attends in chunks of {chunk} tokens, which is not known here"
        return f"{what}: limit its context with max_model_len = {chunk}, or choose --engine vllm"
    return ""


def _are_close(logits: Tensor, expected: Tensor) -> bool:
    logits, expected = logits.nan_to_num(), expected.nan_to_num()  # a token may have none that are numbers
    tolerance = 1e-3 if expected.dtype is torch.float32 else 5e-2
    return torch.allclose(logits, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """transformers has none for files that are torn or of another version, nor torch for memory that is short."""
    try:
        yield
    except (ConfigError, ModelError):
        raise
    except Exception as error:
        raise ModelError(f"cannot load the model in {path}: {_torn_weights(path) or first_line(error)}") from error


def _torn_weights(path: Path) -> str:
    """The first file of weights whose beginning cannot be read, and why; empty where there is none."""
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except Exception as error:  # torch has others where there is no room for the file in memory
            return f"{file.name} cannot be read: {error}"
    return ""


def first_line(error: Exception) -> str:
    """Of what it says: torch and transformers say much. Where that ends with a colon, the next line too; a key alone
    would say nothing."""
    if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):  # of a family with a table of its own
        return "its attention is its own, and not to be replaced"
    said = f"there is no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    first, *rest = said.splitlines() or [""]
    return " ".join([first, *(line.strip() for line in rest[:1] if first.endswith(":"))])[:300]
