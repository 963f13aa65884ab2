"""Functions of ``jax.lax`` that are made of others of gtrace's."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import gtrace as gt
from gtrace import lax as ours
from gtrace.extend import (
    INEXACT,
    ArgumentError,
    Array,
    DType,
    DtypeError,
    ShapeError,
    cast,
    lift,
    message,
    ops,
    thread,
    tree,
    weakened,
)
from gtrace.jax.meshes import reshard
from gtrace.numpy import fft as transforms

__all__ = [
    "FftType", "approx_max_k", "approx_min_k", "broadcast_like", "cond", "conj", "custom_linear_solve", "custom_root",
    "dtype", "fft", "index_take", "log2", "one_minus_square", "optimization_barrier", "polynomial", "top_k",
    "with_sharding_constraint",
]  # fmt: skip


MOST_PLACES = 2**31 - 1
"""The elements along an axis that int32 counts."""


def dtype(x: Any) -> DType:
    """Return the dtype of an array or number; a dtype is its own."""
    return DType(x) if isinstance(x, (DType, type, numpy.dtype)) else gt.asarray(x).dtype


def cond(pred: Any, *args: Any, **kwargs: Any) -> Any:
    """``gt.cond``; also in JAX's older form, with an operand before each function.

    >>> import gtrace.jax as jax
    >>> jax.lax.cond(True, 2.0, lambda x: x + 1, 3.0, lambda x: x - 1)
    Array(3., dtype=float32)
    """
    if len(args) == 4 and callable(args[1]) and callable(args[3]) and not (callable(args[0]) and callable(args[2])):
        on_true, true_fun, on_false, false_fun = args
        return ours.cond(pred, lambda a, b: true_fun(a), lambda a, b: false_fun(b), on_true, on_false, **kwargs)
    return ours.cond(pred, *args, **kwargs)


class FftType(enum.IntEnum):
    """The kinds of Fourier transforms of `fft`."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: Any, fft_type: Any, fft_lengths: Sequence[int]) -> Array:
    """Return the Fourier transform over the last axes, of the kind that `fft_type` names.

    >>> import gtrace.jax as jax
    >>> jax.lax.fft(jax.numpy.ones(2), "RFFT", (2,))
    Array([2.+0.j, 0.+0.j], dtype=complex64)
    """
    kind = FftType[fft_type.upper()] if isinstance(fft_type, str) else FftType(fft_type)
    axes = tuple(range(-len(fft_lengths), 0))
    names = {FftType.FFT: "fftn", FftType.IFFT: "ifftn", FftType.RFFT: "rfftn", FftType.IRFFT: "irfftn"}
    out: Array = getattr(transforms, names[kind])(x, tuple(fft_lengths), axes)
    return out


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Return the slices of `src` at indices along axes, one array of indices an axis; the slices are on axis 0.

    >>> import gtrace.jax as jax
    >>> jax.lax.index_take(jax.numpy.eye(2), [jax.numpy.array([1])], (0,))
    Array([[0., 1.]], dtype=float32)
    """
    x = ops.moveaxis(lift("index_take", src), tuple(axes), tuple(range(len(axes))))
    return x[tuple(idxs)]


def top_k(operand: Any, k: int, *, axis: int = -1, is_stable: bool = True) -> list[Array]:
    """``gt.lax.top_k`` along any axis, as a list, with the places as int32; equal elements keep their order."""
    x = lift("top_k", operand)
    if x.ndim and x.shape[axis] > MOST_PLACES:
        fix = "Sort parts of the array."
        raise ShapeError(message("top_k", f"at most {MOST_PLACES} elements, for places as int32", repr(x.aval), fix))
    if axis in (-1, x.ndim - 1):
        values, places = ours.top_k(x, k)
        return [values, places.astype("int32")]
    values, places = ours.top_k(ops.moveaxis(x, axis, -1), k)
    return [ops.moveaxis(values, -1, axis), ops.moveaxis(places, -1, axis).astype("int32")]


def log2(x: Any, *, accuracy: Any = None) -> Array:
    """Return the logarithm of floats or complex numbers to base 2; `accuracy` is without effect.

    Raises:
        DtypeError: integers or booleans.
    """
    x = lift("log2", x)
    if x.aval.dtype not in INEXACT:
        raise DtypeError(message("log2", "floats or complex numbers", repr(x.aval), "Convert it first."))
    return ops.log2(x)


@gt.custom_jvp
def _one_minus_square(x: Any) -> Array:
    return ops.multiply(ops.add(1, x), ops.subtract(1, x))


@_one_minus_square.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _one_minus_square(*primals), ops.multiply(ops.multiply(-2, primals[0]), tangents[0])


def one_minus_square(x: Any) -> Array:
    """Return ``1 - x**2``, exact to the last bits where x is near 1 or -1.

    >>> import gtrace.jax as jax
    >>> jax.lax.one_minus_square(0.5)
    Array(0.75, dtype=float32)
    """
    x = lift("one_minus_square", x)
    out: Array = _one_minus_square(x)
    return out


def polynomial(x: Any, coeffs: Sequence[Any] | Array, *, unroll: int | None = None) -> Array:
    """Return ``coeffs[0] + coeffs[1] * x + coeffs[2] * x**2 + ...``, in the dtype of x; `unroll` is without effect.

    >>> import gtrace.jax as jax
    >>> jax.lax.polynomial(3.0, [1.0, 5.0, 2.0])
    Array(34., dtype=float32)
    """
    x = lift("polynomial", x)
    dtype = x.aval.dtype

    def factor(c: Any) -> Array:
        number = weakened if x.aval.weak and not isinstance(c, (Array, numpy.ndarray)) else cast
        return number(lift("polynomial", c), dtype)

    *others, last = map(factor, coeffs if len(coeffs) else [0])
    out = ops.broadcast_to(last, ops.broadcast_shapes(x.shape, last.shape))
    for c in reversed(others):
        out = out * x + c
    return out


def approx_min_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
    reduction_input_size_override: int = -1, aggregate_to_topk: bool = True,
) -> list[Array]:  # fmt: skip
    """Return the k smallest elements along an axis, exactly, and their places."""
    x = lift("approx_min_k", operand)
    order = ops.argsort(x, reduction_dimension)  # NaN is last, and no integer overflows
    places = ops.take(order, ops.arange(k), reduction_dimension)
    return [ops.take_along_axis(x, places, reduction_dimension), places.astype("int32")]


def conj(x: Any) -> Array:
    """``gt.conj``, which makes real numbers complex.

    >>> import gtrace.jax as jax
    >>> jax.lax.conj(1.0)
    Array(1.-0.j, dtype=complex64)
    """
    x = lift("conj", x)
    return ops.conj(x if x.aval.complex else ops.complex(x, 0.0))


def approx_max_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95,
    reduction_input_size_override: int = -1, aggregate_to_topk: bool = True,
) -> list[Array]:  # fmt: skip
    """Return the k largest elements along an axis, exactly, and their places."""
    return top_k(operand, k, axis=reduction_dimension)


def broadcast_like(x: Any, reference: Any) -> Array:
    """Return x in the shape of another array."""
    return gt.broadcast_to(x, reference.shape)


def optimization_barrier(operand: Any) -> Any:
    """Return a pytree as it is, with its numbers as arrays."""
    return tree.map(lambda leaf: lift("optimization_barrier", leaf), operand)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """``gt.with_sharding`` for each array of a pytree; `shardings` may be a pytree with one for each, or for a part."""
    return reshard(x, shardings)


def mapped(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """``gt.map``; with a `batch_size` of 0 as without one."""
    return ours.map(f, xs, batch_size=batch_size or None)


def custom_linear_solve(
    matvec: Callable[..., Any], b: Any, solve: Callable[..., Any], transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False, has_aux: bool = False,
) -> Any:  # fmt: skip
    """Return ``solve(matvec, b)`` with the derivative of the system's solution, and not of the steps to it.

    Args:
        matvec: a linear function.
        solve: from a linear function and the right-hand side to the solution.
        transpose_solve: the same for the transposed function; `solve` does if it is `symmetric`.

    Raises:
        ArgumentError: `has_aux`; or a derivative is taken and nothing solves the transposed system.

    >>> import gtrace.jax as jax
    >>> divide = lambda f, y: y / f(1.0)
    >>> jax.grad(lambda a: jax.lax.custom_linear_solve(lambda x: a * x, 6.0, divide, divide))(2.0)
    Array(-1.5, dtype=float32)
    """
    if has_aux:
        raise ArgumentError(message("custom_linear_solve", "no has_aux", "has_aux=True", "Return the solution alone."))
    b = tree.map(lambda leaf: lift("custom_linear_solve", leaf), b)
    function, constants = gt.closure_convert(matvec, b)
    back = solve if symmetric and transpose_solve is None else transpose_solve
    solved, held = _without_closure(lambda right, *given: solve(lambda x: function(x, *given), right), b, *constants)

    @gt.custom_vjp
    def linear(right: Any, held: Any, *given: Array) -> Any:
        return solved(right, *given, *held)

    def forward(right: Any, held: Any, *given: Array) -> Any:
        x = linear(right, held, *given)
        return x, (x, given)

    def backward(kept: Any, ct: Any) -> Any:
        x, given = kept
        if back is None:
            fix = "Pass transpose_solve, or symmetric=True."
            raise ArgumentError(message("custom_linear_solve", "a solution of the transposed system", "none", fix))

        def transposed(y: Any) -> Any:
            return function(y, *given) if symmetric else gt.linear_transpose(lambda z: function(z, *given), x)(y)[0]

        right = custom_linear_solve(transposed, ct, back, solve, symmetric)
        pulled = gt.vjp(lambda *c: function(x, *c), *given)[1](right) if given else ()
        return (right, None, *[-c for c in pulled])

    linear.defvjp(forward, backward)

    @gt.custom_jvp
    def solution(right: Any, held: Any, *given: Array) -> Any:
        return linear(right, held, *given)

    @solution.defjvp
    def pushed(primals: Any, tangents: Any) -> Any:
        # from A x = b: A dx = db - dA x
        (right, held, *given), (moved, _, *turned) = primals, tangents
        x = solution(right, held, *given)
        if given:
            change = gt.jvp(lambda *c: function(x, *c), tuple(given), tuple(turned))[1]
            moved = tree.map(gt.subtract, moved, change)
        return x, linear(moved, held, *given)

    return solution(b, held, *constants)


def _without_closure(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], tuple[Array, ...]]:
    """Return a function that takes further arguments for what it closes over, and these: constants of derivatives.

    Args:
        args: arguments like those of the function.
    """
    if thread.trace.tape is None and thread.trace.capture is None:  # it may look at values
        return function, ()
    converted, values = gt.closure_convert(function, *args)
    return converted, tuple(map(gt.stop_gradient, values))


def custom_root(
    f: Callable[..., Any], initial_guess: Any, solve: Callable[..., Any], tangent_solve: Callable[..., Any],
    has_aux: bool = False,
) -> Any:  # fmt: skip
    """Return ``solve(f, initial_guess)``, a root of f, with the derivative by what f closes over.

    Args:
        solve: from f and a guess to x with f(x) == 0.
        tangent_solve: from a linear function g and y to x with g(x) == y.

    Raises:
        ArgumentError: `has_aux`.

    >>> import gtrace.jax as jax
    >>> def newton(f, x):
    ...     return jax.lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)
    >>> def root(a):
    ...     return jax.lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> round(float(jax.grad(root)(4.0)), 4)
    0.25
    """
    if has_aux:
        raise ArgumentError(message("custom_root", "no has_aux", "has_aux=True", "Return the root alone."))
    guess = tree.map(lambda leaf: lift("custom_root", leaf), initial_guess)
    function, constants = gt.closure_convert(f, guess)

    start = tree.map(gt.stop_gradient, guess)
    solved, held = _without_closure(lambda *given: solve(lambda x: function(x, *given), start), *constants)

    @gt.custom_jvp
    def root(held: Any, *given: Array) -> Any:
        return solved(*given, *held)

    @root.defjvp
    def pushed(primals: Any, tangents: Any) -> Any:
        # from f(x, c) = 0: the derivative by x, of dx, is minus the derivative by c, of dc
        (held, *given), (_, *turned) = primals, tangents
        x = root(held, *given)
        change = gt.jvp(lambda *c: function(x, *c), tuple(given), tuple(turned))[1]

        def slope(direction: Any) -> Any:
            return gt.jvp(lambda z: function(z, *given), (x,), (direction,))[1]

        wanted = tree.map(gt.negative, change)
        return x, custom_linear_solve(slope, wanted, tangent_solve, tangent_solve)

    return root(held, *constants) if constants else solve(f, guess)
