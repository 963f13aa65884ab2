"""The tables of docs/promotion.md hold, cell by cell; what dtypes cannot hold is refused; bad data is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.base.dtypes import DTYPES as EVERY
from gtrace.core.base.dtypes import FLOAT8, LONG
from gtrace.core.ir.aval import aval
from gtrace.core.ir.op import REGISTRY

DTYPES = {name: dtype for name, dtype in EVERY.items() if dtype not in FLOAT8}  # which meet no other dtype

PAGE = Path(__file__).resolve().parent.parent / "docs" / "promotion.md"
INTEGERS = [gt.uint8, gt.int8, gt.int16, gt.int32, gt.int64]
FLOATS = [gt.float16, gt.bfloat16, gt.float32, gt.float64]
COMPLEX = [gt.complex64, gt.complex128]
WIDE_UNSIGNED = [gt.uint16, gt.uint32, gt.uint64]


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def table(heading: str) -> dict[str, dict[str, str]]:
    """Return the first table below a heading of the page, as rows of cells by name."""
    below = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    lines = re.search(r"(^\|.*\n)+", below, re.MULTILINE)[0].splitlines()
    head, _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


ARRAYS = [(a, b, out) for a, row in table("Arrays with arrays").items() for b, out in row.items()]
NUMBERS = [(a, kind, out) for a, row in table("Arrays with Python numbers").items() for kind, out in row.items()]


def test_the_tables_are_complete():
    assert {(a, b) for a, b, _ in ARRAYS} == {(a, b) for a in DTYPES for b in DTYPES}
    assert {(a, k) for a, k, _ in NUMBERS} == {
        (a, f"Python {k}") for a in DTYPES for k in ("bool", "int", "float", "complex")
    }


@pytest.mark.parametrize(("a", "b", "out"), ARRAYS)
def test_arrays_with_arrays(a: str, b: str, out: str):
    x, y, scalar = gt.ones(2, dtype=DTYPES[a]), gt.ones(2, dtype=DTYPES[b]), gt.ones((), dtype=DTYPES[b])
    if out == "—":
        for call in (lambda: x * y, lambda: y == x, lambda: gt.where(True, x, y), lambda: gt.concat([x, scalar[None]])):
            with pytest.raises(gt.DtypeError, match="a common one"):
                call()
        return
    expected = DTYPES[out]
    for result in (x * y, y * x, gt.where(x == y, x, y), gt.concat([x, y])):
        assert result.dtype == expected and gt.eval(result) is not None
    assert gt.stack([x, y]).dtype == expected
    assert (x == y).dtype == gt.bool
    assert (x / y).dtype == (expected if expected in (*FLOATS, *COMPLEX) else gt.float32)
    if expected in WIDE_UNSIGNED:
        return
    assert (x + scalar).dtype == expected
    if a != "bool" and b != "bool":
        assert (x @ y).dtype == (x**y).dtype == gt.einsum("i,i->", x, y).dtype == expected
    if expected not in COMPLEX:
        assert gt.maximum(x, y).dtype == expected and (x < y).dtype == gt.bool


@pytest.mark.parametrize(("a", "kind", "out"), NUMBERS)
def test_arrays_with_numbers(a: str, kind: str, out: str):
    x, expected = gt.ones(2, dtype=DTYPES[a]), DTYPES[out]
    number = {"Python bool": True, "Python int": 2, "Python float": 2.5, "Python complex": 2j}[kind]
    same = {True: np.bool_(True), 2: np.int16(2), 2.5: np.float64(2.5), 2j: np.complex128(2j)}[number]
    for scalar in (number, same):
        results = [x * scalar, scalar * x, gt.where(x == 1, scalar, x)]
        if expected not in (*COMPLEX, *WIDE_UNSIGNED):
            results.append(gt.maximum(x, scalar))
        for result in results:
            assert result.dtype == expected and not result.aval.weak
            gt.eval(result)
    # weak arrays count as the numbers they stem from
    weak = gt.jit(lambda v, s: v * s, backend="eager")
    assert weak(x, number).dtype == expected
    if x.dtype not in WIDE_UNSIGNED:
        assert (x * np.array(number)).dtype == torch.promote_types(x.aval.dtype, torch.tensor(np.array(number)).dtype)


def test_weak_arrays_stay_weak_until_they_meet_a_strong_one():
    half = gt.ones(2, dtype=gt.float16)
    two = gt.sqrt(4.0)
    assert two.aval.weak and (two + 1).aval.weak and gt.grad(lambda x: x * x)(3.0).dtype == gt.float32
    assert (half * two).dtype == gt.float16
    assert (half * gt.array(2.0)).dtype == (half * two.astype(gt.float32)).dtype == gt.float32
    assert (gt.ones(2, dtype=gt.int8) * two).dtype == gt.float32
    # what only moves elements, and products, keep weakness; sums do not
    assert gt.stack([two, two])[0].aval.weak and (two[None] @ two[None]).aval.weak and not two.sum().aval.weak
    assert (gt.add(1, 2).dtype, gt.add(1, 2.0).dtype, gt.add(True, 1).dtype) == (gt.int64, gt.float32, gt.int64)


@pytest.mark.parametrize("dtype", [gt.bool, *INTEGERS], ids=str)
def test_operations_with_a_dtype_of_their_own(dtype):
    x = gt.ones((2, 2), dtype=dtype)
    for result in (gt.exp(x), gt.sin(x), gt.mean(x), gt.softmax(x), gt.var(x), gt.sqrt(x), gt.logsumexp(x), x / x):
        assert result.dtype == gt.float32
    for result in (gt.sum(x), gt.prod(x), gt.cumsum(x, axis=0), gt.numpy.cumprod(x, axis=0)):
        assert result.dtype == (gt.uint64 if dtype is gt.uint8 else gt.int64)
    for result in (gt.argmax(x), gt.argmin(x), gt.count_nonzero(x)):
        assert result.dtype == gt.int64
    for result in (gt.sum(x, dtype=gt.float16), gt.prod(x, dtype=gt.float16), gt.cumsum(x, dtype=gt.float16)):
        assert result.dtype == gt.float16 and float(result.astype(gt.float32).max()) >= 1
    for result in (x == x, gt.isnan(x), gt.isfinite(x), gt.logical_and(x, x), gt.any(x), gt.all(x)):
        assert result.dtype == gt.bool
    for result in (gt.max(x), gt.min(x), gt.clip(x, False, True), gt.flip(x)):
        assert result.dtype == dtype
    assert x.at[0].set(True).dtype == dtype
    with pytest.raises(gt.DtypeError, match="update"):
        x.at[0].set(1.5)
    with pytest.raises(gt.DtypeError, match="update"):
        x.at[0].add(gt.ones(2))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_keep_their_dtype(dtype):
    x = gt.ones((2, 2), dtype=dtype)
    results = [
        gt.exp(x), gt.mean(x), gt.sum(x), gt.prod(x), gt.cumsum(x, axis=0), gt.softmax(x), gt.var(x), gt.max(x), x**2,
        x**0.5, 2**x, x // 2, x % 2, gt.clip(x, 0, 1), gt.round(x, 1), gt.gelu(x), gt.where(x > 0, x, 0), gt.pad(x, 1),
        x.at[0].set(3), x.at[gt.array([0, 0])].add(gt.ones(2, dtype=gt.float64)), gt.grad(lambda v: (v**3).sum())(x),
    ]  # fmt: skip
    assert [r.dtype for r in results] == [dtype] * len(results)


# what does not fit


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_out_of_range_are_refused(dtype):
    info = gt.iinfo(dtype)
    x = gt.ones(2, dtype=dtype)
    assert (x * 0 + info.max).tolist() == [info.max] * 2 and (x * 0 + info.min).tolist() == [info.min] * 2
    for number in (info.max + 1, info.min - 1, 2**64, -(2**64)):
        refused = [
            lambda n: x + n, lambda n: n - x, lambda n: x == n, lambda n: gt.where(x == 1, x, n),
            lambda n: gt.pad(x, 1, constant_values=n), lambda n: x.at[0].set(n), lambda n: gt.full(2, n, dtype=dtype),
            lambda n: gt.array(n, dtype=dtype), lambda n: gt.array([[1, n]], dtype=dtype),
            lambda n: gt.full_like(x, n), lambda n: gt.arange(n - 1, n + 1, dtype=dtype),
        ]  # fmt: skip
        for k, call in enumerate(refused):
            with pytest.raises(gt.DtypeError) as info_:
                gt.eval(call(number))
            assert "test_promotion.py:" in str(info_.value), k


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**63, -(2.0**70), 1e30])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_floats_that_no_integer_dtype_holds_are_refused(dtype, bad):
    class Outside:
        def __array__(self, dtype=None, copy=None):
            return np.array([1.0, bad])

    class Lent:
        def __dlpack__(self, **kwargs):
            return torch.tensor([1.0, bad]).__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return torch.zeros(1).__dlpack_device__()

    sources = [
        bad, [1.0, bad], [[bad]], np.array([1.0, bad]), np.float32(bad), torch.tensor([1.0, bad]),
        torch.tensor([1.0, bad], dtype=torch.bfloat16), [np.array([bad])], [torch.tensor(bad), 1], Outside(), Lent(),
    ]  # fmt: skip
    for source in sources:
        for make in (gt.array, gt.asarray):
            with pytest.raises(gt.DtypeError, match=r"expected (finite values|values from)"):
                make(source, dtype=dtype)
    with pytest.raises(gt.DtypeError):
        gt.full(3, bad, dtype=dtype)


def test_values_at_the_ends_are_taken():
    for dtype in INTEGERS:
        info = gt.iinfo(dtype)
        for make in (np.array, torch.tensor):
            assert gt.array(make([info.min, info.max]), dtype=dtype).tolist() == [info.min, info.max]
    assert gt.array(np.array([2.0**62, -(2.0**63)]), dtype=gt.int64).tolist() == [2**62, -(2**63)]
    assert gt.array([True, False], dtype=gt.int8).tolist() == [1, 0]
    assert gt.array([0.0, np.nan], dtype=gt.bool).tolist() == [False, True]
    assert gt.array([], dtype=gt.int8).shape == (0,) and gt.array(np.zeros((0, 2)), dtype=gt.int8).shape == (0, 2)
    assert gt.array([np.uint8(3), np.uint8(4)]).tolist() == [3, 4] and gt.array(np.uint8(3)).dtype == gt.uint8
    assert float(gt.ones(()) * np.longdouble(2.5)) == 2.5
    assert gt.array([2**53, 1.5]).dtype == gt.float32


# bad data

BAD = [
    (lambda: gt.array(np.ones(2, np.complex64), dtype=gt.float32), gt.DtypeError, "complex64"),
    (lambda: gt.array(torch.ones(2, dtype=torch.complex64), dtype=gt.int32), gt.DtypeError, "complex64"),
    (lambda: gt.array([1.0, 2j], dtype=gt.float64), gt.DtypeError, "complex128"),
    (lambda: gt.array(1j, dtype=gt.int8), gt.DtypeError, "complex128"),
    (lambda: gt.full(2, 1j, dtype=gt.float32), gt.DtypeError, "real number"),
    (lambda: gt.ones(2, dtype=torch.complex32), gt.DtypeError, "complex32"),
    (lambda: gt.array(np.ones(2, np.clongdouble)), gt.DtypeError, "complex256"),
    (lambda: gt.array([1, -1], dtype=gt.uint16), gt.DtypeError, "65535"),
    (lambda: gt.array(np.array([2**40]), dtype=gt.uint32), gt.DtypeError, "4294967295"),
    (lambda: gt.arange(3, dtype=gt.complex64), gt.DtypeError, "real dtype"),
    (lambda: gt.arange(1j), gt.DtypeError, "real number"),
    (lambda: gt.ones(2).astype(object), gt.DtypeError, "object"),
    (lambda: gt.ones(2).astype(torch.quint8), gt.DtypeError, "quint8"),
    (lambda: gt.array(np.array(["a", "b"])), gt.DtypeError, "U1"),
    (lambda: gt.array(["a", "b"]), gt.DtypeError, "'a'"),
    (lambda: gt.array("ab"), gt.ArgumentError, "str"),
    (lambda: gt.array([1, None]), gt.DtypeError, "None"),
    (lambda: gt.array([1, {}]), gt.DtypeError, "{}"),
    (lambda: gt.array(np.array([object()])), gt.DtypeError, "'O'"),
    (lambda: gt.array(np.array(["2020-01-01"], "datetime64[D]")), gt.DtypeError, "M8"),
    (lambda: gt.array(np.ones(2, [("a", "f4")])), gt.DtypeError, "'a'"),
    (lambda: gt.array({"a": 1}), gt.ArgumentError, "dict"),
    (lambda: gt.array(None), gt.ArgumentError, "NoneType"),
    (lambda: gt.array(x for x in (1, 2)), gt.ArgumentError, "generator"),
    (lambda: gt.array([[1, 2], [3]]), gt.ShapeError, "ragged"),
    (lambda: gt.array([[1], 2]), gt.ShapeError, "ragged"),
    (lambda: gt.array([gt.ones(2), gt.ones(3)]), gt.ShapeError, "one shape"),
    (lambda: gt.array([2**63, -1]), gt.DtypeError, "64 bits"),
    (lambda: gt.array([2**70, 1]), gt.DtypeError, "64 bits"),
    (lambda: gt.exp(2**70), gt.DtypeError, "int64"),
    (lambda: gt.ones(2) * 10**400, gt.DtypeError, "fits a float"),
    (lambda: 10**400 - gt.ones(2), gt.DtypeError, "fits a float"),
    (lambda: gt.array(np.ma.array([1.0, 2.0], mask=[True, False])), gt.ArgumentError, "mask"),
    (lambda: gt.array(torch.eye(2).to_sparse()), gt.ArgumentError, "dense"),
    (lambda: gt.array(torch.ones(2, device="meta")), gt.DeviceError, "meta"),
    (lambda: gt.ones(2, device="meta"), gt.DeviceError, "meta"),
    (lambda: gt.ones(2, device="nowhere"), gt.DeviceError, "nowhere"),
    (lambda: gt.from_torch(np.ones(2)), gt.ArgumentError, "torch.Tensor"),
    (lambda: gt.from_numpy([1.0]), gt.ArgumentError, "ndarray"),
    (lambda: gt.from_dlpack(3), gt.ArgumentError, "dlpack"),
    (lambda: gt.ones(2) * [1, 2], gt.ArgumentError, "list"),
    (lambda: gt.where([True], 1, 2), gt.ArgumentError, "list"),
    (lambda: gt.arange(0, 2, 0.5, dtype=gt.int32), gt.DtypeError, "integers"),
    (lambda: gt.arange(float("nan")), gt.ArgumentError, "finite"),
    (lambda: gt.arange(1, 2, 0), gt.ArgumentError, "step"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "match"), BAD)
def test_bad_data_is_refused(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    assert "expected" in str(info.value) and "got" in str(info.value)


def test_operands_on_two_devices_are_refused():
    cpu, gpu = aval((3,), torch.float32), aval((3,), torch.float32, torch.device("cuda", 0))
    for name in ("mul", "matmul", "concat", "where"):
        avals = (aval((3,), torch.bool), cpu, gpu) if name == "where" else (cpu, gpu)
        params = (0,) if name == "concat" else ()
        with pytest.raises(gt.DeviceError, match=r"f32\[3\] and f32\[3\]@cuda:0"):
            REGISTRY[name].instr(params, avals)
    # Python numbers go anywhere
    weak = aval((), torch.float32, weak=True)
    assert REGISTRY["mul"].instr((), (gpu, weak)).aval.device == torch.device("cuda", 0)


def test_dtype_arguments():
    for dtype in (gt.float64, "float64", "f64", np.float64, np.dtype("f8"), torch.double):
        assert gt.ones(2, dtype=dtype).dtype == gt.float64
    assert (gt.ones(1, dtype=float).dtype, gt.ones(1, dtype=int).dtype, gt.ones(1, dtype=bool).dtype) == (
        gt.float32, gt.int64, gt.bool,
    )  # fmt: skip
    for name in LONG.values():
        assert gt.zeros(1, dtype=name).dtype == getattr(gt, name)


def test_what_returns_its_operand_keeps_its_weakness():
    half = gt.ones(3, dtype=gt.float16)
    assert (half * gt.stop_gradient(2.0)).dtype == (half * 2.0).dtype == gt.float16
    assert gt.make_graph(lambda x: gt.stop_gradient(x) * 2)(1.0).nodes[0].instr.aval.weak


@pytest.mark.parametrize("number", [0.1, 0.1 + 0.3j])
def test_numbers_keep_their_digits_beside_float64(number):
    x = gt.array(np.ones(2))
    for result in (gt.einsum(",a->a", number, x), gt.numpy.outer(x, number), gt.numpy.kron(x, number),
                   gt.numpy.dot(number, x), x * number):  # fmt: skip
        assert np.asarray(result).ravel()[0] == number
    assert gt.einsum(",a->a", 0.1, gt.ones(2)).dtype == gt.float32
