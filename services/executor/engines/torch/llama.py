"""Models of Llama's family by a forward pass of our own, over the weights that transformers has loaded.

transformers' layers are many small operations; here a layer is four products with little between them. Gate and up
projection are one; query, key and value are one, whose rows are ordered so that

- a token's keys and values lie as its KV slot has them: of each KV head the key, then the value;
- the two numbers of a head that the rotary embedding turns together stand side by side, as one complex number. Queries
  and keys are reordered alike, which their product does not show.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from kernels.cpu.threads import has_numba
from kernels.gated import silu_and_mul
from kernels.rotary import apply_rotary
from services.executor.engines.torch.attention import AttentionStep, LayerShape
from services.executor.engines.torch.linear import packed_linear, packed_sum, plain_linear, plain_sum

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
LAYER_PARTS = {
    *("input_layernorm", "post_attention_layernorm", "self_attn", "mlp"),
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj", "act_fn")),
}


class LlamaForward:
    """A ``Forward`` of a model that ``is_llama`` accepts, on CPU or CUDA."""

    key_order = "keys in pairs that turn together"

    def __init__(self, model: Any, shapes: Sequence[LayerShape], packs: bool) -> None:
        """Takes the layers' weights out of ``model``, which cannot run afterwards, a layer at a time: no more than one
        layer has a second copy. ``shapes``: of its attention layers, in their order. ``packs``: for oneDNN."""
        body = model.model
        self._embedding = body.embed_tokens.weight.detach()
        self._rotary = body.rotary_emb
        self._norm = _RMSNorm(body.norm)
        self._layers = [_Layer(body.layers.pop(0), shape, packs) for shape in shapes]
        output = model.lm_head
        self._output = (packed_linear if packs else plain_linear)(output.weight, output.bias)
        self._vocab_size = output.out_features
        self._like = torch.empty((), device=self._embedding.device)

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, rows: torch.Tensor, step: AttentionStep
    ) -> torch.Tensor:
        return self.logits(self.hidden(input_ids, position_ids, rows, step))

    def hidden(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, rows: torch.Tensor, step: AttentionStep
    ) -> torch.Tensor:
        """See ``Forward``."""
        hidden = F.embedding(input_ids, self._embedding)
        turns = self._turns(position_ids)
        for layer in self._layers[:-1]:
            hidden = layer.combine(layer.attend(hidden, turns, step), hidden)
        last = self._layers[-1]
        attended = last.attend(hidden, turns, step)
        if not len(rows):
            return hidden.new_empty(0, hidden.shape[1])
        # Behind the last layer's KV, nothing reads any other row.
        hidden = last.combine(attended.index_select(0, rows), hidden.index_select(0, rows))
        return self._norm(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ``Forward``."""
        return self._output(hidden) if len(hidden) else hidden.new_empty(0, self._vocab_size)

    def _turns(self, position_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens, k_dim / 2], complex: by which each token's queries and keys are turned."""
        cos, sin = self._rotary(self._like, position_ids[None])
        half = cos.shape[-1] // 2
        return torch.complex(cos[0, :, :half], sin[0, :, :half])


def is_llama(model: Any, shapes: Sequence[LayerShape]) -> bool:
    """Whether ``model``, as transformers loads it, has the parts that ``LlamaForward`` knows, and no others."""
    if type(model).__name__ not in FAMILY:
        return False
    parts = {name for layer in model.model.layers for name, _ in layer.named_modules() if name}
    return (
        parts <= LAYER_PARTS
        and model.config.hidden_act in ("silu", "swish")
        and all(shape.k_dim == 2 * len(model.model.rotary_emb.inv_freq) for shape in shapes)
    )


class _RMSNorm:
    """Of rows [num_rows, dim]; those of heads, [num_tokens, num_heads, dim], are torch's."""

    def __init__(self, norm: Any) -> None:
        self._weight, self._eps = norm.weight.detach(), norm.variance_epsilon
        self._compiles = self._weight.device.type == "cpu" and self._weight.dtype is torch.float32 and has_numba()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._compiles and x.dim() == 2:
            from kernels.cpu.rms_norm import rms_norm

            return rms_norm(x, self._weight, self._eps)
        return F.rms_norm(x, self._weight.shape, self._weight, self._eps)


class _Layer:
    """Its attention and its MLP."""

    def __init__(self, layer: Any, shape: LayerShape, packs: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        linear, with_sum = (packed_linear, packed_sum) if packs else (plain_linear, plain_sum)
        self._shape = shape
        self._norms = _RMSNorm(layer.input_layernorm), _RMSNorm(layer.post_attention_layernorm)
        self._qkv = linear(*_merged_qkv(attention, shape))
        self._head_norms = _head_norms(attention, shape)
        self._out = with_sum(attention.o_proj.weight, attention.o_proj.bias)
        gate, up = mlp.gate_proj, mlp.up_proj
        bias = None if gate.bias is None else torch.cat((gate.bias, up.bias))
        self._gate_up = linear(torch.cat((gate.weight, up.weight)), bias)
        self._down = with_sum(mlp.down_proj.weight, mlp.down_proj.bias)

    def attend(self, hidden: torch.Tensor, turns: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """``hidden`` [num_tokens, hidden_size] gives [num_tokens, num_heads * v_dim]."""
        shape, num_tokens = self._shape, len(hidden)
        qkv = self._qkv(self._norms[0](hidden))
        query_size = qkv.shape[1] - shape.num_kv_heads * (shape.k_dim + shape.v_dim)
        query = qkv[:, :query_size].view(num_tokens, -1, shape.k_dim)
        kv = qkv[:, query_size:].view(num_tokens, shape.num_kv_heads, -1)
        key, value = kv[..., : shape.k_dim], kv[..., shape.k_dim :]
        if self._head_norms is not None:
            query, key = self._head_norms[0](query), self._head_norms[1](key)
        apply_rotary(query, key, turns)
        return step(self, query, key, value, shape.scale, shape.window).flatten(1)

    def combine(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The layer's output [num_rows, hidden_size], of any of its rows, in the place of ``hidden``."""
        hidden = self._out(attended, hidden)
        return self._down(silu_and_mul(self._gate_up(self._norms[1](hidden))), hidden)


def _merged_qkv(attention: Any, shape: LayerShape) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of queries, then of keys and values as slots have them."""

    def merged(of_query: torch.Tensor, of_key: torch.Tensor, of_value: torch.Tensor) -> torch.Tensor:
        keys = _paired(of_key, shape.k_dim).view(shape.num_kv_heads, shape.k_dim, *of_key.shape[1:])
        values = of_value.view(shape.num_kv_heads, shape.v_dim, *of_value.shape[1:])
        return torch.cat((_paired(of_query, shape.k_dim), torch.cat((keys, values), dim=1).flatten(0, 1)))

    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None if linears[0].bias is None else merged(*(linear.bias for linear in linears))
    return merged(*(linear.weight for linear in linears)), bias


def _head_norms(attention: Any, shape: LayerShape) -> tuple[_RMSNorm, _RMSNorm] | None:
    """Of queries and keys, where the model has them."""
    if not hasattr(attention, "q_norm"):
        return None
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.data = _paired(norm.weight, shape.k_dim)
    return _RMSNorm(attention.q_norm), _RMSNorm(attention.k_norm)


def _paired(weight: torch.Tensor, k_dim: int) -> torch.Tensor:
    """Rows [num_heads * k_dim, ...] with rows i and i + k_dim / 2 of a head side by side."""
    return weight.view(-1, 2, k_dim // 2, *weight.shape[1:]).transpose(1, 2).flatten(0, 2)
