"""The gradient family, over pytrees: ``grad``, ``value_and_grad``, ``vjp``, ``jacrev``, ``hessian``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace import tree
from gtrace.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.ir.aval import LONG
from gtrace.ops.create import eye, zeros_like
from gtrace.ops.parts import stack
from gtrace.ops.promote import cast
from gtrace.ops.shape import reshape
from gtrace.trace.array import Array
from gtrace.trace.convert import lift
from gtrace.transform.tape import Tape, pull, record

# -- arguments


def _argnums(name: str, argnums: Any, count: int) -> tuple[int, ...]:
    several = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    for k in several:
        if not isinstance(k, int) or isinstance(k, bool):
            raise ArgumentError(message(name, "argnums as an int or several", repr(argnums), "Such as argnums=(0, 1)."))
        if not -count <= k < count:
            raise ArgumentError(
                message(
                    name,
                    f"argnums below the {count} positional arguments",
                    str(k),
                    "Differentiated arguments are positional.",
                )
            )
    return tuple(k % count for k in several)


def _differentiable(name: str, paths: Sequence[str], leaves: Sequence[Any]) -> list[Array]:
    arrays = []
    for path, leaf in zip(paths, leaves, strict=True):
        if not isinstance(leaf, (Array, int, float)) and not hasattr(leaf, "dtype"):
            raise ArgumentError(
                message(name, "arrays or floats in the differentiated arguments", f"{type(leaf).__name__} at {path}",
                        "Move it to another argument, or use argnums.")
            )  # fmt: skip
        x = lift(name, leaf)
        if not x.aval.floating:
            raise DtypeError(
                message(
                    name, "floating inputs", f"{LONG[x.aval.dtype]} at {path}", "Use x.astype(gt.float32), or argnums."
                )
            )
        arrays.append(x)
    return arrays


class _Call:
    """The differentiated arguments of one call, as a flat list, and how to call the function with others in place."""

    def __init__(
        self, name: str, function: Callable[..., Any], argnums: Any, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        self.single = argnums.__class__ is int
        if self.single and 0 <= argnums < len(args):
            places: tuple[int, ...] = (argnums,)
        else:
            places = _argnums(name, argnums, len(args))
        selected = args[argnums] if self.single else tuple([args[k] for k in places])
        leaves, self.structure = tree.flatten(selected)
        for x in leaves:
            if x.__class__ is not Array or not x.aval.floating:
                leaves = _differentiable(
                    name, [(f"args[{places[0]}]" if self.single else "args") + p for p in tree.paths(selected)], leaves
                )
                break
        self.inputs: list[Array] = leaves

        def run(arrays: Sequence[Array]) -> Any:
            given = list(args)
            values = self.structure.unflatten(arrays)
            if self.single:
                given[places[0]] = values
            else:
                for k, value in zip(places, values, strict=True):
                    given[k] = value
            return function(*given, **kwargs)

        self.run = run

    def pack(self, values: Sequence[Any]) -> Any:
        """Return one value per input in the structure of the differentiated arguments."""
        return self.structure.unflatten(values)


def _split_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            message(name, "(output, aux) from a function with has_aux=True", type(result).__name__, "Return a pair.")
        )
    return result


# -- user functions


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes `f` and its gradient.

    Args:
        f: returns a floating scalar, or with `has_aux` a pair of that and anything else.
        argnums: the positional argument, or several, to differentiate by: pytrees of floating arrays.

    Returns:
        A function with the arguments of `f`. It returns (value, gradient), or ((value, aux), gradient); the gradient
        has the structure of the argument, or is a tuple of such if `argnums` names several.

    Raises (when called):
        ShapeError: the output is not a scalar.
        DtypeError: an input or the output is not floating.

    >>> import gtrace as gt
    >>> gt.value_and_grad(lambda w: (w["a"] ** 2).sum())({"a": gt.array([1., 2.])})
    (Array(5., dtype=float32), {'a': Array([2., 4.], dtype=float32)})
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call("grad", f, argnums, args, kwargs)
        aux: list[Any] = []

        def run(arrays: list[Array]) -> Array:
            value, extra = _split_aux("grad", call.run(arrays), has_aux)
            aux.append(extra)
            return _scalar_output(value)

        value, tape = record(call.inputs, run)
        grads = call.pack(pull(tape, (value,)))
        return ((value, aux[0]), grads) if has_aux else (value, grads)

    return _named(wrapped, f)


def _scalar_output(value: Any) -> Array:
    if not isinstance(value, (Array, int, float)) and not hasattr(value, "dtype"):
        raise ArgumentError(
            message(
                "grad",
                "a scalar array as the function's output",
                type(value).__name__,
                "With more to return, use has_aux=True.",
            )
        )
    value = lift("grad", value)
    if value.aval.shape:
        raise ShapeError(
            message("grad", "a scalar output", repr(value.aval), "Reduce it with .sum() or .mean(), or use gt.vjp.")
        )
    if not value.aval.floating:
        raise DtypeError(
            message("grad", "a floating output", LONG[value.aval.dtype], "Gradients are of floating functions.")
        )
    return value


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradient of `f`; see `value_and_grad`. With `has_aux`: (gradient, aux).

    >>> import gtrace as gt
    >>> gt.grad(lambda x: x ** 3)(2.0)
    Array(12., dtype=float32)
    """
    both = value_and_grad(f, argnums, has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return _named(wrapped, f)


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f(*primals) and the function from cotangents of the output to cotangents of the primals.

    Args:
        primals: pytrees of floating arrays.
        has_aux: `f` returns (output, aux), and aux comes back as a third result.

    Returns:
        (output, pullback). The pullback takes a pytree like the output and returns a tuple with one cotangent per
        primal. It may be called more than once.

    Raises:
        ArgumentError: (pullback) the cotangent's structure, shape or dtype is not the output's.

    >>> import gtrace as gt
    >>> y, pullback = gt.vjp(lambda a, b: a * b, 2.0, 3.0)
    >>> pullback(1.0)
    (Array(3., dtype=float32), Array(2., dtype=float32))
    """
    call = _Call("vjp", f, tuple(range(len(primals))), primals, {})
    aux: list[Any] = []

    def run(arrays: list[Array]) -> tuple[list[Array], Any]:
        value, extra = _split_aux("vjp", call.run(arrays), has_aux)
        aux.append(extra)
        leaves, structure = tree.flatten(value)
        return [lift("vjp", leaf) for leaf in leaves], structure

    (outputs, structure), tape = record(call.inputs, run)

    def pullback(cotangents: Any) -> Any:
        leaves, given = tree.flatten(cotangents)
        if given != structure:
            raise ArgumentError(
                message("vjp", f"a cotangent of structure {structure}", str(given), "Match the output.")
            )
        cts = []
        for out, leaf in zip(outputs, leaves, strict=True):
            ct = lift("vjp", leaf)
            if ct.aval.shape != out.aval.shape or (ct.aval.dtype != out.aval.dtype and not ct.aval.weak):
                got = f"{ct.aval!r} for {out.aval!r}"
                raise ArgumentError(
                    message("vjp", "a cotangent with the shape and dtype of the output", got, "Match them.")
                )
            cts.append(cast(ct, out.aval.dtype))
        return call.pack(pull(tape, outputs, cts))

    value = structure.unflatten(outputs)
    return (value, pullback, aux[0]) if has_aux else (value, pullback)


def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f`, row by row in reverse mode.

    For an output leaf of shape s and an input leaf of shape t, the Jacobian's leaf has shape s + t. The structure is
    the output's with the argument's in place of each leaf.

    >>> import gtrace as gt
    >>> gt.jacrev(lambda x: x ** 2)(gt.array([1., 2.]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = _Call("jacrev", f, argnums, args, kwargs)
        aux: list[Any] = []

        def run(arrays: list[Array]) -> tuple[list[Array], Any]:
            value, extra = _split_aux("jacrev", call.run(arrays), has_aux)
            aux.append(extra)
            leaves, structure = tree.flatten(value)
            return [lift("jacrev", leaf) for leaf in leaves], structure

        (outputs, structure), tape = record(call.inputs, run)
        jacobian = structure.unflatten([call.pack(_rows(call.inputs, tape, out)) for out in outputs])
        return (jacobian, aux[0]) if has_aux else jacobian

    return _named(wrapped, f)


def _rows(inputs: Sequence[Array], tape: Tape, out: Array) -> list[Array]:
    """Return d out / d input for each input, of shape out.shape + input.shape."""
    if not out.aval.floating:
        raise DtypeError(
            message("jacrev", "floating outputs", repr(out.aval), "Return integers as aux (has_aux=True).")
        )
    basis = eye(out.size, dtype=out.dtype, device=out.device)
    rows = [pull(tape, (out,), (reshape(basis[k], out.shape),)) for k in range(out.size)]
    if not rows:
        return [zeros_like(reshape(x, (-1,))[:0]).reshape((*out.shape, *x.shape)) for x in inputs]
    return [
        reshape(stack(column), (*out.shape, *x.shape))
        for x, column in zip(inputs, zip(*rows, strict=True), strict=True)
    ]


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the Hessian of `f`: the Jacobian of its gradient.

    >>> import gtrace as gt
    >>> gt.hessian(lambda x: (x ** 3).sum())(gt.array([1., 2.]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return _named(jacrev(jacrev(f, argnums, has_aux), argnums, has_aux), f)


def _named(wrapped: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    wrapped.__name__ = getattr(f, "__name__", type(f).__name__)
    wrapped.__doc__ = f.__doc__
    wrapped.__wrapped__ = f  # type: ignore[attr-defined]
    return wrapped
