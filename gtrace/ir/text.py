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
from typing import Any

from gtrace.errors import GraphError
from gtrace.ir.aval import Aval, parse_type
from gtrace.ir.graph import Graph, Node, Operand, Scalar
from gtrace.ir.op import REGISTRY
from gtrace.ir.rewrite import subgraph

_HEAD = re.compile(r"graph\((?P<inputs>.*)\) \{")
_INPUT = re.compile(r"%(?P<value>\d+): (?P<aval>\w+\[[\d,]*\](?:@[\w:]+)?~?)(?:, )?")
_NODE = re.compile(
    r"  %(?P<out>\d+): (?P<type>\S+|\(.*?\)) = (?P<op>\w+)\((?P<operands>[^)]*)\)"
    r"(?: \{(?P<params>.*)\})?(?P<where> where)?(?:  # (?P<location>.*))?"
)
_NESTED = re.compile(r"    (?P<name>\w+)(?P<several>\[\])? = (?P<head>graph\(.*)")
_RETURN = re.compile(r"  return(?P<outputs>(?:,? %\d+)*)")


def parse_graph(text: str) -> Graph:
    """Read a graph from its text. Avals are inferred anew and must agree with those written.

    Raises:
        GraphError: the text is not a graph; the message gives the line.
    """
    reader = _Reader([line for line in text.split("\n") if line.strip()])
    graph = reader.graph("")
    if reader.at != len(reader.lines):
        raise GraphError(
            f"[parse_graph] line {reader.at + 1}: expected the end, got {reader.lines[reader.at]!r}. Keep one graph."
        )
    return graph


class _Reader:
    """The lines of a text and the place reached."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0

    def match(self, pattern: re.Pattern[str], line: str) -> re.Match[str]:
        match = pattern.fullmatch(line)
        if match is None:
            raise self.error(pattern.pattern, repr(line))
        return match

    def error(self, expected: str, got: str, fix: str = "") -> GraphError:
        return GraphError(
            f"[parse_graph] line {self.at + 1}: expected {expected}, got {got}." + (f" {fix}" if fix else "")
        )

    def line(self, indent: str) -> str:
        """Return the current line without the indentation of the graph it belongs to."""
        if self.at >= len(self.lines):
            raise self.error("a closing brace", "the end of the text", "Close the graph.")
        line = self.lines[self.at]
        if not line.startswith(indent):
            raise self.error(f"an indentation of {len(indent)}", repr(line))
        return line[len(indent) :]

    def graph(self, indent: str, head: str | None = None) -> Graph:
        """Read a graph; `head` is its first line if something else came before it in the line."""
        match = self.match(_HEAD, self.line(indent) if head is None else head)
        inputs, avals = [], []
        for found in _INPUT.finditer(match["inputs"]):
            inputs.append(int(found["value"]))
            avals.append(self.type(found["aval"]))
        table: dict[int, Any] = dict(zip(inputs, avals, strict=True))
        self.at += 1
        nodes = []
        while (end := _RETURN.fullmatch(self.line(indent))) is None:
            node = self.node(indent, table)
            table[node.out] = node.instr.aval
            nodes.append(node)
        self.at += 1
        if self.line(indent) != "}":
            raise self.error("a closing brace", repr(self.line(indent)), "Close the graph.")
        self.at += 1
        outputs = tuple(int(value) for value in re.findall(r"%(\d+)", end["outputs"]))
        return Graph(tuple(inputs), tuple(avals), tuple(nodes), outputs)

    def node(self, indent: str, table: dict[int, Any]) -> Node:
        match = self.match(_NODE, self.line(indent))
        op = REGISTRY.get(match["op"])
        if op is None:
            raise self.error("a known operation", repr(match["op"]))
        operands: list[Operand] = []
        avals: list[Aval] = []
        for piece in re.split(r", ", match["operands"]) if match["operands"] else []:
            if piece.startswith("%"):
                value = int(piece[1:])
                if value not in table:
                    raise self.error("an assigned value", piece, "Assign it first.")
                operands.append(value)
                avals.append(table[value])
            else:
                scalar = self.scalar(piece)
                operands.append(scalar)
                avals.append(scalar.aval)
        attributes: dict[str, Any] = {}
        if match["params"]:
            try:
                call = ast.parse(f"f({match['params']})", mode="eval").body
                assert isinstance(call, ast.Call)
                attributes = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            except (SyntaxError, ValueError) as error:
                raise self.error("name=literal attributes", repr(match["params"])) from error
        expected_type = self.type(match["type"])
        start = self.at
        self.at += 1
        if match["where"]:
            self.nested(indent, attributes)
        end, self.at = self.at, start  # errors from here on are the node's
        if set(attributes) != set(op.params):
            raise self.error(f"attributes {op.params}", str(tuple(attributes)))
        instr = op.instr(tuple(attributes[name] for name in op.params), tuple(avals))
        if instr.aval is not expected_type:
            raise self.error(f"{instr.aval!r} by inference", match["type"])
        self.at = end
        return Node(instr, tuple(operands), int(match["out"]), match["location"])

    def nested(self, indent: str, attributes: dict[str, Any]) -> None:
        """Read the sub-graphs of a node into its attributes."""
        while (match := _NESTED.fullmatch(self.line(indent))) is not None:
            sub = subgraph(self.graph(indent + "    ", match["head"]))
            name = match["name"]
            attributes[name] = (*attributes.get(name, ()), sub) if match["several"] else sub

    def scalar(self, text: str) -> Scalar:
        value, _, kind = text.partition(":")
        a = self.type(kind)
        assert isinstance(a, Aval)
        if value in ("inf", "-inf", "nan"):
            return Scalar(float(value), a)
        try:
            return Scalar(ast.literal_eval(value), a)
        except (SyntaxError, ValueError) as error:
            raise self.error("a scalar such as 2.0:f32[]", repr(text)) from error

    def type(self, text: str) -> Any:
        try:
            return parse_type(text)
        except ValueError as error:
            line = self.lines[self.at]
            raise GraphError(f"[parse_graph] line {self.at + 1}: {error}, in {line!r}.") from error
