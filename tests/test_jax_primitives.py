"""Primitives of other libraries on JAX's names: each rule, in every way of running, and zeros that rules can see."""

from __future__ import annotations

import math

import pytest

import gtrace as gt
from gtrace.errors import ArgumentError, ShapeError
from gtrace.testing import assert_close


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def power(jax, *, lowered):
    """Return x -> x**n as a primitive with all rules. The lowering or the implementation is its only body."""
    from gtrace.jax.interpreters import ad, batching, mlir

    p = jax.extend.core.Primitive("power")
    if lowered:
        mlir.register_lowering(p, mlir.lower_fun(lambda x, *, n: x**n, multiple_results=False))
    else:
        p.def_impl(lambda x, *, n: x**n)
    p.def_abstract_eval(lambda x, *, n: jax.core.ShapedArray(x.shape, x.dtype))

    def jvp(primals, tangents, *, n):
        (x,), (t,) = primals, tangents
        return p.bind(x, n=n), t * n * p.bind(x, n=n - 1)

    ad.primitive_jvps[p] = jvp
    batching.primitive_batchers[p] = lambda args, axes, *, n: (p.bind(args[0], n=n), axes[0])
    return p


WAYS = {
    "value": (lambda jax, f: f(2.0), 8.0),
    "jit": (lambda jax, f: jax.jit(f)(2.0), 8.0),
    "grad": (lambda jax, f: jax.grad(f)(2.0), 12.0),
    "grad of grad": (lambda jax, f: jax.grad(jax.grad(f))(2.0), 12.0),
    "jit of grad": (lambda jax, f: jax.jit(jax.grad(f))(2.0), 12.0),
    "jvp": (lambda jax, f: jax.jvp(f, (2.0,), (1.0,))[1], 12.0),
    "jvp of grad": (lambda jax, f: jax.jvp(jax.grad(f), (2.0,), (1.0,))[1], 12.0),
    "linearize": (lambda jax, f: jax.linearize(f, 2.0)[1](1.0), 12.0),
    "vmap": (lambda jax, f: jax.vmap(f)(jax.numpy.array([1.0, 2.0])), [1.0, 8.0]),
    "vmap of grad": (lambda jax, f: jax.vmap(jax.grad(f))(jax.numpy.array([1.0, 2.0])), [3.0, 12.0]),
    "vmap of vmap": (lambda jax, f: jax.vmap(jax.vmap(f))(jax.numpy.array([[1.0, 2.0]])), [[1.0, 8.0]]),
    "grad of vmap": (lambda jax, f: jax.grad(lambda x: jax.vmap(f)(x).sum())(jax.numpy.array([1.0, 2.0])), [3.0, 12.0]),
    "scan": (lambda jax, f: jax.lax.scan(lambda c, _: (f(c) / 4, c), 2.0, None, length=3)[0], 2.0),
    "grad of scan": (
        lambda jax, f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c) / 4, None), x, None, 3)[0])(2.0), 27.0,
    ),
    "cond": (lambda jax, f: jax.grad(lambda x: jax.lax.cond(x > 0, f, lambda x: x, x))(2.0), 12.0),
    "checkpoint": (lambda jax, f: jax.grad(jax.checkpoint(f))(2.0), 12.0),
    "hot": (lambda jax, f: [jax.jit(jax.grad(f))(2.0).item() for _ in range(6)][-1], 12.0),
    "program": (
        lambda jax, f: jax.grad(lambda x: jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(f)(1.0))(x)[0])(2.0), 12.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_primitive_with_all_rules(jax, way, lowered):
    p = power(jax, lowered=lowered)
    run, want = WAYS[way]
    assert_close(run(jax, lambda x: p.bind(x, n=3)), jax.numpy.array(want), check_dtype=False)


def test_a_tangent_is_transposed_by_the_transpose(jax):
    from gtrace.jax.interpreters import ad

    p, seen = jax.extend.core.Primitive("mix"), []
    p.multiple_results = True
    p.def_impl(lambda x, y: [2 * x + y, x - y])

    def jvp(primals, tangents):
        seen.append([type(t) is ad.Zero for t in tangents])
        return p.bind(*primals), p.bind(*map(ad.instantiate_zeros, tangents))

    def transpose(cts, x, y):
        assert ad.is_undefined_primal(x) and x.aval.shape == () and not ad.is_undefined_primal(y)
        seen.append([type(ct) is ad.Zero for ct in cts])
        a, b = map(ad.instantiate_zeros, cts)
        return [100 * (2 * a + b), None]

    ad.primitive_jvps[p], ad.primitive_transposes[p] = jvp, transpose

    def first(x):
        return p.bind(x, 3.0)[0]

    assert jax.grad(first)(1.0).item() == 200.0 and seen == [[False, True], [False, True]]
    assert jax.jit(jax.grad(first))(1.0).item() == 200.0
    assert jax.jvp(first, (1.0,), (1.0,))[1].item() == 2.0
    assert jax.linear_transpose(lambda x: p.bind(x, jax.numpy.zeros(()))[1], 1.0)(1.0)[0].item() == 100.0


def test_rules_by_the_helpers(jax):
    from gtrace.jax.interpreters import ad, batching, xla

    times, double = jax.extend.core.Primitive("times"), jax.extend.core.Primitive("double")
    times.def_impl(lambda x, y: x * y)
    ad.defbilinear(times, lambda ct, x, y: times.bind(ct, y), lambda ct, x, y: times.bind(x, ct))
    batching.defbroadcasting(times)
    double.def_impl(lambda x: 2 * x)
    ad.deflinear(double, lambda ct: [double.bind(ct)])
    batching.defvectorized(double)

    def f(x, y):
        return times.bind(double.bind(x), y)

    x, y = jax.numpy.array([1.0, 2.0]), jax.numpy.array([3.0, 4.0])
    assert [g.item() for g in jax.grad(f, (0, 1))(3.0, 5.0)] == [10.0, 6.0]
    assert jax.vmap(jax.grad(f, 1), (0, None))(x, 7.0).tolist() == [2.0, 4.0]
    assert jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, y).tolist() == [[6.0, 8.0], [12.0, 16.0]]
    assert xla.apply_primitive(double, 4.0) == 8.0


def test_what_a_primitive_has_not(jax):
    bare = jax.extend.core.Primitive("bare")
    bare.def_impl(lambda x: x + 1)
    assert bare.bind(1.0) == 2.0 and jax.jit(bare.bind)(1.0).item() == 2.0
    for way in (jax.grad(bare.bind), lambda x: jax.jvp(bare.bind, (x,), (x,))):
        with pytest.raises(NotImplementedError, match=r"\[bare\] expected a rule for tangents, got none"):
            way(1.0)
    with pytest.raises(NotImplementedError, match=r"\[bare\] expected a rule for batches"):
        jax.vmap(bare.bind)(jax.numpy.ones(2))
    with pytest.raises(NotImplementedError, match="an implementation"):
        jax.extend.core.Primitive("nothing").bind(1.0)
    with pytest.raises(ArgumentError, match=r"\[bare\] expected arrays or numbers, got str as operand 0"):
        jax.jit(lambda: bare.bind("a"))()
    bare.def_abstract_eval(lambda x: jax.core.ShapedArray((3,), x.dtype))
    with pytest.raises(ShapeError, match=r"results like \[ShapedArray\(float32\[3\]\)\]"):
        jax.jit(bare.bind)(1.0)


def test_a_value_that_a_body_closes_over_has_no_derivative(jax):
    def f(x):
        p = power(jax, lowered=False)
        p.def_impl(lambda y, *, n: y * x)
        return p.bind(2.0, n=1)

    for way, x in ((jax.grad(f), 1.0), (jax.vmap(f), jax.numpy.ones(2))):
        with pytest.raises(ArgumentError, match="a function of its arguments alone"):
            way(x)


def test_a_callback_in_a_body_runs_once(jax):
    from gtrace.jax.interpreters import mlir

    p, seen = jax.extend.core.Primitive("seen"), []
    p.multiple_results = True
    p.def_abstract_eval(lambda x: [x])

    def lowering(ctx, x):
        def call(x):
            seen.append(float(x))
            return (x * 2,)

        return mlir.emit_python_callback(ctx, call, None, [x], ctx.avals_in, ctx.avals_out, has_side_effect=True)[0]

    mlir.register_lowering(p, lowering)
    f = jax.jit(lambda x: p.bind(x)[0] + 1)
    assert [f(float(x)).item() for x in range(4)] == [1.0, 3.0, 5.0, 7.0] and seen == [0.0, 1.0, 2.0, 3.0]


def test_keys_and_integers_are_operands(jax):
    from gtrace.jax.interpreters import ad

    p = jax.extend.core.Primitive("noise")
    p.multiple_results = True
    p.def_impl(lambda key, x, k: [jax.random.uniform(key, x.shape) * x, jax.random.split(key)[0], k + 1])

    def jvp(primals, tangents):
        key, x, _ = primals
        assert [t.aval.dtype for t in (tangents[0], tangents[2])] == [jax.float0] * 2
        zeros = [ad.Zero.from_primal_value(v) for v in (key, 1)]
        return p.bind(*primals), [jax.random.uniform(key, x.shape) * tangents[1], *zeros]

    ad.primitive_jvps[p] = jvp
    key = jax.random.key(3)
    y, other, k = jax.jit(p.bind)(key, 1.0, 4)
    assert other == jax.random.split(key)[0] and k.item() == 5
    assert_close(jax.grad(lambda x: p.bind(key, x, 4)[0])(2.0), y, check_dtype=False)


# -- zeros


def test_rules_know_what_is_differentiated(jax):
    seen = []

    @jax.custom_vjp
    def f(x, y):
        return x * 2, y * 3

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return (x.value * 2, y.value * 3), None

    def backward(_, cts):
        zero = jax.custom_derivatives.SymbolicZero
        seen.append(tuple(isinstance(ct, zero) for ct in cts))
        return tuple(ct if isinstance(ct, zero) else ct * 10 for ct in cts)

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert jax.grad(lambda x: f(x, 1.0)[0])(1.0).item() == 10.0 and seen == [(True, False), (False, True)]
    seen.clear()
    assert jax.grad(lambda x: f(x, x)[1])(1.0).item() == 10.0 and seen == [(True, True), (True, False)]


def test_loops_and_branches_do_not_differentiate_what_does_not_change(jax):
    jnp, lax = jax.numpy, jax.lax

    @jax.custom_jvp
    def fixed(x):
        return x * 1

    @fixed.defjvp
    def refuse(primals, tangents):
        raise AssertionError("it is differentiated")

    def scanned(x):
        def step(carry, s):
            a, b, k = carry
            return (a * x + s, fixed(b) + 1, k + 1), (fixed(b), a)

        (a, b, _), (ys, zs) = lax.scan(step, (x, jnp.float32(1), 0), jnp.arange(3.0))
        return a + zs.sum() + ys.sum() + fixed(b)

    def looped(x):
        a, b = lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * x, fixed(c[1]) + 1), (x, jnp.float32(0)))
        return a + fixed(b)

    def chosen(x):
        a, b = lax.cond(x > 0, lambda: (x * x, jnp.float32(3)), lambda: (x, fixed(jnp.float32(2))))
        return a * fixed(b)

    for f, want in ((scanned, 50.0), (chosen, 12.0)):
        for way in (jax.grad(f), jax.jit(jax.grad(f)), lambda x, f=f: jax.vmap(jax.grad(f))(x[None])[0]):
            assert way(jnp.float32(2)).item() == want
    for f, want in ((scanned, 50.0), (looped, 192.0), (chosen, 12.0)):
        assert jax.jvp(f, (2.0,), (1.0,))[1].item() == want


def test_linearize_passes_a_rule_that_has_no_transpose(jax):
    @jax.custom_vjp
    def f(x):
        return x**3

    def backward(x, ct):
        return (jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * x, c[1] + 1), (3 * ct / x, 0))[0],)

    f.defvjp(lambda x: (f(x), x), backward)
    value, push = jax.linearize(lambda x: f(x) + x, 2.0)
    assert value.item() == 10.0 and jax.grad(f)(2.0).item() == 12.0
    with pytest.raises(ArgumentError, match="while_loop"):
        push(1.0)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (3 * x**2 * ct,))
    assert jax.linearize(lambda x: f(x) + x, 2.0)[1](1.0).item() == 13.0


def test_shapes_with_dtypes(jax):
    from gtrace.jax.interpreters import ad

    aval = jax.typeof(jax.numpy.ones((2, 3)))
    assert isinstance(aval, jax.core.ShapedArray) and repr(aval) == "ShapedArray(float32[2,3])"
    assert aval == jax.core.get_aval(jax.numpy.ones((2, 3))) and hash(aval) == hash(aval.strip_weak_type())
    assert jax.core.mapped_aval(3, 1, aval).shape == (2,) and jax.core.unmapped_aval(4, 0, aval).shape == (4, 2, 3)
    assert aval.to_tangent_aval() == aval and aval.update(shape=()).str_short() == "float32[]"
    assert jax.typeof(1).to_tangent_aval().dtype == jax.float0 and jax.typeof(1.0).weak_type
    assert jax.tree.leaves([ad.Zero(aval), ad.UndefinedPrimal(aval)]) == []
    assert ad.instantiate_zeros(ad.Zero.from_primal_value(3)).dtype == jax.float0
    assert math.isclose(ad.add_tangents(ad.Zero(aval), 2.0), 2.0)


def test_equations_name_the_primitive(jax):
    p = power(jax, lowered=False)
    both = jax.extend.core.Primitive("both")
    both.multiple_results = True
    both.def_impl(lambda x: [x * 2.5, x])
    program = jax.make_jaxpr(lambda x: both.bind(p.bind(x, n=3))[0])(1.0)
    assert [(eqn.primitive is p, eqn.primitive is both) for eqn in program.eqns] == [(True, False), (False, True)]
    assert program.eqns[0].params == {"n": 3}
    assert_close(jax.core.eval_jaxpr(program.jaxpr, program.consts, 2.0)[0], gt.array(20.0), check_dtype=False)


def test_custom_vmap_calls_its_rule(jax):
    """A rule gets what is batched; it runs under nested batches, in loops and in forward mode, with JAX's numbers."""
    jnp, calls = jax.numpy, []

    @jax.custom_batching.custom_vmap
    def f(x, n):
        return {"product": x * n, "n": n}

    @f.def_vmap
    def rule(size, batched, x, n):
        calls.append((size, batched))
        return {"product": x * n + 100, "n": n}, {"product": any(batched), "n": batched[1]}

    x, n = jnp.arange(3.0), jnp.arange(3)
    assert f(2.0, 3)["product"] == 6 and calls == []
    assert jax.vmap(f, (0, None))(x, 2)["product"].tolist() == [100, 102, 104]
    nested = jax.jit(jax.vmap(jax.vmap(f, (0, None)), (None, 0)))(x, n)
    assert nested["product"].tolist() == [[100, 100, 100], [100, 101, 102], [100, 102, 104]]
    assert nested["n"].tolist() == [[k] * 3 for k in range(3)]
    assert calls == [(3, [True, False])] * 2

    def pushed(x, n):
        return jax.jvp(lambda x: f(x, n)["product"], (x,), (2.0,))

    primals, tangents = jax.jit(jax.vmap(pushed))(x, n)
    assert (primals.tolist(), tangents.tolist()) == ([100, 101, 104], [0, 2, 4])
    looped = jax.vmap(lambda x: jax.lax.fori_loop(0, 2, lambda k, x: f(x, 2)["product"], x))(x)
    assert looped.tolist() == [300, 304, 308]
    assert jax.grad(lambda x: jax.vmap(f, (0, None))(x, 2)["product"].sum())(x).tolist() == [2, 2, 2]

    one = jax.custom_batching.custom_vmap(lambda x: x)
    with pytest.raises(AttributeError, match="a batching rule for <lambda>, got none"):
        one(x)
    one.def_vmap(lambda size, batched, x: ((x, x), (True, True)))
    with pytest.raises(ArgumentError, match="an output like"):
        jax.vmap(one)(x)


def test_custom_vmap_of_values_or_tangents_alone(jax):
    """In forward mode, a rule of arguments of which only the tangents are batched gets them unbatched, as in JAX."""
    f, seen = jax.custom_batching.custom_vmap(lambda x, n: (x * x * n, n)), []

    @f.def_vmap
    def rule(size, batched, x, n):
        seen.append(batched)
        return (x * x * n, n), (batched[0] or batched[1], batched[1])

    x, t = jax.numpy.array([1.0, 2.0, 3.0]), jax.numpy.arange(2.0)
    push = lambda x, t: jax.jvp(lambda x: f(x, 2.0), (x,), (t,))  # noqa: E731
    for wrap in (lambda g: g, jax.jit):
        (outs, n), (moved, _) = wrap(jax.vmap(push, (None, 0), ((None, None), (0, None))))(3.0, t)
        assert outs == 18 and n == 2 and moved.tolist() == [0, 12]
        assert seen.pop() == [False, False] and not seen
        assert wrap(jax.jacfwd(lambda x: f(x, 2.0)[0]))(x).tolist() == [[4, 0, 0], [0, 8, 0], [0, 0, 12]]
        assert seen.pop() == [False, False] and not seen
        (outs, _), (moved, _) = wrap(jax.vmap(push, (0, None), ((0, None), (0, None))))(x, 1.0)
        assert outs.tolist() == [2, 8, 18] and moved.tolist() == [4, 8, 12]
        seen.clear()


def test_sequential_vmap_computes_one_example_after_the_other(jax, capfd):
    @jax.custom_batching.sequential_vmap
    def f(x, more):
        jax.debug.print("{}", x)
        return x + more["y"]

    assert jax.vmap(f, (0, None))(jax.numpy.arange(3), {"y": 1}).tolist() == [1, 2, 3]
    assert capfd.readouterr().out.split() == ["0", "1", "2"]
