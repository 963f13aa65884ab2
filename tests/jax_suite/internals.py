"""The one table of JAX's private names that its tests use, and what stands for each.

A test file imports from ``jax._src``. Modules of `SOURCE` are executed from the checkout: they hold JAX's own checks,
tolerances and makers of test data. Any other private module has the names that `NAMES` gives it, then those of the
public modules in `PUBLIC`. What is in neither is `standins.Internal`: a test that uses it is skipped.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import jax_config

SOURCE = frozenset({
    "test_util", "public_test_util", "test_warning_util", "test_loader", "util", "lax_reference",
    "internal_test_util.lax_test_util", "internal_test_util.deprecation_module",
})  # fmt: skip
"""Modules of ``jax._src`` that are executed from the checkout."""

REFERENCE_DTYPES = "reference_dtypes"
"""``jax._src.dtypes`` as the checkout has it: JAX's promotion, which its checks use, of NumPy's arrays."""

PUBLIC: dict[str, tuple[str, ...]] = {
    "ad_checkpoint": ("ad_checkpoint", ""), "api": ("",), "api_util": ("api_util",), "array": ("",), "callback": ("",),
    "core": ("core", "errors", ""), "custom_batching": ("custom_batching",),
    "custom_derivatives": ("custom_derivatives",), "debugging": ("debug",), "dtypes": ("dtypes",),
    "errors": ("errors",), "image": ("image",), "interpreters.ad": ("interpreters.ad",),
    "interpreters.batching": ("interpreters.batching",), "interpreters.mlir": ("interpreters.mlir",),
    "interpreters.partial_eval": ("interpreters.partial_eval",), "lax": ("lax",), "lax.linalg": ("lax.linalg", "lax"),
    "linear_util": ("extend.linear_util",), "mesh": ("sharding",), "monitoring": ("monitoring",), "nn": ("nn",),
    "numpy": ("numpy",), "ops": ("ops",), "random": ("random",), "scipy": ("scipy",),
    "scipy.special": ("scipy.special",), "shard_map": ("",), "sharding_impls": ("sharding", ""),
    "source_info_util": ("extend.source_info_util",), "stages": ("stages",), "tree_util": ("tree_util",),
}  # fmt: skip
"""Private modules, and the public modules of JAX that have names of theirs. A submodule has those of its parent."""


class _Settable:
    """A flag of JAX's command line."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Uncounted:
    """A cache that tests clear or ask for its counts; here it counts nothing."""

    def cache_clear(self) -> None:
        """Do nothing."""

    def cache_info(self) -> Any:
        """Return no misses."""
        return types.SimpleNamespace(misses=0)


class _Backend:
    """The backend of the CPU, with what `gtrace.jax.extend.backend` has."""

    platform, platform_version = "cpu", "gtrace"

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("gtrace.jax.extend.backend").get_backend(), name)


@functools.cache
def _backend(platform: Any = None) -> _Backend:
    return _Backend()


def _devices(*args: Any, **kwargs: Any) -> Any:
    return importlib.import_module("gtrace.jax").devices()


def _equally_long(*sequences: Any) -> list[list[Any]]:
    lists = [list(s) for s in sequences]
    if len({len(s) for s in lists}) > 1:
        raise ValueError(f"the arguments have {', '.join(str(len(s)) for s in lists)} elements")
    return lists


def _zip(*sequences: Any) -> list[tuple[Any, ...]]:
    return list(zip(*_equally_long(*sequences), strict=True))


def _map(function: Callable[..., Any], *sequences: Any) -> list[Any]:
    return [function(*xs) for xs in _zip(*sequences)]


def _for_each(function: Callable[..., Any], *sequences: Any) -> None:
    _map(function, *sequences)


class _Mutex:
    """A lock that nobody else holds."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


def _promote(inexact: bool) -> Callable[..., list[Any]]:
    def promote(*arrays: Any) -> list[Any]:
        numpy, theirs = importlib.import_module("numpy"), importlib.import_module(f"jax._src.{REFERENCE_DTYPES}")
        dtype = theirs.canonicalize_dtype(theirs.lattice_result_type(*arrays)[0])
        dtype = theirs.to_inexact_dtype(dtype) if inexact else dtype
        return [numpy.asarray(x).astype(dtype) for x in arrays]

    return promote


def _convert(x: Any, dtype: Any = None, weak_type: bool = False, sharding: Any = None) -> Any:
    """JAX's private cast, whose result may be weak."""
    jax = importlib.import_module("gtrace.jax")
    out = jax.numpy.asarray(x)
    out = out if dtype is None else jax.lax.convert_element_type(out, dtype)
    weakened = importlib.import_module("gtrace.core.ops.operands").weakened
    return weakened(out, out.dtype.torch) if weak_type else out


def _weak(x: Any) -> bool:
    return bool(getattr(x, "weak_type", type(x) in (bool, int, float, complex)))


def _key_array() -> Any:
    return importlib.import_module("gtrace.core.ops.key_arrays").PRNGKeyArray


def _array() -> Any:
    return importlib.import_module("gtrace").Array


def _generators() -> dict[str, Any]:
    made = (("threefry2x32", "fry", (2,)), ("rbg", "rbg", (4,)), ("unsafe_rbg", "urbg", (4,)))
    return {name: types.SimpleNamespace(name=name, tag=tag, key_shape=shape) for name, tag, shape in made}


def _index_dtype(shape: Any, *, signed: bool) -> Any:
    bits = 64 if any(isinstance(d, int) and d >= 2**31 for d in shape) else 32
    return importlib.import_module("numpy").dtype(f"{'' if signed else 'u'}int{bits}")


_LIBRARY = types.SimpleNamespace(
    is_optimized_build=lambda: True, is_asan=lambda: False, is_msan=lambda: False, is_tsan=lambda: False,
    is_sanitized=lambda: False,
)  # fmt: skip

NAMES: dict[str, dict[str, Any]] = {
    "cloud_tpu_init": {"running_in_cloud_tpu_vm": False},
    "compilation_cache": {"_cache": None, "is_persistent_cache_enabled": lambda: False},
    "config": jax_config.NAMES,
    "core": {"reset_trace_state": lambda: importlib.import_module("gtrace.jax.core").trace_state_clean()},
    "deprecations": {"is_accelerated": lambda name: False},
    "dispatch": {"xla_primitive_callable": _Uncounted()},
    "dtypes": {"is_weakly_typed": _weak},
    "interpreters.mlir": {"_platforms_with_donation": ["cpu", "cuda", "rocm", "tpu"]},
    "lax.control_flow.common": {"_dedup_consts": _Uncounted(), "_pad_constvars": _Uncounted()},
    "lax.lax": {"_convert_element_type": _convert},
    "lax.utils": {
        "int_dtype_for_shape": _index_dtype,
        "int_dtype_for_dim": lambda d, *, signed: _index_dtype((d,), signed=signed),
    },
    "lib": {
        "version": (0, 10, 2), "version_str": "0.10.2", "jaxlib_extension_version": 463, "cuda_versions": None,
        "gpu_solver": None, "_jax": _LIBRARY,
    },
    "lib.mlir": {},
    "lib.utils": {
        "safe_zip": _zip, "safe_map": _map, "foreach": _for_each, "Mutex": _Mutex,
        "topological_sort": lambda *args: None, "install_failure_signal_handler": lambda: None,
    },
    "numpy.util": {"promote_dtypes": _promote(False), "promote_dtypes_inexact": _promote(True)},
    "random.prng": {"prngs": _generators()},
    "xla_bridge": {
        "num_cpu_devices": _Settable(8), "get_backend": _backend, "devices": _devices, "local_devices": _devices,
    },
}  # fmt: skip
"""Private names that no public module of JAX has."""

CLASSES: dict[tuple[str, str], Callable[[], Any]] = {
    ("array", "ArrayImpl"): _array, ("basearray", "Array"): _array,
    ("prng", "PRNGKeyArray"): _key_array, ("random.prng", "PRNGKeyArray"): _key_array,
}  # fmt: skip
"""Private classes, and how to find gtrace's."""

OURS_OF_DTYPES = frozenset(
    {"issubdtype", "prng_key", "extended", "float0", "TypePromotionError", "result_type", "dtype"}
)
"""Names of ``jax._src.dtypes`` that are gtrace's in each file; the others are JAX's, to compare with.

In dtypes_test all are gtrace's where it has them.
"""

COUNTS = ("count_", "assert_num_jit_and_pmap_compilations", "collect_lowered_jaxprs")
"""Names of ``test_util``, or their beginnings, that count what XLA compiles."""
