"""The page of an explanation: pictures of programs, and tables of operations for the calls that run them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Call, Loop, NativeLoop
from gtrace.core.base.units import duration_text
from gtrace.core.ir.edit import renamed
from gtrace.core.ir.graph import Graph, Node, print_graph, print_node, subgraphs
from gtrace.core.ir.signature import short
from gtrace.observe import html
from gtrace.observe.drawing import MAX_NODES, Box, Figure, draw, stretches
from gtrace.observe.profile import Profile, Timing
from gtrace.observe.program_stats import ProgramStats

MAX_OPEN = 200
"""The number of operations up to which a program is unfolded."""

MAX_LINES = 12
"""The number of lines in the hint of a region."""

MAX_LETTERS = 28
"""The maximal number of letters of a result's type in a picture."""

Times = Mapping[object, Timing]


@attrs.frozen(eq=False)
class ExplainedProgram:
    """A program with its graph and calls.

    Attributes:
        program: its ledger.
        graph: its canonical graph.
        regions: the calls of its compiled form; none for an interpreted program.
    """

    program: ProgramStats
    graph: Graph
    regions: tuple[Call, ...]


def page_of(title: str, text: str, parts: Sequence[ExplainedProgram], profile: Profile | None) -> str:
    """Return the page of an explanation.

    Args:
        text: the explanation as text.
        parts: the programs to show.
        profile: their measured times.
    """
    return html.page(title, *_body(text, parts, profile))


def fragment_of(text: str, parts: Sequence[ExplainedProgram]) -> str:
    """Return an explanation as a notebook shows it."""
    return html.fragment(*_body(text, parts, None))


def _body(text: str, parts: Sequence[ExplainedProgram], profile: Profile | None) -> Iterator[html.Raw]:
    yield html.tag("pre", text)
    if len(parts) > 1:
        yield html.tag("h3", "Programs")
        total = sum(part.program.total_seconds for part in parts)
        yield html.table(
            ("program", "tier", "operations", "calls", "a call", "share"),
            [_summary(part.program, total) for part in parts],
            ("operations", "calls", "a call"),
        )
    for part in parts:
        yield _part(part, profile)


def _summary(program: ProgramStats, total: float) -> tuple[object, ...]:
    share = program.total_seconds / total if total else 0.0
    bar = html.tag("span", class_="bar", style=f"width: {round(120 * share)}px")
    name = html.tag("a", html.tag("code", short(program.signature)), href=f"#{program.signature}")
    return name, _tier(program), len(program.ops), program.calls, _each(program), html.Raw(f"{bar} {100 * share:.0f}%")


def _tier(program: ProgramStats) -> html.Raw:
    return html.tag("span", program.tier, class_=program.tier)


def _each(program: ProgramStats) -> str:
    if program.compiled_calls:
        return duration_text(program.compiled_seconds / program.compiled_calls)
    return duration_text(program.interpreted_seconds / program.interpreted_calls) if program.interpreted_calls else ""


def _part(part: ExplainedProgram, profile: Profile | None) -> html.Raw:
    program = part.program
    head = html.tag("h3", html.tag("code", short(program.signature)), " ", _tier(program), id=program.signature)
    words = f"{len(program.ops)} operations, {program.calls} calls, {_each(program) or 'no time'} a call"
    times = _times(profile, program)
    known = [f"%{value}: {a!r}" for value, a in zip(part.graph.inputs, part.graph.avals, strict=True)]
    ends = "takes " + (", ".join(known) or "nothing") + "; returns " + ", ".join(f"%{v}" for v in part.graph.outputs)
    regions = list(_regions(part, times)) if len(part.regions) > 1 else []
    picture, inside = _picture(part, regions, times)
    whole = _operations(part.graph, times)
    if inside:
        whole = _folded("the whole graph", whole, False)
    elif len(part.graph.nodes) > MAX_OPEN:
        whole = _folded(f"{len(part.graph.nodes)} operations", whole, False)
    ends_text = html.tag("p", html.tag("code", ends))
    return html.tag("div", head, html.tag("p", words), ends_text, picture, *inside, whole)


# -- pictures


@attrs.frozen
class _Region:
    """A call of a compiled program, or a segment of a long program that is one call.

    Attributes:
        name: its description.
        kind: its way of running: "compiled", "native", "interpreted" and so on.
        took: the text of the seconds of a call; empty if not measured.
        nodes: its operations, with their values in the whole program.
        ins, outs: the values that it reads and returns.
        id: the id of its page element.
        opened: whether its table is unfolded.
    """

    name: str
    kind: str
    took: str
    nodes: tuple[Node, ...]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    id: str
    opened: bool = False

    @property
    def title(self) -> str:
        return f"{self.name}, {self.took} a call" if self.took else self.name

    def folded(self) -> Figure:
        """Return it as one node."""
        return Figure((self.title, _summary_of(self.nodes)), self.hint, self.ins, self.outs, link=self.id)

    @property
    def hint(self) -> str:
        """The hint: the names and lines of its operations."""
        lines = list(dict.fromkeys(node.location or "unknown" for node in self.nodes))
        more = f"\nand {len(lines) - MAX_LINES} more lines" if len(lines) > MAX_LINES else ""
        return "\n".join([self.title, _summary_of(self.nodes, len(self.nodes)), *lines[:MAX_LINES]]) + more


def _summary_of(nodes: Sequence[Node], most: int = 2) -> str:
    """Return the names and counts of operations, the most frequent first."""
    found = collections.Counter(node.op.name for node in nodes).most_common()
    names = [f"{name} {count}" if count > 1 else name for name, count in found]
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _picture(part: ExplainedProgram, regions: Sequence[_Region], times: Times) -> tuple[html.Raw, list[html.Raw]]:
    """Return the picture of a program, and the tables of its regions or segments below it."""
    graph, tier = part.graph, part.program.tier
    texts = {value: repr(a) for value, a in graph.value_avals().items()}
    legend = _legend(sorted({tier, *(region.kind for region in regions)}))
    if not regions:
        each = _each(part.program)
        title = f"{tier}, {each} a call" if each else tier
        if len(graph.nodes) <= MAX_NODES:
            shapes = _shapes(graph.nodes, graph, times, graph.outputs)
            return html.Raw(legend + draw([Box(title, title, tier, shapes)], texts)), []
        regions = _stretches(part, times)
        whole = Box(title, title, tier, tuple(region.folded() for region in regions))
        return html.Raw(legend + draw([whole], texts)), [_inside(region, graph, times) for region in regions]
    room, boxes = MAX_NODES, []
    for region in regions:
        opened = len(region.nodes) <= room
        room -= len(region.nodes) if opened else 1
        shapes = _shapes(region.nodes, graph, {}, graph.outputs, region.outs) if opened else (region.folded(),)
        boxes.append(Box(region.title, region.hint, region.kind, shapes))
    return html.Raw(legend + draw(boxes, texts)), [_inside(region, graph, {}) for region in regions]


def _legend(kinds: Sequence[str]) -> html.Raw:
    keys = [
        html.Raw(f'<svg class="key" width="11" height="11"><g class="region {kind}">'
                 f'<rect width="11" height="11"></rect></g></svg>{kind}')
        for kind in kinds
    ]  # fmt: skip
    return html.tag("div", *keys, ". Point at a node or an edge for its line and its type.", class_="line")


def _shapes(
    nodes: Sequence[Node], graph: Graph, times: Times, returned: Sequence[int], given: Sequence[int] = ()
) -> tuple[Figure, ...]:
    """Return the nodes of operations, and of the program inputs that they use.

    Args:
        returned: the values to mark.
        given: the values that a region returns.
    """
    kinds = dict(zip(graph.inputs, graph.avals, strict=True))
    taken = dict.fromkeys(value for node in nodes for value in node.values() if value in kinds)
    shapes = [Figure((f"%{v}", repr(kinds[v])), f"input %{v}: {kinds[v]!r}", (), (v,), "input") for v in taken]
    for node in nodes:
        timing = times.get(node.out)
        took = f" {duration_text(timing.seconds / timing.calls)}" if timing is not None else ""
        hint = f"{print_node(node)}\n{node.location or 'unknown line'}{took and chr(10) + took.strip() + ' a call'}"
        kind = "operation returned" if node.out in returned else "operation"
        lines = node.op.name, f"{_brief(node.instr.aval)}{took}"
        # a loop that runs from Python has projections of its results
        outs = (node.out, *given) if len(nodes) == 1 else (node.out,)
        shapes.append(Figure(lines, hint, tuple(node.values()), outs, kind))
    return tuple(shapes)


def _brief(a: object) -> str:
    text = repr(a)
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 3]}..."


def _stretches(part: ExplainedProgram, times: Times) -> list[_Region]:
    """Return the segments into which a long program is folded."""
    nodes = part.graph.nodes
    used: dict[int, int] = {}  # the last use of each value
    for place, node in enumerate(nodes):
        used |= dict.fromkeys(node.values(), place)
    used |= dict.fromkeys(part.graph.outputs, len(nodes))
    found = []
    for k, places in enumerate(stretches(node.location or "" for node in nodes)):
        inside = nodes[places.start : places.stop]
        own = {node.out for node in inside}
        ins = tuple(dict.fromkeys(value for node in inside for value in node.values() if value not in own))
        outs = tuple(value for value in own if used.get(value, -1) >= places.stop)
        measured = [times[node.out] for node in inside if node.out in times]
        took = duration_text(sum(t.seconds / t.calls for t in measured)) if measured else ""
        name = f"{len(inside)} operation{'s' * (len(inside) != 1)}"
        found.append(_Region(name, part.program.tier, took, inside, ins, outs, f"{part.program.signature}-{k}"))
    return found


def _inside(region: _Region, graph: Graph, times: Times) -> html.Raw:
    """Return the folded table of a region, with its picture if that is small enough."""
    ends = f" takes {_values(region.ins)}; gives {_values(region.outs)}"
    took = f", {region.took} a call" if region.took else ""
    title = html.tag("span", html.tag("b", region.name), took, html.tag("span", ends, class_="line"))
    table = _node_table(region.nodes, times)
    if not region.opened and 1 < len(region.nodes) <= 2 * MAX_NODES:
        texts = {node.out: repr(node.instr.aval) for node in region.nodes}
        shapes = _shapes(region.nodes, graph, times, region.outs)
        table = html.Raw(draw([Box(region.title, region.hint, region.kind, shapes)], texts) + table)
    return _folded(title, table, region.opened, region.id)


def _times(profile: Profile | None, program: ProgramStats) -> Times:
    """Return the profile's times of a program, by value for operations and by name and line for regions."""
    if profile is None:
        return {}
    own = [t for t in (*profile.operations, *profile.regions) if t.signature == program.signature]
    return {(t.name, t.line) if t.place is None else t.place: t for t in own}


def _regions(part: ExplainedProgram, times: Times) -> Iterator[_Region]:
    """Yield the calls of a compiled program with their descriptions, times and operations.

    Values passed between calls keep their numbers from the whole program; others get new numbers.
    """
    fresh = itertools.count(1 + max(part.graph.value_avals(), default=-1))
    for k, call in enumerate(part.regions):
        what = call.what
        timing = times.get((call.name, call.location or ""))
        took = duration_text(timing.seconds / timing.calls) if timing is not None else ""
        given = tuple(value for value, _ in call.outs)
        native = isinstance(what, NativeLoop) or (isinstance(what, CompileRequest) and what.native)
        compiled = "native" if native else "compiled"
        kind = "interpreted" if isinstance(what, (Loop, Graph)) else compiled
        if isinstance(what, Loop):
            nodes: tuple[Node, ...] = (what.node,)
        else:
            graph = what.graph if isinstance(what, (CompileRequest, NativeLoop)) else what
            names = dict(zip(graph.inputs, call.ins, strict=True))
            names |= {graph.outputs[place]: value for value, place in call.outs if graph.outputs[place] not in names}
            names |= {node.out: next(fresh) for node in graph.nodes if node.out not in names}
            nodes = renamed(graph, names).nodes
        opened = len(nodes) <= MAX_OPEN
        yield _Region(call.name, kind, took, nodes, call.ins, given, f"{part.program.signature}-{k}", opened)


def _values(values: Sequence[int]) -> str:
    return ", ".join(f"%{value}" for value in values) or "nothing"


def _operations(graph: Graph, times: Times) -> html.Raw:
    return _node_table(graph.nodes, times)


def _node_table(nodes: Sequence[Node], times: Times) -> html.Raw:
    heads = ("operation", "line", "a call") if times else ("operation", "line")
    return html.table(heads, [_node(node, times)[: len(heads)] for node in nodes], ("a call",))


def _node(node: Node, times: Times) -> tuple[object, ...]:
    text = html.tag("code", print_node(node))
    bodies = [_body_of(sub.graph) for sub in subgraphs(node.params)]
    timing = times.get(node.out)
    each = duration_text(timing.seconds / timing.calls) if timing is not None else ""
    return html.Raw(text + "".join(bodies)), html.tag("span", node.location or "unknown", class_="line"), each


def _body_of(graph: Graph) -> html.Raw:
    count = len(graph.nodes)
    text = html.tag("pre", print_graph(graph, locations=True))
    return _folded(f"body of {count} operation{'s' * (count != 1)}", text, False)


def _folded(title: object, inside: html.Raw, opened: bool, name: str = "") -> html.Raw:
    # the name is inside: a browser opens the element that contains a link's target
    inside = html.tag("div", inside, id=name) if name else inside
    attributes = {"open": "open"} if opened else {}
    return html.tag("details", html.tag("summary", title), inside, **attributes)
