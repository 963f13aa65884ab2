"""The figures of the site as SVG: ``python docs/site/figures.py`` writes docs/figures.

Colours are CSS variables with a light and a dark set. A file on its own follows the settings of the reader; on the site
static/site.css follows the switch of the theme.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

import attrs

import gtrace as gt
from gtrace.core.ir.graph import Graph

FOLDER = Path(__file__).resolve().parents[1] / "figures"
WIDTH = 760
KINDS = ("plain", "blue", "green", "amber", "red")
LIGHT = "--ink:#1f2933;--soft:#5b6675;--line:#8a94a6;--plain:#f1f3f6;--plain-line:#a3adbb;--blue:#dbeafe;--blue-line:#3b82f6;--green:#dcfce7;--green-line:#16a34a;--amber:#fef3c7;--amber-line:#d97706;--red:#fee2e2;--red-line:#dc2626"  # noqa: E501
DARK = "--ink:#e6eaf0;--soft:#a5afbd;--line:#7d8899;--plain:#262c36;--plain-line:#5b6675;--blue:#1b3a66;--blue-line:#60a5fa;--green:#14432a;--green-line:#4ade80;--amber:#4a3510;--amber-line:#fbbf24;--red:#4f1d1d;--red-line:#f87171"  # noqa: E501
STYLE = f"""
.gt-figure{{{LIGHT}}}
@media (prefers-color-scheme:dark){{.gt-figure{{{DARK}}}}}
.gt-figure text{{font:13px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}}
.gt-figure .small{{font-size:11.5px;fill:var(--soft)}}
.gt-figure .left{{text-anchor:start}}
.gt-figure .code{{font-family:ui-monospace,monospace;font-size:12px}}
.gt-figure .head{{font-weight:600}}
.gt-figure path{{stroke:var(--line);stroke-width:1.5;fill:none}}
.gt-figure marker path{{fill:var(--line);stroke:none}}
.gt-figure .frame{{fill:none;stroke:var(--line);stroke-dasharray:5 4}}
""" + "".join(f".gt-figure .{kind}{{fill:var(--{kind});stroke:var(--{kind}-line)}}\n" for kind in KINDS)


@attrs.frozen
class Box:
    """A rectangle that arrows can begin and end at."""

    x: float
    y: float
    width: float
    height: float

    def side(self, name: str) -> tuple[float, float]:
        """Return the middle of a side: left, right, top or bottom."""
        across = {"left": 0.0, "right": 1.0}.get(name, 0.5)
        down = {"top": 0.0, "bottom": 1.0}.get(name, 0.5)
        return self.x + across * self.width, self.y + down * self.height


@attrs.define
class Figure:
    """A picture as lines of SVG."""

    title: str
    height: int
    width: int = WIDTH
    lines: list[str] = attrs.field(factory=list)

    def box(self, x: float, y: float, width: float, text: str, kind: str = "plain", code: bool = False) -> Box:
        """Draw a box: the first line of its text is its name, further ones are notes."""
        rows = text.split("\n")
        height = 18 + 17 * len(rows)
        self.lines.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="7" stroke-width="1.3"/>'
        )
        for k, row in enumerate(rows):
            style = ("code" if code else "head") if k == 0 else "small"
            self.text(x + width / 2, y + 22 + 17 * k, row, style)
        return Box(x, y, width, height)

    def text(self, x: float, y: float, text: str, style: str = "small") -> None:
        """Write a line of text."""
        self.lines.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def frame(self, x: float, y: float, width: float, height: float, text: str) -> None:
        """Draw a dashed frame with a name above it."""
        self.lines.append(f'<rect class="frame" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="9"/>')
        self.text(x + 4, y - 7, text, "small left")

    def arrow(
        self, start: Box, end: Box, sides: str = "right left", label: str = "", dx: float = 0, dy: float = -6
    ) -> None:
        """Draw an arrow between the named sides of two boxes, with a label near its middle."""
        first, last = sides.split()
        (x0, y0), (x1, y1) = start.side(first), end.side(last)
        mx, my = (x0 + x1) / 2, (y0 + y1) / 2
        if x0 == x1 or y0 == y1:
            route = f"L{x1:g} {y1:g}"
        elif first in ("left", "right") and last in ("left", "right"):
            route = f"C{mx:g} {y0:g} {mx:g} {y1:g} {x1:g} {y1:g}"
        elif first in ("top", "bottom") and last in ("top", "bottom"):
            route = f"C{x0:g} {my:g} {x1:g} {my:g} {x1:g} {y1:g}"
        elif first in ("left", "right"):
            route = f"Q{x1:g} {y0:g} {x1:g} {y1:g}"
        else:
            route = f"Q{x0:g} {y1:g} {x1:g} {y1:g}"
        self.lines.append(f'<path d="M{x0:g} {y0:g}{route}" marker-end="url(#gt-arrow)"/>')
        if label:
            self.text(mx + dx, my + dy, label)

    def svg(self) -> str:
        """Return the picture as the text of a file."""
        return (
            f'<svg class="gt-figure" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="100%" role="img" style="max-width:{self.width}px">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
            '<defs><marker id="gt-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>\n' + "\n".join(self.lines) + "\n</svg>\n"
        )


def straight_line() -> Figure:
    """From an operation to a value."""
    f = Figure("From an operation of the user to tensors", 322)
    operation = f.box(10, 30, 150, "operation\nx @ w, gt.tanh(x)", "plain")
    pending = f.box(215, 30, 150, "pending list\none entry a value", "plain")
    force = f.box(420, 30, 150, "a look at a value\nfloat(x), print(x)", "plain")
    key = f.box(625, 30, 125, "exact key\nthe list itself", "plain")
    graph = f.box(625, 140, 125, "graph\nSSA, immutable", "blue")
    canonical = f.box(420, 140, 150, "canonical form\nsimplified, numbered", "blue")
    signature = f.box(215, 140, 150, "signature\n128 bits of its text", "blue")
    program = f.box(10, 140, 150, "program\nits history and tier", "green")
    run = f.box(10, 250, 150, "executable\ninterpreted, compiled", "green")
    tensors = f.box(215, 250, 150, "torch tensors\nresults", "green")
    alive = f.box(420, 250, 150, "Arrays\nthose still alive", "plain")
    f.arrow(operation, pending, label="record")
    f.arrow(pending, force, label="later")
    f.arrow(force, key)
    f.arrow(key, graph, "bottom top", "new", 22, 4)
    f.arrow(graph, canonical, "left right")
    f.arrow(canonical, signature, "left right")
    f.arrow(signature, program, "left right")
    f.arrow(program, run, "bottom top")
    f.arrow(run, tensors)
    f.arrow(tensors, alive, label="bind")
    x, y = key.side("bottom")
    f.lines.append(
        f'<path d="M{x - 40:g} {y:g}C{x - 40:g} 112 {x - 60:g} 112 {x - 90:g} 112L125 112Q85 112 85 137" '
        'marker-end="url(#gt-arrow)"/>'
    )
    f.text(345, 106, "known key: one look-up leads straight to the program")
    return f


def tiers() -> Figure:
    """How a program becomes a compiled one."""
    f = Figure("The tiers of a program", 316)
    interpreted = f.box(10, 112, 150, "interpreted\noperation by operation", "blue")
    worker = f.box(235, 30, 165, "the worker compiles\nthe program runs on", "amber")
    store = f.box(235, 204, 165, "code in the store\nof an earlier run", "amber")
    trial = f.box(470, 112, 130, "trial\nboth forms in turn", "green")
    compiled = f.box(650, 112, 100, "compiled\nfaster", "green")
    failed = f.box(470, 25, 130, "failed\none warning", "red")
    demoted = f.box(470, 258, 130, "demoted\nit was slower", "red")
    f.arrow(interpreted, worker, "top left", "hot", -62, -12)
    f.arrow(interpreted, store, "bottom left", "found by its digest", -98, 30)
    f.arrow(worker, trial, "right left", "", 0, 0)
    f.arrow(store, trial, "right left")
    f.arrow(trial, compiled)
    f.arrow(trial, demoted, "bottom top")
    f.arrow(worker, failed, "right left")
    f.text(662, 208, "Failed and demoted programs")
    f.text(662, 225, "are interpreted again.")
    return f


def store() -> Figure:
    """What one process leaves for the next."""
    f = Figure("The worker and the store", 250)
    f.frame(10, 30, 200, 205, "first run")
    f.frame(550, 30, 200, 205, "second run")
    first = f.box(30, 50, 160, "your program\ninterprets, records", "blue")
    swap = f.box(30, 165, 160, "your program\nruns compiled", "green")
    worker = f.box(275, 50, 210, "worker process\npauses for you", "amber")
    disk = f.box(275, 165, 210, "store on disk\ncode, manifest, measurements", "amber")
    second = f.box(570, 50, 160, "your program\nrecords the same", "blue")
    loaded = f.box(570, 165, 160, "your program\nruns compiled at once", "green")
    f.arrow(first, worker, label="IR text")
    f.arrow(worker, disk, "bottom top", "a shared library", 58, 4)
    f.arrow(disk, swap, "left right", "load")
    f.arrow(first, swap, "bottom top")
    f.arrow(second, loaded, "bottom top")
    f.arrow(disk, loaded, label="load")
    return f


def parts() -> Figure:
    """A model with equal layers, divided."""
    f = Figure("A program divided where it repeats", 220)
    f.text(10, 20, "One recorded step of a model with four equal layers:", "small left")
    names = ["embed", "layer", "layer", "layer", "layer", "loss"]
    kinds = ["plain", "blue", "blue", "blue", "blue", "plain"]
    above = [f.box(10 + 127 * k, 34, 100, name, kind) for k, (name, kind) in enumerate(zip(names, kinds, strict=True))]
    for one, two in itertools.pairwise(above):
        f.arrow(one, two)
    embed = f.box(10, 125, 160, "embed\n1 call a step")
    layer = f.box(290, 125, 180, "layer\n4 calls a step, 1 compile", "green")
    loss = f.box(590, 125, 160, "loss\n1 call a step")
    f.arrow(above[0], embed, "bottom top")
    for box in above[1:5]:
        f.arrow(box, layer, "bottom top")
    f.arrow(above[5], loss, "bottom top")
    f.text(380, 205, "Its parts, by signature. Each is a program with a history, a compile and a verdict of its own.")
    return f


def processes() -> Figure:
    """One program on several processes."""
    f = Figure("One program on several processes", 300)
    program = f.box(265, 15, 230, "the program you wrote\nsizes of the whole arrays", "plain")
    partition = f.box(265, 105, 230, "the partitioner\nfollows layouts through the graph", "blue")
    f.arrow(program, partition, "bottom top")
    ranks = []
    for k, x in enumerate((10, 265, 520)):
        ranks.append(f.box(x, 215, 230, f"process {k}\nits parts, the same collectives", "green"))
        f.arrow(partition, ranks[k], "bottom top")
    f.arrow(ranks[0], ranks[1])
    f.arrow(ranks[1], ranks[2])
    f.text(380, 290, "Before it runs, all processes compare a digest of what they are about to run.")
    f.text(632, 128, "All decide alike: from the program")
    f.text(632, 145, "and its sizes, never from a rank.")
    return f


def step_graph() -> Graph:
    """Return the program of the tour: one step of gradient descent."""

    def loss(w: gt.Array, x: gt.Array, y: gt.Array) -> gt.Array:
        error = x @ w - y
        return (error * error).mean()

    def step(w: gt.Array, x: gt.Array, y: gt.Array) -> tuple[gt.Array, gt.Array]:
        value, slope = gt.value_and_grad(loss)(w, x, y)
        return w - 0.25 * slope, value

    lowered = gt.jit(step).lower(gt.zeros((2, 1)), gt.zeros((3, 2)), gt.zeros((3, 1)))
    graph: Graph = lowered.graph
    return graph


COLUMNS = (290, 90, 610, 430, 500, 620, 620, 240, 430, 430, 300, 300, 200)
"""Where the values of that program stand, by number."""


def program() -> Figure:
    """The canonical program of the tour, drawn from its graph: inputs at the top, each value below its operands."""
    graph = step_graph()
    row = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        row[node.out] = 1 + max(row[value] for value in node.values())
    f = Figure("The program of the tour", 62 * (1 + max(row.values())))
    names = dict(zip(graph.inputs, ("x", "w", "y"), strict=True)) | {node.out: node.op.name for node in graph.nodes}
    boxes = {}
    for value, name in names.items():
        kind = "amber" if row[value] == 0 else "green" if value in graph.outputs else "blue"
        boxes[value] = f.box(COLUMNS[value] - 62, 10 + 62 * row[value], 124, f"%{value} {name}", kind, code=True)
    for node in graph.nodes:
        for value in dict.fromkeys(node.values()):
            f.arrow(boxes[value], boxes[node.out], "bottom top")
    return f


FIGURES: dict[str, Callable[[], Figure]] = {
    "straight-line": straight_line, "tiers": tiers, "store": store, "parts": parts, "processes": processes,
    "program": program,
}  # fmt: skip


def files() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each figure."""
    for name, figure in FIGURES.items():
        yield FOLDER / f"{name}.svg", figure().svg()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files():
        path.write_text(text, encoding="utf-8")
