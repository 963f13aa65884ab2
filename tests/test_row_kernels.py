"""Rows in compiled code: chosen, added and reduced by C++ of our own, and what is made faster in Inductor's kernels."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.inductor import row_kernels as rows
from gtrace.core.backends.inductor.operators import NATIVE
from gtrace.core.backends.native.library import FLAGS
from gtrace.core.backends.toolchain import compiler_path
from gtrace.testing import assert_close

SOURCE = """
#include "product.h"
#include "rows.h"
extern "C" {{
void threads(int64_t n) {{ omp_set_num_threads(n); }}
{functions}
}}
"""

FUNCTIONS = """
bool take_{T}(const {T}* x, const int64_t* p, {T}* out, int64_t r, int64_t w, int64_t n, bool clipped) {{
  return take_rows(x, p, out, r, w, n, clipped);
}}
bool add_{T}(const {T}* x, const {T}* u, const int64_t* p, {T}* out, int64_t r, int64_t w, int64_t n) {{
  return add_rows(x, u, p, out, r, w, n);
}}
void reduce_{T}(const {T}* x, {T}* a, {T}* b, {T}* c, {T}* d, {T}* e, {T}* f, int64_t r, int64_t w) {{
  reduce_matrix(x, r, w, Reduction<{T}, SUM, ONE>{{a, 1}}, Reduction<{T}, SQUARES, COLUMNS>{{b, double(r)}},
                Reduction<{T}, MIN, ROWS>{{c, 1}}, Reduction<{T}, MAX, COLUMNS>{{d, 1}},
                Reduction<{T}, SUM, ROWS>{{e, double(w)}}, Reduction<{T}, MAX, ONE>{{f, 1}});
}}
"""

TYPES = {"float": np.float32, "double": np.float64}

pytestmark = pytest.mark.skipif(compiler_path() is None, reason="needs a C++ compiler")


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The C++ as a library, for any sizes."""
    folder = tmp_path_factory.mktemp("rows")
    functions = "".join(FUNCTIONS.format(T=name) for name in TYPES)
    (folder / "rows.cpp").write_text(SOURCE.format(functions=functions))
    flags = [*FLAGS, "-O1", "-fopenmp", f"-I{NATIVE}"]
    subprocess.run([compiler_path(), *flags, "-o", folder / "rows.so", folder / "rows.cpp"], check=True)
    found = ctypes.CDLL(str(folder / "rows.so"))
    before = torch.get_num_threads()
    yield found
    found.threads(before)


def call(function, *args):
    """Call a function with arrays and integers; returns its truth value."""
    function.restype = ctypes.c_bool
    return function(*[ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in args])


SIZES = [(1, 1, 1), (3, 5, 0), (7, 16, 40), (50, 33, 700), (300, 70, 999), (1000, 1, 20_000)]


@pytest.mark.slow
@pytest.mark.parametrize("own", TYPES)
@pytest.mark.parametrize(("height", "width", "count"), SIZES)
def test_taken_and_added_at_any_place_by_any_number_of_threads(library, own, height, width, count):
    x, u = normal(height, width, dtype=TYPES[own]), normal(count, width, seed=1, dtype=TYPES[own])
    if count > 30:
        u[5], u[7, 0], x[0, 0] = np.inf, np.nan, -np.inf
    inside = np.random.default_rng(2).integers(-height, height, count)
    places = np.where(np.random.default_rng(3).random(count) < 0.1, 3 * inside, inside)  # some outside
    places[: count // 100] = np.iinfo(np.int64).max
    all_inside = bool(((places >= -height) & (places < height)).all())
    kept = (places >= -height) & (places < height)
    for threads in (1, 2, 3, 8):
        library.threads(threads)
        out = np.empty_like(u)
        assert call(getattr(library, f"take_{own}"), x, places, out, height, width, count, 1)
        np.testing.assert_array_equal(out, x[np.clip(places, -height, height - 1)])
        assert call(getattr(library, f"take_{own}"), x, inside, out, height, width, count, 0)
        np.testing.assert_array_equal(out, x[inside])
        assert call(getattr(library, f"take_{own}"), x, places, out, height, width, count, 0) == all_inside
        for start in (x, np.zeros_like(x)):
            want, out = start.copy(), np.empty_like(x)
            np.add.at(want, places[kept], u[kept])
            given = x if start is x else 0
            assert call(getattr(library, f"add_{own}"), given, u, places, out, height, width, count) == all_inside
            np.testing.assert_array_equal(out, want)  # in the same order


@pytest.mark.parametrize("own", TYPES)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (9, 3), (33, 64), (100, 1000), (257, 1100), (70, 2049)])
def test_reductions_of_one_matrix(library, own, height, width):
    x = normal(height, width, dtype=TYPES[own]) + 10
    if height > 50:
        x[2, 3], x[40, width - 1], x[7, 5] = np.inf, np.nan, -np.inf
    shapes = ((1,), (width,), (height,), (width,), (height,), (1,))
    wide = x.astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        want = [wide.sum(), (wide * wide).mean(0), x.min(1), x.max(0), wide.mean(1), x.max()]
    first = None
    for threads in (1, 2, 3, 8):
        library.threads(threads)
        results = [np.empty(shape, x.dtype) for shape in shapes]
        call(getattr(library, f"reduce_{own}"), x, *results, height, width)
        first = results if first is None else first
        for got, same, right in zip(results, first, want, strict=True):
            np.testing.assert_array_equal(got, same)
            right = np.broadcast_to(right.astype(x.dtype), got.shape)
            assert_close(got, right, steps=4, scale=np.abs(right))


# -- in programs

WIDTHS = (1, 40, 64, 203)


def program(table, wide, places, loose, u, matrix, lines):
    gathered = table.at[places].get(mode="clip")
    pullback = gt.grad(lambda t: (gt.take(t, loose, axis=0, mode="clip") * u).sum())(table)
    return {
        "taken": gathered,
        "taken as float64": wide.at[places].get(mode="clip"),
        "added": table.at[loose].add(u),
        "added inside": table.at[places].add(u, mode="promise_in_bounds"),
        "pulled back": pullback,
        "reduced": [matrix.sum(), matrix.mean(0), matrix.max(1), (matrix * matrix).sum(1), matrix.min((0, 1))],
        "reduced as float64": [wide.sum(0), wide.max(1, keepdims=True)],
        "softmax": [gt.nn.softmax(x, axis=-1) for x in lines],
        "normalized": [(x - x.mean(1, keepdims=True)) / gt.sqrt(gt.var(x, 1, keepdims=True) + 1e-5) for x in lines],
        "exp": gt.exp(lines[-1] * 40) + 1.0,
    }


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A program that has all of it: its arguments, results and the operators that it uses."""
    rng = np.random.default_rng(5)
    places = rng.integers(-200, 200, 500)
    loose = places * rng.integers(1, 3, 500)
    lines = [normal(60, width, seed=width) for width in WIDTHS]
    lines[1][3, 4], lines[2][5, 6], lines[3][7], lines[3][8, 9] = np.inf, np.nan, -np.inf, -np.inf
    args = (normal(200, 96), normal(200, 96, dtype=np.float64), places, loose, normal(500, 96, seed=1),
            normal(128, 200, seed=2), lines)  # fmt: skip
    used = []
    with pytest.MonkeyPatch.context() as patch:
        use = rows._Rewriter.use
        patch.setattr(rows._Rewriter, "use", lambda self, op, *a: (used.append(op.op), use(self, op, *a))[1])
        with gt.config(background=False, native=False, cache_dir=str(tmp_path_factory.mktemp("programs"))):
            f = gt.jit(program, wait=True)
            results = gt.tree.map(lambda y: y.numpy(), f(*gt.tree.map(gt.array, args)))
    return args, results, [str(op).split(".")[1] for op in used]


@pytest.mark.slow
def test_rows_in_a_program(compiled):
    (table, wide, places, loose, u, matrix, _), results, used = compiled
    kept = (loose >= -200) & (loose < 200)
    np.testing.assert_array_equal(results["taken"], table[places])
    np.testing.assert_array_equal(results["taken as float64"], wide[places])
    added, inside, pulled = table.copy(), table.copy(), np.zeros_like(table)
    np.add.at(added, loose[kept], u[kept])
    np.add.at(inside, places, u)
    np.add.at(pulled, np.clip(loose, 0, 199), u)
    np.testing.assert_array_equal(results["added"], added)
    np.testing.assert_array_equal(results["added inside"], inside)
    np.testing.assert_allclose(results["pulled back"], pulled, rtol=1e-5, atol=1e-5)
    x = matrix.astype(np.float64)
    for got, want in zip(results["reduced"], [x.sum(), x.mean(0), x.max(1), (x * x).sum(1), x.min()], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)
    for got, want in zip(results["reduced as float64"], [wide.sum(0), wide.max(1, keepdims=True)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-12)
    assert sum(name.startswith("reduce_float") for name in used) == 1
    assert {"take_rows_float", "take_rows_double", "add_rows_float", "sum_rows_float"} <= set(used)


@pytest.mark.slow
def test_rows_of_inductors_kernels(compiled):
    args, results, _ = compiled
    for x, soft, normalized in zip(args[-1], results["softmax"], results["normalized"], strict=True):
        with np.errstate(all="ignore"):
            y = x.astype(np.float64)
            e = np.exp(y - y.max(1, keepdims=True))
            np.testing.assert_allclose(soft, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-38)
            want = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
            np.testing.assert_allclose(normalized, want, rtol=1e-4, atol=1e-5)
    with np.errstate(over="ignore"):
        want = np.exp((args[-1][-1] * np.float32(40)).astype(np.float64)) + 1
        assert_close(results["exp"], want.astype(np.float32), steps=3, scale=want)
