"""torch's default dtype inside a traced torch function.

The setting belongs to the process, and gtrace sets it to float32 (`gtrace.core.base.torch_modes`). It stays float32
while a function is traced. Here, results that depend on the default get the caller's dtype: in the function's calls of
torch's constructors, and in torch's calls of operators.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import ArgumentError, message
from gtrace.interop.aten.call_types import results_on_meta

_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
"""Operators that compare in the default dtype if integers meet a floating number, and return booleans."""

_OF_DATA = torch.tensor, torch.as_tensor, torch.asarray
_OF_BRANCHES = torch.where, torch.Tensor.where


@contextlib.contextmanager
def default_dtype_of_caller(default: torch.dtype) -> Iterator[None]:
    """Apply another default dtype to this thread's torch calls. One thread at a time may be in this context."""
    if default is torch.float32:
        yield
        return
    owner, original = threading.get_ident(), torch.get_default_dtype

    def get_default_dtype() -> torch.dtype:
        return default if threading.get_ident() == owner else original()

    torch.get_default_dtype = get_default_dtype
    try:
        with _Constructors(default):
            yield
    finally:
        torch.get_default_dtype = original


class _Constructors(TorchFunctionMode):
    """Sets dtypes that torch chooses before it calls an operator."""

    def __init__(self, default: torch.dtype) -> None:
        super().__init__()
        self.default = default

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _OF_DATA:
            data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
            given = kwargs.get("dtype", args[1] if len(args) > 1 else None)
            if given is None and not isinstance(data, (torch.Tensor, numpy.ndarray)):
                kwargs = {**kwargs, "dtype": _dtype_of(data, self.default)}
        elif not any(_inexact(x) for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)):
            name = getattr(function, "__name__", "")
            if function in _OF_BRANCHES:
                args, kwargs = _mapped(self._number, args), _mapped(self._number, kwargs)
            elif function is torch.result_type:
                args, kwargs = _mapped(self._number, args), _mapped(self._number, kwargs)
            elif name.startswith("fft_") and name.rpartition("_")[2] not in ("fftshift", "ifftshift"):
                cast = _cast_to(self.default)
                args, kwargs = _mapped(cast, args), _mapped(cast, kwargs)
        return function(*args, **kwargs)

    def _number(self, x: Any) -> Any:
        """Return a floating number as a tensor of the default dtype."""
        return torch.tensor(x, dtype=_dtype_of(x, self.default)) if isinstance(x, (float, complex)) else x


def with_default_dtype(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], default: torch.dtype
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return an operator's arguments with an explicit default dtype, if its results depend on the default.

    Args:
        default: the caller's default dtype; that of the process is float32.

    Raises:
        ArgumentError: the results depend on the default dtype, but no argument can set it.
    """
    leaves = _leaves((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    schema = function._schema
    if schema.is_mutable or any(map(_inexact, tensors)) or any(isinstance(x, torch.dtype) for x in leaves):
        return args, kwargs
    with torch.no_grad(), internals.NO_DISPATCH_MODES.get()():
        try:
            found = results_on_meta(function, _mapped(_on_meta, args), _mapped(_on_meta, kwargs))
        except NotImplementedError:
            found = function(*_mapped(_zeros, args), **_mapped(_zeros, kwargs))
    results = [x for x in _leaves(found) if isinstance(x, torch.Tensor)]
    follows = next((x for x in results if _inexact(x)), None)
    name = schema.name.partition("::")[2]
    compared = name in _COMPARISONS and any(isinstance(x, float) for x in leaves)
    if follows is None and not compared:
        return args, kwargs
    if tensors:
        cast = _cast_to(default)
        return _mapped(cast, args), _mapped(cast, kwargs)
    if not any(a.name == "dtype" for a in schema.arguments):
        fix = "Call torch.set_default_dtype(torch.float32) before."
        raise ArgumentError(message(f"torch.{name}", "float32 as torch's default dtype", str(default), fix))
    assert follows is not None
    return args, {**kwargs, "dtype": default.to_complex() if follows.is_complex() else default}


def _dtype_of(data: Any, default: torch.dtype) -> torch.dtype:
    """Return the dtype that torch infers from numbers, arrays and sequences of them."""
    if isinstance(data, float):
        return default
    if isinstance(data, complex):
        return default.to_complex()
    if isinstance(data, (list, tuple)):
        if not data:
            return default
        found = _dtype_of(data[0], default)
        for each in data[1:]:
            found = torch.promote_types(found, _dtype_of(each, default))
        return found
    return data.dtype if isinstance(data, torch.Tensor) else torch.tensor(data).dtype


def _inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _on_meta(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _zeros(x: Any) -> Any:
    return torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x


def _cast_to(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda x: x.to(dtype) if isinstance(x, torch.Tensor) else x


def _mapped(f: Callable[[Any], Any], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)([_mapped(f, each) for each in value])
    return {key: _mapped(f, each) for key, each in value.items()} if isinstance(value, dict) else f(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, (list, tuple)) else [value]
