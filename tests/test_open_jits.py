"""Jitted functions with open sizes are not called for new ones, and decide as a call would."""

import concurrent.futures
import gc
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_compiler import made_up

import gtrace as gt
from gtrace.core.base.open_numbers import Sizes
from gtrace.core.runtime.engine import engine
from gtrace.core.trace import size_reads
from gtrace.core.trace.size_reads import Size, noted

pytestmark = pytest.mark.inductor


@pytest.fixture
def compiler(monkeypatch):
    with made_up(monkeypatch) as made:
        yield made


def drawn(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def distinct(rng, count, least, most):
    return rng.permutation(np.arange(least, most))[:count].tolist()


class Counted:
    """A jitted function that counts its calls, each compared with the function itself."""

    def __init__(self, function):
        self.function, self.calls, self.counting = function, 0, True

        def counted(*args):
            self.calls += self.counting
            return function(*args)

        self.jitted = gt.jit(counted)

    def check(self, *args):
        got = gt.tree.leaves(self.jitted(*map(gt.array, args)))
        with gt.config(auto_compile=False):
            expected = gt.tree.leaves(self.function(*map(gt.array, args)))
        assert len(got) == len(expected)
        for x, y in zip(got, expected, strict=True):
            assert (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-4, atol=2e-4)

    def open(self, compiler, make, sizes):
        """Call it at these sizes; return how many calls of the function the last ten took."""
        for k, size in enumerate(sizes):
            before = self.calls
            self.check(*make(*size))
            compiler.work(9)
            if k >= 20 and self.calls == before:
                return True
        return False


def sizes_of(seed, count=80, least=10, most=90):
    """Return pairs of sizes, each once: a call of sizes that were met would not call the function in any case."""
    rng = np.random.default_rng(seed)
    drawn = dict.fromkeys(tuple(distinct(rng, 2, least, most)) for _ in range(2 * count))
    return list(drawn)[:count]


def chain(x, length):
    for _ in range(length):
        x = gt.sinh(x * 0.25)
    return x


def shapes_of_results(x, y):
    """Reads sizes of arguments and of results, and computes with them."""
    z = gt.concatenate([x, y])
    n, d = z.shape
    half = x.shape[0] // 2
    flat = x.reshape((x.size,))
    last = flat[flat.shape[0] - d :].sum() if n > 4 else flat.sum()
    return chain(z[:half], 3).sum(0) / half, last, gt.zeros((len(x.shape), d)), gt.arange(y.shape[0] - 1).sum()


def means(x, y):
    return (chain(x, 4) ** 2).mean() + (chain(y, 2)).var(), gt.cumsum(x, 0) @ y.mean(0) / x.shape[0]


def pairs(n, m):
    return drawn(n, 5), drawn(m, 5)


def updates(x, y):
    """Updates in place of writes, and random numbers."""
    key = gt.random.split(gt.random.key(0), 2)[1]
    z = chain(x, 5).at[0].set(2.0).at[-1].add(y[0])
    return z * gt.random.uniform(key, z.shape), y.at[:, 1].multiply(3.0)


CASES = {"shapes of results": shapes_of_results, "means": means, "updates": updates}


@pytest.mark.parametrize("name", CASES)
def test_a_jitted_function_is_not_called_for_new_sizes(compiler, name):
    f = Counted(CASES[name])
    assert f.open(compiler, pairs, sizes_of(1))
    before, by_code = f.calls, engine.sizes.by_code
    for size in sizes_of(2, 12, 95, 140):
        f.check(*pairs(*size))
    assert f.calls - before <= 4 and engine.sizes.by_code - by_code >= 8


BRANCHES = {
    "greater": lambda n: n > 100,
    "multiple": lambda n: n % 37 == 0,
    "equal": lambda n: n == 97,
    "a float of it": lambda n: 0.5 * n > 50.2,
    "a root": lambda n: math.sqrt(abs(n)) > 10.01,
    "a table": lambda n: n in {97, 104, 119},
    "its digits": lambda n: str(n).endswith("3"),
    "the largest": lambda n: max(n % 23, 1) == 1,
    "bits": lambda n: n & 16 == 16,
    "a loop": lambda n: len([k for k in range(n) if k == 103]) == 1,
    "numpy": lambda n: bool((np.arange(n) == 103).any()),
}

NOTED = {"equal", "multiple", "the largest"}
"""Decisions that are conditions on the size. The others fix it, or differ at sizes that stand in."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCHES)
def test_what_python_decides_by_a_size_is_decided_again(compiler, name):
    decide = BRANCHES[name]

    def function(x, y):
        z = chain(gt.concatenate([x, y]), 3 + len(name))
        return z.sum() * (2.0 if decide(x.shape[0]) else -1.0)

    f = Counted(function)
    f.open(compiler, pairs, sizes_of(len(name)))
    before, sizes = f.calls, (*range(95, 125), 203)
    assert len({decide(n) for n in sizes}) == 2
    for n in sizes:
        f.check(*pairs(n, 44))
    assert (f.calls - before < 6) == (name in NOTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCHES)
def test_what_python_decides_by_the_size_of_a_result_is_decided_again(compiler, name):
    decide = BRANCHES[name]

    def function(x, y):
        z = chain(gt.concatenate([x, y]), 4 + len(name))
        return z.sum() * (2.0 if decide(z.shape[0] - 40) else -1.0) + z.shape[1]

    f = Counted(function)
    f.open(compiler, pairs, sizes_of(len(name)))
    before = f.calls
    for n in range(93, 125):
        f.check(*pairs(n, 42))
    assert (f.calls - before < 6) == (name in NOTED)


def test_a_length_and_a_count_are_read_too(compiler):
    def function(x, y):
        z = chain(x, 17)
        scale = 3.0 if len(x) > 100 else 1.0
        return z.sum() * scale + (y.sum() if y.size % 2 else y.max())

    f = Counted(function)
    f.open(compiler, pairs, sizes_of(3))
    before = f.calls
    for n in range(96, 106):
        f.check(*pairs(n, n - 50))
    assert f.calls - before == 10, "Python gets a plain int of len, so that fixes the size"


def test_arrays_of_the_user_that_depend_on_sizes_are_made_anew(compiler):
    def function(x, y):
        mask = np.tril(np.ones((x.shape[0], x.shape[0]), np.float32))
        return chain(mask @ x, 18).sum(0) + y.sum(0)

    f = Counted(function)
    assert not f.open(compiler, pairs, sizes_of(4, 40))


def test_constants_from_outside_are_those_of_the_call(compiler):
    weights = gt.array(drawn(5, 5))
    table = drawn(5)

    def function(x, y):
        return chain(x @ weights + table, 19).sum(0), y.sum()

    f = Counted(function)
    assert f.open(compiler, pairs, sizes_of(5))
    for size in sizes_of(6, 10):
        f.check(*pairs(*size))


def test_a_function_that_raises_for_some_sizes_still_does(compiler):
    def function(x, y):
        if x.shape[0] > 100:
            raise ValueError(f"{x.shape[0]} rows")
        return chain(x, 20).sum(0) + y.sum(0)

    f = Counted(function)
    f.open(compiler, pairs, sizes_of(7))
    for n in (95, 99, 100):
        f.check(*pairs(n, 33))
    for n in (101, 110, 200):
        with pytest.raises(ValueError, match=f"{n} rows"):
            f.jitted(*map(gt.array, pairs(n, 33)))


def test_audits_call_the_function(compiler):
    f = Counted(lambda x, y: chain(x, 21).sum(0) - y.sum(0))
    assert f.open(compiler, pairs, sizes_of(8))
    before = f.calls
    with gt.config(audit=1.0):
        for size in sizes_of(9, 6):
            f.check(*pairs(*size))
    assert f.calls - before >= 6, "every call is compared"


def test_sizes_that_repeat_get_programs_of_their_own(compiler):
    f = Counted(lambda x, y: chain(x, 22).sum(0) - y.sum(0))
    assert f.open(compiler, pairs, sizes_of(10))
    before = f.calls
    for _ in range(20):
        f.check(*pairs(55, 77))
    assert f.calls == before + 1


def test_what_runs_in_a_garbage_collection_is_no_step_of_the_function(compiler):
    f = Counted(lambda x, y: chain(x, 23).sum(0) - y.sum(0))
    collections, before = [], gc.get_threshold()

    def collected(phase, info):  # as hypothesis has one
        collections.append(phase)
        for _ in range(len(collections) % 7):
            pass

    gc.callbacks.append(collected)
    gc.set_threshold(20)  # several in each trace
    try:
        assert f.open(compiler, pairs, sizes_of(11))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    assert collections


OPERATIONS = {
    "n + m": lambda n, m: n + m, "n - m": lambda n, m: n - m, "2 * n": lambda n, m: 2 * n, "7 - n": lambda n, m: 7 - n,
    "n // 3": lambda n, m: n // 3, "n % m": lambda n, m: n % m if m else 0, "max": max, "n ** 2": lambda n, m: n**2,
    "n * m + 1": lambda n, m: n * m + 1, "-n": lambda n, m: -n, "n / m": lambda n, m: n / m if m else 0,
    "divmod": lambda n, m: divmod(n, m) if m else 0, "n != m": lambda n, m: n != m, "hash": lambda n, m: {n: m},
    "n < m": lambda n, m: n < m, "n == 12": lambda n, m: n == 12, "text": lambda n, m: f"{n}",
    "bool": lambda n, m: bool(n - 12), "float": lambda n, m: float(n), "n > 5.5": lambda n, m: n > 5.5,
    "range": lambda n, m: list(range(n)), "index": lambda n, m: [3] * n, "round": lambda n, m: round(n),
    "length": lambda n, m: n.bit_length(), "5 // n": lambda n, m: 5 // n if n else 0, "n & 4": lambda n, m: n & 4,
    "1.0 * n": lambda n, m: 1.0 * n,
}  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4),
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40),
)  # fmt: skip
def test_sizes_for_which_nothing_was_noted_give_the_same_decisions(names, n, m, other, another):
    """Plain integers and noting ones give the same; what was noted tells for which sizes."""

    def decided(n, m):
        made = []
        for name in names:
            found = OPERATIONS[name](n, m)
            made.append(found if isinstance(found, (bool, str, float, dict, tuple, list)) else bool(found > m))
            if isinstance(found, int) and not isinstance(found, bool):
                n, m = m, found
        return repr(made)

    sizes = Sizes()
    numbers = sizes.open(n), sizes.open(m)
    assert decided(*map(Size, numbers)) == decided(n, m)
    if sizes.program([])(other, another) is not None:
        assert decided(other, another) == decided(n, m)


def test_only_code_outside_of_gtrace_is_seen():
    x = gt.ones((3, 4))
    with noted() as reads:
        gt.concatenate([x, x]).reshape(2, -1)  # gtrace reads shapes too
        assert reads.log == []
        assert (x.shape, x.size, len(x)) == ((3, 4), 12, 3)
    assert reads.log == [(3, 4), (12,), (3,)] and reads.leaks == []
    assert x.shape == (3, 4) and len(reads.log) == 3
    sizes = Sizes()
    n = sizes.open(3)
    with noted([(n, n.wrap_int(4))]) as reads:
        rows, columns = x.shape
        assert type(rows) is Size and isinstance(rows, int) and columns == 4 and type(columns) is int
        assert reads.leaks == []
        assert x.shape == (3, 4)
    assert reads.leaks == ["other reads"]
    assert size_reads.Array.shape.fget(x) == (3, 4)


def in_a_thread(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x.shape[0] % 19 == 0).result()


def caught(x):
    try:
        x @ gt.ones((x.shape[1] + 1, 2))
    except gt.ShapeError as error:
        return "[95,5]" in str(error) or "[57,5]" in str(error)


LEAKS = {
    "nbytes": lambda x: x.nbytes // 20 % 19 == 0,
    "aval": lambda x: x.aval.shape[0] % 19 == 0,
    "make_graph": lambda x: "95" in str(gt.make_graph(lambda a: a * 2)(x)),
    "eval_shape": lambda x: gt.eval_shape(lambda a: a * 2, x).shape[0] % 19 == 0,
    "a struct": lambda x: gt.ShapeDtypeStruct(x.shape, x.dtype).shape[0] % 19 == 0,
    "its class": lambda x: type(x.shape[0]) is int and x.shape[0] % 19 == 0,
    "a thread": in_a_thread,
    "torch": lambda x: torch.broadcast_shapes(x.shape, (1, 5))[0] % 19 == 0,
    "torch's names": lambda x: x.numel() // 5 % 19 == 0,
    "gtrace.numpy": lambda x: gt.numpy.shape(x)[0] % 19 == 0,
    "an error": caught,
    "a division": lambda x: 100 // (x.shape[0] - 9) > 3,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_what_nothing_notes_keeps_the_function_called(compiler, name):
    decide = LEAKS[name]

    def function(x, y):
        return chain(gt.concatenate([x, y]), 5 + len(name)).sum() * (2.0 if decide(x) else -1.0)

    f = Counted(function)
    f.open(compiler, pairs, sizes_of(len(name), 60, 20))
    before, sizes = f.calls, (57, 76, 95, 114, 133, 19, 38, 60, 96)
    for n in sizes:
        f.check(*pairs(n, 44))
    assert f.calls - before == len(sizes) or name == "a division"
    if name == "a division":
        with pytest.raises(ZeroDivisionError):
            f.check(*pairs(9, 44))


def test_what_a_function_keeps_of_sizes_is_plain(compiler):
    kept = {}

    def function(x, y):
        kept["rows"], kept["sum"] = x.shape[0], x.shape[0] + y.shape[0]
        return chain(x, 29).sum() + y.sum() * 2

    f = Counted(function)
    assert f.open(compiler, pairs, sizes_of(14))
    assert all(type(n) is int for n in kept.values())


@pytest.mark.slow
def test_functions_that_are_jitted_inside_are_seen_too(compiler):
    inner = gt.jit(lambda z: z.sum() * (2.0 if z.shape[0] % 19 == 0 else -1.0))
    for k, outside in enumerate((gt.tanh, gt.cos, gt.exp)):
        f = Counted(lambda x, y, k=k, outside=outside: outside(chain(x, 24 + k)).sum() + inner(y) + inner(x))
        f.open(compiler, pairs, sizes_of(13, 60, 20))
        for n in (57, 76, 95, 19, 38):
            before = f.calls
            f.check(*pairs(n, 44))
            f.check(*pairs(44, n))
            assert f.calls == before + 2
        for n in (60, 96):
            f.check(*pairs(n, 44))


def test_a_jitted_step_equals_torch_at_ever_new_sizes(compiler):
    def loss(w, x):
        return ((gt.tanh(x @ w) @ w) ** 2).mean() + chain(x, 23).sum() / x.shape[0]

    step = gt.jit(gt.value_and_grad(loss))
    w = drawn(6, 6)
    for k, (n, _) in enumerate(sizes_of(11, 60)):
        x = drawn(n, 6)
        value, slope = step(gt.array(w), gt.array(x))
        tw, tx = torch.tensor(w, dtype=torch.float64, requires_grad=True), torch.tensor(x, dtype=torch.float64)
        total = ((torch.tanh(tx @ tw) @ tw) ** 2).mean()
        (expected,) = torch.autograd.grad(total, tw)
        for _ in range(23):
            tx = torch.sinh(tx * 0.25)
        assert float(value) == pytest.approx(total.item() + tx.sum().item() / n, rel=1e-4)
        np.testing.assert_allclose(np.asarray(slope), expected.numpy(), rtol=1e-3, atol=1e-5)
        compiler.work(9)
        del k
    assert engine.sizes.by_code > 0
