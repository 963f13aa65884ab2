"""Shapes with dtypes under JAX's names, and what is known to be zero or is left undefined in rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy

from gtrace.extend import FLOAT0, KnownZero, PRNGKeyArray, ShapeDtypeStruct, aval_of, constant, lift, ops
from gtrace.jax.meshes import undivided
from gtrace.tree import register_pytree_node


class ShapedArray(ShapeDtypeStruct):
    """The shape and the dtype of an array, with JAX's further arguments, which say nothing here.

    Attributes:
        weak_type: whether the dtype gives way to that of other operands.
        sharding: undivided, on a mesh without axes, because all axes of meshes are automatic.

    >>> ShapedArray((2, 3), "float32").sharding.spec
    P(None, None)
    >>> ShapedArray((2,), "float32"), ShapedArray((), "float32", weak_type=True)
    (ShapedArray(float32[2]), ShapedArray(float32[], weak_type=True))
    >>> ShapedArray((2,), "float32").to_tangent_aval(), ShapedArray((2,), "int32").to_tangent_aval()
    (ShapedArray(float32[2]), ShapedArray(float0[2]))
    """

    weak_type: bool
    vma: frozenset[str] = frozenset()

    def __init__(self, shape: Any, dtype: Any, weak_type: bool = False, **options: Any) -> None:
        empty = dtype == FLOAT0
        super().__init__(shape, "bool" if empty else dtype)
        object.__setattr__(self, "sharding", undivided(len(self.shape)))
        if empty:
            object.__setattr__(self, "dtype", FLOAT0)
        object.__setattr__(self, "weak_type", weak_type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapedArray) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.shape, str(self.dtype), self.weak_type

    def to_tangent_aval(self) -> ShapedArray:
        """Return the shape and dtype of tangents: the same for floats, of ``float0`` for others."""
        return ShapedArray(self.shape, self.dtype if self._floating else FLOAT0, self.weak_type)

    to_cotangent_aval = at_least_vspace = to_tangent_aval

    @property
    def _floating(self) -> bool:
        return self.dtype != FLOAT0 and self.dtype.kind in "fc"

    def strip_weak_type(self) -> ShapedArray:
        """Return the same with a dtype that does not give way."""
        return ShapedArray(self.shape, self.dtype)

    def update(self, shape: Any = None, dtype: Any = None, weak_type: bool | None = None, **options: Any) -> Any:
        """Return the same with other values for these attributes."""
        return ShapedArray(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def str_short(self, short_dtypes: bool = False, **options: Any) -> str:
        """Return the shape and dtype as text."""
        name = "float0" if self.dtype == FLOAT0 else self.dtype.name
        if short_dtypes:
            name = name.replace("float", "f").replace("uint", "u").replace("int", "i").replace("complex", "c")
        return f"{name}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self.str_short()

    def __repr__(self) -> str:
        return f"ShapedArray({self.str_short()}{', weak_type=True' if self.weak_type else ''})"


def get_aval(x: Any) -> Any:
    """Return the shape and the dtype of an array or number.

    >>> get_aval(1.0)
    ShapedArray(float32[], weak_type=True)
    """
    if isinstance(x, (Zero, UndefinedPrimal, SymbolicZero)):
        return x.aval
    if isinstance(x, ShapeDtypeStruct) or (isinstance(x, numpy.ndarray) and x.dtype == FLOAT0):
        return ShapedArray(x.shape, x.dtype, getattr(x, "weak_type", False))
    if isinstance(x, PRNGKeyArray):
        return ShapedArray(x.shape, x.dtype)
    found = lift("get_aval", x).aval
    return ShapedArray(found.shape, found.dtype, found.weak)


def tangent_aval(x: Any) -> ShapedArray:
    """Return the shape and the dtype of the tangent of an array, number or array of keys."""
    return ShapedArray(x.shape, FLOAT0) if isinstance(x, PRNGKeyArray) else get_aval(x).to_tangent_aval()


def raise_to_shaped(aval: Any, weak_type: bool | None = None) -> Any:
    """Return an aval as it is: none holds a value here."""
    return aval


def mapped_aval(size: int, axis: int | None, aval: Any) -> ShapedArray:
    """Return the shape and dtype of one example of a batch.

    >>> mapped_aval(3, 1, ShapedArray((2, 3), "float32"))
    ShapedArray(float32[2])
    """
    shape = list(aval.shape)
    if axis is not None:
        del shape[axis]
    return ShapedArray(shape, aval.dtype, getattr(aval, "weak_type", False))


def unmapped_aval(size: int, axis: int | None, aval: Any, *options: Any) -> ShapedArray:
    """Return the shape and dtype of a batch of examples.

    >>> unmapped_aval(3, 0, ShapedArray((2,), "float32"))
    ShapedArray(float32[3,2])
    """
    shape = list(aval.shape)
    if axis is not None:
        shape.insert(axis, size)
    return ShapedArray(shape, aval.dtype, getattr(aval, "weak_type", False))


def zeros_like_aval(aval: Any) -> Any:
    """Return an array of zeros; for ``float0`` one of NumPy's, without values.

    >>> zeros_like_aval(ShapedArray((2,), "float32"))
    Array([0., 0.], dtype=float32)
    """
    if aval.dtype == FLOAT0:
        return numpy.zeros(aval.shape, FLOAT0)
    return constant(0, aval_of("zeros_like_aval", aval))


@attrs.frozen
class Zero:
    """A tangent or cotangent that is known to be zero, in the rules of primitives.

    >>> import gtrace as gt
    >>> Zero.from_primal_value(gt.ones(2))
    Zero(ShapedArray(float32[2]))
    """

    aval: Any

    @staticmethod
    def from_primal_value(val: Any) -> Zero:
        """Return the zero tangent of a value."""
        return Zero(tangent_aval(val))

    def __repr__(self) -> str:
        return f"Zero({self.aval!r})"

    def instantiate(self) -> Any:
        """Return it as an array."""
        return zeros_like_aval(self.aval)


@attrs.frozen
class UndefinedPrimal:
    """An operand of which a linear function is transposed."""

    aval: Any


def _without_leaves(cls: type) -> None:
    build: Callable[[Any, Any], Any] = lambda aval, _: cls(aval)  # noqa: E731 - of the class at hand
    register_pytree_node(cls, lambda x: ((), x.aval), build)


_without_leaves(Zero)
_without_leaves(UndefinedPrimal)


class SymbolicZero(KnownZero):
    """A tangent or cotangent that is known to be zero, in rules under ``symbolic_zeros=True``.

    >>> SymbolicZero(ShapedArray((2,), "float32")).shape
    (2,)
    """

    __slots__ = ("aval",)

    def __init__(self, aval: Any) -> None:
        self.aval = aval

    @staticmethod
    def from_primal_value(val: Any) -> SymbolicZero:
        """Return the zero tangent of a value."""
        return SymbolicZero(tangent_aval(val))

    def __getattr__(self, name: str) -> Any:
        if name == "aval":
            raise AttributeError(name)
        return getattr(self.aval, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicZero) and self.aval == other.aval

    def __hash__(self) -> int:
        return hash(self.aval)

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval})"


def is_undefined_primal(x: Any) -> bool:
    """Return whether something stands for an operand of which a linear function is transposed.

    >>> is_undefined_primal(1.0), is_undefined_primal(UndefinedPrimal(get_aval(1.0)))
    (False, True)
    """
    return isinstance(x, UndefinedPrimal)


def instantiate_zeros(tangent: Any) -> Any:
    """Return a tangent, with an array for one that is known to be zero."""
    return tangent.instantiate() if isinstance(tangent, Zero) else tangent


def add_tangents(x: Any, y: Any) -> Any:
    """Return the sum of two tangents, of which some may be known to be zero."""
    if isinstance(x, Zero):
        return y
    return x if isinstance(y, Zero) else ops.add(x, y)
