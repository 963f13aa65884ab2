"""The names of ``jax.ref``: cells that hold an Array and can be assigned to.

Arrays never change: an assignment puts a new Array into the cell. A cell belongs to the traced function that made it.
"""

from __future__ import annotations

from typing import Any

import gtrace as gt
from gtrace.errors import LeakError
from gtrace.extend import ArgumentError, Array, message, thread

__all__ = ["AbstractRef", "Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]


class Ref:
    """A cell with an Array. ``ref[...]`` reads, and ``ref[...] = x`` assigns, by any index.

    A function under `jit` and a loop's body may read a cell from outside. Assigning to it there is an error: return the
    new value, or carry it. No transform takes a cell as an argument.

    >>> import gtrace.jax as jax
    >>> ref = jax.new_ref(jax.numpy.zeros(2))
    >>> ref[1] = 3.0
    >>> ref[...]
    Array([0., 3.], dtype=float32)
    """

    def __init__(self, value: Array) -> None:
        self._value: Array | None = value
        self._place = thread.trace.capture

    def _known(self) -> Array:
        if self._value is None:
            raise ArgumentError(message("Ref", "a cell with an array", "one that was frozen or freed", "Make another."))
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._known().shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self._known().dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        return self._known().ndim

    def __getitem__(self, index: Any) -> Array:
        return self._known()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._assign(self._known().at[index].set(value))

    def addupdate(self, index: Any, value: Any) -> None:
        """Add to the elements at an index."""
        self._assign(self._known().at[index].add(value))

    def _assign(self, value: Array) -> None:
        if thread.trace.capture is not self._place:
            where = self._place or "outside of traced functions"
            fix = "Return the new value, or carry it through the loop."
            raise LeakError(message("Ref", f"an assignment where the cell was made, {where}",
                                    f"one in {thread.trace.capture}", fix))  # fmt: skip
        self._value = value

    def _take(self) -> Array:
        value, self._value = self._known(), None
        return value

    def __repr__(self) -> str:
        return f"Ref({self._value!r})"


AbstractRef = Ref


def new_ref(init_val: Any, *, memory_space: Any = None, kind: Any = None) -> Ref:
    """Return a cell with an array."""
    return Ref(gt.array(init_val))


def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """Return a cell for an array of a shape and dtype, with zeros."""
    return Ref(gt.zeros(ty.shape, ty.dtype))


def freeze(ref: Ref) -> Array:
    """Return the array of a cell, which must not be used any more."""
    return ref._take()


def free_ref(ref: Ref) -> None:
    """Empty a cell, which must not be used any more."""
    ref._take()


def get(ref: Ref, idx: Any = ...) -> Array:
    """Return the elements of a cell at an index."""
    return ref[idx]


def swap(ref: Ref, idx: Any, value: Any) -> Array:
    """Assign to a cell; return its old value."""
    before = ref[idx]
    ref[idx] = value
    return before


def set(ref: Ref, idx: Any, value: Any) -> None:  # noqa: A001 - JAX's name
    """Assign to a cell at an index."""
    ref[idx] = value


def addupdate(ref: Ref, idx: Any, x: Any) -> None:
    """Add to a cell at an index."""
    ref.addupdate(idx, x)
