"""jit: captured once per kind of arguments, compiled, called; never a silently wrong branch."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import math
import sys
import threading

import attrs
import numpy as np
import optree
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import testing
from gtrace.core.backends.executable import Compiled, interpreted
from gtrace.core.backends.fx import lower
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.interpreter.result_strides import carried_strides, with_strides
from gtrace.core.base.dtypes import WIDE_UNSIGNED
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.worker.client import worker
from gtrace.testing import assert_close


def test_pytrees_scalars_constants_and_inputs_that_are_results():
    table = gt.array([10.0, 20.0])
    calls = []

    @gt.jit
    def f(p, scale, *, shift):
        calls.append(1)
        return {"y": p["x"] * scale + table + shift, "x": p["x"], "one": 1.0, "zeros": gt.zeros(2)}

    for k in range(3):
        out = f({"x": gt.array([1.0, 2.0]) * (k + 1)}, 2.0, shift=k)
        np.testing.assert_array_equal(np.asarray(out["y"]), np.array([1.0, 2.0]) * 2 * (k + 1) + [10, 20] + k)
        np.testing.assert_array_equal(np.asarray(out["x"]), np.array([1.0, 2.0]) * (k + 1))
        assert (float(out["one"]), float(out["zeros"].sum())) == (1.0, 0.0)
    assert len(calls) == 1, "traced once for one kind of arguments"


def test_results_are_arguments_again():
    step = gt.jit(lambda p, x: {"w": (p["w"] - 0.5 * x).T})
    p, expected = {"w": gt.ones((2, 3))}, np.ones((2, 3))
    xs = [gt.ones((2, 3)), gt.ones((3, 2)), gt.ones((2, 3))]
    for _ in range(4):
        for x in xs[:2]:
            p, expected = step(p, x), (expected - 0.5).T
            assert_close(p["w"], expected, check_dtype=False)


def test_inputs_of_other_strides_get_programs_of_their_own():
    f = gt.jit(lambda x: (x * 2 + 1) @ gt.ones((3, 2)))
    dense = torch.arange(12.0).reshape(4, 3)
    for tensor in (
        dense,
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.ones(1, 3).expand(4, 3),
    ):
        assert_close(f(gt.from_torch(tensor)), (tensor * 2 + 1) @ torch.ones(3, 2))


@pytest.mark.slow
def test_results_of_convolutions_are_arguments_of_the_same_program():
    def loss(kernels, x):
        for kernel in kernels:
            x = gt.nn.relu(gt.lax.conv(x, kernel, (1, 1), "SAME"))
        return (x**2).mean()

    @gt.jit(wait=True)
    def step(kernels, x):
        g = gt.grad(loss)(kernels, x)
        return gt.tree_map(lambda k, g: k - 0.1 * g, kernels, g)

    x = gt.randn(2, 3, 8, 8)
    kernels = expected = [gt.randn(4, 3, 3, 3)]
    for _ in range(3):
        kernels, expected = step(kernels, x), gt.eval(step.__wrapped__(expected, x))
    assert len(step.programs()) == 1, "the channels of results came last, which is another program"
    for found, right in zip(kernels, expected, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-4, atol=1e-6)


def test_moments_keep_their_layout_beside_permuted_gradients():
    """Gradients of kernels with the channels last are views; moments made of them stay as they were."""

    def loss(kernel, x):
        return (
            gt.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2
        ).sum()

    def step(kernel, moment, x):
        moment = 0.1 * gt.grad(loss)(kernel, x) + 0.9 * moment
        return kernel - 0.01 * moment, moment

    kernel, moment, x = gt.eval(gt.ones((3, 3, 2, 4)), gt.zeros((3, 3, 2, 4)), gt.ones((1, 5, 5, 2)))
    for f in (step, gt.jit(step, backend="eager")):
        state = kernel, moment
        for _ in range(3):
            state = f(*state, x)
            assert all(np.asarray(a).flags.c_contiguous for a in state)
    assert len(f.programs()) == 1


@pytest.mark.slow
@given(st.data(), testing.graphs(max_nodes=6))
def test_programs_are_lowered_to_the_layouts_of_the_interpreter(data, graph):
    tensors = []
    for a in graph.avals:
        order = data.draw(st.permutations(range(len(a.shape))))
        inverse = sorted(range(len(order)), key=lambda k: order[k])
        made = torch.zeros([a.shape[k] for k in order], dtype=a.dtype).permute(inverse)
        tensors.append(made)
    strides = [t.stride() for t in tensors]
    carried = carried_strides(graph, strides)
    assume(carried)
    kinds = {getattr(a, "dtype", None) for a in graph.value_avals().values()}
    assume(kinds.isdisjoint(WIDE_UNSIGNED))  # torch has few kernels for them, and its graph runs by these here
    lowered = lower(graph, strides).module(*tensors)
    interpreted = with_strides(interpreter(graph), graph, strides)(tensors)
    for results in (lowered, interpreted):
        for place, source in carried:
            pairs = zip(graph.avals[source].shape, results[place].stride(), strides[source], strict=True)
            assert all(got == expected for size, got, expected in pairs if size > 1)
    for got, expected in zip(interpreted, lowered, strict=True):
        assert_close(got, expected)


def test_static_arguments():
    @gt.jit(static_argnames="power", backend="eager")
    def f(x, power, names=("a",)):
        return x**power if power > 1 else x

    assert f(gt.array(3.0), 2).item() == 9.0
    assert f(gt.array(3.0), power=3).item() == 27.0
    with pytest.raises(gt.ArgumentError, match="hashable"):
        gt.jit(lambda x, k: x, static_argnums=1)(1.0, [1])
    with pytest.raises(gt.ArgumentError, match="static_argnums or static_argnames"):
        gt.jit(lambda x, k: x)(1.0, "text")
    with pytest.raises(gt.ArgumentError, match="nosuch"):
        gt.jit(lambda x: x, static_argnames="nosuch")


def test_static_arguments_of_other_types_and_signs_are_others():
    seen = []

    @gt.jit(static_argnums=1, backend="eager")
    def f(x, k):
        seen.append(k)
        return gt.full((2,), k) * x

    @attrs.frozen
    class Options:
        scale: float
        sizes: tuple

    @dataclasses.dataclass(frozen=True)
    class Data:
        scale: float

    Pair = collections.namedtuple("Pair", "a b")
    assert f(gt.array(True), True).dtype == gt.bool
    assert f(gt.array(True), 1).dtype == gt.int64
    assert f(gt.array(True), 1.0).dtype == gt.float32
    assert math.copysign(1, f(gt.array(1.0), 0.0)[0].item()) == 1
    assert math.copysign(1, f(gt.array(1.0), -0.0)[0].item()) == -1

    which = gt.jit(lambda x, k: seen.append(k) or x, static_argnums=1, backend="eager")
    groups = [
        [(1, 2), (True, 2), (1.0, 2), ((1,), 2), ((True,), 2), Pair(1, 2)],
        [frozenset([1]), frozenset([True]), frozenset([1.0])],
        [Options(1, ()), Options(True, ()), Options(0.0, (1,)), Options(-0.0, (1,)), Options(0.0, (True,))],
        [Data(2), Data(2.0), 2, 2.0, np.float32(2), np.float64(2), decimal.Decimal(2), complex(2)],
        ["a", b"a", None, math.sin, gt.float32],
    ]
    for values in groups:
        for value in values:
            seen.clear()
            for _ in range(2):
                which(gt.array(1.0), value)
            assert len(seen) == 1 and seen[0] is value, value


def test_a_static_nan_is_traced_once():
    calls = []

    @gt.jit(static_argnames=("k",), backend="eager")
    def f(x, k):
        calls.append(k)
        return x * k[0]

    for _ in range(3):
        assert math.isnan(f(gt.array(1.0), k=(float("nan"),)).item())
    assert len(calls) == 1


def test_static_fields_and_keys_of_dicts_of_other_types_are_others():
    @gt.tree.register
    @attrs.frozen
    class Layer:
        w: gt.Array
        bias: object = attrs.field(metadata={"static": True})

    @gt.tree.register
    class Tagged:
        def __init__(self, x, tag):
            self.x, self.tag = x, tag

        def tree_flatten(self):
            return (self.x,), self.tag

        @classmethod
        def tree_unflatten(cls, tag, children):
            return cls(*children, tag)

    @gt.jit(backend="eager")
    def f(node):
        found.append(next(iter(node)) if isinstance(node, dict) else getattr(node, "bias", getattr(node, "tag", None)))
        return node

    x = gt.array(1.0)
    for make in (lambda k: Layer(x, k), lambda k: Tagged(x, k), lambda k: {k: x}):
        for k in (1, True, 1.0, 0.0, -0.0, (1,), (True,), "a"):
            found = []
            for _ in range(2):
                out = f(make(k))
            assert len(found) == 1 and repr(found[0]) == repr(k)
            if isinstance(out, Layer):
                assert repr(out.bias) == repr(k)
    assert gt.tree.map(lambda a, b: a, Layer(1, float("nan")), Layer(2, float("nan"))).w == 1


def test_keywords_are_not_a_dict_given_by_position():
    f = gt.jit(lambda x, y=None, k=None: len(x) if isinstance(x, tuple) else x + k, backend="eager")
    x = gt.array(1.0)
    assert f(x, k=x).item() == 2
    assert f((x,), {"k": x}).item() == 1


def test_tables_of_a_jitted_function_are_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules["gtrace.core.transform.jit"], "MAX_CALLS", 4)
    f = gt.jit(lambda x, k: x + k, static_argnums=1, backend="eager")
    for k in [*range(12), 0, 11]:
        assert f(gt.array(1), k).item() == 1 + k
    assert len(f._traced) <= 4 and len(f._calls) <= 4 and len(f.programs()) <= 4


LOOKS = {
    "bool": lambda x: 1.0 if x.sum() > 0 else 2.0,
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "item": lambda x: x[0].item(),
    "numpy": lambda x: np.asarray(x),
    "tolist": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "index": lambda x: [1, 2][x[0].astype(gt.int64)],
}


@pytest.mark.parametrize(("cause", "look"), LOOKS.items())
def test_looking_at_a_placeholder_names_the_line_and_the_fix(cause, look):
    for trace in (gt.jit(look), gt.make_graph(look), gt.jit(gt.grad(lambda x: x.sum() * look(x)))):
        with pytest.raises(gt.ConcretizationError, match=rf"\[{cause}\].*test_jit\.py:\d+\)") as info:
            trace(gt.ones(2))
        assert any(fix in str(info.value) for fix in ("gt.where", "outside", "static", "stop_gradient"))
    assert (gt.ones(2) + 1).sum().item() == 4.0, "the trace that failed is left behind"


def test_a_placeholder_that_escapes_is_refused():
    kept = []
    gt.make_graph(lambda x: kept.append(x * 2) or x)(gt.ones(2))
    for use in (lambda: kept[0] + 1, lambda: float(kept[0].sum()), lambda: gt.jit(lambda y: y + kept[0])(gt.ones(2))):
        with pytest.raises(gt.LeakError, match=r"test_jit\.py:\d+"):
            use()


def test_stages():
    traced = gt.jit(lambda x, y: gt.sin(x) + y).trace(gt.ones(3), gt.ones(3))
    assert [n.op.name for n in traced.graph.nodes] == ["sin", "add"]
    lowered = traced.lower()
    assert "sin(%" in lowered.as_text() and len(lowered.signature) == 32
    assert "aten.sin" in lowered.fx().code
    compiled = lowered.compile()
    assert compiled.tier == "compiled"
    assert_close(compiled(gt.zeros(3), gt.ones(3)), np.ones(3), check_dtype=False)
    with pytest.raises(gt.ArgumentError, match="Trace and compile"):
        compiled(gt.zeros(4), gt.ones(4))
    for derivative in (gt.grad, lambda f: lambda x: gt.jvp(f, (x,), (x,)), lambda f: lambda x: gt.linearize(f, x)):
        with pytest.raises(gt.ArrayConcretizationError, match=r"not being differentiated.*Call the jitted function"):
            derivative(lambda x: compiled(x * 2, gt.ones(3)).sum())(gt.ones(3))


@pytest.mark.slow
def test_backends_and_modes():
    x = gt.array([1.0, 2.0])
    for options in ({"backend": "eager"}, {"backend": "aot_eager"}, {"mode": "max-autotune"}):
        assert gt.jit(lambda v: (v * v).sum(), **options)(x).item() == 5.0
    with pytest.raises(gt.ArgumentError, match="inductor"):
        gt.jit(lambda v: v, backend="inducktor")
    with pytest.raises(gt.ArgumentError, match="max-autotune"):
        gt.jit(lambda v: v, mode="fastest")
    with pytest.raises(gt.ArgumentError, match="function"):
        gt.jit(3)
    with pytest.raises(gt.ArgumentError, match="results"):
        gt.jit(lambda v: "text")(x)


def test_jit_of_jit_and_methods():
    inner = gt.jit(lambda x: x * 3, backend="eager")
    outer = gt.jit(lambda x: inner(x) + inner(x + 1), backend="eager")
    assert outer(gt.array(1.0)).item() == 9.0
    assert [n.op.name for n in outer.trace(1.0).graph.nodes].count("mul") == 2

    class Model:
        @gt.jit(static_argnums=0, backend="eager")
        def double(self, x):
            return x * 2

    assert Model().double(gt.array(2.0)).item() == 4.0


@pytest.mark.slow
def test_a_whole_step_is_one_program():
    """Creation, forward, backward and update: nothing runs apart."""

    def step(w, x):
        def loss(w):
            noise = gt.linspace(0, 1, 3) * gt.eye(3).sum(axis=0) + gt.zeros(3)
            return (gt.tanh(x @ w + noise) ** 2).mean()

        value, g = gt.value_and_grad(loss)(w)
        return w - 0.1 * g, value

    w, x = gt.ones((4, 3)) * 0.1, gt.ones((2, 4))
    gt.eval(w, x)
    with gt.config(hot_threshold=2):
        before = engine.tiering.compiles
        seen = {p.signature for p in gt.stats()}
        losses = []
        for k in range(8):
            if k == 7:
                assert worker.wait(300), "with --background it compiles meanwhile"
            w, value = step(w, x)
            losses.append(float(value))
    new = [p for p in gt.stats() if p.signature not in seen]
    # the first step's arrays are laid out like the others', so that all eight are one program
    assert [p.calls for p in new] == [8] and new[0].tier == "compiled"
    assert engine.tiering.compiles == before + 1
    assert losses == sorted(losses, reverse=True)


# threads


def test_pending_arrays_cross_threads():
    x = gt.ones(3) * 2
    results = []

    def other():
        y = x + 1
        results.append((float(x.sum()), float(y.sum())))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    z = x * 10
    assert results == [(6.0, 9.0)]
    assert float(z.sum()) == 60.0 and float(x.sum()) == 6.0


def test_threads_agree_and_counters_add_up():
    def program(k):
        x = gt.full((4,), float(k)) + 0.125
        for _ in range(5):
            x = gt.sin(x) * 1.0625
        return float((x * x).sum())

    expected = [program(k) for k in range(8)]

    def calls():
        return sum(p.calls for p in gt.stats())

    before, got, errors = calls(), {}, []

    def work(name):
        try:
            got[name] = [program(k) for _ in range(20) for k in range(8)]
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(values == expected * 20 for values in got.values()) and len(got) == 8
    assert calls() - before == 8 * 20 * 8


@pytest.mark.slow
@pytest.mark.inductor  # whose sums of five numbers are those of the interpreter, bit by bit
def test_threads_share_one_compile():
    f = gt.jit(lambda x: (gt.cosh(x) * 1.03125 + gt.sinh(x)).sum())
    x = gt.ones(5) + 0
    gt.eval(x)
    before, out = engine.tiering.compiles, []
    threads = [threading.Thread(target=lambda: out.append(float(f(x)))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(out)) == 1 and len(out) == 6
    assert engine.tiering.compiles == before + 1


# -- tensors of torch as arguments


def test_batches_of_a_loader_are_not_copied(monkeypatch):
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.arange(64))
    step = gt.jit(lambda w, x, y: ((x @ w).sum() + y.sum(), x), backend="eager")
    seen, places, run = [], [], engine.call
    monkeypatch.setattr(engine, "call", lambda route, tensors: seen.extend(tensors) or run(route, tensors))
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        places += [x.data_ptr(), y.data_ptr()]
        step(gt.ones((8, 2)), x, y)
    assert set(places) < {tensor.data_ptr() for tensor in seen}


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("make", [torch.ones, lambda n: np.ones(n, np.float32)], ids=["torch", "numpy"])
def test_writing_to_an_argument_afterwards_changes_no_result(make, checked):
    function = gt.jit(lambda x, y: (x, x[1:], x * y, x.reshape(3, 1), y), backend="eager")
    with gt.config(debug_nans=checked):
        for _ in range(3):
            x, y = make(3), make(3)
            results = [*function(x, y), gt.ones(3) * x, gt.sin(gt.array(x))]
            before = [r.tolist() for r in results[:5]]
            x[:], y[:] = 7, 8
            assert [r.tolist() for r in results[:5]] == before
            assert results[5].tolist() == [1, 1, 1]
            assert_close(results[6][0], math.sin(1))


def test_settings_that_change_the_dtype_of_floats_are_told_apart():
    f = gt.jit(lambda x: x * gt.array(0.5))
    x = gt.array([1, 2])
    for _ in range(2):
        for results in (False, True):
            with gt.config(jax_results=results, x64=True):
                assert f(x).dtype == (x * gt.array(0.5)).dtype == (gt.float64 if results else gt.float32)


def test_calls_are_told_apart_by_containers_keys_and_their_types():
    def values(tree):
        leaves = gt.tree.leaves(tree)
        return gt.tree.structure(tree), [float(x) for x in leaves]

    f = gt.jit(lambda *args, **kwargs: (args, kwargs), backend="eager")
    x, y = gt.array(1.0), gt.array(2.0)
    calls = [
        ((x, y), {}), (((x, y),), {}), (([x, y],), {}), (({"a": x, "b": y},), {}), ((x, {"a": y}), {}),
        ((x,), {"a": y}),
        (({"b": y, "a": x},), {}), (({1: x},), {}), (({True: x},), {}), (({"1": x},), {}), ((x, None), {}),
        ((None, x), {}), (((), x), {}), (([], x), {}), (({}, x), {}), (((x,), y), {}), ((x, (y,)), {}), ((), {"a": x}),
        ((), {"b": x}), ((x, 2.0), {}), ((collections.OrderedDict(a=x, b=y),), {}), ((x + 1,), {}),
        ((np.float32(3),), {}),
    ]  # fmt: skip
    for _ in range(3):
        for args, kwargs in calls:
            assert values(f(*args, **kwargs)) == values((args, kwargs)), (args, kwargs)


def test_a_known_call_follows_settings_and_placeholders():
    f = gt.jit(lambda x: gt.log(x) * 2, backend="eager")
    zero = gt.array([0.0])
    for _ in range(2):
        assert f(zero).tolist() == [-math.inf]
        with gt.config(debug_nans=True), pytest.raises(gt.NonFiniteError):
            f(zero)
    kept = []
    gt.vmap(lambda x: kept.append(x) or x)(gt.ones((2, 1)))
    with pytest.raises(gt.LeakError):
        f(kept[0])


def test_every_call_of_a_short_program_is_counted_though_few_are_timed():
    f = gt.jit(lambda x: x + 1.0078125, backend="eager")
    x = gt.eval(gt.ones(2))
    for _ in range(1500):
        f(x)
    (program,) = f.programs()
    assert program.ledger.calls == 1500
    before = program.ledger.seconds
    with gt.config(audit=0.0):  # other settings, so that nothing of the call is known
        for _ in range(80):
            f(x)
    assert program.ledger.calls == 1580 and 0 < program.ledger.seconds - before


_trees = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=2) | st.builds(np.zeros, st.just(2)),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=2) | st.booleans() | st.integers(0, 1), inner, max_size=3)
    | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(collections.OrderedDict),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40)
@given(_trees)
def test_trees_are_taken_apart_as_optree_does(given):
    try:
        leaves, structure = optree.tree_flatten(given, namespace=gt.tree.NAMESPACE)
    except TypeError:  # keys of several types
        assume(False)
    for _ in range(2):
        mine, found = gt.tree.flatten(given)
        assert len(mine) == len(leaves) and all(a is b for a, b in zip(mine, leaves, strict=True))
        assert found == structure and repr(found.unflatten(mine)) == repr(given), "dicts keep their order"
        assert all(a is b for a, b in zip(gt.tree.leaves(given), leaves, strict=True))


class Counting:
    """A backend as users register one; it says more of itself than the contract asks for."""

    open_sizes = False

    def __init__(self, name, error=None):
        self.name, self.error, self.calls = name, error, 0

    def compile(self, request):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return Compiled(interpreted(request.graph, request.strides))

    def ahead_of_time(self, mode, device):
        return True


def test_a_registered_backend_compiles_its_programs():
    backend = Counting("counting")
    gt.register_backend(backend)
    with gt.config(background=True):
        assert gt.jit(lambda x: x * 2 + 1, backend="counting", wait=True)(gt.ones(2)).tolist() == [3, 3]
    assert backend.calls == 1


def test_a_registered_backend_that_raises_costs_a_warning():
    backend = Counting("raising", ZeroDivisionError("of its own"))
    gt.register_backend(backend)
    with pytest.warns(gt.CompileWarning, match="of its own"):
        assert gt.jit(lambda x: x * 2 + 1, backend="raising")(gt.ones(2)).tolist() == [3, 3]
    assert backend.calls == 1


def endless(kind):
    """Return a list or dict that holds itself, or a list of many levels."""
    if kind == "levels":
        tree = gt.ones(2)
        for _ in range(100_000):
            tree = [tree]
        return tree
    tree = [gt.ones(2)] if kind == "list" else {"a": gt.ones(2)}
    tree.append(tree) if kind == "list" else tree.update(b=tree)
    return tree


TAKES_TREES = {
    "jit": lambda t: gt.jit(lambda x: 1)(t),
    "jit, later": lambda t: (f := gt.jit(lambda x: 1, backend="eager"), f([gt.ones(2)]), f(t)),
    "result": lambda t: gt.jit(lambda x: t)(gt.ones(2)),
    "grad": gt.grad(lambda x: 1.0),
    "vmap": gt.vmap(lambda x: x),
    "scan": lambda t: gt.lax.scan(lambda c, x: (c, x), t, None, length=2),
    "eval": gt.eval,
    "flatten": gt.tree.flatten,
    "leaves": gt.tree.leaves,
    "structure": gt.tree.structure,
    "map": lambda t: gt.tree.map(lambda x: x, t),
    "save": lambda t: gt.save_checkpoint("nowhere", t, step=1),
    "optimizer": lambda t: gt.optim.adam(0.1).init(t),
}


@pytest.mark.parametrize("kind", ["list", "dict", "levels"])
@pytest.mark.parametrize("name", TAKES_TREES)
def test_a_tree_without_an_end_is_refused(name, kind):
    with pytest.raises(gt.StructureError, match="expected a finite tree, got one that holds itself"):
        TAKES_TREES[name](endless(kind))
