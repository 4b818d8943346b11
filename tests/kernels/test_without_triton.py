"""The CPU path neither needs nor imports Triton."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import torch
from dataclasses import dataclass
from kernels.cpu.attention import GatherBuffer
from kernels.kv_write import write_kv
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.kv_layers import KVLayers
from kernels.slot_copy import gather_slots
from kernels.slots import StepLayout

@dataclass
class Scheduled:
    token_ids: list
    num_computed_tokens: int
    block_table: list
    fills_right: bool

kv_cache = torch.zeros(2, 4, 1, 16)
metadata = AttentionMetadata.of(StepLayout.of([Scheduled([1, 2, 3], 0, [1], True)], 2, 4), kv_cache)
key, value, query = torch.randn(3, 3, 1, 8)
write_kv(key, value, kv_cache, metadata.slot_mapping)
out = paged_attention(query, kv_cache, metadata, 1.0, GatherBuffer())
layers = KVLayers.of([kv_cache])
buffer = layers.new_buffer(3)
gather_slots(layers, metadata.slot_mapping, buffer)
assert torch.equal(out[0], value[0]) and torch.equal(buffer[2, 8:], value[2, 0])
print("done")
"""


def test_cpu_path_runs_without_triton() -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.stdout == "done\n", finished.stderr
