"""Of JAX's internals, the names that libraries import, at the private places where JAX 0.10 keeps them.

Most are public functions: ``jax._src.lax.control_flow.scan`` is ``jax.lax.scan``. `PUBLIC` says which public modules
hold the names of a private module, and `ALIASES` names single objects. A private module with functions of its own is a
file of ``gtrace.jax._src``. Any other name raises an error, because JAX's internals are not part of gtrace.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.jax.adapt import internal

PLACES = """
jax: ad_checkpoint api array basearray callback config core custom_derivatives environment_info indexing pjit pmap ref
jax: shard_map sharding_impls xla_bridge
jax.ad_checkpoint: ad_checkpoint interpreters interpreters.partial_eval
jax.api_util: api_util
jax.core: abstract_arrays core
jax.custom_batching: custom_batching
jax.custom_derivatives: ad_util custom_derivatives
jax.debug: debugger debugger.core debugging
jax.dlpack: dlpack
jax.dtypes: dtypes
jax.errors: errors
jax.experimental: callback
jax.experimental.checkify: checkify
jax.experimental.hijax: hijax
jax.experimental.layout: layout
jax.experimental.mesh_utils: mesh_utils
jax.extend.backend: xla_bridge
jax.extend.core: core
jax.extend.core.primitives: ad_checkpoint ad_util lax lax.control_flow lax.control_flow.conditionals
jax.extend.core.primitives: lax.control_flow.loops lax.control_flow.solves lax.convolution lax.fft lax.lax lax.linalg
jax.extend.core.primitives: lax.parallel lax.slicing lax.special lax.windowed_reductions pjit custom_derivatives
jax.extend.linear_util: linear_util
jax.extend.source_info_util: source_info_util
jax.flatten_util: flatten_util
jax.image: image image.scale
jax.interpreters.ad: ad_util interpreters.ad
jax.interpreters.batching: interpreters.batching
jax.interpreters.mlir: interpreters.mlir
jax.interpreters.partial_eval: interpreters.partial_eval
jax.lax: dtypes lax lax.ann lax.control_flow lax.control_flow.common lax.control_flow.conditionals
jax.lax: lax.control_flow.loops lax.control_flow.solves lax.convolution lax.fft lax.lax lax.other lax.parallel
jax.lax: lax.slicing lax.special lax.utils lax.windowed_reductions pjit
jax.lax.linalg: lax.linalg lax.qdwh lax.svd
jax.monitoring: monitoring
jax.nn: nn nn.functions ops.special
jax.nn.initializers: nn.initializers
jax.numpy: dtypes numpy numpy.array_constructors numpy.array_creation numpy.array_methods numpy.einsum
jax.numpy: numpy.index_tricks numpy.indexing numpy.lax_numpy numpy.polynomial numpy.reductions numpy.setops
jax.numpy: numpy.sorting numpy.tensor_contractions numpy.ufunc_api numpy.ufuncs numpy.util
jax.numpy: numpy.vectorize numpy.window_functions
jax.numpy.fft: numpy.fft
jax.numpy.linalg: numpy.linalg
jax.ops: ops ops.scatter
jax.profiler: profiler
jax.random: prng random random.core
jax.ref: state state.types
jax.scipy: scipy
jax.scipy.cluster.vq: scipy.cluster scipy.cluster.vq
jax.scipy.fft: scipy.fft
jax.scipy.integrate: scipy.integrate
jax.scipy.interpolate: third_party third_party.scipy third_party.scipy.interpolate
jax.scipy.linalg: scipy.linalg third_party.scipy.linalg
jax.scipy.ndimage: scipy.ndimage
jax.scipy.optimize: scipy.optimize scipy.optimize.bfgs scipy.optimize.line_search scipy.optimize.minimize
jax.scipy.signal: scipy.signal third_party.scipy.signal_helper
jax.scipy.sparse.linalg: scipy.sparse scipy.sparse.linalg
jax.scipy.spatial.transform: scipy.spatial scipy.spatial.transform
jax.scipy.special: ops.special scipy.special third_party.scipy.special
jax.scipy.stats: scipy.stats scipy.stats._core scipy.stats.kde
jax.sharding: core mesh named_sharding partition_spec pjit sharding sharding_impls
jax.stages: stages
jax.test_util: public_test_util
jax.tree: tree
jax.tree_util: tree_util
jax.typing: basearray typing
"""
"""Public modules, and the private ones whose names they hold."""

PUBLIC: dict[str, list[str]] = {}
for _line in PLACES.strip().splitlines():
    _source, _, _own = _line.partition(": ")
    for _name in _own.split():
        PUBLIC.setdefault(_name, []).append(_source)

ALIASES = {
    "array.ArrayImpl": "jax.Array",
    "basearray.Array": "jax.Array",
    "checkify.JaxException": "jax.experimental.checkify.JaxRuntimeError",
    "earray.EArray": "extend.PRNGKeyArray",
    "checkify.Out": "jax.extend.absent.Out",
    "core.call_p": "jax.extend.core.primitives.call_p",
    "interpreters.pxla.global_result_handlers": "jax.extend.absent.global_result_handlers",
    "literals.LiteralArray": "jax.extend.absent.LiteralArray",
    "literals.TypedComplex": "jax.extend.absent.TypedComplex",
    "literals.TypedFloat": "jax.extend.absent.TypedFloat",
    "literals.TypedInt": "jax.extend.absent.TypedInt",
    "literals.TypedNdArray": "jax.extend.absent.TypedNdArray",
    "pjit.pjit_p": "jax.extend.core.primitives.jit_p",
    "xla_bridge._backends": "jax.extend.absent.xla_backends",
    "state.AbstractRef": "jax.ref.AbstractRef",
    "state.types.AbstractRef": "jax.ref.AbstractRef",
    "ad_util.add_tangents": "jax.avals.add_tangents",
    "ad_util.instantiate_zeros": "jax.avals.instantiate_zeros",
    "ad_util.SymbolicZero": "jax.avals.SymbolicZero",
    "ad_util.Zero": "jax.avals.Zero",
    "ad_util.zeros_like_aval": "jax.avals.zeros_like_aval",
}
"""Names that another name stands for, below ``gtrace``."""

PACKAGE = "gtrace.jax._src"
MODULES = {*PUBLIC, *(name.rpartition(".")[0] for name in ALIASES)}
"""The private modules that are made of public names."""


def public_name(module: str, name: str) -> Any:
    """Return what a name of a private module stands for.

    Args:
        module: the path of the private module below ``jax._src``.

    Raises:
        AttributeError: there is nothing by that name in public.
    """
    full = f"{module}.{name}" if module else name
    if full in ALIASES:
        place, _, own = ALIASES[full].rpartition(".")
        return getattr(importlib.import_module(f"gtrace.{place}"), own)
    if name.startswith("__"):
        raise AttributeError(name)
    for source in PUBLIC.get(module, ()):
        found = getattr(importlib.import_module(f"gtrace.{source}"), name, None)
        if found is not None:
            return found
    try:
        return importlib.import_module(f"{PACKAGE}.{full}")
    except ModuleNotFoundError:
        return internal(f"jax._src.{module}".removesuffix("."))(name)


def public_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a private module, by its name in Python."""
    own = module.removeprefix(PACKAGE).removeprefix(".")
    return lambda name: public_name(own, name)


class _Loader(importlib.abc.Loader):
    """Makes a private module of public names."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name, f"The names of ``{spec.name.removeprefix('gtrace.')}`` that are public.")

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = public_names(module.__name__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds private modules that are no files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.removeprefix(f"{PACKAGE}.") not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


sys.meta_path.append(_Finder())
