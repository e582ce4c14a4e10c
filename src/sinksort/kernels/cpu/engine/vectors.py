"""Sixteen numbers at a time: vectors of a fixed length as Numba values, so that nothing depends on a vectoriser's mood.

``F16`` holds 16 float32, ``D16`` 16 float64, ``M16`` 16 truth values. LLVM turns them into whatever registers the
machine has (one or two of AVX-512, two to four of AVX2, four to eight of NEON). Arithmetic operators and comparisons
work lane by lane, with numbers on either side; products and sums may be contracted to fused ones, nothing is reordered.

    load, load64     16 consecutive entries of a float32 or float64 array, from an offset
    store, store64
    splat, splat64   a number in all lanes
    narrow, widen    float64 <-> float32
    choose           lane by lane, where(mask, a, b)
    total, total64   the sum of the lanes, in pairs
    highest, lowest  of the lanes of F16; highest64, lowest64 of D16
    totals           of a tuple of 16 vectors, in the lanes of one
    fold             sums of neighbours in two vectors
    any_lane         whether a mask is true anywhere
    load_apart, store_apart    16 entries of a float32 array that are not neighbours
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16
_FLAGS = ("contract",)
_I32, _I64 = ir.IntType(32), ir.IntType(64)


class Lanes(types.Type):  # type: ignore[misc]
    """The type of a vector; ``element`` is the Numba type of a lane."""

    def __init__(self, element: Any, llvm_element: Any) -> None:
        self.element, self.llvm = element, ir.VectorType(llvm_element, LANES)
        super().__init__(name=f"Lanes({element})")


F16 = Lanes(types.float32, ir.FloatType())
D16 = Lanes(types.float64, ir.DoubleType())
M16 = Lanes(types.boolean, ir.IntType(1))


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _vector_of(types_of: Any) -> Lanes | None:
    """The vector type that two operands have in common, or None if neither is one."""
    a, b = types_of
    vectors = [t for t in (a, b) if isinstance(t, Lanes)]
    if not vectors or (len(vectors) == 2 and a != b):
        return None
    others = [t for t in (a, b) if not isinstance(t, Lanes)]
    return vectors[0] if all(isinstance(t, (types.Float, types.Integer)) for t in others) else None


def _operands(context: Any, builder: Any, sig: Any, args: Any) -> list[Any]:
    vector = _vector_of(sig.args)
    assert vector is not None  # the typing rule saw to it  # noqa: S101
    return [
        value if isinstance(t, Lanes) else _splat(builder, context.cast(builder, value, t, vector.element), vector.llvm)
        for value, t in zip(args, sig.args, strict=True)
    ]


def _binary(symbol: Any, emit: Any, comparison: bool = False) -> None:
    @infer_global(symbol)
    class _Typed(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            vector = _vector_of(args) if len(args) == 2 and not kws else None
            return None if vector is None else signature(M16 if comparison else vector, *args)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, *_operands(context, builder, sig, args))

    for left, right in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(symbol, left, right)(lowered)


_binary(operator.add, lambda builder, a, b: builder.fadd(a, b, flags=_FLAGS))
_binary(operator.sub, lambda builder, a, b: builder.fsub(a, b, flags=_FLAGS))
_binary(operator.mul, lambda builder, a, b: builder.fmul(a, b, flags=_FLAGS))
_binary(operator.truediv, lambda builder, a, b: builder.fdiv(a, b, flags=_FLAGS))
_binary(operator.lt, lambda builder, a, b: builder.fcmp_ordered("<", a, b), comparison=True)
_binary(operator.gt, lambda builder, a, b: builder.fcmp_ordered(">", a, b), comparison=True)
_binary(operator.ge, lambda builder, a, b: builder.fcmp_ordered(">=", a, b), comparison=True)
_binary(operator.eq, lambda builder, a, b: builder.fcmp_ordered("==", a, b), comparison=True)
_binary(operator.and_, lambda builder, a, b: builder.and_(a, b))
_binary(operator.or_, lambda builder, a, b: builder.or_(a, b))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _of(array: Any) -> Lanes:
    """The vector type of an array's elements."""
    return F16 if array.dtype == types.float32 else D16


def _loader(of_all: Lanes | None) -> Any:
    def load(typingctx: Any, array: Any, offset: Any) -> Any:  # noqa: ARG001
        vector = of_all or _of(array)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            at = context.cast(builder, args[1], sig.args[1], types.intp)
            where = _pointer(context, builder, sig.args[0], args[0], at, vector.llvm)
            loaded = builder.load(where)
            loaded.align = vector.element.bitwidth // 8
            return loaded

        return vector(array, offset), codegen

    return intrinsic(load)


def _storer(of_all: Lanes | None) -> Any:
    def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:  # noqa: ARG001
        vector = of_all or _of(array)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            at = context.cast(builder, args[1], sig.args[1], types.intp)
            where = _pointer(context, builder, sig.args[0], args[0], at, vector.llvm)
            builder.store(args[2], where).align = vector.element.bitwidth // 8
            return context.get_dummy_value()

        return types.none(array, offset, vector), codegen

    return intrinsic(store)


def _splatter(vector: Lanes) -> Any:
    def splat(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            number = context.cast(builder, args[0], sig.args[0], vector.element)
            return _splat(builder, number, vector.llvm)

        return vector(value), codegen

    return intrinsic(splat)


def _reducer(of_all: Lanes | None, join: Any) -> Any:
    """All lanes to one number: the upper half is joined to the lower one until one lane is left."""

    def reduce(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
        vector = of_all or value

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
            (v,) = args
            half = LANES // 2
            while half:
                unused = ir.Constant(v.type, ir.Undefined)
                lower, upper = (
                    builder.shuffle_vector(v, unused, ir.Constant(ir.VectorType(_I32, half), list(lanes)))
                    for lanes in (range(half), range(half, 2 * half))
                )
                v = join(builder, lower, upper)
                half //= 2
            return builder.extract_element(v, ir.Constant(_I32, 0))

        return vector.element(vector), codegen

    return intrinsic(reduce)


def _sum(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


load, load64 = _loader(F16), _loader(D16)
store, store64 = _storer(F16), _storer(D16)
splat, splat64 = _splatter(F16), _splatter(D16)
load_any, store_any, total_any = _loader(None), _storer(None), _reducer(None, _sum)  #: of whatever the array holds
total, total64 = _reducer(F16, _sum), _reducer(D16, _sum)
highest, lowest = _reducer(F16, _larger), _reducer(F16, _smaller)
highest64, lowest64 = _reducer(D16, _larger), _reducer(D16, _smaller)


@intrinsic  # type: ignore[misc]
def totals(typingctx: Any, vectors: Any) -> Any:  # noqa: ARG001
    """Sums of 16 vectors, in the lanes of one: pairs of them are folded into one until one is left."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        level = [builder.extract_value(args[0], k) for k in range(LANES)]
        size = LANES  # lanes that one sum is spread over
        while len(level) > 1:
            half = size // 2
            # Of both vectors (the second has lanes 16 to 31) the lower and the upper half of each sum's lanes.
            lower = [lane for start in range(0, 2 * LANES, size) for lane in range(start, start + half)]
            picks = [ir.Constant(ir.VectorType(_I32, LANES), [lane + at for lane in lower]) for at in (0, half)]
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [_sum(builder, *(builder.shuffle_vector(a, b, pick) for pick in picks)) for a, b in pairs]
            size = half
        return level[0]

    return F16(types.UniTuple(F16, LANES)), codegen


@intrinsic  # type: ignore[misc]
def fold(typingctx: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Sums of neighbours: those of a in the lower lanes, of b in the upper ones."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        picks = [ir.Constant(ir.VectorType(_I32, LANES), list(range(at, 2 * LANES, 2))) for at in (0, 1)]
        return _sum(builder, *(builder.shuffle_vector(*args, pick) for pick in picks))

    return F16(F16, F16), codegen


@intrinsic  # type: ignore[misc]
def store_square(typingctx: Any, array: Any, offset: Any, stride: Any, value: Any) -> Any:  # noqa: ARG001
    """Stores 16 lanes as 4 rows of 4, ``stride`` apart."""
    quarter = ir.VectorType(ir.FloatType(), 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, step = (context.cast(builder, args[k], sig.args[k], types.intp) for k in (1, 2))
        for row in range(4):
            picks = ir.Constant(ir.VectorType(_I32, 4), [4 * row + k for k in range(4)])
            part = builder.shuffle_vector(args[3], ir.Constant(F16.llvm, ir.Undefined), picks)
            builder.store(part, _pointer(context, builder, sig.args[0], args[0], at, quarter)).align = 4
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.none(array, offset, stride, F16), codegen


@intrinsic  # type: ignore[misc]
def load_apart(typingctx: Any, array: Any, offset: Any, stride: Any) -> Any:  # noqa: ARG001
    """16 entries of a float32 array, ``stride`` apart."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, step = (context.cast(builder, args[k], sig.args[k], types.intp) for k in (1, 2))
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        value = ir.Constant(F16.llvm, ir.Undefined)
        for lane in range(LANES):
            value = builder.insert_element(value, builder.load(builder.gep(data, [at])), ir.Constant(_I32, lane))
            at = builder.add(at, step)
        return value

    return F16(array, offset, stride), codegen


@intrinsic  # type: ignore[misc]
def store_apart(typingctx: Any, array: Any, offset: Any, stride: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at, step = (context.cast(builder, args[k], sig.args[k], types.intp) for k in (1, 2))
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        for lane in range(LANES):
            builder.store(builder.extract_element(args[3], ir.Constant(_I32, lane)), builder.gep(data, [at]))
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.none(array, offset, stride, F16), codegen


@intrinsic  # type: ignore[misc]
def lane_numbers(typingctx: Any) -> Any:  # noqa: ARG001
    """0.0 to 15.0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return ir.Constant(F16.llvm, [float(k) for k in range(LANES)])

    return F16(), codegen


@intrinsic  # type: ignore[misc]
def narrow(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.fptrunc(args[0], F16.llvm)

    return F16(D16), codegen


@intrinsic  # type: ignore[misc]
def widen(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.fpext(args[0], D16.llvm)

    return D16(F16), codegen


@intrinsic  # type: ignore[misc]
def select(typingctx: Any, mask: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        return builder.select(*args)

    return a(M16, a, a), codegen


@intrinsic  # type: ignore[misc]
def any_lane(typingctx: Any, mask: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        bits = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(M16), codegen


@intrinsic  # type: ignore[misc]
def times_power_of_two(typingctx: Any, value: Any, shifted: Any) -> Any:  # noqa: ARG001
    """Value times 2^n, for n in the lowest bits of ``shifted`` = n + 1.5 * 2^23 (2^52): adds n to the exponent."""
    integer, bits = (_I32, 23) if value is F16 or value == F16 else (_I64, 52)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        vector = ir.VectorType(integer, LANES)
        n = builder.shl(builder.bitcast(args[1], vector), ir.Constant(vector, [bits] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(args[0], vector), n), sig.return_type.llvm)

    return value(value, value), codegen


@intrinsic  # type: ignore[misc]
def root(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:  # noqa: ARG001
        vector = sig.return_type.llvm
        name = f"llvm.sqrt.v{LANES}f{sig.return_type.element.bitwidth}"
        sqrt = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), name)
        return builder.call(sqrt, args)

    return value(value), codegen
