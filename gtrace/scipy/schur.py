"""Decompositions into Hessenberg and triangular form by LAPACK, and functions of matrices made of them.

SciPy makes the calls, on the CPU; they have no derivatives, as in JAX.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy

from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeDtypeStruct,
    ShapeError,
    custom_jvp,
    message,
    ops,
    promote_arrays,
    pure_callback,
)
from gtrace.numpy import linalg

__all__ = ["fiedler_companion", "funm", "hessenberg", "qr_multiply", "reflectors", "rsf2csf", "schur", "tridiagonal"]

_COMPLEX = {"float32": "complex64", "float64": "complex128"}


def _lapack(name: str) -> ModuleType:
    if importlib.util.find_spec("scipy") is None:
        fix = "Install it: pip install scipy."
        raise ArgumentError(message(name, "SciPy to be installed", "none", fix))
    return importlib.import_module("scipy.linalg")


def _square(name: str, a: Any) -> Array:
    (x,) = promote_arrays(name, a, floating=True)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(message(name, "square matrices", repr(x.aval), "Pass shape (..., n, n)."))
    return x


def _by_host(
    name: str,
    function: Callable[[Any], tuple[Any, ...]],
    a: Array,
    axes: int,
    results: Sequence[tuple[tuple[int, ...], Any]],
) -> Any:
    """Call a function of NumPy arrays for each of a batch, whose elements have `axes` axes; NaN of infinities and NaN.

    Args:
        results: the shape and dtype of each result.
    """

    def call(batch: Any) -> list[Any]:
        given = numpy.asarray(batch)
        lead = given.shape[: given.ndim - axes]
        outs = [numpy.empty(lead + shape, str(dtype)) for shape, dtype in results]
        for place in numpy.ndindex(lead):
            usable = numpy.isfinite(given[place]).all()  # LAPACK may take forever otherwise
            for out, found in zip(outs, function(given[place]) if usable else [numpy.nan] * len(outs), strict=True):
                out[place] = found
        return outs

    like = [ShapeDtypeStruct(a.shape[: a.ndim - axes] + shape, dtype) for shape, dtype in results]

    @custom_jvp
    def run(x: Array) -> Any:
        return tuple(pure_callback(call, like, x, vmap_method="expand_dims"))

    @run.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        fix = "Differentiate a function of eig, svd or qr, or put gt.stop_gradient around it."
        raise ArgumentError(message(name, "no derivative of it to be taken", "one", fix))

    return run(a)


def hessenberg(a: Any, calc_q: bool = False) -> Any:
    """Return matrices in Hessenberg form, zero below the first subdiagonal; with `calc_q` (H, Q), a == Q @ H @ Q.mH.

    >>> from gtrace.scipy.schur import hessenberg
    >>> h, q = hessenberg(gt.array([[1., 2., 3.], [4., 5., 6.], [7., 8., 1.]]), calc_q=True)
    >>> gt.round(q @ h @ q.mT).tolist()
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 1.0]]
    """
    x = _square("hessenberg", a)
    n, lapack = x.shape[-1], _lapack("hessenberg")
    both = [((n, n), x.dtype)] * 2
    h, q = _by_host("hessenberg", lambda m: lapack.hessenberg(m, calc_q=True), x, 2, both)
    return (h, q) if calc_q else h


def reflectors(a: Any) -> tuple[Array, Array]:
    """Return the Hessenberg form as LAPACK's gehrd has it: with the reflectors below it, and their factors."""
    x = _square("hessenberg", a)
    n, lapack = x.shape[-1], _lapack("hessenberg")

    def one(m: Any) -> tuple[Any, ...]:
        run, size = lapack.get_lapack_funcs(("gehrd", "gehrd_lwork"), (m,))
        found, tau, _ = run(m, lo=0, hi=n - 1, lwork=int(size(n, lo=0, hi=n - 1)[0].real))
        return found, tau

    pair: tuple[Array, Array] = _by_host("hessenberg", one, x, 2, [((n, n), x.dtype), ((n - 1,), x.dtype)])
    return pair


def schur(a: Any, output: str = "real") -> tuple[Array, Array]:
    """Return (T, Z) with a == Z @ T @ Z.mH: Z is unitary, and T triangular.

    Args:
        output: "real": of real matrices, T has blocks of 2 for pairs of complex eigenvalues; "complex".

    >>> from gtrace.scipy.schur import schur
    >>> t, z = schur(gt.array([[0., 2.], [2., 0.]]))
    >>> sorted(round(float(v)) for v in gt.linalg.diagonal(t))
    [-2, 2]
    """
    if output not in ("real", "complex"):
        raise ArgumentError(message("schur", "real or complex as output", repr(output), "Pass one of them."))
    x = _square("schur", a)
    n, lapack = x.shape[-1], _lapack("schur")
    kind = x.dtype if output == "real" or x.aval.complex else _COMPLEX[str(x.dtype)]
    found: tuple[Array, Array] = _by_host("schur", lambda m: lapack.schur(m, output), x, 2, [((n, n), kind)] * 2)
    return found


def rsf2csf(T: Any, Z: Any) -> tuple[Array, Array]:  # noqa: N803 - SciPy's names
    """Return the real form of `schur` as the complex one.

    >>> from gtrace.scipy.schur import rsf2csf, schur
    >>> rsf2csf(*schur(gt.array([[0., 1.], [-1., 0.]])))[0].dtype
    gtrace.complex64
    """
    t, z = promote_arrays("rsf2csf", T, Z, floating=True)
    if t.aval.complex:
        return t, z
    n, lapack = _square("rsf2csf", t).shape[-1], _lapack("rsf2csf")
    both = ops.concat([ops.expand_dims(t, -3), ops.expand_dims(z, -3)], -3)
    results = [((n, n), _COMPLEX[str(t.dtype)])] * 2
    found: tuple[Array, Array] = _by_host("rsf2csf", lambda pair: lapack.rsf2csf(*pair), both, 3, results)
    return found


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Return the tridiagonal form of Hermitian matrices, as LAPACK's sytrd has it.

    Returns:
        The reflectors with the form, the diagonal, what is beside it, and the factors of the reflectors.
    """
    x = _square("tridiagonal", a)
    n, lapack = x.shape[-1], _lapack("tridiagonal")
    real = str(x.dtype).replace("complex64", "float32").replace("complex128", "float64")
    name = "hetrd" if x.aval.complex else "sytrd"

    def one(m: Any) -> tuple[Any, ...]:
        run, size = lapack.get_lapack_funcs((name, name + "_lwork"), (m,))
        c, d, e, tau, info = run(m, lower=lower, lwork=int(size(n, lower=lower)[0].real))
        if info:
            raise ArgumentError(
                message("tridiagonal", "matrices of numbers", f"info {info} from LAPACK", "Check them.")
            )
        return c, d, e, tau

    found: tuple[Array, Array, Array, Array] = _by_host(
        "tridiagonal", one, x, 2, [((n, n), x.dtype), ((n,), real), ((n - 1,), real), ((n - 1,), x.dtype)]
    )
    return found


def funm(A: Any, func: Callable[[Array], Any], disp: bool = True) -> Any:  # noqa: N803 - SciPy's name
    """Return a function of a matrix, by its complex triangular form and Parlett's recurrence; complex.

    Args:
        func: of an array of complex numbers, element by element.
        disp: False: return an estimate of the relative error, too.

    >>> from gtrace.scipy.schur import funm
    >>> gt.round(funm(gt.array([[4., 0.], [0., 9.]]), gt.sqrt).real, 4).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    t, z = rsf2csf(*schur(A))
    n = t.shape[-1]
    values = linalg.diagonal(t)
    one = ops.eye(n, dtype=t.aval.dtype)
    whole = one * ops.expand_dims(func(values), -2)
    above, known = ops.triu(t, 1), ops.multiply(t, 0)
    apart = ops.expand_dims(values, -2) - ops.expand_dims(values, -1)
    same = ops.equal(apart, 0)
    images = linalg.diagonal(whole)
    grown = ops.expand_dims(images, -2) - ops.expand_dims(images, -1)
    for k in range(1, n):
        here = ops.array(numpy.eye(n, k=k, dtype=bool))
        between = above @ known - known @ above
        total = t * grown + between
        known = known + ops.where(here, total / ops.where(same, 1, apart), 0)
    whole = z @ (whole + known) @ ops.conj(ops.matrix_transpose(z))
    if disp:
        return whole
    sizes = abs(ops.where(ops.array(numpy.triu(numpy.ones((n, n), bool), 1)), apart, numpy.inf))
    least = sizes.min() if n > 1 else ops.array(1.0)
    least = ops.where(ops.equal(least, 0), numpy.finfo(numpy.float32).eps, least)
    eps = numpy.finfo(str(least.dtype)).eps
    error = eps * ops.divide(linalg.norm(ops.triu(t, 1), 1), least)
    error = ops.where(error < eps, eps, ops.where(error > 1, 1.0, error))
    return whole, error


def fiedler_companion(a: Any) -> Array:
    """Return a matrix with five diagonals whose eigenvalues are the roots of a polynomial, the highest power first.

    >>> from gtrace.scipy.schur import fiedler_companion
    >>> fiedler_companion(gt.array([1., -3., 2.])).tolist()
    [[3.0, -2.0], [1.0, 0.0]]
    """
    (x,) = promote_arrays("fiedler_companion", a, floating=True)
    if x.ndim != 1:
        raise ShapeError(message("fiedler_companion", "one dimension", repr(x.aval), "Use gt.ravel."))
    n = x.size - 1
    if n < 2:
        return (-1 * ops.divide(x[1:], x[0]))[:, None] if n == 1 else ops.zeros((0,), x.aval.dtype)
    scaled = ops.divide(x, x[0])
    ones, from_a = numpy.zeros((n, n)), numpy.zeros((n, n), int)
    ones[numpy.arange(3, n, 2), numpy.arange(1, n - 2, 2)] = 1
    ones[numpy.arange(0, n - 2, 2), numpy.arange(2, n, 2)] = 1
    ones[1, 0] = 1
    from_a[numpy.arange(2, n, 2), numpy.arange(1, n - 1, 2)] = numpy.arange(3, n + 1, 2)
    from_a[numpy.arange(0, n - 1, 2), numpy.arange(1, n, 2)] = numpy.arange(2, n + 1, 2)
    from_a[0, 0] = 1
    taken = scaled[ops.array(from_a)] * ops.array(-(from_a > 0).astype(numpy.float32)).astype(x.dtype)
    return taken + ops.array(ones).astype(x.dtype)


def qr_multiply(a: Any, c: Any, mode: str = "right", pivoting: bool = False, conjugate: bool = False) -> Any:
    """Return the product of a matrix with the orthonormal factor Q of another, and the triangular factor R.

    Args:
        a: the matrix that is factored, in its economic form.
        c: the other; with one axis, so has the product.
        mode: "left": Q @ c; "right": c @ Q.
        conjugate: with the conjugate of Q.

    Raises:
        ArgumentError: another mode, or pivoting.

    >>> from gtrace.scipy.schur import qr_multiply
    >>> gt.round(qr_multiply(gt.eye(2) * -2, gt.array([1., 3.]))[0], 3).tolist()
    [1.0, 3.0]
    """
    if pivoting:
        raise ArgumentError(message("qr_multiply", "pivoting=False", "True", "Use svd to find the rank."))
    if mode not in ("left", "right"):
        raise ArgumentError(message("qr_multiply", "left or right as mode", repr(mode), "Pass one of them."))
    a, c = promote_arrays("qr_multiply", a, c, floating=True)
    q, r = linalg.qr(a, mode="reduced")
    q = ops.conj(q) if conjugate and q.aval.complex else q
    vector = c.ndim == 1
    if vector:
        c = c[:, None] if mode == "left" else c[None]
    out = ops.matmul(q, c) if mode == "left" else ops.matmul(c, q)
    return (out[:, 0] if mode == "left" else out[0]) if vector else out, r
