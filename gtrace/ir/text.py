"""The IR's text: what tests compare, logs show and signatures hash. `parse_graph` reads what `print_graph` writes.

    graph(%0: f32[2,3], %1: f32[3]) {
      %2: f32[2,3] = add(%0, %1)
      %3: f32[2] = sum(%2) {axes=(1,), keepdims=False}
      return %3
    }
"""

from __future__ import annotations

import ast
import re
from typing import Any

from gtrace.errors import GraphError
from gtrace.ir.aval import Aval, parse_aval
from gtrace.ir.graph import Graph, Node, Operand, Scalar
from gtrace.ir.op import REGISTRY


def print_graph(graph: Graph, *, locations: bool = False) -> str:
    """Return the text of `graph`; `locations` adds the user's line of each node as a comment."""
    head = ", ".join(f"%{value}: {a!r}" for value, a in zip(graph.inputs, graph.avals, strict=True))
    lines = [f"graph({head}) {{"]
    lines += [_print_node(node, locations) for node in graph.nodes]
    lines.append("  return" + "".join(f"{',' * (k > 0)} %{value}" for k, value in enumerate(graph.outputs)))
    lines.append("}")
    return "\n".join(lines)


def _print_node(node: Node, locations: bool) -> str:
    operands = ", ".join(f"%{x}" if isinstance(x, int) else repr(x) for x in node.ins)
    text = f"  %{node.out}: {node.instr.aval!r} = {node.op.name}({operands})"
    if node.params:
        inner = ", ".join(f"{k}={_print_param(v)}" for k, v in node.attributes.items())
        text += f" {{{inner}}}"
    if locations and node.location:
        text += f"  # {node.location}"
    return text


def _print_param(value: Any) -> str:
    # repr of an infinite float does not read back; an overflowing literal does
    return re.sub(r"\binf\b", "1e999", repr(value)) if not isinstance(value, str) else repr(value)


_HEAD = re.compile(r"graph\((?P<inputs>.*)\) \{")
_INPUT = re.compile(r"%(?P<value>\d+): (?P<aval>\w+\[[\d,]*\](?:@[\w:]+)?~?)(?:, )?")
_NODE = re.compile(
    r"  %(?P<out>\d+): (?P<aval>\S+) = (?P<op>\w+)\((?P<operands>[^)]*)\)(?: \{(?P<params>.*)\})?(?:  # (?P<location>.*))?"
)
_RETURN = re.compile(r"  return(?P<outputs>(?:,? %\d+)*)")


def parse_graph(text: str) -> Graph:
    """Read a graph from its text. Avals are inferred anew and must agree with those written.

    Raises:
        GraphError: the text is not a graph; the message gives the line.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 3:
        raise GraphError(f"[parse_graph] expected graph(...) {{ ... }}, got {len(lines)} lines. Print one to see the form.")
    head = _match(_HEAD, lines, 0)
    inputs, avals = [], []
    for match in _INPUT.finditer(head["inputs"]):
        inputs.append(int(match["value"]))
        avals.append(_aval(match["aval"], lines, 0))
    table = dict(zip(inputs, avals, strict=True))
    nodes = []
    for number in range(1, len(lines) - 2):
        node = _parse_node(lines, number, table)
        table[node.out] = node.instr.aval
        nodes.append(node)
    tail = _match(_RETURN, lines, len(lines) - 2)
    if lines[-1] != "}":
        raise GraphError(f"[parse_graph] line {len(lines)}: expected a closing brace, got {lines[-1]!r}. Close the graph.")
    outputs = tuple(int(value) for value in re.findall(r"%(\d+)", tail["outputs"]))
    return Graph(tuple(inputs), tuple(avals), tuple(nodes), outputs)


def _parse_node(lines: list[str], number: int, table: dict[int, Aval]) -> Node:
    match = _match(_NODE, lines, number)
    where = f"line {number + 1}"
    op = REGISTRY.get(match["op"])
    if op is None:
        raise GraphError(f"[parse_graph] {where}: expected a known operation, got {match['op']!r}.")
    # a comma inside an aval's brackets does not separate operands
    pieces = re.split(r", ", match["operands"]) if match["operands"] else []
    operands: list[Operand] = []
    avals: list[Aval] = []
    for piece in pieces:
        if piece.startswith("%"):
            value = int(piece[1:])
            if value not in table:
                raise GraphError(f"[parse_graph] {where}: expected an assigned value, got {piece}. Assign it first.")
            operands.append(value)
            avals.append(table[value])
        else:
            scalar = _parse_scalar(piece, lines, number)
            operands.append(scalar)
            avals.append(scalar.aval)
    attributes = {}
    if match["params"]:
        try:
            call = ast.parse(f"f({match['params']})", mode="eval").body
            assert isinstance(call, ast.Call)
            attributes = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        except (SyntaxError, ValueError) as error:
            raise GraphError(f"[parse_graph] {where}: expected name=literal attributes, got {match['params']!r}.") from error
    if tuple(attributes) != op.params:
        raise GraphError(f"[parse_graph] {where}: expected attributes {op.params}, got {tuple(attributes)}.")
    instr = op.instr(tuple(attributes.values()), tuple(avals))
    if instr.aval is not _aval(match["aval"], lines, number):
        raise GraphError(f"[parse_graph] {where}: expected {instr.aval!r} by inference, got {match['aval']}.")
    return Node(instr, tuple(operands), int(match["out"]), match["location"])


def _parse_scalar(text: str, lines: list[str], number: int) -> Scalar:
    value, _, kind = text.partition(":")
    a = _aval(kind, lines, number)
    if value in ("inf", "-inf", "nan"):
        return Scalar(float(value), a)
    try:
        return Scalar(ast.literal_eval(value), a)
    except (SyntaxError, ValueError) as error:
        raise GraphError(f"[parse_graph] line {number + 1}: expected a scalar such as 2.0:f32[], got {text!r}.") from error


def _aval(text: str, lines: list[str], number: int) -> Aval:
    try:
        return parse_aval(text)
    except ValueError as error:
        raise GraphError(f"[parse_graph] line {number + 1}: {error}, in {lines[number]!r}.") from error


def _match(pattern: re.Pattern[str], lines: list[str], number: int) -> re.Match[str]:
    match = pattern.fullmatch(lines[number])
    if match is None:
        raise GraphError(f"[parse_graph] line {number + 1}: expected {pattern.pattern}, got {lines[number]!r}.")
    return match
