"""``jax._src.config`` for JAX's tests: its states are the settings of ``gtrace.jax.config``, where that has them."""

from __future__ import annotations

import contextlib
import enum
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any


class NumpyDtypePromotion(enum.StrEnum):
    """Values of jax_numpy_dtype_promotion."""

    STANDARD, STRICT = "standard", "strict"


class LegacyPrngKeyState(enum.StrEnum):
    """Values of jax_legacy_prng_key."""

    ALLOW, WARN, ERROR = "allow", "warn", "error"


class ExplicitX64Mode(enum.IntEnum):
    """Values of jax_explicit_x64_dtypes."""

    WARN, ERROR, ALLOW = 1, 2, 3


class EffortLevel(enum.Enum):
    """How much XLA optimizes."""

    UNKNOWN, O0, O1, O2, O3 = 0, 9, 19, 29, 39


_KINDS: dict[str, Callable[[Any], Any]] = {
    "jax_numpy_dtype_promotion": NumpyDtypePromotion, "jax_explicit_x64_dtypes": ExplicitX64Mode,
}  # fmt: skip

_UNKNOWN: dict[str, Any] = {
    "jax_custom_vjp3": True, "jax_enable_custom_prng": False, "jax_explicit_x64_dtypes": ExplicitX64Mode.WARN,
    "jax_mutable_array_checks": True, "jax_pmap_shmap_merge": True,
    "jax_ragged_dot_use_ragged_dot_instruction": True, "jax_random_seed_offset": 0, "jax_remat3": True,
    "jax_use_direct_linearize": True, "jax_use_shardy_partitioner": True, "jax_use_simplified_jaxpr_constants": False,
    "jax_vjp3": True,
}  # fmt: skip
"""Settings of JAX's that gtrace.jax has not, with the values that the tests see."""


def _ours() -> Any:
    return importlib.import_module("gtrace.jax.settings").config


def _value(name: str) -> Any:
    try:
        found = getattr(_ours(), name)
    except AttributeError:
        found = _UNKNOWN.get(name)
    return _KINDS[name](found) if name in _KINDS and found is not None else found


def _update(name: str, value: Any) -> None:
    if hasattr(_ours(), name):
        _ours().update(name, value)
    else:
        _UNKNOWN[name] = value


class State:
    """A setting, which tests read, and set for a block."""

    def __init__(self, name: str) -> None:
        self.name = self._name = name

    @property
    def value(self) -> Any:
        """The value now."""
        return _value(self.name)

    @contextlib.contextmanager
    def __call__(self, new: Any = True) -> Iterator[None]:
        """Set it for a block."""
        short = getattr(importlib.import_module("gtrace.jax.settings"), self.name.removeprefix("jax_"), None)
        if callable(short):
            with short(new):
                yield
            return
        before = self.value
        _update(self.name, new)
        try:
            yield
        finally:
            _update(self.name, before)

    def __bool__(self) -> bool:
        raise TypeError("ask for its value")

    def get_global(self) -> Any:
        """Return the value of the process; gtrace has one for all threads."""
        return self.value

    get_local = get_global

    def _add_hooks(self, *args: Any) -> None:
        """Forget what JAX wants to be told of changes."""


class States(dict[str, State]):
    """All settings by name, made when asked for."""

    def __missing__(self, name: str) -> State:
        self[name] = State(name)
        return self[name]


states = States()


class Config:
    """``jax._src.config.config``."""

    @property
    def values(self) -> dict[str, Any]:
        """All settings."""
        return {name: _value(name) for name in (*_ours().values, *_UNKNOWN)}

    def update(self, name: str, value: Any) -> None:
        """Set one."""
        _update(name, value)

    def parse_flags_with_absl(self) -> None:
        """Do nothing: the tests get no command line."""

    config_with_absl = parse_flags_with_absl

    def __getattr__(self, name: str) -> Any:
        return states[name].value


class _Flag:
    def __init__(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.value = value


def _bool_of(name: str, default: bool) -> bool:
    return os.environ.get(name, str(default)).lower() in ("1", "true", "yes", "on", "y", "t")


config = Config()

NAMES: dict[str, Any] = {
    "config": config, "config_states": states, "FLAGS": config, "update": _update, "_read": _value,
    "parse_flags_with_absl": config.parse_flags_with_absl, "trace_context": lambda: (),
    "string_flag": _Flag, "int_flag": _Flag, "bool_flag": _Flag, "float_flag": _Flag, "enum_flag": _Flag,
    "bool_env": _bool_of, "int_env": lambda name, default: int(os.environ.get(name, default)),
    "NumpyDtypePromotion": NumpyDtypePromotion, "LegacyPrngKeyState": LegacyPrngKeyState,
    "ExplicitX64Mode": ExplicitX64Mode, "EffortLevel": EffortLevel,
}  # fmt: skip
"""The names of ``jax._src.config``; any other one is the setting ``jax_NAME``."""
