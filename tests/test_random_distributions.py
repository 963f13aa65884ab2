"""Draws that follow a distribution: against scipy.stats with fixed keys, their derivatives, and transformations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import gtrace as gt
from gtrace.testing import assert_close

R = gt.random
F64 = gt.float64
COUNT = 20000


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


CONTINUOUS = {
    **{f"gamma {a}": (lambda k, s, d, a=a: R.gamma(k, a, s, d), stats.gamma(a)) for a in (0.05, 0.7, 1.0, 3.0, 200.0)},
    "loggamma": (lambda k, s, d: R.loggamma(k, 0.3, s, d), stats.loggamma(0.3)),
    "beta": (lambda k, s, d: R.beta(k, 0.5, 2.0, s, d), stats.beta(0.5, 2.0)),
    "chisquare": (lambda k, s, d: R.chisquare(k, 3.0, s, d), stats.chi2(3.0)),
    "f": (lambda k, s, d: R.f(k, 5.0, 9.0, s, d), stats.f(5.0, 9.0)),
    "t": (lambda k, s, d: R.t(k, 5.0, s, d), stats.t(5.0)),
    "generalized_normal": (lambda k, s, d: R.generalized_normal(k, 3.0, s, d), stats.gennorm(3.0)),
    "cauchy": (lambda k, s, d: R.cauchy(k, s, d), stats.cauchy()),
    "logistic": (lambda k, s, d: R.logistic(k, s, d), stats.logistic()),
    "lognormal": (lambda k, s, d: R.lognormal(k, 0.7, s, d), stats.lognorm(0.7)),
    "maxwell": (lambda k, s, d: R.maxwell(k, s, d), stats.maxwell()),
    "double_sided_maxwell": (lambda k, s, d: R.double_sided_maxwell(k, 1.0, 2.0, s, d), stats.dweibull(2)),
    "pareto": (lambda k, s, d: R.pareto(k, 3.5, s, d), stats.pareto(3.5)),
    "rayleigh": (lambda k, s, d: R.rayleigh(k, 2.0, s, d), stats.rayleigh(scale=2.0)),
    "triangular": (lambda k, s, d: R.triangular(k, -1.0, 0.5, 3.0, s, d), stats.triang(1.5 / 4, -1.0, 4.0)),
    "wald": (lambda k, s, d: R.wald(k, 1.5, s, d), stats.invgauss(1.5)),
    "weibull_min": (lambda k, s, d: R.weibull_min(k, 2.0, 1.5, s, d), stats.weibull_min(1.5, scale=2.0)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_follow_their_distribution(name):
    draw, law = CONTINUOUS[name]
    for k, dtype in enumerate((F64, gt.float32)):
        x = draw(R.key(11 + k), (COUNT,), dtype)
        assert (x.shape, x.dtype) == ((COUNT,), dtype)
        values = x.numpy().astype(np.float64)
        if name == "double_sided_maxwell":
            values, law = np.abs(values - 1.0) / 2.0, stats.maxwell()
        assert stats.kstest(values, law.cdf).pvalue > 0.01
        if np.isfinite(law.std()):
            assert values.mean() == pytest.approx(law.mean(), abs=4 * law.std() / math.sqrt(COUNT))
            assert values.std() == pytest.approx(law.std(), rel=0.15)


COUNTS = {
    **{f"poisson {r}": (lambda k, s, r=r: R.poisson(k, r, s), stats.poisson(r)) for r in (0.2, 4.0, 10.0, 60.0, 1e6)},
    **{
        f"binomial {n} {p}": (lambda k, s, n=n, p=p: R.binomial(k, n, p, s, gt.int64), stats.binom(n, p))
        for n, p in ((7, 0.3), (7, 0.9), (40, 0.5), (1000, 0.02), (1000, 0.97), (10**7, 0.4))
    },
    **{f"geometric {p}": (lambda k, s, p=p: R.geometric(k, p, s), stats.geom(p)) for p in (0.01, 0.5)},
    "rademacher": (lambda k, s: R.rademacher(k, s), stats.randint(-1, 2)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_their_distribution(name):
    draw, law = COUNTS[name]
    x = draw(R.key(5), (COUNT,))
    assert (x.shape, x.dtype) == ((COUNT,), gt.int64)
    values = x.numpy()
    if name == "rademacher":
        assert set(values.tolist()) == {-1, 1} and abs(values.mean()) < 0.02
        return
    # the distribution function on both sides of its steps
    points = np.unique(values)
    seen = np.searchsorted(np.sort(values), points, side="right") / COUNT
    assert np.abs(seen - law.cdf(points)).max() < 1.63 / math.sqrt(COUNT)
    assert np.abs(np.append(0, seen[:-1]) - law.cdf(points - 1)).max() < 1.63 / math.sqrt(COUNT)


def test_vectors_that_sum_to_one():
    alpha = np.array([0.3, 1.0, 4.0])
    x = R.dirichlet(R.key(0), alpha, (COUNT,), F64).numpy()
    assert x.shape == (COUNT, 3) and np.abs(x.sum(-1) - 1).max() < 1e-12
    for k, a in enumerate(alpha):
        assert stats.kstest(x[:, k], stats.beta(a, alpha.sum() - a).cdf).pvalue > 0.01
    np.testing.assert_allclose(np.cov(x.T), stats.dirichlet(alpha).cov(), atol=2e-3)


@pytest.mark.parametrize("p", [1.0, 2, 5.0])
def test_points_fill_the_ball_evenly(p):
    x = R.ball(R.key(1), 3, p, (COUNT,), F64).numpy()
    radius = (np.abs(x) ** p).sum(-1) ** (1 / p)
    assert stats.kstest(radius**3, stats.uniform().cdf).pvalue > 0.01
    assert np.abs(x.mean(0)).max() < 0.015


def test_how_often_outcomes_occur():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    x = R.multinomial(R.key(2), 30, 2 * p, shape=(4000,), dtype=gt.int64).numpy()
    law = stats.multinomial(30, p)
    assert (x.sum(-1) == 30).all() and not x[:, 1].any()
    np.testing.assert_allclose(x.mean(0), 30 * p, atol=0.15)
    np.testing.assert_allclose(np.cov(x.T), law.cov(), atol=0.4)
    batch = R.multinomial(R.key(3), gt.array([5, 0]), gt.array([[0.5, 0.5], [0.1, 0.9]]))
    assert batch.dtype == gt.float32 and batch.sum(-1).tolist() == [5.0, 0.0]
    assert R.multinomial(R.key(3), 6, gt.array([2.0])).tolist() == [6.0]


def test_a_probability_of_0_or_1_leaves_nothing_to_chance():
    assert R.binomial(R.key(0), 20, gt.array([0.0, 1.0])).tolist() == [0.0, 20.0]
    assert R.poisson(R.key(0), 0.0, (3,)).tolist() == [0, 0, 0]
    assert R.geometric(R.key(0), gt.array([1.0, 1.0])).tolist() == [1, 1]
    impossible = R.binomial(R.key(0), gt.array([-1.0, 5.0, math.nan]), gt.array([0.5, 1.5, 0.5]))
    assert gt.isnan(impossible).all()


def test_tiny_parameters_do_not_underflow_in_logarithms():
    x = R.loggamma(R.key(0), 1e-3, (1000,))
    assert gt.isfinite(x).all() and (x < -100).any()
    slope = gt.grad(lambda a: R.loggamma(R.key(0), a, (1000,)).mean())(gt.array(1e-3))
    # the mean is digamma(a), whose derivative is about 1 / a**2
    assert slope.item() == pytest.approx(1e6, rel=0.2)


def test_gamma_ends_with_values_that_are_no_parameters():
    assert gt.isnan(R.gamma(R.key(0), gt.array([math.nan, -3.0]))).all()
    assert R.gamma(R.key(0), gt.array([0.0, math.inf])).tolist() == [0.0, math.inf]


def test_an_element_has_a_draw_of_its_own():
    # whatever block it is in, and whoever else is drawn
    whole = R.gamma(R.key(4), gt.full((3000,), 1.0), None, F64)
    a = gt.concat([gt.full((10,), 1.0), gt.full((2990,), 0.02)])
    assert R.gamma(R.key(4), a, None, F64)[:10].tolist() == whole[:10].tolist()
    assert R.gamma(R.key(4), 1.0, (500,), F64).tolist() == whole[:500].tolist()


# -- derivatives


@pytest.mark.parametrize("a", [0.1, 0.9, 1.0, 2.5, 40.0])
def test_gamma_moves_with_its_quantile(a):
    alpha = gt.full((40,), a, dtype=F64)
    key = R.key(8)
    x = R.gamma(key, alpha, None, F64)
    slopes = gt.grad(lambda p: R.gamma(key, p, None, F64).sum())(alpha).numpy()
    law, h = stats.gamma, 1e-5 * a
    # on the side of the distribution on which digits are left
    upper = law(a).sf(x.numpy()) < 0.5
    ends = [
        np.where(upper, law(a + s).isf(law(a).sf(x.numpy())), law(a + s).ppf(law(a).cdf(x.numpy()))) for s in (h, -h)
    ]
    np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=0)  # of differences
    forward = gt.jvp(lambda p: R.loggamma(key, p, None, F64), (alpha,), (gt.ones_like(alpha),))[1].numpy()
    assert_close(forward * x.numpy(), slopes, steps=450_000_000, scale=abs(slopes))  # by other series


def test_second_derivative_of_gamma():
    key, alpha = R.key(8), gt.array(np.linspace(0.5, 5.0, 8))

    def total(p):
        return R.gamma(key, p, None, F64)

    x = total(alpha).numpy()
    second = gt.grad(lambda p: gt.grad(lambda q: total(q).sum())(p).sum())(alpha).numpy()
    law, a, h = stats.gamma, alpha.numpy(), 1e-3
    u = law(a).cdf(x)
    np.testing.assert_allclose(second, (law(a + h).ppf(u) - 2 * x + law(a - h).ppf(u)) / h**2, rtol=2e-4, atol=1e-5)


MEANS = {
    "beta": (lambda k, a: R.beta(k, a, 2.0, (COUNT,), F64), 1.5, 2 / 3.5**2),
    "chisquare": (lambda k, a: R.chisquare(k, a, (COUNT,), F64), 3.0, 1.0),
    "f": (lambda k, a: R.f(k, 4.0, a, (COUNT,), F64), 9.0, -2 / 49),
    "t": (lambda k, a: gt.abs(R.t(k, a, (COUNT,), F64)), 5.0, None),
    "dirichlet": (lambda k, a: R.dirichlet(k, gt.stack([a, a * 0 + 2.0]), (COUNT,), F64)[:, 0], 1.5, 2 / 3.5**2),
    "generalized_normal": (lambda k, a: R.generalized_normal(k, a, (COUNT,), F64) ** 2, 3.0, None),
    "pareto": (lambda k, a: R.pareto(k, a, (COUNT,), F64), 4.0, -1 / 9),
    "lognormal": (lambda k, a: R.lognormal(k, a, (COUNT,), F64), 0.5, 0.5 * math.exp(0.125)),
    "weibull_min": (lambda k, a: R.weibull_min(k, a, 2.0, (COUNT,), F64), 3.0, math.gamma(1.5)),
    "rayleigh": (lambda k, a: R.rayleigh(k, a, (COUNT,), F64), 2.0, math.sqrt(math.pi / 2)),
    "triangular": (lambda k, a: R.triangular(k, -1.0, a, 4.0, (COUNT,), F64), 1.0, 1 / 3),
}
LAWS = {
    "t": lambda a: stats.t(a).expect(np.abs),
    "generalized_normal": lambda a: stats.gennorm(a).var(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEANS)
def test_the_derivative_of_a_mean(name):
    draw, at, expected = MEANS[name]
    if expected is None:
        expected = (LAWS[name](at + 1e-3) - LAWS[name](at - 1e-3)) / 2e-3
    slope = gt.grad(lambda a: draw(R.key(6), a).mean())(gt.array(at, dtype=F64)).item()
    assert slope == pytest.approx(expected, rel=0.05)


def test_wald_is_differentiable():
    slopes = gt.grad(lambda m: R.wald(R.key(0), m, (1000,), F64).sum())(gt.array(1.5, dtype=F64))
    h = 1e-6
    ends = [R.wald(R.key(0), 1.5 + s, (1000,), F64).numpy() for s in (h, -h)]
    smooth = np.abs(ends[0] - ends[1]) < 1e-3  # elsewhere another root was taken
    assert smooth.mean() > 0.99 and math.isfinite(slopes.item())


# -- transformations


def everything(key, a):
    keys = iter(R.split(key, 20))
    return {
        "gamma": R.gamma(next(keys), a, (3, 2)),
        "loggamma": R.loggamma(next(keys), a),
        "beta": R.beta(next(keys), a, 2.0),
        "f": R.f(next(keys), a, 4.0),
        "t": R.t(next(keys), a),
        "dirichlet": R.dirichlet(next(keys), a, (3,)),
        "generalized_normal": R.generalized_normal(next(keys), a),
        "ball": R.ball(next(keys), 2, shape=(3,)),
        "cauchy": R.cauchy(next(keys), (4,)),
        "logistic": R.logistic(next(keys), (4,)),
        "maxwell": R.maxwell(next(keys), (4,)),
        "double_sided_maxwell": R.double_sided_maxwell(next(keys), a, 1.0, (2,)),
        "triangular": R.triangular(next(keys), 0.0, a, 9.0),
        "wald": R.wald(next(keys), a),
        "weibull_min": R.weibull_min(next(keys), a, 2.0),
        "geometric": R.geometric(next(keys), a / 10),
        "poisson": R.poisson(next(keys), a * 8),
        "binomial": R.binomial(next(keys), 30, a / 4),
        "multinomial": R.multinomial(next(keys), 9, a),
        "rademacher": R.rademacher(next(keys), (5,)),
    }


KEYS = R.split(R.key(9), 3)
PARAMETERS = gt.array([[0.5, 2.0], [1.0, 3.0], [0.2, 1.4]])


def check_equal(got, expected):
    for name, x in expected.items():
        assert got[name].aval is x.aval, name
        a, b = got[name].to_torch().double().numpy(), x.to_torch().double().numpy()
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_vmap_over_keys_and_parameters_equals_a_loop():
    rows = [everything(KEYS[k], PARAMETERS[k]) for k in range(3)]
    expected = {name: gt.stack([row[name] for row in rows]) for name in rows[0]}
    check_equal(gt.vmap(everything)(KEYS, PARAMETERS), expected)


@pytest.mark.slow
def test_jitted_draws_equal_interpreted_ones():
    def some(key, a):
        keys = R.split(key)
        return {"gamma": R.gamma(keys[0], a), "poisson": R.poisson(keys[1], a * 8)}

    check_equal(gt.jit(some, backend="eager")(KEYS[0], PARAMETERS[0]), some(KEYS[0], PARAMETERS[0]))


@pytest.mark.long
def test_compiled_gamma_and_its_gradient():
    def f(key, a):
        return gt.value_and_grad(lambda p: R.gamma(key, p, (50,)).sum())(a)

    for got, expected in zip(gt.jit(f)(R.key(3), gt.array(1.7)), f(R.key(3), gt.array(1.7)), strict=True):
        assert_close(got, expected)


def test_draws_of_16_bits():
    for dtype in (gt.float16, gt.bfloat16):
        for x in (R.gamma(R.key(0), 2.0, (500,), dtype), R.beta(R.key(0), 2.0, 3.0, (500,), dtype)):
            assert x.dtype == dtype and gt.isfinite(x).all() and (x > 0).all()


# -- keys


def test_keys_and_their_words():
    assert R.PRNGKey(7).tolist() == R.key(7).tolist() == R.key_data(R.key(7)).tolist()
    words = np.array([[1, 2**32 - 1], [3, 4]], dtype=np.int64)
    assert R.wrap_key_data(words, impl="threefry2x32").tolist() == words.tolist()
    assert R.wrap_key_data(words.astype(np.uint32).view(np.int32)).tolist() == words.tolist()
    assert R.key_impl(R.split(R.key(0))) == "threefry2x32"


# -- errors

KEY = R.key(0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: R.gamma(KEY, 0.0), gt.ArgumentError, "a > 0, got 0.0"),
        (lambda: R.loggamma(KEY, -1.0), gt.ArgumentError, "a > 0, got -1.0"),
        (lambda: R.gamma(KEY, gt.ones(3), (2,)), gt.ShapeError, "broadcasts to (2,), got f32[3]"),
        (lambda: R.gamma(KEY, 1.0, dtype=gt.int32), gt.DtypeError, "a floating dtype, got int32"),
        (lambda: R.gamma(0, 1.0), gt.ArgumentError, "a key, got 0"),
        (lambda: R.beta(KEY, 1.0, 0.0), gt.ArgumentError, "b > 0"),
        (lambda: R.beta(KEY, gt.ones(2), gt.ones(3)), gt.ShapeError, "parameters that broadcast"),
        (lambda: R.dirichlet(KEY, 1.0), gt.ShapeError, "alpha with an axis"),
        (lambda: R.t(KEY, 0.0), gt.ArgumentError, "df > 0"),
        (lambda: R.f(KEY, 1.0, -2.0), gt.ArgumentError, "dfden > 0"),
        (lambda: R.ball(KEY, -1), gt.ArgumentError, "a number of dimensions >= 0, got -1"),
        (lambda: R.cauchy(KEY, (-1,)), gt.ShapeError, "sizes >= 0"),
        (lambda: R.triangular(KEY, 0.0, 2.0, 1.0), gt.ArgumentError, "left <= mode <= right"),
        (lambda: R.double_sided_maxwell(KEY, gt.ones(2), gt.ones(3)), gt.ShapeError, "parameters that broadcast"),
        (lambda: R.geometric(KEY, 1.5), gt.ArgumentError, "a probability in [0, 1], got 1.5"),
        (lambda: R.poisson(KEY, -1.0), gt.ArgumentError, "lam >= 0, got -1.0"),
        (lambda: R.poisson(KEY, 1.0, dtype=bool), gt.DtypeError, "a dtype of numbers"),
        (lambda: R.binomial(KEY, -1, 0.5), gt.ArgumentError, "n >= 0 trials"),
        (lambda: R.binomial(KEY, 3, 2.0), gt.ArgumentError, "a probability in [0, 1]"),
        (lambda: R.multinomial(KEY, 3, 0.5), gt.ShapeError, "p with outcomes along an axis"),
        (lambda: R.rademacher(KEY, dtype=gt.uint8), gt.DtypeError, "a signed dtype"),
        (lambda: R.key_data(gt.zeros(2)), gt.DtypeError, "keys, int64"),
        (lambda: R.wrap_key_data(gt.array([1, 2, 3])), gt.ShapeError, "keys, int64 of shape (..., 2), got i64[3]"),
        (lambda: R.wrap_key_data(KEY, impl="rbg"), gt.ArgumentError, "'threefry2x32', got 'rbg'"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
    assert "test_random_distributions.py:" in str(caught.value)


def test_an_error_does_not_use_up_a_key():
    key = R.key(1)
    with gt.config(debug_key_reuse=True):
        with pytest.raises(gt.ShapeError):
            R.gamma(key, gt.ones(3), (2,))
        with pytest.raises(gt.ShapeError):
            R.multinomial(key, gt.ones(3), gt.ones((2, 2)))
        R.gamma(key, 1.0)
        with pytest.raises(gt.KeyReuseError, match="used by gamma"):
            R.poisson(key, 1.0)


def test_the_derivative_of_a_triangular_draw_at_its_end():
    """One of these uniform numbers is 0, where a root has an infinite derivative."""
    key = R.key(4)
    assert float(R.uniform(key, (1 << 20,)).min()) == 0.0
    assert np.isfinite(float(gt.grad(lambda m: R.triangular(key, 0.0, m, 1.0, (1 << 20,)).sum())(0.5)))
