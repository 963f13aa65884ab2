"""Reverse mode: the recorded operations are the tape.

A gradient runs its function on fresh Arrays while the current trace keeps a tape, then walks the tape backwards. The
rules record ordinary operations, in the same trace: forward, backward and update become one program, and a gradient of
a gradient needs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace import tree
from gtrace.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.ir.aval import LONG
from gtrace.ir.graph import Scalar
from gtrace.ops.create import eye, ones_like, zeros_like
from gtrace.ops.elementwise import add, identity, multiply, neg
from gtrace.ops.promote import cast
from gtrace.ops.shape import reshape, stack, unbroadcast
from gtrace.trace.array import Array, fresh
from gtrace.trace.convert import lift
from gtrace.trace.record import TapeEntry, thread


@attrs.define(eq=False)
class Tape:
    """What one gradient recorded, and the Arrays it is taken with respect to."""

    inputs: list[Array]
    entries: list[TapeEntry]


def record(inputs: Sequence[Array], function: Callable[[list[Array]], Any]) -> tuple[Any, Tape]:
    """Run `function` on fresh copies of `inputs`, taping what is recorded."""
    outermost = thread.trace.tape is None
    entries = thread.trace.tape if thread.trace.tape is not None else []
    # a copy of a pending input is an operation that an enclosing gradient must see
    copies = [fresh(x) if x._buf is not None and outermost else identity(x) for x in inputs]
    start = len(entries)
    if outermost:
        _set_tape(entries)
    try:
        result = function(copies)
    finally:
        if outermost:
            _set_tape(None)
    return result, Tape(copies, entries[start:])


def _set_tape(entries: list[TapeEntry] | None) -> None:
    trace = thread.trace
    trace.tape = entries
    trace.set_limit()


def pull(tape: Tape, seeds: Sequence[tuple[Array, Array]]) -> list[Array | None]:
    """Walk the tape backwards from (output, cotangent) pairs; returns the cotangents of the inputs, None for zero."""
    reached = {id(x) for x in tape.inputs}
    steps: list[TapeEntry] = []
    for entry in tape.entries:
        instr, operands, out = entry
        if instr.op.nondiff is None and instr.aval.floating:
            for x in operands:
                if id(x) in reached:
                    reached.add(id(out))
                    steps.append(entry)
                    break
    cotangents: dict[int, Array] = {}
    for out, ct in seeds:
        if id(out) in reached:
            before = cotangents.get(id(out))
            cotangents[id(out)] = ct if before is None else add(before, ct)
    for instr, operands, out in reversed(steps):
        found = cotangents.pop(id(out), None)
        if found is not None:
            _apply(instr, operands, out, found, reached, cotangents)
    return [cotangents.get(id(x)) for x in tape.inputs]


def _apply(
    instr: Any, operands: Sequence[Any], out: Array, ct: Array, reached: set[int], cotangents: dict[int, Array]
) -> None:
    """Apply one operation's rule, adding to the cotangents of its operands."""
    op = instr.op
    needed = [id(x) in reached for x in operands]
    values = [x.value if x.__class__ is Scalar else x for x in operands]
    named = dict(zip(op.params, instr.params, strict=True)) if instr.params else {}
    if op.partials is None:
        grads = op.vjp(ct, needed, *values, out, **named)
    else:
        grads = [
            _scale(ct, partial(*values, out, **named)) if need else None
            for partial, need in zip(op.partials, needed, strict=True)
        ]
    for x, need, g in zip(operands, needed, grads, strict=True):
        if need and g is not None:
            a = x.aval
            if g.aval is not a:
                if op.elementwise:
                    g = unbroadcast(g, a)
                if a.weak:
                    g = cast(g, a.dtype)
            before = cotangents.get(id(x))
            cotangents[id(x)] = g if before is None else add(before, g)


def _scale(ct: Array, partial: Any) -> Array:
    if partial.__class__ is int:
        return ct if partial == 1 else neg(ct)
    return multiply(ct, partial)


# -- arguments


def _argnums(name: str, argnums: Any, count: int) -> tuple[int, ...]:
    several = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    for k in several:
        if not isinstance(k, int) or isinstance(k, bool):
            raise ArgumentError(message(name, "argnums as an int or several", repr(argnums), "Such as argnums=(0, 1)."))
        if not -count <= k < count:
            raise ArgumentError(
                message(name, f"argnums below the {count} positional arguments", str(k), "Differentiated arguments are positional.")
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
                message(name, "floating inputs", f"{LONG[x.aval.dtype]} at {path}", "Use x.astype(gt.float32), or argnums.")
            )
        arrays.append(x)
    return arrays


class _Call:
    """The differentiated arguments of one call, as a flat list, and how to call the function with others in place."""

    def __init__(self, name: str, function: Callable[..., Any], argnums: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        self.single = not isinstance(argnums, (tuple, list))
        places = _argnums(name, argnums, len(args))
        selected = tuple(args[k] for k in places)
        leaves, self.structure = tree.flatten(selected)
        if all(type(x) is Array and x.aval.floating for x in leaves):
            self.inputs: list[Array] = leaves
        else:
            self.inputs = _differentiable(name, [f"args{p}" for p in tree.paths(selected)], leaves)

        def run(arrays: Sequence[Array]) -> Any:
            given = list(args)
            for k, value in zip(places, self.structure.unflatten(arrays), strict=True):
                given[k] = value
            return function(*given, **kwargs)

        self.run = run

    def pack(self, values: Sequence[Any]) -> Any:
        """Return one value per input in the structure of the differentiated arguments."""
        out = self.structure.unflatten(values)
        return out[0] if self.single else out


def _split_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            message(name, "(output, aux) from a function with has_aux=True", type(result).__name__, "Return a pair.")
        )
    return result


def _dense(inputs: Sequence[Array], grads: Sequence[Array | None]) -> list[Array]:
    return [zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


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
        grads = call.pack(_dense(call.inputs, pull(tape, [(value, ones_like(value))])))
        return ((value, aux[0]), grads) if has_aux else (value, grads)

    return _named(wrapped, f)


def _scalar_output(value: Any) -> Array:
    if not isinstance(value, (Array, int, float)) and not hasattr(value, "dtype"):
        raise ArgumentError(
            message("grad", "a scalar array as the function's output", type(value).__name__, "With more to return, use has_aux=True.")
        )
    value = lift("grad", value)
    if value.aval.shape:
        raise ShapeError(message("grad", "a scalar output", repr(value.aval), "Reduce it with .sum() or .mean(), or use gt.vjp."))
    if not value.aval.floating:
        raise DtypeError(message("grad", "a floating output", LONG[value.aval.dtype], "Gradients are of floating functions."))
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
            raise ArgumentError(message("vjp", f"a cotangent of structure {structure}", str(given), "Match the output."))
        cts = []
        for out, leaf in zip(outputs, leaves, strict=True):
            ct = lift("vjp", leaf)
            if ct.aval.shape != out.aval.shape or (ct.aval.dtype != out.aval.dtype and not ct.aval.weak):
                got = f"{ct.aval!r} for {out.aval!r}"
                raise ArgumentError(message("vjp", "a cotangent with the shape and dtype of the output", got, "Match them."))
            cts.append(cast(ct, out.aval.dtype))
        return call.pack(_dense(call.inputs, pull(tape, list(zip(outputs, cts, strict=True)))))

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
        raise DtypeError(message("jacrev", "floating outputs", repr(out.aval), "Return integers as aux (has_aux=True)."))
    basis = eye(out.size, dtype=out.dtype, device=out.device)
    rows = [_dense(inputs, pull(tape, [(out, reshape(basis[k], out.shape))])) for k in range(out.size)]
    if not rows:
        return [zeros_like(reshape(x, (-1,))[:0]).reshape((*out.shape, *x.shape)) for x in inputs]
    return [reshape(stack(column), (*out.shape, *x.shape)) for x, column in zip(inputs, zip(*rows, strict=True), strict=True)]


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
