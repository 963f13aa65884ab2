"""`assert_close`: results are equal up to the rounding that made them."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base import tree
from gtrace.core.base.errors import message
from gtrace.core.base.rounding import Difference, difference, is_inexact
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, plain_tensor

STEPS = 100
"""Default number of roundings: a program of a few dozen operations, or a sum of a hundred numbers."""

NARROW_STEPS = {2: 8, 1: 1}
"""Default by the bytes of a narrow dtype: kernels compute in float32, and round what they write."""


@without_modes
def assert_close(
    actual: Any,
    expected: Any,
    what: str = "",
    *,
    steps: int | None = None,
    scale: Any = None,
    check_dtype: bool = True,
) -> None:
    """Fail unless two results are equal up to rounding: arrays, tensors, numbers, and pytrees of them.

    Structure, shapes and dtypes are the same. Integers and booleans are equal. NaN and infinite numbers are at the same
    places, with the same signs. Other numbers differ by at most::

        2 * (gamma * scale + steps * tiny)      gamma = steps * u / (1 - steps * u)

    Here u is the unit roundoff, half of ``finfo(dtype).eps``, and `tiny` is ``finfo(dtype).tiny``. A result of `steps`
    roundings is off by at most ``gamma * scale``: Lemma 3.1 of Higham, Accuracy and Stability of Numerical Algorithms
    (2nd edition, SIAM 2002). The second term is for underflow (2.8 there). The factor 2 is there because both results
    were rounded. The bound never is a part of the single element: a sum near zero of large numbers is off by a part of
    those.

    Args:
        actual: what was computed.
        expected: the correct result. A number list may stand for one array. Python numbers have no dtype of their own.
        what: what `actual` is, for the message.
        steps: how many roundings lead to an element, one after another. An operation has one, and an elementary
            function about four. A sum or a product of matrices has one for each term, or log2 of that if it is added in
            pairs. Default: 100, 8 for float16 and bfloat16, and 1 for narrower dtypes.
        scale: the largest magnitude that was rounded: a number, or an array that broadcasts against each leaf. Default:
            the largest magnitude in the expected leaf. Terms that cancel are larger than their sum: say how large.
            ``scale=abs(expected)`` demands that each element is right to its last digits.
        check_dtype: False: dtypes may differ, and the less precise one counts. A reference may be in float64.

    Raises:
        AssertionError: the first leaf that differs, with its key path, its worst element and the bound.
        ValueError: so many steps that the bound says nothing, or a scale of another shape.

    >>> assert_close({"a": gt.array([0.1]) * 3}, {"a": gt.array([0.3])})
    >>> assert_close(gt.array([1e8, 1.0, -1e8]).sum(), 1.0, steps=2, scale=1e8)  # the 1.0 may be lost
    >>> try:
    ...     assert_close(gt.array([1.0, 2.5]), [1.0, 2.0], "sums", steps=10)
    ... except AssertionError as error:
    ...     print(*str(error).split(" (at ")[0].split(": "), sep="\\n")
    [assert_close] expected sums to be close, got 1 of 2 elements that differ. The worst is 2.5 at [1], not 2.0
    off by 0.5, and 10 roundings of float32 at scale 2 allow 2.38e-06.
    """
    if steps is not None and steps < 1:
        raise ValueError(message("assert_close", "1 step or more", str(steps), "Integers alone are compared exactly."))
    name = what or "the result"
    if _stands_for_array(expected, actual):
        return _compare(name, actual, expected, steps, scale, check_dtype)
    got, wanted = tree.structure(actual), tree.structure(expected)
    if got != wanted:
        _fail(f"{name} to have the structure {wanted}", str(got))
    for path, x, y in zip(tree.paths(expected), tree.leaves(actual), tree.leaves(expected), strict=True):
        _compare(f"{name} at {path}" if path else name, x, y, steps, scale, check_dtype)


def _compare(name: str, actual: Any, expected: Any, steps: int | None, scale: Any, check_dtype: bool) -> None:
    """Compare one leaf."""
    (x, own), (y, other) = _tensor(actual), _tensor(expected)
    if x.shape != y.shape:
        _fail(f"{name} to have the shape {list(y.shape)}", str(list(x.shape)))
    if check_dtype and own is not None and other is not None and own != other:
        _fail(f"{name} to be {_short(other)}", _short(own), "Cast one of them, or pass check_dtype=False.")
    dtype = _rounding_dtype(x.dtype, y.dtype, [d for d in (own, other) if d is not None])
    count = steps or NARROW_STEPS.get(dtype.itemsize, STEPS)
    if is_inexact(dtype) and count * torch.finfo(dtype).eps >= 2:
        raise ValueError(
            message("assert_close", f"fewer than {2 / torch.finfo(dtype).eps:g} steps of {_short(dtype)}", str(count))
        )
    found = difference(x, y, dtype, count, None if scale is None else _fitting(_tensor(scale)[0], x))
    if found is not None:
        _fail(f"{name} to be close", _described(found, dtype, count))


def _stands_for_array(expected: Any, actual: Any) -> bool:
    """Whether `expected` is a list of numbers, and `actual` is one array."""
    if not isinstance(expected, (list, tuple)) or not isinstance(actual, (Array, torch.Tensor, numpy.ndarray)):
        return False
    numbers = (int, float, complex, numpy.generic)
    if not all(isinstance(x, numbers) for x in tree.leaves(expected)):
        return False
    return all(isinstance(x, numbers) for x in numpy.array(expected, dtype=object).flat)  # rows of one length


def _tensor(x: Any) -> tuple[torch.Tensor, torch.dtype | None]:
    """Return a leaf as a tensor on the CPU, and its dtype; None for Python numbers, which have none of their own."""
    if type(x) in (float, complex):
        return torch.tensor(x, dtype=torch.float64 if type(x) is float else torch.complex128), None
    if isinstance(x, (list, tuple)):
        return torch.from_numpy(numpy.array(x)), None
    if isinstance(x, numpy.generic):  # as operands, NumPy's numbers are like Python's
        x = numpy.asarray(x)
    tensor = plain_tensor("assert_close", x) if isinstance(x, torch.Tensor) else lift("assert_close", x).to_torch()
    return tensor.cpu(), None if type(x) in (bool, int) else tensor.dtype


def _fitting(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the scale if it broadcasts to the shape of `x`."""
    if scale.ndim > x.ndim or any(a not in (1, b) for a, b in zip(scale.shape[::-1], x.shape[::-1], strict=False)):
        raise ValueError(
            message("assert_close", f"a scale that broadcasts to the shape {list(x.shape)}", str(list(scale.shape)))
        )
    return scale


def _rounding_dtype(one: torch.dtype, other: torch.dtype, own: list[torch.dtype]) -> torch.dtype:
    """Return the dtype whose rounding counts: the least precise that a leaf has of its own."""
    inexact = [d for d in own if is_inexact(d)]
    if inexact:
        return max(inexact, key=lambda d: torch.finfo(d).eps)
    return next((d for d in (one, other) if is_inexact(d)), one)  # Python numbers, which are in double precision


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(found: Difference, dtype: torch.dtype, steps: int) -> str:
    text = (
        f"{found.count} of {found.size} elements that differ. The worst is {found.actual} at {list(found.place)},"
        f" not {found.expected}"
    )
    if not is_inexact(dtype):
        return text
    return (
        f"{text}: off by {found.off:.3g}, and {steps} roundings of {_short(dtype)} at scale {found.scale:.3g} allow"
        f" {found.bound:.3g}"
    )


def _fail(expected: str, got: str, fix: str = "") -> None:
    raise AssertionError(message("assert_close", expected, got, fix))
