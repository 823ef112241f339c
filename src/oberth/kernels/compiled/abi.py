"""What the kernels are written in: raw loads and stores, 16 bytes at a time where that pays.

numba knows no big-endian arrays, and numba arrays need its run time; so memory is addressed through
plain pointers and integers are put together by a load and a byte swap.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic

# Carry-less multiplication folds 64 bytes of a CRC in a few cycles; without it tables do.
HAVE_CARRYLESS_MULTIPLY = bool(get_host_cpu_features().get("pclmul"))

_BYTES = types.CPointer(types.uint8)
_INT32 = types.CPointer(types.int32)
_UINT32 = types.CPointer(types.uint32)
_INT64 = types.CPointer(types.int64)
ARGUMENTS = _INT64

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)

# Untyped on purpose: both change how a function is called.
intrinsic: Any = numba_intrinsic
helper: Callable[[Any], Any] = njit(nogil=True, error_model="numpy", boundscheck=False)


def _address_as(pointer: Any) -> Any:
    def typed(typing_context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), code

    return intrinsic(typed)


bytes_at = _address_as(_BYTES)
int32_at = _address_as(_INT32)
uint32_at = _address_as(_UINT32)
int64_at = _address_as(_INT64)


def _byte_pointer(builder: Any, pointer: Any, index: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


def _load(width: int, *, signed: bool, swap: bool) -> Any:
    kind = ir.IntType(width)

    def typed(typing_context: Any, pointer: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_byte_pointer(builder, arguments[0], arguments[1], kind), align=1)
            if swap:
                value = builder.bswap(value)
            if width == 64:
                return value
            return builder.sext(value, I64) if signed else builder.zext(value, I64)

        return types.int64(_BYTES, types.int64), code

    return intrinsic(typed)


load_u8 = _load(8, signed=False, swap=False)
load_be16 = _load(16, signed=False, swap=True)
load_be32 = _load(32, signed=True, swap=True)
load_be64 = _load(64, signed=True, swap=True)
load_le32 = _load(32, signed=False, swap=False)
load_le64 = _load(64, signed=True, swap=False)


def _store(width: int) -> Any:
    kind = ir.IntType(width)

    def typed(typing_context: Any, pointer: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, at, number = arguments
            if width < 64:
                number = builder.trunc(number, kind)
            if width > 8:
                number = builder.bswap(number)
            builder.store(number, _byte_pointer(builder, target, at, kind), align=1)
            return context.get_dummy_value()

        return types.void(_BYTES, types.int64, types.int64), code

    return intrinsic(typed)


store_u8 = _store(8)
store_be16 = _store(16)
store_be32 = _store(32)
store_be64 = _store(64)


def _prefetch(write: int) -> Any:
    def typed(typing_context: Any, pointer: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            where = builder.gep(arguments[0], [arguments[1]])
            builder.call(function, [where, *(ir.Constant(I32, n) for n in (write, 3, 1))])
            return context.get_dummy_value()

        return types.void(_BYTES, types.int64), code

    return intrinsic(typed)


# Ask for the cache line of a place that is going to be read, or written, soon. Any address will do:
# one that is not there is passed over.
prefetch_read = _prefetch(0)
prefetch_write = _prefetch(1)


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """How many zero bits a number ends in; 64 for zero."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), code


def _splat(builder: Any, byte: Any, count: int) -> Any:
    vector = ir.VectorType(I8, count)
    one = builder.insert_element(
        ir.Constant(vector, ir.Undefined), builder.trunc(byte, I8), ir.Constant(I32, 0)
    )
    mask = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _match(count: int) -> Any:
    vector = ir.VectorType(I8, count)

    def typed(typing_context: Any, pointer: Any, index: Any, byte: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, at, wanted = arguments
            data = builder.load(_byte_pointer(builder, target, at, vector), align=1)
            equal = builder.icmp_unsigned("==", data, _splat(builder, wanted, count))
            mask = builder.bitcast(equal, ir.IntType(count))
            return mask if count == 64 else builder.zext(mask, I64)

        return types.int64(_BYTES, types.int64, types.int64), code

    return intrinsic(typed)


# A bit for each byte that equals the wanted one, the lowest for the first byte.
match_16 = _match(16)
match_64 = _match(64)


@intrinsic
def copy_16(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any) -> Any:
    """Copies 16 bytes through a register."""
    vector = ir.VectorType(I8, 16)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_at, start, start_at = arguments
        value = builder.load(_byte_pointer(builder, start, start_at, vector), align=1)
        builder.store(value, _byte_pointer(builder, to, to_at, vector), align=1)
        return context.get_dummy_value()

    return types.void(_BYTES, types.int64, _BYTES, types.int64), code


@intrinsic
def copy_bytes(
    typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, size: Any
) -> Any:
    """Copies bytes that do not overlap."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, to_at, start, start_at, count = arguments
        cgutils.raw_memcpy(
            builder, builder.gep(to, [to_at]), builder.gep(start, [start_at]), count, 1
        )
        return context.get_dummy_value()

    return types.void(_BYTES, types.int64, _BYTES, types.int64, types.int64), code


# x**n mod P in the reflected domain for folding over 64 and over 16 bytes (V. Gopal et al., "Fast
# CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
_FOLD_64 = (0x154442BD4, 0x1C6E41596)
_FOLD_16 = (0x1751997D0, 0x0CCAA009E)


@intrinsic
def crc_fold(typing_context: Any, pointer: Any, index: Any, size: Any, crc: Any) -> Any:
    """Folds ``size`` bytes (64 or more, a multiple of 16) into 16 with the same remainder."""
    pair = types.UniTuple(types.int64, 2)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, count, state = arguments
        vector = ir.VectorType(I64, 2)
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector, vector, I8]), "llvm.x86.pclmulqdq"
        )
        low, high = ir.Constant(I8, 0x00), ir.Constant(I8, 0x11)

        def load(position: Any) -> Any:
            return builder.load(_byte_pointer(builder, target, position, vector), align=1)

        def fold(value: Any, constants: tuple[int, int], data: Any) -> Any:
            k = ir.Constant(vector, list(constants))
            lower = builder.call(multiply, [value, k, low])
            upper = builder.call(multiply, [value, k, high])
            return builder.xor(builder.xor(lower, upper), data)

        def ahead(position: Any, distance: int) -> Any:
            return builder.add(position, ir.Constant(I64, distance))

        def times(distance: int, number: Any) -> Any:
            return builder.mul(number, ir.Constant(I64, distance))

        lanes = [cgutils.alloca_once(builder, vector) for _ in range(4)]
        for n, lane in enumerate(lanes):
            value = load(ahead(at, 16 * n))
            if n == 0:
                start = builder.insert_element(
                    ir.Constant(vector, [0, 0]), state, ir.Constant(I32, 0)
                )
                value = builder.xor(value, start)
            builder.store(value, lane)
        rest = builder.sub(count, ir.Constant(I64, 64))
        wide = builder.lshr(rest, ir.Constant(I64, 6))
        position = ahead(at, 64)
        with cgutils.for_range(builder, wide) as loop:
            block = builder.add(position, times(64, loop.index))
            for n, lane in enumerate(lanes):
                data = load(ahead(block, 16 * n))
                builder.store(fold(builder.load(lane), _FOLD_64, data), lane)
        value = builder.load(lanes[0])
        for lane in lanes[1:]:
            value = fold(value, _FOLD_16, builder.load(lane))
        builder.store(value, lanes[0])
        position = builder.add(position, times(64, wide))
        narrow = builder.lshr(builder.and_(rest, ir.Constant(I64, 63)), ir.Constant(I64, 4))
        with cgutils.for_range(builder, narrow) as loop:
            data = load(builder.add(position, times(16, loop.index)))
            builder.store(fold(builder.load(lanes[0]), _FOLD_16, data), lanes[0])
        value = builder.load(lanes[0])
        parts = [builder.extract_element(value, ir.Constant(I32, n)) for n in range(2)]
        return context.make_tuple(builder, pair, parts)

    return pair(_BYTES, types.int64, types.int64, types.int64), code
