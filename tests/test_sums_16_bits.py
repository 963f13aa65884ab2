"""Sums of 16-bit floats in every form of a program: they are added as float32 or wider, and rounded once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.interpreter.short_sums import INDEX_PUT, SUMS, rounded_once
from gtrace.core.backends.native import gather_scatter
from gtrace.core.runtime.agreement import disagreement

F = torch.nn.functional

FORMS = {
    "interpreted": lambda f: _called(f, 1, auto_compile=False),
    "hot": lambda f: _called(f, 6, hot_threshold=3, background=False),
    "jitted": lambda f: _called(gt.jit(f, wait=True), 2, background=False),
    "jitted by Inductor": lambda f: _called(gt.jit(f, wait=True), 2, background=False, native=False),
}


def _called(f, times, **settings):
    def call(*arrays):
        with gt.config(**settings):
            for _ in range(times):
                found = f(*arrays)
                values = [np.asarray(x.astype(gt.float64)) for x in found]  # somebody looks at each call
            return values

    return call


def gradient(read):
    """The gradient of what is read from a table, weighted by rows."""
    return lambda table, rows, places: gt.grad(lambda w: (read(w, places) * rows).sum().astype(gt.float32))(table)


def whole(places, rows):
    return gt.broadcast_to(places[:, None], rows.shape)


def ones(rows, *more):
    return gt.ones((rows.shape[0], *more), dtype=rows.dtype)


# each returns an array whose first row has the sums of all rows
SUMS_OF_ROWS = {
    "sum": lambda t, r, p: r.sum(0, keepdims=True),
    "mean": lambda t, r, p: r.mean(0, keepdims=True),
    "cumsum": lambda t, r, p: gt.cumsum(r, 0)[-1:],
    "torch.cumsum": lambda t, r, p: torch.cumsum(r, 0)[-1:],
    "matrix product": lambda t, r, p: ones(r, 2).T @ r,
    "vector product": lambda t, r, p: (ones(r) @ r)[None],
    "einsum": lambda t, r, p: gt.einsum("ij,i->j", r, ones(r))[None],
    "scatter_add": lambda t, r, p: torch.scatter_add(t, 0, whole(p, r), r),
    "scatter_reduce": lambda t, r, p: torch.scatter_reduce(t, 0, whole(p, r), r, "sum"),
    "index_add": lambda t, r, p: torch.index_add(t, 0, p, r),
    "index_add of vectors": lambda t, r, p: torch.index_add(t[:, 0], 0, p, r[:, 0])[:1, None],
    "index_put": lambda t, r, p: torch.index_put(t, (p,), r, accumulate=True),
    "put": lambda t, r, p: torch.put(t, p * 0, r[:, 0], accumulate=True)[:1, :1],
    "at.add": lambda t, r, p: t.at[p].add(r),
    "at.add of elements": lambda t, r, p: t.at[p[:, None], gt.arange(3)].add(r),
    "at.add inside": lambda t, r, p: t.at[p].add(r, mode="promise_in_bounds"),
    "at.add of vectors": lambda t, r, p: t[:, 0].at[p].add(r[:, 0])[:1, None],
    "at.add of a batch": lambda t, r, p: gt.vmap(lambda row, u: row.at[p].add(u), (1, 1), 1)(t, r),
    "segment_sum": lambda t, r, p: gt.segments.segment_sum(r, p, 3),
    "gradient of x[places]": gradient(lambda w, p: w[p]),
    "gradient of index_select": gradient(lambda w, p: torch.index_select(w, 0, p)),
    "gradient of gather": gradient(lambda w, p: torch.gather(w, 0, whole(p, gt.zeros((p.shape[0], 3))))),
    "gradient of take_along_axis": gradient(
        lambda w, p: gt.numpy.take_along_axis(w, whole(p, gt.zeros((p.shape[0], 3))), 0)
    ),
    "gradient of F.embedding": gradient(lambda w, p: F.embedding(p, w)),
    "gradient of nn.embedding": gradient(lambda w, p: gt.nn.embedding(p, w)),
    "gradient of embedding_bag": gradient(lambda w, p: F.embedding_bag(p[:, None], w, mode="sum")),
    "gradient of a broadcast": gradient(lambda w, p: gt.broadcast_to(w[:1], (p.shape[0], 3))),
    "gradient of a bias": lambda t, r, p: gt.grad(
        lambda b: (F.layer_norm(r, (3,), gt.ones((3,), dtype=r.dtype), b) * r).sum().astype(gt.float32)
    )(t[0])[None],
}


COMPARED = ("scatter_add", "index_put", "at.add", "gradient of gather", "gradient of F.embedding", "cumsum", "sum")


def columns(n, dtype):
    generator = torch.Generator().manual_seed(n)
    return torch.stack([torch.ones(n), torch.full((n,), 0.5), torch.rand(n, generator=generator)], 1).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("form", "n"), [*((form, 5000) for form in FORMS), ("interpreted", 400), ("jitted", 400)])
def test_a_sum_is_rounded_once(form, dtype, n):
    rows, table = columns(n, dtype), torch.zeros(3, 3, dtype=dtype)
    right = rows.double().sum(0).numpy()

    def every(*arrays):
        return [f(*arrays) for f in SUMS_OF_ROWS.values()]

    arrays = [gt.from_torch(x) for x in (table, rows, torch.zeros(n, dtype=torch.int64))]
    for name, found in zip(SUMS_OF_ROWS, FORMS[form](every)(*arrays), strict=True):
        expected = right / n if name == "mean" else right
        off = abs(found[0] / expected[: found.shape[1]] - 1)
        assert off.max() <= torch.finfo(dtype).eps, f"{name}: {found[0]}, right is {expected}"


def test_the_sum_of_what_is_there_and_of_few_is_rounded_once():
    x = gt.full((2,), 256.0, dtype=gt.bfloat16)
    assert [float(v) for v in x.at[gt.array([0, 0, 1])].add(0.75)] == [258.0, 256.0]
    assert float(x.at[0].add(3.0)[0]) == 260.0


@pytest.mark.parametrize("name", sorted({*SUMS, INDEX_PUT}))
def test_the_names_are_those_of_overloads(name):
    namespace, packet, overload = name.split(".")
    assert str(getattr(getattr(getattr(torch.ops, namespace), packet), overload)) == name


def test_other_dtypes_are_left_alone():
    seen = []
    f = rounded_once(lambda *xs: [seen.append([x.dtype for x in xs]), xs[0]][1])
    half, single = torch.ones(2, dtype=torch.float16), torch.ones(2)
    assert [f(half, half).dtype, f(half, single).dtype, f(single).dtype] == [
        torch.float16,
        torch.float16,
        torch.float32,
    ]
    assert seen == [[torch.float32] * 2, [torch.float16, torch.float32], [torch.float32]]


@pytest.mark.slow
@pytest.mark.parametrize("n", [4000, 400_000])
@pytest.mark.parametrize("name", COMPARED)
def test_a_sum_that_stagnates_is_found(name, n):
    rows, table, places = columns(n, torch.bfloat16), torch.zeros(3, 3).bfloat16(), torch.zeros(n, dtype=torch.int64)
    given = [table, rows, places]
    graph = gt.make_graph(SUMS_OF_ROWS[name])(*map(gt.from_torch, given))
    (right,) = reference(graph)(given)
    wrong = right.clone()
    wrong[0] = torch.tensor([256.0, 128.0, 128.0])  # where each addition is rounded
    assert disagreement(graph, given, [right], [wrong]).startswith("result 0 of ")
    assert not disagreement(graph, given, [right], [right.clone()])
    other = right * (1 + 2.0**-7)  # the next number
    assert not disagreement(graph, given, [right], [other])


ADDED = {
    "at.add": lambda table, rows, places: table.at[places[:, 0]].add(rows),
    "gradient of take_along_axis": lambda table, rows, places: gt.grad(
        lambda w: (gt.numpy.take_along_axis(w, places, 0) * rows).sum().astype(gt.float32)
    )(table),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_native_code_that_rounds_each_addition_is_not_used(dtype, name, monkeypatch):
    gt.config.update(cache_size=0)
    monkeypatch.setattr(gather_scatter, "SHORT_FLOATS", {})
    table, rows = gt.zeros((2, 5), dtype=dtype), gt.full((4000, 5), 0.1, dtype=dtype)
    places = gt.zeros((4000, 5), dtype=gt.int64)
    with gt.config(hot_threshold=3, background=False), pytest.warns(gt.AuditWarning, match="where it is 400"):
        found = [float(ADDED[name](table, rows, places)[0, 0]) for _ in range(6)]
    assert found == [400.0] * 6
