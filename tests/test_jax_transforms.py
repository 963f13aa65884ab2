"""Derivatives, checkpoints, checks and trees as users of JAX see them."""

import functools
import math

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.jax import lax
from gtrace.jax.ad_checkpoint import checkpoint_name
from gtrace.jax.experimental import checkify
from gtrace.jax.experimental.jet import jet
from gtrace.jax.experimental.ode import odeint


def test_jet_has_the_derivatives_along_a_curve():
    x, series = 0.7, [0.3, -1.2, 2.0, 0.5]
    a, b, c, d = series
    s, co = math.sin(x), math.cos(x)
    # by the formula of Faa di Bruno
    expected = [
        co * a,
        -s * a**2 + co * b,
        -co * a**3 - 3 * s * a * b + co * c,
        s * a**4 - 6 * co * a**2 * b - s * (4 * a * c + 3 * b**2) + co * d,
    ]
    y, found = jet(jnp.sin, (x,), (series,))
    np.testing.assert_allclose([y, *found], [s, *expected], rtol=1e-5)
    scaled = [value / math.factorial(k + 1) for k, value in enumerate(series)]
    y, found = jet(jnp.sin, (x,), (scaled,), factorial_scaled=False)
    np.testing.assert_allclose(found, [v / math.factorial(k + 1) for k, v in enumerate(expected)], rtol=1e-5)


def test_jet_of_several_arguments_and_results():
    f = lambda x, y: {"product": x * y, "places": jnp.argmax(x)}  # noqa: E731
    y, found = jax.jit(lambda *series: jet(f, (jnp.ones(2), jnp.arange(2.0)), series))(
        [jnp.ones(2), jnp.zeros(2)], [jnp.full(2, 3.0), jnp.ones(2)]
    )
    np.testing.assert_array_equal(found["product"][0], [3.0, 4.0])  # y + 3 x
    np.testing.assert_array_equal(found["product"][1], [7.0, 7.0])  # 2 * 1 * 3 + 1
    assert y["places"] == 0
    with pytest.raises(ValueError, match="series of one length"):
        jet(f, (1.0, 2.0), ([1.0], [1.0, 2.0]))


def test_functions_with_rules_may_branch_on_values_under_grad():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x) if x > 0 else jnp.cos(x) * float(x)

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), (2 * t if x > 0 else 3 * t)

    @jax.custom_vjp
    def g(x, y):
        return x * y if x > y else x + y

    g.defvjp(lambda x, y: (g(x, y), x > y), lambda larger, ct: (5 * ct, ct) if larger else (7 * ct, ct))
    assert jax.grad(f)(1.0) == 2 and jax.grad(f)(-1.0) == 3
    value, slope = jax.value_and_grad(f)(-1.0)
    np.testing.assert_allclose([value, slope], [-math.cos(1), 3], rtol=1e-6)
    assert jax.grad(g)(2.0, 1.0) == 5 and jax.grad(g)(1.0, 2.0) == 7
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(jax.grad(g))(1.0, 2.0)


def test_wrong_rules_raise_what_they_raise_in_jax():
    @jax.custom_vjp
    def f(x):
        return x

    with pytest.raises(AttributeError, match="a rule"):
        f(1.0)
    f.defvjp(lambda x: ((x, x), None), lambda _, ct: (ct,))
    with pytest.raises(TypeError, match="output of structure"):
        jax.grad(f)(1.0)
    f.defvjp(lambda x: (jnp.zeros(3), None), lambda _, ct: (ct,))
    with pytest.raises(TypeError, match="the rule's output"):
        jax.grad(f)(1.0)

    def closing(x):
        @jax.custom_jvp
        def g(y):
            return x * y

        g.defjvp(lambda primals, tangents: (g(*primals), tangents[0]))
        return g(x)

    with pytest.raises(jax.errors.UnexpectedTracerError, match="closes over"):
        jax.grad(closing)(1.0)
    pure, values = jax.closure_convert(jax.vjp(lambda x, z: x * z, 2.0, 3.0)[1], 1.0)
    with pytest.raises(TypeError, match="arguments of structure"):
        pure(1.0, values, values)


def test_arguments_without_derivatives_may_be_traced():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def f(x, y):
        return x * y

    f.defjvp(lambda x, primals, tangents: (f(x, *primals), 5 * x * tangents[0]))
    found = jax.jvp(lambda y: jax.vmap(f)(jnp.array([2.0, 3.0]), y), (jnp.ones(2),), (jnp.ones(2),))
    np.testing.assert_array_equal(found, [[2.0, 3.0], [10.0, 15.0]])


def test_the_function_of_a_vjp_is_a_pytree():
    def f(d):
        return {"y": jnp.sin(d["x"]), "n": 3}

    pull = jax.jit(lambda x: jax.vjp(f, {"x": x})[1])(0.5)
    cotangent = {"y": 2.0, "n": np.zeros((), jax.float0)}
    np.testing.assert_allclose(pull(cotangent)[0]["x"], 2 * math.cos(0.5), rtol=1e-6)
    leaves, structure = jax.tree.flatten(jax.vjp(f, {"x": 0.5})[1])
    assert all(isinstance(x, jax.Array) for x in leaves)
    np.testing.assert_allclose(structure.unflatten(leaves)(cotangent)[0]["x"], 2 * math.cos(0.5), rtol=1e-6)
    pulls = jax.vmap(lambda x: jax.vjp(jnp.sin, x)[1])(jnp.arange(3.0))
    np.testing.assert_allclose(jax.vmap(lambda p: p(1.0)[0])(pulls), np.cos(np.arange(3.0)), rtol=1e-6)
    assert jnp.zeros(2, jax.float0).dtype == jax.float0


def named(x, w):
    y = checkpoint_name(jnp.sin(x @ w), "y")
    return jnp.sin(jnp.sin(y)).sum()


POLICIES = jax.checkpoint_policies


@pytest.mark.parametrize(
    ("policy", "sines", "products"),
    [
        (None, 2, 2),
        (POLICIES.dots_saveable, 2, 1),
        (POLICIES.dots_with_no_batch_dims_saveable, 2, 1),
        (POLICIES.save_only_these_names("y"), 1, 2),
        (POLICIES.save_any_names_but_these("y"), 2, 2),
        (POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("y")), 1, 1),
        (lambda prim, *_, **__: prim is lax.sin_p, 0, 2),
    ],
)
def test_policies_of_checkpoint_keep_what_they_say(policy, sines, products):
    x, w = jnp.ones((2, 3)), jnp.full((3, 3), 0.1)
    f = jax.grad(jax.checkpoint(named, policy=policy), 1)
    np.testing.assert_allclose(f(x, w), jax.grad(named, 1)(x, w), rtol=1e-6)
    jaxpr = jax.make_jaxpr(f)(x, w)
    (again,) = [eqn for eqn in jaxpr.eqns if eqn.params.get("differentiated")]
    names = [eqn.primitive.name for eqn in again.params["jaxpr"].eqns]
    # beside them the cotangent of w is a product; what only the result needs is not computed again
    assert (names.count("sin"), names.count("dot_general")) == (sines, products)


@pytest.mark.parametrize("policy", [POLICIES.save_only_these_names("y"), lambda *_, **__: True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.scan(lambda c, y: (jnp.sin(c) * y, jnp.cos(c)), x[0], x)[1],
        lambda x: lax.fori_loop(0, 2, lambda _, c: jnp.sin(c), x),
        lambda x: jnp.linalg.svd(x.reshape(2, 2))[1],
        lambda x: jax.checkpoint(jnp.sin)(x),
    ],
)
def test_policies_of_checkpoint_take_operations_with_several_results(f, policy):
    x = jnp.array([1.0, 2.0, 3.0, 4.5])
    got = jax.grad(jax.checkpoint(lambda x: f(x).sum(), policy=policy))(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: f(x).sum())(x), rtol=1e-6)


@pytest.mark.parametrize(("kept", "again"), [("cond", 0), ("sin", 1)])
def test_a_policy_keeps_all_results_of_an_operation(kept, again):
    def f(x):
        y, z = lax.cond(x[0] > 0, lambda v: (v + 1, v * 2), lambda v: (v, v), lax.stop_gradient(x))
        return (x * y * z).sum()

    saving = jax.checkpoint(f, policy=lambda prim, *_, **__: prim.name == kept)
    jaxpr = jax.make_jaxpr(jax.grad(saving))(jnp.array([1.0, 2.0]))
    (backward,) = [eqn for eqn in jaxpr.eqns if eqn.params.get("differentiated")]
    assert [eqn.primitive.name for eqn in backward.params["jaxpr"].eqns].count("cond") == again


CHECKS = {"index": checkify.index_checks, "div": checkify.div_checks, "nan": checkify.nan_checks}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("f", "kind", "good", "bad", "text"),
    [
        (lambda x: x[jnp.int32(x[0])], "index", [2.0, 0.0, 0.0], [5.0, 0.0, 0.0], "index 5 is out of bounds"),
        (lambda x: x.at[jnp.int32(x[0])].add(1.0), "index", [2.0, 0.0, 0.0], [-5.0, 0.0, 0.0], "index -2"),
        (lambda x: jnp.take(x, jnp.int32(x), mode="clip"), "index", [1.0, 0.0], [0.0, -1.0], "index -1 is out"),
        (lambda x: jnp.take_along_axis(x, jnp.int32(x), 0), "index", [1.0, 0.0], [2.0, -1.0], "index 2 is out"),
        (lambda x: jnp.linalg.slogdet(x.reshape(2, 2))[1], "nan", [1.0, 0.0, 0.0, 1.0], [np.nan] * 4, "nan generated"),
        (lambda x: 1 / x, "div", [1.0, 2.0], [1.0, 0.0], "division by zero"),
        (lambda x: jnp.sin(x), "nan", [1.0], [np.inf], "nan generated by primitive: sin"),
        (lambda x: lax.scan(lambda c, y: (c / y, c), 1.0, x), "div", [1.0, 2.0], [1.0, 0.0, 2.0], "division by zero"),
        (
            lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1 + 0 * jnp.log(c), x[0]),
            "nan", [1.0], [-1.0], "nan generated by primitive: log",
        ),
        (lambda x: lax.cond(x[0] > 0, jnp.log, jnp.sqrt, x), "nan", [1.0], [-1.0], "nan generated by primitive: sqrt"),
    ],
)  # fmt: skip
def test_checkify_checks_operations(f, kind, good, bad, text, wrap):
    checked = wrap(checkify.checkify(f, errors=CHECKS[kind]))
    err, out = checked(jnp.array(good))
    assert err.get() is None
    jax.tree.map(np.testing.assert_array_equal, out, f(jnp.array(good)))
    err, _ = checked(jnp.array(bad))
    assert text in err.get()
    assert checkify.checkify(f, errors=checkify.user_checks)(jnp.array(bad))[0].get() is None


def test_checkify_checks_integer_divisions():
    with gt.config(jax_results=True):
        checked = checkify.checkify(lambda x: jnp.arange(2) // x, errors=checkify.div_checks)
        assert checked(jnp.array([1, 2]))[0].get() is None
        assert "division by zero" in checked(jnp.array([1, 0]))[0].get()


def test_checkify_takes_remainders_by_zero_as_jax_does():
    with gt.config(jax_results=True):
        checked = checkify.checkify(lambda x, y: (x % y, jnp.fmod(x, y), lax.rem(x, y)), errors=checkify.div_checks)
        assert checked(jnp.arange(2), jnp.zeros(2, int))[0].get() is None


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_checks_of_a_batched_function_without_results(wrap):
    checked = wrap(checkify.checkify(jax.vmap(lambda x: checkify.check(x > 0, "{} is not positive", x))))
    assert checked(jnp.ones(2))[0].get() is None
    err, out = checked(jnp.array([1.0, -1.0]))
    assert err.get() == "-1.0 is not positive (`check` failed)"
    assert out is None


def test_batched_functions_without_results_have_effects():
    seen = []
    f = jax.vmap(lambda x: jax.debug.callback(lambda v: seen.append(float(v)), x))
    assert f(jnp.array([1.0, 2.0])) is None
    assert sorted(seen) == [1.0, 2.0]
    jax.block_until_ready(jax.jit(lambda x: (f(x), x * 2)[1])(jnp.array([3.0])))
    assert sorted(seen) == [1.0, 2.0, 3.0]


def test_checks_within_loops_of_a_jitted_function():
    def step(c, x):
        checkify.check(x > 0, "{} is not positive", x)
        return c + x, c

    checked = jax.jit(checkify.checkify(lambda xs: lax.scan(step, 0.0, xs)[0]))
    assert checked(jnp.ones(3))[0].get() is None
    err, out = checked(jnp.array([1.0, -2.0, -3.0]))
    assert err.get() == "-2.0 is not positive (`check` failed)" and out == -4
    with pytest.raises(TypeError, match="a scalar"):
        checkify.check(jnp.ones(2) > 0, "all")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_checks_of_the_starts_of_slices(wrap):
    x = jnp.arange(12.0).reshape(3, 4)
    read = lambda i: lax.dynamic_slice(x, (1, i), (1, 2))  # noqa: E731
    write = lambda i: lax.dynamic_update_slice(x, jnp.zeros((1, 2)), (i, 1))  # noqa: E731
    for f, inside, outside, text in [
        (read, 2, 3, "index 3 is out of bounds for axis 1"), (read, -2, -5, "index -1"),
        (write, 2, 3, "index 3 is out of bounds for axis 0"), (write, -3, -4, "index -1"),
    ]:  # fmt: skip
        checked = wrap(checkify.checkify(f, errors=checkify.index_checks))
        assert checked(inside)[0].get() is None
        assert text in checked(outside)[0].get()
        batched = wrap(checkify.checkify(jax.vmap(f), errors=checkify.index_checks))
        assert batched(jnp.array([inside, inside]))[0].get() is None
        assert text.split(" is")[0] in batched(jnp.array([inside, outside]))[0].get()
        known = wrap(checkify.checkify(lambda f=f, i=outside: f(i), errors=checkify.index_checks))
        assert text in known()[0].get()


def positive(x):
    checkify.check(jnp.sum(x) > 0, "{} is not positive", x)
    return x


@pytest.mark.parametrize("wrap", [jax.vmap, jax.jit, lambda f: jax.jit(jax.vmap(f))])
def test_checks_outside_of_checkify_raise_when_they_run(wrap):
    assert (wrap(positive)(jnp.ones(2)) == 1).all()
    with pytest.raises(checkify.JaxRuntimeError, match=r"-1\.0 is not positive|-1\. -1\."):
        jax.block_until_ready(wrap(positive)(-jnp.ones(2)))
    assert jax.eval_shape(lambda: checkify.check(False, "no")) is None


def test_batches_with_effects_run_at_once():
    seen = []
    out = jax.vmap(lambda x: (jax.debug.callback(lambda v: seen.append(float(v)), x), 2 * x)[1])(jnp.arange(2.0))
    assert sorted(seen) == [0, 1] and out.tolist() == [0, 2]


@pytest.mark.parametrize("errors", [checkify.user_checks, checkify.div_checks])
def test_checks_of_examples_that_have_stopped_are_refused(errors):
    def body(x):
        checkify.check(x < 5, "never")
        return x + 1 + 0 / (5 - x)

    loop = lambda x: lax.while_loop(lambda x: x < 5, body, x)  # noqa: E731
    with pytest.raises(ValueError, match=r"vmap\((jax.)?checkify"):
        checkify.checkify(jax.vmap(loop), errors=errors)(jnp.arange(5.0))
    err, out = jax.vmap(checkify.checkify(loop, errors=errors))(jnp.arange(5.0))
    assert err.get() is None and (out == 5).all()


@pytest.mark.slow
def test_odeint_has_second_derivatives_and_complex_states():
    times = jnp.array([0.0, 0.5])
    last = lambda rate: odeint(lambda y, t: rate * y, 1.0, times)[-1]  # noqa: E731
    np.testing.assert_allclose(jax.grad(jax.grad(last))(0.3), 0.25 * math.exp(0.15), rtol=1e-3)
    turned = odeint(lambda y, t: 1j * y, jnp.complex64(1), times)[-1]
    np.testing.assert_allclose(turned, np.exp(0.5j), rtol=1e-5)


def test_trees_of_unusual_nodes():
    assert jax.tree_util.is_tree_node(list) and not jax.tree_util.is_tree_node(int)
    function = functools.partial(max, 1)
    assert jax.tree_util.Partial(function, 2).func == function
    assert jax.tree.static(metadata={"static": False}).metadata == {"static": False}
    traced = []

    @functools.partial(jax.jit, static_argnums=1)
    def run(vector, unravel):
        traced.append(vector)
        return unravel(vector)

    for _ in range(2):
        run(*jax.flatten_util.ravel_pytree({"a": jnp.ones(2), "b": jnp.arange(2)}))
    assert len(traced) == 1
    with pytest.raises(TypeError, match="a vector of float32"):
        jax.flatten_util.ravel_pytree((jnp.ones(2), jnp.arange(2)))[1](jnp.zeros(4, bool))
