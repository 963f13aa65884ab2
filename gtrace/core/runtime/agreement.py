"""Whether the results of a program's form agree with its reference, as far as rounding allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from gtrace.core.backends.interpreter.reference import in_float64, with_noise
from gtrace.core.base.rounding import is_inexact
from gtrace.core.ir.graph import Graph, Node

ULPS = 4
"""Units in the last place by which an element may be off, whatever the program computes."""

WORSE = 4.0
"""A form's error may be so many times the reference's."""

KERNELS_WORSE = 128.0
"""The same of a recording that calls of torch's kernels of norms and attention replaced.
Measured: the gradient of a batch norm by torch's kernel is off by 81 times as much as that of the formula."""

LEAST = 32
"""Elements that are compared together, at least: the error of one may be small by chance."""

FLIPPED = 1 / 16
"""An error of the reference, as a fraction of the largest element. It comes of a decision, such as a comparison."""

BLOCK = 1 << 15
"""Elements that are looked at together. torch takes one thread for so few: others that are busy need not be waited for.
Measured: 200 ms of processor time for 65,536 elements on two busy cores, 10 in blocks of this size."""

SPAN = 8
"""Binary exponents within which few elements are compared together; of dtypes with more than 16 digits all but so many.
"""

RUNS = (4, 12, 32)
"""How often the reference runs with noise, in all, before each look at the results."""


def disagreement(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    worse: float = WORSE,
) -> str:
    """Return in what a form's results differ from the reference's, in words; empty if they agree.

    1. Elements agree that differ by a few units in the last place.
    2. Otherwise the reference runs in float64. The form agrees if its errors are no larger than the reference's own.
       Elements of one magnitude are compared, so that large ones do not hide what small ones lost.
    3. Otherwise the reference runs with noise some times. What that does not change must be equal.

    Args:
        graph: the program.
        expected: what its reference returns for the inputs.
        worse: how many times the reference's error the form's may be.

    >>> import gtrace as gt
    >>> graph, x = gt.make_graph(lambda x: x * 2)(gt.ones(2)), torch.tensor([1.0, 2.0])
    >>> disagreement(graph, [x], [2 * x], [2 * x])
    ''
    >>> disagreement(graph, [x], [2 * x], [2 * x + 0.5])  # doctest: +ELLIPSIS
    'result 0 of mul...: 2 of 2 elements, by up to 0.5 where it is 2'
    """
    for k, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a.shape != b.shape or a.dtype is not b.dtype:
            return f"result {k} is {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}"
    far = {k: _far(a, b) for k, (a, b) in enumerate(zip(expected, got, strict=True))}
    open_ = [k for k, places in far.items() if len(places)]
    if not open_:
        return ""
    exact = in_float64(graph)(inputs)
    open_ = [k for k in open_ if not _is_as_exact(expected[k], got[k], exact[k], far[k], worse)]
    if not open_:
        return ""
    spread = [_distance(exact[k].to(expected[k].dtype), expected[k]) for k in open_]
    ran = 0
    for runs in RUNS:
        for seed in range(ran, runs):
            results = with_noise(graph, seed)(inputs)
            for j, k in enumerate(open_):
                spread[j] = torch.maximum(spread[j], _distance(results[k], expected[k]))
        ran = runs
        wrong = [(k, _beyond(expected[k], got[k], spread[j] * (worse / WORSE))) for j, k in enumerate(open_)]
        if not any(mask.any() for _, mask in wrong):
            return ""
    made = {node.out: (place, node) for place, node in enumerate(graph.nodes)}
    order = {k: made[value][0] if value in made else -1 for k, value in enumerate(graph.outputs)}
    first, mask = min(((k, mask) for k, mask in wrong if mask.any()), key=lambda pair: order[pair[0]])
    _, node = made.get(graph.outputs[first], (0, None))
    return _described(_name(first, node), expected[first], got[first], mask)


def _name(k: int, node: Node | None) -> str:
    """Return which result this is, and the operation that computes it."""
    of = "" if node is None else f" of {node.op.name}"
    return f"result {k}{of}" if node is None or not node.location else f"result {k}{of} ({node.location})"


def _described(name: str, expected: torch.Tensor, got: torch.Tensor, wrong: torch.Tensor) -> str:
    text = f"{name}: {int(wrong.sum())} of {wrong.numel()} elements"
    if not is_inexact(expected.dtype):
        return text
    off = torch.where(wrong, _distance(got, expected), -1.0).flatten()
    worst = int(off.argmax())
    return f"{text}, by up to {float(off[worst]):.3g} where it is {expected.flatten()[worst].item():.3g}"


def apart(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str:
    """Return how far apart results are that agree, in words.

    >>> apart([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])])
    'results were up to 0.25 of their largest element apart'
    """
    most = 0.0
    for a, b in zip(expected, got, strict=True):
        if not torch.equal(a, b):
            blocks = [(_float64(x), _float64(y)) for x, y in _blocks(a, b)]
            off, size = max(_largest(x - y) for x, y in blocks), max(_largest(x) for x, _ in blocks)
            most = max(most, off / max(size, torch.finfo().tiny))
    return f"results were up to {most:.2g} of their largest element apart" if most else "results were equal"


def _float64(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how far apart two tensors of one dtype are, in float64.

    Of integers that is 1 where they differ. Infinite: one alone is infinite or NaN there.
    """
    if not is_inexact(x.dtype):
        return (x != y).double()
    a, b = _float64(x), _float64(y)
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs()
    return torch.where(same, 0.0, torch.where(off.isnan(), math.inf, off))


def _ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the unit in the last place of each element of a float64 tensor, were it of this dtype."""
    powers = ((_exponents(x, dtype) + 1022) << 52).view(torch.float64)
    return torch.finfo(dtype).eps * powers


def _exponents(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return binary exponents of float64 numbers: of zeros the dtype's least, of infinities and NaN its most."""
    info = torch.finfo(dtype)
    bits = (x.abs().view(torch.int64) >> 52) - 1022
    return bits.clamp(math.frexp(info.smallest_normal)[1], math.frexp(info.max)[1])


def _largest(x: torch.Tensor) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    size = x.abs() if x.is_complex() else x
    low, high = torch.aminmax(size)
    most = float(torch.maximum(-low, high))
    return most if math.isfinite(most) else float(size.abs().nan_to_num(0.0, 0.0).max())


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield blocks of the elements of tensors of one shape."""
    return zip(*[x.reshape(-1).split(BLOCK) for x in tensors], strict=True)


def _far(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return the places of the elements, flattened, that differ by more than a few units in the last place."""
    dtype = expected.dtype
    if torch.equal(expected, got):
        return torch.empty(0, dtype=torch.int64)
    eps = torch.finfo(dtype).eps if is_inexact(dtype) else math.inf
    ulps = ULPS if eps < 1e-6 else 0  # a unit of a short dtype is a lot
    found = []
    for k, (a, b) in enumerate(_blocks(expected, got)):
        # as fast as can be: most are nearer than this, which is one to two of the units at most
        places = (
            ~((a - b).abs() <= ULPS / 4 * eps * a.abs()) if ulps else torch.ones_like(a, dtype=torch.bool)
        ).nonzero()
        places = places.flatten()
        a, b = a[places], b[places]
        off = _distance(b, a)
        found.append(places[off > (ulps * _ulp(_float64(a), dtype) if ulps else 0)] + k * BLOCK)
    return torch.cat(found)


def _is_as_exact(
    expected: torch.Tensor, got: torch.Tensor, exact: torch.Tensor, far: torch.Tensor, worse: float
) -> bool:
    """Whether a form's results are as near to those in float64 as the reference's are.

    Those that are far apart are compared by themselves first: mostly they are few, and about as exact.
    """
    dtype = expected.dtype
    if not is_inexact(dtype):
        return False
    a, b, c = expected.reshape(-1), got.reshape(-1), _float64(exact).reshape(-1)
    largest = max(map(_largest, c.split(BLOCK)))
    exponents = torch.cat([_exponents(x, dtype) for x in c.split(BLOCK)])
    exponents -= exponents.min()
    groups = _groups(exponents, dtype)

    def agree(some: torch.Tensor | slice) -> bool:
        own, other, unit = _distance(a[some], c[some]), _distance(b[some], c[some]), _ulp(c[some], dtype)
        return _are_as_exact(own, other, unit, groups[exponents[some]], largest, worse)

    return agree(far) or agree(slice(None))


def _are_as_exact(
    own: torch.Tensor, other: torch.Tensor, unit: torch.Tensor, group: torch.Tensor, largest: float, worse: float
) -> bool:
    """Whether errors are no larger than the reference's, group by group.

    Args:
        own, other: the errors of the reference, and of the form.
        unit: of each element, in the last place.
        largest: the magnitude of the largest of all elements.
    """
    if not own.max() <= FLIPPED * largest or not other.isfinite().all():
        return False
    count = int(group.max()) + 1
    most = torch.zeros(count, dtype=torch.float64, device=own.device).scatter_reduce(0, group, own, "amax")
    sizes = torch.bincount(group).clamp(min=1)

    def mean(x: torch.Tensor) -> torch.Tensor:
        """Return a mean in which few large errors do not hide many small ones."""
        return (torch.bincount(group, x.sqrt()) / sizes) ** 2

    worst = other <= worse * most[group] + ULPS * unit
    return bool(worst.all() and (mean(other) <= worse * mean(own) + mean(unit)).all())


def _groups(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a number for each exponent: elements of nearly one magnitude have the same one.

    Few elements go with those of the next magnitude, unless these are so large that their errors could hide them.

    Args:
        exponents: those of the elements, from 0 on.
    """
    apart = max(SPAN, -round(math.log2(torch.finfo(dtype).eps)) - SPAN)
    numbers, found, count, first = [], 0, 0, 0
    left = len(exponents)
    for exponent, more in enumerate(torch.bincount(exponents).tolist()):
        if more and count and ((count >= LEAST and left >= LEAST) or exponent - first > apart):
            found, count = found + 1, 0
        first = first if count else exponent
        numbers.append(found)
        count, left = count + more, left - more
    return torch.tensor(numbers, device=exponents.device)


def _beyond(expected: torch.Tensor, got: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Return which elements of a form's results differ by more than rounding can change.

    Args:
        spread: by how much results with noise differed from the expected ones, at most.
    """
    off = _distance(got, expected)
    if not is_inexact(expected.dtype):
        return (off > 0) & (spread == 0)
    exact = _float64(expected)
    # where the noise changed a decision, another one may have changed it further
    spread = torch.where(spread > exact.abs() * FLIPPED, 16 * spread, 2 * spread)
    return off > spread + ULPS * _ulp(exact, expected.dtype)
