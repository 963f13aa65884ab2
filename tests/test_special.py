"""Special functions against SciPy over wide ranges, their derivatives, edges and dtypes.

The registry walk has the primitives on narrow ranges, to the last digit.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special as sp

import gtrace as gt
from gtrace import testing
from gtrace.testing import assert_close

S = gt.special


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def assert_digits(got, expected, steps):
    """Each element is right to its last digits, however small: functions have values of many magnitudes."""
    assert_close(got, expected, steps=steps, scale=np.abs(expected), check_dtype=False)


def spread(low, high, seed=0, count=400):
    """Numbers evenly distributed on a logarithmic scale."""
    return np.exp(np.random.default_rng(seed).uniform(math.log(low), math.log(high), count))


POSITIVE = spread(1e-6, 300.0)
REAL = np.concatenate([POSITIVE, -POSITIVE])
LINE = np.linspace(-30.0, 30.0, 601)
UNIT = np.linspace(1e-9, 1 - 1e-9, 400)
NOT_INTEGER = np.linspace(-20.05, 20.0, 400)
TABLE = {
    "erf": (sp.erf, LINE),
    "erfc": (sp.erfc, LINE),
    "erfcx": (sp.erfcx, np.linspace(-20, 300, 500)),
    "erfinv": (sp.erfinv, np.linspace(-0.999, 0.999, 400)),
    "ndtr": (sp.ndtr, LINE),
    "ndtri": (sp.ndtri, UNIT),
    "log_ndtr": (sp.log_ndtr, np.linspace(-200, 30, 500)),
    "expit": (sp.expit, LINE),
    "logit": (sp.logit, UNIT),
    "entr": (sp.entr, np.append(POSITIVE, [0.0, -1.0])),
    "gammaln": (sp.gammaln, NOT_INTEGER),
    "gamma": (sp.gamma, NOT_INTEGER),
    "digamma": (sp.digamma, NOT_INTEGER),
    "factorial": (sp.factorial, np.arange(-3.0, 30.0)),
    "i0": (sp.i0, LINE),
    "i1": (sp.i1, LINE),
    "i0e": (sp.i0e, REAL),
    "i1e": (sp.i1e, REAL),
    "bessel_j0": (sp.j0, REAL),
    "bessel_j1": (sp.j1, REAL),
    "bessel_y0": (sp.y0, POSITIVE),
    "bessel_y1": (sp.y1, POSITIVE),
    "modified_bessel_k0": (sp.k0, POSITIVE),
    "modified_bessel_k1": (sp.k1, POSITIVE),
    "scaled_modified_bessel_k0": (sp.k0e, POSITIVE),
    "scaled_modified_bessel_k1": (sp.k1e, POSITIVE),
    "exp1": (sp.exp1, POSITIVE),
    "expi": (sp.expi, REAL),
}


@pytest.mark.parametrize("name", TABLE)
def test_functions_of_one_argument_over_their_range(name):
    reference, x = TABLE[name]
    function = getattr(S, name)
    with np.errstate(all="ignore"):
        expected = reference(x)
    got = function(x)
    assert got.dtype == gt.float64
    # torch's expansions near zeros of a function have absolute accuracy
    np.testing.assert_allclose(got.numpy(), expected, rtol=3e-12, atol=3e-14)
    narrow = function(x[:20].astype(np.float32))
    assert narrow.dtype == gt.float32
    with np.errstate(all="ignore"):
        expected = reference(x[:20].astype(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(narrow.numpy(), expected, rtol=1e-6, atol=1e-37)


PAIRS = {
    "gammainc": (sp.gammainc, (spread(0.05, 200, 1), spread(0.05, 200, 2))),
    "gammaincc": (sp.gammaincc, (spread(0.05, 200, 1), spread(0.05, 200, 2))),
    "betaln": (sp.betaln, (spread(0.05, 50, 1), spread(0.05, 50, 2))),
    "beta": (sp.beta, (np.linspace(-3.3, 4, 400), np.linspace(5, 1.1, 400))),
    "zeta": (sp.zeta, (1 + spread(0.1, 20, 1), spread(0.1, 50, 2))),
    "xlogy": (sp.xlogy, (np.append(LINE, 0.0), np.append(np.abs(LINE) + 0.1, 0.0))),
    "xlog1py": (sp.xlog1py, (np.append(LINE, 0.0), np.append(np.abs(LINE) - 0.5, -1.0))),
    "rel_entr": (sp.rel_entr, ([0, 0, 1, 1, -1, 2, math.nan, 0.3], [0, 2, 0, 1, 1, 3, 1, 0.4])),
    "kl_div": (sp.kl_div, ([0, 0, 1, 1, -1, 2, math.nan, 0.3], [0, 2, 0, 1, 1, 3, 1, 0.4])),
    **{f"expn {n}": (lambda x, n=n: sp.expn(n, x), (spread(1e-8, 400),)) for n in (0, 1, 2, 3, 8, 40, 300)},
    **{f"polygamma {n}": (lambda x, n=n: sp.polygamma(n, x), (spread(0.01, 100),)) for n in (0, 1, 2, 6)},
    **{f"multigammaln {d}": (lambda x, d=d: sp.multigammaln(x, d), (2.0 + spread(0.1, 50),)) for d in (1, 3, 5)},
}


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_several_arguments_over_their_range(name):
    reference, args = PAIRS[name]
    args = [np.asarray(x, dtype=np.float64) for x in args]
    function, _, order = name.partition(" ")
    if function == "multigammaln":
        got = S.multigammaln(*args, int(order))
    else:
        got = getattr(S, function)(*([int(order)] if order else []), *args)
    with np.errstate(all="ignore"):
        expected = reference(*args)
    np.testing.assert_allclose(
        got.numpy(), expected, rtol=2e-11 if function.startswith("gammainc") else 3e-12, atol=1e-13
    )


@pytest.mark.parametrize(
    ("low", "high", "steps"), [(0.01, 2, 4_500), (0.5, 10, 4_500), (2, 300, 4_500), (300, 5000, 135_000)]
)
def test_incomplete_beta_function(low, high, steps):
    a, b, u = spread(low, high, 1), spread(low, high, 2), np.random.default_rng(3).uniform(1e-6, 1 - 1e-6, 400)
    x = np.clip(sp.betaincinv(a, b, u), 1e-12, 1 - 1e-12)
    assert_digits(S.betainc(a, b, x), sp.betainc(a, b, x), steps)
    far = np.random.default_rng(4).uniform(0, 1, 400)
    assert_digits(S.betainc(a, b, far), sp.betainc(a, b, far), 10 * steps)
    assert_digits(S.betaincc(a, b, x), sp.betaincc(a, b, x), steps)


def test_incomplete_beta_function_of_large_parameters():
    """To what one unit in the last place of x changes."""
    a, b = spread(1e4, 1e14, 1), spread(1e4, 1e14, 2)
    mean, deviation = a / (a + b), np.sqrt(a * b) / (a + b) ** 1.5
    x = np.clip(mean + deviation * np.random.default_rng(3).uniform(-5, 5, a.size), 0, 1)
    for ours, right in ((S.betainc, sp.betainc), (S.betaincc, sp.betaincc)):
        expected = right(a, b, x)
        change = abs(right(a, b, np.nextafter(x, 1)) - right(a, b, np.nextafter(x, 0)))
        assert (abs(ours(a, b, x).numpy() - expected) <= 4 * change + 1e-11 * expected).all()
    assert S.betainc(1e20, 1e20, 0.5) == S.betaincc(1e35, 1e35, 0.5) == 0.5


def test_incomplete_gamma_functions_at_their_ends():
    inf, nan = math.inf, math.nan
    a, x = [1.0, 1.0, 0.0, inf, -1.0, 1.0, 0.0, nan], [0.0, inf, 1.0, 1.0, 1.0, -1.0, 0.0, 1.0]
    for function, expected in ((S.gammainc, [0, 1, 1, 0, nan, nan, nan, nan]), (S.gammaincc, [1, 0, 0, 1, *[nan] * 4])):
        np.testing.assert_array_equal(function(np.array(a), np.array(x)).numpy(), expected)


def test_incomplete_gamma_functions_for_a_small_parameter():
    a, x = spread(1e-9, 1, 1), spread(1e-6, 30, 2)
    assert_digits(S.gammainc(a, x), sp.gammainc(a, x), 45_000)
    assert_digits(S.gammaincc(a, x), sp.gammaincc(a, x), 90_000)
    assert_digits(S.gammaincc(a * 1e-30, x), sp.gammaincc(a * 1e-30, x), 90_000)


def test_the_tail_of_the_normal_distribution_has_all_digits():
    x = -np.linspace(0.1, 37.0, 200)
    assert_digits(S.ndtr(x), sp.ndtr(x), 4_500)
    narrow = x[:50].astype(np.float32)
    assert_digits(S.ndtr(narrow), sp.ndtr(narrow.astype(np.float64)), 8)


def test_limits_at_infinity():
    assert S.expi(math.inf) == math.inf
    assert S.zeta(2.5, math.inf) == 0.0 and S.polygamma(2, gt.array(math.inf)) == 0.0


def test_incomplete_gamma_functions_close_to_a_large_parameter():
    a = spread(50, 1e5)
    x = a + np.random.default_rng(1).uniform(-4, 4, a.size) * np.sqrt(a)
    assert_digits(S.gammainc(a, x), sp.gammainc(a, x), 45_000)
    assert_digits(S.gammaincc(a, x), sp.gammaincc(a, x), 45_000)


def test_incomplete_beta_function_at_its_ends():
    assert S.betainc(2.0, 3.0, gt.array([0.0, 1.0])).tolist() == [0.0, 1.0]
    assert gt.isnan(S.betainc(2.0, 3.0, gt.array([-0.1, 1.1, math.nan]))).all()


@settings(max_examples=25, deadline=None)
@given(*[st.floats(0.05, 50.0)] * 2, st.floats(0.01, 0.99))
def test_the_two_sides_of_the_incomplete_beta_function_sum_to_one(a, b, x):
    args = [gt.array(v, dtype=gt.float64) for v in (a, b, x)]
    other = S.betainc(args[1], args[0], 1.0 - args[2])
    assert (S.betainc(*args) + other).item() == pytest.approx(1.0, abs=1e-12)


# -- derivatives

GRADS = {
    "betainc below the mean": (S.betainc, ([1.5, 0.6, 8.0], [2.5, 3.0, 5.0], [0.2, 0.05, 0.5])),
    "betainc above the mean": (S.betainc, ([1.5, 0.6, 8.0], [2.5, 3.0, 5.0], [0.7, 0.6, 0.8])),
    "gammainc": (S.gammainc, ([0.3, 1.5, 4.0, 20.0], [0.5, 3.0, 2.0, 22.0])),
    "gammaincc": (S.gammaincc, ([0.3, 1.5, 4.0, 20.0], [0.5, 3.0, 2.0, 22.0])),
    "betaln": (S.betaln, ([0.5, 2.0], [1.5, 3.0])),
    "beta": (S.beta, ([0.5, -1.4], [1.5, 3.0])),
    "rel_entr": (S.rel_entr, ([0.5, 2.0], [1.5, 3.0])),
    "kl_div": (S.kl_div, ([0.5, 2.0], [1.5, 3.0])),
    "multigammaln": (lambda x: S.multigammaln(x, 3), ([2.5, 4.0],)),
    "factorial": (S.factorial, ([2.5, 4.0],)),
    "expn": (lambda x: S.expn(3, x), ([0.2, 4.0],)),
    "bessel_j1": (S.bessel_j1, ([-30.0, 20.0, 30.0],)),
    "bessel_y1": (S.bessel_y1, ([20.0, 30.0],)),
    "expi": (S.expi, ([-3.0, 0.5, 38.0],)),
    "erfinv": (S.erfinv, ([-0.5, 0.3],)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADS)
def test_derivatives_to_second_order(name):
    function, args = GRADS[name]
    testing.check_grads(function, [gt.array(np.array(x)) for x in args])


def test_derivative_of_gammainc_by_its_shape():
    a, x = spread(0.01, 200, 1), spread(0.01, 200, 2)
    inside = (sp.gammainc(a, x) > 1e-6) & (sp.gammaincc(a, x) > 1e-6)
    a, x = a[inside], x[inside]
    slope = gt.grad(lambda v: S.gammainc(v, x).sum())(gt.array(a)).numpy()
    h = 1e-4 * a
    ends = [np.where(x < a, sp.gammainc(a + s, x), -sp.gammaincc(a + s, x)) for s in (-2 * h, -h, h, 2 * h)]
    expected = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * h)
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", ["i1", "i1e", "bessel_j1"])
def test_slopes_at_zero(name):
    assert gt.grad(getattr(S, name))(0.0).item() == 0.5


def test_derivatives_agree_with_those_of_torch():
    x = np.linspace(0.3, 3.0, 7)
    for name in ("erfc", "entr", "log_ndtr", "i0", "digamma"):
        t = torch.tensor(x, requires_grad=True)
        getattr(torch.special, name)(t).sum().backward()
        got = gt.grad(lambda v, name=name: getattr(S, name)(v).sum())(gt.array(x))
        assert_digits(got, t.grad.numpy(), 45_000_000)  # torch's slope of digamma has nine digits


def test_slopes_in_float32_keep_their_digits_where_terms_are_large():
    """Logarithms of 1e5 and more have few digits after the point in float32."""
    x = np.array([-1e4, -1e3, -30.0, -1.0, 0.0, 3.0, 12.0])
    got = gt.grad(lambda v: S.log_ndtr(v).sum())(gt.array(x.astype(np.float32))).numpy()
    assert_digits(got, np.sqrt(2 / np.pi) / sp.erfcx(-x / np.sqrt(2)), 84)
    got = S.betaln(gt.array(np.array([1e6, 1e4], np.float32)), gt.array(np.array([2, 1e4], np.float32)))
    assert_digits(got, sp.betaln([1e6, 1e4], [2, 1e4]), 8)
    for f, x in ((lambda v: S.gammainc(1e5, v), 1.001e5), (lambda v: S.betainc(1e5, 2e5, v), 0.3334)):
        narrow, wide = (gt.grad(f)(gt.array(np.array(x, kind))) for kind in (np.float32, np.float64))
        assert_digits(narrow, wide, 840 if x < 1 else 8_400)


# -- edges, dtypes, transformations


def test_poles_and_infinities():
    inf, nan = math.inf, math.nan
    for name, x, expected in (
        ("gamma", [0.0, -0.0, -1.0, inf], [inf, -inf, nan, inf]),
        ("bessel_y0", [0.0, -1.0, inf], [-inf, nan, 0.0]),
        ("bessel_j1", [0.0, inf, -inf], [0.0, 0.0, 0.0]),
        ("wofz", [inf, -inf], [0.0, 0.0]),
        ("exp1", [0.0, inf, -1.0], [inf, 0.0, nan]),
        ("logit", [0.0, 1.0, 2.0], [-inf, inf, nan]),
        ("ndtri", [0.0, 1.0], [-inf, inf]),
        ("expi", [0.0], [-inf]),
    ):
        np.testing.assert_array_equal(getattr(S, name)(np.array(x)).numpy(), expected, err_msg=name)
    assert S.expn(3, 0.0).item() == 0.5
    for name in ("bessel_j1", "i1", "i1e", "erf", "dawsn"):  # odd functions keep the sign of zero
        assert gt.signbit(getattr(S, name)(gt.array([-0.0, 0.0]))).tolist() == [True, False], name


def test_tails_of_functions_of_several_numbers():
    h, a = np.linspace(5.0, 38.0, 34)[:, None], np.array([0.01, 0.3, 1.0, 1.5, 40.0])
    expected = sp.owens_t(h, a)
    np.testing.assert_allclose(S.owens_t(h, a).numpy(), expected, rtol=1e-10, atol=1e-300)
    tiny = np.array([1e-30, 1e-8, 0.5, 1.0, 1e3, 1e15])
    a, b, x = tiny[:, None, None], tiny[:, None], np.array([0.0, 1e-300, 1e-100, 1e-10, 0.5, 1.0])
    expected = np.where(x == 1.0, 1.0, sp.betainc(a, b, x))
    known = np.isfinite(expected) & ((x != 0.5) | (a < 1e4) | (b < 1e4))  # both of them large: no digits
    got = S.betainc(a, b, x).numpy()
    np.testing.assert_allclose(got[known], expected[known], rtol=1e-9, atol=1e-300)
    for x, power in ((1e-30, 1e-300), (1e-300, 0.5), (-1e-300, 1e-30)):
        assert S.boxcox1p(*np.array([[x], [power]])).item() == x
    slope = gt.grad(lambda power: S.boxcox(3.0, power).sum())(gt.array([1e-12]))
    assert_close(slope, np.array([math.log(3.0) ** 2 / 2], np.float32))


HARD = np.array([-math.inf, -20.5, -3, -2, -1, -0.5, -0.0, 0, 1e-20, 0.3, 1, 1.5, 2, 5, 1e3, 1e8, 1e300, math.inf])
BEYOND = {  # where SciPy has no value, or has rounded one away
    "beta": lambda a, b: (
        (np.maximum(a, b) == math.inf) & (np.minimum(a, b) > 0) | (a <= 0) & (b <= 0) & (a + b == np.floor(a + b))
    ),
    "comb": lambda n, k: n == math.inf,
    "kl_div": lambda p, q: (p == 1e300) & (q == 1e-20),
    "boxcox": lambda x, power: (x == 0) & (power == 1e-20),
    "betaln": lambda a, b: (np.maximum(a, b) == math.inf) & (np.minimum(a, b) > 0),
    "poch": lambda z, m: ~np.isfinite(z) | ~np.isfinite(m) | (np.minimum(abs(z), abs(m)) < 1e-10),
    "boxcox1p": lambda x, power: (x == -1) & (power == 1e-20),
}


@pytest.mark.parametrize(
    "name",
    ["beta", "betaln", "poch", "comb", "zeta", "rel_entr", "kl_div", "gammainc", "gammaincc", "boxcox", "boxcox1p"],
)
def test_poles_ends_and_tails_of_functions_of_two_numbers(name):
    a, b = np.meshgrid(HARD, HARD)
    with np.errstate(all="ignore"):
        known = ~BEYOND.get(name, lambda a, b: a != a)(a, b)
        expected = getattr(sp, name)(a[known], b[known])
    got = getattr(S, name)(a[known], b[known]).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    with_nan = getattr(S, name)(np.array([math.nan, 2.0, math.nan]), np.array([2.0, math.nan, math.nan]))
    assert gt.isnan(with_nan).all()


def test_values_that_scipy_has_not():
    inf, nan = math.inf, math.nan
    assert S.beta(inf, gt.array([2.0, inf])).tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(S.poch(gt.array([inf, inf, inf, -inf, 2.0]), gt.array([2, -2, 0, 1, -inf])).numpy(),
                                  [inf, 0, 1, nan, nan])  # fmt: skip
    np.testing.assert_array_equal(S.expn(0, gt.array([-1.0, -0.0, inf])).numpy(), [nan, inf, 0.0])
    np.testing.assert_array_equal(S.gammasgn(gt.array([-0.0, 0.0, -1.0, inf, nan])).numpy(), [-1, 1, nan, 1, nan])
    a, b = (gt.array(x) for x in ([0.0, 2, inf, 2, 0, -1, 2], [2.0, 0, 2, inf, 0, 2, 2]))
    for x, expected in ((0.5, [1, 0, 0, 1, nan, nan, 0.5]), (0.0, [0, 0, 0, 0, nan, nan, 0]),
                        (1.0, [1, 1, 1, 1, nan, nan, 1])):  # fmt: skip
        np.testing.assert_allclose(S.betainc(a, b, x).numpy(), expected, rtol=1e-6)


def test_counts_and_products_of_float32_have_all_digits():
    n = np.array([10, 100, 1000], np.float32)
    assert_digits(S.comb(n, np.float32(10)), sp.comb(n.astype(float), 10), 4)
    assert_digits(S.poch(n, np.float32(3.5)), sp.poch(n.astype(float), 3.5), 4)
    assert_digits(S.beta(n, np.float32(7)), sp.beta(n.astype(float), 7), 4)


def test_integers_and_numbers_become_float32():
    for name in ("gammaln", "digamma", "gamma", "i0", "bessel_j0", "erfc", "factorial", "expi"):
        for x in (gt.array([2, 3]), 2, True):
            assert getattr(S, name)(x).dtype == gt.float32, name
    assert S.betainc(2, 3, gt.array([0.5])).dtype == gt.float32
    assert S.gammainc(2, gt.array([3])).dtype == gt.float32


def test_numbers_keep_their_digits_beside_float64():
    x = gt.array([0.7], dtype=gt.float64)
    assert_close(S.betainc(0.1, 0.2, x), [sp.betainc(0.1, 0.2, 0.7)])
    assert_close(S.zeta(2.2, x), [sp.zeta(2.2, 0.7)])
    slope = gt.grad(lambda v: S.gammainc(0.1, v).sum())(x)
    assert_close(slope, [math.exp(-0.7) * 0.7**-0.9 / math.gamma(0.1)])


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_16_bits_are_rounded_once(dtype):
    x = gt.array([0.3, 1.5, 2.5]).astype(dtype)
    for name in ("gammaln", "bessel_y1", "expi", "erfcx"):
        wide = getattr(S, name)(x.astype(gt.float64)).astype(dtype)
        assert getattr(S, name)(x).tolist() == wide.tolist(), name


def test_under_vmap():
    a, b, x = (gt.array(v.reshape(5, 4)) for v in (spread(0.2, 9, k, 20) for k in range(3)))
    testing.check_vmap(lambda p, q, v: (S.betainc(p, q, S.expit(v)), S.gammainc(p, v), S.expn(2, v)), (a, b, x))


def test_jitted():
    def f(a, x):
        return S.betainc(a, 2.0, S.expit(x)), gt.grad(lambda v: S.gammainc(v, x).sum())(a), S.bessel_y0(x)

    args = gt.array(np.array([0.5, 3.0])), gt.array(np.array([1.0, 30.0]))
    for got, expected in zip(gt.jit(f, backend="eager")(*args), f(*args), strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: S.polygamma(-1, 1.0), gt.ArgumentError, "an order >= 0, got -1"),
        (lambda: S.polygamma(0.5, 1.0), gt.ArgumentError, "an integer as order"),
        (lambda: S.expn(-2, 1.0), gt.ArgumentError, "an order >= 0, got -2"),
        (lambda: S.multigammaln(3.0, 0), gt.ArgumentError, "a dimension >= 1, got 0"),
        (lambda: S.betainc(gt.ones(2), gt.ones(3), 0.5), gt.ShapeError, "broadcast"),
        (lambda: gt.grad(S.zeta)(2.0), gt.ArgumentError, "derivatives in the second argument"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "test_special.py:" in str(caught.value)


def test_large_arrays_are_computed_in_blocks():
    """The integrals and series have a hundred terms an element, for which there is no memory at once."""
    x = np.linspace(0.1, 30.0, 3 * 3001).reshape(3, 3001)
    for f, expected in (
        (lambda v: S.gammainc(gt.array([[2.0], [0.5], [40.0]]), v), sp.gammainc(np.array([[2.0], [0.5], [40.0]]), x)),
        (lambda v: S.betainc(2.0, 3.0, v / 31.0), sp.betainc(2, 3, x / 31)),
        (S.expi, sp.expi(x)),
        (lambda v: S.expn(2, v), sp.expn(2, x)),
        (S.bessel_y1, sp.y1(x)),
    ):
        np.testing.assert_allclose(f(gt.array(x)).numpy(), expected, rtol=1e-9, atol=1e-13)


def table_of(function, *ranges, count=300):
    """Random arguments within ranges, and a function's values."""
    rng = np.random.default_rng(3)
    args = [rng.uniform(low, high, count) for low, high in ranges]
    return args, function(*args)


@pytest.mark.parametrize("x", [(-90, 90), (101, 400), (-400, -101)])
def test_hyp1f1_is_scipys(x):
    args, want = table_of(sp.hyp1f1, (-5, 5), (0.2, 6), x)
    assert_digits(S.hyp1f1(*args), want, 4_500_000)


@pytest.mark.parametrize("x", [(-0.9, 0.9), (0.9, 0.999), (-3000, -1)])
def test_hyp2f1_is_scipys(x):
    args, want = table_of(sp.hyp2f1, (-3, 3), (-3, 3), (0.2, 6), x)
    assert_digits(S.hyp2f1(*args), want, 450_000_000)
    # the difference of the parameters a whole number, where two terms with poles cancel; and sums that end
    a, b = np.repeat(np.arange(-3.0, 4.0), 7), np.tile(np.arange(-3.0, 4.0), 7)
    z = np.linspace(x[0], x[1], 51)[1:-1]
    np.testing.assert_allclose(np.asarray(S.hyp2f1(a, b, 2.0, z)), sp.hyp2f1(a, b, 2.0, z), rtol=1e-7, atol=1e-12)


def test_hypergeometric_functions_at_their_edges():
    assert_close(S.hyp2f1(1.0, 1.0, 3.0, 1.0), 2.0)
    assert math.isinf(S.hyp2f1(1.0, 1.0, 2.0, 1.0).item())
    assert math.isinf(S.hyp2f1(1.0, 1.0, -2.0, 0.5).item()) and math.isinf(S.hyp2f1(0.5, 1.0, 2.0, 1.5).item())
    assert_close(S.hyp2f1(-2.0, 1.0, 2.0, 3.0), 1.0)
    assert S.hyp1f1(gt.array(1.0), 2.0, 1.0).dtype == "float32" and math.isnan(S.hyp2f1(1.0, 1.0, 2.0, math.nan).item())


@pytest.mark.parametrize(
    ("name", "at"),
    [("hyp1f1", (1.2, 0.7, 150.0)), ("hyp1f1", (1.2, 0.7, -20.0)), ("hyp1f1", (-2.0, 0.7, 3.0)),
     ("hyp2f1", (0.3, 0.7, 1.0, 0.95)), ("hyp2f1", (1.0, 1.0, 2.0, 0.97)), ("hyp2f1", (-2.0, 0.7, 1.3, -50.0))],
)  # fmt: skip
def test_hypergeometric_functions_have_derivatives_by_all_arguments(name, at):
    given = [gt.array(v, gt.float64) for v in at]
    grads = gt.grad(getattr(S, name), argnums=tuple(range(len(at))))(*given)
    for k, g in enumerate(grads):
        step = 1e-5 * max(1.0, abs(at[k]))
        sides = [getattr(sp, name)(*[v + s * (i == k) for i, v in enumerate(at)]) for s in (step, -step)]
        # what differences leave out is more than what they round
        np.testing.assert_allclose(g, (sides[0] - sides[1]) / (2 * step), rtol=1e-6, atol=1e-12)


def test_wofz_is_scipys():
    rng = np.random.default_rng(0)
    z = np.exp(rng.uniform(-8, 3, 600)) * rng.choice([-1, 1], 600) + 1j * rng.normal(size=600)
    z = np.concatenate([z, np.linspace(-9, 9, 90) + 0j, 1j * np.linspace(-3, 9, 90), [0]])
    assert_digits(S.wofz(z), sp.wofz(z), 45_000)
    far = np.array([1e9, 1e200 + 1e190j, -1e300j + 1e300, 1e160 + 1e-200j, np.inf + 1j])
    assert_digits(S.wofz(far), sp.wofz(far), 8)
    assert S.wofz(1.0).dtype == "complex64"
    assert gt.vmap(S.wofz)(gt.array(z)).tolist() == S.wofz(gt.array(z)).tolist()


def test_spherical_harmonics_are_scipys():
    rng = np.random.default_rng(0)
    n = rng.integers(0, 12, 200)
    m = np.array([rng.integers(-k, k + 1) for k in n])
    theta, phi = rng.uniform(0, math.pi, 200), rng.uniform(0, 2 * math.pi, 200)
    found = gt.jit(lambda *x: S.sph_harm_y(n, m, *x, n_max=11), backend="eager")(gt.array(theta), gt.array(phi))
    np.testing.assert_allclose(np.asarray(found), sp.sph_harm_y(n, m, theta, phi), atol=1e-13)
    slope = gt.jvp(lambda t: S.sph_harm_y(3, -2, t, 0.4, n_max=3), (gt.array(0.7),), (gt.array(1.0),))[1]
    step = 1e-6
    want = (sp.sph_harm_y(3, -2, 0.7 + step, 0.4) - sp.sph_harm_y(3, -2, 0.7 - step, 0.4)) / (2 * step)
    assert_close(slope, want, scale=1 / step, check_dtype=False)
    with pytest.raises(gt.errors.ArgumentError, match="diff_n=None"):
        S.sph_harm_y(1, 0, 0.0, 0.0, diff_n=1)
