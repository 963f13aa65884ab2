"""gtrace.testing: what the strategies draw, and that the checks can fail. test_planted_bugs.py shows what they find."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import testing
from gtrace.core.ir.graph import subgraphs
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.verify import verify

QUICK = settings(
    max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)  # fmt: skip
SHRINKING = settings(QUICK, phases=[Phase.generate, Phase.shrink])


# -- what is drawn


@pytest.mark.slow
@given(testing.graphs(12, control=True))
def test_graphs_are_valid_and_numbered_in_order(graph):
    verify(graph)
    assert [*graph.inputs, *(node.out for node in graph.nodes)] == list(range(len(graph.inputs) + len(graph.nodes)))


@pytest.mark.parametrize("name", testing.drawable())
def test_every_operation_is_drawn(name):
    dtypes = [torch.float64, torch.float32, torch.int64, torch.bool]
    strategy = testing.graphs(2, ops=[name], dtypes=dtypes)
    graph = find(strategy, lambda graph: any(node.op.name == name for node in graph.nodes), settings=QUICK)
    verify(graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan", "switch", "while_loop"])
def test_loops_and_branches_are_drawn_in_one_another(name):
    def nested(graph):
        bodies = [sub.graph for node in graph.nodes if node.op.name == name for sub in subgraphs(node.params)]
        return any(subgraphs(node.params) for body in bodies for node in body.nodes)

    few = ["add", "mul", "sin", "sum", "lt", "astype"]
    verify(find(testing.graphs(12, ops=few, control=True), nested, settings=QUICK))


@given(testing.graphs(smooth=True, control=True))
def test_smooth_graphs_are_floating_and_have_gradients(graph):
    assert all(a.dtype == torch.float64 for a in (*graph.avals, *graph.out_avals))
    names = {node.op.name for node in graph.nodes}
    assert "while_loop" not in names
    assert all(REGISTRY[name].rules.nondiff is None for name in names - {"project", "full"})


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(testing.programs(5, smooth=True, control=True))
def test_smooth_programs_pass_the_check_of_derivatives(program):
    testing.check_grads(*program)


def test_ops_and_dtypes_are_the_callers():
    @given(testing.graphs(6, ops=["add", "mul"], dtypes=[torch.float16]))
    def run(graph):
        assert {node.op.name for node in graph.nodes} <= {"add", "mul"}
        assert all(a.dtype == torch.float16 for a in graph.out_avals)

    run()
    with pytest.raises(ValueError, match="expected names of operations in ops, got 'plus'"):
        find(testing.graphs(ops=["plus"]), lambda graph: True)


@given(st.data())
def test_arrays_are_what_was_asked_for(data):
    dtype = data.draw(testing.dtypes())
    one, other = data.draw(testing.mutually_broadcastable_shapes(2, min_side=0))
    x = data.draw(testing.arrays(dtype, one))
    y = data.draw(testing.arrays(dtype, other, as_numpy=True, special=True))
    assert (x.shape, x.dtype) == (one, dtype) and y.shape == other
    assert not x.aval.floating or bool((abs(x) <= 2).all())
    np.broadcast_shapes(one, other)


def test_special_numbers_are_drawn():
    for wanted in (np.isnan, np.isinf, lambda x: np.signbit(x) & (x == 0)):
        strategy = testing.arrays(gt.float32, (3,), special=True, as_numpy=True)
        found = find(strategy, lambda x, wanted=wanted: bool(wanted(x).any()), settings=SHRINKING)
        assert found.shape == (3,) and wanted(found).sum() == 1, "it shrinks to one of them"


@given(testing.programs(4))
def test_programs_take_and_return_pytrees(program):
    f, args = program
    assert gt.tree.structure(args) == f.in_tree and gt.tree.structure(f(*args)) == f.out_tree
    with pytest.raises(TypeError, match="expected arguments of structure"):
        f(args, args)


# -- the checks can fail


def test_check_grads_names_the_derivative():
    @gt.custom_vjp
    def wrong(x, y):
        return x * y

    wrong.defvjp(lambda x, y: (x * y, (x, y)), lambda saved, ct: (ct * saved[1], -ct * saved[0]))
    args = (gt.array(0.5), {"y": gt.array(3.0)})
    with pytest.raises(AssertionError, match=r"the derivative rev by args\[1\]\['y'\] to be .* by central differences"):
        testing.check_grads(lambda x, p: wrong(x, p["y"]), args, modes=("rev",))
    with pytest.raises(ValueError, match="expected a floating argument"):
        testing.check_grads(lambda x: x, (gt.array(1),))
    with pytest.raises(ValueError, match="expected a floating output"):
        testing.check_grads(lambda x: x > 0, (gt.array(1.0),))
    with pytest.raises(ValueError, match="expected modes"):
        testing.check_grads(gt.sin, (gt.array(1.0),), modes=("forward",))


def test_check_grads_of_the_second_order():
    @gt.custom_jvp
    def wrong(x):
        return gt.sin(x)

    # right once; differentiated again it is not, because the rule hides its dependence on x
    wrong.defjvp(lambda xs, ts: (gt.sin(xs[0]), gt.stop_gradient(gt.cos(xs[0])) * ts[0]))
    testing.check_grads(wrong, (gt.array(0.3),), order=1)
    with pytest.raises(AssertionError, match="the derivative fwd of fwd"):
        testing.check_grads(wrong, (gt.array(0.3),), order=2)


def test_check_vmap_compares_with_the_loop():
    testing.check_vmap(lambda p, x: {"y": x @ p["w"]}, ({"w": gt.ones((2, 3))}, gt.ones((4, 2))), ({"w": None}, 0))
    testing.check_vmap(lambda p, x: x * p["w"], ({"w": gt.ones((4, 3))}, gt.ones((4, 3))), ({"w": 1}, -1), out_axes=-1)
    calls = iter(range(9))
    with pytest.raises(AssertionError, match="vmap"):
        testing.check_vmap(lambda x: x + next(calls), (gt.ones(3),))


@pytest.mark.slow
def test_check_jit_runs_every_form():
    calls = []

    def f(p):
        calls.append(1)
        return {"y": gt.tanh(p["x"]) @ p["x"]}

    testing.check_jit(f, ({"x": gt.ones((2, 2))},))
    assert len(calls) >= 5
    forms = iter(range(99))
    with pytest.raises(AssertionError, match="jitted, interpreted"):
        testing.check_jit(lambda x: x * next(forms), (gt.ones(2),))


def test_assert_same_program_says_in_what_programs_differ():
    testing.assert_same_program(lambda x, y: (x + y) * 2.0, lambda a, b: 2.0 * (b + a), gt.ones(3), gt.ones(3))
    with pytest.raises(AssertionError, match=r"operation 0 was sin, now cos\ngraph"):
        testing.assert_same_program(gt.sin, gt.cos, gt.ones(3))
    with pytest.raises(AssertionError, match=r"scalar 0 was 2\.0.*now 3\.0"):
        testing.assert_same_program(lambda x: x * 2.0, lambda x: x * 3.0, gt.ones(3))


def test_compiles_are_counted():
    f = gt.jit(lambda x: gt.sin(x) * 41.5, backend="eager")
    with testing.count_compiles() as compiles:
        f(gt.ones(3))
        assert compiles.count == 1
        f(gt.ones(3))
        f(gt.ones(4))
    f(gt.ones(5))
    assert (compiles.count, compiles.loads) == (2, 0)
    with testing.assert_no_recompile():
        f(gt.ones(4))
    with pytest.raises(AssertionError, match=r"expected no compile, got 1(.|\n)*input 0 dim 0 was 5, now 6"):
        with testing.assert_no_recompile():
            f(gt.ones(6))


NAN, INF = float("nan"), float("inf")
CLOSE = {
    "arrays, tensors and NumPy arrays": lambda: ([gt.ones(2), torch.ones(2)], [np.float32([1, 1]), gt.ones(2)]),
    "a tensor with a gradient": lambda: (torch.ones(2, requires_grad=True), gt.ones(2)),
    "numbers have no dtype of their own": lambda: (gt.array(0.1) * 3, 0.3),
    "lists of numbers": lambda: (gt.ones((2, 1), dtype=gt.bfloat16), [[1.0], [1]]),
    "NaN and infinite numbers": lambda: (gt.array([NAN, INF, -INF, 1]), [NAN, INF, -INF, 1]),
    "no elements": lambda: (gt.zeros((0, 3)), np.zeros((0, 3), "float32")),
    "a sum near zero of large terms": lambda: (gt.array([1e8, 1.0, -1e8]).sum(), 1.0, {"steps": 2, "scale": 1e8}),
    "below the normal numbers": lambda: (gt.array(0.0), 1e-38, {"steps": 1}),
    "a reference in float64": lambda: (gt.array(0.1) * 3, np.float64(0.3), {"check_dtype": False}),
    "bits of float16": lambda: (gt.array([1.0, 1.003], dtype=gt.float16), np.float16([1, 1])),
    "parts of complex numbers": lambda: (gt.array([1 + 1e-7j]), [1 + 0j]),
    "nothing": lambda: ([None, ()], [None, ()]),
    "integers of another dtype": lambda: (np.uint64([2**63, 1]), [2**63, 1]),
}  # fmt: skip
APART = {
    "structure": (lambda: ([gt.ones(2)], (gt.ones(2),)), r"to have the structure"),
    "number of leaves": (lambda: ({"a": 1}, {"a": 1, "b": 2}), r"to have the structure"),
    "shape": (lambda: (gt.ones((2, 1)), gt.ones(2)), r"to have the shape \[2\], got \[2, 1\]"),
    "one number for an array": (lambda: (gt.ones(2), 1.0), r"to have the shape \[\], got \[2\]"),
    "dtype": (lambda: ({"a": gt.ones(2)}, {"a": np.ones(2)}), r"at \['a'\] to be float64, got float32"),
    "integers": (lambda: (gt.array([1, 2, 3]), [1, 3, 3]), r"1 of 3 elements .* is 2 at \[1\], not 3"),
    "large integers": (lambda: (gt.array(2**60), 2**60 + 1), r"not 1152921504606846977"),
    "rows of several lengths": (lambda: (gt.ones(2), [[1], [1, 2]]), r"to have the structure"),
    "unsigned integers": (lambda: (np.uint16([1, 2]), [1, 3]), r"is 2 at \[1\], not 3"),
    "booleans": (lambda: (gt.array([True]), [False]), r"1 of 1 elements"),
    "NaN elsewhere": (lambda: (gt.array([NAN, 1.0]), [1.0, NAN]), r"2 of 2 elements"),
    "NaN for a number": (lambda: (gt.array(NAN), 1.0, {"scale": INF}), r"is nan"),
    "sign of an infinite number": (lambda: (gt.array([1, INF]), [1, -INF]), r"is inf at \[1\], not -inf"),
    "a number for an infinite one": (lambda: (gt.array(3e38), INF, {"scale": INF}), r"not inf"),
    "the worst element": (lambda: (gt.array([1.0, 2.1, 3.2]), [1.0, 2.0, 3.0]), r"2 of 3 .* is 3.2\d* at \[2\]"),
    "scale by element": (lambda: (gt.array([1.0, 1e6]), [1.1, 1e6], {"scale": np.array([1, 1e6])}), r"at \[0\]"),
    "a part of a complex number": (lambda: (gt.array([1 + 0.1j]), [1 + 0j]), r"is \(1\+0.1\d*j\)"),
    "rounding of float64": (lambda: (np.float64(0.3), np.float64(0.3 + 1e-12)), r"100 roundings of float64"),
    "steps": (lambda: (gt.array(1.0), 1 + 3e-6, {"steps": 10}), r"10 roundings of float32 at scale 1 allow 1.19e-06"),
    "a name": (lambda: ({"a": gt.ones(2)}, {"a": gt.zeros(2)}, {"what": "sums"}), r"sums at \['a'\] to be close"),
}  # fmt: skip


def closely(actual, expected, keywords=None):
    testing.assert_close(actual, expected, **(keywords or {}))


@pytest.mark.parametrize("what", CLOSE)
def test_close(what):
    closely(*CLOSE[what]())


@pytest.mark.parametrize("what", APART)
def test_not_close(what):
    pair, said = APART[what]
    with pytest.raises(AssertionError, match=said):
        closely(*pair())


def test_assert_close_refuses_so_many_steps_that_the_bound_says_nothing():
    with pytest.raises(ValueError, match=r"expected fewer than 256 steps of bfloat16, got 300"):
        testing.assert_close(gt.ones(2, dtype=gt.bfloat16), [1.0, 1.0], steps=300)
    with pytest.raises(ValueError, match=r"expected 1 step or more, got 0"):
        testing.assert_close(1.0, 1.0, steps=0)
    with pytest.raises(ValueError, match=r"a scale that broadcasts to the shape \[2, 3\], got \[4\]"):
        testing.assert_close(gt.ones((2, 3)), gt.ones((2, 3)), scale=gt.ones(4))


@given(st.sampled_from([gt.float32, gt.float64]), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_sums_in_any_order_are_close_and_no_bound_is_needed_twice(dtype, count, seed):
    """Higham's bound holds for every order: steps are the terms, and the scale is the sum of the magnitudes."""
    rng = np.random.default_rng(seed)
    terms = (rng.normal(size=count) * 10.0 ** rng.integers(-6, 6, count)).astype(dtype.name)
    one, other = np.cumsum(terms)[-1], np.cumsum(rng.permutation(terms))[-1]
    scale = np.abs(terms.astype("float64")).sum()
    testing.assert_close(one, other, steps=count, scale=scale)
    off = 2.1 * count * float(np.finfo(one.dtype).eps) * scale
    with pytest.raises(AssertionError):
        testing.assert_close(np.float64(one) + off, other, steps=count, scale=scale, check_dtype=False)


# -- without hypothesis


@pytest.mark.slow
def test_gtrace_does_without_hypothesis_and_gtrace_testing_says_how_to_get_it():
    script = (
        "import sys\nsys.modules['hypothesis'] = None\nimport gtrace\n"
        "try:\n    import gtrace.testing\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "pip install 'gtrace[testing]'" in done.stdout, done.stderr
