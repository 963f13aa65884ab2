"""HTML elements with all outside text escaped, for notebooks and for pages without a network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
.gtrace { font: 13px system-ui, sans-serif; color: #1c2530; background: #fff; }
.gtrace table { border-collapse: collapse; margin: 4px 0 10px; }
.gtrace th, .gtrace td { text-align: left; padding: 2px 10px 2px 0; vertical-align: top; }
.gtrace th, .gtrace td { border-bottom: 1px solid #e3e7ec; }
.gtrace td.number, .gtrace th.number { text-align: right; }
.gtrace code, .gtrace pre { font: 12px ui-monospace, monospace; }
.gtrace h3 code { font-size: 15px; }
.gtrace .compiled { color: #1d7a3e; } .gtrace .failed { color: #b02a37; } .gtrace .demoted { color: #9a6700; }
.gtrace .bar { display: inline-block; height: 9px; background: #3a9d5d; vertical-align: middle; }
.gtrace details { margin: 4px 0 4px 12px; } .gtrace summary { cursor: pointer; }
.gtrace .line { color: #566; }
.gtrace .graph { overflow: auto; max-height: 85vh; border: 1px solid #e3e7ec; margin: 6px 0; }
.gtrace svg { display: block; margin: auto; } .gtrace svg text { font: 11px ui-monospace, monospace; fill: #10151c; }
.gtrace svg .node text { text-anchor: middle; } .gtrace svg .node .line1 { font-size: 10px; fill: #4a5563; }
.gtrace svg rect { stroke: #8a95a3; } .gtrace svg .node rect { fill: #fff; }
.gtrace svg .node:hover rect { stroke-width: 3; } .gtrace svg .edge:hover path { stroke: #b02a37; }
.gtrace svg .edge path { fill: none; stroke: #8a95a3; } .gtrace svg .node.input rect { fill: #f3f5f8; rx: 15px; }
.gtrace svg .node.returned rect { stroke-width: 2.5; }
.gtrace svg .region.compiled > rect { fill: #eaf6ee; } .gtrace svg .compiled rect { stroke: #3a9d5d; }
.gtrace svg .region.native > rect { fill: #f1ecfa; } .gtrace svg .native rect { stroke: #7a52c7; }
.gtrace svg .region.interpreted > rect { fill: #eef3fb; } .gtrace svg .interpreted rect { stroke: #3f72c4; }
.gtrace svg .region.demoted > rect { fill: #fdf5e2; } .gtrace svg .demoted rect { stroke: #9a6700; }
.gtrace svg .region.failed > rect { fill: #fbecee; } .gtrace svg .failed rect { stroke: #b02a37; }
.gtrace svg.key { display: inline-block; margin: 0 4px 0 12px; vertical-align: middle; }
"""


class Raw(str):
    """Text that is already HTML."""


def escape(value: object) -> str:
    """Return a value as HTML: text is escaped, `Raw` is unchanged.

    >>> escape("a < b"), escape(Raw("<b>a</b>"))
    ('a &lt; b', '<b>a</b>')
    """
    return value if isinstance(value, Raw) else html.escape(str(value))


def tag(name: str, *inside: object, **attributes: str) -> Raw:
    """Return an element; ``class_`` means ``class``.

    >>> tag("td", "a & b", class_="number")
    '<td class="number">a &amp; b</td>'
    """
    given = "".join(f' {key.rstrip("_")}="{html.escape(value)}"' for key, value in attributes.items())
    return Raw(f"<{name}{given}>{''.join(map(escape, inside))}</{name}>")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Raw:
    """Return a table; the columns named in `numbers` are aligned to the right."""
    kinds = [{"class_": "number"} if head in numbers else {} for head in heads]
    head = tag("tr", *[tag("th", name, **kind) for name, kind in zip(heads, kinds, strict=True)])
    body = [tag("tr", *[tag("td", cell, **kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *body))


def fragment(*inside: object) -> str:
    """Return HTML that a notebook shows for a value."""
    return tag("div", tag("style", Raw(STYLE)), *inside, class_="gtrace")


def page(title: str, *inside: object) -> str:
    """Return a self-contained page."""
    head = tag("head", Raw('<meta charset="utf-8">'), tag("title", title))
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", Raw(fragment(*inside))), lang="en")
