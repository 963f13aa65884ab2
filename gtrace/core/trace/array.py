"""The immutable array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import attrs
import numpy as np
import torch

from gtrace.core.base.dtypes import BIT_DTYPES, BY_TORCH, LONG, DType
from gtrace.core.base.errors import (
    DtypeError,
    ImmutableError,
    ShapeError,
    message,
    user_location,
)
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.base.tree.treedef import leaf_class
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.op import Leaf
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.partitioner import processes
from gtrace.core.trace.array_base import ArrayBase
from gtrace.core.trace.array_text import array_text, elements_text
from gtrace.core.trace.force import layout, materialize, refuse_followed, whole
from gtrace.core.trace.record import SETTLED, Donation

__all__ = ["Array"]


@attrs.frozen(eq=False)
class Shard:
    """The part of an array that this process holds.

    Attributes:
        data: the part, as an array of this process alone.
        index: its index in the array.
        rank: the process.
        replica_id: its number among the equal parts of processes, counted from 0.
    """

    data: Array
    index: tuple[slice, ...]
    rank: int
    replica_id: int


@leaf_class
class Array(ArrayBase):
    """An immutable, lazily computed array.

    Operations on Arrays are recorded. Reading a value (``float``, ``print``, ``numpy``, ``gt.eval`` ...) runs the
    recorded operations. Make Arrays with ``gt.array``, ``gt.zeros`` and similar functions.

    Attributes:
        aval: shape, dtype and device.
    """

    __slots__ = ()

    # NumPy leaves ndarray + Array to Array.__radd__; its functions convert an Array by __array__
    __array_priority__ = 1000

    def __init__(self, *_: Any) -> None:
        raise TypeError("gt.Array is not made by calling it. Use gt.array, gt.asarray, gt.zeros, ...")

    def __init_subclass__(cls, of_keys: bool = False) -> None:
        if not of_keys:
            raise TypeError("gt.Array cannot be subclassed. Wrap it in a pytree class instead (gt.tree.register).")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        """The element type. It equals torch's and NumPy's dtype, and its name."""
        return BY_TORCH[self.aval.dtype]

    @property
    def device(self) -> torch.device:
        """The device of the value."""
        return self.aval.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.aval.nbytes

    @property
    def sharding(self) -> NamedSharding | None:
        """The part that each process holds; None: the value belongs to this process alone.

        Reading it computes the value, because the layouts of results follow from the whole program.
        """
        if self._buf is None and self._trace.capture is None:
            materialize(self, "sharding")
        return self.aval.sharding

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process holds: one, or none if it is not in the mesh."""
        data, rank = wrap(materialize(self, "sharding")), processes.rank()
        sharding = self.aval.sharding
        if sharding is None:
            return [Shard(data, tuple(slice(0, n) for n in self.shape), rank, 0)]
        if rank not in sharding.mesh.ranks:
            return []
        index = sharding.index(self.shape, rank)
        equal = [other for other in sharding.mesh.ranks if sharding.index(self.shape, other) == index]
        return [Shard(data, index, rank, equal.index(rank))]

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.aval.dtype.itemsize

    # reading values

    def item(self, *index: Any) -> bool | int | float | complex:
        """Return the only element, or the one at `index`, as a Python scalar.

        Args:
            index: an index into the flattened array, or one index per axis, also as one tuple.

        Raises:
            ValueError: there is not exactly one element.
        """
        if len(index) == 1 and isinstance(index[0], tuple):
            return self.item(*index[0])
        if index:
            return (self.reshape(-1)[index[0]] if len(index) == 1 else self[index])._item("item")
        return self._item("item")

    def tolist(self) -> Any:
        """Return the elements as nested Python lists."""
        return _to_list(whole(self, "tolist"))

    def numpy(self) -> np.ndarray:
        """Return the value as a read-only NumPy array; on the CPU it shares memory."""
        return self._numpy("numpy")

    def to_torch(self, *, copy: bool = True) -> torch.Tensor:
        """Return the value as a torch tensor.

        With ``copy=False`` the tensor shares memory with this Array. Do not write to it: Arrays must never change.
        """
        self._refuse_followed("to_torch")
        tensor = whole(self, "to_torch")
        return clone(tensor) if copy else _detach(tensor)

    def block_until_ready(self) -> Array:
        """Compute the value now; returns self."""
        tensor = materialize(self, "block_until_ready")
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        return self

    def _item(self, cause: str) -> Any:
        if self.aval.size != 1:
            raise ShapeError(
                f"[{cause}] expected an array with one element, got {self.aval!r}. Reduce or index it first."
                f" (at {user_location()})"
            )
        return _to_item(whole(self, cause))

    def _refuse_followed(self, cause: str) -> None:
        fix = (
            "Derivatives do not pass through NumPy and torch: use gt's function, such as gt.sin for np.sin; for the"
            " value alone convert gt.stop_gradient(x)."
        )
        refuse_followed(self, cause, fix)

    def _numpy(self, cause: str) -> np.ndarray:
        self._refuse_followed(cause)
        tensor = whole(self, cause)
        if tensor.dtype in BIT_DTYPES:
            name = LONG[tensor.dtype]
            bits = _to_numpy(_bits(tensor))
            bits.flags.writeable = False  # its owner can be reached as the base of the result
            try:
                out = bits.view(name)
            except TypeError:
                fix = "Use x.astype(gt.float32) first, or import ml_dtypes."
                raise DtypeError(f"[numpy] expected a dtype that NumPy has, got {name}. {fix}") from None
        else:
            out = _to_numpy(tensor)
        out.flags.writeable = False
        return out

    def __bool__(self) -> bool:
        return bool(self._item("bool"))

    def __int__(self) -> int:
        return int(self._item("int"))

    def __float__(self) -> float:
        return float(self._item("float"))

    def __complex__(self) -> complex:
        return complex(self._item("complex"))

    def __index__(self) -> int:
        if self.aval.floating or self.aval.dtype is torch.bool:
            raise TypeError(f"[index] expected an integer array, got {self.aval!r}. Use x.astype(gt.int64).")
        return int(self._item("index"))

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("[len] expected an array with a dimension, got a 0-d array. Use .size.")
        return self.aval.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.aval.shape:
            raise TypeError("[iter] expected an array with a dimension, got a 0-d array. Use x.item().")
        return iter([self[k] for k in range(self.aval.shape[0])])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = self._numpy("numpy")
        if dtype is not None and out.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"[numpy] expected a dtype that needs no copy, got {dtype} for {out.dtype}. Allow the copy."
                )
            return out.astype(dtype)
        return out.copy() if copy else out

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """Return a copy: a consumer may write to it, as torch does even if the memory is marked read-only."""
        if copy is False:
            fix = "Allow the copy, or use x.numpy(), which is read-only."
            raise BufferError(message("dlpack", "copy=True or None, as Arrays never change", "copy=False", fix))
        self._refuse_followed("dlpack")
        return clone(whole(self, "dlpack")).__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.aval.device).__dlpack_device__()

    def __repr__(self) -> str:
        if self._buf is None and self._trace.__class__ is Donation:
            return f"Donated({LONG[self.aval.dtype]}{list(self.aval.shape)})"
        if self._buf is None and self._trace.capture is not None:
            return f"Traced({LONG[self.aval.dtype]}{list(self.aval.shape)})"
        return array_text(_to_numpy(whole(self, "print")), LONG[self.aval.dtype], weak=self.aval.weak)

    def __str__(self) -> str:
        if self._buf is None and self._trace.capture is not None:
            return repr(self)
        return elements_text(_to_numpy(whole(self, "print")), LONG[self.aval.dtype])

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(self._item("format"), spec)

    # immutability

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ImmutableError(
            f"gt.Array is immutable. Instead of x[idx] = y use x = x.at[idx].set(y) (at {user_location()})"
        )

    def __delitem__(self, index: Any) -> NoReturn:
        raise ImmutableError(f"gt.Array is immutable. Build the array you want with indexing (at {user_location()})")

    def backward(self) -> NoReturn:
        """Raise, because gradients are functions in gtrace."""
        raise ImmutableError(
            "gt.Array has no .backward(). Write the loss as a function f(params) and use gt.value_and_grad(f)(params)"
            f" (at {user_location()})"
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def _from_pickle(cls, value: np.ndarray, dtype: str | None, device: str | None) -> Array:
        return wrap(_from_numpy(value, dtype, device))

    def __reduce__(self) -> Any:
        tensor = whole(self, "pickle")
        device = None if self.aval.device.type == "cpu" else str(self.aval.device)
        bits = tensor.dtype in BIT_DTYPES
        name = LONG[tensor.dtype] if bits else None
        return Array._from_pickle, (_to_numpy(_bits(tensor) if bits else tensor), name, device)


_new = object.__new__


@without_modes
def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    host = (tensor.float() if tensor.dtype in BIT_DTYPES else tensor).cpu()
    if host.untyped_storage().resizable():
        # torch now treats this memory as foreign; see `gtrace.core.trace.donation`
        host.made_by_torch = True  # type: ignore[attr-defined]
    return host.numpy()


@without_modes
def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(BIT_DTYPES[tensor.dtype])


@without_modes
def _from_numpy(value: np.ndarray, dtype: str | None, device: str | None) -> torch.Tensor:
    tensor = torch.from_numpy(value.copy())
    if dtype is not None:
        tensor = tensor.view(getattr(torch, dtype))
    return tensor if device is None else tensor.to(device)


_to_list = without_modes(torch.Tensor.tolist)
_to_item = without_modes(torch.Tensor.item)
clone = without_modes(torch.Tensor.clone)
_detach = without_modes(torch.Tensor.detach)


def wrap(tensor: torch.Tensor, weak: bool = False) -> Array:
    """Return an Array of this tensor itself, which nobody may write to afterwards."""
    return wrap_as(tensor, aval(tuple(tensor.shape), tensor.dtype, tensor.device, weak))


def wrap_as(tensor: torch.Tensor, a: Aval, kind: Leaf | None = None) -> Array:
    """Return an Array of this tensor itself, with a known aval and perhaps a known `Leaf`."""
    out: Array = _new(Array)
    out.aval = a
    out._trace = SETTLED
    out._number = -1
    out._buf = tensor
    out._leaf = kind
    return out


def fresh(x: Array) -> Array:
    """Return another Array with the value of `x`; gradients distinguish the two."""
    out: Array = _new(Array)
    out.aval = x.aval
    out._trace = SETTLED
    out._number = -1
    out._buf = x._buf
    # cached on `x`, because each call of a gradient copies it again
    out._leaf = x._leaf or layout(x)
    return out
