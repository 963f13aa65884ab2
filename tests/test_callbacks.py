"""Python functions called from programs: printing, callbacks, their order, batches, derivatives, second processes."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest

import gtrace as gt
from gtrace.errors import ArgumentError, ExportError, ShapeError

VECTOR = gt.ShapeDtypeStruct((3,), "float32")
SCALAR = gt.ShapeDtypeStruct((), "float32")
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.long)]


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False):
        yield gtrace.jax


@pytest.mark.parametrize("backend", BACKENDS)
def test_prints_happen_each_time_a_traced_function_runs(jax, capsys, backend):
    def f(x):
        jax.debug.print("x = {x:.1f}, {}", "text", x=x)
        jax.debug.print("x = {x:.1f}, {}", "text", x=x)
        return x * 2

    g = gt.jit(f, backend=backend, wait=True)
    for k in range(3):
        assert g(float(k)).item() == 2.0 * k
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"x = {k}.0, text" for k in range(3) for _ in range(2)]


def test_an_audit_does_not_call_a_function_again():
    seen = []

    def f(x):
        return gt.tanh(gt.pure_callback(lambda a: seen.append(float(a)) or a, SCALAR, x) * 2.0 + 1.0) * 3.0

    g = gt.jit(f, backend="eager", wait=True)
    with gt.config(audit=1.0):
        for k in range(4):
            gt.eval(g(gt.array(float(k))))
    assert seen == [0.0, 1.0, 2.0, 3.0]


def test_a_function_that_returns_nothing_prints(jax, capsys):
    g = gt.jit(lambda x: jax.debug.print("{}", x), backend="eager")
    assert g(1) is None and g(2) is None
    h = gt.jit(lambda x: (g(x), gt.jit(lambda y: y + 1, backend="eager")(x))[1], backend="eager")
    assert h(3) == 4
    assert capsys.readouterr().out.split() == ["1", "2", "3"]
    with pytest.raises(ArgumentError, match=r"a function that returns arrays, where it prints.*Return a value"):
        jax.lax.map(lambda x: jax.debug.print("{}", x), gt.ones(2))
    assert gt.vmap(lambda x: jax.debug.print("{}", x))(gt.ones(2)) is None
    assert capsys.readouterr().out.split() == ["1.0", "1.0"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_loops_and_branches_print_in_their_steps(jax, capsys, backend):
    def step(carry, k):
        jax.debug.print("step {}", k)
        gt.cond(carry > 2, lambda: jax.debug.print("large {}", carry), lambda: None)
        return carry * 2, carry

    f = gt.jit(lambda x: gt.scan(step, x, gt.arange(3)), backend=backend, wait=True)
    final, seen = f(gt.array(1.0))
    assert final.item() == 8.0 and seen.tolist() == [1.0, 2.0, 4.0]
    assert sorted(capsys.readouterr().out.splitlines()) == ["large 4.0", "step 0", "step 1", "step 2"]

    def body(c):
        jax.debug.print("{}", c)
        return c * 2

    gt.while_loop(lambda c: c < 4, body, gt.array(1.0)).item()
    gt.fori_loop(0, 2, lambda i, c: (jax.debug.print("{}", i), c)[1], gt.array(0.0)).item()
    assert capsys.readouterr().out.split() == ["1.0", "2.0", "0", "1"]


def test_ordered_calls_keep_their_order_and_see_values(jax):
    log = []

    def f(x):
        for k in range(4):
            gt.io_callback(lambda a, k=k: log.append((k, float(a))), None, x * k, ordered=True)
        count = gt.io_callback(lambda: np.float32(len(log)), SCALAR, ordered=True)
        return x + count

    g = gt.jit(f, backend="eager")
    assert g(1.0).item() == 5.0 and log == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert g(2.0).item() == 10.0 and len(log) == 8
    assert f(gt.array(1.0)).item() == 13.0, "outside of traced functions at once"


def cumulative(x):
    return np.cumsum(x, -1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pure_callbacks_are_operations(backend):
    def f(x):
        return gt.pure_callback(cumulative, VECTOR, x * 2) + 1

    x = gt.array([1.0, 2.0, 3.0])
    expected = [3.0, 7.0, 13.0]
    assert f(x).tolist() == gt.jit(f, backend=backend, wait=True)(x).tolist() == expected
    batch = gt.stack([x, x, x])
    for g in (gt.vmap(f), gt.jit(gt.vmap(f), backend=backend, wait=True)):
        assert g(batch).tolist() == [expected] * 3
    assert gt.vmap(gt.vmap(f))(gt.stack([batch, batch])).tolist() == [[expected] * 3] * 2
    total, _ = gt.scan(lambda c, row: (c + f(row), None), x * 0, batch)
    assert total.tolist() == [9.0, 21.0, 39.0]


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
def test_batches_of_callbacks(method):
    shapes = []

    def add(x, y):
        shapes.append((x.shape, y.shape))
        return x + y

    def f(x, y):
        return gt.pure_callback(add, SCALAR, x, y, vmap_method=method)

    x, y = gt.arange(2.0), gt.arange(3.0)
    table = gt.vmap(gt.vmap(f, (None, 0)), (0, None))(x, y)
    assert table.tolist() == [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    expected = {
        "sequential": [((), ())] * 6, "expand_dims": [((2, 1), (1, 3))], "broadcast_all": [((2, 3), (2, 3))],
    }  # fmt: skip
    assert shapes == expected[method]
    with pytest.raises(ArgumentError, match="'sequential', 'expand_dims', 'broadcast_all' as vmap_method"):
        gt.pure_callback(add, SCALAR, x, y, vmap_method="parallel")


def test_callbacks_have_no_derivative_but_those_that_are_stated(jax, capsys):
    def sine(x):
        return gt.pure_callback(np.sin, SCALAR, x)

    def printing(x):
        jax.debug.print("{}", x)
        return x**3

    loop = gt.jit(gt.grad(lambda x: gt.scan(lambda c, _: (sine(c), None), x, None, 2)[0]), backend="eager")
    with pytest.raises(ArgumentError, match=r"pure_callback\] expected no derivative of a Python function"):
        loop(1.0)
    for call in (sine, lambda x: gt.io_callback(np.sin, SCALAR, x)):  # called at once, for the values
        for derivative in (
            gt.grad(call),
            lambda x, f=call: gt.jvp(f, (x,), (x,)),
            lambda x, f=call: gt.vjp(f, x)[1](x),
        ):
            with pytest.raises(ArgumentError, match="no derivative of a Python function"):
                derivative(gt.array(1.0))
    assert gt.grad(lambda x: x * sine(gt.stop_gradient(x)))(0.5).item() == np.sin(np.float32(0.5))
    assert gt.jit(gt.grad(printing), backend="eager")(2.0).item() == 12.0
    assert gt.jit(lambda x: gt.jvp(printing, (x,), (x,))[1], backend="eager")(2.0).item() == 24.0
    assert capsys.readouterr().out.split() == ["2.0", "2.0"]
    known = gt.custom_jvp(sine)
    known.defjvp(lambda primals, tangents: (sine(*primals), tangents[0] * gt.cos(primals[0])))
    assert abs(gt.jit(gt.grad(known), backend="eager")(0.5).item() - np.cos(0.5)) < 1e-6


def test_callbacks_may_use_arrays_and_errors_come_through(jax):
    def twice(x):
        return gt.array(x) * 2

    f = gt.jit(lambda x: gt.pure_callback(twice, VECTOR, x).sum(), backend="eager")
    assert f(gt.ones(3)).item() == 6.0
    wrong = gt.jit(lambda x: gt.pure_callback(lambda a: a[:2], VECTOR, x), backend="eager")
    with pytest.raises(ShapeError, match=r"a result of shape \(3,\), got \(2,\)"):
        wrong(gt.ones(3))
    fails = gt.jit(lambda x: gt.pure_callback(lambda a: {}["key"], VECTOR, x), backend="eager")
    with pytest.raises(KeyError, match="key"):
        fails(gt.ones(3))


def test_exported_programs_call_no_python():
    def f(x):
        return gt.scan(lambda c, row: (c + gt.pure_callback(cumulative, VECTOR, row), None), x[0], x)[0]

    with pytest.raises(ExportError, match="a program that needs no Python"):
        gt.export(f, gt.ones((2, 3)))


@pytest.mark.slow
def test_a_second_process_calls_its_own_functions():
    program = """
        import sys, numpy, gtrace as gt
        add = float(sys.argv[1])
        f = gt.jit(lambda x: gt.pure_callback(lambda a: a + add, gt.ShapeDtypeStruct((), "float32"), x) * 2, wait=True)
        print(f(1.0).item(), f(2.0).item())
    """
    for add, expected in (("1", "4.0 6.0"), ("5", "12.0 14.0")):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), add], capture_output=True, text=True, timeout=300
        )
        assert done.stdout.strip() == expected, done.stderr


def test_functions_that_no_program_calls_any_more_are_freed():
    kept = []
    with gt.config(program_memory=0):
        for k in range(20):
            function = lambda a, k=k: a * 2 + k  # noqa: E731
            kept.append(weakref.ref(function))
            doubled = gt.jit(lambda x, f=function: gt.pure_callback(f, SCALAR, x) + 1, backend="eager")
            assert [doubled(float(n)).item() for n in (1, 2)] == [3.0 + k, 5.0 + k]
    gc.collect()
    assert sum(one() is None for one in kept) >= 10
