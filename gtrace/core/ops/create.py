"""Creation of arrays: from outside data, and as constants of the program."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.devices import CPU, as_device
from gtrace.core.base.dtypes import COMPLEX, DTYPES, FLOAT8, FLOATS, INEXACT, LONG, SHORT, WIDE_UNSIGNED, DType
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ops.counts import is_short
from gtrace.core.ops.declare import Aval, Sample, aval, define
from gtrace.core.ops.elementwise import add, divide, floor, identity, multiply, subtract
from gtrace.core.ops.join_split import stack
from gtrace.core.ops.logic import equal
from gtrace.core.ops.operands import cast, on_device_op, promote_arrays
from gtrace.core.ops.shape import (
    as_int,
    as_size,
    as_sizes,
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    full_like_scalar,
    moveaxis,
    normalize_axis,
    reshape,
)
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.bind import another, bind, distinct
from gtrace.core.trace.convert import (
    at_default,
    check_cast,
    from_dlpack,
    from_numpy,
    from_torch,
    lift,
    new_place,
    plain_tensor,
    python_scalar,
    shared,
    to_tensor,
    typed_scalar,
)
from gtrace.core.trace.force import whole
from gtrace.core.trace.promotion import as_dtype, default_dtype, float_of
from gtrace.core.trace.record import thread

__all__ = [
    "arange", "array", "asarray", "astype", "empty", "empty_like", "eye", "full", "full_like", "linspace",
    "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip

_CREATES = "it has no operand"

_DEEPEST = 64
"""The maximal depth of nested lists: the dimensions that NumPy and torch allow."""

_WEAK = (int, float, complex)
"""Number types whose arrays are weak with the setting `jax_results`."""


def array(obj: Any, dtype: Any = None, device: Any = None) -> Array:
    """Return a new array with a copy of `obj`, so later changes to `obj` have no effect.

    Args:
        obj: a number, nested lists of numbers or Arrays, a NumPy array, a torch tensor, or an Array.
        dtype: None keeps the dtype of arrays, and gives bool, int64, float32 or complex64 for Python scalars.
        device: None keeps the device of arrays; other data go to the device of the setting `device`.

    Raises:
        ShapeError: the lists are ragged.
        DtypeError: a value is not a number, its dtype is not supported, or an integer dtype cannot represent it.

    >>> gt.array([[1, 2], [3, 4]], dtype=gt.float32)
    Array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    if type(obj) is Array:
        obj = own(obj)
    elif isinstance(obj, numpy.ndarray):
        obj = obj.copy()
    elif isinstance(obj, torch.Tensor):
        obj = plain_tensor("array", obj).clone()
    elif hasattr(obj, "__dlpack__"):
        obj = whole(from_dlpack(obj), "array").clone()
    elif hasattr(obj, "__array__") and not isinstance(obj, numpy.generic):
        obj = numpy.asarray(obj).copy()  # `numpy.array` would let the object decide about the copy
    return asarray(obj, dtype=dtype, device=device)


def own(x: Array) -> Array:
    """Return another Array with the value of `x`; it stays usable if `x` is donated."""
    found = another(x)
    return identity(x) if found is None else found


def asarray(obj: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return `obj` as an array that shares memory with a NumPy array or torch tensor, unless it needs conversion.

    Do not write to `obj` afterwards, because the Array would change. ``gt.array`` copies, and has the same other
    arguments and errors.

    Args:
        copy: True: copy as ``gt.array`` does; False: never copy; None: copy if needed.

    Raises:
        ArgumentError: a copy is needed, and `copy` is False.

    >>> gt.asarray(2.5)
    Array(2.5, dtype=float32)
    """
    target = None if dtype is None else as_dtype(dtype)
    place = None if device is None else as_device(device)
    if copy:
        return array(obj, dtype, device)
    if copy is False:
        _check_shared(obj, target, place)
    if type(obj) is Array:
        out = obj
    elif isinstance(obj, torch.Tensor):
        out = from_torch(obj) if target is None else _fitting(wrap(plain_tensor("asarray", obj)), target)
    elif isinstance(obj, numpy.ndarray):
        out = at_default(from_numpy(obj) if target is None else _fitting(shared(obj), target))
    elif type(obj) in _WEAK and dtype is device is None and config.current.jax_results and not thread.in_rule:
        return lift("asarray", obj)
    elif python_scalar(obj) is not None or (isinstance(obj, (list, tuple, range)) and not _holds_arrays(obj)):
        scalar = python_scalar(obj)
        default = None if isinstance(obj, (list, tuple, range)) else default_dtype(type(scalar))
        if isinstance(obj, numpy.generic):
            default = as_dtype(obj.dtype)
        return wrap(to_tensor(obj, target or default, place or as_device(None)))
    elif isinstance(obj, (list, tuple)):
        out = stack([array(x, target) for x in obj])  # recorded only: the list may change before the program runs
        if config.current.jax_results:
            out = cast(out, out.aval.dtype)  # as in JAX, only a number itself is weak
    elif hasattr(type(obj), "__jax_array__"):
        return asarray(obj.__jax_array__(), dtype, device=device, copy=copy)
    elif hasattr(obj, "__dlpack__"):
        out = _fitting(from_dlpack(obj), target)
    elif hasattr(obj, "__array__"):
        host = numpy.asarray(obj)
        out = at_default(from_numpy(host) if target is None else _fitting(shared(host), target))
    else:
        expected = "numbers, nested lists, or a NumPy or torch array"
        raise ArgumentError(message("array", expected, type(obj).__name__, "Convert it first."))
    if target is not None:
        out = cast(out, target)
    return out if place is None else to_device(out, place)


def _check_shared(obj: Any, target: torch.dtype | None, place: torch.device | None) -> None:
    """Raise for an object that has no memory of this dtype on this device."""
    if isinstance(obj, (Array, torch.Tensor, numpy.ndarray)):
        here, writable = (CPU, obj.flags.writeable) if isinstance(obj, numpy.ndarray) else (obj.device, True)
        wanted = as_device(None) if place is None and isinstance(obj, numpy.ndarray) else place
        same_place = wanted is None or as_device(here) == wanted
        if same_place and writable and target in (None, as_dtype(obj.dtype)):
            return
    elif hasattr(obj, "__dlpack__") and target is None and place is None:
        return
    raise ArgumentError(message("asarray", "memory that can be shared", type(obj).__name__, "Allow the copy."))


def _fitting(x: Array, target: torch.dtype | None) -> Array:
    """Return x, which has a value, after checking that `target` can represent it."""
    if target in FLOATS and x.aval.complex:
        check_cast(numpy.zeros(0, numpy.complex64), target)
    if target is not None and target not in INEXACT and x.aval.dtype is not torch.bool:
        tensor = whole(x, "cast")
        if tensor.numel():
            # the extrema show NaN too; bfloat16 has no NumPy dtype
            check_cast(numpy.array(_extrema(tensor)), target)
    return x


@without_modes
def _extrema(tensor: torch.Tensor) -> list[Any]:
    if tensor.dtype in COMPLEX or tensor.dtype in WIDE_UNSIGNED:
        host = tensor.cpu().numpy()
        return [host.ravel()[0]] if tensor.is_complex() else [host.min(), host.max()]
    return [x.item() for x in torch.aminmax(tensor.float() if tensor.dtype in FLOAT8 else tensor)]


def _holds_arrays(obj: Any) -> bool:
    """Whether nested lists contain an array."""
    found, lists = False, {id(obj): obj}
    for _ in range(_DEEPEST):
        inside = [item for each in lists.values() for item in each]
        found = found or any(isinstance(item, (Array, torch.Tensor, numpy.ndarray)) for item in inside)
        lists = {id(item): item for item in inside if isinstance(item, (list, tuple))}
        if not lists:
            return found
    got = "a list that holds itself, or more levels"
    raise ShapeError(message("array", f"at most {_DEEPEST} levels of lists", got, "Check how the list is made."))


def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """Return x converted to `dtype`. Floats that become integers lose their fraction.

    NaN and infinities have no integer value, so their result is unspecified, as in NumPy and torch. ``gt.array`` with
    an integer dtype raises for them.

    Args:
        dtype: with the setting `jax_results`, None is the default dtype of floats.
        copy: ignored; Arrays never change.
        device: the device of the result; None: that of x.

    >>> gt.astype(gt.array([1.5, -1.5]), gt.int32)
    Array([ 1, -1], dtype=int32)
    """
    x = lift("astype", x)
    # to its own dtype, which the setting `x64` must not change; those of Python's numbers follow it
    dtype = float if dtype is None and config.current.jax_results else dtype
    same = dtype is not float and dtype is not complex and DType(dtype).torch is x.aval.dtype
    out = cast(x, x.aval.dtype if same else as_dtype(dtype))
    out = out if device is None else to_device(out, device)
    return distinct(x) if out is x else out


def to_device(x: Array, device: Any) -> Array:
    """Return x on `device`. A copy from another device happens now; in a captured function, when the program runs."""
    place = as_device(device)
    if x.aval.device == place:
        return x
    if thread.trace.capture is not None:
        return bind(on_device_op, (x,), (str(place),))
    return wrap(whole(x, "device").to(place))


# -- constants


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Return an array of one value.

    Raises:
        DtypeError: the value does not fit the dtype.

    >>> gt.full((2,), 7)
    Array([7, 7], dtype=int64)
    """
    value = python_scalar(fill_value)
    sizes = as_sizes("full", shape)
    if value is None or type(fill_value) is Array:
        from_array = lift("full", fill_value)
        out = from_array if dtype is None else cast(from_array, as_dtype(dtype))
        if device is not None or (out.aval.weak and not out.aval.shape and thread.trace.place is not None):
            out = to_device(out, new_place(device))
        return broadcast_to(out, sizes)
    typed = typed_scalar(fill_value) if dtype is None else None
    kind = typed.dtype if typed else default_dtype(type(value)) if dtype is None else as_dtype(dtype)
    if kind not in INEXACT and isinstance(value, (float, complex)):
        check_cast(numpy.array(value), kind)
    return full_like_scalar(value, kind, sizes, new_place(device))


def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Return an array of zeros, float32 by default.

    >>> gt.zeros(2)
    Array([0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype or default_dtype(float), device=device)


def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Return an array of ones, float32 by default.

    >>> gt.ones(2, dtype=gt.int32)
    Array([1, 1], dtype=int32)
    """
    return full(shape, 1, dtype or default_dtype(float), device=device)


def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Return an array of unspecified values. They are zeros, so that results never depend on stray memory.

    >>> gt.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype, device=device)


def full_like(x: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Return an array of one value, by default with the shape, dtype and device of x.

    Args:
        x: an array, a number, or an object with a shape and a dtype, such as `gt.ShapeDtypeStruct`.

    >>> gt.full_like(gt.zeros(2), 7)
    Array([7., 7.], dtype=float32)
    """
    if type(x) is not Array and not isinstance(x, numpy.ndarray) and hasattr(x, "shape") and hasattr(x, "dtype"):
        kind, place = as_dtype(x.dtype), as_device(getattr(x, "device", None))
    else:
        x = lift("full_like", x)
        kind, place = x.aval.dtype, x.device
    return full(
        x.shape if shape is None else shape, fill_value, dtype or kind, device=place if device is None else device
    )


def zeros_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Return zeros, by default with the shape, dtype and device of x.

    >>> gt.zeros_like(gt.ones(2))
    Array([0., 0.], dtype=float32)
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


def ones_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Return ones, by default with the shape, dtype and device of x.

    >>> gt.ones_like(gt.zeros(2))
    Array([1., 1.], dtype=float32)
    """
    return full_like(x, 1, dtype, shape=shape, device=device)


def empty_like(x: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Return an array of unspecified values, by default with the shape, dtype and device of x.

    >>> gt.empty_like(gt.ones((2, 3))).shape
    (2, 3)
    """
    return full_like(x, 0, dtype, shape=shape, device=device)


# -- ranges


def _arange_aval(avals: tuple[Aval, ...], start: Any, stop: Any, step: Any, dtype: str, device: str) -> Aval:
    # as in torch: exact for integers, in double precision for floats
    exact = all(type(n) is int for n in (start, stop, step))
    count = max(-((start - stop) // step) if exact else math.ceil((stop - start) / step), 0)
    return aval((count,), DTYPES[dtype], torch.device(device))


_arange = define(
    "arange", lambda start, stop, step, dtype, device: torch.arange(
        start, stop, step, dtype=DTYPES[dtype], device=device
    ),
    numbers=True, params=("start", "stop", "step", "dtype", "device"), arity=0, nondiff=_CREATES,
    span=lambda avals, spans, start, stop, **_: (min(start, stop), max(start, stop) - 1 if start < stop else start),
    shape=_arange_aval, samples=lambda: [Sample((5,)), Sample((2, 9, 3)), Sample((1.0, 0.0, -0.25)), Sample((0,))],
    reference=numpy.arange, user=lambda *args: arange(*args),
)  # fmt: skip


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, device: Any = None) -> Array:
    """Return the numbers from `start` (0 if only one is given) up to, but excluding, `stop`.

    >>> gt.arange(1, 7, 2)
    Array([1, 3, 5], dtype=int64)
    """
    if stop is None:
        start, stop = 0, start
    values = [_number("arange", v) for v in (start, stop, step)]
    if values[2] == 0 or not all(map(math.isfinite, values)):
        expected = "finite bounds and a step other than 0"
        raise ArgumentError(message("arange", expected, str(values), "Check the bounds."))
    whole = float not in map(type, values)
    kind = default_dtype(int if whole else float) if dtype is None else as_dtype(dtype)
    if kind in COMPLEX:
        raise DtypeError(message("arange", "a real dtype", LONG[kind], "Use gt.arange(...).astype(gt.complex64)."))
    count = math.ceil((values[1] - values[0]) / values[2])
    if count <= 0:
        values[1] = values[0]
    elif kind not in FLOATS and kind not in FLOAT8:
        if not whole and any(isinstance(v, float) and not v.is_integer() for v in values):
            raise DtypeError(message("arange", f"integers for {LONG[kind]}", str(values), "Use a float dtype."))
        values = [int(v) for v in values]
        ends = values[0], values[0] + (count - 1) * values[2]
        if kind not in _LARGE or not -(1 << 31) <= min(ends) <= max(ends) < 1 << 31:
            check_cast(numpy.array(ends, dtype=object), kind)
    # torch.arange has no wide unsigned dtypes and no float8
    counted = torch.int64 if kind in WIDE_UNSIGNED else torch.float32 if kind in FLOAT8 else kind
    return cast(bind(_arange, (), (*values, SHORT[counted], str(new_place(device)))), kind)


_LARGE = frozenset((torch.int32, torch.int64))
"""Integers in the common range of all 32-bit dtypes."""


def _number(op: str, value: Any) -> int | float:
    if value.__class__ is int:
        return value
    number = python_scalar(value.item() if type(value) is Array else value)
    if number is None:
        raise ArgumentError(message(op, "a number", type(value).__name__, "Pass a Python number."))
    if isinstance(number, complex):
        raise DtypeError(message(op, "a real number", repr(value), "Pass real bounds."))
    return number + 0  # attributes compare by ==: make False 0, and -0.0 0.0


def _linspace_impl(start: float, stop: float, num: int, endpoint: bool, dtype: str, device: str) -> torch.Tensor:
    if endpoint or num == 0:
        return torch.linspace(start, stop, num, dtype=DTYPES[dtype], device=device)
    return torch.linspace(start, stop, num + 1, dtype=DTYPES[dtype], device=device)[:-1]


_linspace = define(
    "linspace", _linspace_impl, numbers=True, params=("start", "stop", "num", "endpoint", "dtype", "device"), arity=0,
    shape=lambda avals, num, dtype, device, **_: aval((num,), DTYPES[dtype], torch.device(device)), nondiff=_CREATES,
    samples=lambda: [Sample((0.0, 1.0, 5)), Sample((2.0, -1.0, 4), {"endpoint": False})],
    reference=numpy.linspace, user=lambda *args, **kw: linspace(*args, **kw),
)  # fmt: skip


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """Return `num` evenly spaced numbers from `start` to `stop`; `endpoint` tells whether `stop` is included.

    Args:
        start, stop: numbers, or arrays that broadcast; each pair of elements gives a sequence.
        retstep: return (numbers, step).
        axis: for arrays, the axis of the result that holds the sequences.

    >>> gt.linspace(0, 1, 3)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    count = as_size("linspace", "num", num)
    parts = count - bool(endpoint)
    typed = Array, torch.Tensor, numpy.ndarray, *[numpy.generic] * config.current.jax_results
    if any(isinstance(x, typed) or numpy.iscomplexobj(x) for x in (start, stop)):
        out = _between(start, stop, count, parts, dtype, axis)
        step = divide(subtract(stop, lift("linspace", start)), parts) if parts > 0 else array(math.nan)
        step = _step(step, out)
        if device is not None:
            out, step = to_device(out, device), to_device(step, device)
        return (out, step) if retstep else out
    if retstep:
        out = linspace(start, stop, count, endpoint, dtype=dtype, device=device)
        distance = (_number("linspace", stop) - _number("linspace", start)) / (parts if parts > 0 else math.nan)
        return out, _step(array(distance, torch.float64, device), out)
    kind = default_dtype(float) if dtype is None else as_dtype(dtype)
    a, b = float(_number("linspace", start)), float(_number("linspace", stop))
    counted = kind if kind in INEXACT else torch.float64
    return cast(bind(_linspace, (), (a, b, count, bool(endpoint), SHORT[counted], str(new_place(device)))), kind)


def _step(step: Array, numbers: Array) -> Array:
    """Return the distance of numbers in their dtype, if that has fractions."""
    return cast(step, numbers.aval.dtype if numbers.aval.dtype in INEXACT else float_of(numbers.aval.dtype))


def _between(start: Any, stop: Any, count: int, parts: int, dtype: Any, axis: int) -> Array:
    """Return evenly spaced numbers between the elements of arrays; the last of all parts is exactly `stop`."""
    a, b = broadcast_arrays(*promote_arrays("linspace", start, stop, floating=True))
    if is_short(a.aval.dtype):  # it cannot number all places
        kind = a.aval.dtype if dtype is None else dtype
        return _between(cast(a, torch.float32), cast(b, torch.float32), count, parts, kind, axis)
    real_dtype = a.aval.dtype.to_real() if a.aval.complex else a.aval.dtype
    fractions = divide(arange(count, dtype=real_dtype, device=a.aval.device), float(max(parts, 1)))
    fractions = reshape(fractions, (count, *(1,) * a.ndim))
    out = add(multiply(a, subtract(1.0, fractions)), multiply(b, fractions))
    out = moveaxis(out, 0, normalize_axis("linspace", axis, out.ndim))
    if dtype is None:
        return out
    kind = as_dtype(dtype)
    return cast(out if kind in INEXACT else floor(out), kind)


def eye(n_rows: int, n_cols: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Return a matrix with ones on diagonal `k`, an integer or an array of one, and zeros elsewhere.

    >>> gt.eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    sizes = as_sizes("eye", (n_rows, n_rows if n_cols is None else n_cols))
    rows, columns = expand_dims(arange(sizes[0], device=device), 1), arange(sizes[1], device=device)
    if isinstance(k, Array) and (k.ndim or k.aval.floating or k.aval.dtype is torch.bool):
        raise ArgumentError(message("eye", "an integer as k", repr(k.aval), "Pass one integer."))
    offset = k if isinstance(k, Array) else max(-sizes[0], min(as_int("eye", "k", k), sizes[1]))
    rows = add(rows, offset) if isinstance(k, Array) or offset else rows
    kind = default_dtype(float) if dtype is None else as_dtype(dtype)
    return cast(equal(rows, columns), kind)
