"""Reports of wrong forms that can be sent: scripts that show the difference. The store keeps the latest ones."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Sequence

import torch

from gtrace.core.backends.native.generator import generate
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.units import printable
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.store import Store

MAX_INPUTS = 1 << 16
"""Bytes of inputs that a report holds; larger ones are drawn."""

MAX_TEXT = 1 << 20
"""Characters of a report. A program that has more is not reported."""

_HEAD = """\
#
# This file shows the difference: it prints it, and the first operation from which on results are wrong.
#     python FILE
#     gtrace bisect FILE                     finds the mechanism that is at fault
#     TORCH_LOGS=output_code python FILE     prints the code that Inductor generates
"""

_START = """
import base64
import bisect
import os

# comparisons would put right results in place of the wrong ones, and code on disk may be other code
os.environ["GT_DISABLE"] = ",".join(filter(None, [os.environ.get("GT_DISABLE"), "comparisons"]))
os.environ["GT_CACHE_SIZE"] = "0"

import torch

import gtrace as gt
from gtrace.core.ir.graph import print_node
from gtrace.core.runtime.agreement import disagreement


def given(text, shape, strides, dtype):
    flat = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).view(dtype)
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(flat.reshape(shape))


def drawn(low, high, shape, strides, dtype):
    x = torch.rand(shape, dtype=torch.float64, generator=random) * (high - low) + low
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(x.round() if whole else x)


random = torch.Generator().manual_seed(0)
"""

_END = """

def problem(graph):
    tensors = [x.to(a.device) for x, a in zip(INPUTS, graph.avals)]
    function = RUN(gt.from_graph(graph))
    expected = gt.ir.evaluate(graph, *tensors)
    for _ in range(3):
        results = function(*[gt.from_torch(x.clone()) for x in tensors])
        got = [x.to_torch() for x in (results if isinstance(results, tuple) else (results,))]
        wrong = disagreement(graph, tensors, expected, got)
        if wrong:
            return wrong
    return ""


def until(k):
    # the program that ends with operation k, and returns what later ones would take
    nodes = graph.nodes[: k + 1]
    used = {x for node in nodes for x in node.values()}
    kept = [node.out for node in nodes if node.out not in used or node.out in graph.outputs]
    made = tuple(x for x in kept if isinstance(avals[x], gt.ir.Aval))
    return gt.ir.Graph(graph.inputs, graph.avals, nodes, made)


graph = gt.ir.parse_graph(PROGRAM)
avals = graph.value_avals()
wrong = problem(graph)
if wrong:
    places = [k for k, node in enumerate(graph.nodes) if isinstance(node.instr.aval, gt.ir.Aval)]
    first = bisect.bisect_left(places, True, key=lambda k: bool(problem(until(k))))
    if first < len(places):
        node = graph.nodes[places[first]]
        print("the program is wrong from this operation on:", print_node(node), node.location or "")
    raise SystemExit(wrong)
print("the results agree")
"""


def write(what: str, problem: str, graph: Graph, inputs: Sequence[torch.Tensor], run: str, form: Sequence[str]) -> str:
    """Write a report.

    Args:
        what: what became of which program.
        problem: how the form's results differ.
        graph: the program.
        run: Python text of a function; it takes a function and returns what runs it by that form.
        form: lines about the form, such as its code.

    Returns:
        Its path; empty: there is no store, or the report would be too long.
    """
    store = artifacts.store
    if store is None:
        return ""
    text = "".join(f"{line}\n" for line in _lines(what, problem, graph, inputs, run, form))
    if len(text) > MAX_TEXT:
        return ""
    written = text.encode("utf-8", "backslashreplace").decode()  # paths may have bytes that are no text
    return str(store.keep_report(written) or "")


def _lines(
    what: str, problem: str, graph: Graph, inputs: Sequence[torch.Tensor], run: str, form: Sequence[str]
) -> Iterator[str]:
    yield from _comments([f"{what}: {problem}."])
    yield _HEAD.rstrip("\n")
    tools = {**toolchain(), "python": sys.version, "threads": str(torch.get_num_threads())}
    yield from _comments(["", *[f"{name}: {value}" for name, value in tools.items()], "", *form])
    yield _START.rstrip("\n")
    small = sum(x.numel() * x.element_size() for x in inputs) <= MAX_INPUTS
    yield "INPUTS = ["
    yield from (f"    {_given(x) if small else _drawn(x)}," for x in inputs)
    yield f"]\nRUN = {run}"
    yield 'PROGRAM = """'
    yield print_graph(graph, locations=True).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    yield '"""'
    yield _END.rstrip("\n")


def _comments(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        for line in text.splitlines() or [""]:
            yield f"# {printable(line)}".rstrip()


def _given(x: torch.Tensor) -> str:
    flat = x.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    text = base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode() if x.numel() else ""
    return f'given("{text}", {_kind(x)})' if text else f"torch.empty_strided({_kind(x, named=True)})"


def _drawn(x: torch.Tensor) -> str:
    values = (torch.view_as_real(x) if x.is_complex() else x).double()
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    return f"drawn({low!r}, {high!r}, {_kind(x)})"


def _kind(x: torch.Tensor, named: bool = False) -> str:
    return f"{tuple(x.shape)}, {x.stride()}, {'dtype=' * named}{x.dtype}"


def code(store: Store, names: Sequence[str]) -> Iterator[str]:
    """Yield where the store has the code of artifacts, by their names, and the C++ of ours that it is made of."""
    for name in names:
        manifest = store.find(name)
        if manifest is None or manifest.code is None:
            continue
        by = "C++ of ours" if manifest.native else "Inductor"
        yield f"code: {manifest.ops} operations by {by}, in {store.folder / manifest.code.file}"
        if manifest.native:
            yield generate(manifest.request().graph).text
