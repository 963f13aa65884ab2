"""``scipy.cluster.vq``: the nearest of some points."""

from __future__ import annotations

from typing import Any

from gtrace.extend import Array, ShapeError, message, ops, promote_arrays

__all__ = ["vq"]


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Array, Array]:
    """Return the nearest code of each observation, and its Euclidean distance.

    Args:
        obs: of shape (n, features), or (n,) for one feature.
        code_book: of shape (codes, features), or (codes,).
        check_finite: of no effect.

    Raises:
        ShapeError: other shapes.

    >>> import gtrace.scipy.cluster
    >>> gt.scipy.cluster.vq(gt.array([[0., 1.], [5., 5.]]), gt.array([[0., 0.], [4., 5.]]))
    (Array([0, 1], dtype=int64), Array([1., 1.], dtype=float32))
    """
    x, codes = promote_arrays("vq", obs, code_book, floating=True)
    if x.ndim != codes.ndim or x.ndim not in (1, 2) or x.shape[1:] != codes.shape[1:]:
        got = f"{x.aval!r} and {codes.aval!r}"
        raise ShapeError(message("vq", "observations and codes with the same features", got, "Check the shapes."))
    if x.ndim == 1:
        x, codes = ops.expand_dims(x, 1), ops.expand_dims(codes, 1)
    distances = ops.sum(ops.square(ops.expand_dims(x, 1) - ops.expand_dims(codes, 0)), 2)
    return ops.argmin(distances, 1), ops.sqrt(ops.min(distances, 1))
