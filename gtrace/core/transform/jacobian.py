"""Jacobians and Hessians: the standard basis is pushed or pulled through a tape as one batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ops.batching import spread
from gtrace.core.ops.operands import weak_like
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture
from gtrace.core.trace.record import thread
from gtrace.core.transform.arguments import ArrayCall, check_holomorphic, named
from gtrace.core.transform.batch import batch
from gtrace.core.transform.jvp import push
from gtrace.core.transform.tape import Tape, pull, recorded_once, run_taped

__all__ = ["jacrev", "jacfwd", "hessian"]


def _batched(function: Callable[[Array], list[Array]], x: Array, name: str) -> list[Array]:
    """Return a linear function's results for each vector of the standard basis of `x`, on axis 0."""
    if not x.shape:
        return [ops.reshape(y, (1, *y.shape)) for y in function(ops.ones_like(x))]
    captured = capture(lambda inputs: (function(inputs[0]), None), [x.aval], name)
    basis = ops.reshape(ops.eye(x.size, dtype=x.aval.dtype, device=x.aval.device), (x.size, *x.shape))
    flags = (True, *[False] * len(captured.constants))
    return [
        y if flag else spread(y, x.size)  # zeros: the result does not depend on the basis
        for y, flag in batch(captured.graph, x.size, (basis, *captured.constants), flags)
    ]


def _run(
    name: str, f: Callable[..., Any], argnums: Any, has_aux: bool, holomorphic: bool, args: Any, kwargs: Any,
    integers: bool = False,
) -> tuple[ArrayCall, list[Array], Any, Tape, Any]:  # fmt: skip
    call = ArrayCall(name, f, argnums, args, kwargs, integers)
    if holomorphic:
        check_holomorphic(name, call.inputs, "inputs")
    outputs, structure, tape, aux = run_taped(name, call, has_aux)
    for out in outputs:
        if not out.aval.floating:
            fix = "Return integers as aux (has_aux=True)."
            raise DtypeError(message(name, "floating outputs", repr(out.aval), fix))
    if holomorphic:
        check_holomorphic(name, outputs, "outputs")
    return call, outputs, structure, tape, aux


def _require_real(name: str, arrays: Sequence[Array], what: str) -> None:
    for x in arrays:
        if x.aval.complex:
            fix = "Pass holomorphic=True if the function is, or use gt.vjp and gt.jvp."
            raise DtypeError(message(name, f"real {what}", LONG[x.aval.dtype], fix))


def _zeros_for(out: Array, x: Array) -> Array:
    """Return the Jacobian of an output by integers."""
    return ops.zeros((*out.shape, *x.shape), x.dtype)


def jacrev(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that computes the Jacobian of `f` in reverse mode, which suits few outputs.

    For an output leaf of shape s and an input leaf of shape t, the Jacobian's leaf has shape s + t. The structure is
    the output's, with the argument's in place of each leaf. With `has_aux`: (Jacobian, aux). Outputs are real; with
    `holomorphic`, inputs and outputs are complex. With `allow_int`, integers and bools may be among the arguments.
    Their Jacobians are zeros of their dtype, as in JAX.

    >>> gt.jacrev(lambda x: x ** 2)(gt.array([1., 2.]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call, outputs, structure, tape, aux = _run("jacrev", f, argnums, has_aux, holomorphic, args, kwargs, allow_int)
        if not holomorphic:
            _require_real("jacrev", outputs, "outputs")
        columns = []
        for out in outputs:

            def rows_of(out: Array = out) -> list[Array]:
                return _batched(lambda ct: pull(tape, (out,), (ct,)), out, "jacrev")

            rows = recorded_once(("jacrev", thread.batched_axis), tape, (out,), (), rows_of)
            moved = [ops.reshape(r, (*out.shape, *x.shape)) for r, x in zip(rows, call.inputs, strict=True)]
            empty = functools.partial(_zeros_for, out)
            columns.append(call.gradient(moved, empty))
        jacobian = structure.unflatten(columns)
        return (jacobian, aux) if has_aux else jacobian

    return named(wrapped, f)


def jacfwd(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `f` in forward mode, which suits few inputs.

    Structure and shapes are those of `jacrev`. Inputs are real; with `holomorphic`, inputs and outputs are complex.

    >>> gt.jacfwd(lambda x: x ** 2)(gt.array([1., 2.]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call, outputs, structure, tape, aux = _run("jacfwd", f, argnums, has_aux, holomorphic, args, kwargs)
        if not holomorphic:
            _require_real("jacfwd", call.inputs, "inputs")
        by_input = []
        for k, x in enumerate(call.inputs):

            def along(t: Array, k: int = k) -> list[Array]:
                ts: list[Array | None] = [None] * len(call.inputs)
                ts[k] = t
                return push(tape, outputs, ts)

            columns = recorded_once(
                ("jacfwd", k, thread.batched_axis),
                tape,
                outputs,
                (),
                lambda x=x: _batched(along, x, "jacfwd"),  # type: ignore[misc]
            )
            moved = [
                ops.reshape(ops.moveaxis(c, 0, -1), (*y.shape, *x.shape)) for c, y in zip(columns, outputs, strict=True)
            ]
            by_input.append(weak_like(moved, [y.aval for y in outputs]))
        jacobian = structure.unflatten(
            [call.structure.unflatten([column[j] for column in by_input]) for j in range(len(outputs))]
        )
        return (jacobian, aux) if has_aux else jacobian

    return named(wrapped, f)


def hessian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Hessian of `f`: forward mode over its reverse-mode gradient.

    >>> gt.hessian(lambda x: (x ** 3).sum())(gt.array([1., 2.]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return named(jacfwd(jacrev(f, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic), f)
