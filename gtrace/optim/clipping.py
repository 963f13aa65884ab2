"""Transformations that limit the size of updates."""

from __future__ import annotations

from typing import Any

from gtrace.extend import Array, cast, is_short, ops, tree, unshortened
from gtrace.optim.base import GradientTransformation, Updates, root_mean_square, stateless, unshortened_norm
from gtrace.optim.replayed import transformation

__all__ = ["clip", "clip_by_block_rms", "clip_by_global_norm"]


@transformation
def clip(max_delta: Any) -> GradientTransformation:
    """Return a transformation that limits each number to [-max_delta, max_delta].

    >>> gt.optim.clip(1.0).update(gt.array([-3.0, 0.5]), gt.optim.EmptyState())[0]
    Array([-1. ,  0.5], dtype=float32)
    """
    return stateless(lambda updates, params: tree.map(lambda g: ops.clip(g, -max_delta, max_delta), updates))


@transformation
def clip_by_block_rms(threshold: Any) -> GradientTransformation:
    """Return a transformation that limits the root mean square of each array of updates.

    >>> gt.optim.clip_by_block_rms(1.0).update(gt.array([3.0, -3.0]), gt.optim.EmptyState())[0]
    Array([ 1., -1.], dtype=float32)
    """

    def shortened(g: Array) -> Array:
        out = unshortened(g) / ops.maximum(1.0, root_mean_square(g) / threshold)
        return cast(out, g.aval.dtype) if is_short(g.aval.dtype) else out

    return stateless(lambda updates, params: tree.map(shortened, updates))


@transformation
def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Return a transformation that limits the norm of all updates together (Pascanu et al., 2012).

    >>> grads = {"a": gt.array(3.0), "b": gt.array(4.0)}
    >>> gt.optim.clip_by_global_norm(1.0).update(grads, gt.optim.EmptyState())[0]["b"]
    Array(0.8, dtype=float32)
    """

    def shortened(updates: Updates, params: Any) -> Updates:
        norm = unshortened_norm(updates)
        inside = norm < max_norm

        def scaled(g: Array) -> Array:
            wide = unshortened(g)
            out = wide / (norm if g.aval.complex else cast(norm, wide.aval.dtype)) * max_norm
            return ops.where(inside, g, cast(out, g.aval.dtype) if is_short(g.aval.dtype) else out)

        return tree.map(scaled, updates)

    return stateless(shortened)
