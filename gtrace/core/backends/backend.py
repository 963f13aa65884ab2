"""Backends, which compile requests: Inductor, the other backends that torch knows, and those that users register."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import attrs
import torch

from gtrace.core.backends.executable import Compiled
from gtrace.core.backends.inductor.driver import compile_by, compile_request, compile_with
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.errors import ArgumentError, message

MODES = ("default", "reduce-overhead", "max-autotune")

__all__ = ["Backend", "register_backend"]


@runtime_checkable
class Backend(Protocol):
    """A compiler of requests, which runs in the process of the program.

    Programs select a backend by its `name`, which is part of the key of their compiled code. `open_sizes` says whether
    it can compile for open sizes (`CompileRequest.relations`).
    """

    @property
    def name(self) -> str: ...

    @property
    def open_sizes(self) -> bool: ...

    def compile(self, request: CompileRequest) -> Compiled:
        """Compile a request in this process. Whatever it raises, the program is interpreted then, with one warning."""
        ...


@attrs.frozen
class Known:
    """A backend as the engine knows it.

    Attributes:
        name, compile, open_sizes: see `Backend`.
        ahead_of_time: device -> whether the worker process can compile ahead of time, into code that is kept.
    """

    name: str
    compile: Callable[[CompileRequest], Compiled]
    open_sizes: bool = False
    ahead_of_time: Callable[[torch.device], bool] = lambda device: False


def _inductor_ahead_of_time(device: torch.device) -> bool:
    # a package for a GPU takes g++ 45 s, and a kernel Triton one; Inductor keeps kernels for later processes itself
    return device.type == "cpu"


_registered = {"inductor": Known("inductor", compile_request, True, _inductor_ahead_of_time)}


def register_backend(backend: Backend | Callable[..., Any], name: str | None = None) -> None:
    """Make a backend known by name, for ``gt.jit(f, backend=name)``.

    Args:
        backend: a `Backend`, or a function ``(module, example_inputs) -> callable`` such as `torch.compile` takes. It
            gets a ``torch.fx.GraphModule`` of aten calls and fake tensors of the inputs' types.
        name: of a function; its own name if missing.

    Raises:
        ArgumentError: neither of the two, or a name that is taken.

    >>> gt.register_backend(lambda module, inputs: module.forward, name="doc example")
    >>> gt.jit(lambda x: x + 1, backend="doc example")(gt.ones(2))
    Array([2., 2.], dtype=float32)
    """
    if isinstance(backend, Backend):
        made = Known(backend.name, compiler_errors()(backend.compile), backend.open_sizes)
    elif callable(backend):
        own = name or str(getattr(backend, "__name__", type(backend).__name__))
        made = Known(own, functools.partial(compile_by, backend))
    else:
        fix = "Pass a function of a graph module and example inputs."
        raise ArgumentError(message("register_backend", "a Backend or a function", type(backend).__name__, fix))
    if made.name in _registered:
        raise ArgumentError(message("register_backend", "a new name", repr(made.name), "Choose another."))
    _registered[made.name] = made


def find_backend(name: str) -> Known:
    """Return the backend of this name; raise an ArgumentError with the nearest name if there is none."""
    found = _registered.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    known = torch.compiler.list_backends(exclude_tags=())
    if name in known:
        return Known(name, functools.partial(compile_with, name))
    every = [*_registered, *known]
    near = difflib.get_close_matches(str(name), every, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(every)}."
    raise ArgumentError(f"[jit] expected a backend of torch.compiler.list_backends(), got {name!r}. {hint}")


def check_mode(mode: str) -> None:
    """Raise an ArgumentError for an unknown compile mode."""
    if mode not in MODES:
        raise ArgumentError(f"[jit] expected mode to be one of {', '.join(MODES)}, got {mode!r}. Pass one of them.")
