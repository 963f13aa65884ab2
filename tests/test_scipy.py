"""Functions under SciPy's names: matrices, transforms, iterative solvers, grids, distributions, against SciPy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.fft
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import scipy.spatial.transform
import scipy.special
import scipy.stats

import gtrace as gt
from gtrace.errors import ArgumentError, ShapeError
from gtrace.scipy import fft, grids, matrices, rotation, schur, sparse, stats

RNG = np.random.default_rng(0)
V, W = RNG.normal(size=4), RNG.normal(size=(4, 4))
POSITIVE = W @ W.T + np.eye(4)


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("companion", (V,)), ("dft", (5,)), ("dft", (4, "sqrtn")), ("fiedler", (V,)), ("hadamard", (8,)),
        ("helmert", (4,)), ("helmert", (4, True)), ("invhilbert", (4,)), ("leslie", (V, V[1:])), ("sqrtm", (POSITIVE,)),
        ("sqrtm", (W,)), ("solve_sylvester", (POSITIVE, POSITIVE[:2, :2], W[:, :2])), ("expm_frechet", (W, POSITIVE)),
        ("eigh_tridiagonal", (V, V[1:], True)),
        *[("convolution_matrix", (V, n, mode)) for n in (3, 6) for mode in ("full", "same", "valid")],
        *[(name, (4, kind)) for name in ("pascal", "invpascal") for kind in ("symmetric", "lower", "upper")],
    ],
)  # fmt: skip
def test_matrices_are_scipys(name, args):
    function = getattr(matrices, name)
    given = [gt.array(x) if isinstance(x, np.ndarray) else x for x in args]
    ours = function(*given[:2], eigvals_only=True) if name == "eigh_tridiagonal" else function(*given)
    theirs = getattr(scipy.linalg, name)(*args)
    for a, b in zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]:
        close(a, b)


def test_matrices_refuse_what_does_not_fit():
    with pytest.raises(ArgumentError, match="a power of 2"):
        matrices.hadamard(6)
    with pytest.raises(ShapeError, match="3 rates of survival"):
        matrices.leslie(V, V)
    with pytest.raises(ArgumentError, match="symmetric, lower or upper"):
        matrices.pascal(3, "full")


@pytest.mark.parametrize("name", ["dct", "idct"])
@pytest.mark.parametrize("norm", [None, "ortho"])
def test_cosine_transforms(name, norm):
    x = RNG.normal(size=(3, 5))
    for n in (None, 4, 7):
        close(getattr(fft, name)(gt.array(x), n=n, norm=norm), getattr(scipy.fft, name)(x, n=n, norm=norm))
    close(getattr(fft, f"{name}n")(gt.array(x), norm=norm), getattr(scipy.fft, f"{name}n")(x, norm=norm))
    close(getattr(fft, name)(gt.array(x), axis=0, norm=norm), getattr(scipy.fft, name)(x, axis=0, norm=norm))
    with pytest.raises(ArgumentError, match="type 2"):
        fft.dct(x, type=3)


@pytest.mark.parametrize("solve", [sparse.cg, sparse.bicgstab, sparse.gmres])
def test_iterative_solutions_and_their_derivatives(solve):
    a, b = gt.array(POSITIVE), gt.array(V)
    x, info = solve(a, b, tol=1e-10)
    assert info is None
    close(x, np.linalg.solve(POSITIVE, V), 1e-6)
    close(solve(lambda y: {"x": a @ y["x"]}, {"x": b}, tol=1e-10, M=lambda y: y)[0]["x"], x, 1e-6)
    ours = gt.grad(lambda a, b: (solve(lambda y: a @ y, b, tol=1e-10)[0] ** 2).sum(), (0, 1))(a, b)
    theirs = gt.grad(lambda a, b: (gt.linalg.solve(a, b) ** 2).sum(), (0, 1))(a, b)
    for first, second in zip(ours, theirs, strict=True):
        close(first, second.numpy(), 1e-5)
    few = {"restart": 1} if solve is sparse.gmres else {}
    assert np.abs(solve(a, b, maxiter=1, **few)[0].numpy() - x.numpy()).max() > 1e-3, "it stops when it is told to"


def test_general_systems_and_restarts():
    a = W + 3 * np.eye(4)
    close(sparse.gmres(gt.array(a), gt.array(V), tol=1e-10, restart=2)[0], np.linalg.solve(a, V), 1e-6)
    close(sparse.bicgstab(gt.array(a), gt.array(V), tol=1e-10)[0], np.linalg.solve(a, V), 1e-6)
    assert sparse.cg(gt.array(POSITIVE), gt.zeros(4))[0].tolist() == [0.0] * 4


@pytest.mark.parametrize("order", [0, 1])
def test_places_between_elements(order):
    x = RNG.normal(size=(5, 6))
    outside = [RNG.uniform(-2, 6, 9), RNG.uniform(-2, 8, 9)]
    for mode in ("nearest", "mirror", "reflect"):
        ours = grids.map_coordinates(gt.array(x), outside, order, mode)
        close(ours, scipy.ndimage.map_coordinates(x, outside, order=order, mode=mode))
    inside = [RNG.uniform(0, 4, 9), RNG.uniform(0, 5, 9)]
    close(grids.map_coordinates(gt.array(x), inside, order), scipy.ndimage.map_coordinates(x, inside, order=order))
    far = grids.map_coordinates(gt.array(x), [gt.array([9.0]), gt.array([0.0])], order, cval=7.0)
    assert far.tolist() == [7.0]
    with pytest.raises(ArgumentError, match="order 0 or 1"):
        grids.map_coordinates(x, inside, 3)


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_grids_of_any_spacing(method):
    axes = (np.array([0.0, 1, 3, 4, 7]), np.array([0.0, 0.5, 1, 2]))
    values = RNG.normal(size=(5, 4, 2))
    points = np.stack([RNG.uniform(0, 7, (3, 3)), RNG.uniform(0, 2, (3, 3))], -1)
    ours = grids.RegularGridInterpolator(axes, values, method)
    close(ours(points), scipy.interpolate.RegularGridInterpolator(axes, values, method)(points))
    assert np.isnan(ours(np.array([[-1.0, 0.0]])).numpy()).all()
    filled = grids.RegularGridInterpolator(axes, values, method, fill_value=None)(np.array([[9.0, 1.0]]))
    theirs = scipy.interpolate.RegularGridInterpolator(axes, values, method, False, None)(np.array([[9.0, 1.0]]))
    close(filled, theirs)


@pytest.mark.parametrize(
    ("name", "k", "shapes"),
    [
        ("vonmises", 0.3, (2.0,)),
        ("wrapcauchy", 0.3, (0.4,)),
        ("gennorm", -0.3, (1.3,)),
        ("betabinom", 3, (10, 2.0, 3.0)),
    ],
)
def test_further_distributions(name, k, shapes):
    ours, theirs = getattr(stats, name), getattr(scipy.stats, name)
    logs = ("logpmf", "pmf") if name == "betabinom" else ("logpdf", "pdf")
    for method in logs if name != "gennorm" else (*logs, "cdf"):
        close(getattr(ours, method)(float(k), *shapes), getattr(theirs, method)(k, *shapes))


def test_shape_parameters_have_names():
    close(stats.gamma.logpdf(1.5, a=2.0, scale=0.5), scipy.stats.gamma.logpdf(1.5, a=2.0, scale=0.5))
    close(stats.beta.logpdf(0.3, b=2.0, a=1.0), scipy.stats.beta.logpdf(0.3, a=1.0, b=2.0))
    close(stats.poisson.logpmf(3.0, mu=2.0, loc=1), scipy.stats.poisson.logpmf(3, mu=2.0, loc=1))
    for wrong in ({"b": 2.0}, {"a": 1.0, "k": 2.0}):
        with pytest.raises(ArgumentError, match="expected a, loc, scale"):
            stats.gamma.logpdf(1.0, **wrong)
    with pytest.raises(ArgumentError, match="expected a, loc, scale"):
        stats.gamma.logpdf(1.0, 2.0, a=2.0)


def test_ranks_modes_and_densities():
    x = np.array([[3.0, 1, 3, 1], [2, 2, 5, 1]])
    for method in ("average", "min", "max", "dense", "ordinal"):
        close(stats.rankdata(x, method, axis=1), scipy.stats.rankdata(x, method, axis=1))
    for options in ({"axis": 1}, {"axis": None}, {"axis": 0, "keepdims": True}):
        ours, theirs = stats.mode(gt.array(x), **options), scipy.stats.mode(x, **options)
        close(ours.mode, theirs.mode), close(ours.count, theirs.count)
    data, weights = RNG.normal(size=(2, 20)), np.arange(1.0, 21)
    for bandwidth in (None, "silverman", 0.5):
        ours = stats.gaussian_kde(gt.array(data), bandwidth, gt.array(weights))
        close(ours(gt.array(data[:, :3])), scipy.stats.gaussian_kde(data, bandwidth, weights)(data[:, :3]))
    assert ours.resample(gt.random.key(0), (3, 4)).shape == (2, 3, 4)


def test_special_functions_of_counts_and_powers():
    x = np.array([-2.5, -1.5, 0.5, 3.0])
    close(gt.special.gammasgn(x), scipy.special.gammasgn(x))
    close(gt.special.poch(2.5, 3.0), scipy.special.poch(2.5, 3.0)), close(gt.special.poch(-2.5, 2.0), 3.75)
    close(gt.special.comb(10, np.arange(12)), scipy.special.comb(10, np.arange(12)))
    close(gt.special.comb(4, 2, repetition=True), 10.0), close(gt.special.bernoulli(8), scipy.special.bernoulli(8))
    for power in (0.0, 0.5):
        close(gt.special.boxcox(2.0, power), scipy.special.boxcox(2.0, power))
        close(gt.special.boxcox1p(1e-3, power), scipy.special.boxcox1p(1e-3, power))


def test_sums_of_exponentials_with_factors():
    x, b = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    b[0, 0], where = 0, x > -1
    for axis, keepdims in ((None, False), (1, False), (0, True)):
        ours = gt.logsumexp(gt.array(x), axis, keepdims, b=gt.array(b), return_sign=True)
        theirs = scipy.special.logsumexp(x, axis, b, keepdims, return_sign=True)
        close(ours[0], theirs[0]), close(ours[1], theirs[1])
    close(gt.logsumexp(gt.array(x), where=where), np.log(np.exp(x)[where].sum()))
    for a, b in ((1, 2.0), (1.0, 2), (x, 2), (x, 0.5), (1, np.ones(3)), (2, True)):
        ours = gt.logsumexp(gt.array(a) if a is x else a, b=b)
        close(ours, scipy.special.logsumexp(a, b=b))
        assert ours.dtype == (gt.float64 if a is x or type(b) is np.ndarray else gt.float32)
    assert gt.logsumexp(gt.ones(2, gt.float16), b=2.0).dtype == gt.float16
    assert gt.logsumexp(1.0, b=-2.0, return_sign=True)[1].item() == -1.0
    close(gt.nn.logmeanexp(gt.array(x), where=where), np.log(np.exp(x)[where].mean()))
    close(gt.nn.logmeanexp(gt.array(x), 0), np.log(np.exp(x).mean(0)))
    close(gt.nn.log1mexp(np.array([1e-9, 0.5, 40.0])), np.log(-np.expm1(-np.array([1e-9, 0.5, 40.0]))))
    infinite = gt.array([-np.inf, -np.inf])
    assert gt.logsumexp(infinite, b=gt.ones(2)).item() == -np.inf
    assert gt.grad(lambda y: gt.logsumexp(y, b=gt.array([1.0, 0.0])))(gt.array([0.0, np.inf])).tolist() == [1.0, 0.0]
    slopes = gt.grad(lambda y: gt.logsumexp(y, b=gt.array([2.0, 1.0])))(gt.array([0.0, 0.0]))
    close(slopes, [2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("schur", (W,)), ("schur", (W, "complex")), ("hessenberg", (W, True)), ("rsf2csf", scipy.linalg.schur(W)),
        ("funm", (W, np.exp)), *[("fiedler_companion", (np.arange(1.0, n),)) for n in (3, 4, 5, 6)],
        *[("qr_multiply", (W, x, mode)) for x in (POSITIVE, V) for mode in ("left", "right")],
    ],
)  # fmt: skip
def test_triangular_forms_are_scipys(name, args):
    given = [gt.array(x) if isinstance(x, np.ndarray) else gt.exp if x is np.exp else x for x in args]
    ours, theirs = getattr(schur, name)(*given), getattr(scipy.linalg, name)(*args)
    for a, b in zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]:
        close(a, b)


def test_triangular_forms_of_batches_within_programs_and_without_derivatives():
    both = np.stack([W, W.T])
    want = [scipy.linalg.schur(x)[0] for x in both]
    close(gt.vmap(lambda x: schur.schur(x)[0])(gt.array(both)), want)
    close(gt.jit(schur.schur, backend="eager")(gt.array(both))[0], want)
    with pytest.raises(ArgumentError, match=r"\[schur\] expected no derivative"):
        gt.grad(lambda x: schur.schur(x)[0].sum())(gt.array(W))
    _, d, e, _ = schur.tridiagonal(gt.array(POSITIVE))
    close(scipy.linalg.eigvalsh_tridiagonal(np.asarray(d), np.asarray(e)), np.linalg.eigvalsh(POSITIVE))
    with pytest.raises(ShapeError, match="square matrices"):
        schur.hessenberg(gt.ones((2, 3)))


@pytest.mark.slow
def test_rotations_are_scipys():
    theirs_of, ours_of = scipy.spatial.transform.Rotation, rotation.Rotation
    quat, vectors = RNG.normal(size=(9, 4)), RNG.normal(size=(9, 3))
    ours, theirs = ours_of.from_quat(gt.array(quat)), theirs_of.from_quat(quat)
    close(ours.as_quat(canonical=True), theirs.as_quat(canonical=True))
    for name in ("as_matrix", "as_rotvec", "as_mrp", "magnitude"):
        close(getattr(ours, name)(), getattr(theirs, name)())
    for name in ("from_rotvec", "from_mrp"):
        close(getattr(ours_of, name)(gt.array(vectors)).as_matrix(), getattr(theirs_of, name)(vectors).as_matrix())
    close(ours_of.from_matrix(gt.array(theirs.as_matrix())).as_matrix(), theirs.as_matrix())
    close(ours.apply(gt.array(vectors)), theirs.apply(vectors))
    close(ours.apply(gt.array(vectors), inverse=True), theirs.apply(vectors, inverse=True))
    turn, other = ours_of.from_rotvec(gt.array(vectors)), theirs_of.from_rotvec(vectors)
    close((ours * turn.inv()).as_matrix(), (theirs * other.inv()).as_matrix())
    close(ours.mean().as_matrix(), theirs.mean().as_matrix())
    for seq in ("xyz", "ZYX", "zxz", "YXY"):
        close(ours_of.from_euler(seq, gt.array(vectors)).as_matrix(), theirs_of.from_euler(seq, vectors).as_matrix())
        close(np.exp(1j * np.asarray(ours.as_euler(seq))), np.exp(1j * theirs.as_euler(seq)))
    times, at = np.arange(9.0), np.linspace(0, 8, 30)
    found = gt.jit(lambda t: rotation.Slerp.init(gt.array(times), ours)(t).as_matrix(), backend="eager")(gt.array(at))
    close(found, scipy.spatial.transform.Slerp(times, theirs)(at).as_matrix())
    assert gt.grad(lambda v: ours_of.from_rotvec(v).as_rotvec()[0])(gt.zeros(3)).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ArgumentError, match="one to three of x, y and z"):
        ours_of.from_euler("xq", gt.zeros(2))


def test_entropy_of_poisson():
    means = np.array([0.0, 0.3, 2.0, 15.0, 59.0, 61.0, 500.0])
    close(stats.poisson.entropy(gt.array(means)), scipy.stats.poisson.entropy(means), 1e-6)


TAILS = {
    "norm": [()], "expon": [()], "laplace": [()], "logistic": [()], "cauchy": [()], "gumbel_r": [()], "gumbel_l": [()],
    "uniform": [()], "beta": [(0.5, 2.0), (3.0, 8.0)], "t": [(0.7,), (1e4,), (1e10,)], "pareto": [(2.5,)],
    "gamma": [(0.4,), (7.5,), (300.0,)], "chi2": [(3.0,)], "poisson": [(4.0,)], "gennorm": [(1.5,)],
    "truncnorm": [(6.0, 10.0), (-10.0, -6.0), (-1.0, 2.0), (-1e-3, 1e-3), (2.0, np.inf)], "geom": [(0.2,)],
    "binom": [(10.0, 0.3), (1e6, 1e-3)], "nbinom": [(3.0, 0.4), (1000.0, 0.3)], "betabinom": [(1000.0, 0.5, 3.0)],
    "bernoulli": [(0.3,)],
}  # fmt: skip
"""Shape parameters by distribution."""

TINY = [1e-30, 1e-12]
SCIPY_IS_OFF = {
    ("beta", "ppf", 0.5): TINY, ("truncnorm", "isf", 6.0): TINY, ("truncnorm", "ppf", -10.0): TINY,
    ("truncnorm", "isf", 2.0): TINY, ("truncnorm", "ppf", -1e-3): [0.5], ("truncnorm", "isf", -1e-3): [0.5],
}  # fmt: skip
"""Quantiles of SciPy's whose probability is another one, or that are no 0 where the distribution is symmetric."""

PLACES = [-1e30, -700, -90, -12, -5.5, -2, -1, -1e-3, 0, 1e-3, 0.2, 0.5, 1, 1.5, 2, 5.5, 6.1, 9.5, 12, 38, 700, 1e30]
PARTS = [0, 1e-30, 1e-12, 1e-5, 0.01, 0.2, 0.5, 0.7, 0.99, 1, -0.1, 1.1, np.nan]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TAILS)
def test_tails_of_distributions_keep_their_digits(name, dtype):
    ours, right = getattr(stats, name), getattr(scipy.stats, name)
    bound = 2e-5 if dtype is np.float32 else 1e-8
    density = ["logpmf"] if ours.discrete else ["logpdf"]
    for shapes in TAILS[name]:
        shapes = [dtype(shape) for shape in shapes]
        for method in (*density, "cdf", "sf", "logcdf", "logsf", "ppf", "isf"):
            if name == "betabinom" and method != "logpmf":
                continue  # there is no formula
            x = np.array(PARTS if method in ("ppf", "isf") else PLACES, dtype)
            off = TINY if method == "isf" and ours.discrete else []  # it subtracts from 1
            off = SCIPY_IS_OFF.get((name, method, round(float(shapes[0]), 6)), off) if shapes else off
            x = x[~np.isin(x, np.array(off, dtype))]
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a search of SciPy's that fails
                expected = getattr(right, method)(x.astype(np.float64), *map(float, shapes))
                if method == "logsf" and name in ("binom", "nbinom"):  # SciPy takes the logarithm of 1 - cdf
                    below = right.cdf(x, *map(float, shapes))
                    expected = np.where(below < 0.5, np.log1p(-below), expected)
                expected = np.where(abs(expected) > np.finfo(dtype).max, np.sign(expected) * np.inf, expected)
            came = np.asarray(getattr(ours, method)(gt.array(x), *map(gt.array, shapes)))
            if method.startswith("log"):  # logarithms of what has underflowed, or of 1, where ours have digits
                lost = (np.isinf(expected) | (expected == 0)) & np.isfinite(came)
                assert (came[lost] <= 0).all()
                came, expected = came[~lost], expected[~lost]
            tiny = 10 * float(np.finfo(dtype).tiny)
            np.testing.assert_allclose(came, expected, rtol=bound, atol=tiny, err_msg=f"{method} {shapes}")


WRONG = {
    "norm": (0.0, -1.0), "gamma": (-1.0,), "chi2": (0.0,), "beta": (1.0, -1.0), "t": (-1.0,), "truncnorm": (2.0, 1.0),
    "pareto": (-1.0,), "gennorm": (0.0,), "vonmises": (-1.0,), "wrapcauchy": (1.0,), "poisson": (-1.0,),
    "bernoulli": (1.5,), "geom": (0.0,), "binom": (3.0, 2.0), "nbinom": (0.0, 0.5), "betabinom": (3.0, 0.0, 1.0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_parameters_outside_of_their_range_give_nan(name):
    ours, right = getattr(stats, name), getattr(scipy.stats, name)
    methods = ("pmf", "cdf", "sf", "ppf") if ours.discrete else ("pdf", "cdf", "sf", "ppf")
    for method in methods[:1] if name in ("vonmises", "wrapcauchy", "betabinom") else methods:
        assert np.isnan(getattr(right, method)(0.5, *WRONG[name])) and np.isnan(
            getattr(ours, method)(0.5, *WRONG[name])
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shapes"), [("gamma", (2.5,)), ("beta", (2.0, 3.0)), ("t", (3.0,)), ("chi2", (4.0,))])
def test_quantiles_that_are_searched_for_have_derivatives(name, shapes):
    ours, right = getattr(stats, name), getattr(scipy.stats, name)
    for method, q in (("ppf", 0.2), ("ppf", 0.9), ("isf", 0.05)):
        given = np.array([q, *shapes])
        slopes = gt.grad(lambda z: getattr(ours, method)(*z))(gt.array(given))  # noqa: B023
        for k, step in enumerate(np.eye(len(given)) * 1e-5):
            expected = np.diff([getattr(right, method)(*(given + sign * step)) for sign in (-1, 1)]) / 2e-5
            np.testing.assert_allclose(slopes[k].item(), expected[0], rtol=1e-5)
    assert float(gt.vmap(lambda q: ours.ppf(q, *shapes))(gt.array([0.2, 0.9]))[1]) == float(ours.ppf(0.9, *shapes))


def test_the_beta_function_of_large_arguments_keeps_its_digits():
    sizes = np.array([1e-20, 0.3, 1, 9.99, 10, 11, 1e3, 1e8, 1e15])
    a, b = np.meshgrid(sizes, sizes)
    expected = np.where(
        (a == 1e3) & (b == 1e8) | (a == 1e8) & (b == 1e3), -12515.465315726544, scipy.special.betaln(a, b)
    )
    np.testing.assert_allclose(np.asarray(gt.special.betaln(a, b)), expected, rtol=1e-12)  # SciPy has 11 digits there


def test_quantiles_beyond_the_range_of_numbers():
    def of(name, method, x, *shapes):
        return float(getattr(getattr(stats, name), method)(*(gt.array(np.float64(y)) for y in (x, *shapes))))

    assert [of("t", "isf", 0.01, 1e-3), of("t", "ppf", 1e-300, 0.7)] == [math.inf, -math.inf]
    # by mpmath, as are the two below
    np.testing.assert_allclose(of("t", "isf", 0.3, 1e-3), 1.1166011909601347e220, rtol=1e-12)
    np.testing.assert_allclose(of("t", "logpdf", 1e307, 1e-3), -715.2055662461500, rtol=1e-14)
    np.testing.assert_allclose(of("t", "sf", 1e307, 1e-3), 0.2455665183359849, rtol=1e-12)
    for name, shapes in (("gamma", (1e-3,)), ("chi2", (1e-3,)), ("beta", (1e-3, 1e-3))):
        assert of(name, "ppf", 1e-5, *shapes) == of(name, "isf", 1 - 1e-5, *shapes) == 0.0


@pytest.mark.parametrize(("name", "shapes"), [("gamma", (2.5,)), ("beta", (2.0, 3.0)), ("poisson", (4.0,))])
def test_quantiles_that_are_searched_for_with_32_bits(name, shapes):
    with gt.config(x64=False, jax_results=True):
        found = getattr(stats, name).ppf(gt.array([0.1, 0.7]), *shapes)
        assert found.dtype == gt.float32
        close(found, getattr(scipy.stats, name).ppf([0.1, 0.7], *shapes))


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
def test_ranks_beside_nan_are_nan(method):
    x = np.array([[3.0, np.nan, 1.0], [2.0, 1.0, 2.0]])
    for axis in (None, 0, 1):
        close(stats.rankdata(gt.array(x), method, axis=axis), scipy.stats.rankdata(x, method, axis=axis))
    assert stats.rankdata(gt.array([2, 1]), "min").dtype == gt.int64


def test_statistics_of_long_samples_need_no_tables_of_pairs():
    x = np.random.default_rng(0).integers(0, 1000, 30_000).astype(np.float32)
    values, counts = np.unique(x, return_counts=True)
    found = stats.mode(gt.array(x))
    assert float(found.mode) == values[counts.argmax()] and int(found.count) == counts.max()
    for method in ("average", "dense"):
        ranks = np.asarray(stats.rankdata(gt.array(x), method))
        np.testing.assert_array_equal(ranks, scipy.stats.rankdata(x, method).astype(np.float32))
    with_nan = stats.mode(gt.array([[1.0, 1.0, np.nan], [2.0, 2.0, 1.0]]), axis=1)
    assert np.isnan(np.asarray(with_nan.mode)).tolist() == [True, False]


def test_errors_of_means_without_missing_numbers():
    x = np.array([[3.0, np.nan, 2.0, 7.0], [1.0, 5.0, np.nan, np.nan]])
    for axis in (0, 1, None):
        for policy in ("propagate", "omit"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                right = scipy.stats.sem(x, axis, nan_policy=policy)
            close(stats.sem(gt.array(x), axis, 1, policy), np.ma.filled(right, np.nan))
    with pytest.raises(ArgumentError, match="propagate or omit"):
        stats.sem(gt.array(x), nan_policy="raise")


def test_ends_of_quantiles_and_probabilities_with_the_last_left_out():
    assert stats.cauchy.ppf(gt.array([0.0, -0.0])).tolist() == [-np.inf] * 2
    assert stats.cauchy.isf(gt.array([0.0, -0.0])).tolist() == [np.inf] * 2
    x, alpha = np.array([[0.2, 0.7], [0.3, 0.1]]), np.array([1.0, 2.0, 3.0])
    close(stats.dirichlet.logpdf(gt.array(x), gt.array(alpha)), scipy.stats.dirichlet.logpdf(x, alpha))


def test_triangular_forms_of_a_batch_with_nan_in_one_matrix():
    batch = np.stack([W, np.where(np.eye(4) == 1, np.nan, W), POSITIVE])
    for function in (schur.schur, schur.hessenberg, schur.tridiagonal):
        together, alone = function(gt.array(batch)), function(gt.array(batch[::2]))
        for all_, some in zip(gt.tree.leaves(together), gt.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(all_.numpy()[::2], some.numpy())
            assert np.isnan(all_.numpy()[1]).all()
