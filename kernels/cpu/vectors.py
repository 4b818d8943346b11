"""Vector instructions that Numba has no words for, written as LLVM's: they run on every processor, in the widest
registers that it has.

All arrays are float32 but slots, which are int64. Nothing is checked: an index that is out of range reads there.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LANES = 16  # numbers of a vector, and of what the processor fetches from memory at a time
AT_A_TIME = 4  # slots
ANY_ORDER = ("fast",)

NUMBER = ir.FloatType()
VECTOR = ir.VectorType(NUMBER, LANES)
SCORES = ir.VectorType(NUMBER, AT_A_TIME)
INDEX = ir.IntType(64)

Value = Any
"""LLVM's, as ``llvmlite`` has them without types."""


@intrinsic
def prefetch(typingctx, array, row, column, lane):
    """Have the processor fetch the cache line of ``array[row, column, lane]``, without waiting for it."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1:], ir.IntType(8))
        kinds = [pointer.type, *[cgutils.int32_t] * 3]
        instruction = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
        )
        to_read, into_all_caches, of_data = (cgutils.int32_t(value) for value in (0, 3, 1))
        builder.call(instruction, [pointer, to_read, into_all_caches, of_data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
def score_slots(typingctx, scores, row, first, query, kv, slots, head, dim):
    """``scores[row, first : first + 4]``: the products of ``query[row]`` [dim] and the keys of four of ``slots``, which
    are the leading numbers of ``kv[slot, head]``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        zero = INDEX(0)
        rows = _pointer(context, builder, kinds[3], arguments[3], [arguments[1], zero])
        chosen = _slots(context, builder, kinds[5], arguments[5], arguments[2])
        keys = [_pointer(context, builder, kinds[4], arguments[4], [slot, arguments[6], zero]) for slot in chosen]
        totals = [None] * AT_A_TIME
        for number in range(dim.literal_value // LANES):
            part = _load(builder, rows, number)
            products = [builder.fmul(part, _load(builder, key, number), flags=ANY_ORDER) for key in keys]
            totals = [_sum(builder, *each) for each in zip(totals, products, strict=True)]
        out = _pointer(context, builder, kinds[0], arguments[0], [arguments[1], arguments[2]], SCORES)
        builder.store(_sums_of_lanes(builder, totals), out, align=4)
        return context.get_dummy_value()

    return types.void(scores, types.intp, types.intp, query, kv, slots, types.intp, dim), generate


@intrinsic(prefer_literal=True)
def add_values(typingctx, mean, row, weights, first, kv, slots, head, key_dim, dim):
    """``mean[row]`` [dim] grows by the values of four of ``slots``, each times its weight in ``weights[row, first :
    first + 4]``. Values follow the ``key_dim`` numbers of ``kv[slot, head]``'s key."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        target = _pointer(context, builder, kinds[0], arguments[0], [arguments[1], INDEX(0)])
        chosen = _slots(context, builder, kinds[5], arguments[5], arguments[3])
        behind = INDEX(key_dim.literal_value)
        values = [_pointer(context, builder, kinds[4], arguments[4], [slot, arguments[6], behind]) for slot in chosen]
        parts = _pointer(context, builder, kinds[2], arguments[2], [arguments[1], arguments[3]], NUMBER)
        factors = [_everywhere(builder, _load(builder, parts, i)) for i in range(AT_A_TIME)]
        for number in range(dim.literal_value // LANES):
            total = _load(builder, target, number)
            for value, factor in zip(values, factors, strict=True):
                total = _sum(builder, total, builder.fmul(factor, _load(builder, value, number), flags=ANY_ORDER))
            builder.store(total, builder.gep(target, [INDEX(number)]), align=4)
        return context.get_dummy_value()

    return types.void(mean, types.intp, weights, types.intp, kv, slots, types.intp, key_dim, dim), generate


def _pointer(context: Any, builder: Any, kind: Any, value: Value, indices: Sequence[Value], to: Any = VECTOR) -> Value:
    """To what begins at these indices of an array."""
    pointer = cgutils.get_item_pointer(context, builder, kind, make_array(kind)(context, builder, value), indices)
    return builder.bitcast(pointer, to.as_pointer())


def _slots(context: Any, builder: Any, kind: Any, slots: Value, first: Value) -> list[Value]:
    """Of ``slots``, four from ``first`` on."""
    pointer = _pointer(context, builder, kind, slots, [first], INDEX)
    return [builder.load(builder.gep(pointer, [INDEX(i)])) for i in range(AT_A_TIME)]


def _load(builder: Any, pointer: Value, number: int) -> Value:
    return builder.load(builder.gep(pointer, [INDEX(number)]), align=4)


def _sum(builder: Any, total: Value | None, product: Value) -> Value:
    return product if total is None else builder.fadd(total, product, flags=ANY_ORDER)


def _everywhere(builder: Any, number: Value) -> Value:
    alone = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, cgutils.int32_t(0))
    return _shuffled(builder, alone, alone, [0] * LANES)


def _sums_of_lanes(builder: Any, totals: list[Value]) -> Value:
    """Of four vectors, as a vector of four: lanes are added in pairs of vectors, and then of pairs."""
    a, b, c, d = totals
    of_two = [_paired(builder, *pair, (0, 4, 1, 5), (2, 6, 3, 7)) for pair in ((a, b), (c, d))]
    lanes = _paired(builder, of_two[0], of_two[1], (0, 1, 4, 5), (2, 3, 6, 7))
    for count in (LANES // 2, LANES // 4):
        low, high = (_shuffled(builder, lanes, lanes, range(start, start + count)) for start in (0, count))
        lanes = builder.fadd(low, high, flags=ANY_ORDER)
    return lanes


def _paired(builder: Any, a: Value, b: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    """The sum of two shuffles of ``a`` and ``b``, alike in each group of four lanes: 0 to 3 are the group's of ``a``, 4
    to 7 those of ``b``. So processors shuffle in one instruction."""
    groups = range(0, LANES, 4)
    masks = ([start + lane + (LANES - 4) * (lane > 3) for start in groups for lane in each] for each in (low, high))
    first, second = (_shuffled(builder, a, b, mask) for mask in masks)
    return builder.fadd(first, second, flags=ANY_ORDER)


def _shuffled(builder: Any, a: Value, b: Value, lanes: Sequence[int]) -> Value:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
    return builder.shuffle_vector(a, b, mask)
