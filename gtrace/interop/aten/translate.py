"""Records traced aten calls as equal gtrace operations, or as the operation ``aten``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.bounded_tables import remembered
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ops.create import to_device
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import full_like_scalar
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, bind_all
from gtrace.core.trace.convert import lift, scalar_operand
from gtrace.interop.aten.conversions import fits, is_inexact, real_if_needed, wrapped
from gtrace.interop.aten.custom_functions import CUSTOM
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.memory import memory_order
from gtrace.interop.aten.open_sizes import Open
from gtrace.interop.aten.overloads import (
    ATTENTION,
    caller,
    check_overload,
    fake_tensors,
    find_overload,
    of_torch,
    places,
    template,
)
from gtrace.interop.aten.traced_calls import BY_MEMORY, OtherSizesError, Step, TracedCall, Type
from gtrace.interop.aten.types_by_trial import is_tried


def call_aten(overload: str, args: tuple[Any, ...], operands: Sequence[Array]) -> Any:
    """Record a call of an operator; return its result, or the list of its results."""
    op = REGISTRY["aten"]
    instr = op.instr((overload, args), tuple([x.aval for x in operands]))
    if not isinstance(instr.aval, Bundle):
        return bind(op, operands, (overload, args))
    results = bind_all(op, operands, (overload, args))
    places = _DIFFERENTIABLE.get(overload)
    if places is not None:
        return [x if k in places or not x.aval.floating else ops.stop_gradient(x) for k, x in enumerate(results)]
    # torch saves some results only for its derivatives, such as the mean of layer_norm; these have none
    flags = _has_derivative(overload, args, tuple([x.aval for x in operands]))
    if not any(flags):  # this overload has no derivatives: asking for one is an error
        return results
    return [x if flag or not x.aval.floating else ops.stop_gradient(x) for x, flag in zip(results, flags, strict=True)]


_DIFFERENTIABLE: dict[str, Sequence[int]] = {
    "aten.convolution_backward.default": range(3), "aten.max_pool2d_with_indices.default": range(1),
    "aten.linalg_cholesky_ex.default": range(1), "aten._linalg_eigh.default": range(2),
    "aten._linalg_solve_ex.default": range(1), "aten._linalg_slogdet.default": range(2),
    "aten._linalg_det.default": range(1), "aten.linalg_inv_ex.default": range(1), "aten.linalg_qr.default": range(2),
    "aten._linalg_svd.default": range(3), "aten.linalg_eig.default": range(2),
    "aten.linalg_lu_factor_ex.default": range(1), "aten.lu_unpack.default": (1, 2),
    "aten.native_layer_norm.default": range(1), "aten.native_layer_norm_backward.default": range(3),
    "aten.native_group_norm.default": range(3), "aten.native_group_norm_backward.default": range(3),
    "aten._native_batch_norm_legit_functional.default": range(1), "aten._native_batch_norm_legit.no_stats": range(1),
    "aten._native_batch_norm_legit_no_training.default": range(1), "aten.native_batch_norm_backward.default": range(3),
    "aten.nll_loss_forward.default": range(1), "aten.nll_loss2d_forward.default": range(1),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": range(1),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": range(3),
    "gtrace.lstm.default": range(3), "gtrace.lstm_backward.default": range(6),
}  # fmt: skip
"""The differentiable results, by overload."""


@remembered(4096, key=exact_key)
def _has_derivative(overload: str, args: tuple[Any, ...], avals: tuple[Aval, ...]) -> list[bool]:
    """Return, for each result of a call, whether torch differentiates it."""
    key = "differentiable", overload, args, avals
    kept = derivations.find(key, lambda text: [c == "1" for c in text]) if of_torch(overload) else None
    if kept is not None:
        return kept
    found = _differentiable(overload, args, avals)
    if of_torch(overload):
        derivations.keep(key, "".join("01"[flag] for flag in found))
    return found


def _differentiable(overload: str, args: tuple[Any, ...], avals: tuple[Aval, ...]) -> list[bool]:
    call = caller(overload, args)
    floating = [k for k, a in enumerate(avals) if a.floating]
    try:
        return _requires_grad(overload, call, avals, floating)
    except RuntimeError:
        # it rejects gradients with respect to some operands, such as class weights
        found = [False] * len(_requires_grad(overload, call, avals, []))
        for k in floating:
            with contextlib.suppress(RuntimeError):
                found = [a or b for a, b in zip(found, _requires_grad(overload, call, avals, [k]), strict=True)]
        return found


def _requires_grad(overload: str, call: Callable[..., Any], avals: Sequence[Aval], places: Sequence[int]) -> list[bool]:
    def flags(operands: Sequence[torch.Tensor]) -> list[bool]:
        for k in places:
            operands[k].requires_grad_()
        return [x.requires_grad for x in call(*operands)]

    with torch.enable_grad():
        if is_tried(find_overload(overload), sum(a.size for a in avals)):
            with contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError):  # zeros are invalid operands
                return flags([torch.zeros(a.shape, dtype=a.dtype, device="cpu") for a in avals])
        with contextlib.suppress(NotImplementedError):
            return flags([torch.empty(a.shape, dtype=a.dtype, device="meta") for a in avals])
        with fake_tensors(avals) as fakes:
            return flags(fakes)


Draw = Callable[[str, Aval, list[Any]], Any]
"""(overload, type of the result, arguments) -> the result of a random operator, or None if it is unsupported."""


def record_calls(
    traced: TracedCall, inputs: Sequence[Array], draw: Draw | None = None, numbers: Sequence[Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> list[Array]:  # fmt: skip
    """Record traced calls on `inputs`; return their outputs, none of which may be missing.

    Args:
        draw: records random operators; without it they raise.
        numbers: the open numbers of the trace, if it has open sizes.
        constants: what stands for the constants of the trace; None: these themselves.

    Raises:
        OtherSizesError: the trace does not hold for these sizes.
    """
    values: dict[Step, Any] = {}
    rest = iter(inputs)
    kept: dict[Step, dict[int, int]] = {}

    def read(value: Any) -> Any:
        kind = value.__class__
        if kind is Step:
            return values[value]
        if kind is list:
            return [read(each) for each in value]
        return numbers[value.place] if kind is Open else value  # type: ignore[index]

    def bound(results: Any) -> Any:
        if results.__class__ is not Type:
            return [bound(each) for each in results] if results.__class__ is list else results
        memory = results.memory
        memory = None if memory is None else (tuple([read(n) for n in memory[0]]), read(memory[1]))
        return Type(tuple([read(n) for n in results.shape]), results.dtype, results.device, memory)

    for step in traced.steps:
        if step.kind == "call":
            args, results = [read(x) for x in step.args], step.results if numbers is None else bound(step.results)
            if step.name in BY_MEMORY:
                args[0] = _in_memory_order(args[0], step.name, step.args[0].kind, bound(step.args[0].results))
            if step.name == CUSTOM:
                values[step] = RECORDED[CUSTOM](traced.custom[args[3]], *args[:3])
                continue
            found = None
            if draw is not None and step.random and not step.name.startswith(ATTENTION):
                found = draw(step.name, _first_type(results), args)
            if found is None:
                found = _record(step, results, args, {k: read(x) for k, x in step.kwargs.items()})
                if found.__class__ is not Array:
                    kept[step] = places(results)
                if numbers is not None:
                    _check_sizes(found, results)
            values[step] = found
        elif step.kind == "item":
            (whole,) = step.args
            values[step] = values[whole][kept[whole][step.target]] if whole in kept else values[whole][step.target]
        elif step.kind == "input":
            values[step] = next(rest)
        else:
            values[step] = lift("torch", (constants or traced.constants)[step.target])
    return [_output(read(value)) for value in traced.outputs]


def _check_sizes(found: Any, results: Any) -> None:
    """Raise unless recorded results have the sizes that the trace has assumed."""
    given, expected = (found, results) if found.__class__ is not Array else ([found], [results])
    if [x.aval.shape for x in given] != [t.shape for t in expected if t is not None]:
        raise OtherSizesError


def _in_memory_order(x: Array, overload: str, kind: str, t: Type) -> Array:
    """Return the operand whose memory a call describes, with its axes in the order of that memory.

    Args:
        kind: the kind of the step that made it.
        t: its type in the trace.

    Raises:
        ArgumentError: the operand is not dense, or the call writes to it in another order.
    """
    if kind == "input":  # recorded programs have dense operands
        return x
    assert t.memory is not None
    strides, offset = t.memory
    order = memory_order(t.shape, strides)
    if order is not None and not offset and (order == list(range(len(order))) or "scatter" not in overload):
        return _permuted(x, order)
    raise ArgumentError(
        message("as_strided", "a dense tensor", f"a view with strides {strides}",
                "Call contiguous() first, and describe the memory that it gives.")
    )  # fmt: skip


def _first_type(result: Any) -> Aval:
    t: Type = result if isinstance(result, Type) else result[0]
    return aval(t.shape, t.dtype, t.device)


def _output(value: Any) -> Array:
    if not isinstance(value, Array):
        raise ArgumentError(
            message("torch", "arrays as results", repr(value), "Return arrays; what does not vary is known outside.")
        )
    return value


def _record(step: Step, expected: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    overload = step.target
    if step.name in RECORDED:
        return RECORDED[step.name](*args, **kwargs)
    rule = _TRANSLATIONS.get(step.name)
    if rule is not None:
        device = expected.device
        if device.type == "meta":  # the fake tensors inside a derivative that is a script in torch
            device = next((x.aval.device for x in args if isinstance(x, Array)), device)
        a = aval(expected.shape, expected.dtype, device)
        found = rule(a, *args, **kwargs)
        if found is not None and found.aval is a:
            return found
    check_overload(overload)
    operands, constants = template(overload, args, kwargs, lambda x: isinstance(x, Array))
    return call_aten(step.name, constants, [cast(x, x.aval.dtype) for x in operands])


RECORDED: dict[str, Callable[..., Sequence[Array]]] = {}
"""By overload: recorders of gtrace's own operators that need parts built on these modules, such as loops."""


# -- aten operators with an equal in gtrace; each rule takes the expected type, and returns None if it does not apply

_TRANSLATIONS: dict[str, Callable[..., Array | None]] = {}


def _rule(*names: str) -> Callable[[Callable[..., Array | None]], Callable[..., Array | None]]:
    def register(function: Callable[..., Array | None]) -> Callable[..., Array | None]:
        for name in names:
            _TRANSLATIONS[f"aten.{name}"] = function
        return function

    return register


def _record_op(name: str, *operands: Any, params: tuple[Any, ...] = ()) -> Array:
    return bind(REGISTRY[name], operands, params)


def _array(a: Aval, x: Any) -> Array:
    """Return an operand in the dtype of the result; torch's autograd passes numbers such as 1j as tensors."""
    return cast(x, a.dtype) if isinstance(x, Array) else full_like_scalar(x, a.dtype, (), a.device)


def _same_dtype(a: Aval, x: Any) -> Any:
    """Return an operand of an elementwise operation in the dtype of the result; None if torch would promote."""
    if isinstance(x, Array):
        return cast(x, x.aval.dtype) if x.aval.dtype is a.dtype else None
    x = wrapped(x, a.dtype)
    return scalar_operand("torch", type(x)(x), a.dtype, a.device) if fits(x, a.dtype) else None


def _elementwise(name: str, floating: bool, rounds: bool = True) -> Callable[..., Array | None]:
    """Return a rule; `rounds`: whether torch rounds a number to the 16 bits of the array beside it."""

    def rule(a: Aval, *operands: Any, **rest: Any) -> Array | None:
        if rest.pop("alpha", 1) != 1 or rest or (floating and not a.floating):
            return None
        found = [_same_dtype(a, x) for x in operands]
        if any(x is None for x in found) or all(isinstance(x, Scalar) for x in found):
            return None
        if not rounds and a.floating and a.dtype.itemsize == 2 and any(is_inexact(x, a.dtype) for x in operands):
            wide = [cast(x, torch.float32) if isinstance(x, Array) else float(x) for x in operands]
            return ops.astype(rule(aval(a.shape, torch.float32, a.device), *wide), a.dtype)
        return _record_op(name, *found)

    return rule


for _name in ("add", "sub", "mul"):
    _rule(f"{_name}.Tensor", f"{_name}.Scalar")(_elementwise(_name, floating=False, rounds=_name != "mul"))
_rule("div.Tensor", "div.Scalar")(_elementwise("div", floating=True, rounds=False))
_rule("remainder.Tensor", "remainder.Scalar")(_elementwise("remainder", floating=True))


@_rule("div.Tensor_mode", "div.Scalar_mode")
def _rounded_quotient(a: Aval, x: Array, y: Any, *, rounding_mode: str | None) -> Array | None:
    # Inductor rounds the quotient, which may already have been rounded up to an integer
    return _elementwise("floor_divide", floating=True, rounds=False)(a, x, y) if rounding_mode == "floor" else None


def _comparison(name: str) -> Callable[..., Array | None]:
    def rule(a: Aval, x: Array, y: Any) -> Array | None:
        other = _same_dtype(x.aval, y)
        return None if other is None else _record_op(name, cast(x, x.aval.dtype), other)

    return rule


for _op in REGISTRY.values():
    if _op.aten and _op.arity == 1:
        _rule(f"{_op.aten}.default")(_elementwise(_op.name, floating=True))
    elif _op.aten:
        _rule(f"{_op.aten}.Tensor", f"{_op.aten}.Scalar")(_comparison(_op.name))


@_rule("pow.Tensor_Scalar")
def _pow(a: Aval, x: Array, y: Any) -> Array | None:
    if not a.floating or x.aval.dtype is not a.dtype or isinstance(y, complex):
        return None
    if float(y).is_integer() and 1 <= y <= 8:
        x = cast(x, a.dtype)
        return _record_op("square", x) if y == 2 else _record_op("integer_pow", x, params=(int(y),))
    return None


@_rule("where.self")
def _where(a: Aval, condition: Array, x: Any, y: Any) -> Array | None:
    one, other = _same_dtype(a, x), _same_dtype(a, y)
    if condition.aval.dtype is not torch.bool or one is None or other is None:
        return None
    return _record_op("where", cast(condition, torch.bool), one, other)


@_rule("mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(a: Aval, x: Array, y: Array) -> Array:
    return _record_op("matmul", cast(x, a.dtype), cast(y, a.dtype))


@_rule("addmm.default")
def _addmm(a: Aval, bias: Array, x: Array, y: Array, *, beta: Any = 1, alpha: Any = 1) -> Array | None:
    if beta != 1 or alpha != 1 or not a.floating or not x.shape[1]:  # of nothing it is the bias, also -0.0
        return None
    return _record_op("add", _matmul(a, x, y), cast(bias, a.dtype))


@_rule("view.default", "_unsafe_view.default", "reshape.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
       "unsqueeze.default", "flatten.using_ints", "_reshape_alias.default")  # fmt: skip
def _reshape(a: Aval, x: Array, *rest: Any) -> Array:
    return cast(x, a.dtype) if x.aval.shape == a.shape else _record_op("reshape", x, params=(a.shape,))


@_rule("expand.default")
def _expand(a: Aval, x: Array, *rest: Any, **kwargs: Any) -> Array:
    return cast(x, a.dtype) if x.aval.shape == a.shape else _record_op("broadcast_to", x, params=(a.shape,))


def _permuted(x: Array, axes: Sequence[int]) -> Array:
    axes = tuple(k % x.ndim for k in axes)
    return cast(x, x.aval.dtype) if axes == tuple(range(x.ndim)) else _record_op("permute", x, params=(axes,))


_rule("permute.default")(lambda a, x, dims: _permuted(x, dims))
_rule("t.default")(lambda a, x: _permuted(x, range(x.ndim)[::-1]))


@_rule("transpose.int")
def _transpose(a: Aval, x: Array, one: int, other: int) -> Array:
    axes = list(range(x.ndim))
    if axes:
        axes[one], axes[other] = axes[other], axes[one]
    return _permuted(x, axes)


@_rule("slice.Tensor")
def _slice(a: Aval, x: Array, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Array:
    first, last, _ = slice(start, stop).indices(x.shape[dim])
    bounds = [(0, n, 1) for n in x.shape]
    bounds[dim] = (first, max(first, last), step)
    return cast(x, a.dtype) if a.shape == x.shape and step == 1 else _record_op("slice", x, params=(tuple(bounds),))


@_rule("select.int")
def _select(a: Aval, x: Array, dim: int, index: int) -> Array:
    dim %= x.ndim
    index %= x.shape[dim]
    bounds = [(0, n, 1) for n in x.shape]
    bounds[dim] = (index, index + 1, 1)
    return _record_op("reshape", _record_op("slice", x, params=(tuple(bounds),)), params=(a.shape,))


@_rule("cat.default")
def _cat(a: Aval, parts: Sequence[Array], dim: int = 0) -> Array | None:
    if any(x.aval.dtype is not a.dtype or x.ndim != len(a.shape) for x in parts) or len(parts) < 2:
        return None
    return _record_op("concat", *[cast(x, a.dtype) for x in parts], params=(dim % len(a.shape),))


def _axes(x: Array, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == []:
        return tuple(range(x.ndim))
    return tuple(sorted(k % x.ndim if x.ndim else 0 for k in ([dim] if isinstance(dim, int) else dim)))


def _reduction(name: str, floating: bool) -> Callable[..., Array | None]:
    def rule(a: Aval, x: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array | None:
        if (x.aval.dtype is not a.dtype) or (floating and not a.floating) or not x.ndim or not x.size:
            return None
        return _record_op(name, cast(x, a.dtype), params=(_axes(x, dim), keepdim))

    return rule


_rule("sum.default", "sum.dim_IntList")(_reduction("sum", floating=False))
_rule("mean.default", "mean.dim")(_reduction("mean", floating=True))


@_rule("cumprod.default")
def _cumprod(a: Aval, x: Array, dim: int, *, dtype: Any = None) -> Array | None:
    # torch's derivative of a traced product has operations for each of its elements. Integers have none.
    return _record_op("cumprod", cast(x, a.dtype), params=(dim % x.ndim,)) if a.floating and x.ndim else None


def _softmax(name: str) -> Callable[..., Array | None]:
    def rule(a: Aval, x: Array, dim: int, half_to_float: bool) -> Array | None:
        return None if half_to_float or not x.ndim else _record_op(name, cast(x, a.dtype), params=(dim % x.ndim,))

    return rule


_rule("_softmax.default")(_softmax("softmax"))
_rule("_log_softmax.default")(_softmax("log_softmax"))


@_rule("clone.default", "alias.default", "lift_fresh_copy.default", "contiguous.default", "lift_fresh.default",
       "resolve_conj.default", "resolve_neg.default")  # fmt: skip
def _same(a: Aval, x: Any, **rest: Any) -> Array:
    return _array(a, x)


@_rule("_conj.default", "conj_physical.default", "_conj_physical.default")
def _conj(a: Aval, x: Any) -> Array:
    # torch may mark results as conjugated and keep their memory; gtrace values have no such marks
    return ops.conj(_array(a, x))


@_rule("_neg_view.default")
def _neg_view(a: Aval, x: Any) -> Array:
    return _record_op("neg", _array(a, x))


@_rule("detach.default", "detach_copy.default")
def _detach(a: Aval, x: Any) -> Array:
    x = _array(a, x)
    return ops.stop_gradient(x) if a.floating else x


@_rule("_to_copy.default")
def _to_copy(a: Aval, x: Any, **rest: Any) -> Array:
    return to_device(_array(a, real_if_needed(x, a.dtype) if isinstance(x, Array) else x), a.device)


@_rule("full.default", "full_like.default", "new_full.default")
def _full(a: Aval, like: Any, *values: Any, **rest: Any) -> Array | None:
    value = values[-1]
    if not fits(value, a.dtype) or (a.floating and not abs(value) <= torch.finfo(a.dtype).max):
        return None
    return full_like_scalar(value, a.dtype, a.shape, a.device)


def _filling(value: float) -> Callable[..., Array]:
    return lambda a, *args, **rest: full_like_scalar(value, a.dtype, a.shape, a.device)


_rule("fill.Scalar")(lambda a, x, value: _full(a, x, value))
# an empty tensor is written before it is read, so any value is right
_rule("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
      "new_empty.default")(_filling(0))  # fmt: skip
_rule("ones.default", "ones_like.default", "new_ones.default")(_filling(1))


@_rule("scalar_tensor.default")
def _scalar_tensor(a: Aval, value: Any, **rest: Any) -> Array:
    return full_like_scalar(wrapped(value, a.dtype), a.dtype, (), a.device)
