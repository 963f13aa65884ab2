"""Python functions on the CPU of the process that has the arrays: this one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.jax.device_functions import devices
from gtrace.jax.experimental.colocated_python import func
from gtrace.jax.sharding import Mesh

__all__ = ["colocated_cpu_devices", "colocated_python", "colocated_python_class"]


def colocated_cpu_devices(devices_or_mesh: Any) -> Any:
    """Return the CPU of the process of each device; for a mesh, a mesh of the same processes.

    >>> import gtrace.jax as jax
    >>> colocated_cpu_devices(jax.devices("cpu"))
    [CpuDevice(id=0)]
    """
    if isinstance(devices_or_mesh, Mesh):
        return devices_or_mesh  # its members are processes
    given: Sequence[Any] = list(devices_or_mesh)
    return [device if device.platform == "cpu" else devices("cpu")[0] for device in given]


def colocated_python(fun: Callable[..., Any]) -> func.Colocated:
    """Return a Python function as one that runs where its arguments are: in this process.

    >>> import gtrace as gt
    >>> double = colocated_python(lambda x: x * 2).specialize(out_specs_fn=lambda x: x)
    >>> double(gt.ones(2)).tolist()
    [2.0, 2.0]
    """
    return func.Colocated(fun)


def colocated_python_class(cls: type[Any]) -> type[Any]:
    """Return a class whose object is made at the first call of a method, in this process.

    >>> Counter = colocated_python_class(type("Counter", (), {"next": lambda self, x: x + 1}))
    >>> Counter().next(2)
    3
    """

    class Wrapped:
        """An object that is made when it is used."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._make = functools.cache(lambda: cls(*args, **kwargs))

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or not callable(getattr(cls, name, None)):
                raise AttributeError(f"{cls.__name__!r} has no method {name!r}")
            return func.Colocated(lambda *args, **kwargs: getattr(self._make(), name)(*args, **kwargs))

    Wrapped.__name__, Wrapped.__qualname__, Wrapped.__doc__ = cls.__name__, cls.__qualname__, cls.__doc__
    return Wrapped
