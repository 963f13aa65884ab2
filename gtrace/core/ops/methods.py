"""The operators and methods of Array, and the operations that they call."""

from __future__ import annotations

import types
from typing import Any

from gtrace.core.base.dtypes import DType
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops import (
    arg_reduce,
    complex_parts,
    create,
    cumulative,
    elementwise,
    index,
    indexed_updates,
    linalg,
    logic,
    ndarray_methods,
    pad_tile,
    reduce,
    sorting,
    unique,
    variance,
)
from gtrace.core.ops import shape as shapes
from gtrace.core.ops.operands import deferring, of_operator
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import distinct

namespace: types.ModuleType | None = None
"""``gtrace.numpy``, which sets itself here, because it stands above this module."""

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the Python array API that ``gtrace.numpy`` follows."""


def _operator(function: Any) -> Any:
    return of_operator.get(function) or deferring(function)


def _swapped(function: Any) -> Any:
    operator = _operator(function)

    def swapped(self: Any, other: Any) -> Array:
        return operator(other, self)

    return swapped


def _comparing(function: Any) -> Any:
    operator = _operator(function)

    def comparing(self: Any, other: Any) -> Any:
        # as usual in Python, an array compares unequal to None and to strings
        return NotImplemented if other is None or isinstance(other, (str, bytes)) else operator(self, other)

    return comparing


class ArrayMethods:
    """Operators and methods of Array. Type checkers see a base class of Array."""

    __slots__ = ()

    __add__ = __radd__ = _operator(elementwise.add)
    __sub__ = _operator(elementwise.subtract)
    __rsub__ = _swapped(elementwise.subtract)
    __mul__ = __rmul__ = _operator(elementwise.multiply)
    __truediv__ = _operator(elementwise.divide)
    __rtruediv__ = _swapped(elementwise.divide)
    __floordiv__ = _operator(elementwise.floor_divide)
    __rfloordiv__ = _swapped(elementwise.floor_divide)
    __mod__ = _operator(elementwise.remainder)
    __rmod__ = _swapped(elementwise.remainder)
    __pow__ = _operator(elementwise.power)
    __rpow__ = _swapped(elementwise.power)
    __matmul__ = _operator(linalg.matmul)
    __rmatmul__ = _swapped(linalg.matmul)
    __neg__ = elementwise.neg
    __abs__ = elementwise.absolute
    __eq__ = _comparing(logic.equal)
    __ne__ = _comparing(logic.not_equal)
    __lt__ = _operator(logic.less)
    __le__ = _operator(logic.less_equal)
    __gt__ = _operator(logic.greater)
    __ge__ = _operator(logic.greater_equal)
    __and__ = __rand__ = _operator(logic.bitwise_and)
    __or__ = __ror__ = _operator(logic.bitwise_or)
    __xor__ = __rxor__ = _operator(logic.bitwise_xor)
    __lshift__ = _operator(logic.bitwise_left_shift)
    __rlshift__ = _swapped(logic.bitwise_left_shift)
    __rshift__ = _operator(logic.bitwise_right_shift)
    __rrshift__ = _swapped(logic.bitwise_right_shift)
    __invert__ = logic.bitwise_invert
    __getitem__ = index.getitem

    def __pos__(self: Any) -> Array:
        return distinct(self)

    @deferring
    def __divmod__(self: Any, other: Any) -> tuple[Array, Array]:
        return elementwise.floor_divide(self, other), elementwise.remainder(self, other)

    def __round__(self: Any, decimals: int = 0) -> Array:
        return elementwise.round(self, decimals)

    sum = reduce.sum
    mean = reduce.mean
    max = reduce.max
    min = reduce.min
    prod = reduce.prod
    any = reduce.any
    all = reduce.all
    var = variance.var
    std = variance.std
    argmax = arg_reduce.argmax
    argmin = arg_reduce.argmin
    cumsum = cumulative.cumsum
    cumprod = cumulative.cumprod
    argsort = sorting.argsort
    searchsorted = sorting.searchsorted
    sort = sorting.sort
    nonzero = unique.nonzero
    repeat = pad_tile.repeat
    diagonal = ndarray_methods.diagonal
    trace = ndarray_methods.trace
    ptp = ndarray_methods.ptp

    def reshape(self: Any, *shape: Any, order: Any = "C", copy: Any = None) -> Array:
        """Return the elements with another shape, given as sizes or as one tuple; see `gt.reshape`."""
        return shapes.reshape(self, shape[0] if len(shape) == 1 else shape, order)

    ravel = shapes.ravel
    transpose = shapes.transpose
    swapaxes = shapes.swapaxes
    squeeze = shapes.squeeze
    dot = linalg.dot
    clip = elementwise.clip
    round = elementwise.round
    astype = create.astype
    take = index.take

    def compress(self: Any, condition: Any, axis: int | None = None, *, size: int | None = None) -> Array:
        """Return the slices along `axis` (None: the elements) where `condition` holds."""
        return ndarray_methods.compress(condition, self, axis, size=size)

    def to_device(self: Any, device: Any, *, stream: Any = None) -> Array:
        """Return the array on `device`; there are no streams to choose."""
        if stream is not None:
            raise ArgumentError(message("to_device", "no stream", repr(stream), "Leave it out."))
        return create.to_device(self, device)

    conj = conjugate = complex_parts.conj

    @property
    def real(self: Any) -> Array:
        """The real part, or the array itself if it is real."""
        return complex_parts.real(self)

    @property
    def imag(self: Any) -> Array:
        """The imaginary part, or zeros for a real array."""
        return complex_parts.imag(self)

    def copy(self: Any) -> Array:
        """Return another array of the same value, which stays usable if this one is donated."""
        return create.own(self)

    def __copy__(self: Any) -> Array:
        return create.own(self)

    def __deepcopy__(self: Any, memo: Any) -> Array:
        return create.own(self)

    @property
    def T(self: Any) -> Array:  # noqa: N802 - the array API's name
        """The array with its axes reversed."""
        return shapes.permute_dims(self)

    @property
    def mT(self: Any) -> Array:  # noqa: N802 - the array API's name
        """The array with its last two axes exchanged."""
        return shapes.matrix_transpose(self)

    def __array_namespace__(self: Any, *, api_version: str | None = None) -> Any:
        """Return the module of array functions, ``gtrace.numpy``.

        Raises:
            ArgumentError: `api_version` is not supported.
        """
        if api_version not in (None, *API_VERSIONS):
            raise ArgumentError(message("array_namespace", f"one of {', '.join(API_VERSIONS)}", repr(api_version)))
        return namespace

    @property
    def at(self: Any) -> indexed_updates.At:
        """Functional updates: ``x.at[index].set(values)`` and others, see `gtrace.core.ops.indexed_updates.AtIndex`."""
        return indexed_updates.At(self)


def install() -> None:
    """Add the methods to Array. They call operations, which need Array, so this runs after both are defined."""
    for name, value in vars(ArrayMethods).items():
        if name not in ("__module__", "__doc__", "__slots__", "__dict__", "__weakref__", "__hash__"):
            setattr(Array, name, value)


install()


def _array_of(self: DType, data: Any = 0) -> Array:
    """Return `data` as an array of this dtype."""
    return create.array(data, self)


setattr(DType, "__call__", _array_of)  # noqa: B010 - as above
