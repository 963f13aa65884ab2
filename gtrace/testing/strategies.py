"""Strategies for dtypes, shapes, arrays and pytrees."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core.base.dtypes import COMPLEX, DTYPES, FLOAT8, FLOATS, WIDE_UNSIGNED, DType
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import from_torch
from gtrace.testing.require import st, st_numpy

Shape = tuple[int, ...]
Pair = collections.namedtuple("Pair", ["first", "second"])

MAX_DRAWN = 64
"""Elements of an array that are drawn one by one."""

SPECIAL = [float("nan"), float("inf"), float("-inf"), -0.0, 1e-6, 1e30, 1e-40]
"""Floating values at which implementations differ."""


def dtypes(*, floating: bool | None = None) -> st.SearchStrategy[torch.dtype]:
    """Draw a dtype that most operations take: real, and unsigned with 8 bits at most. Shrinks to float32.

    Args:
        floating: only floating dtypes, or only the others.

    >>> from hypothesis import given
    >>> @given(dtypes(floating=False))
    ... def test(dtype):
    ...     assert not dtype.is_floating_point
    >>> test()
    """
    order = [torch.float32, torch.float64, torch.int64, torch.bool]
    order += [d for d in DTYPES.values() if d not in order and d not in COMPLEX | WIDE_UNSIGNED | FLOAT8]
    return st.sampled_from([d for d in order if floating is None or d.is_floating_point == floating])


def shapes(
    *, min_dims: int = 0, max_dims: int = 3, min_side: int = 1, max_side: int = 3
) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a shape; shrinks to few and short axes. ``min_side=0`` draws empty arrays too.

    >>> from hypothesis import given
    >>> @given(shapes(min_dims=1))
    ... def test(shape):
    ...     assert 1 <= len(shape) <= 3
    >>> test()
    """
    side = st.integers(min_side, max_side)
    return st.lists(side, min_size=min_dims, max_size=max_dims).map(tuple)


def mutually_broadcastable_shapes(
    n: int, *, max_dims: int = 3, min_side: int = 1, max_side: int = 3
) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    """Draw `n` shapes that broadcast to one.

    >>> from hypothesis import given
    >>> @given(mutually_broadcastable_shapes(3))
    ... def test(three):
    ...     numpy.broadcast_shapes(*three)
    >>> test()
    """
    found = st_numpy.mutually_broadcastable_shapes(
        num_shapes=n, max_dims=max_dims, min_side=min_side, max_side=max_side
    )
    return found.map(lambda both: both.input_shapes)


def numbers(dtype: Any, *, special: bool = False) -> st.SearchStrategy[Any]:
    """Draw a Python number for an array of `dtype`.

    Floating numbers are eighths between -2 and 2, so that a few sums and products of them are exact in every floating
    dtype; integers are small. With `special`, NaN, infinities, the negative zero, tiny and huge numbers occur, and the
    ends of an integer dtype.

    >>> from hypothesis import given
    >>> @given(numbers(torch.float16))
    ... def test(number):
    ...     assert -2 <= number <= 2
    >>> test()
    """
    dtype = DType(dtype).torch
    if dtype is torch.bool:
        return st.booleans()
    if dtype in FLOATS:
        plain = st.integers(-16, 16).map(lambda k: k / 8)
        return plain | st.sampled_from(SPECIAL) if special else plain
    if dtype in COMPLEX:
        parts = numbers(torch.float64, special=special)
        return st.builds(complex, parts, parts)
    info = torch.iinfo(dtype)
    small = st.integers(max(-3, info.min), 3)
    return small | st.sampled_from([info.min, info.max]) if special else small


@st.composite
def arrays(
    draw: st.DrawFn,
    dtype: Any | st.SearchStrategy[Any] | None = None,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    *,
    elements: st.SearchStrategy[Any] | None = None,
    special: bool = False,
    as_numpy: bool = False,
) -> Any:
    """Draw a ``gt.Array``.

    Args:
        dtype, shape: what they are, or strategies for them; default: `dtypes` and `shapes`.
        elements: a strategy for the numbers; default: `numbers` of the dtype.
        special: whether the default numbers are to have NaN, infinities and the like among them.
        as_numpy: draw a NumPy array instead; bfloat16 becomes float32.

    >>> from hypothesis import given
    >>> @given(arrays(gt.float64, shapes(max_dims=2)))
    ... def test(x):
    ...     assert (gt.flip(gt.flip(x)) == x).all()
    >>> test()
    """
    given = draw(dtypes()) if dtype is None else draw(dtype) if isinstance(dtype, st.SearchStrategy) else dtype
    kind = DType(given).torch
    sides = draw(shapes()) if shape is None else draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    values = numbers(kind, special=special) if elements is None else elements
    wide = numpy.float64 if kind in FLOATS else numpy.bool_ if kind is torch.bool else numpy.int64
    if kind in COMPLEX or kind is torch.uint64:
        wide = numpy.complex128 if kind in COMPLEX else numpy.uint64
    # an array of one repeated number would hide much: only large ones are filled
    fill = st.nothing() if math.prod(sides) <= MAX_DRAWN else None
    tensor = torch.from_numpy(draw(st_numpy.arrays(wide, sides, elements=values, fill=fill))).to(kind)
    if as_numpy:
        return (tensor.float() if kind is torch.bfloat16 else tensor).numpy()
    return from_torch(tensor)


def pytrees(leaves: st.SearchStrategy[Any], *, max_leaves: int = 5) -> st.SearchStrategy[Any]:
    """Draw a pytree of `leaves`: a leaf, None, or lists, tuples, dicts and named tuples of pytrees.

    >>> from hypothesis import given
    >>> @given(pytrees(arrays(gt.float32)))
    ... def test(tree):
    ...     leaves, structure = gt.tree.flatten(tree)
    ...     assert gt.tree.structure(structure.unflatten(leaves)) == structure
    >>> test()
    """
    return st.recursive(
        leaves | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
            | st.builds(Pair, inner, inner)
        ),
        max_leaves=max_leaves,
    )


def arguments(graph: Graph, *, special: bool = False) -> st.SearchStrategy[list[Array]]:
    """Draw an Array for each input of a graph.

    >>> from hypothesis import given, strategies as st
    >>> from gtrace.testing import as_function
    >>> from gtrace.testing import graphs
    >>> @given(st.data())
    ... def test(data):
    ...     graph = data.draw(graphs(max_nodes=3))
    ...     outputs = as_function(graph)(*data.draw(arguments(graph)))
    ...     assert [y.shape for y in outputs] == [a.shape for a in graph.out_avals]
    >>> test()
    """
    return arrays_like(graph.avals, special=special)


def arrays_like(avals: Sequence[Aval], *, special: bool = False) -> st.SearchStrategy[list[Array]]:
    """Draw an Array for each aval.

    >>> from hypothesis import given
    >>> from gtrace.core.ir.aval import parse_aval
    >>> @given(arrays_like([parse_aval("f32[2]"), parse_aval("i64[]")]))
    ... def test(drawn):
    ...     assert [x.shape for x in drawn] == [(2,), ()]
    >>> test()
    """
    return st.tuples(*[arrays(a.dtype, a.shape, special=special) for a in avals]).map(list)
