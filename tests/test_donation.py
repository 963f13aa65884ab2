"""Arguments that are given away: what is written over their memory, what is not, and what becomes of their Arrays."""

import copy
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gtrace as gt
import gtrace.jax.lax
import gtrace.jax.numpy
import gtrace.lax
import gtrace.numpy
from gtrace.core.backends.executable import Executable
from gtrace.core.backends.fx import lower
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.aliasing import aliases, given_away, written_over
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.runtime import policy
from gtrace.core.runtime.engine import Engine
from gtrace.errors import ArgumentError, DonatedError, ExecutionError
from gtrace.testing import arguments, assert_close, graphs

SIZE = 5


class Interrupted(KeyboardInterrupt):
    """What a test raises."""


@pytest.fixture
def compiling():
    """Asked for by a test whose jitted functions are compiled."""


@pytest.fixture(autouse=True)
def only_interpreted(request, monkeypatch):
    if "compiling" not in request.fixturenames:
        monkeypatch.setattr(Engine, "compile_all", lambda *_: None)
    with gt.config(auto_compile=False):
        yield


def own(*shape, seed=0):
    """An array with memory of its own: one made from NumPy's numbers has memory that came from NumPy."""
    x = gt.array(np.random.default_rng(seed).normal(size=shape or (SIZE,)).astype(np.float32)) * 1.0
    return gt.eval(x)


def place(x):
    return x.to_torch(copy=False).data_ptr()


def adam(p, m, v, g):
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 0.01 * m / (gt.sqrt(v) + 1e-3), m, v


def adam_in_numpy(p, m, v, g):
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 0.01 * m / (np.sqrt(v) + 1e-3), m, v


def train(step, steps):
    """Train for some steps, beside NumPy; returns the places of the state before and after each step."""
    state = [own(6, 4, seed=k) for k in range(2)]
    state.append(gt.eval(own(6, 4, seed=2) ** 2))
    right = [x.to_torch().numpy().astype(np.float64) for x in state]
    moves = []
    for k in range(steps):
        g = own(6, 4, seed=10 + k)
        before = [place(x) for x in state]
        given, state = state, list(step(*state, g))
        moves.append((before, [place(x) for x in state]))
        right = adam_in_numpy(*right, np.asarray(g, np.float64))
        for got, expected in zip(state, right, strict=True):
            np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-4, atol=2e-6)
        for x in given:
            with pytest.raises(DonatedError):
                float(x.sum())
        del got, given, x
    return moves


@pytest.mark.slow
def test_compiled_results_are_written_over_what_is_given_away_also_while_they_are_judged(compiling, monkeypatch):
    monkeypatch.setattr(policy, "TRIAL_SHARE", 1e9)  # the two forms take turns from the beginning
    step = gt.jit(adam, donate_argnums=(0, 1, 2), wait=True)
    with gt.config(audit=0.3):
        moves = train(step, 60)
    (program,) = step.programs()
    assert program.tier == "compiled" and program.ledger.interpreted_calls >= 5, "both forms have run"
    assert any(before == after for before, after in moves)


def test_an_interpreted_call_frees_what_is_given_away_after_its_last_use():
    x, alive = own(1000), []
    buffer = weakref.ref(x._buf)

    def f(x):
        y = gt.pure_callback(lambda y: alive.append(buffer() is not None) or y, x.aval, x * 2)
        return y + 1

    gt.eval(gt.jit(f, donate_argnums=0, wait=False)(x))
    assert alive == [False]


USES = {
    "operator": lambda x: x + 1,
    "value": lambda x: float(x.sum()),
    "numpy": lambda x: np.asarray(x),
    "torch": lambda x: x.to_torch(),
    "eval": lambda x: gt.eval(x),
    "jit": lambda x: gt.jit(lambda x: x * 2, wait=False)(x),
    "captured": lambda x: gt.make_graph(lambda y: x + y)(gt.ones(SIZE)),
    "gradient": lambda x: gt.grad(lambda x: (x**2).sum())(x),
    "closed over by a gradient": lambda x: gt.grad(lambda y: (x * y).sum())(gt.ones(SIZE)),
    "vmap": lambda x: gt.vmap(lambda x: x * 2)(x),
    "given away again": lambda x: gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(x),
}


@pytest.mark.parametrize("use", USES)
def test_an_array_that_was_given_away_cannot_be_used(use):
    x = own()
    gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(x)
    with pytest.raises(DonatedError) as caught:
        USES[use](x)
    text = str(caught.value)
    assert "[donate] expected an array that has its value, got f32[5], which was given away to jit(<lambda>)" in text
    assert "donate_argnums" in text and text.count("test_donation.py") == 2, "where it was given away, and used"
    assert repr(x) == str(x) == "Donated(float32[5])" and x.shape == (SIZE,)


HOLDERS = {
    "the argument twice": lambda x: x,
    "a view": lambda x: gt.eval(x[1:]),
    "another shape": lambda x: gt.eval(x.reshape(1, SIZE)),
    "NumPy": np.asarray,
    "torch": lambda x: x.to_torch(copy=False),
    "an operation that is pending": lambda x: x + 1,
    "another Array": lambda x: gt.from_torch(x.to_torch(copy=False)),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_else_has_is_left_alone(holder):
    x = own()
    before = x.to_torch().numpy()
    kept = HOLDERS[holder](x)
    if holder == "the argument twice":
        got = gt.jit(lambda x, y: x * 2 + y, donate_argnums=0, wait=False)(x, x)
        np.testing.assert_array_equal(np.asarray(got), before * 2 + before)
        return
    memory = place(x)
    got = gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(x)
    np.testing.assert_array_equal(np.asarray(got), before * 2)
    assert place(got) != memory
    expected = {"a view": before[1:], "an operation that is pending": before + 1}.get(holder, before)
    np.testing.assert_array_equal(np.asarray(kept).ravel(), expected)
    with pytest.raises(DonatedError):
        float(x.sum())


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, gt.from_numpy, lambda x: gt.from_numpy(x)[::2]])
def test_the_memory_of_outside_arrays_is_never_written(convert):
    outside = np.arange(6.0, dtype=np.float32)
    got = gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(convert(outside))
    assert np.asarray(got)[1] in (2.0, 4.0)
    np.testing.assert_array_equal(outside, np.arange(6.0))


def test_memory_that_other_processes_have_is_never_written():
    outside = torch.ones(SIZE).share_memory_()
    x = gt.from_torch(outside)
    seen = x.to_torch(copy=False)
    del outside
    pointer = seen.data_ptr()
    del seen
    assert place(gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(x)) != pointer


def test_arrays_that_the_function_closes_over_stay():
    w = own()
    value = w.to_torch().numpy()
    f = gt.jit(lambda x: x * w, donate_argnums=0, wait=False)
    assert_close(f(w), value * value)
    # the function still has the value; the Array is given away
    assert_close(f(own(seed=1)), value * own(seed=1).to_torch().numpy())


def test_results_that_share_memory_with_an_argument_keep_their_values():
    f = gt.jit(lambda x: (x.reshape(SIZE, 1), x, x * 2), donate_argnums=0, wait=False)
    for _ in range(2):
        x = own()
        value = x.to_torch().numpy()
        column, same, double = f(x)
        np.testing.assert_array_equal(np.asarray(column).ravel(), value)
        np.testing.assert_array_equal(np.asarray(same), value)
        np.testing.assert_array_equal(np.asarray(double), value * 2)


def test_recorded_calls_give_nothing_away():
    f = gt.jit(lambda x: (x * 3).sum(), donate_argnums=0, wait=False)
    x = own(4, SIZE)
    assert np.all(np.asarray(gt.grad(f)(x)) == 3.0)
    assert gt.vmap(f)(x).shape == (4,)
    assert gt.jit(lambda x: f(x) + f(x), wait=False)(x).shape == ()
    assert_close(x.sum(), f(x).item() / 3)


def test_a_function_that_cannot_be_captured_loses_nothing_and_one_that_fails_later_says_so():
    x, index = own(), gt.array([SIZE + 10])
    with pytest.raises(gt.ConcretizationError):
        gt.jit(lambda x: x * float(x.sum()), donate_argnums=0, wait=False)(x)
    assert x.sum().item() == x.sum().item()
    failing = gt.jit(lambda x, k: (x * 2, gt.linalg.cholesky(x.reshape(1, SIZE) * k.sum())), donate_argnums=0)
    with pytest.raises((ExecutionError, ValueError, gt.errors.GtraceError)):
        failing(x, index)


def test_an_interrupt_leaves_values_whole_or_gone(monkeypatch):
    x = own()
    value = x.to_torch().numpy()
    f = gt.jit(lambda x: x * 2 + 1, donate_argnums=0, wait=False)
    f(own(seed=1))
    (program,) = f.programs()
    run = program.forms.executable.run

    def interrupted(tensors):
        run(tensors)
        raise Interrupted

    monkeypatch.setattr(program.forms, "executable", Executable(interrupted, "interpreter", program.device))
    with pytest.raises(Interrupted):
        f(x)
    with pytest.raises(DonatedError):
        np.testing.assert_array_equal(np.asarray(x), value)


def test_checked_runs_give_away_without_writing():
    x = own()
    with gt.config(debug_nans=True):
        got = gt.jit(lambda x: x * 2, donate_argnums=0, wait=False)(x)
    assert got.shape == (SIZE,)
    with pytest.raises(DonatedError):
        float(x.sum())


def test_of_threads_that_give_one_array_away_each_gets_a_right_result_or_an_error():
    f = gt.jit(lambda x: x * 2 + 1, donate_argnums=0, wait=False)
    f(own())
    for seed in range(20):
        x = own(seed=seed)
        right, found = x.to_torch().numpy() * 2 + 1, []

        def work(x=x, found=found):
            try:
                found.append(np.asarray(f(x)))
            except DonatedError as error:
                found.append(error)

        crew = [threading.Thread(target=work) for _ in range(3)]
        for one in crew:
            one.start()
        for one in crew:
            one.join()
        values = [one for one in found if not isinstance(one, DonatedError)]
        assert len(found) == 3 and values
        for one in values:
            np.testing.assert_array_equal(one, right)


def test_parameters_of_a_model_that_is_divided():
    def step(ws, x):
        def loss(ws):
            h = x
            for w in ws:
                h = gt.tanh(gt.sin(h @ w) * gt.cos(h) + gt.exp(-gt.abs(h)) * h) + h / (1.0 + gt.abs(h))
            return (h**2).mean()

        value, grads = gt.value_and_grad(loss)(ws)
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value

    def run(**options):
        f = gt.jit(step, wait=False, **options)
        ws, x = [own(16, 16, seed=k) for k in range(10)], own(8, 16, seed=99)
        for _ in range(3):
            ws, value = f(ws, x)
        return f, [np.asarray(w) for w in ws], value.item()

    plain, right, loss = run()
    given_, got, own_loss = run(donate_argnames="ws")
    assert len(plain.programs()) > 1, "it is divided"
    assert any(program.key.donated for program in given_.programs())
    assert_close(own_loss, loss)
    for a, b in zip(got, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_no_result_has_the_type_of_stays():
    x, y = own(4), own(4, seed=1)
    gt.jit(lambda x, y: (x * 2, (x + y).sum()), donate_argnums=(0, 1), wait=False)(x, y)
    with pytest.raises(DonatedError):
        gt.eval(x + 1)
    assert y.sum().item() == y.sum().item()


def test_arguments_by_name_and_in_trees():
    f = gt.jit(lambda a, b, c=None: (a["x"] + b, c), donate_argnames=("c", "a"), wait=False)
    a, b, c = {"x": own()}, own(seed=1), own(seed=2)
    f(a, b, c=c)
    for gone in (a["x"], c):
        with pytest.raises(DonatedError):
            gt.eval(gone + 1)
    assert b.sum().item() == b.sum().item()
    f({"x": own()}, own(seed=1))
    with pytest.raises(ArgumentError, match="donate_argnums below 1"):
        gt.jit(lambda x: x, donate_argnums=1)
    with pytest.raises(ArgumentError, match="donate_argnames among"):
        gt.jit(lambda x: x, donate_argnames="y")
    with pytest.raises(ArgumentError, match="static or given away"):
        gt.jit(lambda x, k: x, static_argnames="k", donate_argnums=(0, 1))


# which inputs, in any program


@pytest.mark.slow
@given(graphs(20, continuous=True), st.data())
def test_lowered_programs_write_over_what_they_say(graph, data):
    graph = canonicalize(graph).graph
    assume(graph.nodes and not has_calls(graph))
    tensors = [x.to_torch() for x in data.draw(arguments(graph))]
    pairs = written_over(graph, data.draw(st.sets(st.sampled_from(range(len(tensors))))) if tensors else ())
    shared = aliases(graph)
    for k, j in pairs:
        assert (graph.avals[k].shape, graph.avals[k].dtype) == (graph.out_avals[j].shape, graph.out_avals[j].dtype)
        assert not any(graph.inputs[k] in shared[value] for value in graph.outputs)
    expected = interpreter(graph)([x.clone() for x in tensors])
    given_tensors = [x.clone() for x in tensors]
    rest = iter(lower(graph, [x.stride() for x in tensors], donated=pairs).module(*given_tensors))
    written = {j: given_tensors[k] for k, j in pairs}
    for j, right in enumerate(expected):
        got = written[j] if j in written else next(rest)
        torch.testing.assert_close(got, right, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_parts_write_over_an_input_only_when_no_later_one_reads_it():
    graph = gt.make_graph(lambda x, y: ((x.T @ y) + 1, x * 2, y * 3))(gt.ones((3, 3)), gt.ones((3, 3)))
    x, y = graph.inputs
    view = next(node.out for node in graph.nodes if x in node.ins and node.op.name != "mul")
    both = {x, y}
    assert given_away(graph, [(x, y), (x,)], both) == [{y}, {x}]
    assert given_away(graph, [(x,), (view, y), (y,)], both) == [frozenset(), frozenset(), {y}], "a view is read later"
    assert given_away(graph, [(x, view), (y,)], both) == [frozenset(), {y}], "and beside it"
    assert given_away(graph, [(x, y)], {y}) == [{y}]


COPIES = {
    "gt.array": gt.array,
    "gt.asarray": lambda x: gt.asarray(x, copy=True),
    "gt.numpy.copy": gt.numpy.copy,
    "method": lambda x: x.copy(),
    "clone": lambda x: x.clone(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "of a tree": lambda x: copy.deepcopy({"a": [x]})["a"][0],
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("computed", [True, False])
def test_a_copy_outlives_what_it_was_copied_from(name, computed):
    step = gt.jit(lambda x: x + 1.0, donate_argnums=0)
    original = gt.ones(2) * 2.0
    if computed:
        gt.eval(original)
    taken = COPIES[name](original)
    assert gt.eval(step(original)).tolist() == [3.0, 3.0]
    assert taken.tolist() == [2.0, 2.0]
    with pytest.raises(gt.DonatedError):
        COPIES[name](original)
    assert gt.grad(lambda x: (COPIES[name](x) * x).sum())(gt.array([1.0, 3.0])).tolist() == [2.0, 6.0]


SAME = {
    "asarray", "from_dlpack", "eval", "optimization_barrier", "composite", "pcast", "pmax", "pmin", "psum",
    "device_put", "block_until_ready", "with_sharding_constraint",
}  # fmt: skip
"""Functions that promise the same array, or name the processes that have it. The others give another one."""

OPERANDS = {
    "vector": np.arange(3, dtype=np.float32), "scalar": np.float32(2.5), "matrix": np.ones((3, 3), np.float32),
    "integers": np.arange(3), "booleans": np.array([True, False]), "one": np.full((1, 1), 0.5, np.float32),
}  # fmt: skip


def calls_that_change_nothing(x):
    """Calls of public functions, indices and methods, of which many have nothing to change."""
    arguments = [(), (x.dtype,), (x.shape,), ((),), (0,), (1,), ((0,),), (0, 0), (None,)]
    for room in (gt, gtrace.numpy, gtrace.lax, gtrace.jax.numpy, gtrace.jax.lax):
        for name in sorted(set(dir(room)) - SAME):
            function = getattr(room, name)
            if not name.startswith("_") and callable(function) and not isinstance(function, type):
                for given_ in arguments:
                    yield f"{room.__name__}.{name}{given_}", function, given_
    for index in (slice(None), ..., (slice(None),), (..., slice(None)), slice(0, 3), ()):
        yield f"x[{index}]", lambda x, index=index: x[index], ()
    for name in ("astype", "reshape", "ravel", "flatten", "squeeze", "transpose", "clip", "conj", "real", "T", "mT"):
        for given_ in arguments:
            yield f"x.{name}{given_}", lambda x, *args, n=name: getattr(x, n)(*args) if args else getattr(x, n), given_
    yield "+x", lambda x: +x, ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERANDS)
def test_what_changes_nothing_outlives_the_donation_of_its_operand(kind):
    value, found = OPERANDS[kind], []
    x = gt.eval(gt.array(value))
    for name, function, given_ in calls_that_change_nothing(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = function(x, *given_)
            except Exception:  # noqa: BLE001 - not for these operands
                continue
        results = result if isinstance(result, (tuple, list)) else [result]
        if any(part is x for part in results):
            found.append(name)
    assert not found
    copies = [x[:] if x.ndim else x[()], x.astype(x.dtype), gt.reshape(x, x.shape), gt.squeeze(gt.expand_dims(x, 0), 0)]
    if x.dtype == gt.float32:
        gt.eval(gt.jit(lambda x: x * 2 + 1, donate_argnums=0)(x))
        with pytest.raises(DonatedError):
            float(x.sum())
        for part in copies:
            np.testing.assert_array_equal(np.asarray(part), value)
