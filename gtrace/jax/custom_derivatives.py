"""The names of ``jax.custom_derivatives``: gtrace's functions with rules of their own, with JAX's options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

import gtrace as gt
from gtrace.extend import Aval
from gtrace.jax import paths
from gtrace.jax.adapt import namespace
from gtrace.jax.avals import ShapedArray, SymbolicZero, zeros_like_aval
from gtrace.jax.dtypes import float0
from gtrace.jax.extend.core.primitives import custom_jvp_call_p as custom_jvp_call_p
from gtrace.jax.extend.core.primitives import custom_vjp_call_p as custom_vjp_call_p


@attrs.frozen
class CustomVJPPrimal:
    """An argument of a forward rule under ``symbolic_zeros=True``.

    Attributes:
        value: the argument.
        perturbed: whether a derivative by it is wanted.
    """

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """Return a pytree with the values in place of `CustomVJPPrimal` leaves."""
    return gt.tree.map(lambda x: x.value, tree, is_leaf=lambda x: isinstance(x, CustomVJPPrimal))


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangents of a pytree: arrays, or `SymbolicZero`.

    >>> zero_from_primal(gt.ones(2)), zero_from_primal(gt.ones(2), symbolic_zeros=True)
    (Array([0., 0.], dtype=float32), SymbolicZero(float32[2]))
    """
    zeros = paths.map(SymbolicZero.from_primal_value, val)
    return zeros if symbolic_zeros else paths.map(lambda zero: zeros_like_aval(zero.aval), zeros)


def _zero(a: Aval, symbolic: bool) -> Any:
    """Return what a rule gets where nothing changes: a `SymbolicZero`, or an array, of ``float0`` for integers."""
    zero = SymbolicZero(ShapedArray(a.shape, a.dtype).to_tangent_aval())
    return zero if symbolic else zeros_like_aval(zero.aval)


_STATEMENTS = frozenset(["def_vmap", "defjvp", "defjvps", "defvjp"])


class Stating:
    """A function with a rule. The methods by which rules of other kinds are stated are those of the function in it."""

    __wrapped__: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        if name in _STATEMENTS:
            return getattr(self.__wrapped__, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


class custom_vjp(Stating, gt.custom_vjp):  # noqa: N801 - JAX's name
    """``gt.custom_vjp``, with JAX's names of parameters and its options of `defvjp`."""

    _symbolic = False

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)

    def defvjp(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:  # fmt: skip
        """State the rule.

        With `symbolic_zeros`, `fwd` gets each array as a `CustomVJPPrimal`, and `bwd` gets a `SymbolicZero` for each
        result that no derivative depends on. The cotangent of integers and keys may be an array of ``float0``, as in
        JAX, or None.
        """

        def without_float0(*args: Any) -> Any:
            found = bwd(*args)
            if not isinstance(found, (tuple, list)):
                return found
            return type(found)([None if getattr(g, "dtype", None) == float0 else g for g in found])

        self._symbolic = symbolic_zeros
        super().defvjp(fwd, without_float0)

    def _zero(self, a: Aval) -> Any:
        return _zero(a, self._symbolic)

    def _for_forward(self, arguments: Sequence[Any], needed: Sequence[bool]) -> Sequence[Any]:
        if not self._symbolic:
            return arguments
        flags = iter(needed)

        def mark(x: Any) -> CustomVJPPrimal:
            return CustomVJPPrimal(x, next(flags) and type(x) is gt.Array and x.aval.floating)

        return list(paths.map(mark, list(arguments)))


class custom_jvp(Stating, gt.custom_jvp):  # noqa: N801 - JAX's name
    """``gt.custom_jvp``, with JAX's names of parameters and its option of `defjvp`."""

    _symbolic = False

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Any = (), nondiff_argnames: Any = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """State the rule. With `symbolic_zeros` it gets, and may return, a `SymbolicZero` for what does not change."""
        self._symbolic = symbolic_zeros
        return super().defjvp(jvp)

    def _zero(self, a: Aval) -> Any:
        return _zero(a, self._symbolic)


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
