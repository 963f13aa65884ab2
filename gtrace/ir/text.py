"""Reading the IR's text, which tests compare, logs show and signatures hash: the inverse of `print_graph`.

graph(%0: f32[2,3], %1: f32[3]) {
  %2: f32[2,3] = add(%0, %1)
  %3: f32[2] = sum(%2) {axes=(1,), keepdims=False}
  return %3
}
"""

from __future__ import annotations

import ast
import re

from gtrace.errors import GraphError
from gtrace.ir.aval import Aval, parse_aval
from gtrace.ir.graph import Graph, Node, Operand, Scalar
from gtrace.ir.op import REGISTRY

_HEAD = re.compile(r"graph\((?P<inputs>.*)\) \{")
_INPUT = re.compile(r"%(?P<value>\d+): (?P<aval>\w+\[[\d,]*\](?:@[\w:]+)?~?)(?:, )?")
_NODE = re.compile(
    r"  %(?P<out>\d+): (?P<aval>\S+) = (?P<op>\w+)\((?P<operands>[^)]*)\)"
    r"(?: \{(?P<params>.*)\})?(?:  # (?P<location>.*))?"
)
_RETURN = re.compile(r"  return(?P<outputs>(?:,? %\d+)*)")


def parse_graph(text: str) -> Graph:
    """Read a graph from its text. Avals are inferred anew and must agree with those written.

    Raises:
        GraphError: the text is not a graph; the message gives the line.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 3:
        raise GraphError(
            f"[parse_graph] expected graph(...) {{ ... }}, got {len(lines)} lines. Print one to see the form."
        )
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
        raise GraphError(
            f"[parse_graph] line {len(lines)}: expected a closing brace, got {lines[-1]!r}. Close the graph."
        )
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
            raise GraphError(
                f"[parse_graph] {where}: expected name=literal attributes, got {match['params']!r}."
            ) from error
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
        raise GraphError(
            f"[parse_graph] line {number + 1}: expected a scalar such as 2.0:f32[], got {text!r}."
        ) from error


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
