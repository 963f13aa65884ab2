"""``jax.config`` and the functions that set one of its settings, in terms of ``gt.config``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from gtrace import config as ours
from gtrace.errors import ConfigError, UnknownSettingError
from gtrace.extend import KINDS, ArgumentError, message
from gtrace.jax import legacy_keys
from gtrace.jax.device_functions import device_name, devices
from gtrace.jax.promotion_checks import checks

_SAME: dict[str, str] = {
    "jax_enable_x64": "x64",
    "jax_debug_nans": "debug_nans",
    "jax_debug_infs": "debug_nans",
    "jax_debug_key_reuse": "debug_key_reuse",
    "jax_disable_jit": "eager",
    "jax_check_static_indices": "check_static_indices",
    "jax_threefry_partitionable": "threefry_partitionable",
}
"""JAX's settings that gtrace has, too."""

_OWN: dict[str, Any] = {
    "jax_check_tracer_leaks": False, "jax_compilation_cache_dir": None,
    "jax_default_matmul_precision": None, "jax_log_compiles": False,
    "jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow", "jax_platform_name": "",
    "jax_platforms": None, "jax_traceback_filtering": "auto",
    "jax_explain_cache_misses": False, "jax_persistent_cache_min_compile_time_secs": 1.0, "jax_enable_checks": False,
    "jax_transfer_guard": "allow", "jax_legacy_prng_key": "allow",
    "jax_num_cpu_devices": 1, "jax_softmax_custom_jvp": False, "jax_default_prng_impl": "threefry2x32",
    "jax_enable_custom_prng": False,
}  # fmt: skip
"""JAX's other settings with their values: those of JAX until a program sets others. Most have no effect here."""

_PROMOTION = ("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion")
"""Those that refuse operands."""

_NAMES = (*_SAME, "jax_default_device", *_OWN)
_WORDS = dict.fromkeys(("1", "t", "true", "y", "yes", "on"), True)
_WORDS |= dict.fromkeys(("0", "f", "false", "n", "no", "off"), False)
"""What the environment and the command line may say for true and false."""


# the number rules of a process that uses JAX's names are JAX's, and its results look so, unless it says otherwise
ours.default(x64=False, jax_results=True)

# as with JAX, NumPy knows bfloat16 and float8 afterwards
if importlib.util.find_spec("ml_dtypes") is not None:
    importlib.import_module("ml_dtypes")


class Settings:
    """JAX's settings; ``jax.config`` is the one instance.

    >>> import gtrace.jax as jax
    >>> with gt.config():
    ...     jax.config.update("jax_enable_x64", True)
    ...     gt.config.x64, jax.config.jax_enable_x64
    (True, True)
    """

    def update(self, name: str, value: Any) -> None:
        """Change a setting of JAX's.

        Raises:
            UnknownSettingError: JAX, or gtrace, has no such setting.
            ArgumentError: the setting has no such value.
        """
        if name in _SAME:
            ours.update(**{_SAME[name]: bool(value)})
        elif name == "jax_default_device":
            ours.update(device="cpu" if value is None else device_name(value))
        elif name == "jax_default_prng_impl" and value not in KINDS:
            raise ArgumentError(message("jax.config", f"{name} among {', '.join(KINDS)}", repr(value), "Name one."))
        elif name in _OWN:
            if name in _PROMOTION:
                checks.follow(*[(_OWN | {name: value})[key] for key in _PROMOTION])
            if name == "jax_legacy_prng_key":
                legacy_keys.follow(value)
            _OWN[name] = value
        else:
            raise UnknownSettingError(f"[jax.config] expected one of {', '.join(_NAMES)}, got {name!r}.")

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return getattr(ours, _SAME[name])
        if name == "jax_default_device":
            return devices()[0]
        if name in _OWN:
            return _OWN[name]
        raise AttributeError(f"jax.config has no setting {name!r}")

    def parse_flags_with_absl(self) -> None:
        """Take settings from the command line, such as ``--jax_enable_x64`` and ``--jax_enable_x64=false``.

        Raises:
            UnknownSettingError: JAX, or gtrace, has no such setting.
            ConfigError: a value is not one of the setting's.
        """
        for argument in sys.argv[1:]:
            if argument.startswith("--jax_"):
                name, _, text = argument.removeprefix("--").partition("=")
                self.update(name, _value_of(name, text or "true", f"--{name}"))

    config_with_absl = parse_flags_with_absl

    def follow_environment(self, env: Mapping[str, str]) -> None:
        """Take the first values of settings from the environment, as JAX does: that of jax_x from JAX_X.

        An empty variable counts as unset. What the program, or a variable of gtrace's, has set already stays.

        Raises:
            ConfigError: a value is not one of the setting's.
            ArgumentError: the setting has no such value.
        """
        first: dict[str, Any] = {}
        for name in _NAMES:
            variable = name.upper()
            if not env.get(variable):
                continue
            value = _value_of(name, env[variable], variable)
            if name in _SAME:  # two of JAX's may be one of ours
                first[_SAME[name]] = value or first.get(_SAME[name], False)
            elif name == "jax_default_device":
                first["device"] = device_name(value)
            else:
                self.update(name, value)
        ours.default(**first)

    @property
    def values(self) -> dict[str, Any]:
        """The values of all settings, by name."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def x64_enabled(self) -> bool:
        """Whether 64-bit dtypes are on."""
        return bool(ours.x64)

    def read(self, name: str) -> Any:
        """Return the value of a setting."""
        return getattr(self, name)


config = Settings()


def _value_of(name: str, text: str, source: str) -> Any:
    """Return the value that a text gives a setting; `source` is where the text stands."""
    now = False if name in _SAME else _OWN.get(name)
    try:
        if isinstance(now, bool):
            return _WORDS[text.lower()]
        return type(now)(text) if isinstance(now, (int, float)) else text
    except (KeyError, ValueError):
        expected = f"one of {', '.join(_WORDS)}" if isinstance(now, bool) else "a number"
        raise ConfigError(message(source, expected, repr(text), "Set a valid value, or none.")) from None


def _block(setting: str) -> Callable[[bool], AbstractContextManager[Any]]:
    def context(new_val: bool = True) -> AbstractContextManager[Any]:
        return ours(**{setting: bool(new_val)})

    context.__doc__ = f"Return a block, or a decorator, with the setting {setting} of ``gt.config``."
    return context


def _kept(setting: str) -> Callable[..., AbstractContextManager[None]]:
    @contextlib.contextmanager
    def context(new_val: Any = True) -> Iterator[None]:
        before = getattr(config, setting)
        config.update(setting, new_val)
        try:
            yield
        finally:
            config.update(setting, before)

    context.__doc__ = f"Return a block, or a decorator, in which ``jax.config.{setting}`` has another value."
    return context


@contextlib.contextmanager
def _idle(new_val: Any = None) -> Iterator[None]:
    """Return a block, or a decorator, without effect."""
    yield


enable_x64 = _block("x64")
debug_nans = debug_infs = _block("debug_nans")
debug_key_reuse = _block("debug_key_reuse")
default_matmul_precision = _kept("jax_default_matmul_precision")
numpy_dtype_promotion, numpy_rank_promotion = _kept("jax_numpy_dtype_promotion"), _kept("jax_numpy_rank_promotion")
log_compiles, check_tracer_leaks = _kept("jax_log_compiles"), _kept("jax_check_tracer_leaks")
default_prng_impl, threefry_partitionable = _kept("jax_default_prng_impl"), _block("threefry_partitionable")
enable_custom_prng, legacy_prng_key = _kept("jax_enable_custom_prng"), _kept("jax_legacy_prng_key")
transfer_guard, enable_checks = _kept("jax_transfer_guard"), _kept("jax_enable_checks")
softmax_custom_jvp, explain_cache_misses = _kept("jax_softmax_custom_jvp"), _kept("jax_explain_cache_misses")
transfer_guard_device_to_device = transfer_guard_device_to_host = transfer_guard_host_to_device = _idle
thread_guard = array_garbage_collection_guard = no_execution = allow_f16_reductions = _idle
auto_pcast = no_tracing = make_user_context = _idle
jax2tf_associative_scan_reductions = remove_size_one_mesh_axis_from_type = _idle


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Return a block, or a decorator, in which nothing compiles, and every operation runs as it is recorded.

    A function under ``jit`` is called with its arguments, and not traced. Loops and branches run in Python, so their
    bodies see values. Only functions under ``vmap`` and their like are traced.
    """
    if not disable:
        yield
        return
    with ours(eager=True, auto_compile=False):
        yield
