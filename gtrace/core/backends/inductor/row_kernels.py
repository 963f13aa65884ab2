"""Rows of matrices in compiled code: chosen by integers, added at places given by integers, and reduced.

Inductor makes a loop of each. It adds rows by atomic operations, which wait for each other; it reads a matrix again for
each reduction along other axes, and a column at a time. These become C++ of our own (`native/rows.h`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.inductor.matmul import LARGE
from gtrace.core.backends.inductor.operators import C_TYPES, NATIVE, POINTER, OwnOperator, code, define, empty
from gtrace.core.backends.inductor.tuned import LEAST_MOVED, LEAST_REDUCED_ROWS, LEAST_ROW_BYTES, MOST_COLUMNS
from gtrace.core.base.mechanisms import ROW_KERNELS

_SOURCE = "\n".join((NATIVE / name).read_text() for name in ("product.h", "rows.h"))

_TENSORS = """
  const int64_t* x_sizes;
  if (aoti_torch_get_sizes(x, const_cast<int64_t**>(&x_sizes))) return AOTI_TORCH_FAILURE;
  const int64_t rows = x_sizes[0], width = x_sizes[1];
"""

_OUTSIDE = '{ throw std::runtime_error("index out of bounds"); }'


@functools.cache
def take_rows(dtype: torch.dtype) -> OwnOperator:
    """Return the operator that chooses rows of a matrix: of x[r, w] and places[n], clipped to the matrix or not."""
    own = C_TYPES[dtype]
    name = f"take_rows_{own}"
    body = (
        _TENSORS
        + "  int64_t count;\n  if (aoti_torch_get_numel(places, &count)) return AOTI_TORCH_FAILURE;\n"
        + empty("out", dtype, ["count", "width"], ["width", 1])
        + "".join(POINTER.format(name=n, tensor=t) for n, t in (("x", "x"), ("places", "places"), ("out", "*out")))
        + f"  if (!gtrace_{name}::take_rows(static_cast<{own}*>(x_data), static_cast<int64_t*>(places_data),"
        f" static_cast<{own}*>(out_data), rows, width, count, clipped)) {_OUTSIDE}\n"
    )
    op = define(name, "(Tensor x, Tensor places, int clipped) -> Tensor",
                 lambda x, places, clipped: x.new_empty((places.shape[0], x.shape[1])))  # fmt: skip
    parameters = "AtenTensorHandle x, AtenTensorHandle places, int64_t clipped, AtenTensorHandle* out"
    return OwnOperator(op, code(name, _SOURCE, parameters, body))


@functools.cache
def add_rows(dtype: torch.dtype, zeros: bool) -> OwnOperator:
    """Return the operator that adds rows to a matrix, or to zeros.

    It takes x[r, w] (or the number of rows), u[n, w], places[n] and whether places outside are left out.
    """
    own = C_TYPES[dtype]
    name = f"{'sum' if zeros else 'add'}_rows_{own}"
    given = ["u", "places"] if zeros else ["x", "u", "places"]
    x = "nullptr" if zeros else f"static_cast<{own}*>(x_data)"
    body = (
        "  int64_t* u_sizes;\n  if (aoti_torch_get_sizes(u, &u_sizes)) return AOTI_TORCH_FAILURE;\n"
        "  const int64_t count = u_sizes[0], width = u_sizes[1];\n"
        + empty("out", dtype, ["rows", "width"], ["width", 1])
        + "".join(POINTER.format(name=n, tensor=n) for n in given)
        + POINTER.format(name="out", tensor="*out")
        + f"  if (!gtrace_{name}::add_rows<{own}>({x}, static_cast<{own}*>(u_data), static_cast<int64_t*>(places_data),"
        f" static_cast<{own}*>(out_data), rows, width, count) && !loose) {_OUTSIDE}\n"
    )
    tensors = ", ".join(f"Tensor {n}" for n in given)
    op = define(name, f"({tensors}, int rows, int loose) -> Tensor",
                 lambda *args: args[0].new_empty((args[-2], args[-4].shape[1])))  # fmt: skip
    handles = ", ".join(f"AtenTensorHandle {n}" for n in given)
    return OwnOperator(op, code(name, _SOURCE, f"{handles}, int64_t rows, int64_t loose, AtenTensorHandle* out", body))


@attrs.frozen
class Reduction:
    """One of several reductions of a matrix.

    Attributes:
        how: "sum", "squares" (their sum), "max" or "min".
        results: "one" for all elements, for each of the "columns", or for each of the "rows".
        mean: whether the sum is divided by the number of its elements.
    """

    how: str
    results: str
    mean: bool

    def __str__(self) -> str:
        return f"{self.how}{'_mean' * self.mean}_{self.results}"


@functools.cache
def reduce_matrix(dtype: torch.dtype, reductions: tuple[Reduction, ...]) -> OwnOperator:
    """Return the operator that makes several reductions of x[r, w] in one pass."""
    own = C_TYPES[dtype]
    name = "_".join(["reduce", own, *map(str, reductions)])
    made = [f"r{k}" for k in range(len(reductions))]
    sizes = {"one": "1", "columns": "width", "rows": "rows"}
    counts = {"one": "rows * width", "columns": "rows", "rows": "width"}
    body = _TENSORS + POINTER.format(name="x", tensor="x")
    calls = []
    for out, reduction in zip(made, reductions, strict=True):
        body += empty(out, dtype, [sizes[reduction.results]], [1])
        body += POINTER.format(name=out, tensor=f"*{out}")
        kind = f"Reduction<{own}, gtrace_{name}::{reduction.how.upper()}, gtrace_{name}::{reduction.results.upper()}>"
        divisor = counts[reduction.results] if reduction.mean else "1"
        calls.append(f"gtrace_{name}::{kind}{{static_cast<{own}*>({out}_data), {divisor}}}")
    body += f"  gtrace_{name}::reduce_matrix(static_cast<const {own}*>(x_data), rows, width, {', '.join(calls)});\n"

    def fake(x: torch.Tensor) -> Any:
        lengths = {"one": 1, "columns": x.shape[1], "rows": x.shape[0]}
        results = tuple(x.new_empty((lengths[reduction.results],)) for reduction in reductions)
        return results if len(results) > 1 else results[0]

    op = define(name, f"(Tensor x) -> ({', '.join(['Tensor'] * len(made))})", fake)
    parameters = ", ".join(["AtenTensorHandle x", *(f"AtenTensorHandle* {r}" for r in made)])
    return OwnOperator(op, code(name, _SOURCE, parameters, body))


# -- where they stand in a program

_aten = torch.ops.aten

_OPAQUE = frozenset({
    LARGE, _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default,
    _aten.convolution.default, _aten.index_put.default,
})  # fmt: skip
"""What Inductor does not compute together with what reads or makes its operands."""

_VIEWS = frozenset({_aten.view.default, _aten.permute.default, _aten.unsqueeze.default, _aten.squeeze.dim})


@attrs.frozen(eq=False)
class _Rewriter:
    """Puts operators of rows into a module.

    Attributes:
        module: of aten calls.
        mode: the fake mode of its values.
        shims: the C++ of operators, to which that of the operators used is added.
    """

    module: torch.fx.GraphModule
    mode: Any
    shims: dict[Any, list[str]]

    def call(self, target: Any, *args: Any) -> torch.fx.Node:
        """Append a call, at the place of insertion."""
        node = self.module.graph.call_function(target, args)
        with self.mode:
            node.meta["val"] = target(*[a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args])
        return node

    def use(self, operator: OwnOperator, *args: Any) -> torch.fx.Node:
        self.shims[operator.op] = [operator.code]
        return self.call(operator.op, *args)

    def flat(self, node: torch.fx.Node, *sizes: int) -> torch.fx.Node:
        """Return a dense value with another shape."""
        return node if tuple(node.meta["val"].shape) == sizes else self.call(_aten.view.default, node, list(sizes))

    def replace(self, node: torch.fx.Node, new: torch.fx.Node) -> None:
        """Let a new value, flat and dense, stand for an old one."""
        node.replace_all_uses_with(self.flat(new, *node.meta["val"].shape))
        self.module.graph.erase_node(node)


def choose_rows(module: torch.fx.GraphModule, mode: Any, shims: dict[Any, list[str]]) -> None:
    """Replace calls on rows of large dense matrices by operators of our own.

    Args:
        mode: the fake mode of the module's values.
        shims: the C++ of operators, to which that of the operators used is added.
    """
    if not ROW_KERNELS.on:
        return
    known = len(shims)
    rewriter = _Rewriter(module, mode, shims)
    _choose_taken(rewriter)
    _choose_added(rewriter)
    _choose_reductions(rewriter)
    if len(shims) > known:
        ROW_KERNELS.used()
    module.graph.eliminate_dead_code()
    module.recompile()


def _dense(node: Any, dtypes: Any = C_TYPES) -> bool:
    """Whether a value is a dense tensor on a CPU, of known sizes."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (
        isinstance(value, torch.Tensor) and value.dtype in dtypes and value.device.type == "cpu"
        and all(type(n) is int for n in value.shape) and value.is_contiguous()
    )  # fmt: skip


def _in_rows(x: torch.Tensor, count: int) -> bool:
    """Whether so many rows of x are worth a call."""
    width = math.prod(x.shape[1:])
    return x.shape[0] > 0 and width * x.element_size() >= LEAST_ROW_BYTES and width * count >= LEAST_MOVED


def _first_places(indices: Sequence[Any]) -> torch.fx.Node | None:
    """Return the integers that index the first axis, if no other is indexed."""
    places = indices[0]
    return places if not any(indices[1:]) and _dense(places, (torch.int64,)) else None


def _unclipped(places: torch.fx.Node, rows: int) -> torch.fx.Node | None:
    """Return the integers that were clipped to the places of an axis, if they were."""
    if places.target is _aten.clamp_max.default and places.args[1] == rows - 1:
        inner: Any = places.args[0]
        if inner.target is _aten.clamp_min.default and inner.args[1] == -rows and _dense(inner.args[0], (torch.int64,)):
            return inner.args[0]
    return None


def _choose_taken(rewriter: _Rewriter) -> None:
    graph = rewriter.module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.index.Tensor):
        x: Any = node.args[0]
        places = _first_places(node.args[1])
        if places is None or not _dense(x) or not _dense(node):
            continue
        if not _in_rows(x.meta["val"], places.meta["val"].numel()):
            continue
        if not all(user.op == "output" or user.target in _OPAQUE for user in node.users):
            continue  # Inductor reads the rows where it uses them
        value, count = x.meta["val"], places.meta["val"].numel()
        with graph.inserting_before(node):
            given = _unclipped(places, value.shape[0])
            matrix = rewriter.flat(x, value.shape[0], math.prod(value.shape[1:]))
            indices = rewriter.flat(places if given is None else given, count)
            taken = rewriter.use(take_rows(value.dtype), matrix, indices, int(given is not None))
            rewriter.replace(node, taken)


def _choose_added(rewriter: _Rewriter) -> None:
    graph = rewriter.module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.index_put.default):
        x, indices, u, accumulate = (*node.args, False)[:4]
        places = _first_places(indices)
        if not accumulate or places is None or not _dense(x) or not _dense(u):
            continue
        value, count = x.meta["val"], places.meta["val"].numel()
        if u.meta["val"].shape != (*places.meta["val"].shape, *value.shape[1:]) or not _in_rows(value, count):
            continue
        kept = _kept_inside(u, places, value.shape[0])
        loose = kept is not None
        if kept is not None:
            u, places = kept
        rows, width = value.shape[0], math.prod(value.shape[1:])
        zeros = _is_zero(x)
        with graph.inserting_before(node):
            matrix = [] if zeros else [rewriter.flat(x, rows, width)]
            given = [*matrix, rewriter.flat(u, count, width), rewriter.flat(places, count)]
            rewriter.replace(node, rewriter.use(add_rows(value.dtype, zeros), *given, rows, int(loose)))


def _kept_inside(u: torch.fx.Node, places: torch.fx.Node, rows: int) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Return rows and unclipped places, if `u` has those rows, and -0.0 where the place was outside.

    Adding -0.0 changes nothing, so these rows can be left out.
    """
    given = _unclipped(places, rows)
    if given is None or u.target is not _aten.where.self:
        return None
    mask: Any
    kept: Any
    mask, kept, nothing = u.args
    while mask.target in (_aten.view.default, _aten.unsqueeze.default):
        mask = mask.args[0]
    if mask.target is not _aten.eq.Tensor or set(mask.args) != {places, given} or not _dense(kept):
        return None
    if kept.meta["val"].shape != u.meta["val"].shape:
        return None
    number = _scalar(nothing)
    return (kept, given) if number == 0 and math.copysign(1, number) < 0 else None


def _is_zero(node: Any) -> bool:
    """Whether all elements of a tensor are 0.0, because it was made so."""
    while node.target in (_aten.clone.default, _aten.expand.default, _aten.view.default):
        node = node.args[0]
    if node.target not in (_aten.full.default, _aten.scalar_tensor.default):
        return False
    number = float(node.args[1] if node.target is _aten.full.default else node.args[0])
    return number == 0 and math.copysign(1, number) > 0


def _scalar(node: Any) -> float:
    """Return the number that a tensor without axes holds; NaN if it is not known."""
    if node.target is _aten.scalar_tensor.default:
        return float(node.args[0])
    return float(node.args[1]) if node.target is _aten.full.default and node.args[0] == [] else math.nan


_HOW: dict[Any, str] = {
    _aten.sum.dim_IntList: "sum",
    _aten.mean.dim: "sum",
    _aten.amax.default: "max",
    _aten.amin.default: "min",
}


def _reductions_of(x: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, str]]:
    """Yield the reductions of x, and of its squares."""
    for user in x.users:
        if user.target in _HOW:
            yield user, _HOW[user.target]
        elif user.target is _aten.mul.Tensor and user.args == (x, x):
            for node in user.users:
                if _HOW.get(node.target) == "sum":
                    yield node, "squares"


def _choose_reductions(rewriter: _Rewriter) -> None:
    graph = rewriter.module.graph
    for x in list(graph.nodes):
        if not _dense(x) or x.meta["val"].numel() < LEAST_MOVED or not _in_memory(x):
            continue
        value = x.meta["val"]
        whole: list[tuple[torch.fx.Node, Reduction]] = []
        split: dict[int, list[tuple[torch.fx.Node, Reduction]]] = {}  # by the number of axes that make rows
        for node, how in _reductions_of(x):
            if node.meta["val"].dtype is not value.dtype or node.kwargs or value.ndim == 0:
                continue
            given: Any = node.args[1] if len(node.args) > 1 else []
            axes = {axis % value.ndim for axis in given}
            mean = node.target is _aten.mean.dim
            if len(axes) == value.ndim or not axes:
                whole.append((node, Reduction(how, "one", mean)))
            elif axes == set(range(len(axes))):
                split.setdefault(len(axes), []).append((node, Reduction(how, "columns", mean)))
            elif axes == set(range(value.ndim - len(axes), value.ndim)):
                split.setdefault(value.ndim - len(axes), []).append((node, Reduction(how, "rows", mean)))
        for lead, found in split.items():
            rows = math.prod(value.shape[:lead])
            columns = value.numel() // rows
            if rows < LEAST_REDUCED_ROWS or not LEAST_ROW_BYTES // value.element_size() <= columns <= MOST_COLUMNS:
                continue
            if not whole and all(reduction.results == "rows" for _, reduction in found):
                continue  # Inductor makes them together with what uses them
            _reduce_together(rewriter, x, (rows, columns), [*whole, *found])
            whole = []


def _in_memory(x: torch.fx.Node) -> bool:
    """Whether x is not computed where it is read."""
    while x.target in _VIEWS:
        x = x.args[0]  # type: ignore[assignment]
    return x.op == "placeholder" or x.target in _OPAQUE


def _reduce_together(
    rewriter: _Rewriter, x: torch.fx.Node, shape: tuple[int, int], found: Sequence[tuple[torch.fx.Node, Reduction]]
) -> None:
    kinds = tuple(dict.fromkeys(reduction for _, reduction in found))
    graph = rewriter.module.graph
    with graph.inserting_after(x if x.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]):
        first = graph.call_function(_aten.view.default, (x, list(shape)))  # a place to insert before
    with graph.inserting_before(first):
        made = rewriter.use(reduce_matrix(x.meta["val"].dtype, kinds), rewriter.flat(x, *shape))
        results = [made] if len(kinds) == 1 else [rewriter.call(operator.getitem, made, k) for k in range(len(kinds))]
        for node, reduction in found:
            rewriter.replace(node, results[kinds.index(reduction)])
    graph.erase_node(first)
