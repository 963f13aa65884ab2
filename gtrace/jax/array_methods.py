"""Methods and attributes of JAX's arrays and jitted functions, which ours get when ``gtrace.jax`` is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gtrace import config
from gtrace import numpy as names
from gtrace.distributed.sharding import NamedSharding
from gtrace.extend import (
    INTEGERS,
    Array,
    Aval,
    Donation,
    Jitted,
    ShapeError,
    as_dtype,
    call_torch,
    cast,
    give_away,
    lift,
    materialize,
    message,
    ops,
    thread,
    value_of,
)
from gtrace.jax import complex_order, meshes, stages
from gtrace.jax.avals import ShapedArray
from gtrace.jax.device_functions import Device
from gtrace.jax.division import OPERATORS
from gtrace.jax.meshes import SingleDeviceSharding
from gtrace.sharding import Shard


def device_of(x: Array) -> Device:
    """Return the device of an Array, under JAX's names of its properties."""
    place = x.aval.device
    return Device("cpu", 0, "cpu") if place.type == "cpu" else Device("gpu", place.index or 0, str(place))


def device(self: Array) -> Device | torch.device:
    """Return the device that holds the array; with the setting `jax_results`, under JAX's names of its properties.

    >>> with gt.config(jax_results=True):
    ...     gt.ones(2).device.platform
    'cpu'
    """
    return device_of(self) if config.current.jax_results else self.aval.device


def devices(self: Array) -> set[Device]:
    """Return the devices that hold the array: one."""
    return {device_of(self)}


def dot(self: Array, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Return ``jnp.dot(self, b)``."""
    if preferred_element_type is None:
        return ops.dot(self, b)
    kind = as_dtype(preferred_element_type)
    return ops.dot(cast(self, kind), cast(lift("dot", b), kind))


def sharding(self: Array) -> Any:
    """Return the layout of the array: that of `jax.device_put`, or one device."""
    found = SHARDING(self)
    plain = found is not None or not config.current.jax_results
    return found if plain else SingleDeviceSharding(device_of(self))


SHARDING: Any = vars(Array)["sharding"].fget


def delete(self: Array) -> None:
    """Give the memory back now. A later use of the array raises a RuntimeError."""
    if type(self._trace) is not Donation:
        materialize(self, "delete")
        give_away([self], [0], [], "x.delete()")


def contains(self: Array, value: Any) -> bool:
    """Return whether one of the elements of a vector equals a number.

    Raises:
        ShapeError: the array is no vector, or the value no scalar.
        ArgumentError: it is no number.
    """
    x = lift("contains", value)
    if self.ndim != 1 or x.ndim:
        got = f"{self.aval!r} and {x.aval!r}"
        raise ShapeError(message("contains", "a vector and a scalar", got, "Use jnp.any(x == value)."))
    return bool(ops.any(ops.equal(self, x)))


def byteswap(self: Array) -> Array:
    """Return the array with the bytes of each number in the other order.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.array([1, 256], "int16").byteswap()
    Array([256,   1], dtype=int16)
    """
    return call_torch("byteswap", _swapped, self)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    size = x.dtype.itemsize // (2 if x.is_complex() else 1)
    if not x.numel() or size == 1:
        return x.clone()
    rows = x.contiguous().reshape(-1).view(torch.uint8).reshape(-1, size)
    return rows.flip(-1).reshape(-1).view(x.dtype).reshape(x.shape)


def is_ready(self: Array) -> bool:
    """Return whether the value has been computed."""
    return value_of(self) is not None


def searchsorted(self: Array, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Array:
    """Return ``jnp.searchsorted(self, v, side, sorter)``."""
    found = names.searchsorted(self, v, side, sorter)
    return found.astype("int32") if config.current.jax_results else found


def _running(name: str) -> Callable[..., Array]:
    """Return the method for running sums or products, which in JAX keep the dtype of integers."""
    method = getattr(Array, name)

    @functools.wraps(method)
    def call(self: Array, axis: int | None = None, dtype: Any = None, **options: Any) -> Array:
        keeps = config.current.jax_results and not thread.in_rule and self.aval.dtype in INTEGERS
        return method(self, axis, self.dtype if dtype is None and keeps else dtype, **options)

    return call


def aval_text(self: Aval) -> str:
    """Return the shape and dtype of an array as JAX prints them, with the setting `jax_results`.

    >>> with gt.config(jax_results=True):
    ...     print(gt.ones((2, 3), dtype="float32").aval)
    float32[2,3]
    """
    return str(ShapedArray(self.shape, self.dtype)) if config.current.jax_results else repr(self)


METHODS: dict[str, Any] = {
    **OPERATORS, **complex_order.METHODS, "cumsum": _running("cumsum"), "cumprod": _running("cumprod"),
    "device": property(device), "devices": devices, "dot": dot, "is_ready": is_ready,
    "sharding": property(sharding), "delete": delete, "__contains__": contains, "byteswap": byteswap,
    "copy_to_host_async": lambda self: None, "is_deleted": lambda self: type(self._trace) is Donation,
    "on_device_size_in_bytes": lambda self: self.nbytes,
    "weak_type": property(lambda self: self.aval.weak),
    "platform": lambda self: device_of(self).platform,
    "is_fully_addressable": property(lambda self: True), "is_fully_replicated": property(lambda self: True),
    "committed": property(lambda self: False), "global_shards": property(lambda self: self.addressable_shards),
    "argpartition": lambda self, kth, axis=-1: names.argpartition(self, kth, axis),
    "choose": lambda self, choices, out=None, mode="raise": names.choose(self, choices, mode=mode),
    "searchsorted": searchsorted,
    "tobytes": lambda self, order="C": self.numpy().tobytes(order),
    "unsafe_buffer_pointer": lambda self: materialize(self, "numpy").data_ptr(),
}  # fmt: skip


def add() -> None:
    """Put these names on Array, those of `stages` on jitted functions and their stages, and `LAYOUTS` on layouts."""
    for kind, methods in (
        (Array, METHODS),
        (Jitted, stages.METHODS),
        (NamedSharding, meshes.LAYOUTS),
        *stages.STAGES.items(),
    ):
        for name, value in methods.items():
            setattr(kind, name, value)
    Shard.device = property(lambda self: device_of(self.data))  # type: ignore[attr-defined]
    Aval.weak_type = property(lambda self: self.weak)  # type: ignore[attr-defined]
    Aval.__str__ = aval_text  # type: ignore[method-assign, assignment]
