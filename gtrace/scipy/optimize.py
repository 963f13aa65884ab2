"""Minimization by quasi-Newton steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gtrace.extend import ArgumentError, Array, ShapeError, as_arrays, message, ops, value_and_grad, while_loop

__all__ = ["OptimizeResults", "minimize"]

ARMIJO, CURVATURE = 1e-4, 0.9
"""The parts of the slope at the start that a step must win, and may leave."""

MAX_SEARCH = 30
"""Evaluations in one line search."""


class OptimizeResults(NamedTuple):
    """The result of `minimize`.

    Attributes:
        x: the minimum.
        success: whether the gradient is small enough there.
        status: 0, or 1 where the iterations ended first, or 3 where a line search failed.
        fun, jac: the value and the gradient at x.
        hess_inv: the approximation of the inverse Hessian.
        nfev, njev: evaluations of the function and of its gradient.
        nit: iterations.
    """

    x: Array
    success: Array
    status: Array
    fun: Array
    jac: Array
    hess_inv: Array
    nfev: Array
    njev: Array
    nit: Array


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: Sequence[Any] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """Return a local minimum of a function of a vector, by BFGS (Nocedal and Wright, 2006, algorithm 6.1).

    The step along each direction is found by bisection between the weak Wolfe conditions.

    Args:
        fun: from a vector, and `args`, to a real number.
        x0: where to start, of shape (n,).
        method: "BFGS".
        tol: the largest element of the gradient at the end; 1e-5 by default. ``options["gtol"]`` says the same.
        options: also ``"maxiter"``, by default 200 times n.

    Raises:
        ArgumentError: another method or option.
        ShapeError: x0 is no vector.

    >>> from gtrace.scipy.optimize import minimize
    >>> found = minimize(lambda x: ((x - gt.array([1., 2.])) ** 2).sum(), gt.zeros(2), method="BFGS")
    >>> found.x, bool(found.success)
    (Array([1., 2.], dtype=float32), True)
    """
    if method.lower() != "bfgs":
        raise ArgumentError(message("minimize", "BFGS as method", repr(method), "Use optax for large problems."))
    settings = {"gtol": 1e-5 if tol is None else tol, "maxiter": None, **(options or {})}
    unknown = sorted(set(settings) - {"gtol", "maxiter", "norm", "line_search_maxiter"})
    if unknown:
        raise ArgumentError(message("minimize", "the options gtol and maxiter", unknown[0], "Leave it out."))
    (start,) = as_arrays("minimize", x0)
    if start.ndim != 1:
        raise ShapeError(message("minimize", "a vector x0", repr(start.aval), "Use gt.ravel_pytree."))
    gtol = settings["gtol"]
    most = 200 * start.size if settings["maxiter"] is None else settings["maxiter"]
    evaluate = value_and_grad(lambda x: ops.array(fun(x, *args)))
    identity = ops.eye(start.size, dtype=start.aval.dtype, device=start.aval.device)

    def search(x: Array, f: Array, g: Array, p: Array, first: Array) -> Any:
        slope = ops.dot(g, p)

        def going(state: Any) -> Array:
            *_, count, done, _, _ = state
            return ops.logical_and(ops.logical_not(done), count < MAX_SEARCH)

        def move(state: Any) -> Any:
            step, low, high, count, _, *_ = state
            value, gradient = evaluate(x + step * p)
            falls = ops.logical_and(ops.isfinite(value), value <= f + ARMIJO * step * slope)
            flat = ops.dot(gradient, p) >= CURVATURE * slope
            done = ops.logical_and(falls, flat)
            new_low, new_high = ops.where(falls, step, low), ops.where(falls, high, step)
            middle = ops.where(ops.isfinite(new_high), (new_low + new_high) / 2, 2 * new_low)
            return ops.where(done, step, middle), new_low, new_high, count + 1, done, value, gradient

        none = start[0] * 0
        state = (first, none, none + float("inf"), ops.array(0), ops.array(False), f, g)
        step, _, _, count, done, value, gradient = while_loop(going, move, state)
        return step, count, done, value, gradient

    def unfinished(state: Any) -> Array:
        _, _, g, _, k, _, failed = state
        steep = ops.max(ops.absolute(g)) > gtol
        return ops.logical_and(ops.logical_and(steep, k < most), ops.logical_not(failed))

    def iterate(state: Any) -> Any:
        x, f, g, h, k, calls, _ = state
        p = -ops.dot(h, g)
        norm = ops.sqrt(ops.dot(g, g))
        first = ops.where(k == 0, 1.0 / ops.where(norm > 1, norm, 1.0), 1.0)
        step, count, found, value, gradient = search(x, f, g, p, first)
        s, y = step * p, gradient - g
        curved = ops.dot(s, y)
        usable = ops.logical_and(found, curved > 0)
        rho = ops.where(usable, 1.0 / ops.where(usable, curved, 1.0), 0.0)
        left = identity - rho * ops.outer(s, y)
        updated = ops.dot(ops.dot(left, h), left.T) + rho * ops.outer(s, s)
        return (
            ops.where(found, x + s, x), ops.where(found, value, f), ops.where(found, gradient, g),
            ops.where(usable, updated, h),
            k + 1, calls + count, ops.logical_not(found),
        )  # fmt: skip

    f, g = evaluate(start)
    state = (start, f, g, identity, ops.array(0), ops.array(1), ops.array(False))
    x, f, g, h, k, calls, failed = while_loop(unfinished, iterate, state)
    success = ops.max(ops.absolute(g)) <= gtol
    status = ops.where(success, 0, ops.where(failed, 3, 1))
    return OptimizeResults(x, success, status, f, g, h, calls, calls, k)
