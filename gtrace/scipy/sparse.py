"""Linear systems given by a function: conjugate gradients and related methods, with the names of SciPy.

The derivative of a solution is that of the system, by one more solution, and not that of the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gtrace.extend import (
    Array,
    closure_convert,
    custom_vjp,
    linear_transpose,
    ops,
    promote_arrays,
    ravel_pytree,
    tree,
    vjp,
    while_loop,
)
from gtrace.numpy import linalg

__all__ = ["bicgstab", "cg", "gmres"]

Product = Callable[[Array], Array]


def _dot(x: Array, y: Array) -> Array:
    return ops.dot(ops.conj(x), y)


def _cg(product: Product, b: Array, x: Array, limit: Array, most: int, M: Product) -> Array:  # noqa: N803
    r = b - product(x)
    z = M(r)

    def going(state: Any) -> Any:
        _, r, _, _, k = state
        return ops.logical_and(ops.sqrt(_dot(r, r).real) > limit, ops.less(k, most))

    def step(state: Any) -> Any:
        x, r, p, rz, k = state
        ap = product(p)
        alpha = ops.divide(rz, _dot(p, ap))
        x, r = x + alpha * p, r - alpha * ap
        z = M(r)
        new = _dot(r, z)
        return x, r, z + ops.divide(new, rz) * p, new, k + 1

    found: Array = while_loop(going, step, (x, r, z, _dot(r, z), ops.array(0)))[0]
    return found


def _bicgstab(product: Product, b: Array, x: Array, limit: Array, most: int, M: Product) -> Array:  # noqa: N803
    r = b - product(x)
    one = _dot(r, r) * 0 + 1

    def going(state: Any) -> Any:
        r, k, broken = state[1], state[7], state[8]
        return ops.logical_and(ops.logical_and(ops.sqrt(_dot(r, r).real) > limit, ops.less(k, most)), ~broken)

    def step(state: Any) -> Any:
        x, r, p, q, rho, alpha, omega, k, _ = state
        new = _dot(shadow, r)
        beta = ops.divide(new, rho) * ops.divide(alpha, omega)
        p = r + beta * (p - omega * q)
        better = M(p)
        q = product(better)
        alpha = ops.divide(new, _dot(shadow, q))
        s = r - alpha * q
        z = M(s)
        t = product(z)
        tt = _dot(t, t)
        omega = ops.where(ops.equal(tt, 0), 0.0, _dot(t, s) / ops.where(ops.equal(tt, 0), 1.0, tt))
        x = x + alpha * better + omega * z
        # a product of 0 leaves no direction to go on in
        broken = ops.equal(omega, 0) | ops.equal(new, 0)
        return x, s - omega * t, p, q, new, alpha, omega, k + 1, broken

    shadow = r
    start = (x, r, r * 0, r * 0, one, one, one, ops.array(0), ops.array(False))
    found: Array = while_loop(going, step, start)[0]
    return found


def _gmres(restart: int) -> Callable[..., Array]:
    def solve(product: Product, b: Array, x: Array, limit: Array, most: int, M: Product) -> Array:  # noqa: N803
        size = min(restart, b.size)

        def going(state: Any) -> Any:
            _, r, k = state
            return ops.logical_and(linalg.norm(r) > limit, ops.less(k, most))

        def cycle(state: Any) -> Any:
            x, r, k = state
            beta = linalg.norm(r)
            basis, columns = [r / ops.where(ops.equal(beta, 0), 1.0, beta)], []
            for j in range(size):
                w = M(product(basis[j]))
                column: list[Array] = []
                # twice, so that the basis stays orthogonal
                for _ in range(2):
                    parts = [_dot(v, w) for v in basis]
                    for v, h in zip(basis, parts, strict=True):
                        w = w - h * v
                    column = parts if not column else [a + c for a, c in zip(column, parts, strict=True)]
                norm = linalg.norm(w)
                small = ops.less(norm, 1e-7 * beta)
                basis.append(ops.where(small, 0.0, w / ops.where(small, 1.0, norm)))
                filled = [*column, ops.where(small, 0.0, norm) + 0 * column[0]]
                columns.append(ops.concat([h.reshape((1,)) for h in filled] + [ops.zeros(size - j - 1, w.aval.dtype)]))
            matrix = ops.concat([c[:, None] for c in columns], 1)
            target = ops.concat([(beta + 0 * columns[0][0]).reshape((1,)), ops.zeros(size, r.aval.dtype)])
            weights = linalg.pinv(matrix) @ target
            for v, y in zip(basis, weights, strict=False):
                x = x + ops.multiply(v, y)
            return x, M(b - product(x)), k + 1

        found: Array = while_loop(going, cycle, (x, M(b - product(x)), ops.array(0)))[0]
        return found

    return solve


def _solve(
    name: str, method: Callable[..., Array], A: Any, b: Any, x0: Any, tol: float, atol: float, maxiter: int | None,  # noqa: N803
    M: Any, symmetric: bool,  # noqa: N803
) -> tuple[Any, None]:  # fmt: skip
    flat, unravel = ravel_pytree(tree.map(lambda leaf: promote_arrays(name, leaf, floating=True)[0], b))

    def as_product(given: Any) -> Product:
        if given is None:
            return lambda x: x
        if callable(given):
            return lambda x: ravel_pytree(given(unravel(x)))[0]
        return lambda x: ops.matmul(ops.array(given), x)

    flat = promote_arrays(name, flat, as_product(A)(flat))[0]
    start = flat * 0 if x0 is None else ravel_pytree(x0)[0].astype(flat.dtype)
    most = 10 * flat.size if maxiter is None else maxiter
    product, constants = closure_convert(as_product(A), flat)
    better = as_product(M)

    def run(function: Product, right: Array, guess: Array) -> Array:
        limit = ops.maximum(tol * linalg.norm(right), atol)
        return method(function, right, guess, limit, most, better)

    @custom_vjp
    def solution(right: Array, *constants: Array) -> Array:
        return run(lambda x: product(x, *constants), right, start)

    def forward(right: Array, *constants: Array) -> Any:
        x = solution(right, *constants)
        return x, (x, constants)

    def backward(kept: Any, ct: Array) -> Any:
        x, constants = kept

        def transposed(y: Array) -> Array:
            if symmetric:
                return product(y, *constants)
            out: Array = linear_transpose(lambda z: product(z, *constants), x)(y)[0]
            return out

        back = run(transposed, ct, ct * 0)
        if not constants:
            return (back,)
        pull = vjp(lambda *c: product(x, *c), *constants)[1]
        return (back, *[-c for c in pull(back)])

    solution.defvjp(forward, backward)
    start = ops.stop_gradient(start)
    return unravel(solution(flat, *constants)), None


def cg(
    A: Any,  # noqa: N803 - SciPy's name
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,  # noqa: N803
) -> tuple[Any, None]:
    """Return x with ``A(x) == b`` for a positive definite A, by conjugate gradients; and None.

    Args:
        A: a function of a pytree, or a matrix.
        x0: where to begin; None: at 0.
        tol, atol: it ends where the residual's norm is at most ``max(tol * norm(b), atol)``.
        maxiter: most steps; None: ten for each element.
        M: an approximation of the inverse of A, as A.

    >>> from gtrace.scipy.sparse import cg
    >>> gt.round(cg(lambda x: 2 * x, gt.array([2., 4.]))[0], 4)
    Array([1., 2.], dtype=float32)
    """
    return _solve("cg", _cg, A, b, x0, tol, atol, maxiter, M, True)


def bicgstab(
    A: Any,  # noqa: N803 - SciPy's name
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,  # noqa: N803
) -> tuple[Any, None]:
    """Return x with ``A(x) == b``, by stabilized biconjugate gradients; and None. The arguments are those of `cg`.

    >>> from gtrace.scipy.sparse import bicgstab
    >>> gt.round(bicgstab(gt.array([[2., 1.], [0., 1.]]), gt.array([4., 2.]))[0], 4)
    Array([1., 2.], dtype=float32)
    """
    return _solve("bicgstab", _bicgstab, A, b, x0, tol, atol, maxiter, M, False)


def gmres(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, restart: int = 20,  # noqa: N803
    maxiter: int | None = None, M: Any = None,  # noqa: N803
) -> tuple[Any, None]:  # fmt: skip
    """Return x with ``A(x) == b``, by the method of generalized minimal residuals; and None.

    Args: those of `cg`, and
        restart: directions after which it begins anew; `maxiter` counts those cycles.

    >>> from gtrace.scipy.sparse import gmres
    >>> gt.round(gmres(gt.array([[2., 1.], [0., 1.]]), gt.array([4., 2.]))[0], 4)
    Array([1., 2.], dtype=float32)
    """
    return _solve("gmres", _gmres(restart), A, b, x0, tol, atol, maxiter, M, False)
