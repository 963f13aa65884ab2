"""``jax.interpreters.ad``: rules for the derivatives of primitives, and the classes that stand for zeros in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gtrace.jax.adapt import internal
from gtrace.jax.avals import UndefinedPrimal as UndefinedPrimal
from gtrace.jax.avals import Zero as Zero
from gtrace.jax.avals import add_tangents as add_tangents
from gtrace.jax.avals import instantiate_zeros as instantiate_zeros
from gtrace.jax.avals import is_undefined_primal as is_undefined_primal
from gtrace.jax.avals import zeros_like_aval as zeros_like_aval
from gtrace.jax.core import JVPTracer as JVPTracer
from gtrace.jax.primitives import Primitive
from gtrace.jax.primitives import primitive_jvps as primitive_jvps
from gtrace.jax.primitives import primitive_transposes as primitive_transposes

Rule = Callable[..., Any]


def defjvp(primitive: Primitive, *jvprules: Rule | None) -> None:
    """State a rule for each operand, from (tangent, *operands, **params) to a term of the result's tangent.

    >>> cube = Primitive("cube")
    >>> _ = cube.def_impl(lambda x: x**3)
    >>> defjvp(cube, lambda t, x: 3 * t * x**2)
    >>> import gtrace as gt
    >>> gt.grad(cube.bind)(2.0)
    Array(12., dtype=float32)
    """
    defjvp2(primitive, *[rule and _without_result(rule) for rule in jvprules])


def _without_result(rule: Rule) -> Rule:
    return lambda t, out, *operands, **params: rule(t, *operands, **params)


def defjvp2(primitive: Primitive, *jvprules: Rule | None) -> None:
    """State such rules from (tangent, result, *operands, **params)."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        out = primitive.bind(*primals, **params)
        terms = [
            rule(t, out, *primals, **params)
            for rule, t in zip(jvprules, tangents, strict=True)
            if rule is not None and not isinstance(t, Zero)
        ]
        return out, functools.reduce(add_tangents, terms, Zero.from_primal_value(out))

    primitive_jvps[primitive] = jvp


def deflinear(primitive: Primitive, transpose_rule: Rule) -> None:
    """State that a primitive is linear, with its transpose from (cotangent, **params) to a list of cotangents."""
    deflinear2(primitive, lambda ct, *operands, **params: transpose_rule(ct, **params))


def deflinear2(primitive: Primitive, transpose_rule: Rule) -> None:
    """State that a primitive is linear, with its transpose from (cotangent, *operands, **params)."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        out = primitive.bind(*primals, **params)
        return out, primitive.bind(*map(instantiate_zeros, tangents), **params)

    primitive_jvps[primitive] = jvp
    primitive_transposes[primitive] = transpose_rule


def defbilinear(primitive: Primitive, lhs_rule: Rule, rhs_rule: Rule) -> None:
    """State that a primitive is linear in each of two operands, with transposes from (cotangent, x, y, **params)."""

    def transpose(ct: Any, x: Any, y: Any, **params: Any) -> Any:
        if is_undefined_primal(x):
            return lhs_rule(ct, x, y, **params), None
        return None, rhs_rule(ct, x, y, **params)

    defjvp(
        primitive,
        lambda t, x, y, **params: primitive.bind(t, y, **params),
        lambda t, x, y, **params: primitive.bind(x, t, **params),
    )
    primitive_transposes[primitive] = transpose


__getattr__ = internal("jax.interpreters.ad")
