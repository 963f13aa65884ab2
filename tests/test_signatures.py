"""What may be given by position to functions of gtrace.numpy comes in NumPy's order."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gtrace as gt
from gtrace import numpy as gnp
from gtrace.errors import ArgumentError
from gtrace.testing import assert_close

SAME = {"M": "n_cols", "a_min": "min", "a_max": "max"}
"""Parameters of NumPy's by ours, where the names differ."""

EXCEPTIONS = {
    "einsum": "NumPy's takes everything as *operands, the equation first",
    "transpose": "the axes one by one, as the method of NumPy takes them, or as one tuple, as here",
    "arange": "the first of NumPy's is start or stop, as here",
}


def functions() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    for ours, theirs, prefix in ((gnp, np, ""), (gt.linalg, np.linalg, "linalg."), (gt.fft, np.fft, "fft.")):
        for name, function in sorted(vars(ours).items()):
            other = getattr(theirs, name, None)
            plain = isinstance(function, types.FunctionType) and not name.startswith("_")
            if plain and callable(other) and not isinstance(other, type):
                yield prefix + name, function, other


def by_position(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def differing(function: Callable[..., Any], other: Callable[..., Any]) -> list[str]:
    """The parameters at whose place NumPy has another one. Those without defaults are operands: their names differ."""
    pairs = zip(by_position(function), by_position(other), strict=False)
    return [
        f"{theirs.name} is {ours.name} here"
        for ours, theirs in pairs
        if theirs.default is not inspect.Parameter.empty and ours.name not in (theirs.name, SAME.get(theirs.name))
    ]


def test_by_position_come_what_comes_in_numpy():
    found = {name: differing(*pair) for name, *pair in functions()}
    assert len(found) > 300
    assert {name: which for name, which in found.items() if which and name not in EXCEPTIONS} == {}


def test_exceptions_are_needed():
    found = {name: (ours, theirs) for name, ours, theirs in functions()}
    for name in EXCEPTIONS:
        ours, theirs = found[name]
        same = [p.name for p in by_position(ours)] == [p.name for p in by_position(theirs)]
        assert not same, name


X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("name", ["mean", "var", "std", "sum", "prod", "cumsum", "nanmean", "nansum", "nanvar"])
def test_the_third_argument_of_a_reduction_is_its_dtype(name):
    got = getattr(gnp, name)(gt.array(X), 0, np.float32)
    want = getattr(np, name)(X, 0, np.float32)
    assert got.shape == want.shape and got.dtype == np.float32
    assert_close(got, want)


def test_arguments_at_the_place_of_others_are_refused():
    x = gt.array(X)
    for call in (
        lambda: gt.mean(x, 0, gt.float32),
        lambda: x.mean(0, "float32"),
        lambda: x.max(0, np.zeros(3)),
        lambda: gt.argmax(x, 0, "out"),
        lambda: gt.sort(x, 0, "stable"),
        lambda: gt.var(x, 0, gt.float32),
    ):
        with pytest.raises(ArgumentError, match="by name"):
            call()
    for call in (lambda: gnp.max(x, 0, None), lambda: gnp.zeros(3, None, "C"), lambda: gnp.argmin(x, 0, True)):
        with pytest.raises(TypeError, match="positional"):
            call()


def test_orders_of_torch_stay_those_of_gt():
    x = gt.array(X)
    assert gt.mean(x, 0, True).shape == gt.max(x, 0, True).shape == (1, 3)
    np.testing.assert_array_equal(gt.sort(x, 1, True), X[:, ::-1])
    assert_close(gt.var(x, 0, 1), X.var(0, ddof=1))
