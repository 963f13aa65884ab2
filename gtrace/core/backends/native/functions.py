"""Loop nests as functions of their own. Equal ones, such as the updates of parameters, are compiled once.

The compiler takes less time for many short functions, too, than for a long one. So the nests in the body of a long loop
are functions as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import attrs

from gtrace.core.backends.native.writer import Writer

_WORD = re.compile(r"[A-Za-z_]\w*")

_AROUND = {"team": "Team&", "refused": "bool&"}
"""What loops may use of the function around them, under the same names."""

_OUTSIDE = frozenset(["args", "length", "most", "scratch", "signals", "ticks"])
"""What else the function around them has: loops that use it are no function of their own."""


@attrs.frozen
class LoopFunction:
    """Loops as a function.

    Attributes:
        parameters: names and types.
        text: its body.
    """

    parameters: tuple[tuple[str, str], ...]
    text: str

    def written(self, name: str, known: Mapping[int, str]) -> str:
        """Return the C++ of the function, without parameters that are `known`, by place, to be the same."""
        named = {self.parameters[k][0]: text for k, text in known.items()}
        body = _WORD.sub(lambda word: named.get(word[0], word[0]), self.text)
        taken = ", ".join(f"{kind} {own}" for k, (own, kind) in enumerate(self.parameters) if k not in known)
        return f"static __attribute__((SEPARATE)) void {name}({taken}) {{\n{body}\n}}\n\n"


@attrs.frozen
class LoopCall:
    """A call in place of lines of the body.

    Attributes:
        start, stop: these lines.
        operands: the names that it takes.
    """

    start: int
    stop: int
    function: LoopFunction
    operands: tuple[str, ...]


def separated(writer: Writer) -> tuple[list[str], list[str]]:
    """Return the functions of the loops of a program, and the lines of the body that calls them."""
    calls = [call for nest in writer.nests if (call := _call(writer, *nest)) is not None]
    uses: dict[LoopFunction, list[LoopCall]] = {}
    for call in calls:
        uses.setdefault(call.function, []).append(call)
    functions: list[str] = []
    names: dict[LoopFunction, tuple[str, Collection[int]]] = {}
    for function, own in uses.items():
        known = {}
        for k, column in enumerate(zip(*[call.operands for call in own], strict=True)):
            sizes = {writer.sizes.get(name) for name in column}
            if len(sizes) == 1 and None not in sizes:
                known[k] = str(sizes.pop())
        names[function] = f"loops{len(names)}", known
        functions.append(function.written(names[function][0], known))
    lines: list[str] = []
    end = 0
    for call in calls:
        name, left_out = names[call.function]
        given = ", ".join(operand for k, operand in enumerate(call.operands) if k not in left_out)
        lines += [*writer.lines[end : call.start], f"  {name}({given});"]
        end = call.stop
    return functions, [*lines, *writer.lines[end:]]


def _call(writer: Writer, start: int, stop: int, own: Collection[str]) -> LoopCall | None:
    """Return the call of loops, with names by their order; None if they use others of the body than `own`."""
    names: dict[str, str] = {}
    operands: list[str] = []
    parameters: list[tuple[str, str]] = []
    foreign = False

    def renamed(word: re.Match[str]) -> str:
        nonlocal foreign
        name = word[0]
        if name not in names:
            kind = writer.types.get(name) or _AROUND.get(name)
            if name in own:
                names[name] = f"l{len(names)}"
            elif kind is not None:
                names[name] = name if name in _AROUND else f"p{len(operands)}"
                operands.append(name)
                parameters.append((names[name], kind))
            elif name in writer.names or name in _OUTSIDE:
                foreign = True
        return names.get(name, name)

    text = _WORD.sub(renamed, "\n".join(writer.lines[start:stop]))
    return None if foreign else LoopCall(start, stop, LoopFunction(tuple(parameters), text), tuple(operands))
