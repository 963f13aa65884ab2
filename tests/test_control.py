"""Control flow as users call it: interpreted, compiled, differentiated, batched; and what it refuses."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.ir.op import REGISTRY, _instrs
from gtrace.core.ir.subgraph import _interned, subgraph
from gtrace.core.ir.text import parse_graph
from gtrace.core.ir.verify import verify
from gtrace.core.runtime.engine import engine
from gtrace.testing import arguments, as_function, assert_close, graphs


def array(*shape, seed=0):
    return gt.array(np.random.default_rng(seed).normal(size=shape))


def close(got, expected, rtol=1e-8, atol=1e-10):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def jitted(f):
    return gt.jit(f, backend="eager")


def unrolled(f, init, xs, length=None, reverse=False):
    """What `scan` stands for, as a Python loop."""
    leaves, structure = gt.tree.flatten(xs)
    steps = length if length is not None else leaves[0].shape[0]
    carry, ys = init, []
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        carry, y = f(carry, structure.unflatten([x[t] for x in leaves]))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, gt.tree_map(lambda *column: gt.stack(column), *ys)


def rnn(p, h, x):
    """A step whose parts are hoisted (x @ wx), stay (h @ wh) and sink (h @ wo)."""
    wx, wh, wo = p
    h = gt.tanh(x @ wx + h @ wh)
    return h, {"out": h @ wo, "norm": (x * x).sum()}


def rnn_case():
    p = array(4, 3, seed=1), array(3, 3, seed=2), array(3, 2, seed=3)
    return p, array(2, 3, seed=4), array(6, 2, 4, seed=5)


def run_with(loop, reverse):
    def run(p, h, xs):
        return loop(lambda h, x: rnn(p, h, x), h, xs, reverse=reverse)

    return run


def loss_with(loop, reverse):
    def loss(p, h, xs):
        last, ys = run_with(loop, reverse)(p, h, xs)
        return (last**2).sum() + gt.sin(ys["out"]).sum() + (ys["norm"] * ys["out"].sum((1, 2))).sum()

    return loss


# -- scan


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_against_the_unrolled_loop(reverse):
    args = rnn_case()
    run, expected = run_with(gt.scan, reverse), run_with(unrolled, reverse)
    close(run(*args), expected(*args))
    close(jitted(run)(*args), expected(*args))
    loss, plain = loss_with(gt.scan, reverse), loss_with(unrolled, reverse)
    everything = (0, 1, 2)
    grads = gt.grad(plain, everything)(*args)
    close(gt.grad(loss, everything)(*args), grads)
    close(jitted(gt.grad(loss, everything))(*args), grads)
    close(gt.grad(jitted(loss), everything)(*args), grads)
    close(gt.jvp(loss, args, args), gt.jvp(plain, args, args))

    def size(loss):
        return lambda *args: sum((g * g).sum() for g in gt.tree.leaves(gt.grad(loss, everything)(*args)))

    close(gt.grad(size(loss), everything)(*args), gt.grad(size(plain), everything)(*args))
    close(gt.jvp(size(loss), args, args), gt.jvp(size(plain), args, args))
    close(gt.grad(lambda *a: gt.jvp(loss, a, a)[1])(*args), gt.grad(lambda *a: gt.jvp(plain, a, a)[1])(*args))
    p, h, xs = args
    close(gt.hessian(lambda h: loss(p, h, xs))(h), gt.hessian(lambda h: plain(p, h, xs))(h))


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axes", [(None, 0, None), (None, None, 0), (0, None, None), (0, 0, 0)], ids=str)
def test_vmap_of_scan(axes, reverse):
    args = [gt.tree_map(lambda x: gt.stack([x, x * 0.5, -x]), a) if flag == 0 else a
            for a, flag in zip(rnn_case(), axes, strict=True)]  # fmt: skip
    for make in (run_with, lambda loop, r: gt.grad(loss_with(loop, r), (0, 1, 2))):
        close(gt.vmap(make(gt.scan, reverse), axes)(*args), gt.vmap(make(unrolled, reverse), axes)(*args))


@pytest.mark.slow
@given(graphs(8, smooth=True), st.integers(1, 5), st.booleans(), st.data())
def test_scans_of_random_bodies(graph, length, reverse, data):
    """Any program as a body: some inputs are carried, some are read step by step, some are the same for all steps."""
    body, inputs = as_function(graph), len(graph.inputs)
    kinds = data.draw(st.lists(st.sampled_from(["carry", "step", "same"]), min_size=inputs, max_size=inputs))
    values = data.draw(arguments(graph))
    init = [x for x, k in zip(values, kinds, strict=True) if k == "carry"]
    same = [x for x, k in zip(values, kinds, strict=True) if k == "same"]
    xs = [gt.stack([x * (0.5 + t) for t in range(length)]) for x, k in zip(values, kinds, strict=True) if k == "step"]

    def with_loop(loop):
        def run(init, xs, same):
            def step(carry, x):
                rest = {"carry": iter(carry), "step": iter(x), "same": iter(same)}
                outs = body(*[next(rest[k]) for k in kinds])
                mixed = sum((gt.tanh(y).mean() for y in outs), start=gt.array(0.0, dtype=gt.float64))
                return [gt.sin(c + mixed) for c in carry], outs

            return loop(step, init, xs, length, reverse)

        return run

    def loss(loop):
        return lambda *args: sum((gt.sin(y).sum() for y in gt.tree.leaves(with_loop(loop)(*args))), start=gt.array(0.0))

    args = (init, xs, same)
    close(with_loop(gt.scan)(*args), with_loop(unrolled)(*args), 1e-7, 1e-9)
    close(gt.grad(loss(gt.scan), (0, 1, 2))(*args), gt.grad(loss(unrolled), (0, 1, 2))(*args), 1e-6, 1e-8)
    close(gt.jvp(loss(gt.scan), args, args), gt.jvp(loss(unrolled), args, args), 1e-6, 1e-8)


def test_scan_is_one_operation_whatever_its_length():
    texts = []
    for length in (2, 5000):
        graph = gt.make_graph(lambda h, n=length: gt.scan(lambda h, _: (gt.sin(h), None), h, None, n)[0])(gt.ones(3))
        texts.append(str(graph).replace(f"length={length}", "length=n"))
    assert texts[0] == texts[1]
    assert len(parse_graph(str(graph)).nodes) == 2


def test_a_gradient_runs_the_forward_loop_once():
    """The loop that saves residuals takes the place of the one that does not."""
    loss = loss_with(gt.scan, False)
    text = jitted(gt.value_and_grad(loss)).lower(*rnn_case()).as_text()
    assert text.count(" = scan(") == 2, text


def test_what_the_carry_does_not_need_leaves_the_loop():
    p, h, xs = rnn_case()
    text = str(gt.make_graph(run_with(gt.scan, False))(p, h, xs))
    body = text[text.index("body =") : text.index("}", text.index("body ="))]
    assert body.count("matmul") == 1 and text.count("matmul") == 3


def test_carry_and_outputs_of_other_kinds():
    c, ys = gt.scan(lambda c, x: ({"n": c["n"] + 1, "s": c["s"] + x["a"]}, (c["n"], x["a"] > 1)),
                    {"n": 0, "s": 0.0}, {"a": gt.array([1.0, 2.0, 3.0])})  # fmt: skip
    assert int(c["n"]) == 3 and float(c["s"]) == 6.0
    assert ys[0].tolist() == [0, 1, 2] and ys[1].tolist() == [False, True, True]
    assert gt.scan(lambda c, _: (c * 2, None), 1.0, length=4) == (16.0, None)
    nothing, doubled = gt.scan(lambda _, x: (None, x * 2), None, gt.arange(3))
    assert nothing is None and doubled.tolist() == [0, 2, 4]
    kept = gt.scan(lambda c, x: (c, c), gt.ones(2), gt.arange(3))
    assert kept[1].shape == (3, 2)


def test_a_scan_of_no_steps():
    c, ys = gt.scan(lambda c, x: (c + x, {"y": c * x}), gt.array(2.0), gt.zeros((0, 3)).sum(1))
    assert float(c) == 2.0 and ys["y"].shape == (0,)
    assert float(gt.grad(lambda c: gt.scan(lambda c, x: (c + x, c), c, gt.zeros(0))[0])(2.0)) == 1.0


def test_integers_ride_along_in_gradients():
    def f(x):
        def step(carry, k):
            i, v = carry
            return (i + 1, v * x), (i, k)

        (_, v), _ = gt.scan(step, (gt.array(0), gt.array(1.0)), gt.arange(3))
        return v

    assert float(gt.grad(f)(2.0)) == 12.0
    assert float(gt.jvp(f, (2.0,), (1.0,))[1]) == 12.0


def test_large_intermediates_stay_in_the_loop():
    """A map over slices holds what one slice needs: 800 products of 256 x 256 would take 210 MB."""
    xs = gt.ShapeDtypeStruct((800, 256, 256), "float32")
    graph = gt.make_graph(lambda xs: gt.map(lambda x: (x @ x).sum(), xs))(xs)
    assert any(node.op.name == "scan" for node in graph.nodes)
    small = gt.make_graph(lambda xs: gt.map(lambda x: (x @ x).sum(), xs))(gt.ones((4, 8, 8)))
    assert all(node.op.name != "scan" for node in small.nodes)


# -- while_loop, fori_loop, map, associative_scan


def doubled_until(limit):
    return lambda x: gt.while_loop(lambda s: s[0] < limit, lambda s: (s[0] * 2, s[1] + 1), (x, 0))


def test_while_loop():
    for f in (doubled_until(100.0), jitted(doubled_until(100.0))):
        x, n = f(gt.array(3.0))
        assert (float(x), int(n)) == (192.0, 6)
    assert int(doubled_until(1.0)(gt.array(3.0))[1]) == 0
    x, t = gt.jvp(lambda x: doubled_until(100.0)(x)[0], (3.0,), (1.0,))
    assert (float(x), float(t)) == (192.0, 64.0)
    assert float(gt.jacfwd(lambda w: gt.while_loop(lambda s: s < 10.0, lambda s: s * w, w))(3.0)) == 27.0


def test_while_loops_of_a_batch_stop_one_by_one():
    starts = gt.array([3.0, 60.0, 200.0])
    x, n = gt.vmap(doubled_until(100.0))(starts)
    assert x.tolist() == [192.0, 120.0, 200.0] and n.tolist() == [6, 1, 0]
    limits = gt.array([10.0, 100.0])
    x, n = gt.vmap(lambda limit: doubled_until(limit)(gt.array(1.0)))(limits)
    assert n.tolist() == [4, 7]
    slopes = gt.vmap(lambda x: gt.jvp(lambda x: doubled_until(100.0)(x)[0], (x,), (1.0,))[1])(starts)
    assert slopes.tolist() == [64.0, 2.0, 1.0]
    w = gt.array([1.0, 2.0])
    shared = gt.vmap(lambda w: gt.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * w), (0, gt.array(1.0))))(w)
    assert shared[0].shape == (2,) and shared[1].tolist() == [1.0, 8.0]


def test_reverse_mode_through_while_loop_says_what_to_use():
    with pytest.raises(gt.ArgumentError, match=r"number is not known.*gt.scan, or gt.fori_loop"):
        gt.grad(lambda x: doubled_until(9.0)(x)[0])(gt.array(1.0))
    assert float(gt.grad(lambda x: x * gt.stop_gradient(doubled_until(9.0)(x)[0]))(1.0)) == 16.0


def test_fori_loop():
    body = lambda i, x: x * 2 + i  # noqa: E731
    expected = 1.0
    for i in range(2, 7):
        expected = expected * 2 + i
    assert float(gt.fori_loop(2, 7, body, gt.array(1.0))) == expected
    assert float(gt.fori_loop(gt.array(2), gt.array(7), body, gt.array(1.0))) == expected
    assert float(gt.fori_loop(3, 1, body, gt.array(1.0))) == 1.0
    assert float(gt.grad(lambda x: gt.fori_loop(0, 5, lambda i, c: c * x, gt.array(1.0)))(2.0)) == 80.0
    ends = gt.vmap(lambda n: gt.fori_loop(0, n, lambda i, c: c + i, 0))(gt.array([0, 3, 5]))
    assert ends.tolist() == [0, 3, 10]


def test_map():
    xs = {"a": array(7, 3), "b": gt.arange(7)}
    f = lambda x: {"s": x["a"].sum() * x["b"], "t": gt.sin(x["a"])}  # noqa: E731
    expected = gt.vmap(f)(xs)
    close(gt.map(f, xs), expected)
    for size in (1, 3, 7, 20):
        close(gt.map(f, xs, batch_size=size), expected)
    close(gt.grad(lambda a: gt.map(lambda x: (x**3).sum(), a).sum())(xs["a"]), 3 * np.asarray(xs["a"]) ** 2)


@given(st.integers(1, 20), st.booleans(), st.sampled_from([0, 1, -1]))
def test_associative_scan(length, reverse, axis):
    shape = [3, 3]
    shape[axis] = length
    a, b = array(*shape), array(*shape, seed=1)
    flip = (lambda x: np.flip(x, axis)) if reverse else (lambda x: x)
    expected = flip(np.cumsum(flip(np.asarray(a)), axis))
    close(gt.associative_scan(gt.add, a, reverse, axis), expected)
    # first-order recurrences: (a1, b1) then (a2, b2) is (a1 a2, b1 a2 + b2)
    combine = lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])  # noqa: E731
    _, y = gt.associative_scan(combine, (a, b), reverse, axis)
    ys, last = [], 0.0
    for t in range(length):
        at, bt = (np.take(flip(np.asarray(v)), t, axis) for v in (a, b))
        last = at * last + bt
        ys.append(last)
    close(y, flip(np.stack(ys, axis)))


# -- cond and switch


def branches(x, w):
    return [lambda x: gt.sin(x) * w, lambda x: x @ x + w, lambda x: x * 0 + w.sum()]


@pytest.mark.parametrize("which", range(3))
def test_switch_against_python(which):
    x, w = array(3, 3), array(3, 3, seed=1)

    def by_switch(k, x, w):
        return gt.switch(k, branches(x, w), x)

    def by_python(k, x, w):
        return branches(x, w)[which](x)

    k = gt.array(which)
    for run in (by_switch, jitted(by_switch)):
        close(run(k, x, w), by_python(k, x, w))
    f, g = (lambda x, w, run=run: gt.sin(run(k, x, w)).sum() for run in (by_switch, by_python))
    close(gt.grad(f, (0, 1))(x, w), gt.grad(g, (0, 1))(x, w))
    close(jitted(gt.grad(f, (0, 1)))(x, w), gt.grad(g, (0, 1))(x, w))
    close(gt.jvp(f, (x, w), (w, x)), gt.jvp(g, (x, w), (w, x)))
    close(gt.hessian(f)(x, w), gt.hessian(g)(x, w))
    close(gt.grad(lambda w: (gt.grad(f)(x, w) ** 2).sum())(w), gt.grad(lambda w: (gt.grad(g)(x, w) ** 2).sum())(w))
    xs = gt.stack([x, 2 * x])
    close(gt.vmap(by_switch, (None, 0, None))(k, xs, w), gt.vmap(by_python, (None, 0, None))(k, xs, w))


def test_a_batched_index_takes_a_branch_for_each_example():
    xs, w = array(5, 3, 3), array(3, 3, seed=1)
    index = gt.array([2, 0, 1, 1, 0])
    got = gt.vmap(lambda k, x: gt.switch(k, branches(x, w), x))(index, xs)
    close(got, [np.asarray(branches(xs[i], w)[int(k)](xs[i])) for i, k in enumerate(index)] and gt.stack(
        [branches(xs[i], w)[int(k)](xs[i]) for i, k in enumerate(index)]))  # fmt: skip
    slopes = gt.vmap(gt.grad(lambda x, k: gt.switch(k, branches(x, w), x).sum()), (0, 0))(xs, index)
    close(
        slopes, gt.stack([gt.grad(lambda x, k=k: branches(x, w)[int(k)](x).sum())(xs[i]) for i, k in enumerate(index)])
    )


def test_cond_runs_one_branch():
    # the other one would be refused when it runs
    x, bad = gt.arange(3), gt.array([7])
    f = lambda p: gt.cond(p, lambda: x.sum(), lambda: gt.take(x, bad, mode="raise").sum())  # noqa: E731
    for run in (f, jitted(f)):
        assert int(run(gt.array(True))) == 3
        with pytest.raises(gt.ExecutionError, match="index"):
            gt.eval(run(gt.array(False)))


def test_the_index_is_clamped_and_pred_is_a_number():
    pick = lambda k: int(gt.switch(k, [lambda: 10, lambda: 20, lambda: 30]))  # noqa: E731
    assert [pick(k) for k in (-5, 0, 1, 2, 9)] == [10, 10, 20, 30, 30]
    assert [float(gt.cond(p, lambda: 1.0, lambda: 0.0)) for p in (True, False, 2, 0, gt.array(0.0))] == [1, 0, 1, 0, 0]


def test_weak_branches_agree_with_strong_ones():
    out = gt.cond(True, lambda x: x, lambda x: 0.0, gt.array(1.0, dtype=gt.float64))
    assert out.dtype == gt.float64


def test_loops_in_branches_in_loops():
    def f(x):
        def step(c, t):
            return gt.cond(t % 2 == 0, lambda c: gt.scan(lambda d, _: (gt.sin(d) + x, None), c, length=2)[0],
                           lambda c: gt.fori_loop(0, 3, lambda i, d: d * x, c), c), c  # fmt: skip

        return gt.scan(step, x, gt.arange(4))[0]

    def plain(x):
        c = x
        for t in range(4):
            for _ in range(2 if t % 2 == 0 else 3):
                c = gt.sin(c) + x if t % 2 == 0 else c * x
        return c

    x = gt.array(0.7, dtype=gt.float64)
    for run in (f, jitted(f)):
        close(run(x), plain(x))
    close(gt.grad(f)(x), gt.grad(plain)(x))
    close(jitted(gt.grad(f))(x), gt.grad(plain)(x))
    close(gt.grad(gt.grad(f))(x), gt.grad(gt.grad(plain))(x))
    xs = gt.array([0.7, -0.2], dtype=gt.float64)
    close(gt.vmap(gt.grad(f))(xs), gt.vmap(gt.grad(plain))(xs))
    graph = gt.make_graph(gt.grad(f))(x)
    verify(graph)
    assert str(parse_graph(str(graph))) == str(graph)


# -- compiled


@pytest.mark.slow
@pytest.mark.parametrize("length", [23, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 7, 40))])
def test_compiled_by_inductor(length):
    """All of it in one program; equal to what is interpreted."""
    p, h, _ = rnn_case()
    p = gt.tree_map(lambda x: x.astype(gt.float32), p)
    h, xs = h.astype(gt.float32), array(length, 2, 4, seed=5).astype(gt.float32)

    def f(p, h, xs):
        loss, grads = gt.value_and_grad(loss_with(gt.scan, False))(p, h, xs)
        backwards = run_with(gt.scan, True)(p, h, xs)
        steps = gt.while_loop(lambda s: s[0] < length, lambda s: (s[0] + 1, gt.tanh(s[1] @ s[1].T @ s[1])), (0, h))
        return loss, grads, backwards, gt.cond(loss > 0, lambda h: gt.sin(h) * 2 + 1, lambda h: h, h), steps

    expected = f(p, h, xs)
    compiled = gt.jit(f)
    for _ in range(2):
        close(compiled(p, h, xs), expected, 1e-4, 1e-5)
    assert {entry.tier for entry in compiled.programs()} == {"compiled"}


@pytest.mark.slow
def test_an_undecorated_loop_with_a_scan_gets_hot():
    p, h, xs = rnn_case()
    step = gt.value_and_grad(loss_with(gt.scan, False))
    with gt.config(hot_threshold=3, compile=False):
        results = []
        for _ in range(5):
            loss, grads = step(p, h, xs)
            results.append((float(loss), grads))
    assert any(e.tier == "compiled" and "scan" in e.ops for e in gt.stats())
    for loss, grads in results[1:]:
        close((loss, grads), results[0])


# -- numbers that change


@functools.partial(gt.custom_vjp, nondiff_argnums=1)
def scaled(x, r):
    return gt.sin(x) * r


scaled.defvjp(lambda x, r: (gt.sin(x) * r, x), lambda r, x, ct: (ct * gt.cos(x) * r,))


@functools.partial(gt.custom_jvp, nondiff_argnums=1)
def pushed(x, r):
    return gt.sin(x) * r


pushed.defjvp(lambda r, primals, tangents: (gt.sin(primals[0]) * r, tangents[0] * gt.cos(primals[0]) * r))


def looped(step):
    return lambda x, r: gt.scan(lambda c, _: (step(c, r), None), x, length=3)[0]


def nested(x, r):
    d = gt.scan(lambda e, _: (e * r + 0.1, None), x, length=2)[0]
    return gt.cond(d.sum() > 100 * r, lambda v: v - r, lambda v: v + r * 2, d)


CHANGING = {
    "scan": looped(lambda c, r: c - r * gt.sin(c) + 0.5),
    "integers": lambda x, r: gt.scan(lambda c, _: (c + int(100 / r), None), 0, length=3)[0] * x,
    "power": looped(lambda c, r: c**r),
    "nested": looped(nested),
    "fori_loop": lambda x, r: gt.fori_loop(0, 3, lambda i, c: c * r, x),
    "while_loop": lambda x, r: gt.while_loop(lambda s: s.sum() < 40 * r, lambda s: s * (1 + r), x),
    "switch": lambda x, r: gt.switch(gt.array(1), [lambda v: v * r, lambda v: v * r + r, lambda v: v / r], x),
    "checkpoint": lambda x, r: gt.checkpoint(lambda v: gt.sin(v * r))(x),
    "custom_vjp": looped(scaled),
    "custom_jvp": looped(pushed),
    "custom_vjp in a branch": lambda x, r: gt.cond(x.sum() > 0, lambda v: scaled(v, r), lambda v: v * r, x),
    "custom_vjp in checkpoint": lambda x, r: gt.checkpoint(lambda v: gt.sin(scaled(v, r)))(x),
    "custom_jvp in while_loop": lambda x, r: gt.while_loop(lambda s: s.sum() < 5, lambda s: pushed(s, r) + s + 1, x),
}
WAYS = {
    "value": lambda f, x: f(x),
    "grad": lambda f, x: gt.grad(f)(x).sum(),
    "grad of grad": lambda f, x: gt.grad(lambda y: gt.grad(f)(y).sum())(x).sum(),
    "jvp": lambda f, x: gt.jvp(f, (x,), (x,))[1],
    "vmap of grad": lambda f, x: gt.vmap(gt.grad(f))(gt.stack([x, x + 1])).sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_changes_inside_a_body_becomes_an_input(name, way):
    f, run = CHANGING[name], WAYS[way]
    if "while_loop" in name and "grad" in way:
        return
    x = gt.array([0.5, 0.25, 1.0])

    def counts():
        gc.collect()
        return len(_interned), len(_instrs), len(engine.recordings), len(engine.programs)

    known = None
    with gt.config(auto_compile=False):
        for k in range(2, 12):
            got = float(run(lambda y, r=1 / k: f(y, r).sum(), x))
            if k == 7:
                known = counts()
        assert counts() == known
        # an array in the place of the number
        r = 1 / k if name == "integers" else gt.array(1 / k)
        assert_close(got, run(lambda y: f(y, r).sum(), x), check_dtype=False)


def test_loops_of_one_body_keep_their_lengths_directions_and_structures():
    x = gt.array([1.0, 2.0])

    def halve(c, t):
        return c * 0.5 + t, c

    def turn(c, _):
        return {"a": c["b"], "b": c["a"] + 1}, None

    for n, reverse in [(n, reverse) for n in (2, 3, 5, 2, 0, 3) for reverse in (False, True)]:
        last, ys = gt.scan(halve, x, gt.arange(n, dtype=gt.float32), reverse=reverse)
        state, stacked = np.array([1.0, 2.0]), np.zeros((n, 2))
        for i in reversed(range(n)) if reverse else range(n):
            stacked[i] = state
            state = state * 0.5 + i
        assert_close(last, state, check_dtype=False)
        assert_close(ys, stacked, check_dtype=False)
    for keys in 3 * (("a", "b"), ("b", "a")):
        state, _ = gt.scan(turn, {key: x * (3.0 if key == "b" else 1.0) for key in keys}, length=3)
        assert tuple(state) == ("a", "b")  # as the body returns it
        assert (state["a"].tolist(), state["b"].tolist()) == ([4.0, 7.0], [3.0, 4.0])
    for least in 3 * (2.0, 9.0, 30.0):  # another condition with the same body
        assert gt.while_loop(lambda v: v[0] < least, lambda v: v * 2.0, x)[0].item() == 2 ** np.ceil(np.log2(least))  # noqa: B023
    for value in (1.0, 2.0, 3.0, 2.0):  # what the body closes over
        w = gt.array([value, value])
        assert gt.scan(lambda c, _: (c * w, None), x, length=2)[0].tolist() == [value**2, 2 * value**2]  # noqa: B023
        g = gt.grad(lambda w: gt.scan(lambda c, _: (c * w, None), x, length=2)[0].sum())(w)
        assert g.tolist() == [2 * value, 4 * value]


def test_numbers_that_do_not_change_stay_constants():
    def texts():
        return [str(gt.make_graph(lambda x, r=r: looped(lambda c, r: c * r + 0.25)(x, r))(1.0)) for r in (0.5, 0.75)]

    first = texts()
    assert "0.5:f32[]" in first[0] and "0.75:f32[]" in first[1]
    assert texts() == first


def test_a_loop_whose_body_has_a_changing_number_is_compiled_once():
    x = gt.ones(4)
    step = gt.value_and_grad(lambda x, r: looped(lambda c, r: c * r + gt.sin(c))(x, r).sum())
    with gt.config(auto_compile=False):
        expected = [gt.eval(step(x, gt.array(1 / k))) for k in range(2, 12)]
    before = len(engine.programs)
    with gt.config(hot_threshold=3, compile=False):
        for k, values in enumerate(expected, 2):
            close(step(x, 1 / k), values, 1e-5)
    added = list(engine.programs.values())[before:]
    assert len(added) <= 8
    assert any(entry.tier == "compiled" and entry.ledger.compiled_calls >= 3 for entry in added)


def test_a_body_is_one_object_as_long_as_somebody_holds_it():
    graph = parse_graph("""
graph(%0: f32[3,1,4,1]) {
  %1: f32[3,1,4,1] = sin(%0)
  return %1
}""")
    before = len(_interned)
    body = subgraph(graph)
    assert subgraph(graph) is body and len(_interned) == before + 1
    del body
    gc.collect()
    assert len(_interned) == before


def test_a_rule_may_start_a_loop_with_a_number():
    @gt.custom_vjp
    def f(x):
        return gt.sin(x)

    def backward(x, ct):
        return (ct * x * gt.while_loop(lambda v: v < 10.0, lambda v: v * 2, 1.0),)

    f.defvjp(lambda x: (gt.sin(x), x), backward)
    unrolled = gt.grad(lambda x: f(f(x)))(gt.array(0.5))
    assert_close(unrolled, 16 * 16 * 0.5 * np.sin(0.5), check_dtype=False)
    close(gt.grad(lambda x: gt.scan(lambda c, _: (f(c), None), x, length=2)[0])(gt.array(0.5)), unrolled)


# -- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: gt.scan(lambda c, x: c, 1.0, gt.ones(2)), gt.ArgumentError, r"\(carry, y\) from f"),
        (lambda: gt.scan(lambda c, x: (c > 1, x), 1, gt.ones(2)), gt.ArgumentError, r"i64\[\].* as in init, got bool"),
        (lambda: gt.scan(lambda c, x: ({"a": c["a"][None]}, x), {"a": gt.ones(2)}, gt.ones(2)), gt.ArgumentError,
         r"got f32\[1,2\] in the carry that f returns at \['a'\]"),
        (lambda: gt.scan(lambda c, x: ((c, c), x), 1.0, gt.ones(2)), gt.ArgumentError, "structure of init"),
        (lambda: gt.scan(lambda c, x: (c, x), 1.0, {"a": gt.ones(2), "b": gt.ones(3)}), gt.ShapeError,
         r"3 at xs\['b'\]"),
        (lambda: gt.scan(lambda c, x: (c, x), 1.0, gt.ones(2), length=3), gt.ShapeError, "2 at xs beside 3"),
        (lambda: gt.scan(lambda c, x: (c, x), 1.0), gt.ShapeError, "xs or length"),
        (lambda: gt.scan(lambda c, x: (c, x), 1.0, gt.array(1.0)), gt.ShapeError, "axis of steps"),
        (lambda: gt.scan(lambda c, x: (c, x), "a", gt.ones(2)), gt.ArgumentError, "str at init"),
        (lambda: gt.scan(lambda c, x: (c, "y"), 1.0, gt.ones(2)), gt.ArgumentError, r"str at \[1\]"),
        (lambda: gt.scan(lambda c, x: (c if c > 0 else x, x), 1.0, gt.ones(2)), gt.ConcretizationError, "gt.where"),
        (lambda: gt.scan(3, 1.0, gt.ones(2)), gt.ArgumentError, "a function as f"),
        (lambda: gt.cond(True, lambda: {"a": gt.ones(2)}, lambda: {"a": gt.ones(3)}), gt.ArgumentError,
         r"f32\[2\] as in true_fun, got f32\[3\] in false_fun at \['a'\]"),
        (lambda: gt.cond(True, lambda: (1, 2), lambda: 1), gt.ArgumentError, "structure of true_fun"),
        (lambda: gt.cond(gt.ones(2), lambda: 1, lambda: 2), gt.ShapeError, "scalar pred"),
        (lambda: gt.switch(1.5, [lambda: 1]), gt.DtypeError, "integer index"),
        (lambda: gt.switch(0, []), gt.ArgumentError, "at least one branch"),
        (lambda: gt.switch(0, [lambda: gt.ones(2), lambda: gt.arange(2)]), gt.ArgumentError, r"branches\[0\]"),
        (lambda: gt.while_loop(lambda x: x, lambda x: x, 1.0), gt.ArgumentError, "boolean scalar from cond_fun"),
        (lambda: gt.while_loop(lambda x: x < 1, lambda x: (x, x), 1.0), gt.ArgumentError, "structure of init_val"),
        (lambda: gt.while_loop(lambda x: x < 1, lambda x: x + 0.5, gt.array(1)), gt.ArgumentError, "as in init_val"),
        (lambda: gt.fori_loop(0.5, 2, lambda i, x: x, 1.0), gt.ArgumentError, "an integer as lower"),
        (lambda: gt.fori_loop(0, gt.array(1.5), lambda i, x: x, 1.0), gt.ArgumentError, "integer scalar as upper"),
        (lambda: gt.map(lambda x: x, gt.ones(2), batch_size=0), gt.ShapeError, "batch_size >= 1"),
        (lambda: gt.associative_scan(lambda a, b: (a, b), gt.ones(3)), gt.ArgumentError, "from fn"),
        (lambda: gt.associative_scan(gt.add, (gt.ones(3), gt.ones(2))), gt.ShapeError, "one length"),
    ],
)  # fmt: skip
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    assert "test_control.py:" in str(info.value)


def test_every_operation_with_sub_graphs_is_tested_here():
    ops = [op for op in REGISTRY.values() if op.rules.result is not None and op.rules.body is not None]
    # what is sent between processes is made by the partitioner, and tested with it
    names = {op.name for op in ops if not op.collective and "mesh" not in op.params}
    assert names == {"scan", "while_loop", "switch", "custom_call", "named_call", "checkpoint", "rematerialize"}
    for name in names:
        op = REGISTRY[name]
        assert op.rules.batch is not None and op.rules.vjp is not None, name


BRANCHES = {
    "log": (gt.log, lambda x: 2.0 * x),
    "sqrt of the other": (lambda x: gt.sqrt(x), lambda x: gt.sqrt(-x)),
    "quotient": (lambda x: x / (x + 3.0), lambda x: x * x),
}


@pytest.mark.parametrize("x", [[1.0, 0.0, -3.0, 4.0], [-3.0, -1.0], [2.0, 4.0]], ids=str)
@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_that_is_not_taken_adds_no_nan_to_gradients_of_a_batch(name, x):
    """By the batch, by what all examples share, and with tangents; NaN only where the branch that is taken has it."""
    one, other = BRANCHES[name]

    def example(x, w):
        return gt.cond(x > 0, lambda x, w: one(x) * w, lambda x, w: other(x) * w, x, w)

    w = gt.array(1.5)
    x = gt.array(x)
    by_x, by_w = gt.grad(lambda x, w: gt.vmap(example, (0, None))(x, w).sum(), (0, 1))(x, w)
    each = [gt.grad(example, (0, 1))(value, w) for value in x]
    assert_close(by_x, gt.stack([g[0] for g in each]))
    assert_close(by_w, sum(g[1] for g in each))
    moved = gt.jvp(lambda x: gt.vmap(example, (0, None))(x, w), (x,), (gt.ones_like(x),))[1]
    assert_close(moved, by_x)
