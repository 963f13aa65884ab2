"""Products of large matrices: either library gives NumPy's results, interpreted, compiled and exported."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.interpreter import matmul as products
from gtrace.core.backends.request import CompileRequest
from gtrace.core.runtime.engine import engine
from gtrace.testing import check_jit

LIBRARIES = [
    "torch",
    pytest.param("oneDNN", marks=pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")),
]


@pytest.fixture(params=LIBRARIES)
def library(request, monkeypatch):
    for module in (
        "gtrace.core.backends.interpreter.matmul",
        "gtrace.core.ops.linalg",
        "gtrace.core.backends.inductor.matmul",
    ):
        monkeypatch.setattr(f"{module}.preferred", lambda: request.param == "oneDNN")
    # compiled code is named by what this processor prefers
    named = CompileRequest.named
    monkeypatch.setattr(CompileRequest, "name", property(lambda r: named(r, {"products": request.param})))
    forget()
    yield request.param
    forget()


def forget():
    """Drop programs, which are made for one library."""
    for table in (engine.recordings, engine.forms, engine.programs):
        table.clear()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LAYOUTS = {
    "rows": lambda *shape: gt.array(normal(*shape)),
    "columns": lambda *shape: gt.array(normal(*shape[:-2], shape[-1], shape[-2])).mT,
    "with gaps": lambda *shape: gt.array(normal(*shape[:-1], 2 * shape[-1]))[..., ::2],
    "equal rows": lambda *shape: gt.broadcast_to(gt.array(normal(shape[-1])), shape),
    "equal columns": lambda *shape: gt.broadcast_to(gt.array(normal(shape[-2], 1)), shape),
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize(
    "shapes", [((160, 300), (300, 260)), ((3, 65, 520), (520, 40)), ((2, 3, 33, 20), (2, 3, 20, 17))], ids=str
)
def test_products_of_any_layout(shapes, left, right, library):
    x, y = gt.eval((LAYOUTS[left](*shapes[0]), LAYOUTS[right](*shapes[1])))
    want = np.asarray(x).astype(np.float64) @ np.asarray(y)
    got = x @ y
    assert got.to_torch().is_contiguous()
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5 * np.sqrt(shapes[0][-1]) * np.abs(want).max())


@pytest.mark.parametrize("empty", [None, 0, 1, 2, 3])
def test_products_of_heads(empty):
    """Heads that lie between the rows, as in attention; with no example, head, row or feature at all, too."""
    sizes = [0 if k == empty else n for k, n in enumerate((3, 5, 2, 4))]
    q, k = (gt.permute_dims(gt.array(normal(*sizes, seed=seed)), (0, 2, 1, 3)) for seed in (0, 1))
    scores = q @ k.mT
    for got, x, y in ((scores, q, k.mT), (scores @ k, scores, k), (q.mT @ scores, q.mT, scores)):
        assert got.to_torch().is_contiguous()
        np.testing.assert_allclose(got, np.asarray(x).astype(np.float64) @ np.asarray(y), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", [lambda w: w[:, :260], lambda w: w[:, 4:264], lambda w: w[::2, :260]])
def test_a_part_of_a_matrix_is_copied_for_onednn(part, library, monkeypatch):
    """On its right side, oneDNN takes a thousand times as long for a matrix that is not dense."""
    seen = []
    linear = products._linear()

    def spy(x, y, *rest):
        seen.append(y.is_contiguous() or y.T.is_contiguous())
        return linear(x, y, *rest)

    monkeypatch.setattr(products, "_linear", lambda: spy)
    x, w = gt.array(normal(160, 300)), gt.array(normal(600, 400))
    y = gt.from_torch(part(w.to_torch())[:300])
    want = x.numpy() @ y.numpy()
    np.testing.assert_allclose((x @ y).numpy(), want, rtol=1e-4, atol=1e-4)
    assert seen == [True] * (library == "oneDNN")
    compiled = gt.jit(lambda x, y: gt.tanh(x) @ y, wait=True)
    np.testing.assert_allclose(compiled(x, y).numpy(), np.tanh(x.numpy()) @ y.numpy(), rtol=1e-4, atol=1e-4)


def test_infinities_and_nans_stay_where_they_are(library):
    x, y = normal(128, 160), normal(160, 128, seed=1)
    x[3, 5], x[7, 9], y[11, 13] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ y
    got = (gt.array(x) @ gt.array(y)).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])


@pytest.mark.slow
def test_a_step_of_large_products_compiled_and_exported(library, tmp_path):
    def step(x, w, v):
        # with a sum beside a product, which Inductor would fuse with oneDNN's own operator
        return gt.value_and_grad(lambda p: ((gt.tanh(x @ p[0] + 1.0) @ p[1] + x @ (p[0] @ p[1])) ** 2).mean())((w, v))

    args = (gt.array(normal(3, 100, 80)), gt.array(normal(80, 320)), gt.array(normal(320, 272)))
    check_jit(step, args, export=False)

    file = tmp_path / "step.gtx"
    gt.export(step, *args).save(file)
    for got, want in zip(gt.tree.leaves(gt.load(file)(*args)), gt.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)
    unpacked = b"".join(unzipped(file.read_bytes()))
    assert (b"aoti_torch_cpu__linear_pointwise" in unpacked) == (library == "oneDNN")


def test_the_library_is_the_one_that_the_processor_prefers(library):
    x = gt.eval(gt.array(normal(160, 160)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gt.eval(gt.tanh(x @ x))
    called = {event.key for event in profile.key_averages()}
    assert ("mkldnn::_linear_pointwise" in called) == (library == "oneDNN")


def unzipped(data):
    """Yield the files in an archive, and in the archives in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            inner = archive.read(name)
            yield from unzipped(inner) if zipfile.is_zipfile(io.BytesIO(inner)) else [inner]


@pytest.mark.slow
def test_one_program_for_any_number_of_rows(library):
    f = gt.jit(lambda x, w: gt.tanh(x @ w) * 2.0 + 1.0)
    w = gt.array(normal(256, 130))
    for rows in (70, 90, 200, 3):
        x = normal(rows, 256, seed=rows)
        want = np.tanh(x.astype(np.float64) @ np.asarray(w)) * 2 + 1
        np.testing.assert_allclose(f(gt.array(x), w).numpy(), want, rtol=1e-4, atol=1e-4)


SIZES = [(1, 1, 1), (4, 4, 4), (1, 300, 70), (37, 9, 130), (70, 300, 1), (13, 40, 21), (16, 600, 10), (300, 33, 17)]
TURNED = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [gt.float32, gt.float64], ids=str)
def test_small_products_within_a_compiled_program(dtype, library):
    """Of arguments and of values between, in any layout. Sums of whole numbers are exact in any order."""

    def products(matrices):
        return [
            (x.T if turn_x else x) @ (gt.abs(y).T if turn_y else gt.abs(y))
            for (x, y), (turn_x, turn_y) in zip(matrices, TURNED * len(SIZES), strict=True)
        ]

    def whole_numbers(*shape):
        return gt.array(np.random.default_rng(shape).integers(-9, 9, shape)).astype(dtype)

    matrices = [
        (whole_numbers(*(k, i) if turn_x else (i, k)), whole_numbers(*(j, k) if turn_y else (k, j)))
        for i, k, j in SIZES
        for turn_x, turn_y in TURNED
    ]
    f = gt.jit(products, wait=True)
    got = f(matrices)
    assert {p.tier for p in f.programs()} == {"compiled"}
    with gt.config(auto_compile=False):
        for a, b in zip(got, products(matrices), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_small_batches_are_part_of_the_program(library):
    def program(x, y, u, v):
        return x @ y, y.mT @ x.mT, u @ v, gt.permute_dims(x, (1, 0, 2)) @ gt.ones((7, 9, 3)), x[:, :1] @ y

    args = normal(5, 7, 9), normal(5, 9, 17, seed=1), normal(2, 3, 4).astype(np.float64), np.full((2, 4, 2), np.inf)
    want = program(*[gt.array(a.astype(np.float64)) for a in args])
    for got, right in zip(gt.jit(program, wait=True)(*map(gt.array, args)), want, strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-5, atol=1e-5)
