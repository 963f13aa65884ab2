"""Methods of JAX's functions of arrays, and the parameters of its reductions. NumPy's values are expected."""

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.jax.adapt import JAX_NAMES

UFUNCS = sorted(name for name, text in JAX_NAMES["jax.numpy"].items() if text == "*args out= where=")
BINARY = [name for name in UFUNCS if getattr(np, name).nin == 2]
SCALARS = jnp.frompyfunc(lambda x, y: 2 * x - y, 2, 1)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def as_in_jax():
    with gt.config(jax_results=True, x64=False):
        yield


def values(name, shape=(4, 3)):
    if name.startswith(("logical", "bitwise")):
        return RNG.integers(0, 2, shape).astype(bool) if name.startswith("logical") else RNG.integers(0, 9, shape)
    return RNG.normal(size=shape).astype("float32")


def check(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UFUNCS)
def test_ufuncs_say_what_they_are(name):
    function, known = getattr(jnp, name), getattr(np, name)
    assert isinstance(function, jnp.ufunc) and repr(function) == f"<jnp.ufunc {name!r}>"
    assert (function.nin, function.nout, function.identity) == (known.nin, known.nout, known.identity)
    with pytest.raises(AttributeError):
        function.nin = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", BINARY)
def test_methods_are_numpys(name):
    function, known, x = getattr(jnp, name), getattr(np, name), values(name)
    y = jnp.array(x)
    axes = [0, 1, -1] if name == "subtract" else [0, -1, None, (0, 1)]
    for axis in axes:
        check(function.reduce(y, axis=axis, keepdims=True), known.reduce(x, axis=axis, keepdims=True))
    first = x[0, 0]
    check(function.reduce(y, initial=first), known.reduce(x, initial=first))
    check(jax.jit(function.accumulate, static_argnames="axis")(y, axis=1), known.accumulate(x, axis=1))
    check(function.outer(y[0], y), known.outer(x[0], x))
    check(jax.vmap(function.reduce)(y), known.reduce(x, axis=1))
    places = np.array([2, 0, 1])
    check(function.reduceat(y, jnp.array(places)), known.reduceat(x, places).astype(np.asarray(y).dtype))
    changed = x.copy()
    known.at(changed, np.array([0, 2, 0]), x[:3])
    check(function.at(y, jnp.array([0, 2, 0]), y[:3], inplace=False), changed)


@pytest.mark.parametrize("name", [name for name in BINARY if getattr(np, name).identity is not None])
def test_masks_and_no_elements(name):
    function, known, x = getattr(jnp, name), getattr(np, name), values(name)
    kept = np.array([True, False, True])
    check(function.reduce(jnp.array(x), axis=1, where=jnp.array(kept)), known.reduce(x, axis=1, where=kept))
    check(function.reduce(jnp.array(x[:0])), known.reduce(x[:0]))


def test_functions_that_users_wrote():
    x = np.array([3.0, 5.0, 8.0], "float32")
    assert SCALARS.reduce(jnp.array(x)).tolist() == (3 * 2 - 5) * 2 - 8
    assert SCALARS.accumulate(jnp.array(x)).tolist() == [3.0, 1.0, -6.0]
    assert SCALARS.reduce(jnp.array(x), initial=1.0, where=jnp.array([True, False, True])).tolist() == -10.0
    assert SCALARS.reduceat(jnp.array(x), jnp.array([0, 2, 1])).tolist() == [1.0, 8.0, 2.0]
    assert SCALARS.at(jnp.array(x), jnp.array([1, 1, 9]), 1.0, inplace=False).tolist() == [3.0, 17.0, 8.0]
    assert SCALARS.outer(jnp.array([1, 2]), jnp.arange(3)).tolist() == [[2, 1, 0], [4, 3, 2]]
    assert jax.grad(SCALARS.reduce)(jnp.array(x)).tolist() == [4.0, -2.0, -1.0]
    assert SCALARS == jnp.ufunc(SCALARS._func, 2, 1) != jnp.frompyfunc(SCALARS._func, 2, 1, identity=0)


def test_derivatives_of_methods():
    x = jnp.array([2.0, 3.0, 4.0])
    assert jax.grad(jnp.multiply.reduce)(x).tolist() == [12.0, 8.0, 6.0]
    check(jax.grad(jnp.logaddexp.reduce)(x), np.exp(np.asarray(x)) / np.exp(np.asarray(x)).sum())
    assert jax.grad(lambda x: jnp.subtract.accumulate(x)[-1])(x).tolist() == [1.0, -1.0, -1.0]


def test_negative_at_the_same_place_twice():
    assert jnp.negative.at(jnp.arange(3), jnp.array([1, 1, 2]), inplace=False).tolist() == [0, 1, -2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: jnp.negative.reduce(jnp.arange(3)),
        lambda: jnp.add.at(jnp.arange(3), 0, 1),
        lambda: jnp.add.at(jnp.arange(3), 0, inplace=False),
        lambda: jnp.maximum.reduce(jnp.zeros(0)),
        lambda: jnp.maximum.reduce(jnp.arange(3), where=jnp.ones(3, bool)),
        lambda: SCALARS.reduce(jnp.zeros(0)),
        lambda: jnp.add(1, 2, 3),
        lambda: jnp.add(1, 2, out=jnp.zeros(())),
        lambda: jnp.sum(jnp.ones(3), where=jnp.array([1, 0, 2])),
        lambda: jnp.max(jnp.ones(3), where=jnp.array([1, 0, 2]), initial=0),
        lambda: jnp.nanvar(jnp.ones(3), where=jnp.array([1, 0, 2])),
        lambda: jnp.var(jnp.array([1 + 2j]), dtype="float32"),
        *[lambda f=f: f(jnp.array([1.0, 2.0]), dtype=int) for f in (jnp.var, jnp.std, jnp.nanvar, jnp.nanstd)],
        lambda: jnp.var(jnp.arange(3), ddof=1, correction=0),
        lambda: jnp.cov(jnp.arange(3), dtype=int),
        lambda: jnp.vectorize(lambda x: x, signature="(n)->()")(jnp.ones(2)),
        lambda: jnp.vectorize(lambda x: x, signature="()->(),()")(jnp.ones(2)),
        lambda: jnp.vectorize(lambda x: x, signature="(n)->(n),(n)")(jnp.ones(2)),
        lambda: jnp.vectorize(lambda x, y: x @ y, signature="(n,m),(m,k)->(n,n)")(jnp.ones((2, 3)), jnp.ones((3, 4))),
        lambda: jnp.vectorize(lambda x, y: x, signature="(k),(k)->(k)")(jnp.ones(2), None),
        lambda: jnp.vectorize(lambda x: x, excluded={-1}),
    ],
)
def test_what_jax_refuses(call):
    with pytest.raises(ValueError, match=r"\[\w+\] expected"):
        call()


def test_reductions_of_complex_numbers():
    x = np.array([[1 + 2j, 1 + 3j, -4j]], "complex64")
    assert [complex(f(jnp.array(x), initial=0)) for f in (jnp.max, jnp.nanmin)] == [1 + 3j, -4j]
    assert complex(jnp.nanmax(jnp.array([1 + 2j, complex(9, np.nan)]))) == 1 + 2j
    assert jnp.ptp(jnp.array(x), axis=1).tolist() == np.ptp(x, axis=1).tolist()
    assert jnp.maximum.at(jnp.array(x[0]), jnp.array([0, 0]), 2j, inplace=False).tolist() == x[0].tolist()


def test_dtypes_of_reductions():
    assert str(jnp.var(jnp.array([1.0, 2.0]), dtype="complex64").dtype) == "complex64"
    assert str(jnp.sum(jnp.ones(3, bool), promote_integers=False).dtype) == "int32"
    assert str(jnp.add.reduce(jnp.ones(3, "int8")).dtype) == "int32"
    assert str(jnp.add.reduce(jnp.ones(3, "int8"), dtype="int8").dtype) == "int8"


def test_vectorize_of_none():
    assert jnp.vectorize(lambda x, y: x if y is None else x + y)(jnp.arange(3), None).tolist() == [0, 1, 2]


def test_updates_at_places_have_the_dtype_of_the_results():
    x, places = jnp.array([0, 1, 2, 0]), jnp.array([0, 1, 1])
    found = jnp.logical_and.at(x, places, jnp.array([1, 1, 0]), inplace=False)
    assert found.tolist() == [False, False, True, False]
    found = jnp.logaddexp.at(x, places, jnp.array([1, 1, 0]), inplace=False)
    np.testing.assert_allclose(found, [1.3132617, 1.8619947, 2.0, 0.0], rtol=1e-6)
