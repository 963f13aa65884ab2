"""The page of an explanation: programs as tables of operations, grouped by the calls that run them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gtrace.compile.request import CompileRequest
from gtrace.compile.schedule import Loop, NativeLoop
from gtrace.ir.edit import renamed
from gtrace.ir.graph import Graph, Node, print_graph, print_node, subgraphs
from gtrace.ir.signature import short
from gtrace.observe import html
from gtrace.observe.profile import Profile, Timing
from gtrace.observe.stats import ProgramStats, duration

if TYPE_CHECKING:
    from gtrace.observe.explain import Explanation, Part

MAX_OPEN = 200
"""Operations of a program that are shown at once; a longer one is folded."""

Times = Mapping[object, Timing]


def page_of(explanation: Explanation, profile: Profile | None) -> str:
    """Return the page of an explanation."""
    return html.page(f"gtrace program {short(explanation.program.signature)}", *_body(explanation, profile))


def fragment_of(explanation: Explanation) -> str:
    """Return what a notebook shows of an explanation."""
    return html.fragment(*_body(explanation, None))


def _body(explanation: Explanation, profile: Profile | None) -> Iterator[html.Raw]:
    yield html.tag("pre", explanation)
    if len(explanation.parts) > 1:
        yield html.tag("h3", "Programs")
        total = sum(part.program.total_seconds for part in explanation.parts)
        yield html.table(
            ("program", "tier", "operations", "calls", "a call", "share"),
            [_summary(part.program, total) for part in explanation.parts],
            ("operations", "calls", "a call"),
        )
    for part in explanation.parts:
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
        return duration(program.compiled_seconds / program.compiled_calls)
    return duration(program.interpreted_seconds / program.interpreted_calls) if program.interpreted_calls else ""


def _part(part: Part, profile: Profile | None) -> html.Raw:
    program = part.program
    head = html.tag("h3", html.tag("code", short(program.signature)), " ", _tier(program), id=program.signature)
    words = f"{len(program.ops)} operations, {program.calls} calls, {_each(program) or 'no time'} a call"
    times = _times(profile, program)
    known = [f"%{value}: {a!r}" for value, a in zip(part.graph.inputs, part.graph.avals, strict=True)]
    ends = "takes " + (", ".join(known) or "nothing") + "; returns " + ", ".join(f"%{v}" for v in part.graph.outputs)
    inside = list(_regions(part, times)) if len(part.regions) > 1 else []
    whole = _operations(part.graph, times)
    if inside:
        whole = _folded("the whole graph", whole, False)
    elif len(part.graph.nodes) > MAX_OPEN:
        whole = _folded(f"{len(part.graph.nodes)} operations", whole, False)
    return html.tag("div", head, html.tag("p", words), html.tag("p", html.tag("code", ends)), *inside, whole)


def _times(profile: Profile | None, program: ProgramStats) -> Times:
    """Return what a profile measured of a program, by value for operations and by name and line for regions."""
    if profile is None:
        return {}
    own = [t for t in (*profile.operations, *profile.regions) if t.signature == program.signature]
    return {(t.name, t.line) if t.place is None else t.place: t for t in own}


def _regions(part: Part, times: Times) -> Iterator[html.Raw]:
    """Yield the calls of a compiled program: what each is, what it took, and its operations.

    Values that are passed between calls have the numbers that they have in the whole program; others have further ones.
    """
    fresh = itertools.count(1 + max(part.graph.value_avals(), default=-1))
    for call in part.regions:
        what = call.what
        timing = times.get((call.name, call.location or ""))
        took = f", {duration(timing.seconds / timing.calls)} a call" if timing is not None else ""
        values = f" takes {_values(call.ins)}; gives {_values(value for value, _ in call.outs)}"
        title = html.tag("span", html.tag("b", call.name), took, html.tag("span", values, class_="line"))
        if isinstance(what, Loop):
            yield _folded(title, _node_table([what.node], {}), True)
            continue
        graph = what.graph if isinstance(what, (CompileRequest, NativeLoop)) else what
        names = dict(zip(graph.inputs, call.ins, strict=True))
        names |= {graph.outputs[place]: value for value, place in call.outs if graph.outputs[place] not in names}
        names |= {node.out: next(fresh) for node in graph.nodes if node.out not in names}
        yield _folded(title, _operations(renamed(graph, names), {}), len(graph.nodes) <= MAX_OPEN)


def _values(values: Iterator[int] | tuple[int, ...]) -> str:
    return ", ".join(f"%{value}" for value in values) or "nothing"


def _operations(graph: Graph, times: Times) -> html.Raw:
    return _node_table(list(graph.nodes), times)


def _node_table(nodes: list[Node], times: Times) -> html.Raw:
    heads = ("operation", "line", "a call") if times else ("operation", "line")
    return html.table(heads, [_node(node, times)[: len(heads)] for node in nodes], ("a call",))


def _node(node: Node, times: Times) -> tuple[object, ...]:
    text = html.tag("code", print_node(node))
    bodies = [_body_of(sub.graph) for sub in subgraphs(node.params)]
    timing = times.get(node.out)
    each = duration(timing.seconds / timing.calls) if timing is not None else ""
    return html.Raw(text + "".join(bodies)), html.tag("span", node.location or "unknown", class_="line"), each


def _body_of(graph: Graph) -> html.Raw:
    count = len(graph.nodes)
    text = html.tag("pre", print_graph(graph, locations=True))
    return _folded(f"body of {count} operation{'s' * (count != 1)}", text, False)


def _folded(title: object, inside: html.Raw, opened: bool) -> html.Raw:
    attributes = {"open": "open"} if opened else {}
    return html.tag("details", html.tag("summary", title), inside, **attributes)
