"""Lowering: canonical graph to torch.fx.GraphModule of aten calls.

Each node's torch function runs on fake tensors. torch records the aten calls that it makes, decomposed into those that
the compiler takes. So an operation states its torch function once, in its declaration.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace import torch_internals as internals
from gtrace.compile.guards import portable
from gtrace.compile.symbolic import Relation, layout
from gtrace.interp.interpreter import bound_impl
from gtrace.ir.aval import Aval
from gtrace.ir.graph import Graph, Node, Operand
from gtrace.ir.sizes import fill, mask


@attrs.frozen(eq=False)
class Lowered:
    """A graph as aten calls.

    Attributes:
        module: takes the inputs one by one and returns a list.
        fakes: example inputs for the compiler, as fake tensors.
        mode: the `FakeTensorMode` that owns them.
        symbols: the symbol of each open size, by its place among the sizes of all inputs.
    """

    module: torch.fx.GraphModule
    fakes: list[torch.Tensor]
    mode: Any
    symbols: dict[int, Any]

    def freeze(self, constants: Sequence[torch.Tensor]) -> None:
        """Turn the last inputs into constants of the module, with these values."""
        nodes = self.module.graph.find_nodes(op="placeholder")[len(self.fakes) - len(constants) :]
        for k, (node, value) in enumerate(zip(nodes, constants, strict=True)):
            self.module.register_buffer(f"constant_{k}", value)
            with self.module.graph.inserting_before(node):
                held = self.module.graph.get_attr(f"constant_{k}")
            held.meta = dict(node.meta)
            node.replace_all_uses_with(held)
            self.module.graph.erase_node(node)
        self.module.recompile()
        self.mode.allow_non_fake_inputs = True
        del self.fakes[len(self.fakes) - len(constants) :]

    def own_outputs(self) -> None:
        """Copy outputs that share memory with an input or with another output."""
        graph = self.module.graph
        (output,) = graph.find_nodes(op="output")
        seen: set[Any] = set()
        results = []
        for node in output.args[0]:
            base = node
            while base.op == "call_function" and getattr(base.target, "is_view", False):
                base = base.args[0]
            if base in seen or base.op in ("placeholder", "get_attr"):
                with graph.inserting_before(output):
                    copy = graph.call_function(torch.ops.aten.clone.default, (node,))
                copy.meta = dict(node.meta)
                node = copy
            seen.add(base)
            results.append(node)
        output.args = (results,)
        self.module.recompile()

    def guards(self) -> tuple[Any, ...]:
        """Return what torch has assumed of the open sizes so far; see `gtrace.compile.guards`.

        Raises:
            ValueError: an assumption that conditions cannot express.
        """
        if self.mode.shape_env is None:
            return ()
        places = {symbol: place for place, symbol in self.symbols.items()}
        # torch assumes that an open size is at least 2, because sizes of 1 broadcast
        least = [["GreaterThan", ["size", place], 2] for place in self.symbols]
        return (*least, *(portable(guard.expr, places) for guard in self.mode.shape_env.guards))


def lower(
    graph: Graph,
    strides: Sequence[tuple[int, ...]],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    relations: Sequence[Relation] | None = None,
) -> Lowered:
    """Trace `graph` into aten calls.

    Args:
        graph: a canonical graph.
        strides: of each input.
        decompositions: aten overloads to expand while tracing.
        relations: how the integers of the program follow from the sizes of its inputs. The sizes that vary are left
            open, and the inputs must be dense. None: no size is open.
    """
    mode = internals.FAKE_TENSOR_MODE.get()(shape_env=None if relations is None else internals.SHAPE_ENV.get()())
    sizes, symbols = ([], {}) if relations is None else _open_sizes(graph, relations, mode)
    with torch.no_grad(), mode:
        if relations is None:
            fakes = [
                torch.empty_strided(a.shape, stride, dtype=a.dtype, device=a.device)
                for a, stride in zip(graph.avals, strides, strict=True)
            ]
        else:
            rest = iter(sizes)
            fakes = [
                _dense(a, stride, list(itertools.islice(rest, len(a.shape))))
                for a, stride in zip(graph.avals, strides, strict=True)
            ]

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            env: dict[int, torch.Tensor] = dict(zip(graph.inputs, tensors, strict=True))

            def read(operand: Operand) -> torch.Tensor:
                if isinstance(operand, int):
                    return env[operand]
                return torch.full((), operand.value, dtype=operand.aval.dtype, device=operand.aval.device)

            if relations is None:
                impls = [bound_impl(node) for node in graph.nodes]
            else:
                impls = _related(graph, relations, [n for t in tensors for n in t.shape])
            for node, impl in zip(graph.nodes, impls, strict=True):
                env[node.out] = impl(*(read(x) for x in node.ins))
            return [env[value] for value in graph.outputs]

        with internals.PYTHON_DISPATCHER.get()():
            module = internals.MAKE_FX.get()(run, decomposition_table=dict(decompositions or {}))(*fakes)
    return Lowered(module, fakes, mode, symbols)


def _open_sizes(graph: Graph, relations: Sequence[Relation], mode: Any) -> tuple[list[Any], dict[int, Any]]:
    """Return the sizes of all inputs, symbolic where they vary, and the symbols by their place among the sizes."""
    sizes: list[Any] = []
    symbols = {}
    for place, n in enumerate(n for a in graph.avals for n in a.shape):
        size: Any = n
        if relations[place].places:
            varying = internals.SYMBOLIC_CONTEXT.get()(dynamic_sizes=[internals.DYNAMIC.get()])
            size = mode.from_tensor(torch.empty(n, device="meta"), symbolic_context=varying).shape[0]
            symbols[place] = size.node.expr
        sizes.append(size)
    return sizes, symbols


def _dense(a: Aval, strides: Sequence[int], sizes: Sequence[Any]) -> torch.Tensor:
    """Return a dense tensor of these sizes, with the dtype and device of `a` and its axes in the order of `strides`."""
    order = layout(a.shape, strides)
    assert order is not None
    steps: list[Any] = [1] * len(sizes)
    step: Any = 1
    for k in reversed(order):
        steps[k] = step
        step = step * sizes[k]
    return torch.empty_strided(sizes, steps, dtype=a.dtype, device=a.device)


def _related(graph: Graph, relations: Sequence[Relation], sizes: Sequence[Any]) -> list[Callable[..., Any]]:
    """Return the torch function of each node, with its integers computed from the sizes of the inputs."""
    rest = iter(relations[len(sizes) :])

    def bound(node: Node) -> Callable[..., Any]:
        if not node.params:
            return node.op.impl
        found: list[int] = []
        masked = mask(node.params, found)
        params = fill(masked, iter([next(rest)(sizes) for _ in found]))
        return functools.partial(node.op.impl, **dict(zip(node.op.params, params, strict=True)))

    return [bound(node) for node in graph.nodes]
