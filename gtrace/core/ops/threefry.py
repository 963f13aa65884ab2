"""Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), the cipher behind gt.random.

It maps a key of two 32-bit words and a counter of two words to two words that look random. Words are int64 values in
[0, 2**32): torch has no arithmetic on unsigned 32-bit integers, and 64 bits hold every sum and shift.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy
import torch

from gtrace.core.backends.inductor.pointwise import POINTWISE
from gtrace.core.backends.interpreter.tuned import COUNTER_CHUNK, FEW_COUNTERS
from gtrace.core.backends.native.elementwise import integer_function
from gtrace.core.base.errors import DtypeError
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.graph import Scalar
from gtrace.core.ops.checks import refusing
from gtrace.core.ops.declare import Array, BadSample, Sample, bind, define
from gtrace.core.ops.samples import rng
from gtrace.core.trace.convert import lift, python_scalar, scalar_operand

MASK = 0xFFFFFFFF
"""The low 32 bits."""

FIRST, SECOND, XOR, PAIR = range(4)
"""The result of the operation: the first or second word, their exclusive or, or first * 2**32 + second."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA

Words = TypeVar("Words", int, torch.Tensor)


def block(k0: Words, k1: Words, x0: Words, x1: Words) -> tuple[Words, Words]:
    """Encrypt the counter (x0, x1) with the key (k0, k1) in 20 rounds, on ints or tensors; return two words."""
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = x0 + k0, (x1 + k1) & MASK
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            # mask x0 only at the end: each sum adds less than 2**32, and int64 has room for all of them
            x0 = x0 + x1
            x1 = ((x1 << distance | x1 >> 32 - distance) ^ x0) & MASK
        x0 = x0 + keys[(group + 1) % 3]
        x1 = (x1 + (keys[(group + 2) % 3] + (group + 1))) & MASK
    return x0 & MASK, x1


def _compute(k0: Any, k1: Any, x0: Any, x1: Any, word: int) -> Any:
    first, second = block(k0, k1, x0, x1)
    if word == XOR:
        return first ^ second
    if word == PAIR:
        # make the first word signed, so that the product does not overflow
        return (first - ((first >> 31) << 32)) * (1 << 32) + second
    return first if word == FIRST else second


_U32 = numpy.uint32
_TURNS = tuple(tuple((_U32(d), _U32(32 - d)) for d in group) for group in _ROTATIONS)


def _on_cpu(k0: torch.Tensor, k1: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor, word: int) -> torch.Tensor:
    """Encrypt as `_compute` does, in chunks, with NumPy's unsigned words, which wrap around.

    There are 120 calls, and a NumPy call takes a third of the time of a torch call.
    """
    shape = numpy.broadcast_shapes(k0.shape, k1.shape, x0.shape, x1.shape)
    count = math.prod(shape)
    if 0 < count <= FEW_COUNTERS:
        columns = [
            [w.item()] * count if w.numel() == 1 else w.expand(shape).reshape(-1).tolist() for w in (k0, k1, x0, x1)
        ]
        found = [_compute(a, b, c, d, word) for a, b, c, d in zip(*columns, strict=True)]
        return torch.tensor(found, dtype=torch.int64).reshape(shape)
    out = numpy.empty(count, numpy.int64)
    words = [int(w) if w.numel() == 1 else w.expand(shape).reshape(-1).numpy() for w in (k0, k1, x0, x1)]
    for start in range(0, count, COUNTER_CHUNK):
        stop = min(start + COUNTER_CHUNK, count)
        first, second = _encrypted([_part(w, start, stop) for w in words], stop - start)
        if word == PAIR:
            out[start:stop] = (first.astype(numpy.uint64) << numpy.uint64(32) | second).view(numpy.int64)
        else:
            out[start:stop] = first ^ second if word == XOR else first if word == FIRST else second
    return torch.from_numpy(out).reshape(shape)


def _part(word: int | numpy.ndarray, start: int, stop: int) -> Any:
    return _U32(word & MASK) if isinstance(word, int) else word[start:stop].astype(_U32)


def _encrypted(words: list[Any], count: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the two words of `count` counters. Each of key and counter is a 32-bit word or an array of them."""
    k0, k1, x0, x1 = words
    first, second, bits = (numpy.empty(count, _U32) for _ in range(3))
    with numpy.errstate(over="ignore"):  # for scalar words
        keys = (k0, k1, k0 ^ k1 ^ _U32(_PARITY))
        first[:], second[:] = x0 + k0, x1 + k1
        for group in range(5):
            for left, right in _TURNS[group % 2]:
                first += second
                numpy.right_shift(second, right, out=bits)
                numpy.left_shift(second, left, out=second)
                second |= bits
                second ^= first
            first += keys[(group + 1) % 3]
            second += keys[(group + 2) % 3] + _U32(group + 1)
    return first, second


def _in_kernels(k0: Any, k1: Any, x0: Any, x1: Any, word: int) -> Any:
    """Encrypt as `_compute` does, in Inductor's kernels, with 32-bit elements, which wrap around.

    They need half as many vectors. A right shift brings in copies of the sign, which are masked out. So bits
    beyond the 32nd do no harm.
    """
    k0, k1, first, second = (x.to(torch.int32) for x in (k0, k1, x0, x1))
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    first, second = first + k0, second + k1
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            second = (second << distance | second >> 32 - distance & (1 << distance) - 1) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + (keys[(group + 2) % 3] + (group + 1))
    if word == PAIR:
        return first.to(torch.int64) * (1 << 32) + (second.to(torch.int64) & MASK)
    chosen = first ^ second if word == XOR else first if word == FIRST else second
    return chosen.to(torch.int64) & MASK


# one torch operation, so that a compiler does not see 150
_library = torch.library.Library("gtrace", "FRAGMENT")
_library.define("threefry2x32(Tensor k0, Tensor k1, Tensor x0, Tensor x1, int word) -> Tensor")
_library.impl("threefry2x32", _compute, "CompositeExplicitAutograd")
_library.impl("threefry2x32", _on_cpu, "CPU")
_torch_op = torch.ops.gtrace.threefry2x32.default
POINTWISE[_torch_op] = _in_kernels


def _samples() -> list[Sample]:
    k0, k1 = rng(0).integers(0, 1 << 32, 2), rng(1).integers(0, 1 << 32, 2)
    counter = numpy.arange(6).reshape(3, 2)
    return [Sample((k0, k1, counter >> 32, counter), {"word": word}) for word in range(4)] + [
        Sample((k0[:1], k1[:1], 0, rng(2).integers(0, 1 << 32, 5)), {"word": XOR}),
        Sample((k0[0:0], k1[:1], 0, 0), {"word": FIRST}),
    ]


def _reference(k0: Any, k1: Any, x0: Any, x1: Any, word: int) -> numpy.ndarray:
    """Compute the same on unsigned NumPy words, which wrap around."""
    u = numpy.uint32
    a, b, c, d = (numpy.asarray(v, dtype=numpy.uint32) for v in numpy.broadcast_arrays(k0, k1, x0, x1))
    schedule = [a, b, a ^ b ^ u(_PARITY)]
    c, d = c + a, d + b
    for step in range(20):
        turn = _ROTATIONS[step // 4 % 2][step % 4]
        c = c + d
        d = (d << u(turn) | d >> u(32 - turn)) ^ c
        if step % 4 == 3:
            k = step // 4 + 1
            c, d = c + schedule[k % 3], d + schedule[(k + 1) % 3] + u(k)
    pair = (c.astype(numpy.uint64) << numpy.uint64(32) | d.astype(numpy.uint64)).astype(numpy.int64)
    return [c, d, c ^ d][word].astype(numpy.int64) if word != PAIR else pair


_op = define(
    "threefry2x32", lambda *words, word: _torch_op(*words, word), params=("word",), arity=4,
    elementwise=True, cipher=True,
    check=refusing(lambda a: a.dtype is not torch.int64, "words as int64", "Make keys with gt.random.key."),
    nondiff="random bits: a cipher has no derivative", samples=_samples,
    errors=lambda: [BadSample((numpy.ones(2), 1, 0, 0), {"word": 0}, DtypeError, r"int64")],
    reference=_reference, user=lambda k0, k1, x0, x1, word: threefry2x32(k0, k1, x0, x1, word),
    cpp=Cpp(integer_function(_compute, 4), "i", 120),
)  # fmt: skip


def threefry2x32(k0: Any, k1: Any, x0: Any, x1: Any, word: int) -> Array:
    """Return the output word (`FIRST`, `SECOND`, `XOR` or `PAIR`) for key (k0, k1) and counter (x0, x1), all int64.

    The operands broadcast; at least one is an array.
    """
    arrays = {k: lift("threefry2x32", x) for k, x in enumerate((k0, k1, x0, x1)) if python_scalar(x) is None}
    device = next(iter(arrays.values())).aval.device
    operands: list[Array | Scalar] = [
        arrays[k] if k in arrays else scalar_operand("threefry2x32", x, torch.int64, device)
        for k, x in enumerate((k0, k1, x0, x1))
    ]
    return bind(_op, operands, (word,))
