"""The parser of the IR's text: the inverse of `print_graph`. Tests compare this text, and signatures hash it.

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

from gtrace.core.base.errors import GraphError
from gtrace.core.ir.aval import Aval, parse_type
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.subgraph import subgraph

_HEAD = re.compile(r"graph\((?P<inputs>.*)\) \{")
_INPUT = re.compile(r"%(?P<value>\d+): (?P<aval>\S+)", re.ASCII)
_VALUE = re.compile(r"%(\d+)", re.ASCII)
_NODE = re.compile(
    r"  %(?P<out>\d+): (?P<type>[^\s(]+|\([^()]*\)) = (?P<op>\w+)\((?P<operands>(?:[^()]|\([^()]*\))*)\)"
    r"(?: \{(?P<attributes>.*)\})?(?P<where> where)?(?:  # (?P<location>.*))?",
    re.ASCII,
)
_NESTED = re.compile(r"    (?P<name>\w+)(?P<several>\[\])? = (?P<head>graph\(.*)", re.ASCII)
_COMPLEX = re.compile(r"\(?[^()]*j\)?")
_RETURN = re.compile(r"  return(?: (?P<outputs>.+))?")


def parse_graph(text: str) -> Graph:
    """Parse a graph. Avals are inferred and must agree with those in the text.

    Raises:
        GraphError: the text is not a graph, or violates a rule; the message gives the line.

    >>> from gtrace import ir
    >>> graph = ir.parse_graph('''
    ... graph(%0: f32[2,3]) {
    ...   %1: f32[2] = sum(%0) {axes=(1,), keepdims=False}
    ...   return %1
    ... }''')
    >>> graph.nodes[0].op.name, graph.nodes[0].attributes
    ('sum', {'axes': (1,), 'keepdims': False})
    """
    reader = _Reader(text)
    graph = reader.graph("")
    if reader.at != len(reader.lines):
        raise reader.error("the end", repr(reader.lines[reader.at][1]), "Keep one graph.")
    return graph


class _Reader:
    """The non-blank lines of a text, and the current position."""

    def __init__(self, text: str) -> None:
        self.lines = [(k, line) for k, line in enumerate(text.split("\n"), 1) if line.strip()]
        self.at = 0

    def error(self, expected: str, got: str, fix: str = "", at: int | None = None) -> GraphError:
        at = self.at if at is None else at
        number = self.lines[at][0] if at < len(self.lines) else len(self.lines) + 1
        return GraphError(f"[parse_graph] line {number}: expected {expected}, got {got}." + (f" {fix}" if fix else ""))

    def line(self, indent: str) -> str:
        """Return the current line without the indentation of its graph."""
        if self.at >= len(self.lines):
            raise self.error("a closing brace", "the end of the text", "Close the graph.")
        _, line = self.lines[self.at]
        if not line.startswith(indent):
            raise self.error(f"an indentation of {len(indent)}", repr(line))
        return line[len(indent) :]

    def graph(self, indent: str, head: str | None = None) -> Graph:
        """Read a graph; `head` is the rest of its first line, if other text precedes the graph."""
        first = self.line(indent) if head is None else head
        match = _HEAD.fullmatch(first)
        if match is None:
            raise self.error("graph(%0: f32[2,3], ...) {", repr(first))
        types: dict[int, Any] = {}
        for word in match["inputs"].split(", ") if match["inputs"] else []:
            found = _INPUT.fullmatch(word)
            if found is None:
                raise self.error("an input such as %0: f32[2,3]", repr(word))
            self.assign(types, int(found["value"]), self.aval(found["aval"]))
        inputs, avals = tuple(types), tuple(types.values())
        self.at += 1
        nodes = []
        while (end := _RETURN.fullmatch(self.line(indent))) is None:
            nodes.append(self.node(indent, types))
        outputs = []
        for word in end["outputs"].split(", ") if end["outputs"] else []:
            value = self.value(word, types)
            if not isinstance(types[value], Aval):
                raise self.error("outputs that are one array each", f"{word}: {types[value]!r}")
            outputs.append(value)
        self.at += 1
        if self.line(indent) != "}":
            raise self.error("a closing brace", repr(self.line(indent)), "Close the graph.")
        self.at += 1
        return Graph(inputs, avals, tuple(nodes), tuple(outputs))

    def assign(self, types: dict[int, Any], value: int, a: Any, at: int | None = None) -> None:
        if value in types:
            raise self.error("single assignment", f"a second one of %{value}", at=at)
        types[value] = a

    def node(self, indent: str, types: dict[int, Any]) -> Node:
        """Read a node and its sub-graphs; add its result to `types`."""
        line = self.line(indent)
        match = _NODE.fullmatch(line)
        if match is None:
            raise self.error("%2: f32[2,3] = add(%0, %1), or return", repr(line))
        op = REGISTRY.get(match["op"])
        if op is None:
            raise self.error("a known operation", repr(match["op"]))
        operands: list[Operand] = []
        avals: list[Any] = []
        for word in match["operands"].split(", ") if match["operands"] else []:
            if word.startswith("%"):
                value = self.value(word, types)
                operands.append(value)
                avals.append(types[value])
            else:
                scalar = self.scalar(word)
                operands.append(scalar)
                avals.append(scalar.aval)
        attributes = self.attributes(match["attributes"]) if match["attributes"] else {}
        written = self.type(match["type"])
        start = self.at
        self.at += 1
        if match["where"]:
            self.nested(indent, attributes)
        if set(attributes) != set(op.params):
            raise self.error(f"attributes {op.params}", str(tuple(attributes)), at=start)
        try:
            instr = op.instr(tuple(attributes[name] for name in op.params), tuple(avals))
        except Exception as error:
            raise self.error(f"operands and attributes that fit {op.name}", f"an error: {error}", at=start) from error
        if instr.aval is not written:
            raise self.error(f"{instr.aval!r} by inference", match["type"], at=start)
        out = int(match["out"])
        self.assign(types, out, instr.aval, start)
        return Node(instr, tuple(operands), out, match["location"])

    def nested(self, indent: str, attributes: dict[str, Any]) -> None:
        """Read the sub-graphs of a node into its attributes."""
        several: set[str] = set()
        while (match := _NESTED.fullmatch(self.line(indent))) is not None:
            name, more = match["name"], bool(match["several"])
            if name in attributes and not (more and name in several):
                raise self.error("each attribute once", f"{name!r} twice")
            sub = subgraph(self.graph(indent + "    ", match["head"]))
            attributes[name] = (*attributes.get(name, ()), sub) if more else sub
            if more:
                several.add(name)

    def attributes(self, text: str) -> dict[str, Any]:
        """Read attributes that are literals."""
        expected = "attributes such as axes=(1,), keepdims=False"
        try:
            call = ast.parse(f"f({text})", mode="eval").body
            if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
                raise ValueError
            found = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        except (SyntaxError, SyntaxWarning, ValueError, TypeError) as error:
            raise self.error(expected, repr(text)) from error
        if len(found) < len(call.keywords) or not all(map(_is_attribute, found.values())):
            raise self.error(expected, repr(text))
        return found

    def value(self, text: str, types: dict[int, Any]) -> int:
        match = _VALUE.fullmatch(text)
        if match is None:
            raise self.error("a value such as %0", repr(text))
        value = int(match[1])
        if value not in types:
            raise self.error("an assigned value", text, "Assign it first.")
        return value

    def scalar(self, text: str) -> Scalar:
        written, _, kind = text.partition(":")
        a = self.aval(kind)
        value: Any = None
        try:
            if written in ("inf", "-inf", "nan"):
                value = float(written)
            else:  # a sum of literals would lose the signs of zeros, and cannot express (nan+infj)
                value = complex(written) if _COMPLEX.fullmatch(written) else ast.literal_eval(written)
        except (SyntaxError, SyntaxWarning, ValueError) as error:
            raise self.error("a scalar such as 2.0:f32[]", repr(text)) from error
        if not isinstance(value, (bool, int, float, complex)) or a.shape:
            raise self.error("a scalar such as 2.0:f32[]", repr(text))
        return Scalar(value, a)

    def aval(self, text: str) -> Aval:
        a = self.type(text)
        if not isinstance(a, Aval):
            raise self.error("the type of one array, such as f32[2,3]", repr(text))
        return a

    def type(self, text: str) -> Any:
        try:
            return parse_type(text)
        except ValueError as error:
            raise GraphError(
                f"[parse_graph] line {self.lines[self.at][0]}: {error}, in {self.lines[self.at][1]!r}."
            ) from error


def _is_attribute(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attribute, value))
    return value is None or isinstance(value, (bool, int, float, complex, str))
