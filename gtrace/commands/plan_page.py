"""The plans of a script as one page of HTML, with a picture of each layout: which process holds which part."""

from __future__ import annotations

import collections
import html
from collections.abc import Sequence

from gtrace.core.base.units import bytes_text, duration_text
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.sharding import Mesh, NamedSharding
from gtrace.distributed.estimate import Speeds
from gtrace.distributed.plan import Plan, rows

LABELLED = 64
"""Parts in a picture that are labelled with ranks; smaller ones show them when the pointer is on them."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #1c2430; }
table { border-collapse: collapse; margin: 0.5em 0 1em; }
td, th { border-bottom: 1px solid #d8dee6; padding: 0.2em 1.2em 0.2em 0; text-align: left; vertical-align: top; }
figure { display: inline-block; margin: 0.5em 2em 1em 0; vertical-align: top; max-width: 30em; }
figcaption { font-size: 13px; color: #4a5563; }
text { font: 11px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; fill: #10151c; }
"""


def page(title: str, plans: Sequence[tuple[Plan, int]], speeds: Speeds) -> str:
    """Return the text of the page.

    Args:
        plans: the programs that are divided, and how often each ran.
    """
    body = [f"<h1>{html.escape(title)}</h1>"]
    if not plans:
        body.append("<p>No program is divided: nothing in it has a sharding.</p>")
    for k, (plan, calls) in enumerate(plans):
        body.append(_program(k, plan, calls, speeds))
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _program(number: int, plan: Plan, calls: int, speeds: Speeds) -> str:
    found = plan.estimate(speeds)
    facts = [
        ("processes", f"{plan.mesh.size} ({plan.mesh})"),
        ("calls", str(calls)),
        ("inputs, of each process", bytes_text(plan.input_bytes)),
        ("outputs", bytes_text(plan.output_bytes)),
        ("at once, at most", bytes_text(plan.peak_bytes)),
        ("sent by each in a call", bytes_text(plan.moved)),
        ("a call takes about", f"{duration_text(found.total)}: computing {duration_text(found.computing)}, sending"
                               f" {duration_text(found.sending)}"),
        *[("not divided", f"{name} {where or ''}") for name, where in plan.gathered],
    ]  # fmt: skip
    sent = rows(plan.transfers)
    pieces = [f"<h2>Program {number}</h2>", _table((), facts)]
    if sent:
        pieces += ["<h3>What is sent</h3>", _table(("collective", "along", "bytes", "line"), sent)]
    arrays = collections.defaultdict(list)
    for kind, avals in (("input", plan.inputs), ("output", plan.outputs)):
        for k, a in enumerate(avals):
            arrays[_layout(a, plan.mesh)].append(f"{kind} {k}: {a.plain!r}")
    pieces.append("<h3>Where arrays are</h3>")
    pieces += [_figure(sharding, ndim, names) for (sharding, ndim), names in arrays.items()]
    return "".join(pieces)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    cells = ["".join(f"<td>{html.escape(text)}</td>" for text in line) for line in lines]
    return f"<table>{'<tr>' + top + '</tr>' if head else ''}{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def _layout(a: Aval, mesh: Mesh) -> tuple[NamedSharding | None, int]:
    """Return what the picture of an array depends on."""
    return (None if a.sharding is None else a.sharding.padded(len(a.shape))), min(len(a.shape), 2)


def _figure(sharding: NamedSharding | None, ndim: int, names: Sequence[str]) -> str:
    spec = "the same on each process" if sharding is None else repr(sharding.spec)
    shown = names if len(names) <= 8 else [*names[:7], f"and {len(names) - 7} more"]
    caption = "<br>".join(html.escape(text) for text in (spec, *shown))
    return f"<figure>{_picture(sharding)}<figcaption>{caption}</figcaption></figure>"


def _picture(sharding: NamedSharding | None) -> str:
    """Return a grid of the parts of the first two dimensions that are split, as SVG."""
    if sharding is None:
        return _grid([[(0, "all")]])
    mesh, dims = sharding.mesh, sharding.dims(len(sharding.spec))
    split = [axes for axes in dims if mesh.parts(axes) > 1]
    first, second = (*split, (), ())[:2]
    holders = collections.defaultdict(list)
    for rank in sorted(mesh.ranks):
        place = mesh.coordinates(rank)
        holders[mesh.part(first, place), mesh.part(second, place)].append(rank)
    if len(holders) == 1:
        return _grid([[(0, "all")]])
    cells = [[holders[row, column] for column in range(mesh.parts(second))] for row in range(mesh.parts(first))]
    return _grid([[(ranks[0], ",".join(map(str, ranks))) for ranks in line] for line in cells])


def _grid(cells: Sequence[Sequence[tuple[int, str]]]) -> str:
    """Return a picture of rows of cells, each with the rank that colors it, and its label."""
    height, width = len(cells), len(cells[0])
    labelled = height * width <= LABELLED and max(len(text) for line in cells for _, text in line) <= 12
    w, h = (84, 26) if labelled else (max(4, 320 // width), max(4, 240 // height))
    pieces = []
    for row, line in enumerate(cells):
        for column, (rank, text) in enumerate(line):
            color = f"hsl({rank * 137 % 360} 65% 78%)"
            x, y = column * w, row * h
            pieces.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{color}" stroke="#fff"><title>')
            pieces.append(f"{html.escape(text)}</title></rect>")
            if labelled:
                pieces.append(f'<text x="{x + w / 2:g}" y="{y + h / 2:g}">{html.escape(text)}</text>')
    return f'<svg width="{w * width}" height="{h * height}" role="img">{"".join(pieces)}</svg>'
