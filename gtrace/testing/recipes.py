"""How operations are drawn whose attributes or operands depend on shapes: one table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.base.devices import CPU
from gtrace.core.base.dtypes import SHORT
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Params
from gtrace.testing.nodes import Unfinished, broadcast, elementwise, partner, scalar
from gtrace.testing.require import st

Accepts = Callable[[Unfinished, Aval], bool]
Recipe = Callable[[st.DrawFn, Unfinished, int], int]
Named = Callable[[str, st.DrawFn, Unfinished, int], int]

RECIPES: dict[str, tuple[Accepts, Recipe]] = {}
"""For an operation: whether it takes a value as its first operand in a graph, and what draws and appends its node."""


def _recipe(*names: str, accepts: Callable[[Aval], bool] = lambda a: True) -> Callable[[Named], Named]:
    """Declare how operations are drawn."""

    def declare(recipe: Named) -> Named:
        for name in names:
            RECIPES[name] = (lambda graph, a: accepts(a)), functools.partial(recipe, name)
        return recipe

    return declare


def _attributes(*names: str, accepts: Callable[[Aval], bool] = lambda a: True) -> Callable[[Any], Any]:
    """Declare the attributes of operations of one operand: a function of `draw` and the operand's aval."""

    def declare(attributes: Callable[[st.DrawFn, Aval], Params]) -> Any:
        @_recipe(*names, accepts=accepts)
        def recipe(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
            return graph.add(name, [x], attributes(draw, graph.avals[x]))

        return attributes

    return declare


def _has_axes(a: Aval) -> bool:
    return bool(a.shape) and a.size > 0 and a.dtype is not torch.bool


def _has_float_axes(a: Aval) -> bool:
    return _has_axes(a) and a.floating


def _axis(draw: st.DrawFn, a: Aval) -> int:
    return draw(st.integers(0, len(a.shape) - 1))


def _axes(draw: st.DrawFn, a: Aval) -> tuple[int, ...]:
    return tuple(sorted(draw(st.sets(st.integers(0, len(a.shape) - 1), min_size=1))))


@_attributes("sum", "max", "min", accepts=_has_axes)
@_attributes("mean", "logsumexp", accepts=_has_float_axes)
@_attributes("any", "all", accepts=lambda a: bool(a.shape) and a.dtype is torch.bool)
def _reduction(draw: st.DrawFn, a: Aval) -> Params:
    return _axes(draw, a), draw(st.booleans())


@_attributes("prod", "argmax", "argmin", accepts=_has_axes)
@_attributes("sort", "argsort", accepts=_has_axes)
def _along_an_axis_with_a_flag(draw: st.DrawFn, a: Aval) -> Params:
    return _axis(draw, a), draw(st.booleans())


@_attributes("cumsum", accepts=_has_axes)
def _cumsum(draw: st.DrawFn, a: Aval) -> Params:
    return (_axis(draw, a),)


@_attributes("softmax", "log_softmax", accepts=_has_float_axes)
def _softmax(draw: st.DrawFn, a: Aval) -> Params:
    return (_axis(draw, a),)


@_attributes("flip", accepts=lambda a: bool(a.shape))
def _flip(draw: st.DrawFn, a: Aval) -> Params:
    return (_axes(draw, a),)


@_attributes("permute", accepts=lambda a: len(a.shape) > 1)
def _permute(draw: st.DrawFn, a: Aval) -> Params:
    return (tuple(draw(st.permutations(range(len(a.shape))[::-1]))),)


@_attributes("reshape")
def _reshape(draw: st.DrawFn, a: Aval) -> Params:
    return (draw(st.sampled_from([(a.size,), a.shape[::-1], (1, *a.shape), (*a.shape, 1)])),)


@_attributes("broadcast_to")
def _broadcast_to(draw: st.DrawFn, a: Aval) -> Params:
    wide = tuple(3 if n == 1 else n for n in a.shape)
    return (draw(st.sampled_from([(2, *a.shape), wide, (3, *wide)])),)


@_attributes("sum_to", accepts=lambda a: a.dtype is not torch.bool)
def _sum_to(draw: st.DrawFn, a: Aval) -> Params:
    kept = draw(st.integers(0, len(a.shape)))
    shape = a.shape[len(a.shape) - kept :]
    return (tuple(1 if draw(st.booleans()) else n for n in shape),)


@_attributes("slice", accepts=lambda a: bool(a.shape) and a.size > 0)
def _slice(draw: st.DrawFn, a: Aval) -> Params:
    bounds = []
    for n in a.shape:
        start = draw(st.integers(0, n - 1))
        bounds.append((start, draw(st.integers(start + 1, n)), draw(st.integers(1, 2))))
    return (tuple(bounds),)


@_attributes("unslice")
def _unslice(draw: st.DrawFn, a: Aval) -> Params:
    around = [(draw(st.integers(0, 1)), draw(st.integers(0, 1))) for _ in a.shape]
    shape = tuple(low + n + high for (low, high), n in zip(around, a.shape, strict=True))
    return shape, tuple((low, low + n, 1) for (low, _), n in zip(around, a.shape, strict=True))


@_attributes("roll", accepts=lambda a: bool(a.shape))
def _roll(draw: st.DrawFn, a: Aval) -> Params:
    axes = _axes(draw, a)
    return tuple(draw(st.integers(-1, 2)) for _ in axes), axes


@_attributes("tril", "triu", accepts=lambda a: len(a.shape) > 1)
def _triangle(draw: st.DrawFn, a: Aval) -> Params:
    return (draw(st.integers(-1, 1)),)


@_attributes("one_hot", accepts=lambda a: a.dtype is torch.int64)
def _one_hot(draw: st.DrawFn, a: Aval) -> Params:
    return draw(st.integers(1, 3)), draw(st.integers(0, len(a.shape))), "f32"


@_attributes("integer_pow", accepts=lambda a: a.dtype is not torch.bool)
def _integer_pow(draw: st.DrawFn, a: Aval) -> Params:
    return (draw(st.integers(0, 3)),)


@_attributes("gelu", accepts=lambda a: a.floating)
def _gelu(draw: st.DrawFn, a: Aval) -> Params:
    return (draw(st.booleans()),)


@_attributes("stop_gradient", "identity")
def _nothing(draw: st.DrawFn, a: Aval) -> Params:
    return ()


@_recipe("astype")
def _astype(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    def steady(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point or not graph.continuous or not graph.avals[x].floating

    # 0.5 is no boolean that users would ask for
    dtypes = [d for d in graph.dtypes if steady(d) and d is not torch.bool] or [graph.avals[x].dtype]
    return graph.add(name, [x], (SHORT[draw(st.sampled_from(dtypes))],))


@_recipe("full", accepts=lambda a: not a.shape)
def _full(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    return graph.add(name, [x], (shape, str(CPU)))


@_recipe("where")
def _where(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    shape = graph.avals[x].shape
    tests = graph.where(lambda b: b.dtype is torch.bool and broadcast(shape, b.shape))
    chosen: Operand = draw(st.sampled_from(tests)) if tests else Scalar(True, aval((), torch.bool, weak=True))
    wide = numpy.broadcast_shapes(shape, graph.kind(chosen).shape)
    dtype = graph.avals[x].dtype
    other = draw(st.sampled_from(graph.where(lambda b: b.dtype is dtype and broadcast(wide, b.shape))))
    return graph.add(name, [chosen, *draw(st.permutations([x, other]))])


@_recipe("floor_divide", "remainder", "fmod", accepts=lambda a: a.dtype is not torch.bool)
def _quotient(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]
    if not a.floating:
        # integers divided by zero raise
        return graph.add(name, [x, scalar(draw, a.dtype)])
    return elementwise(REGISTRY[name], draw, graph, x)


@_recipe("pow", accepts=lambda a: a.floating)
def _pow(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    return elementwise(REGISTRY[name], draw, graph, x)


@_recipe("bitwise_left_shift", "bitwise_right_shift", accepts=lambda a: not a.floating and a.dtype is not torch.bool)
def _shift(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    # by more than the width has no meaning
    return graph.add(name, [x, scalar(draw, graph.avals[x].dtype)])


@_recipe("pad", accepts=lambda a: a.dtype is not torch.bool)
def _pad(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]
    widths = tuple((draw(st.integers(0, 1)), draw(st.integers(0, 2))) for _ in a.shape)
    return graph.add(name, [x, scalar(draw, a.dtype)], (widths,))


@_recipe("concat", accepts=lambda a: bool(a.shape))
def _concat(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]
    axis = _axis(draw, a)

    def joins(b: Aval) -> bool:
        rest = (b.shape[:axis], b.shape[axis + 1 :])
        return b.dtype is a.dtype and len(b.shape) == len(a.shape) and rest == (a.shape[:axis], a.shape[axis + 1 :])

    others = draw(st.lists(st.sampled_from(graph.where(joins)), min_size=1, max_size=2))
    return graph.add(name, draw(st.permutations([x, *others])), (axis,))


@_recipe("slice_update", accepts=lambda a: bool(a.shape) and a.size > 0)
def _slice_update(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]

    def fits(b: Aval) -> bool:
        smaller = len(b.shape) == len(a.shape) and all(m <= n for m, n in zip(b.shape, a.shape, strict=True))
        return b.dtype is a.dtype and smaller

    update = draw(st.sampled_from(graph.where(fits)))
    bounds = []
    for m, n in zip(graph.avals[update].shape, a.shape, strict=True):
        start = draw(st.integers(0, n - m))
        bounds.append((start, start + m, 1))
    return graph.add(name, [x, update], (tuple(bounds),))


@_recipe("matmul", accepts=lambda a: a.floating and len(a.shape) in (1, 2))
def _matmul(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]
    partners = graph.where(lambda b: b.dtype is a.dtype and len(b.shape) in (1, 2) and a.shape[-1] == b.shape[-2:][0])
    other = draw(st.sampled_from(partners)) if partners else graph.add("permute", [x], ((1, 0),))
    return graph.add(name, [x, other])


@_recipe("gelu_grad", accepts=lambda a: a.floating)
def _gelu_grad(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    return graph.add(name, [x, partner(draw, graph, x, graph.avals[x].shape, scalars=False)], (draw(st.booleans()),))


@_recipe("relu_grad", accepts=lambda a: a.floating)
def _relu_grad(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    return graph.add(name, [x, partner(draw, graph, x, graph.avals[x].shape, scalars=False)])


@_recipe("log_softmax_grad", accepts=_has_float_axes)
def _log_softmax_grad(name: str, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    a = graph.avals[x]
    other = draw(st.sampled_from(graph.where(lambda b: b is a)))
    return graph.add(name, [x, other], (_axis(draw, a),))
