"""The names of ``jax.custom_batching``: functions with a batching rule of their own, which is not needed here.

`vmap` records the function for one example and batches its operations. A rule says how to do the same in another way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["custom_vmap", "sequential_vmap"]


class custom_vmap:  # noqa: N801 - JAX's name
    """A function that may have a rule for batches. The rule is kept and not called: a batch is that of the function.

    >>> import gtrace.jax as jax
    >>> @custom_vmap
    ... def f(x):
    ...     return x + 1
    >>> @f.def_vmap
    ... def rule(axis_size, in_batched, x):
    ...     return x + 1, in_batched[0]
    >>> jax.vmap(f)(jax.numpy.arange(2.))
    Array([1., 2.], dtype=float32)
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.vmap_rule: Callable[..., Any] | None = None

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the rule; return it."""
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fun(*args, **kwargs)


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """Return the function, whose batches JAX computes one after the other, as `custom_vmap`."""
    return custom_vmap(f)
