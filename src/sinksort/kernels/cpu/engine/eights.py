"""Tables with eight numbers in a row, read and added to at sixteen rows at a time that are not neighbours.

Sixteen lanes want number k of their own rows in vector k, while a row is moved as a whole: so between the two there is
a transposition, in registers. Single numbers would be moved eight times as often.

    load_eights    the first six numbers of 16 rows of a float32 table, as six vectors
    add_eights     eight vectors are added to 16 rows of a float64 table, one after the other: they may be the same
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import F16, LANES

EIGHT = 8
_I32 = ir.IntType(32)
_QUARTERS = range(4)  #: of a vector: four lanes each


def _shuffled(builder: Any, a: Any, b: Any, picks: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(picks)), picks))


def _transposed(builder: Any, four: list[Any]) -> list[Any]:
    """Of four vectors, each quarter as a 4 by 4 matrix: lane r of vector k changes places with lane k of vector r."""

    def quarters(a: Any, b: Any, lanes: tuple[int, int, int, int]) -> Any:
        """Lanes from 4 on are those of b."""
        return _shuffled(builder, a, b, [4 * q + (k if k < 4 else LANES + k - 4) for q in _QUARTERS for k in lanes])

    low_01, high_01 = (quarters(four[0], four[1], lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7)))
    low_23, high_23 = (quarters(four[2], four[3], lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7)))
    return [
        quarters(a, b, lanes)
        for a, b in ((low_01, low_23), (high_01, high_23))
        for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))
    ]


def _row_pointers(context: Any, builder: Any, sig: Any, args: Any, first: int) -> list[Any]:
    """Where the rows of a table (the first argument) are that others name: an array, and from where on in it."""
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    names = context.make_array(sig.args[first])(context, builder, args[first]).data
    at = context.cast(builder, args[first + 1], sig.args[first + 1], types.intp)
    pointers = []
    for lane in range(LANES):
        name = builder.load(builder.gep(names, [builder.add(at, ir.Constant(at.type, lane))]))
        pointers.append(builder.gep(data, [builder.mul(name, ir.Constant(name.type, EIGHT))]))
    return pointers


@intrinsic  # type: ignore[misc]
def load_eights(typingctx: Any, table: Any, names: Any, offset: Any) -> Any:  # noqa: ARG001
    """Six vectors: what rows names[offset], ..., names[offset + 15] of the table begin with."""
    quarter = ir.VectorType(ir.FloatType(), 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _row_pointers(context, builder, sig, args, 1)

        def half(at: int) -> list[Any]:
            """Numbers at, ..., at + 3 of all rows: those of row 4 q + r are quarter q of vector r before they turn."""
            vectors = []
            for r in range(4):
                parts = []
                for q in _QUARTERS:
                    where = builder.gep(pointers[4 * q + r], [ir.Constant(_I32, at)])
                    part = builder.load(builder.bitcast(where, quarter.as_pointer()))
                    part.align = 4
                    parts.append(part)
                pairs = [_shuffled(builder, a, b, list(range(8))) for a, b in (parts[:2], parts[2:])]
                vectors.append(_shuffled(builder, *pairs, list(range(LANES))))
            return _transposed(builder, vectors)

        return context.make_tuple(builder, sig.return_type, half(0) + half(4)[:2])

    return types.UniTuple(F16, 6)(table, names, offset), codegen


@intrinsic  # type: ignore[misc]
def add_eights(typingctx: Any, table: Any, names: Any, offset: Any, vectors: Any) -> Any:  # noqa: ARG001
    """Adds lane l of eight vectors to row names[offset + l] of the table."""
    row = ir.VectorType(ir.DoubleType(), EIGHT)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _row_pointers(context, builder, sig, args, 1)
        given = [builder.extract_value(args[3], k) for k in range(EIGHT)]
        lower, upper = _transposed(builder, given[:4]), _transposed(builder, given[4:])
        for lane in range(LANES):
            q, r = divmod(lane, 4)
            picks = [4 * q + k for k in _QUARTERS] + [LANES + 4 * q + k for k in _QUARTERS]
            where = builder.bitcast(pointers[lane], row.as_pointer())
            before = builder.load(where)
            before.align = 8
            after = builder.fadd(before, builder.fpext(_shuffled(builder, lower[r], upper[r], picks), row))
            builder.store(after, where).align = 8
        return context.get_dummy_value()

    return types.none(table, names, offset, types.UniTuple(F16, EIGHT)), codegen
