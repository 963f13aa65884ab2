"""The names of ``jax.custom_derivatives``: gtrace's functions with rules of their own, with JAX's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

import gtrace as gt
from gtrace.core.base import tree
from gtrace.jax.adapt import namespace
from gtrace.jax.dtypes import float0


class SymbolicZero:
    """A tangent or cotangent that is known to be zero: an array of zeros. Nothing is an instance of this class.

    >>> import gtrace.jax as jax
    >>> SymbolicZero(jax.ShapeDtypeStruct((2,), "float32"))
    Array([0., 0.], dtype=float32)
    """

    def __new__(cls, aval: Any) -> Any:
        return gt.zeros(aval.shape, aval.dtype)


@attrs.frozen
class CustomVJPPrimal:
    """An argument of a forward rule under ``symbolic_zeros=True``.

    Attributes:
        value: the argument.
        perturbed: whether its derivative is wanted. It is True for all arguments: rules do not see which.
    """

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """Return a pytree with the values in place of `CustomVJPPrimal` leaves."""
    return gt.tree.map(lambda x: x.value, tree, is_leaf=lambda x: isinstance(x, CustomVJPPrimal))


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangent of a value.

    >>> zero_from_primal(gt.ones(2))
    Array([0., 0.], dtype=float32)
    """
    return gt.zeros_like(val)


class custom_vjp(gt.custom_vjp):  # noqa: N801 - JAX's name
    """``gt.custom_vjp``, with JAX's names of parameters and its options of `defvjp`."""

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)

    def defvjp(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:  # fmt: skip
        """State the rule; with `symbolic_zeros`, `fwd` gets each array as a `CustomVJPPrimal`.

        The cotangent of integers and keys may be an array of ``float0``, as in JAX, or None.
        """

        def marked(*args: Any) -> Any:
            return fwd(*[tree.map(lambda x: CustomVJPPrimal(x, True), arg) for arg in args])

        def without_float0(*args: Any) -> Any:
            found = bwd(*args)
            if not isinstance(found, (tuple, list)):
                return found
            return type(found)([None if getattr(g, "dtype", None) == float0 else g for g in found])

        super().defvjp(marked if symbolic_zeros else fwd, without_float0)


class custom_jvp(gt.custom_jvp):  # noqa: N801 - JAX's name
    """``gt.custom_jvp``, with JAX's names of parameters and its option of `defjvp`."""

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """State the rule. With `symbolic_zeros`, too, it gets arrays of zeros, and may return `SymbolicZero`."""
        return super().defjvp(jvp)


def linear_call(
    fun: Callable[[Any, Any], Any], fun_transpose: Callable[[Any, Any], Any], residual_args: Any, linear_args: Any
) -> Any:
    """Return ``fun(residual_args, linear_args)``, a linear function of the latter with a transpose of its own.

    >>> scale = lambda r, x: r * x
    >>> gt.grad(lambda x: linear_call(scale, lambda r, ct: 10 * r * ct, 2.0, x))(3.0)
    Array(20., dtype=float32)
    """

    @gt.custom_vjp
    def linear(residual: Any, x: Any) -> Any:
        return fun(residual, x)

    def forward(residual: Any, x: Any) -> Any:
        return linear(residual, x), residual

    def backward(residual: Any, ct: Any) -> Any:
        return None, linear_call(fun_transpose, fun, residual, ct)

    linear.defvjp(forward, backward)

    @gt.custom_jvp
    def call(residual: Any, x: Any) -> Any:
        return linear(residual, x)

    @call.defjvp
    def pushed(primals: Any, tangents: Any) -> Any:
        # the residuals are constants of the linear function
        return linear(*primals), linear(primals[0], tangents[1])

    return call(residual_args, linear_args)


__getattr__, __dir__ = namespace("jax.custom_derivatives", gt)
