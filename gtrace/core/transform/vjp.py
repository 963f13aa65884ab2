"""The gradient family, over pytrees: ``grad``, ``value_and_grad``, ``vjp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.transform.arguments import ArrayCall, check_holomorphic, is_array, like, named, split_aux
from gtrace.core.transform.tape import pull, record, run_taped

__all__ = ["grad", "value_and_grad", "vjp"]


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that computes `f` and its gradient.

    Args:
        f: returns a real floating scalar; with `has_aux`, a pair of this scalar and any other value.
        argnums: the position of the argument to differentiate, or several: pytrees of floating or complex arrays. For
            z = x + iy the gradient is df/dx - i df/dy, as in JAX.
        holomorphic: `f` is a holomorphic function of complex numbers, and its derivative is computed.
        allow_int: integers and bools may be among these arguments. Their gradients have no values and the dtype
            ``float0``, as in JAX.

    Returns:
        A function with the arguments of `f`. It returns (value, gradient), or ((value, aux), gradient). The gradient
        has the structure of the argument; for several `argnums` it is a tuple.

    Raises (when called):
        ShapeError: the output is not a scalar.
        DtypeError: an input or output is not floating, or the output is complex without `holomorphic`.

    >>> gt.value_and_grad(lambda w: (w["a"] ** 2).sum())({"a": gt.array([1., 2.])})
    (Array(5., dtype=float32), {'a': Array([2., 4.], dtype=float32)})
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = ArrayCall("grad", f, argnums, args, kwargs, integers=allow_int)
        if holomorphic:
            check_holomorphic("grad", call.inputs, "inputs")
        aux: list[Any] = []

        def run(arrays: list[Array]) -> Array:
            value, extra = split_aux("grad", call.run(arrays), has_aux)
            aux.append(extra)
            return _scalar_output(value, holomorphic)

        value, tape = record(call.inputs, run)
        grads = call.gradient(pull(tape, (value,)))
        return ((value, aux[0]), grads) if has_aux else (value, grads)

    return named(wrapped, f)


def _scalar_output(value: Any, holomorphic: bool) -> Array:
    if not is_array(value):
        fix = "With more to return, use has_aux=True."
        raise ArgumentError(message("grad", "a scalar array as the function's output", type(value).__name__, fix))
    value = lift("grad", value)
    if value.aval.shape:
        fix = "Reduce it with .sum() or .mean(), or use gt.vjp."
        raise ShapeError(message("grad", "a scalar output", repr(value.aval), fix))
    if not value.aval.floating:
        fix = "Gradients are of floating functions."
        raise DtypeError(message("grad", "a floating output", LONG[value.aval.dtype], fix))
    if holomorphic:
        check_holomorphic("grad", [value], "outputs")
    elif value.aval.complex:
        fix = "Pass holomorphic=True if the function is, or use gt.vjp."
        raise DtypeError(message("grad", "a real output", LONG[value.aval.dtype], fix))
    return value


def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that computes the gradient of `f`; see `value_and_grad`. With `has_aux`: (gradient, aux).

    >>> gt.grad(lambda x: x ** 3)(2.0)
    Array(12., dtype=float32)
    >>> gt.grad(lambda z: z ** 2, holomorphic=True)(1 + 1j)
    Array(2.+2.j, dtype=complex64)
    """
    both = value_and_grad(f, argnums, has_aux, holomorphic, allow_int)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return named(wrapped, f)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f(*primals) and the function from cotangents of the output to cotangents of the primals.

    Args:
        primals: pytrees of floating or complex arrays, integers and bools. The cotangents of integers and bools have no
            values and the dtype ``float0``, as in JAX.
        has_aux: `f` returns (output, aux), and aux is a third result.

    Returns:
        (output, pullback). The pullback takes a pytree like the output, and returns a tuple with one cotangent per
        primal. It may be called repeatedly.

    Raises:
        ArgumentError: (pullback) the cotangent's structure, shape or dtype is not the output's.

    >>> y, pullback = gt.vjp(lambda a, b: a * b, 2.0, 3.0)
    >>> pullback(1.0)
    (Array(3., dtype=float32), Array(2., dtype=float32))
    """
    call = ArrayCall("vjp", f, tuple(range(len(primals))), primals, {}, integers=True)
    outputs, structure, tape, aux = run_taped("vjp", call, has_aux)

    def pullback(cotangents: Any) -> Any:
        cts = like("vjp", "cotangent", cotangents, structure, outputs)
        return call.gradient(pull(tape, outputs, cts))

    value = structure.unflatten(outputs)
    return (value, pullback, aux) if has_aux else (value, pullback)
