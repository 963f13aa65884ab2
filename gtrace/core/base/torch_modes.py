"""Shields torch calls from ambient modes: results depend on the program and its inputs alone.

autocast, inference mode, function modes and dispatch modes (such as a default device) belong to a thread. The default
dtype and deterministic algorithms belong to the process. gtrace restores their defaults while it runs torch.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import UnsupportedTorchError, UnsupportedTorchWarning
from gtrace.core.base.locks import new_lock

P = ParamSpec("P")
R = TypeVar("R")


def _query(internal: internals.Internal) -> Callable[[], int]:
    """Return the function that tells whether a mode is on."""
    try:
        return internal.get()
    except UnsupportedTorchError as error:
        text = f"{error}. Modes around a call, such as autocast, may change what gtrace computes."
        warnings.warn(text, UnsupportedTorchWarning, stacklevel=2)
        return lambda: 0


_function_modes = _query(internals.FUNCTION_MODES)
_dispatch_modes = _query(internals.DISPATCH_MODES)
_autocast = _query(internals.AUTOCAST)
_inference = torch.is_inference_mode_enabled
_default_dtype = torch.get_default_dtype
_deterministic = torch.are_deterministic_algorithms_enabled
_float32 = torch.float32

DEVICES = ("cpu", "cuda")


class _ProcessSettings:
    """torch's process-wide settings, which have their defaults while any thread needs that."""

    def __init__(self) -> None:
        self.users = 0
        self._strict = 0
        self._lock = new_lock()
        self._saved: tuple[torch.dtype, bool, bool] = torch.float32, False, False
        self._other_dtype = False  # whether the default dtype was ever changed from float32

    @contextlib.contextmanager
    def defaults(self) -> Iterator[None]:
        with self._lock:
            self._begin()
        try:
            yield
        finally:
            with self._lock:
                self._end()

    @contextlib.contextmanager
    def deterministic(self) -> Iterator[None]:
        """The defaults with deterministic algorithms, which other threads get too."""
        with self._lock:
            self._begin()
            self._strict += 1
            torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            with self._lock:
                self._strict -= 1
                torch.use_deterministic_algorithms(self._strict > 0)
                self._end()

    def default_dtype(self) -> torch.dtype:
        """Return the user's default dtype, also while a thread has replaced it by float32."""
        if not self._other_dtype:
            return _default_dtype()
        with self._lock:
            return self._saved[0] if self.users else _default_dtype()

    def _begin(self) -> None:
        if not self.users:
            self._saved = _default_dtype(), _deterministic(), torch.is_deterministic_algorithms_warn_only_enabled()
            self._other_dtype |= self._saved[0] is not _float32
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
        self.users += 1

    def _end(self) -> None:
        self.users -= 1
        if not self.users:
            dtype, deterministic, warn_only = self._saved
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


_process = _ProcessSettings()

deterministic_algorithms = _process.deterministic
callers_default_dtype = _process.default_dtype


def quiet() -> bool:
    """Whether no ambient mode can change the results of torch functions."""
    return not (
        _function_modes()
        or _dispatch_modes()
        or _inference()
        or _autocast()
        or _default_dtype() is not _float32
        or _deterministic()
        or _process.users
    )


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Turn every ambient mode off inside a ``with`` block."""
    with contextlib.ExitStack() as stack:
        while _function_modes() and internals.FUNCTION_MODES_OFF.available():
            stack.callback(internals.PUSH_FUNCTION_MODE.get(), internals.POP_FUNCTION_MODE.get()())
        if _dispatch_modes() and internals.DISPATCH_MODES_OFF.available():
            stack.enter_context(internals.NO_DISPATCH_MODES.get()())
        stack.enter_context(torch.inference_mode(False))
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                torch.set_autocast_enabled(device, False)
                stack.callback(torch.set_autocast_enabled, device, True)
        if _process.users or _default_dtype() is not _float32 or _deterministic():
            stack.enter_context(_process.defaults())
        yield


def without_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with every ambient mode of torch off while it runs."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        if quiet():
            return function(*args, **kwargs)
        with no_modes():
            return function(*args, **kwargs)

    return wrapped
