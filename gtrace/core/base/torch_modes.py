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


def _completed(leave: Callable[[], object]) -> None:
    """Call what undoes the beginning of a block; after an interrupt once more, which does what is left of it."""
    try:
        leave()
    except BaseException:
        leave()
        raise


class _ProcessSettings:
    """torch's process-wide settings, which have their defaults while any thread needs that.

    They follow from the blocks that threads are in. So an interrupt anywhere leaves nothing changed for good: whoever
    leaves or enters next sets what then holds.
    """

    def __init__(self) -> None:
        self.blocks: dict[object, bool] = {}
        """The blocks that threads are in, and whether each asks for deterministic algorithms."""
        self._lock = new_lock()
        self._saved: tuple[torch.dtype, bool, bool] | None = None
        self._other_dtype = False  # whether the default dtype was ever changed from float32

    def defaults(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the defaults."""
        return self._block(strict=False)

    def deterministic(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the defaults and deterministic algorithms, which other threads get too."""
        return self._block(strict=True)

    @contextlib.contextmanager
    def _block(self, strict: bool) -> Iterator[None]:
        # torch.use_deterministic_algorithms imports it, and with it sympy
        with contextlib.suppress(UnsupportedTorchError):  # a later torch may do without
            internals.PATCH_CONFIG.get()
        block = object()
        try:
            with self._lock:
                self.blocks[block] = strict
                self._set()
            yield
        finally:
            _completed(functools.partial(self._leave, block))

    def _leave(self, block: object) -> None:
        with self._lock:
            self.blocks.pop(block, None)
            self._set()

    def default_dtype(self) -> torch.dtype:
        """Return the user's default dtype, also while a thread has replaced it by float32."""
        if not self._other_dtype:
            return _default_dtype()
        with self._lock:
            return _default_dtype() if self._saved is None else self._saved[0]

    def _set(self) -> None:
        """Set what holds by the blocks."""
        if self._saved is None:
            if not self.blocks:
                return
            self._saved = _default_dtype(), _deterministic(), torch.is_deterministic_algorithms_warn_only_enabled()
            self._other_dtype |= self._saved[0] is not _float32
        wanted = (_float32, any(self.blocks.values()), False) if self.blocks else self._saved
        dtype, deterministic, warn_only = wanted
        if _default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        if (_deterministic(), torch.is_deterministic_algorithms_warn_only_enabled()) != (deterministic, warn_only):
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        if not self.blocks:
            self._saved = None


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
        or _process.blocks
    )


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Turn every ambient mode off inside a ``with`` block."""
    stack = contextlib.ExitStack()
    try:
        _leave_modes(stack)
        yield
    finally:
        _completed(stack.close)


def _leave_modes(stack: contextlib.ExitStack) -> None:
    while _function_modes() and internals.FUNCTION_MODES_OFF.available():
        stack.callback(internals.PUSH_FUNCTION_MODE.get(), internals.POP_FUNCTION_MODE.get()())
    if _dispatch_modes() and internals.DISPATCH_MODES_OFF.available():
        stack.enter_context(internals.NO_DISPATCH_MODES.get()())
    stack.enter_context(torch.inference_mode(False))
    for device in DEVICES:
        if torch.is_autocast_enabled(device):
            stack.callback(torch.set_autocast_enabled, device, True)
            torch.set_autocast_enabled(device, False)
    if _process.blocks or _default_dtype() is not _float32 or _deterministic():
        stack.enter_context(_process.defaults())


def without_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with every ambient mode of torch off while it runs."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        if quiet():
            return function(*args, **kwargs)
        with no_modes():
            return function(*args, **kwargs)

    return wrapped
