"""Traces functions without values: ``eval_shape`` and ``make_graph``; ``from_graph`` turns graphs into functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import tree
from gtrace.core.base.devices import as_device
from gtrace.core.base.dtypes import DType
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.ir.aval import Aval, aval, sharded
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.ir.verify import verify
from gtrace.core.ops.key_arrays import KeyType, keys_of
from gtrace.core.ops.operands import cast, with_avals
from gtrace.core.ops.shape import as_shape
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import Captured, capture, replay
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.transform.arguments import is_array, lift_outputs, name_of, named, without_empty

__all__ = ["ShapeDtypeStruct", "eval_shape", "from_graph", "make_graph"]


class OpenSize:
    """A size that has no value, such as an expression of names: for libraries that give it one."""

    __slots__ = ()


def _as_sizes(shape: Any) -> tuple[Any, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(n if _is_open(n) else as_shape("ShapeDtypeStruct", n)[0] for n in sizes)


def _is_open(n: Any) -> bool:
    return isinstance(n, OpenSize) or (isinstance(n, str) and n.isidentifier())


@attrs.frozen(repr=False)
class ShapeDtypeStruct:
    """The shape, dtype and device of an array that need not exist.

    A size may be a name, which `gtrace.export` leaves open. A sharding is for `gtrace.sharding.plan`. One of torch's
    dtypes keeps its width (`exact`), whatever the setting `x64` is.

    >>> ShapeDtypeStruct((2, 3), "float32")
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    shape: tuple[Any, ...] = attrs.field(converter=_as_sizes)
    dtype: DType = attrs.field(converter=DType)
    device: torch.device = attrs.field(default=None, converter=as_device)
    sharding: NamedSharding | None = attrs.field(default=None, kw_only=True)
    exact: bool = attrs.field(init=False, repr=False, eq=False)

    def __attrs_pre_init__(self, shape: Any, dtype: Any, *_: Any, **__: Any) -> None:
        object.__setattr__(self, "exact", isinstance(dtype, torch.dtype))

    def __new__(cls, shape: Any = None, dtype: Any = None, *_: Any, **__: Any) -> Any:
        """Return a new object; for the dtype of keys, an array of keys."""
        return keys_of(cls(shape, torch.int64), dtype) if isinstance(dtype, KeyType) else object.__new__(cls)

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """Return the shape and the dtype of an array, or of keys."""
        return cls(x.shape, x.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        where = "" if self.device.type == "cpu" else f", device={self.device}"
        where += "" if self.sharding is None else f", sharding={self.sharding}"
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype}{where})"


del ShapeDtypeStruct.__attrs_attrs__  # dm-tree takes instances of attrs classes apart


def aval_of(name: str, x: ShapeDtypeStruct) -> Aval:
    """Return the aval of the arrays that `x` describes; raise an ArgumentError if a size is a name."""
    if any(map(_is_open, x.shape)):
        fix = "Names of sizes are for gt.export, and expressions of them for jax.export and jax.eval_shape."
        raise ArgumentError(message(name, "sizes that are numbers", repr(x), fix))
    plain = aval(x.shape, x.dtype.torch if x.exact else as_dtype(x.dtype), x.device)
    divided = isinstance(x.sharding, NamedSharding) and not x.sharding.mesh.empty
    return sharded(plain, x.sharding) if divided else plain  # type: ignore[arg-type]


def capture_like(name: str, f: Callable[..., Any], args: Any, kwargs: Any, tokens: str = "refused") -> Captured:
    """Capture `f` for pytrees of arrays, numbers or `ShapeDtypeStruct`, and raise for others; errors call it `name`.

    Args:
        tokens: as in `capture`.
    """
    if not callable(f):
        raise ArgumentError(message(name, "a function", type(f).__name__, "Pass a callable."))
    leaves, structure = without_empty(*tree.flatten((args, kwargs)))
    avals: list[Aval] = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, ShapeDtypeStruct):
            avals.append(aval_of(name, leaf))
        elif is_array(leaf):
            avals.append(lift(name, leaf).aval)
        else:
            got = f"{type(leaf).__name__} at {tree.paths((args, kwargs))[k]}"
            raise ArgumentError(message(name, "arrays, numbers or ShapeDtypeStructs", got, "Close over it instead."))

    def run(inputs: Sequence[Array]) -> Any:
        rebuilt: Any = structure.unflatten(inputs)
        return lift_outputs(name, f(*rebuilt[0], **rebuilt[1]))

    return capture(run, avals, f"{name}({name_of(f)}) called at {user_location()}", tokens=tokens)


def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of `f` with a `ShapeDtypeStruct` for each array, without computing it.

    A `ShapeDtypeStruct` that `f` returns stays.

    Args:
        args, kwargs: pytrees of arrays, numbers or `ShapeDtypeStruct`.

    Raises:
        ConcretizationError: `f` reads a value.

    >>> gt.eval_shape(lambda x, y: x @ y, gt.ShapeDtypeStruct((512, 1024), "float32"), gt.ones((1024, 8)))
    ShapeDtypeStruct(shape=(512, 8), dtype=float32)
    """
    kept: dict[int, ShapeDtypeStruct] = {}

    def run(*positional: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten(f(*positional, **keywords))
        leaves, structure = without_empty(leaves, structure)
        kept.update({k: x for k, x in enumerate(leaves) if isinstance(x, ShapeDtypeStruct)})
        return structure.unflatten([0 if k in kept else x for k, x in enumerate(leaves)])

    captured = capture_like("eval_shape", named(run, f) if callable(f) else f, args, kwargs, "if any")
    avals = () if captured.token else captured.graph.out_avals
    found = [ShapeDtypeStruct(a.shape, a.dtype, a.device) for a in avals]
    return captured.result.unflatten([kept.get(k, x) for k, x in enumerate(found)])


def make_graph(f: Callable[..., Any]) -> Callable[..., Graph]:
    """Return a function that records `f` for example arguments and returns the unchanged graph.

    Arguments may be `ShapeDtypeStruct`. The inputs of the graph are the leaves of the arguments, then the outside
    Arrays that `f` uses. `from_graph` is the inverse.

    Raises (when called):
        ArgumentError: an argument is not an array.
        ConcretizationError: `f` reads a value.

    >>> print(gt.make_graph(lambda x: (x + 1).sum())(gt.ones(2)))
    graph(%0: f32[2]) {
      %1: f32[2] = add(%0, 1.0:f32[]~)
      %2: f32[] = sum(%1) {axes=(0,), keepdims=False}
      return %2
    }
    """
    return lambda *args, **kwargs: capture_like("make_graph", f, args, kwargs).graph


def from_graph(graph: Graph) -> Callable[..., Any]:
    """Return a graph as a function that records the graph's operations on its arguments.

    It takes one array per input. It returns an array, or a tuple unless there is exactly one output. It can be jitted,
    differentiated and batched like any function. An argument of int32 may stand for one of int64.

    Raises:
        GraphError: `graph` violates a rule.
        ArgumentError: (when called) the arguments do not match the inputs of the graph.

    >>> graph = gt.make_graph(lambda x: gt.sin(x) * 2)(gt.ones(3))
    >>> gt.from_graph(graph)(gt.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """
    verify(graph)

    def function(*arrays: Any) -> Any:
        lifted = [lift("from_graph", x) for x in arrays]
        if len(lifted) == len(graph.avals):
            lifted = [_widened(x, a) for x, a in zip(lifted, graph.avals, strict=True)]
        kinds, expected = ([(a.shape, a.dtype, a.device) for a in avals] for avals in (_avals(lifted), graph.avals))
        if kinds != expected:
            got = ", ".join(map(repr, _avals(lifted))) or "none"
            fix = "Pass an array of that type for each input of the graph."
            raise ArgumentError(
                message("from_graph", f"arguments {', '.join(map(repr, graph.avals)) or '(none)'}", got, fix)
            )
        outputs = replay(graph, with_avals(lifted, graph.avals))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return function


def _widened(x: Array, a: Aval) -> Array:
    """Return an int32 as an int64 where a graph takes one: indices of branches are int64, whatever `x64` is."""
    return cast(x, a.dtype) if x.aval.dtype is torch.int32 and a.dtype is torch.int64 else x


def _avals(arrays: Sequence[Array]) -> tuple[Aval, ...]:
    return tuple(x.aval for x in arrays)
