"""Programs at sizes that change from call to call, against eager torch in float64, in every form and two processes.

A program is drawn as a list of steps. Each step is written once, for both libraries: it reads sizes as programs do, by
``x.shape``, and makes numbers, slices, branches, loops and NumPy arrays of them. The sizes are drawn too: 0, 1 and 2,
sizes that are equal by accident, and sizes that come back.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.base.mechanisms import NATIVE_LOOPS
from gtrace.core.runtime.worker.client import worker

pytestmark = [
    pytest.mark.inductor,
    pytest.mark.filterwarnings("ignore:program .* was compiled for 8 sizes:gtrace.errors.CompileWarning"),  # some are
]

WIDTH = 3
"""Columns of the data, and one of the sizes that are drawn for rows."""

SIZES = (0, 1, 2, WIDTH, 4, 5, 6, 7, 8, 12, 17)


# -- the functions of both libraries that have other names or conventions


def theirs_scan(function, start, xs):
    rows = []
    for row in xs:
        start, y = function(start, row)
        rows.append(y)
    return start, torch.stack(rows) if rows else xs.new_zeros((0, *start.shape))


def theirs_loop(low, high, function, start):
    for k in range(low, high):
        start = function(k, start)
    return start


def theirs_segment_sum(x, ids, count):
    return x.new_zeros((count, *x.shape[1:])).index_add(0, ids, x)


def theirs_gradient(function, x):
    x = x if x.requires_grad else x.detach().requires_grad_()
    (found,) = torch.autograd.grad(function(x), x, create_graph=True, materialize_grads=True)
    return found


OURS = SimpleNamespace(
    sin=gt.sin, tanh=gt.tanh, exp=gt.exp, sqrt=gt.sqrt, where=gt.where, concat=lambda xs, axis: gt.concat(xs, axis),
    total=lambda x, axis=None: gt.sum(x, axis), largest=lambda x, axis: gt.max(x, axis),
    mean=lambda x, axis=None: gt.mean(x, axis), variance=lambda x, axis: gt.var(x, axis),
    softmax=gt.softmax, logsumexp=gt.logsumexp, cumsum=gt.cumsum, flip=gt.flip, roll=gt.roll, tril=gt.tril,
    pad=lambda x, rows: gt.pad(x, ((0, rows), (0, 0))), expand=gt.broadcast_to, arange=gt.arange, array=gt.array,
    along=gt.take_along_axis, scan=gt.scan, loop=gt.fori_loop, gradient=lambda f, x: gt.grad(f)(x),
    segment_sum=lambda x, ids, count: gt.segments.segment_sum(x, ids, count), relu=gt.relu,
)  # fmt: skip

THEIRS = SimpleNamespace(
    sin=torch.sin, tanh=torch.tanh, exp=torch.exp, sqrt=torch.sqrt, where=torch.where, concat=torch.cat,
    total=lambda x, axis=None: x.sum() if axis is None else x.sum(axis), largest=torch.amax,
    mean=lambda x, axis=None: x.mean() if axis is None else x.mean(axis),
    variance=lambda x, axis: (x - x.mean(axis, keepdim=True)).square().mean(axis),
    softmax=torch.softmax, logsumexp=torch.logsumexp, cumsum=torch.cumsum, roll=torch.roll, tril=torch.tril,
    flip=lambda x, axis: torch.flip(x, (axis,)), pad=lambda x, rows: torch.nn.functional.pad(x, (0, 0, 0, rows)),
    expand=torch.broadcast_to, arange=torch.arange, array=torch.as_tensor, along=torch.take_along_dim,
    scan=theirs_scan, loop=theirs_loop, gradient=theirs_gradient,
    segment_sum=theirs_segment_sum, relu=torch.relu,
)  # fmt: skip


# -- steps: from a matrix to a matrix


@attrs.frozen
class Data:
    """What all steps of a program read: rows x, weights w, other rows y, and for each row of x a row of y."""

    x: object
    w: object
    y: object
    ids: object

    @classmethod
    def of(cls, rows, others, convert):
        made = np.random.default_rng((rows, others))
        ids = made.integers(0, others, rows) if others else np.zeros(0, np.int64)
        floats = (made.normal(size=shape) for shape in ((rows, WIDTH), (WIDTH, WIDTH), (others, WIDTH)))
        return cls(*map(convert, floats), convert(ids))


def columns(lib, x, count=WIDTH):
    """The first columns, and the same number in each row of those that are missing."""
    missing = count - x.shape[1]
    if missing <= 0:
        return x[:, :count]
    return lib.concat([x, lib.expand(lib.array(np.arange(missing) / 8), (x.shape[0], missing))], 1)


def halves(lib, x, d):
    half = x.shape[0] // 2
    return x[:half] + x[x.shape[0] - half :]


def swap(lib, x, d):
    n, m = d.x.shape[0], d.y.shape[0]
    return x.reshape((m, n)) if x.shape[0] * x.shape[1] == n * m and n * m else x + 1


def four(lib, x, d):
    size = x.shape[0] * x.shape[1]
    return x.reshape((4, -1)) if 0 < size < 500 and size % 4 == 0 else x * 0.5


def small_or_large(lib, x, d):
    return lib.tanh(x) if x.shape[0] < 6 else lib.flip(x, 0) * 0.5


def rows_in_python(lib, x, d):
    for k in range(min(x.shape[0], 3)):
        x = x + x[k] / (k + 2)
    return x


def layer_norm(lib, x, d):
    if not x.shape[1]:
        return x
    centred = x - lib.mean(x, 1)[:, None]
    return centred / lib.sqrt(lib.variance(x, 1)[:, None] + 1.0)


def attention(lib, x, d):
    y = columns(lib, x)[:50]
    scores = y @ y.T / math.sqrt(x.shape[1] + 1.0)
    return lib.softmax(scores, -1) @ y


def causal(lib, x, d):
    y = columns(lib, x)[:50]
    seen = lib.array(np.tri(y.shape[0], dtype=bool))
    return lib.softmax(lib.where(seen, y @ y.T, -30.0), -1) @ y


def to_others(lib, x, d):
    """Rows to the rows of y that they belong to."""
    if x.shape[0] != d.x.shape[0] or not d.y.shape[0]:
        return x
    return lib.segment_sum(x, d.ids, d.y.shape[0]) / (1 + x.shape[0] // d.y.shape[0])


def messages(lib, x, d):
    """From row to row, along edges that follow from the data."""
    if not x.shape[0]:
        return x
    source = d.ids % x.shape[0]
    return lib.segment_sum(lib.tanh(x[source]), (source * 2 + 1) % x.shape[0], x.shape[0]) / 3 + x


def in_threes(lib, x, d):
    n = x.shape[0]
    return lib.segment_sum(x, lib.arange(n) // 3, -(-n // 3))


def beside_others(lib, x, d):
    """Each row with each row of y: sizes that may be equal by accident."""
    y = columns(lib, x)[:4]
    return (lib.tanh(y[:, None] * d.y[None])).reshape((y.shape[0] * d.y.shape[0], WIDTH))


def expanded(lib, x, d):
    sums = lib.total(x, 0)[None, :50] / (1 + x.shape[0])
    return lib.expand(sums, (d.y.shape[0], sums.shape[1]))


def recurrent(lib, x, d):
    last, seen = lib.scan(lambda c, row: (lib.tanh(c @ d.w + row), c * row), d.w[0], columns(lib, x)[:50])
    return lib.concat([seen, last[None]], 0)


def powers(lib, x, d):
    return lib.loop(0, x.shape[0] % 5, lambda k, c: lib.sin(c + 0.5), x)


def of_a_table(lib, x, d):
    return x * {0: 0.5, 1: 0.25}.get(x.shape[0] % 3, 1.0) + float(f"0.{x.shape[0]}")


def gradient_inside(lib, x, d):
    return lib.gradient(lambda v: lib.total(lib.sin(v) * (v.shape[0] % 7)), x)


STEPS = {
    "linear": lambda lib, x, d: columns(lib, x) @ d.w,
    "gram": lambda lib, x, d: (columns(lib, x).T @ x) / (1 + x.shape[0]),
    "residual": lambda lib, x, d: x + lib.relu(columns(lib, x) @ d.w) if x.shape[1] == WIDTH else lib.tanh(x),
    "square only": lambda lib, x, d: x.T if x.shape[0] == x.shape[1] else lib.tanh(x),
    "transposed": lambda lib, x, d: x.T,
    "flat": lambda lib, x, d: x[:20].reshape((-1, 1)) if x.shape[0] * x.shape[1] else x,
    "row": lambda lib, x, d: x[:20].reshape((1, min(x.shape[0], 20) * x.shape[1])),
    "swap": swap,
    "four": four,
    "halves": halves,
    "head": lambda lib, x, d: x[: max(x.shape[0] - 1, 0)],
    "every other": lambda lib, x, d: x[::2],
    "roll": lambda lib, x, d: lib.roll(x, x.shape[0] // 2, 0),
    "flip": lambda lib, x, d: lib.flip(x, 0),
    "twice": lambda lib, x, d: lib.concat([x[:20], x[:20] * 0.5], 0),
    "with others": lambda lib, x, d: lib.concat([columns(lib, x)[:20], d.y], 0),
    "padded": lambda lib, x, d: lib.pad(x[:20], d.y.shape[0]),
    "expanded": expanded,
    "as many": lambda lib, x, d: x * (x.shape[0] / (x.shape[1] + x.shape[0] + 1)) - d.y.shape[0] / 10,
    "root of the size": lambda lib, x, d: x / math.sqrt(1 + x.shape[0] * x.shape[1]),
    "mean": lambda lib, x, d: x - lib.mean(x) if x.shape[0] * x.shape[1] else x,
    "means of columns": lambda lib, x, d: x - lib.mean(x, 0) if x.shape[0] else x,
    "largest": lambda lib, x, d: x - lib.largest(x, 0) if x.shape[0] else x,
    "places": lambda lib, x, d: x + (x + lib.arange(x.shape[0])[:, None]) / (x.shape[0] + 1),
    "NumPy": lambda lib, x, d: x * lib.array(np.cos(np.arange(x.shape[0]))[:, None]),
    "first half": lambda lib, x, d: lib.where((lib.arange(x.shape[0]) < x.shape[0] // 2)[:, None], x, x * 0.5),
    "positive": lambda lib, x, d: lib.where(x > 0, x, lib.exp(x) - 1),
    "softmax": lambda lib, x, d: lib.softmax(x, 0) if x.shape[0] else x,
    "logsumexp": lambda lib, x, d: x - lib.logsumexp(x, 1)[:, None] if x.shape[1] else x,
    "cumsum": lambda lib, x, d: lib.cumsum(x, 0) / (1 + x.shape[0]),
    "along": lambda lib, x, d: lib.along(x, (lib.arange(x.shape[0])[:, None] + lib.arange(x.shape[1])) % x.shape[0], 0)
    if x.shape[0] else x,
    "lower": lambda lib, x, d: lib.tril(x),
    "small or large": small_or_large,
    "rows in Python": rows_in_python,
    "layer norm": layer_norm,
    "attention": attention,
    "causal": causal,
    "to others": to_others,
    "messages": messages,
    "in threes": in_threes,
    "beside others": beside_others,
    "recurrent": recurrent,
    "powers": powers,
    "of a table": of_a_table,
    "gradient inside": gradient_inside,
}  # fmt: skip


# -- programs


@attrs.frozen
class Program:
    """What is computed: steps, so many times over, and of their result the value, the gradients or second gradients."""

    steps: tuple[str, ...]
    times: int = 1
    order: int = 0

    def result(self, lib, d):
        x = d.x
        for name in self.steps * self.times:
            x = STEPS[name](lib, lib.sin(x), d)
        return x

    def loss(self, lib, d):
        x = self.result(lib, d)
        return lib.total(lib.sin(x)) / (1 + x.shape[0] * x.shape[1])

    def ours(self, x, w, y, ids):
        return self.run(
            lambda x, w: self.result(OURS, Data(x, w, y, ids)), lambda x, w: self.loss(OURS, Data(x, w, y, ids)), x, w
        )

    def lifted(self):
        """The function whose steps are those of torch, on Arrays."""
        result, loss = (
            gt.lift(lambda *args, part=part: part(THEIRS, Data(*args))) for part in (self.result, self.loss)
        )
        return lambda x, w, y, ids: self.run(lambda x, w: result(x, w, y, ids), lambda x, w: loss(x, w, y, ids), x, w)

    def run(self, result, loss, x, w):
        if self.order == 0:
            return [result(x, w)]
        if self.order == 1:
            value, slopes = gt.value_and_grad(loss, argnums=(0, 1))(x, w)
            return [value, *slopes]

        def steepness(x, w):
            value, slope = gt.value_and_grad(loss)(x, w)
            return gt.sum(gt.sin(slope)) + value

        return list(gt.grad(steepness, argnums=(0, 1))(x, w))

    def theirs(self, rows, others):
        d = Data.of(rows, others, torch.as_tensor)
        if self.order == 0:
            return [self.result(THEIRS, d).detach().numpy()]
        leaves = [d.x.requires_grad_(), d.w.requires_grad_()]
        value = self.loss(THEIRS, d)
        again = self.order == 2
        slopes = torch.autograd.grad(value, leaves, create_graph=again, materialize_grads=True)
        found = [value, *slopes]
        if again:
            steepness = slopes[0].sin().sum() + value
            found = list(torch.autograd.grad(steepness, leaves, materialize_grads=True))
        return [x.detach().numpy() for x in found]

    def check(self, function, sizes, known):
        """Compare one call. `known` keeps what torch found."""
        if sizes not in known:
            known[sizes] = self.theirs(*sizes)
        d = Data.of(*sizes, gt.array)
        found = function(d.x, d.w, d.y, d.ids)
        for got, expected in zip(map(np.asarray, found), known[sizes], strict=True):
            assert got.shape == expected.shape, (self, sizes)
            scale = 1.0 + np.abs(expected).max(initial=0.0)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8 * scale, err_msg=f"{self} at {sizes}")


programs = st.builds(
    Program,
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6).map(tuple),
    st.sampled_from([1, 1, 1, 4]),
    st.sampled_from([0, 1, 1, 2]),
)
schedules = st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES)), min_size=3, max_size=8)


def check_run(program, schedule, wrap=lambda function: function, calls=1, lifted=False):
    """Call a program at each size of a schedule, and compare each call."""
    function, known = wrap(program.lifted() if lifted else program.ours), {}
    for sizes in schedule:
        for _ in range(calls):
            program.check(function, sizes, known)
    program.check(function, schedule[0], known)  # it comes back


# -- in one process


@given(programs, schedules)
def test_undecorated_as_users_run_it(program, schedule):
    check_run(program, schedule)


@given(programs, schedules)
def test_undecorated_and_never_compiled(program, schedule):
    with gt.config(auto_compile=False):
        check_run(program, schedule)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [lambda function: function, lambda f: gt.jit(f, backend="eager")], ids=["plain", "jit"]
)
def test_functions_of_torch(wrap):
    @given(programs.filter(lambda program: "gradient inside" not in program.steps), schedules)
    def check(program, schedule):
        check_run(program, schedule, wrap, lifted=True)

    check()


WAYS = {
    "compiled": ({"compile": True}, lambda function: function, 1),
    "hot": ({"hot_threshold": 2}, lambda function: function, 2),
    "jit": ({}, gt.jit, 1),
}
"""Settings, a decorator, and how often each size is called."""


@pytest.mark.parametrize("way", ["hot", *(pytest.param(way, marks=pytest.mark.slow) for way in ("compiled", "jit"))])
def test_compiled_with_open_sizes(symbols, monkeypatch, way):
    monkeypatch.setattr(NATIVE_LOOPS, "on", False)  # which are compiled in earnest: loops run from Python
    changed, wrap, calls = WAYS[way]

    @given(programs, schedules)
    def check(program, schedule):
        with gt.config(**changed):
            check_run(program, schedule, wrap, calls)

    check()
    assert symbols, "sizes were left open"


# -- compiled in earnest, and in a second process


EARNEST = (
    Program(("linear", "layer norm", "root of the size", "as many"), order=1),
    Program(("messages", "attention", "to others"), order=1),
    Program(("with others", "halves", "mean", "expanded", "twice")),
    Program(("recurrent", "first half", "largest"), order=1),
    Program(("residual", "softmax", "cumsum", "in threes"), order=2),
    Program(("residual", "messages", "layer norm"), times=4, order=1),
)
SCHEDULE = ((6, 4), (8, 4), (WIDTH, WIDTH), (12, 7), (1, 5), (7, 7), (2, 1), (6, 4), (0, 2), (17, 12))


@pytest.mark.long
@pytest.mark.parametrize("program", EARNEST, ids=lambda program: " ".join(program.steps))
@pytest.mark.parametrize("way", ["compiled", "jit"])
def test_compiled_in_earnest(program, way):
    changed, wrap, calls = WAYS[way]
    with gt.config(**changed):
        check_run(program, SCHEDULE, wrap, calls)


def run_in_process(number: int) -> None:
    """Run programs as users do, at the sizes from this one on, while they are compiled and when they are."""
    wraps = (lambda function: function, gt.jit)
    ways = [(program, wrap(program.ours), {}) for program in EARNEST[2:4] for wrap in wraps]
    for _ in range(2):
        for sizes in SCHEDULE[number:7]:
            for program, function, known in ways:
                program.check(function, sizes, known)
        assert worker.wait(300)


@pytest.mark.slow
def test_a_second_process_with_the_same_store(tmp_path):
    roots = [Path(gt.__file__).parents[1], Path(__file__).parent]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {
        "GT_BACKGROUND": "1", "GT_CACHE_DIR": str(tmp_path), "GT_HOTPATH_THRESHOLD": "2", "GT_COMPILE_SHARE": "1",
        "GT_COMPILE_AFTER": "0",
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
    }  # fmt: skip
    for number in (0, 2):
        command = [sys.executable, "-c", f"import test_sizes; test_sizes.run_in_process({number})"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
