"""Lowering: canonical graph to torch.fx.GraphModule of aten calls.

Each node's torch function runs on fake tensors. torch records the aten calls that it makes, decomposed into those that
the compiler takes. So an operation states its torch function once, in its declaration.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.guards import portable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.result_strides import carried_strides, in_order
from gtrace.core.backends.native.operator import loop_operator
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.backends.symbolic import Relation
from gtrace.core.backends.tuned import MAX_EXPORTED_OPS
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.rounding import rounded
from gtrace.core.ir.aliasing import Pairs
from gtrace.core.ir.aval import Aval, layout
from gtrace.core.ir.graph import Graph, Node, Operand, Subgraph, is_subgraphs
from gtrace.core.passes.subgraph_calls import count_operations


@attrs.frozen(eq=False)
class Lowered:
    """A graph as aten calls.

    Attributes:
        module: takes the inputs one by one and returns a list.
        fakes: example inputs for the compiler, as fake tensors.
        mode: the `FakeTensorMode` that owns them.
        symbols: the symbol of each open size, by its place among the sizes of all inputs.
        operators: the operators that are loops, with their code.
    """

    module: torch.fx.GraphModule
    fakes: list[torch.Tensor]
    mode: Any
    symbols: dict[int, Any]
    operators: dict[Any, str]

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

    def keep_layouts(self) -> None:
        """Have Inductor return every output in the strides that it has here.

        Otherwise it returns what is near convolutions with the channels last. Such results, taken as inputs, would make
        another program of the next step, and another of the one after it.
        """
        (output,) = self.module.graph.find_nodes(op="output")
        output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))

    def guards(self) -> tuple[Any, ...]:
        """Return what torch assumed of the open sizes; raise a ValueError for what conditions cannot express."""
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
    donated: Pairs = (),
    shape_env: bool = False,
) -> Lowered:
    """Trace `graph` into aten calls.

    Args:
        graph: a canonical graph.
        strides: of each input.
        decompositions: aten overloads to expand while tracing.
        relations: how the integers of the program follow from the sizes of its inputs. The sizes that vary are left
            open, and the inputs must be dense. None: no size is open.
        donated: the outputs that are written over inputs in place of being returned.
        shape_env: whether there is one also if no size is open: Inductor's cache of compiled graphs needs it.
    """
    sizes_known = relations is None and not shape_env
    mode = internals.FAKE_TENSOR_MODE.get()(shape_env=None if sizes_known else internals.SHAPE_ENV.get()())
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

        builder = _Builder()
        carried = [(place, layout(graph.avals[k].shape, strides[k])) for place, k in carried_strides(graph, strides)]

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = [n for t in tensors for n in t.shape]
            integers = None if relations is None else iter([relation(given) for relation in relations])
            results = builder.program(graph, integers)(tensors)
            written = {j for _, j in donated}
            for place, order in carried:
                if place not in written:  # those take on the strides of the input anyway
                    assert order is not None
                    results[place] = in_order(results[place], order)
            for k, j in donated:
                tensors[k].copy_(results[j])
            return [x for j, x in enumerate(results) if j not in written]

        with internals.PYTHON_DISPATCHER.get()():
            module = internals.MAKE_FX.get()(run, decomposition_table=dict(decompositions or {}))(*fakes)
    return Lowered(module, fakes, mode, symbols, builder.operators)


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


@attrs.frozen(eq=False)
class _Builder:
    """Makes functions that torch can trace.

    Attributes:
        operators: those of the loops so far, with their code.
    """

    operators: dict[Any, str] = attrs.field(factory=dict)

    def program(self, graph: Graph, integers: Iterator[Any] | None) -> TensorFunction:
        """Return a program as a function of tensors.

        Args:
            integers: what stands for the integers of the program, in the order of
                `gtrace.core.ir.graph.skeleton`; None: they themselves.
        """
        if integers is not None:
            for _ in itertools.chain.from_iterable(a.shape for a in graph.avals):
                next(integers)
        impls = [self._impl(node, integers) for node in graph.nodes]

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            env: dict[int, torch.Tensor] = dict(zip(graph.inputs, tensors, strict=True))

            def read(operand: Operand) -> torch.Tensor:
                if isinstance(operand, int):
                    return env[operand]
                dtype, value = operand.aval.dtype, operand.value
                # a compiler that sees it become float64 would take all its digits
                value = rounded(value, dtype) if dtype.is_floating_point and isinstance(value, float) else value
                return torch.full((), value, dtype=dtype, device=operand.aval.device)

            for node, impl in zip(graph.nodes, impls, strict=True):
                env[node.out] = impl(*(read(x) for x in node.ins))
            return [env[value] for value in graph.outputs]

        return run

    def _impl(self, node: Node, integers: Iterator[Any] | None) -> Callable[..., Any]:
        """Return the torch function of a node."""
        programs: list[TensorFunction] = []
        fixed = True  # whether no size in a sub-graph is open

        def value_of(param: Any) -> Any:
            nonlocal fixed
            if isinstance(param, Subgraph):
                own = None if integers is None else list(itertools.islice(integers, len(param.skeleton[1])))
                fixed &= own is None or all(isinstance(n, int) for n in own)
                programs.append(self.program(param.graph, None if own is None else iter(own)))
                return None
            if param.__class__ is int and integers is not None:
                return next(integers)
            return tuple(map(value_of, param)) if param.__class__ is tuple else param

        given = dict(zip(node.op.params, map(value_of, node.params), strict=True))
        if not programs:
            function = node.instr.kernel()
            return functools.partial(function, **given) if given else function
        if node.op.branch:
            return functools.partial(_switch, programs)
        if node.op.loop:
            return self._loop(node, programs[0], given, fixed)
        assert node.op.rules.body is not None  # it runs its body
        return functools.partial(
            node.op.rules.body, programs, **{k: v for k, v in given.items() if not is_subgraphs(node.attributes[k])}
        )

    def _loop(self, node: Node, body: TensorFunction, given: Mapping[str, Any], fixed: bool) -> Callable[..., Any]:
        """Return a loop as one operator, or its unrolled steps; raise an UnsupportedLoopError if it can be neither."""
        reason = "native loops have no open sizes but their length"
        if fixed:
            try:
                operator = loop_operator(node)
            except UnsupportedLoopError as error:
                reason = str(error)
            else:
                self.operators[operator.op] = operator.code
                return functools.partial(_operated, operator.op, given.get("length", 0))
        if node.op.name != "scan":
            raise UnsupportedLoopError(f"{node.op.name}: {reason}")
        length, count = given["length"], count_operations(node.attributes["body"].graph)
        if not isinstance(length, int) or not 0 < length * count <= MAX_EXPORTED_OPS:
            steps = "an open number of" if not isinstance(length, int) else str(length)
            raise UnsupportedLoopError(
                f"scan: {reason}; and {steps} steps of {count} operations unroll to none or more"
                f" than {MAX_EXPORTED_OPS}"
            )
        order = range(length - 1, -1, -1) if given["reverse"] else range(length)
        return functools.partial(_unrolled, body, order, given["consts"], given["carry"])


def _operated(op: Any, length: Any, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
    """Run a loop as one operator."""
    results = op(*[x.contiguous() for x in operands], length)
    return results if isinstance(results, tuple) else (results,)


def _unrolled(
    body: TensorFunction, order: Sequence[int], consts: int, carry: int, *operands: torch.Tensor
) -> list[torch.Tensor]:
    """Run the steps of a scan, in this order."""
    fixed, state, xs = operands[:consts], list(operands[consts : consts + carry]), operands[consts + carry :]
    rows: dict[int, list[torch.Tensor]] = {}
    for t in order:
        out = body([*fixed, *state, *[x[t] for x in xs]])
        state, rows[t] = out[:carry], out[carry:]
    return [*state, *[torch.stack(column) for column in zip(*[rows[t] for t in sorted(rows)], strict=True)]]


def _switch(programs: Sequence[TensorFunction], index: torch.Tensor, *operands: torch.Tensor) -> Sequence[Any]:
    """Run a switch as nested conditions, each between the first half of the branches and the others."""
    if len(programs) == 1:
        return [x.clone() for x in programs[0](operands)]  # results that are operands would share their memory
    half = len(programs) // 2

    def branch(chosen: Sequence[TensorFunction], first: int) -> Callable[..., Sequence[Any]]:
        return lambda index, *operands: _switch(chosen, index - first, *operands)

    return internals.COND.get()(
        index < half, branch(programs[:half], 0), branch(programs[half:], half), (index, *operands)
    )
