"""Programs too long for one compile: cut where little crosses, and right however they are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
import gtrace.scipy.linalg
from gtrace.core.backends import backend as backends
from gtrace.core.backends import scheduler as partition
from gtrace.core.backends.executable import Compiled, Executable
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.backends.straight_lines import cut
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.verify import verify
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.passes.split import is_constant
from gtrace.core.runtime.cache import artifact_cache as artifact_caches
from gtrace.testing import arguments, assert_close, graphs


@pytest.mark.slow
@given(graphs(max_nodes=40), st.integers(2, 12), st.data())
def test_a_cut_program_computes_the_same(graph, most, data):
    parts = cut(graph, most)
    work = [[node for node in part.nodes if not is_constant(node)] for part in parts]
    assert all(len(nodes) <= most for nodes in work) or len(graph.nodes) <= most
    live = {node.out for node in dce(graph).nodes}
    assert [node for nodes in work for node in nodes if node.out in live] == [
        node for node in graph.nodes if node.out in live and not is_constant(node)
    ]
    inputs = [x.to_torch() for x in data.draw(arguments(graph))]
    env = dict(zip(graph.inputs, inputs, strict=True))
    for part in parts:
        verify(part)
        env.update(zip(part.outputs, interpreter(renumber(part))([env[v] for v in part.inputs]), strict=True))
    for value, expected in zip(graph.outputs, interpreter(graph)(inputs), strict=True):
        np.testing.assert_array_equal(env[value].numpy(), expected.numpy())


@pytest.mark.slow
@given(graphs(max_nodes=30), st.data())
def test_parts_that_are_interpreted_compute_the_same(graph, data):
    """Whichever operations cannot be compiled."""
    graph = canonicalize(graph).graph
    instrs = list({node.instr: None for node in graph.nodes if not node.op.projection})
    refused = data.draw(st.lists(st.sampled_from(instrs), unique=True)) if instrs else []
    inputs = [x.to_torch() for x in data.draw(arguments(graph))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "refusal", lambda node: "refused" if node.instr in refused else "")
        schedule = Scheduler("inductor", "default", 1).schedule(graph, [x.stride() for x in inputs])
    for request in schedule.requests:
        verify(request.graph)
        assert not any(node.instr in refused for node in request.graph.nodes)
    compiled = {r: Compiled(Executable(interpreter(r.graph), "process", r.device)) for r in schedule.requests}
    for value, expected in zip(schedule.build(compiled)(inputs), interpreter(graph)(inputs), strict=True):
        np.testing.assert_array_equal(value.numpy(), expected.numpy())


def waves(x):
    return gt.sin(x) * 0.5 + gt.cos(x)


def mixed(x):
    """Work for the compiler, and between it what Inductor has no code for."""
    values, vectors = torch.linalg.eigh(waves(x @ x.T))
    spectrum = gt.fft.fft(waves(vectors))
    count = gt.sum((abs(waves(values)) * 9).astype(gt.uint8))
    return waves(spectrum.real) + waves(abs(vectors)) * count.astype(gt.float64)


@pytest.mark.slow
@pytest.mark.inductor
def test_what_the_compiler_has_no_code_for_is_interpreted_and_the_rest_compiled():
    x = gt.array(np.random.default_rng(0).normal(size=(4, 4)))
    compiled = gt.jit(mixed, wait=True)
    np.testing.assert_allclose(compiled(x), mixed(x), rtol=1e-9, atol=1e-10)
    (program,) = compiled.programs()
    assert program.tier == "compiled" and not program.forms.reason
    assert {"aten._linalg_eigh.default"} <= program.left_out
    assert len(program.schedule.requests) >= 2


def test_a_program_without_anything_to_compile_says_why():
    program = gt.jit(lambda x: gt.fft.fft(x) * 2, wait=True)
    program(gt.ones(4))
    assert [(p.tier, "complex" in p.forms.reason) for p in program.programs()] == [("interpreted", True)]


def test_cuts_fall_between_layers():
    """Inside a layer three values live at a time, between two layers one."""

    def layers(x):
        for _ in range(30):
            x = gt.sin(x) * gt.cos(x) + gt.tanh(x)
        return x

    graph = gt.jit(layers).lower(gt.ones((8, 8))).graph
    parts = cut(graph, 12)
    assert len(parts) > 10
    assert all(len(part.outputs) == 1 for part in parts)


@pytest.mark.parametrize("most", [2, 9])
def test_results_that_are_read_late_do_not_keep_a_program_whole(most):
    """Weights of a model are updated at the end, by gradients that came with those of activations."""

    def layers(x):
        late = []
        for _ in range(20):
            low, high = torch.aminmax(x, dim=0)
            late.append(high)
            x = gt.sin(x) - low
        return x, late

    x = gt.array(np.random.default_rng(0).normal(size=(4, 4)))
    graph = gt.make_graph(layers)(x)
    late = [node for node in graph.nodes if node.op.projection and node.params[0] == 1]
    early = [node for node in graph.nodes if node not in late]
    parts = cut(Graph(graph.inputs, graph.avals, (*early, *late), graph.outputs), most)
    assert len(parts) >= len(graph.nodes) // max(most, 3)
    env = {graph.inputs[0]: x.to_torch()}
    for part in parts:
        verify(part)
        env.update(zip(part.outputs, interpreter(renumber(part))([env[v] for v in part.inputs]), strict=True))
    expected, _ = layers(x)
    np.testing.assert_array_equal(env[graph.outputs[0]], expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_huge_program_is_compiled_in_pieces_and_equal_ones_once(backend, monkeypatch):
    compiled = []
    original, other = artifact_caches.compile_artifact, backends.compile_with
    monkeypatch.setattr(
        artifact_caches, "compile_artifact", lambda r, to: compiled.append(len(r.graph.nodes)) or original(r, to)
    )
    monkeypatch.setattr(backends, "compile_with", lambda b, r: compiled.append(len(r.graph.nodes)) or other(b, r))
    monkeypatch.setattr(partition, "MAX_OPS", 60)

    def f(x):
        for _ in range(100):
            x = gt.sin(x) * 0.5 + gt.tanh(x) * 0.25 + 0.125
        return x

    x = gt.array([0.5, -1.0, 2.0])
    expected = np.asarray(x, dtype=np.float64)
    for _ in range(100):
        expected = np.sin(expected) * 0.5 + np.tanh(expected) * 0.25 + 0.125
    assert_close(gt.jit(f, backend=backend)(x), expected, check_dtype=False)
    assert max(compiled) <= 60
    assert len(compiled) <= 4, "of the ten pieces or more, most are equal"


@pytest.mark.native
@pytest.mark.parametrize(
    ("steps", "rows", "expected"),
    [
        (2000, 20, ["interpreted", "loop"]),
        (20, 20_000, ["interpreted", "loop"]),
        (20_000, 2, ["native", "loop"]),
        (900_000, 1, ["Inductor", "loop"]),
    ],
)
def test_what_becomes_of_operations_beside_a_native_loop(steps, rows, expected):
    """They need Inductor, whose import takes seconds, only where they take as long as the loop."""

    def run(x, ends):
        start = gt.log(x * x + 1) * 0.5 - 0.25
        return gt.scan(lambda c, r: (gt.tanh(gt.sin(c) * r) if rows > 1 else c + r, None), start, gt.exp(-gt.abs(ends)))

    def kind(what):
        if not hasattr(what, "requests") and hasattr(what, "request"):
            return "loop"
        return "interpreted" if not hasattr(what, "native") else "native" if what.native else "Inductor"

    form = canonicalize(gt.make_graph(run)(gt.ones(rows), gt.ones(steps))).graph
    schedule = Scheduler("inductor", "default", 1).schedule(form, [(1,), (1,)])
    assert sorted(kind(call.what) for call in schedule.calls) == sorted(expected)


@pytest.mark.native
def test_a_loop_of_native_loops_is_native_however_long_they_take():
    def run(x):
        inner = lambda c, _: (gt.scan(lambda d, _: (gt.sin(d) * 0.5, None), c, None, 10_000)[0], None)  # noqa: E731
        return gt.scan(inner, x, None, 50)[0]

    form = canonicalize(gt.make_graph(run)(gt.ones(300))).graph
    schedule = Scheduler("inductor", "default", 1).schedule(form, [(1,)])
    assert [request.native for request in schedule.requests] == [True] and len(schedule.calls) == 1


@pytest.mark.native
def test_products_are_no_reason_to_compile_what_is_beside_a_loop():
    def run(w, xs):
        ys = gt.scan(lambda c, x: ((y := gt.tanh(c + x)), y), gt.zeros(64), xs @ w)[1]
        return gt.reshape(ys, (-1, 64)).T @ gt.reshape(xs, (-1, 64)) * 2.0

    form = canonicalize(gt.make_graph(run)(gt.ones((64, 64)), gt.ones((2000, 64)))).graph
    schedule = Scheduler("inductor", "default", 1).schedule(form, [(64, 1), (64, 1)])
    assert [request.native for request in schedule.requests] == [True]


def marginal_likelihood(scale, noise, x, y):
    """Of a Gaussian process, negative, without the constant."""
    a = x / gt.exp(scale)
    squares = ((a[:, None] - a[None]) ** 2).sum(-1)
    factor = gt.numpy.linalg.cholesky(gt.exp(-0.5 * squares) + (gt.exp(noise) + 1e-3) * gt.numpy.eye(len(x)))
    weights = gt.scipy.linalg.cho_solve((factor, True), y)
    return 0.5 * y @ weights + gt.log(gt.numpy.diag(factor)).sum()


def spectrum(x):
    """Of which the logarithm is smoothed, and compared with what it is without that."""
    power = gt.log1p(gt.abs(gt.fft.rfft(gt.tanh(x) * gt.exp(-(x**2)) + 0.5 * x, axis=-1)) ** 2)
    smooth = (power[:, :-2] + 2 * power[:, 1:-1] + power[:, 2:]) / 4
    return ((smooth - power[:, 1:-1]) ** 2 / (1 + smooth**2)).mean()


def schedule_of(function, *args):
    graph = canonicalize(gt.make_graph(function)(*args)).graph
    return Scheduler("inductor", "default", 1).schedule(graph, [contiguous_strides(a.shape) for a in graph.avals])


def gaussian_process():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 3), (40,)))
    return gt.grad(marginal_likelihood, argnums=(0, 1)), (gt.zeros(3), gt.array(-1.0), gt.array(x), gt.array(y))


@pytest.mark.native
def test_libraries_are_called_between_native_functions():
    step, args = gaussian_process()
    schedule = schedule_of(step, *args)
    assert len(schedule.requests) >= 2 and all(request.native for request in schedule.requests)
    called = {
        node.attributes["overload"] for call in schedule.calls if isinstance(call.what, Graph)
        for node in call.what.nodes if node.op.name == "aten"
    }  # fmt: skip
    assert "aten.linalg_cholesky_ex.default" in called and "aten.linalg_solve_triangular.default" in called
    compiled = {node.op.name for request in schedule.requests for node in request.graph.nodes}
    assert "aten" not in compiled
    schedule = schedule_of(gt.grad(spectrum), gt.ones((8, 64)))
    assert schedule.requests and all(request.native for request in schedule.requests)


def test_a_program_of_factorizations_alone_is_not_divided():
    schedule = schedule_of(lambda a: gt.numpy.linalg.inv(gt.numpy.linalg.cholesky(a)), gt.numpy.eye(4))
    assert not any(request.native for request in schedule.requests)


@pytest.mark.slow
def test_native_functions_between_libraries_compute_the_same():
    step, args = gaussian_process()
    with gt.config(auto_compile=False):
        wanted = [np.asarray(g) for g in step(*args)]
    got = gt.jit(step, wait=True)(*args)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-4, atol=2e-5)
    x = gt.array(np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32))
    with gt.config(auto_compile=False):
        want = np.asarray(gt.grad(spectrum)(x))
    np.testing.assert_allclose(np.asarray(gt.jit(gt.grad(spectrum), wait=True)(x)), want, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.native
def test_a_gaussian_process_is_compiled_without_inductor(tmp_path):
    step, args = gaussian_process()
    with gt.config(cache_dir=str(tmp_path), auto_compile=True):
        jitted = gt.jit(step, wait=True)
        gt.eval(jitted(*args))
        gt.eval(jitted(*args))
        assert f"{len(jitted.programs()[0].schedule.requests)} native functions" in str(gt.explain(jitted))
    (program,) = jitted.programs()
    assert program.tier == "compiled" and program.native and not program.left_out


@pytest.mark.native
def test_short_parts_between_libraries_are_left_to_inductor():
    def chain(a, b):
        for _ in range(5):
            a = gt.numpy.linalg.inv(gt.sin(a) * 0.5 + b)
        return a

    schedule = schedule_of(chain, gt.ones((4, 4)), gt.ones((4, 4)))
    assert [request.native for request in schedule.requests] == [False]


@pytest.mark.native
@pytest.mark.parametrize("control", ["branch", "loop with a branch", "callback and branch"])
def test_short_parts_beside_control_flow_from_python_need_no_inductor(control):
    """Those of few operations are interpreted; Inductor would take seconds for each."""

    def halved(x):
        if control.startswith("callback"):
            x = gt.pure_callback(lambda x: x, gt.ShapeDtypeStruct(x.shape, x.dtype), x)
        return gt.cond(x.sum() > 0, lambda x: gt.sort(gt.sin(x) * 0.5), lambda x: -x, x)

    def run(x):
        y = gt.log(gt.exp(gt.sin(x) * 0.5 + 1) + gt.tanh(x) * gt.cos(x))
        y = gt.fori_loop(0, 3, lambda _, y: halved(y), y) if control.startswith("loop") else halved(y)
        return gt.sqrt(gt.abs(gt.sin(y) * gt.exp(-y) + 0.25 * gt.tanh(y))), (halved(y + 1) * 2 - x) / 3

    schedule = schedule_of(run, gt.linspace(-1, 1, 21))
    assert schedule.requests and all(request.native for request in schedule.requests)
