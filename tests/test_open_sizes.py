"""Sizes that vary: one program for all of them, whatever the programs are built to make it believe."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.symbolic import Relation, fit
from gtrace.core.ir.aval import layout
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.tier_controller import MAX_VERSIONS
from gtrace.errors import CompileError, CompileWarning
from gtrace.testing import assert_close

pytestmark = pytest.mark.inductor


def rows(n: int, *rest: int) -> gt.Array:
    values = np.random.default_rng(n).normal(size=(n, *rest)).astype(np.float32)
    return gt.eval(gt.array(values))


def plain(function, *args):
    """What the function gives when nothing is compiled."""
    with gt.config(auto_compile=False, compile=False):
        return gt.eval(function(*args))


def same(got, expected, tolerance=1e-5):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def check(function, *args, tolerance=1e-5):
    """Run the function as the settings say, then uncompiled, and compare."""
    got = gt.eval(function(*args))
    same(got, plain(function, *args), tolerance)


# -- relations


RELATIONS = [
    lambda n, m: 3 * n, lambda n, m: n - 1, lambda n, m: n // 2, lambda n, m: -(-n // 3), lambda n, m: n * m,
    lambda n, m: n * n, lambda n, m: 2 * m + 5, lambda n, m: 7, lambda n, m: n * m * 4, lambda n, m: -n,
]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(2, 300), st.integers(2, 300)), min_size=5, max_size=8, unique=True),
    st.lists(st.sampled_from(range(len(RELATIONS))), max_size=6),
)
def test_relations_hold_in_all_examples(pairs, chosen):
    examples = [(n, m, *(RELATIONS[k](n, m) for k in chosen)) for n, m in pairs]
    relations = fit(examples, 2)
    assert isinstance(relations, tuple), (examples, relations)
    for example in examples:
        assert tuple(relation(example) for relation in relations) == example


def test_what_is_no_function_of_the_sizes_is_named():
    assert fit([(4, 8, 1), (5, 10, 9), (6, 12, 2)], 1) == 2
    assert fit([(4, 1), (4, 2)], 1) == 1, "nothing varies that it could follow from"
    assert fit([(4, 7), (5, 7)], 1) == (Relation((0,)), Relation(offset=7))


def test_layouts():
    assert layout((4, 1, 3), (3, 99, 1)) == (1, 0, 2), "strides of axes of size 1 do not matter"
    assert layout((4, 3), (0, 1)) is None
    assert layout((0, 3), (5, 7)) == (0, 1)
    assert layout((), ()) == ()


# -- the compiler


def training_step(w, b, x, y):
    def loss(w, b):
        return ((gt.tanh(x @ w + b) - y) ** 2).mean()

    value, (gw, gb) = gt.value_and_grad(loss, argnums=(0, 1))(w, b)
    return value, w - 0.1 * gw, b - 0.1 * gb


@pytest.mark.slow
@pytest.mark.parametrize("how", ["undecorated", "jit"])
def test_a_hundred_batch_sizes_cost_at_most_three_compiles(how):
    features = 7 if how == "jit" else 9
    w, b = rows(features, 5), rows(5)
    step = gt.jit(training_step) if how == "jit" else training_step
    before = engine.tiering.compiles
    sizes = [64, 128, 0, 1, *range(2, 98), 5000]
    with gt.config(**({} if how == "jit" else {"hot_threshold": 2})):
        for n in sizes:
            x, y = rows(n, features), rows(n, 5)
            for _ in range(2):
                got = gt.eval(step(w, b, x, y))
            if n:  # the mean over nothing is NaN
                same(got, plain(training_step, w, b, x, y), 1e-4)
    assert 2 <= engine.tiering.compiles - before <= 3
    last = max((e for e in engine.programs.values() if 5000 in e.dims), key=lambda e: e.ledger.calls)
    assert last.tier == "compiled"
    assert len(last.open_sizes) == 2
    assert "any input" in str(gt.explain(str(last.signature)))


@pytest.mark.slow
def test_each_size_may_be_rare_and_all_together_hot():
    before = engine.tiering.compiles
    with gt.config(hot_threshold=8):
        for n in range(20, 60):
            x = rows(n, 11)
            got = gt.eval(gt.sinh(x).sum(0) * gt.cosh(x).mean())
            same(got, plain(lambda x: gt.sinh(x).sum(0) * gt.cosh(x).mean(), x), 1e-4)
    assert engine.tiering.compiles - before == 1
    entries = [e for e in engine.programs.values() if e.forms.symbolic and "cosh" in str(e.graph) and e.dims[-1] == 11]
    assert len(entries) >= 30


@pytest.mark.slow
def test_a_rate_and_a_size_that_both_change():
    def update(x, rate):
        return gt.arctan(x) * rate - gt.sinh(x).sum(0) / 3.0

    before = engine.tiering.compiles
    with gt.config(hot_threshold=4):
        for k in range(60):
            x, rate = rows(10 + k % 23, 13), 1.0 / (k + 1)
            check(update, x, rate, tolerance=1e-4)
    assert engine.tiering.compiles - before <= 3


# -- programs that are built to fool it


def reshaped_by_a_constant(x):
    """At 64 rows the constant looks like the number of rows."""
    return (gt.sinh(x).reshape((64, -1)) * 2 + 1).sum(1)


def two_dims(x, y):
    """Their sizes may be equal by accident."""
    return gt.sinh(x)[:, None] * gt.cosh(y)[None, :] + 1


def sliced(x):
    n = x.shape[0]
    return gt.sinh(x)[: n // 2 + (3 if n > 40 else 1)] * 2 - 1


def branching(x):
    """Another program from 30 rows on, of the same structure."""
    return gt.sinh(x)[: 8 if x.shape[0] < 30 else x.shape[0] - 8].sum(0) * 2


def times_its_size(x):
    return (gt.sinh(x) * x.shape[0] + x.shape[0] ** 2).sum(0)


FOOLING = [
    (reshaped_by_a_constant, [(64, 4), (128, 4), (192, 4), (64, 4), (320, 4), (64, 8), (96, 2)]),
    (two_dims, [(5,), (9,), (12,), (7,)]),
    (sliced, [(20,), (30,), (37,), (50,), (60,), (70,), (71,), (20,)]),
    (branching, [(12, 3), (20, 3), (40, 3), (25, 3), (64, 3), (16, 3), (38, 3)]),
    (times_its_size, [(4, 3), (5, 3), (6, 3), (17, 3), (2, 3), (1, 3), (0, 3)]),
]


@pytest.mark.slow
@pytest.mark.parametrize("function, shapes", FOOLING, ids=[f.__name__ for f, _ in FOOLING])
def test_programs_that_are_built_to_fool_it(function, shapes):
    with gt.config(compile=True):
        for shape in shapes:
            args = [rows(*shape)]
            if function is two_dims:
                args = [rows(shape[0]), rows(shape[0])]
            check(function, *args)
        if function is two_dims:
            before = engine.tiering.compiles
            for n, m in [(5, 8), (8, 5), (9, 9), (2, 30), (30, 31)]:
                check(function, rows(n), rows(m))
            assert engine.tiering.compiles - before <= 1


@pytest.mark.slow
def test_versions_are_capped_with_one_warning_that_names_the_dimension():
    @gt.jit
    def total(x):  # loops of any number of steps are compiled for one size at a time
        return gt.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, gt.sinh(s[1]) * 0.5), (gt.array(0), x))

    before = engine.tiering.compiles
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(2, 2 + MAX_VERSIONS + 3):
            x = rows(n, 3)
            same(gt.eval(total(x)), plain(total.__wrapped__, x))
    assert engine.tiering.compiles - before == MAX_VERSIONS
    (warning,) = [w for w in caught if w.category is CompileWarning]
    text = str(warning.message)
    assert "input 1 dim 0 was 9, now 10" in text and "it has loops or branches" in text
    assert warning.filename == __file__
    assert [e.tier for e in total.programs()] == ["compiled"] * MAX_VERSIONS + ["interpreted"] * 3
    assert "other sizes already" in gt.explain(total).program.verdict


@pytest.mark.slow
def test_a_structure_that_cannot_be_generalized_specializes(monkeypatch):
    def fail(name, request, *args):
        if request.relations is None:
            return original(name, request, *args)
        raise CompileError("symbols are not for me")

    original = artifacts.compile
    monkeypatch.setattr(artifacts, "compile", fail)
    before = engine.tiering.compiles
    with gt.config(compile=True):
        for n in (3, 4, 5):
            check(lambda x: gt.tan(gt.sinh(x)).sum(0), rows(n, 17))
    assert engine.tiering.compiles - before == 3


# -- random programs and schedules, without the compiler proper


STEPS = {
    "flatten": lambda x, n, m: x.reshape((-1,)),
    "fold": lambda x, n, m: x.reshape((n * m,)) if x.size == n * m else x * 2,
    "swap": lambda x, n, m: x.reshape((m, n)) if x.size == n * m else x + 1,
    "half": lambda x, n, m: x[: n // 2],
    "head": lambda x, n, m: x[: max(x.shape[0] - 1, 0)],
    "square only": lambda x, n, m: gt.permute_dims(x) if n == m else gt.tanh(x),
    "four": lambda x, n, m: x.reshape((4, -1)).sum(0) if x.size % 4 == 0 and x.size else x,
    "roll": lambda x, n, m: gt.roll(x, n // 2, 0),
    "twice": lambda x, n, m: gt.concat([x, x], 0),
    "scaled": lambda x, n, m: x * n - m,
    "mean": lambda x, n, m: x - x.mean() if x.size else x,
    "sum": lambda x, n, m: x.sum(0, keepdims=True) + x,
    "pad": lambda x, n, m: gt.pad(x.reshape((-1,)), (0, m)),
    "index": lambda x, n, m: x * gt.reshape(gt.arange(x.shape[0]), (-1,) + (1,) * (x.ndim - 1)),
    "outer": lambda x, n, m: x.reshape((-1,))[:4][:, None] * x.reshape((-1,))[None, :],
    "gradient": lambda x, n, m: gt.grad(lambda v: (gt.sin(v) * n).sum())(x),
    "row": lambda x, n, m: x[min(2, x.shape[0] - 1)] if x.ndim > 1 and x.shape[0] else x,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:program .* was compiled for 8 sizes:gtrace.errors.CompileWarning")  # some are
def test_random_programs_under_random_schedules_of_sizes(symbols):
    sizes = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16])

    @given(
        st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6),
        st.lists(st.tuples(sizes, sizes), min_size=3, max_size=8),
    )
    def check(names, schedule):
        def run(x):
            n, m = x.shape
            for name in names:
                x = STEPS[name](gt.sin(x), n, m)
                assume(x.ndim and x.ndim <= 2 and x.size < 5000)
            return x * 2

        with gt.config(compile=True):
            for n, m in schedule:
                x = gt.eval(gt.cos(gt.arange(n * m, dtype=gt.float64)).reshape((n, m)))
                got = np.asarray(run(x))
                np.testing.assert_allclose(got, np.asarray(plain(run, x)), rtol=1e-9, atol=1e-9)

    check()
    assert symbols


@pytest.mark.slow
@pytest.mark.parametrize("stride", [0, 1, 7])
def test_a_kernel_whose_axis_of_size_1_has_any_stride(stride):
    weights = torch.linspace(-1, 1, 12 * 8).as_strided((12, 1, 8), (8, stride, 1))

    @gt.jit(wait=True)
    def energy(x, w):
        y = gt.nn.conv1d(x[:, None], w, stride=4)
        return y[:, :6] ** 2 + y[:, 6:] ** 2

    for size in (5, 9, 7):
        x = torch.sin(torch.arange(size * 32.0)).reshape(size, 32)
        y = torch.nn.functional.conv1d(x[:, None], weights.contiguous(), stride=4)
        found = energy(gt.from_torch(x), gt.from_torch(weights))
        assert_close(found.to_torch(), y[:, :6] ** 2 + y[:, 6:] ** 2)
    assert energy.programs()[-1].open_sizes
