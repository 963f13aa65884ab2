"""Functions with rules of their own, rematerialization, and looking at functions without values."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
import weakref

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import arguments, as_function, assert_close, graphs


def array(*shape, seed=0):
    return gt.array(np.random.default_rng(seed).normal(size=shape))


def close(got, expected, rtol=1e-8, atol=1e-10):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def jitted(f):
    return gt.jit(f, backend="eager")


def inner(xs, ys):
    return sum(((x * y).sum() for x, y in zip(xs, ys, strict=True)), start=gt.array(0.0))


# -- custom_vjp


def scaled_rule(factor=2.0):
    """sin(x) * y whose gradient by x is `factor` times too large, so that the rule shows."""

    @gt.custom_vjp
    def f(x, y):
        return gt.sin(x) * y

    f.defvjp(lambda x, y: (f(x, y), (gt.cos(x), gt.sin(x), y)), lambda r, ct: (factor * ct * r[0] * r[2], ct * r[1]))
    return f


def test_custom_vjp_in_every_composition():
    f, x, y = scaled_rule(), array(3), array(3, seed=1)
    sin, cos = np.sin(np.asarray(x)), np.cos(np.asarray(x))
    expected = (2 * cos * np.asarray(y), sin)
    loss = lambda x, y: f(x, y).sum()  # noqa: E731
    close(f(x, y), sin * np.asarray(y))
    close(gt.grad(loss, (0, 1))(x, y), expected)
    close(jitted(gt.grad(loss, (0, 1)))(x, y), expected)
    close(gt.grad(jitted(loss), (0, 1))(x, y), expected)
    close(gt.vmap(gt.grad(f, (0, 1)))(x, y), expected)
    close(gt.grad(lambda x, y: gt.vmap(f)(x, y).sum(), (0, 1))(x, y), expected)
    total = (2 * cos * 0.5, sin.sum())
    close(gt.grad(lambda x, y: gt.vmap(f, (0, None))(x, y).sum(), (0, 1))(x, gt.array(0.5, dtype=gt.float64)), total)
    # forward mode transposes the rule, and so does forward over reverse
    close(gt.jvp(f, (x, y), (x, y))[1], expected[0] * np.asarray(x) + sin * np.asarray(y))
    close(gt.grad(lambda x: gt.grad(loss)(x, y).sum())(x), -2 * sin * np.asarray(y))
    close(gt.jacfwd(gt.grad(loss))(x, y), np.diag(-2 * sin * np.asarray(y)))
    steps = gt.grad(lambda x: gt.scan(lambda c, _: (f(c, y), None), x, length=2)[0].sum())(x)
    once = sin * np.asarray(y)
    close(steps, 4 * np.cos(once) * np.asarray(y) * cos * np.asarray(y))
    chosen = gt.grad(lambda x: gt.cond(x.sum() > -100, lambda x: f(x, y), lambda x: x, x).sum())(x)
    close(chosen, expected[0])
    close(gt.grad(gt.checkpoint(loss), (0, 1))(x, y), expected)


@gt.tree.register
@attrs.frozen
class Scaled:
    """A vector and a number that is part of the structure: 1, 1.0 and True make equal structures."""

    x: object
    by: object = attrs.field(metadata={"static": True})


def derivatives_of(kind, rule):
    """Return a function that doubles, with the rule in place of the derivative: of (arguments, number) -> number."""
    f = kind(lambda tree: gt.tree.leaves(tree)[0] * 2.0)
    if kind is gt.custom_vjp:
        f.defvjp(
            lambda tree: (f(tree), tree),
            lambda tree, ct: (gt.tree.map(lambda leaf: leaf * 0.0 + ct * rule(tree), tree),),
        )
    else:
        f.defjvp(lambda primals, tangents: (f(*primals), gt.tree.leaves(tangents)[0] * rule(primals[0])))
    return f


@pytest.mark.parametrize("kind", [gt.custom_vjp, gt.custom_jvp])
@pytest.mark.parametrize("around", [lambda g: g, gt.jit, gt.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_a_rule_with_changing_state_runs_in_each_gradient(kind, around):
    state = {"factor": 1.0, "runs": 0}

    def rule(tree):
        state["runs"] += 1
        return state["factor"]

    f = derivatives_of(kind, rule)
    for k, factor in enumerate([1.0, 1.0, 3.0, -0.5, 3.0, 1.0]):
        state["factor"] = factor
        got = gt.grad(around(lambda x: f(x).sum()))(gt.array([1.0, 2.0]))
        looped = gt.grad(around(lambda x: gt.scan(lambda c, _: (f(c), None), x, length=2)[0].sum()))
        assert got.tolist() == [factor] * 2
        assert looped(gt.array([1.0, 2.0])).tolist() == [factor**2] * 2
        assert state["runs"] >= 2 * k + 2


@pytest.mark.parametrize("kind", [gt.custom_vjp, gt.custom_jvp])
def test_rules_see_the_structure_of_their_own_call(kind):
    seen = []

    def rule(tree):
        seen.append(str(list(tree) if isinstance(tree, dict) else tree.by))
        return 1.0

    f = derivatives_of(kind, rule)
    x = gt.array([1.0, 2.0])
    scaled = [Scaled(x, by) for by in (1, True, 1.0, 0.0, -0.0)]
    for tree in (*scaled, {"a": x}, {"a": x, "b": x}, {"b": x, "a": x}):
        gt.grad(lambda tree: f(tree).sum())(tree)
    # of a custom_vjp the cotangents of two leaves are computed, each with the rule
    once = list(dict.fromkeys(seen))
    assert once == ["1", "True", "1.0", "0.0", "-0.0", "['a']", "['a', 'b']", "['b', 'a']"]


@pytest.mark.parametrize("kind", [gt.custom_vjp, gt.custom_jvp])
def test_a_rule_that_is_stated_again_replaces_the_one_before(kind):
    f, other = derivatives_of(kind, lambda tree: 5.0), derivatives_of(kind, lambda tree: 7.0)
    x = gt.array([1.0, 2.0])
    before = gt.grad(lambda x: f(x).sum())(x)
    if kind is gt.custom_vjp:
        f.defvjp(other._fwd, other._bwd)
    else:
        f.defjvp(other._rule)
    assert (before.tolist(), gt.grad(lambda x: f(x).sum())(x).tolist()) == ([5.0] * 2, [7.0] * 2)


def test_calls_with_rules_keep_no_array_alive():
    f = derivatives_of(gt.custom_vjp, lambda tree: 1.0)
    x = gt.eval(gt.ones((3,)) * 2.0)
    gone = weakref.ref(x)
    gt.eval(gt.grad(lambda x: f(x).sum())(x))
    del x
    gc.collect()
    assert gone() is None


def test_functions_that_compute_the_same_keep_their_own_rules():
    """Programs are shared by what they compute; rules are not part of that."""
    f, g, x, y = scaled_rule(2.0), scaled_rule(5.0), array(3), array(3, seed=1)
    for _ in range(3):
        a = gt.grad(lambda x: f(x, y).sum())(x)
        b = gt.grad(lambda x: g(x, y).sum())(x)
        close(5 * a, 2 * b)
    loop = lambda h: gt.grad(lambda x: gt.scan(lambda c, _: (h(c, y), None), x, length=1)[0].sum())(x)  # noqa: E731
    close(5 * loop(f), 2 * loop(g))


def test_custom_vjp_with_pytrees_none_and_nondiff():
    @functools.partial(gt.custom_vjp, nondiff_argnums=(0, 2))
    def f(kind, p, power):
        return {"y": p["a"] ** power if kind == "pow" else p["a"]}, p["b"]

    seen = []

    def bwd(kind, power, residuals, ct):
        seen.append((kind, power))
        return ({"a": ct[0]["y"] * 10 + residuals, "b": ct[1]},)

    f.defvjp(lambda kind, p, power: (f(kind, p, power), p["a"]), bwd)

    def loss(p):
        out, b = f("pow", p, 3)
        return out["y"] + b.sum() * 0

    g = gt.grad(loss)({"a": gt.array(2.0), "b": gt.ones(2)})
    assert float(g["a"]) == 12.0 and g["b"].tolist() == [0, 0]
    assert seen == [("pow", 3)]

    @gt.custom_vjp
    def gather(x, i):
        return x[i]

    gather.defvjp(lambda x, i: (x[i], None), lambda _, ct: (gt.ones(3) * ct, None))
    assert gt.grad(gather)(gt.arange(3) * 1.0, gt.array(1)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("fwd", "bwd", "match"),
    [
        (None, None, "a rule"),
        (lambda x: x, lambda r, ct: (ct,), r"\(output, residuals\) from fwd"),
        (lambda x: (x, None), lambda r, ct: ct, "1 cotangents from bwd"),
        (lambda x: (x, None), lambda r, ct: (ct, ct), "1 cotangents from bwd, got 2"),
        (lambda x: (x, None), lambda r, ct: (gt.ones(5),), r"shape and dtype of f32\[3\], got f32\[5\]"),
        (lambda x: (x, None), lambda r, ct: ({"a": ct},), "structure"),
    ],
)
def test_wrong_custom_vjp(fwd, bwd, match):
    f = gt.custom_vjp(lambda x: x * 2)
    if fwd is not None:
        f.defvjp(fwd, bwd)
    with pytest.raises(gt.ArgumentError, match=match) as info:
        gt.grad(lambda x: f(x).sum())(gt.ones(3))
    assert "test_rules.py:" in str(info.value)


def test_a_closed_over_value_cannot_be_differentiated():
    def f(w):
        g = gt.custom_vjp(lambda x: x * w)
        g.defvjp(lambda x: (g(x), None), lambda r, ct: (ct,))
        return g(gt.array(1.0))

    with pytest.raises(gt.ArgumentError, match=r"closes over.*Pass it as an argument"):
        gt.grad(f)(gt.array(2.0))


# -- custom_jvp


def _scaled(kind, x):
    """A function of y that closes over x, as its rule does, which states three times the derivative."""
    if kind == "jvp":
        g = gt.custom_jvp(lambda y: x * y)
        g.defjvp(lambda primals, tangents: (x * primals[0], 3 * x * tangents[0]))
    else:
        g = gt.custom_vjp(lambda y: x * y)
        g.defvjp(lambda y: (x * y, y), lambda y, ct: (3 * x * ct,))
    return g


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_rules_may_close_over_examples_of_a_batch(kind):
    xs = gt.arange(3.0)
    f = lambda z: gt.vmap(lambda x: _scaled(kind, gt.sin(x))(z))(xs)  # noqa: E731
    want = 3 * np.sin(np.arange(3, dtype="float32"))
    for g in (f, gt.jit(f)):
        assert_close(gt.jacrev(g)(2.0), want)
        assert_close(gt.jacfwd(g)(2.0), want)
        assert_close(gt.vmap(gt.grad(lambda z, g=g: g(z).sum()))(gt.ones(2)), [want.sum()] * 2)
    nested = lambda z: gt.vmap(lambda x: gt.vmap(lambda w: _scaled(kind, x * w)(z))(xs))(xs)  # noqa: E731
    assert_close(gt.jacrev(nested)(2.0), 3 * np.outer(np.arange(3, dtype="float32"), np.arange(3)).astype("float32"))


def test_a_rule_differs_between_examples_of_a_constant():
    f = gt.custom_jvp(lambda x: np.zeros((), "float32"))
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * primals[0]))
    xs = gt.arange(3.0)
    assert_close(gt.grad(lambda x: gt.vmap(f)(x).sum())(xs), [0, 1, 2])
    assert_close(gt.jvp(gt.vmap(f), (xs,), (gt.ones(3),))[1], [0, 1, 2])


def test_custom_jvp_in_every_composition():
    @gt.custom_jvp
    def f(x, y):
        return gt.sin(x) * y

    @f.defjvp
    def rule(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        return f(x, y), 3 * gt.cos(x) * y * tx + gt.sin(x) * ty

    x, y = array(3), array(3, seed=1)
    sin, cos = np.sin(np.asarray(x)), np.cos(np.asarray(x))
    expected = (3 * cos * np.asarray(y), sin)
    loss = lambda x, y: f(x, y).sum()  # noqa: E731
    close(gt.jvp(f, (x, y), (x, y))[1], expected[0] * np.asarray(x) + sin * np.asarray(y))
    close(gt.grad(loss, (0, 1))(x, y), expected)
    close(jitted(gt.grad(loss, (0, 1)))(x, y), expected)
    close(gt.vmap(gt.grad(f, (0, 1)))(x, y), expected)
    close(gt.vmap(lambda x, y: gt.jvp(f, (x, y), (1.0, 0.0))[1])(x, y), expected[0])
    close(gt.grad(lambda x: gt.grad(loss)(x, y).sum())(x), -3 * sin * np.asarray(y))
    close(gt.hessian(loss)(x, y), np.diag(-3 * sin * np.asarray(y)))


WAYS = {
    "scan": lambda f, x: gt.scan(lambda c, y: (f(c) + y, y * c), x, gt.ones((2, 3)), reverse=True),
    "switch": lambda f, x: gt.switch(gt.array(1), [gt.sin, f, lambda x: f(f(x))], x),
    "while": lambda f, x: gt.while_loop(lambda c: c[0].sum() < 1e3, lambda c: (f(c[0]), c[1] + 1), (x, 0))[0],
    "checkpoint": lambda f, x: gt.checkpoint(f, policy=gt.checkpoint_policies.dots_saveable)(x),
    "nested": lambda f, x: gt.scan(lambda c, _: (gt.cond(c[0] > 0, f, gt.sin, c), None), x, None, length=2)[0],
}
"""Ways to call a function within an operation."""


@pytest.mark.parametrize("way", WAYS)
def test_a_rule_may_use_arrays_from_outside(way):
    outside, x = gt.array([1.0, 2.0, 3.0]), gt.array([1.1, 2.0, 3.0])

    def squared(*weights):
        """By one rule: what it multiplies by is an argument, or from outside, or made there."""
        f = gt.custom_jvp(lambda x, *w: x * x)

        @f.defjvp
        def rule(primals, tangents):
            x, *w = primals
            used = w or (outside, gt.array([1.0, 2.0, 3.0]))
            return f(*primals), tangents[0] * 2 * x * used[0] * used[1]

        return lambda x: sum(leaf.sum() for leaf in gt.tree.leaves(WAYS[way](lambda x: f(x, *weights), x)))

    closed, given = squared(), squared(outside, outside)
    close(gt.jvp(closed, (x,), (x,))[1], gt.jvp(given, (x,), (x,))[1], rtol=1e-6)
    if way != "while":  # it has no gradient
        gradient = gt.grad(given)(x)
        close(jitted(gt.grad(closed))(x), gradient, rtol=1e-6)
        close(gt.vmap(gt.grad(closed))(gt.stack([x, x])), gt.stack([gradient, gradient]), rtol=1e-6)
        close(gt.hessian(closed)(x), gt.hessian(given)(x), rtol=1e-6)


def test_defjvps_and_nondiff_arguments():
    @gt.custom_jvp
    def f(x, y):
        return x * y

    f.defjvps(lambda t, out, x, y: 100 * t, None)
    assert float(gt.grad(f)(2.0, 3.0)) == 100 and float(gt.grad(f, 1)(2.0, 3.0)) == 0

    g = gt.custom_jvp(lambda h, x: h(x), nondiff_argnums=(0,))
    g.defjvp(lambda h, primals, tangents: (h(*primals), 7 * tangents[0]))
    assert float(gt.grad(lambda x: g(gt.sin, x))(1.0)) == 7
    bad = gt.custom_jvp(lambda x: x)
    bad.defjvp(lambda p, t: p[0])
    with pytest.raises(gt.ArgumentError, match=r"\(output, tangent\) from the rule"):
        gt.grad(bad)(1.0)


def test_keyword_arguments_take_their_positions():
    f = scaled_rule()
    assert float(gt.grad(lambda x: f(y=gt.array(3.0), x=x))(0.0)) == 6.0
    g = gt.custom_vjp(lambda x, *, scale=1.0: x * scale)
    g.defvjp(lambda x: (x, None), lambda r, ct: (ct,))
    with pytest.raises(gt.ArgumentError, match="have a position, got scale"):
        g(1.0, scale=2.0)


def test_stop_gradient_of_a_tree():
    g = gt.grad(lambda p: sum(gt.tree.leaves(gt.stop_gradient(p)), start=p["a"] * 2))(
        {"a": gt.array(1.0), "b": [gt.array(2.0)]}
    )
    assert float(g["a"]) == 2.0 and float(g["b"][0]) == 0.0


def test_methods_can_carry_rules():
    @gt.tree.register
    @attrs.frozen
    class Layer:
        w: gt.Array

        @gt.custom_vjp
        def __call__(self, x):
            return self.w * x

    Layer.__call__.defvjp(lambda s, x: (s(x), (s, x)), lambda r, ct: (Layer(ct * r[1]), ct * 50))
    g = gt.grad(lambda layer, x: layer(x), (0, 1))(Layer(gt.array(2.0)), 3.0)
    assert float(g[0].w) == 3.0 and float(g[1]) == 50.0


# -- checkpoint


@pytest.mark.slow
@given(
    graphs(8, smooth=True).flatmap(lambda graph: st.tuples(st.just(graph), arguments(graph))),
    st.sampled_from(["nothing_saveable", "dots_saveable"]),
)
def test_checkpoint_changes_no_derivative(program, policy):
    graph, xs = program
    plain = as_function(graph)
    kept = gt.checkpoint(plain, policy=policy)
    argnums = tuple(range(len(xs)))

    def loss(f):
        return lambda *xs: sum((gt.sin(y).sum() for y in f(*f(*xs)[:0], *xs)), start=gt.array(0.0))

    close(gt.grad(loss(kept), argnums)(*xs), gt.grad(loss(plain), argnums)(*xs))
    close(gt.jvp(loss(kept), xs, xs), gt.jvp(loss(plain), xs, xs))
    second = lambda f: gt.grad(lambda *xs: inner(gt.grad(loss(f), argnums)(*xs), xs), argnums)  # noqa: E731
    close(second(kept)(*xs), second(plain)(*xs), 1e-6, 1e-8)


def block(x, w):
    return gt.tanh(gt.sin(x @ w) * x)


def deep(f):
    def loss(ws, x):
        for w in ws:
            x = f(x, w)
        return (x * x).sum()

    return loss


def test_checkpoint_recomputes_and_keeps_what_its_policy_says():
    ws, x = [array(4, 4, seed=k) for k in range(3)], array(3, 4)
    texts = {}
    for policy in ("nothing_saveable", "dots_saveable"):
        f = jitted(gt.grad(deep(gt.checkpoint(block, policy=policy))))
        close(f(ws, x), gt.grad(deep(block))(ws, x))
        texts[policy] = f.lower(ws, x).as_text()
        assert texts[policy].count("= rematerialize(") == 3
    # forward 3; backward 2 a block beside the recomputed one, of which the first needs none by x
    products = {policy: text.count("= matmul(") for policy, text in texts.items()}
    assert products["nothing_saveable"] == products["dots_saveable"] + 3
    forward = jitted(deep(gt.checkpoint(block))).lower(ws, x).as_text()
    assert "checkpoint" not in forward  # without a backward pass there is nothing to keep apart


def test_checkpoint_keeps_values_by_their_names():
    policies, x = gt.checkpoint_policies, gt.array([0.5, 1.0, 2.0])

    def f(x):
        y = gt.checkpoint_name(gt.log(x), "y")
        return (gt.checkpoint_name({"z": gt.sin(y)}, "z")["z"] ** 2).sum()

    for policy, kept in (
        (policies.save_only_these_names("y"), ("sin",)), (policies.save_only_these_names("z"), ("log",)),
        (policies.save_only_these_names("y", "z"), ()), (policies.save_any_names_but_these("y"), ("log",)),
        (policies.save_only_these_names(), ("log", "sin")), (policies.save_any_names_but_these(), ()),
    ):  # fmt: skip
        g = gt.grad(gt.checkpoint(f, policy=policy))
        close(g(x), gt.grad(f)(x))
        again = gt.make_graph(g)(x).nodes
        (body,) = [node.params[0].graph for node in again if node.op.name == "rematerialize"]
        assert tuple(sorted({node.op.name for node in body.nodes} & {"log", "sin"})) == kept


@pytest.mark.slow
def test_checkpoint_lowers_peak_memory():
    """In a process of its own: the peak of its own memory over a chain of 60 blocks of four 4 MB values each."""
    script = """
        import sys, threading, time
        import gtrace as gt
        gt.config.update(auto_compile=False)
        def block(x):
            return gt.tanh(gt.tanh(gt.tanh(gt.tanh(x))))
        f = gt.checkpoint(block) if sys.argv[1] == "checkpoint" else block
        def loss(x):
            for _ in range(60):
                x = f(x)
            return x.sum()
        def anonymous():
            # not the pages of torch's libraries, which come and go
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
        def sample():
            while True:
                seen.append(anonymous())
                time.sleep(0.0005)
        small, x = gt.ones((4, 4)), gt.eval(gt.ones((1024, 1024)))
        gt.eval(gt.grad(loss)(small))
        seen = [anonymous()]
        threading.Thread(target=sample, daemon=True).start()
        gt.eval(gt.grad(loss)(x))
        print(max(seen) - seen[0])
    """
    grown = {}
    for kind in ("checkpoint", "plain"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), kind],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            # large blocks straight from the system: what is measured is what is alive, not how the heap is fragmented
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        )
        grown[kind] = float(done.stdout)
    assert grown["plain"] > 700, grown  # the backward pass needs all 240 values of 4 MB
    assert grown["checkpoint"] < 0.45 * grown["plain"], grown


def test_wrong_checkpoint():
    with pytest.raises(gt.ArgumentError, match="a policy among nothing_saveable, dots_saveable"):
        gt.checkpoint(block, policy="everything")
    with pytest.raises(gt.ArgumentError, match="a function"):
        gt.checkpoint(3)
    assert gt.checkpoint_policies.dots_saveable == "dots_saveable"


# -- looking without values


def test_eval_shape_and_make_graph():
    spec = gt.ShapeDtypeStruct((2, 3), "float64")
    out = gt.eval_shape(lambda d, k: {"y": d["x"].sum(0), "k": k * 2}, {"x": spec}, gt.arange(4))
    assert (out["y"].shape, out["y"].dtype) == ((3,), gt.float64)
    assert (out["k"].shape, out["k"].dtype) == ((4,), gt.int64)
    assert gt.eval_shape(gt.grad(lambda x: (x**2).sum()), spec) == spec
    huge = gt.eval_shape(lambda x: x @ x, gt.ShapeDtypeStruct((10**6, 10**6), gt.float32))
    assert huge.shape == (10**6, 10**6) and huge.ndim == 2
    assert "f64[2,3] = sin" in str(gt.make_graph(gt.sin)(spec))
    with pytest.raises(gt.ArgumentError, match="str at"):
        gt.eval_shape(lambda x: x, "text")
    with pytest.raises(gt.ConcretizationError, match="eval_shape"):
        gt.eval_shape(lambda x: float(x.sum()), spec)


def test_a_leaked_placeholder_says_where_it_was_made():
    kept = []

    def f(x):
        kept.append(x * 2)  # made here
        return x

    line = f.__code__.co_firstlineno + 1
    for transform in (jitted, gt.vmap, lambda g: lambda x: gt.scan(lambda c, v: (c, g(v)), 0.0, x),
                      lambda g: lambda x: gt.cond(True, g, g, x), lambda g: lambda x: gt.eval_shape(g, x)):  # fmt: skip
        kept.clear()
        transform(f)(gt.ones(2))
        for use in (lambda: kept[0] + 1, lambda: float(kept[0].sum()), lambda: print(kept[0].tolist())):
            with pytest.raises(gt.LeakError, match=rf"test_rules.py:{line}\)"):
                use()


# -- GT_DEBUG_NANS


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


def bad_log(x):
    y = x * 2
    return gt.log(y).sum()


def bad_slope(x):
    return gt.sqrt(x).sum()


@pytest.mark.parametrize(
    ("call", "op", "place"),
    [
        (lambda x: bad_log(x), "log", (bad_log, 2)),
        (lambda x: jitted(bad_log)(x), "log", (bad_log, 2)),
        (lambda x: gt.grad(bad_log)(x), "log", (bad_log, 2)),
        (lambda x: gt.vmap(bad_log)(x[None]), "log", (bad_log, 2)),
        (lambda x: gt.grad(bad_slope)(x), "div", (bad_slope, 1)),
        (lambda x: jitted(gt.grad(bad_slope))(x), "div", (bad_slope, 1)),
        (lambda x: gt.grad(jitted(bad_slope))(x), "div", (bad_slope, 1)),
        (lambda x: gt.jvp(bad_slope, (x,), (x + 1,))[1], "div", None),
        (lambda x: gt.scan(lambda c, v: (c + bad_log(v + 0 * c), None), 0.0, x)[0], "log", (bad_log, 2)),
        (lambda x: gt.cond(True, bad_log, bad_log, x), "log", (bad_log, 2)),
    ],
)
def test_debug_nans_names_the_operation_and_the_line(call, op, place):
    with gt.config(debug_nans=True, auto_compile=False), pytest.raises(gt.NonFiniteError) as info:
        gt.eval(call(gt.array([1.0, 0.0])))
    text = str(info.value)
    assert text.startswith(f"[{op}] expected finite values, got an infinity in 1 of")
    assert isinstance(info.value, FloatingPointError)
    where = "test_rules.py:" if place is None else f"test_rules.py:{line_of(*place)}"
    assert where in text


def test_debug_nans_leaves_alone_what_is_meant():
    with gt.config(debug_nans=True):
        masked = gt.softmax(gt.where(gt.array([True, False]), 1.0, -np.inf))
        assert masked.tolist() == [1, 0]
        assert np.isnan(float(gt.array(np.nan) * 2))
        assert float(jitted(bad_log)(gt.array([0.5, 0.5]))) == 0.0
        with pytest.raises(gt.NonFiniteError, match="got NaN in 1 of 1"):
            gt.eval(gt.array(np.inf) - np.inf)
    assert float(bad_log(gt.array([1.0, 0.0]))) == -np.inf


def test_a_rule_that_raises_leaves_no_line_and_no_region_behind():
    @gt.custom_vjp
    def f(x):
        return x * 2.0

    def backward(saved, ct):
        raise RuntimeError("no derivative today")

    f.defvjp(lambda x: (x * 2.0, x), backward)
    with pytest.raises(RuntimeError, match="no derivative today"):
        gt.jit(gt.grad(lambda x: gt.sin(f(gt.cos(x)))))(gt.array(1.0))
    graph = gt.make_graph(lambda x: x + 1.0)(gt.array(1.0))
    assert graph.nodes[0].location.startswith(f"{__file__}:") and "backward" not in graph.nodes[0].location
