"""For each of gtrace's operations, how it reads in JAX's words; see `equations`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace import lax as ours
from gtrace.extend import REGISTRY, UNSIGNED, DType, aval, custom_call, index_place
from gtrace.ir import DTYPES
from gtrace.jax.jaxprs import Literal
from gtrace.jax.primitives import PrimitiveCall

SAME: dict[str, str] = {name: op.jax for name, op in REGISTRY.items() if op.jax}
"""Operations without parameters, with JAX's names."""

RULES: dict[str, Callable[..., Any]] = {}
"""Functions of (writer, node, operands) that write other operations; NotImplemented if they do not apply."""


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


@_rule("identity")
def _identity(w: Any, node: Any, x: Any) -> Any:
    return x


@_rule("integer_pow")
def _integer_pow(w: Any, node: Any, x: Any) -> Any:
    return w.elementwise("integer_pow", [x], node.instr.aval, y=node.attributes["y"])


@_rule("polygamma")
def _polygamma(w: Any, node: Any, x: Any) -> Any:
    order = w.number(float(node.attributes["n"]), aval((), node.instr.aval.dtype))
    return w.elementwise("polygamma", [order, x], node.instr.aval)


@_rule("conj")
def _conj(w: Any, node: Any, x: Any) -> Any:
    return w.elementwise("conj", [x], node.instr.aval, input_dtype=DType(w.type_of(x).dtype))


@_rule("round")
def _round(w: Any, node: Any, x: Any) -> Any:
    return w.elementwise("round", [x], node.instr.aval, rounding_method=ours.RoundingMethod.TO_NEAREST_EVEN)


@_rule("bitwise_right_shift")
def _right_shift(w: Any, node: Any, x: Any, y: Any) -> Any:
    name = "shift_right_logical" if node.instr.aval.dtype in UNSIGNED else "shift_right_arithmetic"
    return w.elementwise(name, [x, y], node.instr.aval)


@_rule("logical_not", "logical_and", "logical_or", "logical_xor")
def _logic(w: Any, node: Any, *operands: Any) -> Any:
    if any(w.type_of(x).dtype is not torch.bool for x in operands):
        return NotImplemented
    return w.elementwise(node.op.name.removeprefix("logical_"), operands, node.instr.aval)


@_rule("where")
def _where(w: Any, node: Any, which: Any, x: Any, y: Any) -> Any:
    out = node.instr.aval
    which, x, y = (_spread(w, v, out.shape) for v in (which, x, y))
    if w.type_of(which).dtype is not torch.bool:
        return NotImplemented
    return w("select_n", [which, y, x], out.shape, out)


def _spread(w: Any, x: Any, shape: Sequence[int]) -> Any:
    """Return an operand broadcast to a shape."""
    own = w.type_of(x).shape
    return x if own == tuple(shape) else w.broadcast(x, shape, range(len(shape) - len(own), len(shape)))


def _convert(w: Any, x: Any, dtype: torch.dtype) -> Any:
    a = w.type_of(x)
    if a.dtype is dtype:
        return x
    return w(
        "convert_element_type", [x], a.shape, x, dtype, new_dtype=DType(dtype), weak_type=False, sharding=None
    )  # fmt: skip


@_rule("astype", "saturate")
def _astype(w: Any, node: Any, x: Any) -> Any:
    a, out = w.type_of(x), node.instr.aval
    if a.dtype is out.dtype:  # only weakness differs
        return w.number(x.val, out) if isinstance(x, Literal) else x
    if out.dtype is torch.int32:
        x = w.narrowed(node.ins[0], x)
        if w.type_of(x).dtype is torch.int32:
            return x
    return w(
        "convert_element_type", [x], a.shape, out, out.dtype, new_dtype=DType(out.dtype), weak_type=out.weak,
        sharding=None,
    )  # fmt: skip


# -- shapes


@_rule("reshape")
def _reshape(w: Any, node: Any, x: Any) -> Any:
    return reshaped(w, x, node.instr.aval.shape)


def reshaped(w: Any, x: Any, shape: Sequence[int]) -> Any:
    """Write a change of shape: axes of size 1 that go or come, or another shape."""
    own = w.type_of(x).shape
    if own == tuple(shape):
        return x
    gone = [k for k, n in enumerate(own) if n == 1]
    if len(own) > len(shape) and [n for n in own if n != 1] == [n for n in shape if n != 1]:
        keep = _matching(shape, own)
        dims = tuple(k for k in gone if k not in keep)
        return w("squeeze", [x], shape, x, dimensions=dims)
    if len(own) < len(shape) and [n for n in own if n != 1] == [n for n in shape if n != 1]:
        return w.broadcast(x, shape, _matching(own, shape))
    return w("reshape", [x], shape, x, new_sizes=tuple(shape), dimensions=None, sharding=None)


def _matching(few: Sequence[int], many: Sequence[int]) -> list[int]:
    """Return the axes of the longer shape that hold those of the shorter one, in order."""
    out: list[int] = []
    at = len(many) - 1
    for k in reversed(range(len(few))):
        # an axis of size 1 takes the last place that leaves room for those before it
        while many[at] != few[k]:
            at -= 1
        out.insert(0, at)
        at -= 1
    return out


@_rule("permute")
def _permute(w: Any, node: Any, x: Any) -> Any:
    return w("transpose", [x], node.instr.aval.shape, x, permutation=tuple(node.attributes["axes"]))


@_rule("broadcast_to")
def _broadcast_to(w: Any, node: Any, x: Any) -> Any:
    return _spread(w, x, node.instr.aval.shape)


@_rule("full")
def _full(w: Any, node: Any, x: Any) -> Any:
    if not node.instr.aval.shape and isinstance(x, Literal):
        return w.number(x.val, node.instr.aval)
    return w.broadcast(x, node.instr.aval.shape, ())


@_rule("slice")
def _slice(w: Any, node: Any, x: Any) -> Any:
    starts, stops, steps = zip(*node.attributes["bounds"], strict=True)
    strides = None if set(steps) == {1} else steps
    return w(
        "slice", [x], node.instr.aval.shape, x, start_indices=starts, limit_indices=stops, strides=strides
    )  # fmt: skip


@_rule("slice_update")
def _slice_update(w: Any, node: Any, x: Any, u: Any) -> Any:
    if any(step != 1 for _, _, step in node.attributes["bounds"]):
        return NotImplemented
    place = aval((), torch.int32)
    starts = [w.number(start, place) for start, _, _ in node.attributes["bounds"]]
    return w("dynamic_update_slice", [x, u, *starts], node.instr.aval.shape, x)


@_rule("unslice")
def _unslice(w: Any, node: Any, x: Any) -> Any:
    shape, bounds, own = node.attributes["shape"], node.attributes["bounds"], w.type_of(x)
    config = []
    for n, size, (start, _, step) in zip(own.shape, shape, bounds, strict=True):
        span = (n - 1) * step + 1 if n else 0
        config.append((start, size - start - span, step - 1))
    zero = w.number(torch.zeros((), dtype=own.dtype).item(), aval((), own.dtype))
    return w("pad", [x, zero], shape, x, padding_config=tuple(config))


@_rule("pad")
def _pad(w: Any, node: Any, x: Any, value: Any) -> Any:
    config = tuple((low, high, 0) for low, high in node.attributes["widths"])
    return w("pad", [x, value], node.instr.aval.shape, x, padding_config=config)


@_rule("concat")
def _concat(w: Any, node: Any, *operands: Any) -> Any:
    return w("concatenate", operands, node.instr.aval.shape, node.instr.aval, dimension=node.attributes["axis"])


@_rule("flip")
def _flip(w: Any, node: Any, x: Any) -> Any:
    return w("rev", [x], node.instr.aval.shape, x, dimensions=tuple(node.attributes["axes"]))


@_rule("arange")
def _arange(w: Any, node: Any) -> Any:
    start, step, dtype = (node.attributes[name] for name in ("start", "step", "dtype"))
    out = node.instr.aval
    x = w("iota", [], out.shape, out, dtype=DType(DTYPES[dtype]), shape=out.shape, dimension=0, sharding=None)
    one = aval((), out.dtype)
    if step != 1:
        x = w("mul", [x, w.number(step, one)], out.shape, out)
    return x if start == 0 else w("add", [x, w.number(start, one)], out.shape, out)


# -- reductions

_REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "any": "or", "all": "and", "prod": "prod"}


@_rule(*_REDUCTIONS)
def _reduce(w: Any, node: Any, x: Any) -> Any:
    given, out = node.attributes, node.instr.aval
    axes = (given["axis"],) if "axis" in given else given["axes"]
    x = _convert(w, x, out.dtype)
    return _kept(w, _reduced(w, _REDUCTIONS[node.op.name], x, axes), out.shape, given["keepdims"])


def _reduced(w: Any, kind: str, x: Any, axes: Sequence[int]) -> Any:
    own = w.type_of(x).shape
    extra = {"out_sharding": None} if kind in ("sum", "max", "min", "prod") else {}
    return w(
        f"reduce_{kind}", [x], [n for k, n in enumerate(own) if k not in axes], x, axes=tuple(axes), **extra
    )  # fmt: skip


def _kept(w: Any, x: Any, shape: Sequence[int], keepdims: bool) -> Any:
    return reshaped(w, x, shape) if keepdims else x


@_rule("mean")
def _mean(w: Any, node: Any, x: Any) -> Any:
    axes, keepdims = node.attributes["axes"], node.attributes["keepdims"]
    own, out = w.type_of(x), node.instr.aval
    count = math.prod([own.shape[k] for k in axes])
    total = _kept(w, _reduced(w, "sum", _convert(w, x, out.dtype), axes), out.shape, keepdims)
    return w("div", [total, w.number(float(count), aval((), out.dtype, own.device))], out.shape, out)


@_rule("sum_to")
def _sum_to(w: Any, node: Any, x: Any) -> Any:
    own, shape = w.type_of(x).shape, node.attributes["shape"]
    lead = len(own) - len(shape)
    axes = [k for k, n in enumerate(own) if k < lead or (shape[k - lead] == 1 and n != 1)]
    return reshaped(w, _reduced(w, "sum", x, axes), shape) if axes else x


@_rule("argmax", "argmin")
def _place(w: Any, node: Any, x: Any) -> Any:
    axis, keepdims = node.attributes["axis"], node.attributes["keepdims"]
    own, out = w.type_of(x).shape, node.instr.aval
    shape = [n for k, n in enumerate(own) if k != axis]
    place = w(node.op.name, [x], shape, out, axes=(axis,), index_dtype=DType(out.dtype))
    return _kept(w, place, out.shape, keepdims)


@_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _running(w: Any, node: Any, x: Any) -> Any:
    out = node.instr.aval
    return w(node.op.name, [_convert(w, x, out.dtype)], out.shape, out, axis=node.attributes["axis"], reverse=False)


@_rule("sort", "argsort")
def _sort(w: Any, node: Any, x: Any) -> Any:
    axis, descending = node.attributes["axis"], node.attributes["descending"]
    a, out = w.type_of(x), node.instr.aval
    if descending:
        return NotImplemented if node.op.name == "argsort" else w(
            "sort_descending", [x], a.shape, x, axis=axis, descending=True
        )  # fmt: skip
    options = {"dimension": axis, "is_stable": True, "num_keys": 1}
    if node.op.name == "sort":
        return w.several("sort", [x], [a], **options)[0]
    places = w(
        "iota", [], a.shape, out, dtype=DType(out.dtype), shape=a.shape, dimension=axis, sharding=None
    )  # fmt: skip
    return w.several("sort", [x, places], [a, out], **options)[1]


# -- products


def dot(w: Any, x: Any, y: Any, contracted: Any, batch: Any, out: Any) -> Any:
    """Write ``dot_general``."""
    first, second = w.type_of(x).shape, w.type_of(y).shape
    shape = [*[first[k] for k in batch[0]]]
    shape += [n for k, n in enumerate(first) if k not in (*contracted[0], *batch[0])]
    shape += [n for k, n in enumerate(second) if k not in (*contracted[1], *batch[1])]
    numbers = tuple(tuple(tuple(axes) for axes in pair) for pair in (contracted, batch))
    return w(
        "dot_general", [x, y], shape, out, dimension_numbers=numbers, precision=None,
        preferred_element_type=DType(out.dtype), out_sharding=None,
    )  # fmt: skip


@_rule("matmul")
def _matmul(w: Any, node: Any, x: Any, y: Any) -> Any:
    first, second, out = w.type_of(x).shape, w.type_of(y).shape, node.instr.aval
    lead = first[:-2], second[:-2]
    if not lead[1]:
        return dot(w, x, y, ([len(first) - 1], [max(len(second) - 2, 0)]), ([], []), out)
    if len(first) == 1:
        # the vector's axis is summed; what is left is the batch and the columns of y
        return dot(w, y, x, ([len(second) - 2], [0]), ([], []), out)
    if lead[0] != lead[1]:
        shape = out.shape[: len(out.shape) - 2]
        x, y = _spread(w, x, (*shape, *first[-2:])), _spread(w, y, (*shape, *second[-2:]))
    count = len(w.type_of(x).shape) - 2
    axes = list(range(count))
    return dot(w, x, y, ([count + 1], [count]), (axes, axes), out)


@_rule("einsum")
def _einsum(w: Any, node: Any, *operands: Any) -> Any:
    texts, arrow, result = node.attributes["equation"].replace(" ", "").partition("->")
    labels, out = texts.split(","), node.instr.aval
    if not arrow or "." in texts or any(len(set(t)) != len(t) for t in labels):
        return NotImplemented
    acc, known = operands[0], labels[0]
    for k in range(len(operands)):
        rest = set(result).union(*labels[k + 1 :])
        if k:
            y, own = operands[k], labels[k]
            y, own = _summed(w, y, own, {*known, *rest})
            both = [c for c in known if c in own]
            batch, inner = [c for c in both if c in rest], [c for c in both if c not in rest]
            pairs = [([known.index(c) for c in part], [own.index(c) for c in part]) for part in (inner, batch)]
            acc = dot(w, acc, y, pairs[0], pairs[1], out)
            known = "".join([*batch, *[c for c in known if c not in both], *[c for c in own if c not in both]])
        else:
            acc, known = _summed(w, acc, known, rest)
    order = tuple(known.index(c) for c in result)
    if order == tuple(range(len(order))):
        return acc
    return w("transpose", [acc], out.shape, out, permutation=order)


def _summed(w: Any, x: Any, own: str, wanted: set[str]) -> tuple[Any, str]:
    """Return an operand summed over the axes that nothing else names."""
    axes = [k for k, c in enumerate(own) if c not in wanted]
    if not axes:
        return x, own
    return _reduced(w, "sum", x, axes), "".join([c for c in own if c in wanted])


@_rule("aten")
def _aten(w: Any, node: Any, *operands: Any) -> Any:
    overload, args = node.attributes["overload"], node.attributes["args"]
    if overload != "aten.convolution.default" or args[2] is not None or args[6]:
        return NotImplemented
    _, _, _, strides, padding, gaps, _, _, groups = args
    out = node.instr.aval
    axes = tuple(range(len(out.shape)))
    return w(
        "conv_general_dilated", operands, out.shape, out, window_strides=tuple(strides),
        padding=tuple((n, n) for n in padding), lhs_dilation=(1,) * len(strides), rhs_dilation=tuple(gaps),
        dimension_numbers=ours.ConvDimensionNumbers(axes, axes, axes), feature_group_count=groups,
        batch_group_count=1, precision=None, preferred_element_type=None, out_sharding=None,
    )  # fmt: skip


# -- indices


@_rule("index")
def _index(w: Any, node: Any, x: Any, *indices: Any) -> Any:
    dims, out, own = node.attributes["dims"], node.instr.aval, w.type_of(x).shape
    shape = torch.broadcast_shapes(*[w.type_of(i).shape for i in indices])
    columns = []
    for d, i in zip(dims, indices, strict=True):
        i = _spread(w, _wrapped(w, i, own[d]), shape)
        columns.append(w.broadcast(i, (*shape, 1), range(len(shape))))
    at = columns[0]
    if len(columns) > 1:
        at = w("concatenate", columns, (*shape, len(dims)), at, dimension=len(shape))
    place = index_place(dims)
    offset = tuple(k for k in range(len(out.shape)) if not place <= k < place + len(shape))
    numbers = ours.GatherDimensionNumbers(offset, tuple(dims), tuple(dims))
    sizes = tuple(1 if k in dims else n for k, n in enumerate(own))
    return w(
        "gather", [x, at], out.shape, x, dimension_numbers=numbers, slice_sizes=sizes, fill_value=None,
        indices_are_sorted=False, unique_indices=False, mode=ours.GatherScatterMode.PROMISE_IN_BOUNDS,
    )  # fmt: skip


def _wrapped(w: Any, i: Any, size: int) -> Any:
    """Return indices whose negative ones count from the end."""
    a = w.type_of(i)
    one = aval((), a.dtype)
    negative = w("lt", [i, w.number(0, one)], a.shape, i, torch.bool)
    return w("select_n", [negative, i, w("add", [i, w.number(size, one)], a.shape, i)], a.shape, i)


@_rule("clamp_index")
def _clamp_index(w: Any, node: Any, i: Any) -> Any:
    one = aval((), w.type_of(i).dtype)
    low, high = (w.number(n, one) for n in node.params)
    return w("clamp", [low, i, high], node.instr.aval.shape, i)


@_rule("gather")
def _along(w: Any, node: Any, x: Any, i: Any) -> Any:
    return w("take_along_axis", [x, i], node.instr.aval.shape, x, axis=node.attributes["axis"])


# -- programs in programs


@_rule("scan")
def _scan(w: Any, node: Any, *operands: Any) -> Any:
    p = node.attributes
    return w.several(
        "scan", operands, node.instr.aval.avals, jaxpr=w.closed(p["body"].graph), length=p["length"],
        linear=(False,) * len(operands), num_carry=p["carry"], num_consts=p["consts"], reverse=p["reverse"], unroll=1,
        _split_transpose=False,
    )  # fmt: skip


@_rule("while_loop")
def _while(w: Any, node: Any, *operands: Any) -> Any:
    p = node.attributes
    return w.several(
        "while", operands, node.instr.aval.avals, cond_jaxpr=w.closed(p["cond"].graph), cond_nconsts=p["cond_consts"],
        body_jaxpr=w.closed(p["body"].graph), body_nconsts=p["body_consts"],
    )  # fmt: skip


@_rule("switch")
def _switch(w: Any, node: Any, *operands: Any) -> Any:
    branches = tuple(w.closed(b.graph) for b in node.attributes["branches"])
    index = w.narrowed(node.ins[0], operands[0])
    return w.several("cond", [index, *operands[1:]], node.instr.aval.avals, branches=branches)


@_rule("named_value")
def _named_value(w: Any, node: Any, x: Any) -> Any:
    return w("name", [x], node.instr.aval.shape, x, name=node.attributes["name"])


@_rule("checkpoint", "rematerialize")
def _checkpoint(w: Any, node: Any, *operands: Any) -> Any:
    p = node.attributes
    policy = None if p["policy"] == "nothing_saveable" else p["policy"]
    return w.several(
        "remat2", operands, node.instr.aval.avals, jaxpr=w.program(p["body"].graph), policy=policy, prevent_cse=True,
        differentiated=node.op.name == "rematerialize",
    )  # fmt: skip


@_rule("custom_call")
def _custom_call(w: Any, node: Any, *operands: Any) -> Any:
    p, rules = node.attributes, node.op.rules
    call = PrimitiveCall.of(node.op)
    if call is not None and call.takes_arrays_alone and all(isinstance(x, Literal) for x in operands[call.count :]):
        return w.several(call.primitive, operands[: call.count], node.instr.aval.avals, **call.params)
    forward = rules.jvp is not None and node.op is not custom_call
    params = {"jvp": rules.jvp} if forward else {"bwd": rules.vjp, "fwd": rules.vjp}
    return w.several(
        "custom_jvp_call" if forward else "custom_vjp_call", operands, node.instr.aval.avals,
        call_jaxpr=w.closed(p["body"].graph), num_consts=0, symbolic_zeros=False, **params,
        _call=(node.op, p["body"], node.instr.ins),
    )  # fmt: skip


# -- named axes


@_rule("psum", "pmax", "pmin")
def _over_axes(w: Any, node: Any, x: Any) -> Any:
    options = {"axes": (node.attributes["axis_name"],), "axis_index_groups": None}
    return w.several(node.op.name, [x], [node.instr.aval], **options)[0]
