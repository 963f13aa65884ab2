"""What JAX gives where gtrace gave something else in silence. Expected values are JAX's 0.10.2, stored here."""

import functools

import numpy as np
import pytest
from gtrace.jax.scipy.ndimage import map_coordinates

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.jax import lax
from gtrace.jax.flatten_util import ravel_pytree
from gtrace.jax.ops import segment_max, segment_min
from gtrace.jax.scipy import special
from gtrace.lax.linalg import tridiagonal_solve


def donated():
    x = jnp.ones(3) * 2
    jax.jit(lambda x: x + 1, donate_argnums=0)(x).block_until_ready()
    return [x.is_deleted(), jnp.ones(3).is_deleted()]


def partial_of_partial():
    made = jax.tree_util.Partial(functools.partial(lambda *args: sum(args), 1), 2)
    again = jax.tree_util.tree_map(lambda x: x * 10, made)
    return [made.args, made(4), again(4), jax.tree_util.tree_leaves(made)]


A, B = np.arange(8.0).reshape(2, 2, 2), np.arange(4.0).reshape(2, 2)

CASES = {
    "a seed beyond 32 bits": (lambda: jax.random.PRNGKey(2**32 + 5).tolist(), [0, 5]),
    "a typed key of such a seed": (lambda: jax.random.key_data(jax.random.key(2**40 + 7)).tolist(), [0, 7]),
    "a negative seed": (lambda: jax.random.PRNGKey(-1).tolist(), [0, 2**32 - 1]),
    "put of no values": (
        lambda: jnp.put(jnp.arange(1, 4), jnp.array([0, 1]), jnp.zeros(0, int), inplace=False).tolist(),
        [1, 2, 3],
    ),
    "one row by columns": (
        lambda: [f(jnp.array([[1.0, 2.0, 4.0]]), rowvar=False).shape for f in (jnp.cov, jnp.corrcoef)],
        [(3, 3), (3, 3)],
    ),
    "one variable": (lambda: jnp.cov(jnp.array([1.0, 2.0, 4.0]), rowvar=False).shape, ()),
    "slopes along one axis": (lambda: jnp.gradient(jnp.ones((3, 4)), 1, axis=(1,)).shape, (3, 4)),
    "lcm that wraps around": (
        lambda: jnp.lcm(jnp.array([62, 7, -4], "int8"), jnp.array([8, 100, 6], "int8")).tolist(),
        [-8, -68, 12],
    ),
    "columns with a directive": (
        lambda: [jnp.c_["0,2", [1, 2, 3]].shape, jnp.c_[jnp.arange(3)].shape],
        [(3, 1), (3, 1)],
    ),
    "unraveled in another dtype": (lambda: str(ravel_pytree(jnp.ones(2))[1](jnp.array([True, False])).dtype), "bool"),
    "spacing of float16": (lambda: jnp.spacing(jnp.array([-4, 4], "float16")).tolist(), [0.001953125, 0.00390625]),
    "vecdot of other ranks": (
        lambda: jnp.vecdot(jnp.array(A), jnp.array(B), axis=0).tolist(),
        [[8.0, 16.0], [12.0, 24.0]],
    ),
    "einsum of booleans": (
        lambda: [
            jnp.einsum("ij,j->i", jnp.eye(2, dtype=bool), jnp.array([True, False])).tolist(),
            jnp.einsum("i,i", *[jnp.ones(2, bool)] * 2).dtype == bool,
        ],
        [[True, False], True],
    ),
    "a convolution in another dtype": (
        lambda: [
            (c := jnp.convolve(*[jnp.arange(4, dtype="uint16")] * 2, preferred_element_type="uint16")).tolist(),
            str(c.dtype),
        ],
        [[0, 0, 1, 4, 10, 12, 9], "uint16"],
    ),
    "mean in an integer dtype": (
        lambda: [float(m := jnp.mean(jnp.array([1.5, 2.5]), dtype="int32")), str(m.dtype)],
        [1.0, "int32"],
    ),
    "the step of no points": (
        lambda: [x.shape for x in jnp.linspace(0.0, jnp.ones((2, 2)), 0, endpoint=False, retstep=True)],
        [(0, 2, 2), ()],
    ),
    "slopes at grid points": (
        lambda: jax.grad(lambda c: map_coordinates(jnp.arange(5.0) ** 2, [c], 1).sum())(jnp.array([2.0, 2.5])).tolist(),
        [5.0, 5.0],
    ),
    "bits of another width": (
        lambda: [
            lax.bitcast_convert_type(jnp.array([1, 1 << 24], "uint32"), "int8").tolist(),
            lax.bitcast_convert_type(jnp.array([[1, 0, 0, 0], [0, 0, 0, 1]], "int8"), "uint32").tolist(),
            lax.bitcast_convert_type(jnp.float32(1.0), "uint16").tolist(),
        ],
        [[[1, 0, 0, 0], [0, 0, 0, 1]], [1, 1 << 24], [0, 0x3F80]],
    ),
    "segments of booleans": (
        lambda: [f(jnp.array([True, False]), jnp.array([0, 1]), 3).tolist() for f in (segment_max, segment_min)],
        [[True, False, False], [True, False, True]],
    ),
    "sums of short integers": (
        lambda: [
            str(f(jnp.array([[1, 2]], "int16"), 1, promote_integers=wider).dtype)
            for f in (jnp.sum, jnp.prod)
            for wider in (False, True)
        ],
        ["int16", "int32"] * 2,
    ),
    "densities with integer edges": (
        lambda: [
            f.tolist()
            for f in (
                jnp.histogram(jnp.array([0, 1, 1, 3]), jnp.array([0, 1, 5]), density=True)[0],
                jnp.histogram2d(jnp.array([0, 1]), jnp.array([0, 1]), [jnp.array([0, 2])] * 2, density=True)[0],
            )
        ],
        [[0.25, 0.1875], [[0.25]]],
    ),
    "distances along the axis of the sum": (
        lambda: jnp.trapezoid(jnp.arange(6.0).reshape(2, 3), dx=jnp.array([1.0, 10.0, 100.0]), axis=0).tolist(),
        [1.5, 25.0, 350.0],
    ),
    "lines between complex values": (lambda: jnp.interp(0.25, jnp.arange(2.0), jnp.array([0, 4j])).tolist(), 1j),
    "lines that go on": (
        lambda: [
            jnp.interp(x, jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0]), left="extrapolate").item()
            for x in (0.5, 1.5, 3.5)
        ],
        [5.0, 15.0, 30.0],
    ),
    "slopes of narrow steps": (
        lambda: jax.grad(lambda x: jnp.interp(x, x, jnp.ones(2)).sum())(jnp.array([1e-39, 3e-39])).tolist(),
        [0.0, 0.0],
    ),
    "stacks of one array": (lambda: [f(np.ones((2, 3))).shape for f in (jnp.hstack, jnp.vstack)], [(6,), (2, 3)]),
    "a row and a column": (lambda: [jnp.r_["r", 1:3, 5].tolist(), jnp.c_["c", :2].shape], [[[1, 2, 5]], (2, 1)]),
    "a grid without axes": (lambda: [jnp.mgrid[()].shape, jnp.ogrid[()]], [(0,), ()]),
    "is_deleted": (donated, [True, False]),
    "a partial of a partial": (partial_of_partial, [(2,), 7, 25, [2]]),
    "comb with repetition": (
        lambda: [
            float(special.comb(jnp.float32(n), jnp.float32(k), repetition=True)) for n, k in ((0, 0), (3, 2), (0, 1))
        ],
        [1.0, 6.0, 0.0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reported_case(name):
    function, expected = CASES[name]
    with gt.config(x64=False):
        assert function() == expected


def test_an_initial_value_is_a_number():
    for reduce in (jnp.sum, jnp.prod, jnp.max, jnp.min):
        with pytest.raises(gt.errors.ShapeError, match="a number as `initial`"):
            reduce(jnp.ones((2, 3)), initial=jnp.ones(3), axis=0)
        assert reduce(jnp.ones(3), initial=jnp.array(1.0)).shape == ()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("jitted", [False, True])
def test_tridiagonal_solves_exchange_rows(size, jitted):
    solve = jax.jit(tridiagonal_solve) if jitted else tridiagonal_solve
    for seed in range(8):
        rng = np.random.default_rng(seed)
        low, middle, high = (rng.normal(size=(2, size)) for _ in range(3))
        if size > 1:
            middle[:, ::2] = 0.0 if size % 2 == 0 else 1e-9
        right = rng.normal(size=(2, size, 3))
        full = [np.diag(middle[k]) + np.diag(low[k, 1:], -1) + np.diag(high[k, :-1], 1) for k in range(2)]
        if np.linalg.cond(full).max() < 1e5:
            found = solve(*map(gt.array, (low, middle, high, right)))
            np.testing.assert_allclose(np.asarray(found), np.linalg.solve(full, right), atol=1e-8)


@pytest.mark.parametrize("jitted", [False, True])
def test_logaddexp_of_complex_numbers_is_on_the_branch_of_log(jitted):
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=200) * 5 + 5j * rng.normal(size=200) for _ in range(2))
    f = jax.jit(jnp.logaddexp) if jitted else jnp.logaddexp
    found = np.asarray(f(jnp.array(a, "complex64"), jnp.array(b, "complex64")))
    right = np.log(np.exp(a) + np.exp(b))
    assert (np.abs(found.imag) <= np.float32(np.pi)).all()
    turns = np.abs(np.exp(1j * found.imag) - np.exp(1j * right.imag))
    assert np.abs(found.real - right.real).max() < 1e-4 and turns.max() < 1e-4
