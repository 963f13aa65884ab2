"""``jax.nn.scaled_matmul``: a product of matrices of small numbers with a scale for each block of elements."""

from __future__ import annotations

from typing import Any

import gtrace as gt
from gtrace.extend import Array, ShapeError, lift, message


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = "float32"
) -> Array:
    """Return the products of the rows of two batches of matrices, each element multiplied by the scale of its block.

    Args:
        lhs, rhs: of shapes (b, m, k) and (b, n, k), usually float8.
        lhs_scales, rhs_scales: of shapes (b, m, k / block) and (b, n, k / block).

    >>> import gtrace.jax.numpy as jnp
    >>> scaled_matmul(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 4)), 2 * jnp.ones((1, 1, 2)), jnp.ones((1, 1, 2))).tolist()
    [[[8.0]]]
    """

    def whole(x: Any, scales: Any) -> Array:
        values, by = lift("scaled_matmul", x), lift("scaled_matmul", scales)
        if values.ndim != 3 or by.ndim != 3 or not by.shape[2] or values.shape[2] % by.shape[2]:
            got = f"{values.aval!r} with scales {by.aval!r}"
            raise ShapeError(message("scaled_matmul", "scales for equal blocks of the last axis", got, "Check them."))
        return values.astype("float32") * gt.repeat(by.astype("float32"), values.shape[2] // by.shape[2], 2)

    out = gt.matmul(whole(lhs, lhs_scales), whole(rhs, rhs_scales).mT)
    return out.astype(preferred_element_type)
