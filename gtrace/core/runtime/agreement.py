"""Whether the results of a program's form agree with its reference, as far as rounding allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import Around
from gtrace.core.backends.interpreter.noise import noise
from gtrace.core.backends.interpreter.reference import visit, wide
from gtrace.core.base.rounding import is_inexact
from gtrace.core.base.spill import Kept, Spill
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

FURTHER = 16.0
"""A form's result may be off by so many times what noise changed, where that may be a decision; see `_excused`."""

BLOCK = 1 << 15
"""Elements that are looked at together. torch takes one thread for so few: others that are busy need not be waited for.
Measured: 200 ms of processor time for 65,536 elements on two busy cores, 10 in blocks of this size."""

SPAN = 8
"""Binary exponents within which few elements are compared together; of dtypes with more than 16 digits all but so many.
"""

_AS_THEY_ARE = frozenset({torch.float32, torch.float64})
"""The dtypes in which differences are computed that are only told, not judged."""

RUNS = (1, 2, 4, 8, 12, 20, 32)
"""How often the reference runs with noise, in all, before each look at the results. More runs only excuse more."""


def disagreement(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    worse: float = WORSE,
) -> str:
    """Return in what a form's results differ from the reference's, in words; empty if they agree.

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
    spill = Spill(math.inf)
    made = Comparison(graph, got, spill, worse)
    for k, (x, _) in enumerate(zip(expected, got, strict=True)):
        made.look(k, x)
    return made.problem([spill.keep(x) for x in inputs])


@attrs.frozen
class _Doubt:
    """A result that is not the reference's to a few units in the last place.

    Attributes:
        expected: the reference's.
        far: the places of the elements that differ by more.
    """

    expected: Kept
    far: torch.Tensor


class Comparison:
    """Compares the results of a form with the reference's as these arrive.

    1. Elements agree that differ by a few units in the last place.
    2. Of results in which others differ, the reference runs in float64. The form agrees if its errors are no larger
       than the reference's own. Elements of one magnitude are compared, so that large ones do not hide what small ones
       lost.
    3. Of results that differ by more, the reference runs with noise some times. What that does not change must be
       equal, and the rest may differ by twice what it changes: by more only where the reference itself is that far from
       its results in float64.

    Only what is in doubt is kept, and each run computes only what is still in doubt.

    Args:
        graph: the program.
        got: the results of the form.
        spill: keeps the reference's results, and what its runs compute.
        worse: how many times the reference's error the form's may be.
    """

    def __init__(self, graph: Graph, got: Sequence[torch.Tensor], spill: Spill, worse: float = WORSE) -> None:
        self._graph, self._got, self._spill, self._worse = graph, got, spill, worse
        self._problem = ""
        self._doubts: dict[int, _Doubt] = {}
        self._apart = 0.0

    @property
    def apart(self) -> str:
        """How far apart the results are, in words."""
        if not self._apart:
            return "results were equal"
        return f"results were up to {self._apart:.2g} of their largest element apart"

    def look(self, k: int, expected: torch.Tensor) -> None:
        """Compare a result with the reference's, which has just been computed."""
        got = self._got[k]
        if expected.shape != got.shape or expected.dtype is not got.dtype:
            wrong = f"result {k} is {got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
            self._problem = self._problem or wrong
            return
        if torch.equal(expected, got):
            return
        self._apart = max(self._apart, _apart(expected, got))
        far = _far(expected, got)
        if len(far):
            self._doubts[k] = _Doubt(self._spill.keep(expected), far)

    def problem(self, inputs: Sequence[Kept]) -> str:
        """Return what is wrong with the results, in words; empty if they agree. All of them were looked at."""
        if self._problem or not self._doubts:
            return self._problem
        exact: dict[int, Kept] = {}

        def look(k: int, x: torch.Tensor) -> None:
            doubt, x = self._doubts[k], _widened(x)
            if _is_as_exact(doubt.expected.get(), self._got[k], x, doubt.far, self._worse):
                self._spill.drop(self._doubts.pop(k).expected)
            else:
                exact[k] = self._spill.keep(x)

        self._run(inputs, look, wide)
        return self._beside_noise(inputs, exact) if self._doubts else ""

    def _run(self, inputs: Sequence[Kept], look: Callable[[int, torch.Tensor], None], around: Around) -> None:
        """Have the reference compute the results that are in doubt."""
        places = list(self._doubts)
        graph = attrs.evolve(self._graph, outputs=tuple([self._graph.outputs[k] for k in places]))
        visit(graph, inputs, lambda j, x: look(places[j], x), self._spill, around)

    def _beside_noise(self, inputs: Sequence[Kept], exact: Mapping[int, Kept]) -> str:
        """Return which results differ by more than what noise changes, in words; empty if none does.

        Args:
            exact: those in float64.
        """
        expected = {k: doubt.expected.get() for k, doubt in self._doubts.items()}
        own = {k: _distance(exact[k].get().to(x.dtype), x) for k, x in expected.items()}
        spread = dict(own)

        def look(k: int, x: torch.Tensor) -> None:
            spread[k] = torch.maximum(spread[k], _distance(x, expected[k]))

        ran = 0
        wrong: dict[int, torch.Tensor] = {}
        for runs in RUNS:
            for seed in range(ran, runs):
                self._run(inputs, look, noise(self._graph, seed))
            ran = runs
            factor = self._worse / WORSE
            wrong = {k: _beyond(x, self._got[k], _excused(x, own[k], spread[k]) * factor) for k, x in expected.items()}
            for k in [k for k, mask in wrong.items() if not mask.any()]:
                self._spill.drop(self._doubts.pop(k).expected)
                del expected[k], own[k], spread[k]
            if not self._doubts:
                return ""
        made = {node.out: (place, node) for place, node in enumerate(self._graph.nodes)}
        first = min(expected, key=lambda k: made.get(self._graph.outputs[k], (-1, None))[0])
        _, node = made.get(self._graph.outputs[first], (0, None))
        return _described(_name(first, node), expected[first], self._got[first], wrong[first])


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


def _apart(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return how far apart results are, at most, as a fraction of the largest element."""
    off = size = 0.0
    for a, b in _blocks(expected, got):
        if a.dtype not in _AS_THEY_ARE:
            a, b = _float64(a), _float64(b)
        off, size = max(off, _largest(a - b)), max(size, _largest(a))
    return off / max(size, torch.finfo().tiny)


def _float64(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _widened(x: torch.Tensor) -> torch.Tensor:
    return _float64(x) if is_inexact(x.dtype) else x


def _distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how far apart two tensors of one dtype are, in float64.

    Of integers that is 1 where they differ. Infinite: one alone is infinite or NaN there.
    """
    if not is_inexact(x.dtype):
        return (x != y).double()
    a, b = _float64(x), _float64(y)
    off = (a - b).abs()
    if math.isfinite(off.sum()):
        return off
    same = (a == b) | (a.isnan() & b.isnan())
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


def _excused(expected: torch.Tensor, own: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Return by how much each element of a form's results may differ because of rounding.

    Noise moves an element a lot in two cases. A decision falls out otherwise, and another one may move it further: then
    the reference, which is rounded too, has decided otherwise than in float64 here or there. Or many roundings add up,
    and noise, which is larger than they are, exaggerates them: then the reference is much nearer to float64 than its
    results with noise are to it, and a form that is further away than these has computed something else.

    Args:
        own: how far the reference is from its results in float64.
        spread: by how much its results with noise, and in float64, differed from the expected ones, at most.
    """
    if not is_inexact(expected.dtype):
        return spread
    moved = spread > _float64(expected).abs() * FLIPPED
    if not moved.any():
        return 2 * spread
    shares = torch.where(own == spread, 1.0, own / spread)[moved]  # infinities are equal
    return torch.where(moved, min(FURTHER, 2 + FURTHER * float(shares.max())), 2.0) * spread


def _beyond(expected: torch.Tensor, got: torch.Tensor, excused: torch.Tensor) -> torch.Tensor:
    """Return which elements of a form's results differ by more than rounding can change.

    Args:
        excused: by how much they may differ; of integers and booleans 0 where they may not.
    """
    off = _distance(got, expected)
    if not is_inexact(expected.dtype):
        return (off > 0) & (excused == 0)
    return off > excused + ULPS * _ulp(_float64(expected), expected.dtype)
