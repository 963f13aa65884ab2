"""What Inductor computes with other types than torch, or twice, written out so that it computes what torch does.

- C++ promotes integers of 8 and 16 bits to int, in which they do not wrap (pytorch/pytorch#187018, #190764), and
  Inductor's vectors of 8 bits lose minima and places of minima. They are computed as int32 and converted. So
  are floats that become such integers, of which torch keeps the last bits. Numbers beside them keep those bits too.
- Numbers beside 16-bit floats are not rounded to their dtype (#186875, #185517). They are rounded here.
- Results of 16 bits are not rounded within a kernel (#181568, #182131). Each is marked as one that is.
- Sums of long rows are added up in a single number of float32, or in blocks of 4,096. They are float64 here: torch adds
  pairs of short sums, and is up to a hundred times as exact.
- A value with several uses may be computed for each, by a vector in one place and a scalar in another, to other bits.
  Compared with each other, the copies differ: no element equals the minimum (#186799, #195214). Such a value is kept
  in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.mechanisms import DOUBLE_SUMS, HELD_VALUES, SHORT_FLOATS, SMALL_INTEGERS

_prims = torch.ops.prims

SMALL = frozenset({torch.int8, torch.uint8, torch.int16})
"""Dtypes that C++ promotes."""

SHORT = frozenset({torch.float16, torch.bfloat16})

_LIBRARY = torch.library.Library("gtrace", "FRAGMENT")
_LIBRARY.define("held(Tensor x) -> Tensor")
_LIBRARY.impl("held", torch.clone, "CompositeExplicitAutograd")

HELD = torch.ops.gtrace.held.default
"""A value that is computed once and kept in memory."""

_REDUCTIONS = frozenset(
    {
        "sum", "prod", "mean", "amax", "amin", "aminmax", "argmax", "argmin", "max", "min", "any", "all", "cumsum",
        "cumprod", "cummax", "cummin", "var", "std", "logcumsumexp", "nansum", "count_nonzero",
    }
)  # fmt: skip
"""Operators of torch, without their overloads, that combine elements."""

_CONVERSIONS = frozenset({"_to_copy", "to", "convert_element_type"})

_MOVES = frozenset(
    {"clone", "_to_copy", "to", "copy", "copy_", "convert_element_type", "fill", "fill_", "alias", "lift_fresh_copy"}
)
"""Operators that torch counts among the pointwise ones, and that compute nothing."""

_ROUNDED = frozenset(
    {
        "add", "sub", "rsub", "fmod", "remainder", "pow", "eq", "ne", "lt", "le", "gt", "ge", "clamp", "clamp_min",
        "clamp_max", "xlogy", "special_xlog1py", "hardshrink", "nan_to_num", "where", "masked_fill", "threshold",
        "full", "full_like", "scalar_tensor", "new_full", "fill", "constant_pad_nd", "copysign",
    }
)  # fmt: skip
"""Operators for which torch rounds a number to the dtype of a 16-bit operand. Others, such as mul and div, compute with
the number as it is."""

_WRAPPED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "floor_divide", "div"})
"""Operators that depend on all bits of a number beside small integers."""

_SENSITIVE = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "amax", "amin", "aminmax", "argmax", "argmin", "max", "min", "floor",
        "ceil", "round", "trunc", "frac", "sign", "sgn", "fmod", "remainder", "floor_divide", "cummax", "cummin",
        "sort", "argsort", "topk", "kthvalue", "median", "mode", "bucketize", "searchsorted", "nextafter", "signbit",
    }
)  # fmt: skip
"""Operators whose results jump where an operand changes by its last bit."""

_EXACT = frozenset(
    {
        "add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "where", "minimum", "maximum", "fmax", "fmin", "relu",
        "clamp", "clamp_min", "clamp_max", "sign", "sgn", "floor", "ceil", "trunc", "round", "copysign", "masked_fill",
        "full", "full_like", "scalar_tensor", "arange", "iota", "expand", "view", "permute", "unsqueeze", "squeeze",
        "slice", "select", "reshape", "transpose", "t", "as_strided", "alias", "nan_to_num", "reciprocal", "square",
        *_MOVES,
    }
)  # fmt: skip
"""Operators that give vectors and scalars the same bits, or only move them."""


_EXTREMES = frozenset({"max", "min", "aminmax", "amax", "amin", "argmax", "argmin", "cummax", "cummin"})
"""Reductions to one of the elements."""


def compute_as_torch(module: torch.fx.GraphModule, mode: Any) -> None:
    """Rewrite aten calls so that Inductor computes with torch's types, and what is compared only once."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not _on_cpu(node):
            continue
        _widen(graph, node, mode)
    for node in graph.nodes:
        if node.op == "call_function":
            _round(node)
    _hold(graph)
    module.recompile()


def sum_in_double_precision(module: torch.fx.GraphModule, mode: Any) -> None:
    """Rewrite sums and means of floats on a CPU to add float64, where no kernel of our own makes them."""
    graph = module.graph
    for node in list(graph.nodes) if DOUBLE_SUMS.on else ():
        value = node.meta.get("val")
        if name_of(node) not in ("sum", "mean") or value.dtype not in SHORT | {torch.float32} or not _on_cpu(node):
            continue
        DOUBLE_SUMS.used()
        x = node.all_input_nodes[0]
        with graph.inserting_before(node):
            wide = _converted(graph, x, torch.float64, mode)
        node.replace_input_with(x, wide)
        node.kwargs = {k: v for k, v in node.kwargs.items() if k not in ("dtype", "output_dtype")}
        with mode:
            node.meta["val"] = value.to(torch.float64)
        with graph.inserting_after(node):
            back = _converted(graph, node, value.dtype, mode)
        _use_instead(node, back)
    module.recompile()


def name_of(node: torch.fx.Node) -> str:
    """Return the operator of a call without its overload; empty if it is none of torch's own."""
    target = node.target
    if isinstance(target, internals.OVERLOAD.get()) and target.namespace in ("aten", "prims"):
        return target._schema.name.partition("::")[2]
    return ""


def _values(node: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a node makes."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, torch.Tensor):
            yield one


def _on_cpu(node: torch.fx.Node) -> bool:
    return all(value.device.type == "cpu" for value in _values(node))


def _is_pointwise(node: torch.fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _widen(graph: torch.fx.Graph, node: torch.fx.Node, mode: Any) -> None:
    """Compute an operation on integers of 8 and 16 bits, and extremes of booleans, with int32."""
    name = name_of(node) if SMALL_INTEGERS.on else ""
    if name in _CONVERSIONS:
        return _convert_by_words(graph, node, mode)
    if not name or name in _MOVES or not (_is_pointwise(node) or name in _REDUCTIONS):
        return
    # Inductor takes other places for the extremes of booleans
    kinds = SMALL | {torch.bool} if name in _EXTREMES else SMALL
    given = any(value.dtype in kinds for operand in node.all_input_nodes for value in _values(operand))
    if not given and not any(value.dtype in kinds for value in _values(node)):
        return

    def wide(x: torch.fx.Node) -> torch.fx.Node:
        value = x.meta["val"]
        narrow = isinstance(value, torch.Tensor) and value.dtype in kinds
        return _converted(graph, x, torch.int32, mode) if narrow else x

    def wide_type(x: Any) -> Any:
        return torch.int32 if isinstance(x, torch.dtype) and x in kinds else x

    with graph.inserting_before(node):
        SMALL_INTEGERS.used()
        if name in _WRAPPED:
            node.args = tuple(_wrapped(x, node) for x in node.args)
        node.args = torch.fx.map_arg(node.args, wide)
        node.kwargs = {k: wide_type(v) for k, v in torch.fx.map_arg(dict(node.kwargs), wide).items()}
    before = node.meta["val"]
    # integers of the operation itself are int32 now; a reduction to int64, and a comparison, are as before
    if isinstance(before, torch.Tensor) and before.dtype in kinds:
        with mode:
            node.meta["val"] = before.to(torch.int32)
        with graph.inserting_after(node):
            back = _converted(graph, node, before.dtype, mode)
        _use_instead(node, back)
    elif isinstance(before, (tuple, list)):
        with mode:
            node.meta["val"] = type(before)(x.to(torch.int32) if x.dtype in kinds else x for x in before)
        for user in list(node.users):  # each takes one of the results
            own = user.meta["val"]
            if own.dtype in kinds:
                with mode:
                    user.meta["val"] = own.to(torch.int32)
                with graph.inserting_after(user):
                    back = _converted(graph, user, own.dtype, mode)
                _use_instead(user, back)


def _wrapped(x: Any, node: torch.fx.Node) -> Any:
    """Return a number as torch takes it beside integers of one small dtype: its last bits."""
    dtypes = {value.dtype for operand in node.all_input_nodes for value in _values(operand)}
    if type(x) is not int or len(dtypes) != 1 or not dtypes <= SMALL:
        return x
    return int(torch.tensor(x).to(dtypes.pop()))


def _converted(graph: torch.fx.Graph, x: torch.fx.Node, dtype: torch.dtype, mode: Any) -> torch.fx.Node:
    """Append a conversion, at the place of insertion."""
    call = graph.call_function(_prims.convert_element_type.default, (x, dtype))
    with mode:
        call.meta["val"] = x.meta["val"].to(dtype)
    return call


def _convert_by_words(graph: torch.fx.Graph, node: torch.fx.Node, mode: Any) -> None:
    """Convert floats to integers of 8 and 16 bits by way of int32, of which the last bits remain, as in torch."""
    x, value = node.all_input_nodes[0], node.meta["val"]
    if value.dtype not in SMALL or not x.meta["val"].is_floating_point():
        return
    with graph.inserting_before(node):
        words = _converted(graph, x, torch.int32, mode)
    node.replace_input_with(x, words)


def _use_instead(node: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let everything but `new` itself use it in place of the node that it is made of."""
    node.replace_all_uses_with(new)
    new.replace_input_with(new, node)


def _round(node: torch.fx.Node) -> None:
    """Round numbers beside 16-bit floats, and mark results of 16 bits."""
    values = [*_values(node), *(value for operand in node.all_input_nodes for value in _values(operand))]
    short = {value.dtype for value in values if value.dtype in SHORT}
    if not short or not SHORT_FLOATS.on:
        return
    SHORT_FLOATS.used()
    # Inductor rounds the operands and the result of a marked operation
    node.meta["low_precision_pointwise_barrier"] = True
    if name_of(node) in _ROUNDED and len(short) == 1 and all(v.dtype in short for v in values if v.is_floating_point()):
        (dtype,) = short

        def rounded(x: Any) -> Any:
            return float(torch.tensor(x, dtype=dtype)) if isinstance(x, float) else x

        node.args = tuple(map(rounded, node.args))
        node.kwargs = {k: rounded(v) for k, v in node.kwargs.items()}


def _hold(graph: torch.fx.Graph) -> None:
    """Keep in memory what is used twice and compared, if a vector and a scalar of it may differ."""
    if not HELD_VALUES.on:
        return
    compared: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in compared or name_of(node) in _SENSITIVE:
            compared.update(node.all_input_nodes)
    inexact: set[torch.fx.Node] = set()
    for node in list(graph.nodes):
        name = name_of(node)
        if not name or not any(value.is_floating_point() for value in _values(node)):
            continue
        if name in _EXACT:
            if inexact.isdisjoint(node.all_input_nodes):
                continue
        elif not _is_pointwise(node):
            continue  # in memory anyway
        if len(node.users) > 1 and node in compared and isinstance(node.meta["val"], torch.Tensor):
            with graph.inserting_after(node):
                held = graph.call_function(HELD, (node,))
            HELD_VALUES.used()
            held.meta = dict(node.meta)
            _use_instead(node, held)
        else:
            inexact.add(node)


_TOGETHER = frozenset({"floor_divide"})
"""Operators that torch does not call pointwise, and whose decompositions have several results in between. Results in
between of products such as cross are rounded in torch too."""

_OF_LIMITS = frozenset({"nan_to_num", "nextafter"})
"""Operators whose results follow from the largest numbers of the operand's dtype, and that round nothing."""


def in_single_precision(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return decompositions that compute with float32 in between where operands have 16 bits, as torch does.

    Results of each operation of 16 bits are rounded in compiled code; those within a decomposition must not be.
    """
    return {op: _single(op, f) for op, f in table.items()} if SHORT_FLOATS.on else dict(table)


def _single(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    name = op._schema.name.partition("::")[2] if isinstance(op, internals.OVERLOAD.get()) else ""
    if not name or name in _OF_LIMITS or (torch.Tag.pointwise not in op.tags and name not in _TOGETHER):
        return function

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        floats = {x.dtype for x in given if x.is_floating_point()}
        if name in _MOVES or len(floats) != 1 or not floats <= SHORT or any(x.device.type != "cpu" for x in given):
            return function(*args, **kwargs)
        (dtype,) = floats

        def wide(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.dtype is dtype:
                return x.to(torch.float32)
            if isinstance(x, float) and name in _ROUNDED:
                return float(torch.tensor(x, dtype=dtype))
            return x

        found = op(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()})
        if isinstance(found, torch.Tensor):
            return found.to(dtype) if found.dtype is torch.float32 else found
        return type(found)(x.to(dtype) if x.dtype is torch.float32 else x for x in found)

    return decomposition
