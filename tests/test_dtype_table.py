"""What works with which dtype: the table of docs/promotion.md is what is tried here.

``python tests/test_dtype_table.py`` writes it anew.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.inductor.refused import uncompilable
from gtrace.core.base.dtypes import BY_TORCH
from gtrace.errors import DtypeError, GtraceError

PAGE = Path(__file__).parents[1] / "docs" / "promotion.md"
BEGIN, END = "<!-- dtypes: python tests/test_dtype_table.py -->\n", "<!-- end of dtypes -->\n"
DTYPES = list(BY_TORCH.values())


def ones(dtype: Any) -> gt.Array:
    return gt.ones((2, 2), dtype=dtype)


def moved(dtype: Any) -> None:
    x = ones(dtype)
    parts = gt.concat([x[:1], gt.reshape(x, (4,))[2:].reshape(1, 2)])
    gt.eval(gt.where(gt.array([True, False]), parts, x).T.at[0].set(x[0]))


def converted(dtype: Any) -> None:
    assert gt.array([[1, 1]], dtype=gt.int32).astype(dtype).astype(gt.complex64).real.tolist() == [[1.0, 1.0]]


def exchanged(dtype: Any) -> None:
    x = ones(dtype)
    assert gt.array(x.to_torch()).dtype == dtype == pickle.loads(pickle.dumps(x)).dtype
    assert "1" in repr(x) or "True" in repr(x)


def numpy(dtype: Any) -> None:
    if not hasattr(np, dtype.name):  # ml_dtypes adds it, where that is imported
        raise DtypeError(f"NumPy has no {dtype}")
    assert gt.array(np.asarray(ones(dtype))).dtype == dtype


def arithmetic(dtype: Any) -> None:
    x = ones(dtype)
    gt.eval([x - x, x * x, x // 1 if not x.dtype.is_complex else x / 1, x == x])


def ordered(dtype: Any) -> None:
    x = ones(dtype)
    gt.eval([x < x, gt.sort(x), gt.maximum(x, x), gt.argmax(x)])


def summed(dtype: Any) -> None:
    gt.eval([gt.sum(ones(dtype)), gt.cumsum(ones(dtype), 0)])


def products(dtype: Any) -> None:
    gt.eval([ones(dtype) @ ones(dtype), gt.einsum("ij,jk->ik", ones(dtype), ones(dtype))])


def functions(dtype: Any) -> None:
    assert gt.eval(gt.exp(ones(dtype))).dtype == dtype


def derivatives(dtype: Any) -> None:
    gt.eval(gt.grad(lambda x: (x * x).sum().real)(ones(dtype)))


def matrices(dtype: Any) -> None:
    gt.eval(gt.linalg.solve(gt.eye(2, dtype=dtype), ones(dtype)))


def transforms(dtype: Any) -> None:
    gt.eval(gt.fft.fft(ones(dtype)))


def compiled(dtype: Any) -> None:
    graph = gt.make_graph(lambda x: gt.concat([x, x]))(ones(dtype))
    if reason := uncompilable(graph):
        raise DtypeError(reason)


COLUMNS: dict[str, Callable[[Any], None]] = {
    "moved": moved, "converted": converted, "torch, pickle": exchanged, "NumPy": numpy, "arithmetic": arithmetic,
    "order": ordered, "sums": summed, "`@`": products, "functions": functions, "gradients": derivatives,
    "`linalg`": matrices, "`fft`": transforms, "compiled": compiled,
}  # fmt: skip


def works(dtype: Any, column: str) -> bool:
    try:
        COLUMNS[column](dtype)
    except (GtraceError, AssertionError):
        return False
    return True


def table() -> str:
    head = f"| dtype | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}\n"
    rows = [f"| {d.name} | {' | '.join('yes' if works(d, c) else '' for c in COLUMNS)} |\n" for d in DTYPES]
    return head + "".join(rows)


def test_the_table_of_dtypes_says_what_works():
    text = PAGE.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0] == table(), "python tests/test_dtype_table.py writes it anew"


@pytest.mark.parametrize("name", [str(d) for d in DTYPES if str(d).startswith("float8")])
def test_numbers_of_8_bits_are_stored_and_not_computed_with(name):
    dtype = getattr(gt, name)
    numbers = [0.25, 1.0, 64.0] if name == "float8_e8m0fnu" else [0.1, -1.0, 300.0, 0.0]
    x = gt.array(numbers, dtype=dtype)
    want = torch.tensor(numbers).to(getattr(torch, name))
    assert x.itemsize == 1 and torch.equal(x.to_torch().view(torch.uint8), want.view(torch.uint8))
    np.testing.assert_array_equal(x.astype(gt.float32).tolist(), want.float().tolist())
    np.testing.assert_array_equal(x.tolist(), want.float().tolist())
    for call in (lambda: x + x, lambda: x * 2.0, lambda: x + gt.ones(len(numbers)), lambda: gt.exp(x), lambda: x.sum(),
                 lambda: torch.softmax(x, 0), lambda: x @ x):  # fmt: skip
        with pytest.raises(DtypeError, match=r"convert first, with x\.astype"):
            call()
    grad = gt.grad(lambda v: (v.astype(dtype).astype(gt.float32) ** 2).sum())(gt.array([0.5, 3.0]))
    assert grad.tolist() == ([1.0, 8.0] if name == "float8_e8m0fnu" else [1.0, 6.0])
    text = str(gt.make_graph(lambda v: v.astype(dtype))(gt.ones(2)))
    assert str(gt.ir.parse_graph(text)) == text
    assert not gt.numpy.can_cast(gt.float32, dtype) and gt.numpy.can_cast(dtype, gt.bfloat16)
    assert gt.numpy.issubdtype(dtype, gt.numpy.floating) and gt.finfo(dtype).bits == 8


def test_beyond_the_range_of_float8_e4m3fn_is_nan_as_in_jax():
    kind, numbers = gt.float8_e4m3fn, [448.0, 464.0, 465.0, -500.0, float("inf")]
    right = [448.0, 448.0, None, None, None]
    read = lambda x: [None if y != y else y for y in x.astype(gt.float32).tolist()]  # noqa: E731
    made = [gt.array(numbers, dtype=kind), gt.asarray(np.array(numbers), dtype=kind)]
    for dtype in (gt.float64, gt.float32, gt.float16):
        made += [
            gt.array(numbers, dtype=dtype).astype(kind),
            gt.jit(lambda x: x.astype(kind))(gt.array(numbers, dtype)),
        ]
    made.append(gt.stack([gt.full((), x, kind) for x in numbers]))
    assert [read(x) for x in made] == [right] * len(made)
    assert read(gt.zeros(2, dtype=kind).at[0].set(500.0)) == [None, 0.0]
    assert read(gt.array([500, 3]).astype(kind)) == [None, 3.0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


_FLOAT32 = {
    "float32",
    "f32",
    "single",
    "f",
    *(order + "f4" for order in ("", "<", ">", "=", "|")),
    "<f",
    ">f",
    "=f",
    "|f",
}


@pytest.mark.filterwarnings("error")
@given(st.text() | st.text("(),{}[]:'fiuca48 <>=?", max_size=6) | st.integers() | st.none() | st.tuples(st.text()))
def test_anything_can_be_compared_with_a_dtype(other):
    assert (gt.float32 == other) is (other in _FLOAT32)
    assert (gt.float32 != other) is not (gt.float32 == other)
    assert gt.float32 in ("a text that names no dtype", other, np.floating, "float32")


def test_in_comparisons_8_counts_bytes_as_in_numpy():
    assert gt.int64 == "i8" and gt.int8 != "i8" and gt.uint64 == "u8" and gt.int8 == "i1"
