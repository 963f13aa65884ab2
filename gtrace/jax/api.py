"""The transforms and helpers of ``jax`` itself, whose parameters or results differ from gtrace's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gtrace as gt
from gtrace import tree
from gtrace.errors import ArgumentError, message
from gtrace.jax.adapt import HINTS

checkpoint, checkpoint_policies = gt.checkpoint, gt.checkpoint_policies
closure_convert, custom_gradient = gt.closure_convert, gt.custom_gradient
eval_shape, grad, hessian, value_and_grad = gt.eval_shape, gt.grad, gt.hessian, gt.value_and_grad
jacfwd, jacrev, jvp, linear_transpose = gt.jacfwd, gt.jacrev, gt.jvp, gt.linear_transpose
linearize, pure_callback, vjp, vmap = gt.linearize, gt.pure_callback, gt.vjp, gt.vmap
jacobian = jacrev
remat = checkpoint

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
    return gt.jit(fun, **options)


def make_jaxpr(fun: Callable[..., Any], static_argnums: int | tuple[int, ...] = (), **options: Any) -> Any:
    """Return a function that records `fun` and returns the graph, which prints as gtrace's IR and not as a jaxpr."""
    unknown = sorted(name for name in options if name not in HINTS and options[name])
    if unknown:
        fix = "Use gt.make_graph."
        raise ArgumentError(message("make_jaxpr", "a function and static_argnums", ", ".join(unknown), fix))
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        static = {k % len(args): args[k % len(args)] for k in numbers}

        def dynamic(*rest: Any, **named: Any) -> Any:
            given = iter(rest)
            return fun(*[static[k] if k in static else next(given) for k in range(len(args))], **named)

        return gt.make_graph(dynamic)(*[x for k, x in enumerate(args) if k not in static], **kwargs)

    return recorded


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """Return the function itself; ``gt.signal`` names regions of a program."""
    return fun


@contextlib.contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Do nothing; ``gt.signal.context`` names regions of a program."""
    yield


def typeof(x: Any) -> Any:
    """Return the shape and the dtype of an array or number."""
    array = gt.asarray(x)
    return gt.ShapeDtypeStruct(array.shape, array.dtype)


def block_until_ready(x: Any) -> Any:
    """Compute all arrays of a pytree; returns it."""
    gt.eval(x)
    return x


def device_get(x: Any) -> Any:
    """Return a pytree with NumPy arrays in the place of Arrays."""
    return tree.map(lambda leaf: leaf.numpy() if isinstance(leaf, gt.Array) else leaf, x)


def copy_to_host_async(x: Any) -> Any:
    """Return the pytree as it is: values are copied when somebody looks at them."""
    return x


def clear_caches() -> None:
    """Do nothing: what is compiled depends on nothing that changes."""


def effects_barrier() -> None:
    """Do nothing: there are no effects that run later."""


@contextlib.contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Do nothing: what depends on no placeholder has a value in a traced function, too."""
    yield


@contextlib.contextmanager
def checking_leaks() -> Iterator[None]:
    """Do nothing: leaks are always errors."""
    yield
