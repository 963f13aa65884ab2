"""The names of ``jax.random``: those of ``gtrace.random``, with JAX's parameters."""

from __future__ import annotations

from typing import Any

import torch

from gtrace import random
from gtrace.jax.adapt import namespace
from gtrace.ops.promote import cast
from gtrace.trace.array import Array
from gtrace.trace.convert import as_dtype


def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """``gt.random.bits`` as unsigned integers of a dtype, by default uint32.

    >>> import gtrace.jax as jax
    >>> jax.random.bits(jax.random.key(0), (2,)).dtype
    gtrace.uint32
    """
    kind = torch.uint32 if dtype is None else as_dtype(dtype)
    return cast(random.bits(key, shape, 8 * kind.itemsize), kind)


__getattr__, __dir__ = namespace("jax.random", random)
