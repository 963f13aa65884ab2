"""Random well-typed graphs over the registry, and random rearrangements that must not matter."""

from __future__ import annotations

import random

import torch
from hypothesis import strategies as st

from gtrace.ir.aval import Aval, aval
from gtrace.ir.graph import Graph, Node, Operand, Scalar
from gtrace.ir.op import REGISTRY
from gtrace.trace.capture import replay

SHAPES = [(), (3,), (2, 3), (3, 3), (1, 3)]
DTYPES = [torch.float32, torch.float64, torch.int64]
UNARY = ["neg", "sin", "tanh", "sigmoid", "abs", "square", "exp"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "lt", "eq", "atan2"]
INTEGER = ["add", "sub", "mul", "maximum", "bitwise_and", "bitwise_xor", "lt"]


def random_graph(seed: int, nodes: int, inputs: int, floats_only: bool = False) -> Graph:
    """Return a graph of about `nodes` nodes; its values are numbered in order."""
    r = random.Random(seed)
    dtypes = [torch.float32] if floats_only else DTYPES
    avals = [aval(r.choice(SHAPES), r.choice(dtypes)) for _ in range(inputs)]
    table: list[Aval] = list(avals)
    made: list[Node] = []
    for _ in range(nodes):
        out = len(table)
        choice = _choose(r, table)
        if choice is None:
            continue
        name, ins, params = choice
        kinds = tuple(table[x] if isinstance(x, int) else x.aval for x in ins)
        node = Node(REGISTRY[name].instr(params, kinds), tuple(ins), out)
        made.append(node)
        table.append(node.instr.aval)
    results = list(range(inputs, len(table))) or list(range(inputs))
    outputs = tuple(r.sample(results, min(len(results), r.randint(1, 3))))
    return Graph(tuple(range(inputs)), tuple(avals), tuple(made), outputs)


def _choose(r: random.Random, table: list[Aval]) -> tuple[str, list[Operand], tuple] | None:
    x = r.randrange(len(table))
    a = table[x]
    kind = r.random()
    if a.dtype is torch.bool:
        if kind < 0.5:
            return "astype", [x], ("f32",)
        same = [k for k, b in enumerate(table) if b.dtype is torch.float32 and b.shape == a.shape]
        return ("where", [x, r.choice(same), r.choice(same)], ()) if same else ("logical_not", [x], ())
    if kind < 0.2:
        return r.choice(UNARY) if a.floating else "neg", [x], ()
    if kind < 0.55:
        names = BINARY if a.floating else INTEGER
        partners = [k for k, b in enumerate(table) if b.dtype is a.dtype and _broadcast(a.shape, b.shape)]
        return r.choice(names), r.sample([x, r.choice(partners)], 2), ()
    if kind < 0.7:
        number = r.choice([2.0, 0.5, -1.0, 0.0, -0.0]) if a.floating else r.choice([2, 3, -1])
        scalar = Scalar(number, aval((), a.dtype, weak=True))
        return r.choice(["add", "mul", "sub"]), r.sample([x, scalar], 2), ()
    if kind < 0.8 and a.shape:
        axis = r.randrange(len(a.shape))
        return r.choice(["sum", "max"]), [x], ((axis,), r.random() < 0.5)
    if kind < 0.85 and len(a.shape) == 2:
        return "permute", [x], ((1, 0),)
    if kind < 0.9 and a.shape:
        return "reshape", [x], ((a.size,),)
    if kind < 0.95 and a.floating:
        partners = [k for k, b in enumerate(table) if b.dtype is a.dtype and _multiplies(a.shape, b.shape)]
        return ("matmul", [x, r.choice(partners)], ()) if partners else None
    return "astype", [x], (r.choice(["f32", "f64"]),)


SMOOTH_UNARY = [
    ("sin", ()), ("tanh", ()), ("sigmoid", ()), ("neg", ()), ("square", ()), ("softplus", ()), ("gelu", (True,)),
]  # fmt: skip


def smooth_graph(seed: int, nodes: int, inputs: int) -> Graph:
    """Return a graph of float64 operations whose derivatives exist everywhere and stay moderate."""
    r = random.Random(seed)
    avals = [aval(r.choice([(), (3,), (2, 3), (3, 3)]), torch.float64) for _ in range(inputs)]
    table: list[Aval] = list(avals)
    made: list[Node] = []
    for _ in range(nodes):
        x = r.randrange(len(table))
        a = table[x]
        name, ins, params = _choose_smooth(r, table, x, a)
        node = Node(REGISTRY[name].instr(params, tuple(table[k] for k in ins)), tuple(ins), len(table))
        made.append(node)
        table.append(node.instr.aval)
    results = list(range(inputs, len(table))) or list(range(inputs))
    outputs = tuple(r.sample(results, min(len(results), r.randint(1, 2))))
    return Graph(tuple(range(inputs)), tuple(avals), tuple(made), outputs)


def _choose_smooth(r: random.Random, table: list[Aval], x: int, a: Aval) -> tuple[str, list[int], tuple]:
    kind = r.random()
    axis = r.randrange(len(a.shape)) if a.shape else None
    if kind < 0.3 or (axis is None and kind > 0.55):
        name, params = r.choice(SMOOTH_UNARY)
        return name, [x], params
    if kind < 0.55:
        partners = [k for k, b in enumerate(table) if _broadcast(a.shape, b.shape)]
        return r.choice(["add", "sub", "mul"]), r.sample([x, r.choice(partners)], 2), ()
    if kind < 0.65:
        return r.choice(["sum", "mean", "logsumexp"]), [x], ((axis,), r.random() < 0.5)
    if kind < 0.75:
        name = r.choice(["softmax", "log_softmax", "cumsum"])
        return name, [x], (axis, None) if name == "cumsum" else (axis,)
    if kind < 0.8:
        return "flip", [x], ((axis,),)
    if kind < 0.85:
        return "reshape", [x], ((a.size,),)
    if kind < 0.9:
        other = [k for k, b in enumerate(table) if b.shape[:axis] + b.shape[axis + 1 :] == a.shape[:axis]
                 + a.shape[axis + 1 :] and len(b.shape) == len(a.shape)]  # fmt: skip
        return "concat", [x, r.choice(other)], (axis,)
    products = [k for k, b in enumerate(table) if _multiplies(a.shape, b.shape)]
    if products:
        return "matmul", [x, r.choice(products)], ()
    return "permute", [x], (tuple(reversed(range(len(a.shape)))),)


def replayed(graph: Graph):
    """Return the function that records `graph` on its arguments and returns a tuple."""
    return lambda *inputs: tuple(replay(graph, inputs))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def _multiplies(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == 2 and len(b) == 2 and a[1] == b[0]


def graphs(max_nodes: int = 12, floats_only: bool = False) -> st.SearchStrategy[Graph]:
    """Random graphs with 1 to 4 inputs."""
    return st.builds(
        random_graph, st.integers(0, 10**9), st.integers(1, max_nodes), st.integers(1, 4), st.just(floats_only)
    )


def rearranged(graph: Graph, seed: int) -> Graph:
    """Return the same program otherwise written: renamed, interleaved anew, operands of commutative operations and the
    inputs and outputs in another order, with dead code and duplicates."""
    r = random.Random(seed)
    fresh = iter(r.sample(range(10_000), 1000))
    names = {value: next(fresh) for value in (*graph.inputs, *(node.out for node in graph.nodes))}
    waiting, done, nodes = list(graph.nodes), set(graph.inputs), []
    while waiting:
        node = r.choice([n for n in waiting if all(v in done for v in n.values())])
        waiting.remove(node)
        done.add(node.out)
        ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
        instr = node.instr
        if node.op.commutative and r.random() < 0.5:
            ins, instr = ins[::-1], node.op.instr(node.params, node.instr.ins[::-1])
        twin = next(fresh)
        nodes.append(Node(instr, ins, names[node.out]))
        if r.random() < 0.2:
            # computed twice; those who come later may use either
            nodes.append(Node(instr, ins, twin))
            if r.random() < 0.5:
                names[node.out] = twin
        if r.random() < 0.2 and instr.aval.floating:
            nodes.append(Node(REGISTRY["neg"].instr((), (instr.aval,)), (names[node.out],), next(fresh)))
    inputs = list(zip(graph.inputs, graph.avals, strict=True))
    r.shuffle(inputs)
    outputs = [names[v] for v in graph.outputs]
    r.shuffle(outputs)
    return Graph(tuple(names[v] for v, _ in inputs), tuple(a for _, a in inputs), tuple(nodes), tuple(outputs))


def tensors(avals: tuple[Aval, ...], seed: int = 0) -> list[torch.Tensor]:
    """Return a tensor for each aval."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for a in avals:
        if a.floating:
            out.append(torch.randn(a.shape, generator=generator, dtype=torch.float64).to(a.dtype))
        else:
            out.append(torch.randint(-3, 4, a.shape, generator=generator).to(a.dtype))
    return out
