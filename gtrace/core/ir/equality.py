"""Whether what a rewrite puts in the place of values computes these values. A rewrite that does not is left out.

Both forms are evaluated in float64, from the operands of the new one to every value that it replaces. Each operand is
drawn, numbers that are inputs included. Special operands come too: equal elements, tiny and large numbers, masks that
hide whole rows. Large sizes become small ones, where the program allows that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.dtypes import INEXACT
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.small_sizes import Step, each, small_sizes

TOLERANCE = 1e-9
"""How far equal values may be apart, as a part of the largest in their row."""

NOISE = 2.0**-50
"""By how much each value is moved to see what rounding can change."""

WORSE = 64.0
"""Values may be so many times further apart than the noise puts them."""

MOST = 1 << 20
"""Elements of an array that is evaluated at its own size, at most."""

SPECIAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal": lambda x: torch.full_like(x, 3.0),
    "tiny": lambda x: x * 1e-20,
    "large": lambda x: x * 1e6,
}
"""Operands beside usual ones."""

_known: BoundedTable[Any, bool] = BoundedTable(4096)


def computes(
    before: Values, after: Mapping[int, Node], replaced: Collection[int],
    allowed: Collection[int] = (), infinite: Collection[int] = (), ordinary: Collection[int] = (),
) -> bool:  # fmt: skip
    """Whether new operations compute the values that they replace.

    Args:
        before: the program.
        after: the operations of the new one, by what they assign. Values of both programs have the same numbers.
        replaced: values of the program that new operations assign.
        allowed: values that may be decided by comparisons, or by functions with cases.
        infinite: operands that may be minus infinity.
        ordinary: operands that are neither zero nor large, or of which no more is claimed.
    """
    fresh, starts = before.graph.fresh, list(replaced)
    if not starts:
        return True
    new = _ordered(after, starts, lambda value: value < fresh and value not in before.constants)
    if new is None:
        return False
    computed = {node.out for node in new} - set(starts)
    given = list(dict.fromkeys(x for node in new for x in node.values() if x not in computed))
    old = _ordered(before.made, starts, set(given).__contains__)
    if old is None or _decides(old, given, allowed):  # it depends on what the new operations do not take
        return False
    avals = [before.avals[x] for x in given]
    if any(not isinstance(a, Aval) for a in avals):
        return False
    programs = [_numbered(nodes, given, starts) for nodes in (old, new)]
    kinds = tuple("infinite" if x in infinite else "ordinary" if x in ordinary else "" for x in given)
    key = (tuple(avals), kinds, *[(tuple(steps), tuple(results)) for steps, results in programs])
    known = _known.get(key)
    if known is None:
        known = _are_equal(avals, programs, kinds)
        _known.remember(key, known)
    return known


def keeps_values(before: Graph, after: Graph) -> bool:
    """Whether a rewritten program computes each value that both have as before.

    >>> graph = gt.make_graph(lambda x: x * 2.0)(gt.ones(3))
    >>> keeps_values(graph, gt.make_graph(lambda x: x + x)(gt.ones(3)))
    True
    >>> keeps_values(graph, gt.make_graph(lambda x: x * x)(gt.ones(3)))
    False
    """
    if after is before:
        return True
    made = {node.out: node for node in after.nodes}
    values = None
    for node in before.nodes:
        new = made.get(node.out)
        if new is not None and (new.instr is not node.instr or new.ins != node.ins):
            values = values or Values(before)
            if not computes(values, made, (node.out,)):
                return False
    return True


def evaluated(
    values: Values, nodes: Sequence[Node], given: Sequence[int], first: Callable[[torch.Tensor], object]
) -> dict[int, Any] | None:
    """Return what operations compute of operands that are drawn, by value; None: only at sizes that are too large.

    Args:
        first: changes the first operand, in place.

    >>> graph = gt.make_graph(lambda x: x + 1)(gt.ones((100, 2)))
    >>> found = evaluated(Values(graph), graph.nodes, graph.inputs, lambda x: x.zero_())
    >>> found[graph.outputs[0]].shape, float(found[graph.outputs[0]].sum())
    (torch.Size([5, 2]), 10.0)
    """
    avals = [values.avals[x] for x in given]
    steps, results = _numbered(nodes, given, [node.out for node in nodes])
    for sizes in small_sizes(avals, [steps]):
        made = sizes.program(avals, steps)
        if made is not None and (sizes.of or _largest_size(avals, [steps]) <= MOST):
            inputs = next(_draws([sizes.aval(a) for a in avals], (), special=False))
            first(inputs[0])
            found = [*inputs, *_Program(made, results)(inputs)]
            return dict(zip([*given, *[node.out for node in nodes]], found, strict=True))
    return None


def _ordered(made: Mapping[int, Node], starts: Sequence[int], given: Callable[[int], bool]) -> list[Node] | None:
    """Return the operations that compute some values from what is given; None: something else is an operand."""
    order: dict[int, Node] = {}
    stack = list(reversed(starts))
    while stack:
        node = made.get(stack[-1])
        if node is None:
            return None
        missing = [x for x in node.values() if x not in order and not given(x)]
        if missing:
            stack += reversed(missing)
        else:
            order[stack.pop()] = node
    return list(order.values())


def _decides(nodes: Sequence[Node], given: Sequence[int], allowed: Collection[int]) -> bool:
    """Whether operands decide between cases: the rewrite removes that, and draws may not reach all of them."""
    depends = set(given)
    for node in nodes:
        op = node.op
        if depends.isdisjoint(node.values()):
            continue
        depends.add(node.out)
        if node.out in allowed:
            continue
        if op.rules.body is not None or op.effect or op.collective is not None or op.cipher:
            return True
        linear = bool(op.rules.linear) or op.rules.multilinear or op.contraction is not None
        smooth = op.algebraic or op.moves or op.projection or linear
        rounds = any(a.dtype not in INEXACT for a in each(node.instr.aval)) and any(
            a.dtype in INEXACT for x in node.instr.ins for a in each(x)
        )
        if not smooth or rounds:
            return True
    return False


def _numbered(nodes: Sequence[Node], given: Sequence[int], starts: Sequence[int]) -> tuple[list[Step], list[int]]:
    """Return the operations with values numbered from the operands on, and the numbers of the results."""
    place = {value: k for k, value in enumerate(given)}
    made: dict[int, int] = {}
    steps = []
    for k, node in enumerate(nodes, len(given)):
        ins = tuple([x if isinstance(x, Scalar) else place[x] if x in place else made[x] for x in node.ins])
        steps.append((node.instr, ins))
        made[node.out] = k
    return steps, [made[value] for value in starts]


def _are_equal(avals: Sequence[Aval], programs: Sequence[tuple[list[Step], list[int]]], kinds: Sequence[str]) -> bool:
    """Whether two programs have equal results: at two small sizes, or, where these do not tell, at their own."""
    shrunk = 0
    for sizes in small_sizes(avals, [steps for steps, _ in programs]):
        own = not sizes.of
        if own and _largest_size(avals, [steps for steps, _ in programs]) > MOST:
            return False
        found = [(sizes.program(avals, steps), results) for steps, results in programs]
        made = [_Program(steps, results) for steps, results in found if steps is not None]
        drawn = _draws([sizes.aval(a) for a in avals], kinds, special=not shrunk)
        equal = len(made) == len(programs) and all(_agree(made, inputs) for inputs in drawn)
        if own:
            return equal
        shrunk += equal
        if shrunk == 2:
            return True
    return False


def _largest_size(avals: Sequence[Aval], programs: Sequence[Sequence[Step]]) -> int:
    """Return the elements of the largest array."""
    made = [a for steps in programs for instr, _ in steps for a in each(instr.aval)]
    return max(a.size for a in [*avals, *made])


def _draws(avals: Sequence[Aval], kinds: Sequence[str], special: bool) -> Iterator[list[torch.Tensor]]:
    """Yield operands: usual ones, then one after the other is special."""
    generator = torch.Generator().manual_seed(0)
    usual = [_usual(a, generator) for a in avals]
    yield usual
    for k, x in enumerate(usual) if special else ():
        others: list[torch.Tensor] = []
        if x.dtype is torch.bool:
            others = [torch.ones_like(x), torch.zeros_like(x), _rows(x, True), _rows(x, False)]
        elif x.dtype in INEXACT and kinds[k] != "ordinary":
            others = [change(x) for change in SPECIAL.values()]
        if kinds[k] == "infinite":
            many = torch.where(_usual_mask(x.shape, generator), x, -math.inf)
            few = torch.where(many.isinf(), -1e9, x)
            others += [many, _rows(many, -math.inf), few, _rows(few, -1e9)]
        for other in others:
            yield [*usual[:k], other, *usual[k + 1 :]]


def _usual(a: Aval, generator: torch.Generator) -> torch.Tensor:
    if a.dtype is torch.bool:
        return _usual_mask(a.shape, generator)
    if a.dtype in INEXACT:
        return torch.randn(a.shape, dtype=a.dtype, generator=generator)
    return torch.randint(0, 4, a.shape, dtype=a.dtype, generator=generator)


def _usual_mask(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Return a mask with both values in each row."""
    mask = torch.rand(tuple(shape), generator=generator) < 0.6
    if shape and shape[-1] > 1:
        mask[..., 0], mask[..., 1] = True, False
    return mask


def _rows(x: torch.Tensor, value: Any) -> torch.Tensor:
    """Return an array of which every second row has one value."""
    rows = x.clone().reshape(-1, x.shape[-1] if x.dim() else 1)
    rows[::2] = value
    return rows.reshape(x.shape)


def _agree(programs: Sequence[_Program], inputs: Sequence[torch.Tensor]) -> bool:
    try:
        found, other = (program(inputs) for program in programs)
        if all(map(is_close, found, other)):
            return True
        noisy = programs[0](inputs, torch.Generator().manual_seed(1))
    except (RuntimeError, IndexError, ValueError):
        return False  # torch refuses such operands
    return all(map(is_close, found, other, [(x - y).abs() for x, y in zip(found, noisy, strict=True)]))


def is_close(x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None = None) -> bool:
    """Whether values are equal but for rounding: NaNs and infinities at the same places."""
    if x.shape != y.shape or x.dtype is not y.dtype:
        return False
    if x.dtype not in INEXACT:
        return torch.equal(x, y)
    bound = TOLERANCE * _largest(x)
    if noise is not None:
        bound = bound + WORSE * noise.nan_to_num(0.0, 0.0).amax()
    near = x.isfinite() & y.isfinite() & ((x - y).abs() <= bound)
    return bool((near | (x == y) | (x.isnan() & y.isnan())).all())


def _largest(x: torch.Tensor) -> torch.Tensor:
    """Return the largest finite element of each row."""
    size = x.abs().nan_to_num(0.0, 0.0)
    return size.amax(-1, keepdim=True) if x.dim() and x.shape[-1] else size


class _Program:
    """A program that is called with tensors."""

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        self._results = results
        self._steps = [
            (
                instr.kernel(),
                dict(zip(instr.op.params, instr.params, strict=True)),
                [torch.tensor(x.value, dtype=x.aval.dtype) if isinstance(x, Scalar) else x for x in ins],
                not instr.op.moves and isinstance(instr.aval, Aval) and instr.aval.dtype in INEXACT,
            )
            for instr, ins in steps
        ]

    def __call__(self, inputs: Sequence[torch.Tensor], noise: torch.Generator | None = None) -> list[torch.Tensor]:
        """Return the results; with `noise`, each value is moved by some roundings."""
        env: list[Any] = list(inputs) if noise is None else [_moved(x, noise) for x in inputs]
        for function, attributes, ins, rounds in self._steps:
            found = function(*[env[x] if x.__class__ is int else x for x in ins], **attributes)
            env.append(_moved(found, noise) if rounds and noise is not None else found)
        return [env[k] for k in self._results]


def _moved(x: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """Return an array of which each element is moved up or down by some roundings."""
    if x.dtype not in INEXACT:
        return x
    return x * (1 + NOISE * (torch.randint(0, 2, x.shape, dtype=torch.float64, generator=noise) * 2 - 1))
