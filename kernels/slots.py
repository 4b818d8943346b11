"""Where a request's tokens lie in its KV blocks.

Position p of a request lies in block ``block_table[p // block_size]``: at offset ``p % block_size`` where the request
fills its blocks from the left (online), and at ``block_size - 1 - p % block_size`` where it fills them from the right
(offline). Two requests of opposite directions can so share a block, each growing towards the other (BROS, 5.1).
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def slots_of(block_table: Ints, positions: Ints, block_size: int, fills_right: bool | npt.NDArray[np.bool_]) -> Ints:
    """Slots, ``block * block_size + offset``, of ``positions`` (any shape) of one request.

    ``fills_right`` may differ by position, and ``block_table`` may be many tables end to end whose starts are in the
    positions already. Raises IndexError where the table does not reach."""
    offsets = positions % block_size
    firsts = block_table[positions // block_size] * block_size
    slots: Ints = firsts + np.where(fills_right, block_size - 1 - offsets, offsets)
    return slots
