"""Language models by name: the sizes that decide how long a step takes and how much memory KV needs."""

from dataclasses import dataclass
from functools import partial

from shared.named import named

HALF_PRECISION_BYTES = 2


@dataclass(frozen=True, slots=True)
class Architecture:
    """A dense decoder, as its config.json gives it; with gated MLPs and untied embeddings unless said otherwise."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int  # of each of the MLP's matrices
    vocab_size: int
    max_model_len: int  # tokens of context
    head_dim: int = 128
    num_mlp_matrices: int = 3  # gate, up and down; 2 without a gate
    ties_embeddings: bool = False  # input and output share theirs
    bytes_per_value: int = HALF_PRECISION_BYTES  # of weights, activations and KV

    @property
    def layer_parameters(self) -> int:
        """Of one layer's matrices: query and output, key and value, and the MLP's."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return attention + self.num_mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def head_parameters(self) -> int:
        """Of the output projection, which the input embedding equals in size."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        return self.num_layers * self.layer_parameters + (1 if self.ties_embeddings else 2) * self.head_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_value


_opt = partial(Architecture, vocab_size=50272, max_model_len=2048, num_mlp_matrices=2, ties_embeddings=True)
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),  # meta-llama/Llama-2-7b-hf
        Architecture("llama3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072),  # meta-llama/Llama-3.1-8B
        # Qwen/Qwen-14B; its intermediate_size of 27392 counts gate and up together
        Architecture("qwen-14b", 40, 5120, 40, 40, 13696, 152064, 8192),
        Architecture("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072),  # Qwen/Qwen2.5-7B
        Architecture("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, 131072),  # Qwen/Qwen2.5-72B
        Architecture("mistral-7b", 32, 4096, 32, 8, 14336, 32000, 32768),  # mistralai/Mistral-7B-v0.1
        Architecture("yi-34b", 60, 7168, 56, 8, 20480, 64000, 4096),  # 01-ai/Yi-34B
        _opt("opt-13b", 40, 5120, 40, 40, 20480),  # facebook/opt-13b
        _opt("opt-30b", 48, 7168, 56, 56, 28672),  # facebook/opt-30b
        Architecture("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192),  # meta-llama/Meta-Llama-3-70B
    )
}


def architecture_named(name: str) -> Architecture:
    """Raises ValueError that lists the known models."""
    return named(ARCHITECTURES, name.lower(), "model")
