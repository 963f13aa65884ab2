"""Conversion of outside values to Arrays and back: NumPy, torch, DLPack, Python scalars and nested lists."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.devices import CPU, as_device, sent
from gtrace.core.base.dtypes import BIT_DTYPES, COMPLEX, FLOAT8, FLOATS, INEXACT, LONG, converted, number_held
from gtrace.core.base.errors import ArgumentError, DeviceError, DtypeError, RangeError, ShapeError, message
from gtrace.core.base.exact_keys import is_other_nan
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.trace.array import Array, clone, wrap
from gtrace.core.trace.force import whole
from gtrace.core.trace.promotion import NARROW, as_dtype, default_dtype, mixing, wide
from gtrace.core.trace.record import thread

__all__ = ["from_dlpack", "from_numpy", "from_torch"]

_PYTHON = (bool, int, float, complex)
_NUMPY = {numpy.dtype(name): dtype for dtype, name in LONG.items() if dtype not in BIT_DTYPES}

_OTHERS = frozenset([name for dtype, name in LONG.items() if dtype in BIT_DTYPES])
"""The names of dtypes that NumPy has from ml_dtypes, such as bfloat16."""


def from_torch(tensor: torch.Tensor) -> Array:
    """Return an Array that shares the memory of a torch tensor: do not write to the tensor afterwards.

    Use ``gt.array`` to copy. The tensor is detached from torch's autograd.

    Raises:
        ArgumentError: it is not a tensor, is sparse or quantized, or has no values of its own. FakeTensors, tensors in
            transforms of torch, and subclasses that wrap tensors have none.
        DtypeError: the dtype is not supported.
        DeviceError: the device is not supported, such as meta.

    >>> import torch
    >>> from_torch(torch.ones(2))
    Array([1., 1.], dtype=float32)
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(message("from_torch", "a torch.Tensor", type(tensor).__name__, "Use gt.asarray."))
    return received(wrap(plain_tensor("from_torch", tensor)))


def received(x: Array) -> Array:
    """Return an array from outside in the dtype that `x64` allows; raise if an integer is too large."""
    kind = NARROW.get(x.aval.dtype)
    if kind is None or wide():
        return x
    assert x._buf is not None
    if kind not in INEXACT and x._buf.numel():
        check_cast(_extremes(x._buf), kind)
    return wrap(_converted(x._buf, kind))


@without_modes
def _extremes(tensor: torch.Tensor) -> numpy.ndarray:
    host = tensor.cpu().numpy() if tensor.dtype is torch.uint64 else torch.stack(torch.aminmax(tensor)).cpu().numpy()
    return numpy.array([host.min(), host.max()])


@without_modes
def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return converted(tensor, dtype)


@without_modes
def plain_tensor(op: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's values as a plain tensor without autograd, sharing memory; it raises as `from_torch`."""
    kind = type(tensor).__name__
    if tensor.is_quantized or tensor.is_nested:
        got = "a quantized one" if tensor.is_quantized else "a nested one"
        raise ArgumentError(message(op, "a dense tensor", got, "Convert it to a plain torch.Tensor first."))
    if tensor.layout is not torch.strided:
        raise ArgumentError(message(op, "a dense tensor", str(tensor.layout), "Use tensor.to_dense() first."))
    as_dtype(tensor.dtype)
    as_device(tensor.device)
    if not _has_memory(tensor):
        fix = "Pass a plain torch.Tensor, outside of torch's own transforms and tracers."
        raise ArgumentError(message(op, "a tensor with values", f"a {kind} without values of its own", fix))
    return tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()


def _has_memory(tensor: torch.Tensor) -> bool:
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # such a subclass handles torch's calls itself, and has its values elsewhere or none
    try:
        return not tensor.numel() or tensor.data_ptr() != 0
    except RuntimeError:  # inside torch.func transforms
        return False


def from_numpy(value: numpy.ndarray) -> Array:
    """Return an Array that shares a NumPy array's memory if torch can: do not write to the array afterwards.

    Raises:
        ArgumentError: it is not a NumPy array.
        DtypeError: the dtype is not supported (strings, objects, dates, ...).

    >>> from_numpy(numpy.arange(3))
    Array([0, 1, 2], dtype=int64)
    """
    if not isinstance(value, numpy.ndarray):
        raise ArgumentError(message("from_numpy", "a numpy.ndarray", type(value).__name__, "Use gt.asarray."))
    if value.dtype == numpy.float64 and wide():
        mixing.note()
    return received(shared(value))


def shared(value: numpy.ndarray) -> Array:
    """Return an Array of a NumPy array in its own dtype, whatever the settings; see `from_numpy`."""
    if value.dtype not in _NUMPY:
        as_dtype(value.dtype)
    # only subclasses can be masked, and numpy.ma takes 4 ms to import
    if value.__class__ is not numpy.ndarray and isinstance(value, numpy.ma.MaskedArray):
        raise ArgumentError(message("from_numpy", "an array without a mask", "a masked array", "Use x.filled(value)."))
    flags, itemsize = value.flags, value.itemsize
    if not (flags.writeable and flags.aligned and value.dtype.isnative) or any(
        stride < 0 or stride % itemsize for stride in value.strides
    ):
        # a new array: a copy of an array with one row may keep its strides
        value = numpy.array(value, dtype=value.dtype.newbyteorder("="), order="C")
    return wrap(_from_numpy(value) if value.dtype in _NUMPY else _from_bits(value, as_dtype(value.dtype)))


@without_modes
def _from_bits(value: numpy.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(value.view(f"u{value.itemsize}")).view(dtype)


_from_numpy = without_modes(torch.from_numpy)


def from_dlpack(value: Any, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an Array that shares the memory of an object with ``__dlpack__``: do not write to the object afterwards.

    Args:
        device: the device of the Array; None: that of the object.
        copy: True: copy the memory. False: never copy, even for another device. None: copy only for another device.

    Raises:
        ArgumentError: it is not such an object, or does not export its memory.
        DtypeError: the dtype is not supported.

    >>> import torch
    >>> from_dlpack(torch.zeros(2))
    Array([0., 0.], dtype=float32)
    """
    if device is not None or copy:
        out = from_dlpack(value)
        place = out.aval.device if device is None else as_device(device)
        if place == out.aval.device and not copy:
            return out
        if copy is False:
            fix = "Allow the copy."
            raise ArgumentError(message("from_dlpack", f"memory on {place}", str(out.aval.device), fix))
        return wrap(_moved(whole(out, "dlpack"), place))
    if isinstance(value, Array):
        return value
    if not hasattr(value, "__dlpack__"):
        raise ArgumentError(
            message("from_dlpack", "an object with __dlpack__", type(value).__name__, "Use gt.asarray.")
        )
    if isinstance(value, torch.Tensor):
        return from_torch(value)
    if isinstance(value, numpy.ndarray):
        return from_numpy(value)
    try:
        tensor = torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ArgumentError(
            message("from_dlpack", "memory that torch can share", f"{type(value).__name__}: {reason}", "Copy it first.")
        ) from error
    return from_torch(tensor)


@without_modes
def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, copy=True)


@without_modes
def to_tensor(value: Any, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
    """Return nested lists of Python scalars as a new tensor; raise for ragged lists and other elements."""
    try:
        host = numpy.array(value)
    except ValueError as error:
        raise ShapeError(
            message("array", "nested lists of equal lengths", "ragged lists", "Pad them to one length.")
        ) from error
    except OverflowError as error:
        raise RangeError(message("array", "integers of at most 64 bits", "a larger one", "Use floats.")) from error
    if host.dtype.name in _OTHERS:
        dtype, host = dtype or as_dtype(host.dtype), host.astype(numpy.float32)
    if host.dtype.kind not in "biufc":
        strange = [x for x in host.flat if host.dtype.kind != "O" or not isinstance(x, _PYTHON)]
        if strange:
            raise DtypeError(message("array", "numbers", repr(strange[0]), "Convert the data to numbers first."))
        raise RangeError(message("array", "integers of at most 64 bits", "a larger one", "Use floats."))
    if host.size and (host.dtype.kind == "u" or _became_floats(host, value)):
        if dtype is torch.uint64:
            return torch.from_numpy(_as_uint64(value)).to(device)
        if int(host.max()) > torch.iinfo(torch.int64).max:
            raise RangeError(message("array", "integers of at most 64 bits", "a larger one", "Use floats."))
        host = host.astype(numpy.int64)
    if dtype is None:
        kind = host.dtype.kind
        dtype = (
            default_dtype(complex if kind == "c" else float) if kind in "cf" or not host.size else as_dtype(host.dtype)
        )
    check_cast(host, dtype)
    return sent(converted(torch.from_numpy(host), dtype), device)


def _as_uint64(value: Any) -> numpy.ndarray:
    try:
        return numpy.array(value, dtype=numpy.uint64)
    except OverflowError as error:
        fix = "Check the range."
        raise RangeError(message("array", "values from 0 to 2**64 - 1 for uint64", "another", fix)) from error


def _became_floats(host: numpy.ndarray, value: Any) -> bool:
    """Whether NumPy turned integers into floats, because no integer dtype represents all of them."""
    if host.dtype != numpy.float64 or not (numpy.abs(host) >= 2.0**63).any():
        return False
    return all(isinstance(x, int) for x in numpy.array(value, dtype=object).flat)


def check_cast(host: numpy.ndarray, dtype: torch.dtype) -> None:
    """Raise a DtypeError for host data that a dtype cannot represent.

    These are complex numbers for a real dtype, and NaN, infinities or integers out of range for an integer dtype.
    """
    if dtype in COMPLEX or dtype is torch.bool:
        return
    if host.dtype.kind == "c":
        got = f"{host.dtype} data"
        raise DtypeError(
            message("array", f"real numbers for {LONG[dtype]}", got, "Take the real part or the magnitude.")
        )
    if dtype in FLOATS or dtype in FLOAT8 or host.size == 0:
        return
    if host.dtype.kind == "f" and not numpy.isfinite(host).all():
        bad = host[~numpy.isfinite(host)].flat[0]
        raise DtypeError(
            message("array", f"finite values for {LONG[dtype]}", str(bad), "Use a float dtype or gt.where.")
        )
    info = torch.iinfo(dtype)
    # Python ints, because the largest int64 as a float is 2.0**63, which does not fit
    low, high = int(host.min()), int(host.max())
    if low < info.min or high > info.max:
        bad = low if low < info.min else high
        raise RangeError(
            message("array", f"values from {info.min} to {info.max} for {LONG[dtype]}", str(bad), "Use a wider dtype.")
        )


def python_scalar(x: Any) -> bool | int | float | complex | None:
    """Return `x` as a Python scalar if it is one or a NumPy scalar, else None."""
    if isinstance(x, _PYTHON):
        if type(x) in _PYTHON:
            return x
        # numpy.float64 is a subclass of float, numpy.complex128 of complex
        return float(x) if isinstance(x, float) else complex(x) if isinstance(x, complex) else int(x)
    if isinstance(x, numpy.generic):
        if x.dtype.name in _OTHERS:
            return float(x)
        if x.dtype.kind not in "biufc":
            raise DtypeError(message("array", "a number", repr(x), "Strings, dates and objects are not supported."))
        # numpy.longdouble.item() returns a numpy.longdouble
        return float(x) if x.dtype.kind == "f" else complex(x) if x.dtype.kind == "c" else x.item()
    return None


def typed_scalar(x: Any) -> Aval | None:
    """Return the aval of a scalar whose dtype takes part in promotion.

    With the setting `jax_results` these are NumPy scalars and Python bools, because JAX has no weak booleans.
    """
    known = x.__class__ is bool or (isinstance(x, numpy.generic) and (x.dtype in _NUMPY or x.dtype.name in _OTHERS))
    if not known or thread.in_rule or not config.current.jax_results:
        return None
    return aval((), as_dtype(getattr(x, "dtype", bool)))


def real_scalar(x: Any) -> bool | int | float | None:
    """Return a Python or NumPy number as a real Python number; None for other values."""
    value = None if type(x) is Array else python_scalar(x)
    return None if isinstance(value, complex) else value


def lift(op: str, x: Any, share: bool = False) -> Array:
    """Return operand `x` as an Array; Python scalars become weak 0-d Arrays, and objects their ``__jax_array__``.

    Args:
        share: share the memory of tensors and NumPy arrays, because they are read before anybody can write to them.

    Raises:
        ArgumentError: `x` is a list or another object, which needs an explicit conversion.
    """
    if type(x) is Array:
        return x
    value = python_scalar(x)
    if value is not None:
        kind = typed_scalar(x)
        if kind is not None:
            return wrap(new_tensor(scalar_operand(op, value, kind.dtype, kind.device).value, kind.dtype))
        scalar = scalar_operand(op, value, default_dtype(type(value)), as_device(None))
        return wrap(new_tensor(scalar.value, scalar.aval.dtype), weak=True)
    if isinstance(x, numpy.ndarray):
        # the user may write to the buffer before the pending operation runs
        return at_default(from_numpy(x if share else x.copy()))
    if isinstance(x, torch.Tensor):
        tensor = plain_tensor(op, x)
        return received(wrap(tensor if share else clone(tensor)))
    if hasattr(type(x), "__jax_array__"):
        return lift(op, x.__jax_array__(), share)
    fix = getattr(type(x), "instead", "Convert lists and other data with gt.array first.")
    raise ArgumentError(message(op, "arrays or numbers", type(x).__name__, fix))


@without_modes
def new_tensor(values: Any, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
    """Return Python numbers as a tensor, by default on the device of the setting `device`."""
    place = as_device(None) if device is None else device
    return torch.tensor(values, dtype=dtype) if place is CPU else sent(torch.tensor(values, dtype=dtype), place)


def new_place(device: Any) -> torch.device:
    """Return the device of a new array. In a captured function, the default is the device of its arguments."""
    place = thread.trace.place
    return as_device(device) if device is not None or place is None else place


def at_default(x: Array) -> Array:
    """Move an array of host data, which has a value, to the device of the setting `device`."""
    place = as_device(None)
    assert x._buf is not None
    return x if place == x.aval.device else wrap(_moved(x._buf, place))


def memory(x: torch.Tensor) -> int | None:
    """Return a key that tensors have in common if they share memory; None for a tensor without elements."""
    return x.untyped_storage().data_ptr() if x.numel() else None


def with_own_memory(tensors: Sequence[torch.Tensor], others: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors that share no memory with `others`, which may be written to; copy where needed."""
    taken = {memory(x) for x in others} - {None}
    return [clone(x) if memory(x) in taken else x for x in tensors]


@functools.cache
def scalar_aval(dtype: torch.dtype, device: torch.device) -> Aval:
    """Return the aval of a scalar operand."""
    return aval((), dtype, device, weak=True)


def scalar_operand(op: str, value: bool | int | float | complex, dtype: torch.dtype, device: torch.device) -> Scalar:
    """Return a Python scalar as an operand of `dtype`; raise if that cannot represent it."""
    if isinstance(value, complex):
        if dtype in COMPLEX:
            return Scalar(complex(value), scalar_aval(dtype, device))
        raise DtypeError(message(op, f"a real number for {LONG[dtype]}", str(value), "Use gt.complex64."))
    if dtype in INEXACT:
        try:
            number = complex(value) if dtype in COMPLEX else float(value)
            return Scalar(number_held(number, dtype), scalar_aval(dtype, device))
        except OverflowError:
            bits = f"an integer of {int(value).bit_length()} bits"
            raise RangeError(message(op, "a number that fits a float", bits, "Use a smaller number.")) from None
    if dtype is torch.bool:
        return Scalar(bool(value), scalar_aval(dtype, device))
    info = torch.iinfo(dtype)
    if not info.min <= value <= info.max:
        raise RangeError(
            message(op, f"a number from {info.min} to {info.max} for {LONG[dtype]}", str(value), "Use a wider dtype.")
        )
    return Scalar(int(value), scalar_aval(dtype, device))


def number_operand(
    op: str, value: bool | int | float | complex, dtype: torch.dtype, device: torch.device
) -> Scalar | Array:
    """Return a Python scalar as an operand of `dtype`. A NaN with its own sign or payload becomes an Array.

    A Scalar represents only one NaN. The Array is an input of the program, so its bits stay.
    """
    scalar = scalar_operand(op, value, dtype, device)
    if scalar.value == scalar.value or not is_other_nan(scalar.value):
        return scalar
    return wrap(new_tensor(scalar.value, dtype, device), weak=True)


def common_device(op: str, arrays: Sequence[Array]) -> torch.device:
    """Return the device of `arrays`; raise for several. Arrays of 0-d on the CPU, and weak ones, fit any."""
    devices = {x.aval.device for x in arrays if not (x.aval.weak and not x.aval.shape)}
    if len(devices) > 1:
        devices = {x.aval.device for x in arrays if x.aval.shape or x.aval.device.type != "cpu"}
    if len(devices) > 1:
        got = " and ".join(repr(x.aval) for x in arrays)
        raise DeviceError(message(op, "operands on one device", got, "Move one with .to(device)."))
    if not devices:  # only weak arrays: numbers, such as a loop count
        devices = {x.aval.device for x in arrays}
        devices = devices - {CPU} if len(devices) > 1 else devices
    return devices.pop() if devices else as_device(None)
