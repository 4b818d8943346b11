"""Copy KV slots of many layers to and from the rows of a buffer, in Triton: one program a slot of a layer."""

import torch
import triton
import triton.language as tl

from kernels.kv_layers import KVLayers

MAX_WORDS = 1024  # that one program copies
TRITON_WORD = {torch.int64: tl.int64, torch.int32: tl.int32, torch.int16: tl.int16, torch.uint8: tl.uint8}


def copy_slots(layers: KVLayers, slots: torch.Tensor, buffer: torch.Tensor, to_buffer: bool) -> None:
    """``slots`` [num_slots] to the rows of ``buffer`` [num_slots, slot_values], or back, where Triton can reach all of
    it. Waits for nothing."""
    if not len(slots):
        return
    words = buffer.view(layers.word)
    for group in layers.groups:
        block = min(MAX_WORDS, triton.next_power_of_2(group.num_words))
        copy_slots_kernel[(len(slots), len(group.pointers), triton.cdiv(group.num_words, block))](
            group.pointers,
            slots,
            words,
            words.stride(0),
            group.first_word,
            NUM_WORDS=group.num_words,
            BLOCK=block,
            WORD=TRITON_WORD[layers.word],
            ALIGNMENT=layers.word.itemsize if group.num_words % 2 else 2 * layers.word.itemsize,
            TO_BUFFER=to_buffer,
            num_warps=4,
        )


@triton.jit
def copy_slots_kernel(
    layer_pointers,  # [num_layers], int64, where each layer's slots begin
    slots,  # [num_slots], int64
    buffer,  # [num_slots, buffer_stride] words
    buffer_stride,
    first_word,
    NUM_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    WORD: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    TO_BUFFER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1)
    lane = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < NUM_WORDS
    # An address out of a table says nothing of its alignment, without which no load is wider than a word.
    layer_start = tl.multiple_of(tl.load(layer_pointers + layer).to(tl.pointer_type(WORD)), ALIGNMENT)
    cached = layer_start + tl.load(slots + row) * NUM_WORDS + lane
    buffered = buffer + row * buffer_stride + first_word + layer * NUM_WORDS + lane
    if TO_BUFFER:
        tl.store(buffered, tl.load(cached, mask=mask), mask=mask)
    else:
        tl.store(cached, tl.load(buffered, mask=mask), mask=mask)
