"""The transforms and helpers of ``jax`` itself, whose parameters or results differ from gtrace's."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy

import gtrace as gt
from gtrace.distributed import sharding
from gtrace.distributed.sharding import from_process_local
from gtrace.extend import ArgumentError, PRNGKeyArray, as_dtype, is_placeholder, message, value_of, with_values
from gtrace.jax import dtypes, paths
from gtrace.jax.ad_checkpoint import checkpoint as checkpoint
from gtrace.jax.ad_checkpoint import checkpoint_policies as checkpoint_policies
from gtrace.jax.adapt import __version__
from gtrace.jax.avals import get_aval
from gtrace.jax.core import Tracer
from gtrace.jax.equations import make_jaxpr as make_jaxpr
from gtrace.jax.jitted import jitted
from gtrace.jax.pullbacks import vjp as vjp
from gtrace.jax.symbolic_decisions import eval_shape as eval_shape

closure_convert, custom_gradient = gt.closure_convert, gt.custom_gradient
grad, hessian, value_and_grad = gt.grad, gt.hessian, gt.value_and_grad
jacfwd, jacrev, jvp, linear_transpose = gt.jacfwd, gt.jacrev, gt.jvp, gt.linear_transpose
linearize, pure_callback, vmap = gt.linearize, gt.pure_callback, gt.vmap
NamedSharding, P = sharding.NamedSharding, sharding.PartitionSpec
float0 = dtypes.float0
jacobian = jacrev
remat = checkpoint
ensure_compile_time_eval = with_values


class Inline(enum.Enum):
    """When a nested jitted function becomes part of the one around it. `jit` takes it, and ignores it."""

    JAX_EARLY, JAX_LATE = "jax_early", "jax_late"
    XLA_EARLY, XLA_LATE = "xla_early", "xla_late"
    AUTO = "auto"


class CompilerEffortLevel(enum.IntEnum):
    """How much time a compiler may take. `jit` takes it among its options, and ignores it."""

    UNKNOWN = 0
    O0, O1, O2, O3 = 9, 19, 29, 39


_IGNORED = ("keep_unused", "device", "inline", "compiler_options", "in_shardings", "out_shardings")


def jit(fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``gt.jit`` with JAX's options. Those that only say where and how to compile are ignored.

    >>> import gtrace.jax as jax
    >>> jax.jit(lambda x: x * 2, donate_argnums=0)(1.5)
    Array(3., dtype=float32)
    """
    backend = options.pop("backend", None)
    for name in _IGNORED:
        options.pop(name, None)
    if backend is not None and backend not in ("cpu", "gpu", "cuda", "tpu"):
        options["backend"] = backend
    return jitted(fun, **{name: value for name, value in options.items() if value is not None})


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """Return the function itself; ``gt.signal`` names regions of a program."""
    return fun


@contextlib.contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Do nothing; ``gt.signal.context`` names regions of a program."""
    yield


def typeof(x: Any) -> Any:
    """Return the shape and the dtype of an array or number.

    >>> typeof(gt.ones((2, 3)))
    ShapedArray(float32[2,3])
    """
    return get_aval(x)


def block_until_ready(x: Any) -> Any:
    """Compute all arrays of a pytree; return it."""
    gt.eval(x)
    return x


def device_get(x: Any) -> Any:
    """Return a pytree with NumPy arrays in place of Arrays; keys, placeholders and what is differentiated stay."""
    return paths.map(lambda leaf: leaf.numpy() if type(leaf) is gt.Array and not isinstance(leaf, Tracer) else leaf, x)


def copy_to_host_async(x: Any) -> Any:
    """Return the pytree as it is: values are copied when somebody looks at them."""
    return x


def clear_caches() -> None:
    """Do nothing: what is compiled depends on nothing that changes."""


def effects_barrier() -> None:
    """Do nothing: there are no effects that run later."""


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """Do nothing: leaks are always errors."""
    yield


def fwd_and_bwd(fun: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool = False) -> Any:
    """Return a function for the value with what its derivative needs, and one for the derivatives of `argnums`.

    >>> import gtrace.jax as jax
    >>> forward, backward = jax.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> value, kept = forward(2.0, 3.0)
    >>> [g.item() for g in backward(kept, 1.0)]
    [3.0, 2.0]
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def forward(*args: Any) -> Any:
        def varied(*chosen: Any) -> Any:
            given = list(args)
            for k, x in zip(numbers, chosen, strict=True):
                given[k] = x
            return fun(*given)

        out = vjp(varied, *[args[k] for k in numbers], has_aux=has_aux)
        return (out[0], out[1]) if not has_aux else (out[0], out[1], out[2])

    def backward(pull: Any, cotangent: Any) -> Any:
        found = pull(cotangent)
        return found[0] if isinstance(argnums, int) else found

    return forward, backward


def pmap(
    fun: Callable[..., Any],
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | tuple[int, ...] | None = (),
    **options: Any,
) -> Callable[..., Any]:
    """``vmap``, jitted: on one device, the examples of a `pmap` are a batch. `gt.sharding` divides arrays over devices.

    Args:
        out_axes: those of `vmap`; None: of this result it is the first example that is returned.

    >>> import gtrace.jax as jax
    >>> mean = jax.pmap(lambda x: jax.lax.pmean(x, "i"), axis_name="i")
    >>> mean(jax.numpy.array([1., 3.]))
    Array([2., 2.], dtype=float32)
    """
    static = static_broadcasted_argnums
    numbers = (static,) if isinstance(static, int) else tuple(static or ())

    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = list(in_axes) if isinstance(in_axes, (tuple, list)) else [in_axes] * len(args)
        for k in numbers:
            axes[k] = None
        several = isinstance(out_axes, tuple)
        places = out_axes if several else (out_axes,)
        ends = tuple([0 if place is None else place for place in places])
        out = gt.vmap(fun, tuple(axes), ends if several else ends[0], axis_name=axis_name)(*args, **kwargs)
        if None not in places:
            return out
        firsts = [
            gt.tree.map(lambda x: x[0], y) if place is None else y
            for y, place in zip(out if several else [out], places, strict=True)
        ]
        return tuple(firsts) if several else firsts[0]

    return jitted(mapped, static_argnums=numbers)


def live_arrays(platform: str | None = None) -> list[gt.Array]:
    """Return the Arrays of this process that have values.

    >>> import gtrace.jax as jax
    >>> x = jax.block_until_ready(jax.numpy.ones(2))
    >>> any(y is x for y in jax.live_arrays())
    True
    """
    return [x for x in gc.get_objects() if type(x) is gt.Array and value_of(x) is not None]


@attrs.frozen
class Shard:
    """A part of an array.

    Attributes:
        device: where it lies.
        sharding: the layout of the array.
        global_shape: the shape of the array.
        data: the part.
    """

    device: Any
    sharding: Any
    global_shape: tuple[int, ...]
    data: Any = None


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[gt.Array], *, dtype: Any = None
) -> gt.Array:
    """Return an array whose parts processes hold; this process has one.

    Raises:
        ArgumentError: several parts, a part that has no value, or one of another dtype than `dtype`.
    """
    name = "make_array_from_single_device_arrays"
    if len(arrays) != 1:
        raise ArgumentError(message(name, "one part", f"{len(arrays)}", "Use jax.make_array_from_process_local_data."))
    if isinstance(arrays[0], gt.Array) and is_placeholder(arrays[0]):
        raise ArgumentError(message(name, "a part that has a value", "a placeholder", "Call it outside of jit."))
    if isinstance(arrays[0], PRNGKeyArray):
        return arrays[0]._like(make_array_from_single_device_arrays(shape, sharding, [arrays[0]._data]))
    part = gt.array(arrays[0])
    if dtype is not None and part.aval.dtype != as_dtype(dtype):
        fix = "Cast the part, or leave out dtype."
        raise ArgumentError(message(name, f"a part of dtype {dtype}", f"{part.dtype}", fix))
    if not isinstance(sharding, NamedSharding):
        return part.reshape(tuple(shape))
    return from_process_local(sharding, part, tuple(shape))


def print_environment_info(return_string: bool = False) -> str | None:
    """Print, or return, the versions that are in use."""
    text = f"jax:    {__version__} (names of gtrace {gt.__version__})\nnumpy:  {numpy.__version__}\n"
    if return_string:
        return text
    print(text)
    return None
