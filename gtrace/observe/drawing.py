"""Draws a program's graph as a self-contained SVG: operations as nodes, values as edges, regions as boxes.

Boxes stand below one another in running order. Inside a box, an operation is below those whose results it uses. Nodes,
edges and boxes have hints for the pointer.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import attrs

from gtrace.observe.html import Raw

MAX_NODES = 60
"""The maximal number of nodes of a box; a larger one is folded."""

MAX_BOXES = 40
"""The maximal number of boxes into which a long program is folded."""

_LETTER = 6.4  # the width of a letter at 11 px
_HEIGHT, _GAP, _BETWEEN, _WIDEST = 32, 12, 22, 1100
_MARGIN, _TITLE = 12, 20


@attrs.frozen
class Figure:
    """A node.

    Attributes:
        lines: its text: one line or two.
        hint: the text at the pointer.
        ins, outs: the values that it reads and returns.
        kind: its class in the style sheet, such as "input".
        link: the id of the page element with its content; empty if there is none.
    """

    lines: tuple[str, ...]
    hint: str
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kind: str = "operation"
    link: str = ""

    @property
    def width(self) -> float:
        return max(map(len, self.lines), default=0) * _LETTER + 14


@attrs.frozen
class Box:
    """A region that runs as one call.

    Attributes:
        title: the text above its nodes.
        hint: the text when the pointer is on the title.
        kind: its class in the style sheet: a tier.
        shapes: its nodes; a folded box has one.
    """

    title: str
    hint: str
    kind: str
    shapes: tuple[Figure, ...]


@attrs.frozen
class _Placed:
    """A node and its left upper corner."""

    shape: Figure
    left: float
    top: float

    @property
    def middle(self) -> float:
        return self.left + self.shape.width / 2


def draw(boxes: Sequence[Box], texts: Mapping[int, str]) -> Raw:
    """Return the picture.

    Args:
        texts: the text of each value, for its edges.
    """
    rows = [_rows(box.shapes) for box in boxes]
    inner = [max([_width(row) for row in found], default=0.0) for found in rows]
    widths = [max(w, len(box.title) * _LETTER + 14) for w, box in zip(inner, boxes, strict=True)]
    whole = max(widths, default=0.0) + 4 * _MARGIN
    pieces: list[str] = []
    nodes: list[str] = []
    edges: list[str] = []
    origin: dict[int, _Placed] = {}
    top = float(_MARGIN)
    for box, found, width in zip(boxes, rows, widths, strict=True):
        height = _TITLE + len(found) * (_HEIGHT + _BETWEEN) - _BETWEEN + 2 * _MARGIN
        left = (whole - width) / 2 - _MARGIN
        pieces.append(_box(box, left, top, width + 2 * _MARGIN, height))
        for k, row in enumerate(found):
            x = (whole - _width(row)) / 2
            for shape in row:
                placed = _Placed(shape, x, top + _TITLE + _MARGIN + k * (_HEIGHT + _BETWEEN))
                edges += [_edge(origin[v], placed, v, texts) for v in dict.fromkeys(shape.ins) if v in origin]
                nodes.append(_node(placed, box))
                origin |= dict.fromkeys(shape.outs, placed)
                x += shape.width + _GAP
        top += height + _BETWEEN
    size = f'width="{whole:.0f}" height="{top:.0f}" viewBox="0 0 {whole:.0f} {top:.0f}"'
    inside = "".join([*pieces, *edges, *nodes])
    return Raw(f'<div class="graph"><svg {size} role="img" aria-label="graph of the program">{inside}</svg></div>')


def _width(row: Sequence[Figure]) -> float:
    return sum(shape.width for shape in row) + _GAP * max(len(row) - 1, 0)


def _rows(shapes: Sequence[Figure]) -> list[list[Figure]]:
    """Return the rows of nodes from the top: each node is below its operands, near their middle."""
    depth: dict[int, int] = {}
    layers: dict[int, list[Figure]] = {}
    made = [shape for shape in shapes if shape.ins or shape.kind != "input"]
    for shape in made:
        layer = max([depth[v] + 1 for v in shape.ins if v in depth], default=1)
        depth |= dict.fromkeys(shape.outs, layer)
        layers.setdefault(layer, []).append(shape)
    first = {v: layer for layer in sorted(layers, reverse=True) for shape in layers[layer] for v in shape.ins}
    for shape in shapes:
        if shape not in made:  # an input, just above its first use
            layers.setdefault(min([first[v] for v in shape.outs if v in first], default=1) - 1, []).append(shape)
    rows: list[list[Figure]] = []
    place: dict[int, float] = {}
    for layer in sorted(layers):
        found = layers[layer]
        means = []
        for k, shape in enumerate(found):
            above = [place[v] for v in shape.ins if v in place]
            means.append((sum(above) / len(above) if above else (k + 0.5) / len(found), k))
        row: list[Figure] = []
        for _, k in sorted(means):
            if row and _width([*row, found[k]]) > _WIDEST:
                rows.append(row)
                row = []
            row.append(found[k])
        rows.append(row)
        for number, (_, k) in enumerate(sorted(means)):
            place |= dict.fromkeys(found[k].outs, (number + 0.5) / len(found))
    return rows


def _text(value: str) -> str:
    return html.escape(value)


def _box(box: Box, left: float, top: float, width: float, height: float) -> str:
    title = f'<text x="{left + 8:.1f}" y="{top + 14:.1f}">{_text(box.title)}<title>{_text(box.hint)}</title></text>'
    where = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"'
    return f'<g class="region {_text(box.kind)}"><rect {where}></rect>{title}</g>'


def _node(placed: _Placed, box: Box) -> str:
    shape = placed.shape
    where = f'x="{placed.left:.1f}" y="{placed.top:.1f}" width="{shape.width:.1f}" height="{_HEIGHT}" rx="5"'
    offsets = (20,) if len(shape.lines) == 1 else (13, 26)
    lines = [
        f'<text x="{placed.middle:.1f}" y="{placed.top + y:.1f}" class="line{k}">{_text(line)}</text>'
        for k, (y, line) in enumerate(zip(offsets, shape.lines, strict=True))
    ]
    kinds = f"node {shape.kind} {box.kind}"
    node = f'<g class="{_text(kinds)}"><title>{_text(shape.hint)}</title><rect {where}></rect>{"".join(lines)}</g>'
    return f'<a href="#{_text(shape.link)}">{node}</a>' if shape.link else node


def _edge(source: _Placed, target: _Placed, value: int, texts: Mapping[int, str]) -> str:
    x1, y1, x2, y2 = source.middle, source.top + _HEIGHT, target.middle, target.top
    bend = max((y2 - y1) / 2, 8.0)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2 - 4:.1f}"
    head = f"M{x2 - 3:.1f} {y2 - 5:.1f}L{x2:.1f} {y2:.1f}L{x2 + 3:.1f} {y2 - 5:.1f}"
    hint = f"<title>%{value}: {_text(texts.get(value, ''))}</title>"
    return f'<g class="edge">{hint}<path d="{path}"></path><path d="{head}"></path></g>'


def stretches(lines: Iterable[str]) -> list[range]:
    """Return the segments into which a long program is folded, as ranges of operations from the same line.

    Args:
        lines: the user's line of each operation.

    >>> stretches(["a:1", "a:1", "b:2"])
    [range(0, 2), range(2, 3)]
    """
    every = list(lines)
    ends = [k for k in range(1, len(every)) if every[k] != every[k - 1]]
    parts = [range(a, b) for a, b in zip([0, *ends], [*ends, len(every)], strict=True)]
    largest = max(MAX_NODES, -(-len(every) // MAX_BOXES) * 2)
    parts = [range(k, min(k + largest, part.stop)) for part in parts for k in range(part.start, part.stop, largest)]
    while len(parts) > 4 * MAX_BOXES:
        parts = [range(pair[0].start, pair[-1].stop) for pair in (parts[k : k + 2] for k in range(0, len(parts), 2))]
    while len(parts) > MAX_BOXES:  # two neighbours that are small together become one
        k = min(range(len(parts) - 1), key=lambda k: parts[k + 1].stop - parts[k].start)
        parts[k : k + 2] = [range(parts[k].start, parts[k + 1].stop)]
    return parts
