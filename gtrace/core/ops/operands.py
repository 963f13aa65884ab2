"""Converts operands to one dtype before an operation is recorded, so that every operation sees equal dtypes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch
from numpy.exceptions import ComplexWarning

from gtrace.core.backends.native.values import c_type
from gtrace.core.base import tree
from gtrace.core.base.config import config
from gtrace.core.base.devices import sent
from gtrace.core.base.dtypes import COMPLEX, DTYPES, FLOATS, INEXACT, LONG, SHORT, UNSIGNED, converted
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.graph import Scalar
from gtrace.core.ops.batching import unchanged
from gtrace.core.ops.complex_parts import real
from gtrace.core.ops.declare import Array, Aval, Op, Sample, aval, define
from gtrace.core.ops.samples import shapes_differ, unary_floats
from gtrace.core.ops.saturation import INTEGERS, saturated
from gtrace.core.ops.shape import constant
from gtrace.core.ops.sharding_rules import same
from gtrace.core.trace.bind import bind, follows, joint_device
from gtrace.core.trace.convert import common_device, lift, number_operand, python_scalar, typed_scalar
from gtrace.core.trace.fast import binary_fast, unary_fast
from gtrace.core.trace.promotion import NARROW, float_of, meeting, mixing, wide
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import PURE, replayable

# -- casts

WEAK = "~"
"""A suffix of a dtype's name that makes the cast weak."""


def _another(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a view of `x` if `out` is `x`: a weak and a strong Array of one tensor would be one input of a program."""
    return x.view(x.shape) if out is x and type(x) is torch.Tensor else out  # no call while it is lowered


def _check_cast(op: str, avals: tuple[Aval, ...], dtype: str) -> None:
    kind = DTYPES[dtype.removesuffix(WEAK)]
    if avals[0].complex and kind not in COMPLEX and kind is not torch.bool:
        got = f"{LONG[kind]} for {avals[0]!r}"
        raise DtypeError(message("astype", "a complex or boolean dtype", got, "Use x.real, x.imag or gt.abs(x)."))


_FLOATS = numpy.array([[-1.5, 0.0, 2.25]])
_astype = define(
    "astype", lambda x, dtype: _another(converted(x, DTYPES[dtype.removesuffix(WEAK)]), x),
    moves=True, params=("dtype",), check=_check_cast, linear=True, factors=same, batch=unchanged,
    shape=lambda avals, dtype: aval(
        avals[0].shape, DTYPES[dtype.removesuffix(WEAK)], avals[0].device, dtype.endswith(WEAK)
    ),
    # a real operand gets the real part
    vjp=lambda ct, needed, x, out, dtype: (cast(ct if x.aval.complex else real(ct), x.aval.dtype),),
    samples=lambda: [Sample((_FLOATS,), {"dtype": kind}) for kind in (torch.float32, torch.int32)],
    reference=lambda x, dtype: x.astype(LONG[dtype]),
    user=lambda x, dtype: cast(lift("astype", x), dtype),
    cpp=Cpp(lambda dtype: f"cast<{c_type(DTYPES[dtype.removesuffix('~')])}>({{0}})", "bifu"),
)  # fmt: skip


def cast(x: Array, dtype: torch.dtype) -> Array:
    """Return `x` in `dtype`, strongly typed; `x` itself if it already is.

    Floats that an integer dtype cannot represent get a value that depends on the processor. With the setting
    `jax_results` they become the nearest integer, and complex numbers their real part, with a warning.
    """
    if x.aval.dtype is dtype and not x.aval.weak:
        return x
    if x.aval.complex and dtype not in COMPLEX and dtype is not torch.bool and config.current.jax_results:
        warnings.warn("a complex array becomes real: its imaginary part is lost", ComplexWarning, stacklevel=3)
        return cast(real(x), dtype)
    if dtype in INTEGERS and x.aval.dtype in FLOATS and config.current.jax_results and not thread.in_rule:
        return saturated(x, dtype)
    return bind(_astype, (x,), (SHORT[dtype],))


def weakened(x: Array, dtype: torch.dtype) -> Array:
    """Return `x` weakly typed in `dtype`; `x` itself if it already is."""
    if x.aval.dtype is dtype and x.aval.weak:
        return x
    return bind(_astype, (x,), (SHORT[dtype] + WEAK,))


def weak_like(values: Sequence[Array], avals: Iterable[Aval]) -> Sequence[Array]:
    """Return arrays; with the setting `jax_results`, weak where `avals` are."""
    if thread.in_rule or not config.current.jax_results:
        return values
    return [weakened(v, v.aval.dtype) if a.weak else v for v, a in zip(values, avals, strict=True)]


def with_avals(values: Sequence[Array], avals: Iterable[Aval]) -> list[Array]:
    """Return arrays in the dtypes of `avals`, and as weak: for a program of these, whose bodies are of one type."""
    return [weakened(x, a.dtype) if a.weak else cast(x, a.dtype) for x, a in zip(values, avals, strict=True)]


def counted(out: Array, x: Array | None = None) -> Array:
    """Return an int64 or uint64 result of counting or summing in 32 bits, if the setting `x64` is off.

    Args:
        x: the summed array; a sum in its own dtype stays.
    """
    kind = out.aval.dtype
    if kind not in (torch.int64, torch.uint64) or wide() or (x is not None and x.aval.dtype is kind):
        return out
    return cast(out, NARROW[kind])


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results, indices or counts, are `counted`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return tree.map(lambda x: counted(x) if type(x) is Array else x, function(*args, **kwargs))

    return call


# -- devices


on_device_op = define(
    "on_device", lambda x, device: _another(sent(x, torch.device(device)), x), moves=True, params=("device",),
    shape=lambda avals, device: aval(avals[0].shape, avals[0].dtype, torch.device(device), avals[0].weak),
    vjp=lambda ct, needed, x, out, device: (bind(on_device_op, (ct,), (str(x.aval.device),)),), linear=True,
    factors=same, batch=unchanged, samples=lambda: [Sample((_FLOATS,), {"device": "cpu"})],
    reference=lambda x, device: x, user=lambda x, device: bind(on_device_op, (lift("on_device", x),), (device,)),
)  # fmt: skip


def beside(device: torch.device, given: Any, x: Array) -> Array:
    """Return `x`, made of the user's value `given`, on the device of other operands.

    Numbers and host data, such as lists and NumPy arrays, move there. Arrays and tensors with dimensions stay.
    """
    if x.aval.device == device:
        return x
    if isinstance(given, (Array, torch.Tensor)) and not follows(x.aval):
        return x
    return bind(on_device_op, (x,), (str(device),))


def _on_one_device(operands: Sequence[Any], arrays: list[Array | None]) -> list[Array | None]:
    """Return the arrays of operands after numbers and host data have moved to the device of the others."""
    pairs = list(zip(operands, arrays, strict=True))
    placed = [x.aval for given, x in pairs if x is not None and isinstance(given, (Array, torch.Tensor))]
    devices = {a.device for a in placed}
    device = devices.pop() if len(devices) == 1 else joint_device(placed)
    return arrays if device is None else [None if x is None else beside(device, given, x) for given, x in pairs]


# -- promotion

_DOUBLE = (torch.float64, torch.complex128)


def promote(op: str, *operands: Any, floating: bool = False) -> list[Array | Scalar]:
    """Return the operands in their common dtype: Arrays are cast, Python scalars become `Scalar`.

    At least one result is an Array. With `floating`, integers and booleans become float32.
    """
    values = [None if type(x) is Array else python_scalar(x) for x in operands]
    if all(value is not None for value in values):
        values[0] = None
    arrays = [lift(op, x) if value is None else None for x, value in zip(operands, values, strict=True)]
    if len({x.aval.device for x in arrays if x is not None}) > 1:
        arrays = _on_one_device(operands, arrays)
    present = [x for x in arrays if x is not None]
    scalars = [value for value in values if value is not None]
    typed = [kind for x in operands if (kind := typed_scalar(x)) is not None]
    if typed:
        scalars = [v for x, v in zip(operands, values, strict=True) if v is not None and typed_scalar(x) is None]
    avals = [x.aval for x in present] + typed
    dtype, decided = meeting(avals, scalars)
    if dtype is torch.float64:
        mixing.check(avals)
    if floating and dtype not in INEXACT:
        dtype = float_of(dtype)
    device = common_device(op, present)
    weak = all(a.weak for a in avals)
    # in JAX, a number that decides over integers or booleans gives a weak result
    lasting = decided and config.current.jax_results and not thread.in_rule
    out: list[Array | Scalar] = []
    for x, value in zip(arrays, values, strict=True):
        if x is None:
            assert value is not None
            out.append(number_operand(op, value, dtype, device))
        elif x.aval.dtype is dtype and (weak or not x.aval.weak):
            out.append(x)
        elif lasting:
            out.append(weakened(x, dtype))
        else:
            out.append(cast(x, dtype))
    return out


def promote_arrays(op: str, *operands: Any, floating: bool = False) -> list[Array]:
    """Like `promote`, with Python scalars as 0-d Arrays, which keep their digits beside float64."""
    lifted = [x if isinstance(x, numpy.ndarray) else lift(op, x) for x in operands]
    found = promote(op, *lifted, floating=floating)
    if found[0].aval.dtype in _DOUBLE:
        for k, operand in enumerate(operands):
            if isinstance(operand, (float, complex)):
                found[k] = constant(operand, found[k].aval)
    elif found[0].aval.dtype in INTEGERS:
        for operand in operands:
            if isinstance(operand, int):
                number_operand(op, operand, found[0].aval.dtype, found[0].aval.device)  # it checks the range
    return found  # type: ignore[return-value]


def as_arrays(op: str, *operands: Any) -> list[Array]:
    """Return the operands as Arrays of their common floating dtype; Python scalars keep all their digits."""
    found = promote(op, *operands, floating=True)
    return [x if isinstance(x, Array) else constant(x.value, x.aval) for x in found]


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return a real tensor in float64.

    Raises:
        NotImplementedError: it is complex. torch would drop the imaginary part, with only one warning per process.
    """
    if x.is_complex():
        raise NotImplementedError("it is not implemented for complex numbers")
    return x.double()


def floating_like(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return `out` in the dtype of `x`, or in float32 if that is not floating."""
    return out.to(x.dtype if x.is_floating_point() else torch.float32)


def widened(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a float64 tensor function as one of any floating dtype, rounded once."""

    def call(*operands: torch.Tensor) -> torch.Tensor:
        return floating_like(function(*map(doubled, operands)), operands[0])

    return call


def accumulating(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return torch's sum or product with uint64 results for unsigned integers, as in the array API; torch has int64."""

    @functools.wraps(function)
    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = function(x, *args, **kwargs)
        return out.to(torch.uint64) if x.dtype in UNSIGNED else out

    return call


# -- user functions


def unary(
    name: str,
    impl: Callable[..., Any],
    doc: str,
    example: str,
    *,
    floating: bool = True,
    of_complex: Callable[[Array], Array] | None = None,
    **fields: Any,
) -> Callable[[Any], Array]:
    """Declare an elementwise operation of one array; return its user function.

    Args:
        example: a call and its output, as ``"gt.negative(gt.array(1)) => Array(-1, dtype=int64)"``.
        floating: convert integer and boolean operands to float32 first.
        fields: those of `define`; by default, samples are floats in [-2, 2).
        of_complex: a function for complex operands, if their derivative has another form.
    """
    fields = {"samples": unary_floats(), **fields}
    op = define(name, impl, elementwise=True, user=lambda x: public(x), **fields)

    def any_operand(x: Any) -> Array:
        operands = promote(name, x, floating=floating)
        if of_complex is not None and operands[0].aval.complex:
            return of_complex(operands[0])  # type: ignore[arg-type]
        return bind(op, operands)

    converting = replayable(any_operand)

    def slow(x: Any) -> Array:
        return converting(x) if floating and x.__class__ is Array and not x.aval.floating else any_operand(x)

    # the fast path takes integer operands only for operations that do not convert them
    public = _published(op, unary_fast(op, slow), doc, example)
    return public


def binary(
    name: str, impl: Callable[..., Any], doc: str, example: str, *, floating: bool = False, **fields: Any
) -> Callable[[Any, Any], Array]:
    """Declare an elementwise operation of two arrays, which broadcast; return its user function."""
    fields = {"errors": shapes_differ, **fields}
    op = define(name, impl, arity=2, elementwise=True, user=lambda x, y: public(x, y), **fields)

    def any_operands(x: Any, y: Any) -> Array:
        return bind(op, promote(name, x, y, floating=floating))

    converting = replayable(any_operands)

    def slow(x: Any, y: Any) -> Array:
        if x.__class__ is Array and y.__class__ is Array and x.aval.dtype is y.aval.dtype:
            if x.aval.weak is y.aval.weak and (x.aval.floating or not floating):
                return any_operands(x, y)  # unchanged, so that the fast path knows them from now on
        return converting(x, y)

    public = _published(op, binary_fast(op, slow, numbers=True, integers=not floating), doc, example)
    of_operator[public] = binary_fast(op, deferring(slow), numbers=True, integers=not floating)
    return public


of_operator: dict[Any, Callable[[Any, Any], Any]] = {}
"""Of operations of two arrays, what stands behind the operator."""

_OPERANDS = (Array, bool, int, float, complex, numpy.ndarray, numpy.generic, torch.Tensor)
_REFUSED = (list, tuple, dict, set, str, bytes, type(None))
"""Not arrays, and not to be asked for operators of their own: a list would be repeated."""


def deferring(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of two operands, of which one is an Array, as an operator.

    An operand of another class answers by an operator of its own, or by the array that its ``__jax_array__`` returns.
    """

    @functools.wraps(function)
    def operator(x: Any, y: Any) -> Any:
        other = y if isinstance(x, Array) else x
        if isinstance(other, _OPERANDS) or type(other) in _REFUSED:
            return function(x, y)
        if not hasattr(type(other), "__jax_array__"):
            return NotImplemented
        array = other.__jax_array__()
        return function(x, array) if other is y else function(array, y)

    return operator


def _published(op: Op, function: Callable[..., Array], doc: str, example: str) -> Callable[..., Array]:
    call, _, result = example.partition(" => ")
    function.__name__ = function.__qualname__ = op.name
    PURE.add(function)
    function.__doc__ = f"{doc}\n\n    >>> {call}\n    {result}\n    "
    return function
