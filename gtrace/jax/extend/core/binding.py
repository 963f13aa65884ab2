"""What JAX's operations are here: for each name, the function that records it from JAX's operands and parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gtrace as gt
from gtrace import checkpoint, checkpoint_name
from gtrace import lax as ours
from gtrace.extend import (
    INEXACT,
    REGISTRY,
    DType,
    as_dtype,
    bind,
    bind_all,
    call_with_rules,
    cast,
    lift,
    ops,
    saturated,
    with_avals,
)
from gtrace.jax.equation_rules import SAME

NAMES = {
    "remat_p": "remat2", "checkpoint_p": "remat2", "scatter_add_p": "scatter-add", "scatter_sub_p": "scatter-sub",
    "scatter_mul_p": "scatter-mul", "scatter_min_p": "scatter-min", "scatter_max_p": "scatter-max",
    "while_p": "while", "pjit_p": "jit",
}  # fmt: skip
"""The names of operations whose variables have others."""

SEVERAL = frozenset(
    """
    jit closed_call core_call scan while cond custom_jvp_call custom_vjp_call remat2 sort top_k split qr lu eigh svd
    psum psum_invariant pmax pmin optimization_barrier approx_top_k reduce
    """.split()
)
"""The operations whose results are a list."""

_ELEMENTWISE = [
    *[name for name in dict.fromkeys(SAME.values()) if hasattr(ours, name)],
    "exp2", "select_n", "shift_right_arithmetic", "shift_right_logical", "population_count", "clz",
]  # fmt: skip

RENAMED = {"take_along_axis": "gather", "sort_descending": "sort"}
"""Operations of gtrace's whose names are those of other operations of JAX's."""

Rule = Callable[..., Any]


def is_operation(name: str) -> bool:
    """Return whether gtrace has an operation of this name."""
    return name in REGISTRY or name.startswith("aten.")


def bind_operation(name: str, several: bool, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Record an operation of gtrace's that JAX does not have."""
    op = REGISTRY["aten" if name.startswith("aten.") else name]
    if op.elementwise and not op.params and op.cases.user is not None:
        return op.cases.user(*args)
    operands, values = [lift(name, x) for x in args], tuple([params[p] for p in op.params])
    return bind_all(op, operands, values) if several else bind(op, operands, values)


def _plain(function: Rule) -> Rule:
    """Return the function for operands alone, whatever the parameters say."""
    return lambda *args, **params: function(*args)


def _kept(function: Rule, *names: str) -> Rule:
    """Return the function for operands, and these parameters by position."""
    return lambda *args, **params: function(*args, *[params[name] for name in names])


def _exact(dtype: Any) -> Any:
    """Return torch's dtype; that of a program has its width whatever the setting `x64` is."""
    return dtype.torch if type(dtype) is DType else as_dtype(dtype)


def _convert(x: Any, *, new_dtype: Any, weak_type: bool = False, **_: Any) -> Any:
    array, kind = lift("convert_element_type", x), _exact(new_dtype)
    if array.aval.floating and not array.aval.complex and kind not in INEXACT and kind is not torch.bool:
        return saturated(array, kind)
    return cast(array, kind)


def _reduced(function: Rule) -> Rule:
    return lambda x, *, axes, **_: function(x, axes)


def _place(function: Rule) -> Rule:
    return lambda x, *, axes, index_dtype, **_: function(x, axes[0], _exact(index_dtype))


def _running(function: Rule) -> Rule:
    return lambda x, *, axis, reverse=False: function(x, axis, reverse)


def _gather(x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, mode: Any = None, **params: Any) -> Any:
    return ours.gather(x, indices, dimension_numbers, slice_sizes, mode=mode, fill_value=params.get("fill_value"))


def _scatter(function: Rule) -> Rule:
    return lambda x, indices, u, *, dimension_numbers, mode=None, **_: function(
        x, indices, u, dimension_numbers, mode=mode
    )


def _sort(*operands: Any, dimension: int, num_keys: int = 1, **_: Any) -> list[Any]:
    return list(ours.sort(tuple(operands), dimension, num_keys=num_keys))


def _convolution(x: Any, w: Any, *, window_strides: Any, padding: Any, **params: Any) -> Any:
    names = ("lhs_dilation", "rhs_dilation", "dimension_numbers", "feature_group_count", "batch_group_count")
    given = {name: params[name] for name in (*names, "preferred_element_type") if name in params}
    return ours.conv_general_dilated(x, w, window_strides, padding, **given)


def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> Any:
    return ours.broadcasted_iota(_exact(dtype), shape, dimension)


def _dot(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any) -> Any:
    kind = None if preferred_element_type is None else _exact(preferred_element_type)
    return ours.dot_general(x, y, dimension_numbers, kind)


def _over_axes(function: Rule) -> Rule:
    return lambda *xs, axes, axis_index_groups=None, **_: [
        function(x, axes, axis_index_groups=axis_index_groups) for x in xs
    ]


# -- operations with programs in them


def run(program: Any, args: Sequence[Any]) -> list[Any]:
    """Run a program with its constants, or one without any."""
    found: list[Any] = program.run(*args) if hasattr(program, "jaxpr") else program.run((), args)
    return found


def _jit(*args: Any, jaxpr: Any, name: str = "jit", **_: Any) -> list[Any]:
    def call(*given: Any) -> list[Any]:
        return run(jaxpr, given)

    call.__name__ = name
    out: list[Any] = gt.jit(call)(*args)
    return out


def _inline(*args: Any, **params: Any) -> list[Any]:
    return run(params["call_jaxpr"], args)


def _scan(*args: Any, jaxpr: Any, length: int, num_consts: int, num_carry: int, reverse: bool, **_: Any) -> list[Any]:
    consts, carry, xs = args[:num_consts], args[num_consts:][:num_carry], args[num_consts + num_carry :]

    def step(state: Any, x: Any) -> Any:
        out = run(jaxpr, [*consts, *state, *x])
        return out[:num_carry], out[num_carry:]

    state, ys = gt.scan(step, list(carry), list(xs), length, reverse)
    return [*state, *ys]


def _while(*args: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **_: Any) -> list[Any]:
    tests, rest = args[:cond_nconsts], args[cond_nconsts:]
    consts, state = rest[:body_nconsts], rest[body_nconsts:]
    out: list[Any] = gt.while_loop(
        lambda state: run(cond_jaxpr, [*tests, *state])[0],
        lambda state: run(body_jaxpr, [*consts, *state]), list(state),
    )  # fmt: skip
    return out


def _cond(index: Any, *args: Any, branches: Sequence[Any], **_: Any) -> list[Any]:
    functions = [functools.partial(lambda program, *given: run(program, given), b) for b in branches]
    out: list[Any] = gt.switch(index, functions, *args)
    return out


def _remat(*args: Any, jaxpr: Any, policy: Any = None, **_: Any) -> list[Any]:
    out: list[Any] = checkpoint(lambda *given: run(jaxpr, given), policy=policy)(*args)
    return out


def _with_rules(*args: Any, call_jaxpr: Any, _call: Any = None, **_: Any) -> list[Any]:
    """Call a function with its rules; for arguments of other types than those of the trace, without."""
    operands = [lift("bind", x) for x in args]
    if _call is None or [(x.shape, x.aval.dtype) for x in operands] != [(a.shape, a.dtype) for a in _call[2]]:
        return run(call_jaxpr, args)
    op, body, avals = _call
    return call_with_rules(op, body, with_avals(operands, avals))


RULES: dict[str, Rule] = {
    **{name: _plain(getattr(ours, name)) for name in _ELEMENTWISE},
    "and": _plain(ours.bitwise_and), "or": _plain(ours.bitwise_or), "xor": _plain(ours.bitwise_xor),
    "not": _plain(ours.bitwise_not), "conj": _plain(lambda x: ops.conj(lift("conj", x))), "copy": _plain(ops.asarray),
    "copy_p": _plain(ops.asarray), "integer_pow": _kept(ours.integer_pow, "y"), "convert_element_type": _convert,
    "round": _kept(ours.round, "rounding_method"), "bitcast_convert_type": _kept(
        ours.bitcast_convert_type, "new_dtype"
    ),
    "reduce_precision": _kept(ours.reduce_precision, "exponent_bits", "mantissa_bits"),
    **{f"reduce_{name}": _reduced(getattr(ours, f"reduce_{name}")) for name in ("sum", "prod", "max", "min")},
    **{f"reduce_{name}": _reduced(getattr(ours, f"reduce_{name}")) for name in ("and", "or", "xor")},
    "argmax": _place(ours.argmax), "argmin": _place(ours.argmin),
    **{f"cum{name}": _running(getattr(ours, f"cum{name}")) for name in ("sum", "prod", "max", "min", "logsumexp")},
    "broadcast_in_dim": _kept(ours.broadcast_in_dim, "shape", "broadcast_dimensions"),
    "reshape": lambda x, *, new_sizes, dimensions=None, **_: ours.reshape(x, new_sizes, dimensions),
    "squeeze": _kept(ours.squeeze, "dimensions"), "transpose": _kept(ours.transpose, "permutation"),
    "rev": _kept(ours.rev, "dimensions"), "concatenate": lambda *xs, dimension: ours.concatenate(xs, dimension),
    "pad": _kept(ours.pad, "padding_config"), "iota": _iota,
    "slice": lambda x, *, start_indices, limit_indices, strides=None: ours.slice(
        x, start_indices, limit_indices, strides
    ),
    "dynamic_slice": lambda x, *starts, slice_sizes: ours.dynamic_slice(x, starts, slice_sizes),
    "dynamic_update_slice": lambda x, u, *starts: ours.dynamic_update_slice(x, u, starts),
    "split": lambda x, *, sizes, axis: list(ours.split(x, sizes, axis)),
    "gather": _gather, "scatter": _scatter(ours.scatter),
    **{f"scatter-{name}": _scatter(getattr(ours, f"scatter_{name}")) for name in ("add", "sub", "mul", "min", "max")},
    "sort": _sort, "top_k": lambda x, *, k, **_: list(ours.top_k(x, k)),
    "dot_general": _dot, "conv_general_dilated": _convolution,
    "psum": _over_axes(ours.psum), "pmax": _over_axes(ours.pmax), "pmin": _over_axes(ours.pmin),
    "polygamma": lambda order, x, **_: ours.polygamma(int(order), x),
    "axis_index": lambda *, axis_name, **_: ours.axis_index(axis_name),
    "ppermute": lambda x, *, axis_name, perm, **_: ours.ppermute(x, axis_name, perm),
    "all_gather": lambda x, *, axis_name, all_gather_dimension=0, tiled=False, **_: ours.all_gather(
        x, axis_name, axis=all_gather_dimension, tiled=tiled
    ),
    **{name: lambda *xs, _op=op, **params: bind_operation(_op, False, xs, params) for name, op in RENAMED.items()},
    "optimization_barrier": lambda *xs: list(ours.optimization_barrier(xs)),
    "cholesky": lambda x, **_: ours.linalg.cholesky(x),
    "triangular_solve": lambda a, b, **params: ours.linalg.triangular_solve(a, b, **params),
    "jit": _jit, "closed_call": _inline, "core_call": _inline, "custom_jvp_call": _with_rules,
    "custom_vjp_call": _with_rules, "remat2": _remat, "name": checkpoint_name,
    "scan": _scan, "while": _while, "cond": _cond,
}  # fmt: skip
"""For each of JAX's operations, the function that records it."""
