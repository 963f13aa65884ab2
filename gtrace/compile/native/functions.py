"""Loops as functions of their own. Equal ones, such as the updates of parameters, are compiled once.

The compiler takes less time for many short functions, too, than for a long one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import attrs

from gtrace.compile.native.writer import Writer

_WORD = re.compile(r"[A-Za-z_]\w*")

_AROUND = {"team": "Team&", "refused": "bool&"}
"""What loops may use of the function around them."""


@attrs.frozen
class Part:
    """Loops as a function.

    Attributes:
        kinds: the types of its parameters, `p0`, `p1`, ...
        text: its body.
    """

    kinds: tuple[str, ...]
    text: str

    def written(self, name: str, known: Mapping[int, str]) -> str:
        """Return the C++ of the function.

        Args:
            known: parameters that are the same at all calls, which leave them out.
        """
        named = {f"p{k}": text for k, text in known.items()}
        body = _WORD.sub(lambda word: named.get(word[0], word[0]), self.text)
        taken = ", ".join(
            f"{kind} {next((own for own, around in _AROUND.items() if around == kind), f'p{k}')}"
            for k, kind in enumerate(self.kinds) if k not in known
        )  # fmt: skip
        return f"static __attribute__((SEPARATE)) void {name}({taken}) {{\n{body}\n}}\n\n"


def separated(writer: Writer) -> tuple[list[str], list[str]]:
    """Return the functions of the loops of a program, and the body that calls them."""
    calls: dict[Part, list[list[str]]] = {}
    found: list[tuple[int, int, Part, list[str]]] = []
    for start, stop, own in writer.nests:
        made = _part(writer, writer.lines[start:stop], own)
        if made is not None:
            calls.setdefault(made[0], []).append(made[1])
            found.append((start, stop, *made))
    functions: list[str] = []
    names: dict[Part, tuple[str, Collection[int]]] = {}
    for part, given in calls.items():
        columns = [{str(writer.sizes.get(name, name)) for name in column} for column in zip(*given, strict=True)]
        known = {k: column.pop() for k, column in enumerate(columns) if len(column) == 1 and given[0][k] in writer.sizes}
        names[part] = f"part{len(names)}", known
        functions.append(part.written(names[part][0], known))
    body: list[str] = []
    end = 0
    for start, stop, part, operands in found:
        name, known = names[part]
        body += writer.lines[end:start]
        body.append(f"  {name}({', '.join(operand for k, operand in enumerate(operands) if k not in known)});")
        end = stop
    return functions, [*body, *writer.lines[end:]]


def _part(writer: Writer, lines: Sequence[str], own: Collection[str]) -> tuple[Part, list[str]] | None:
    """Return loops with names in order of appearance, and the operands; None: they use other variables of the body.

    Args:
        own: names that are theirs alone.
    """
    foreign = False
    names: dict[str, str] = {}
    operands: list[str] = []
    kinds: list[str] = []

    def renamed(word: re.Match[str]) -> str:
        nonlocal foreign
        name = word[0]
        if name not in names:
            kind = writer.types.get(name) or _AROUND.get(name)
            if kind is not None:
                names[name] = name if name in _AROUND else f"p{len(operands)}"
                operands.append(name)
                kinds.append(kind)
            elif name in own:
                names[name] = f"l{len(names)}"
            elif name in writer.names:
                foreign = True
        return names.get(name, name)

    text = _WORD.sub(renamed, "\n".join(lines))
    return None if foreign else (Part(tuple(kinds), text), operands)
