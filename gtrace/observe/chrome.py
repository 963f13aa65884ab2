"""Timelines as Chrome traces: JSON in the Trace Event Format, for Perfetto and chrome://tracing."""

from __future__ import annotations

from typing import Any

from gtrace.observe.timeline import Span, Timeline, summary


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as a Chrome trace object. Times are in microseconds, as the format requires."""
    events: list[dict[str, Any]] = []
    pids = [process.pid or number + 1 for number, process in enumerate(timeline.processes)]
    for number, process in enumerate(timeline.processes):
        name = process.name if len(pids) == 1 else f"rank {process.rank}: {process.name}"
        events.append(_about(pids[number], 0, "process_name", name=name))
        events.append(_about(pids[number], 0, "process_sort_index", sort_index=number))
    places: dict[int, tuple[int, int]] = {}
    for tid, lane in enumerate(timeline.lanes, 1):
        pid = pids[lane.process]
        events.append(_about(pid, tid, "thread_name", name=lane.name))
        events.append(_about(pid, tid, "thread_sort_index", sort_index=tid))
        for span in lane.spans:
            places[id(span)] = pid, tid
            events.append(
                {
                    "ph": "X", "name": span.name, "cat": span.kind, "pid": pid, "tid": tid, "ts": _us(span.start),
                    "dur": round(_us(span.end) - _us(span.start), 3), "args": _args(span),
                }
            )  # fmt: skip
    arrows = [span for span in timeline.spans if span.swap is not None]
    for number, span in enumerate(arrows, 1):
        assert span.swap is not None
        shared = {"name": "swap", "cat": "swap", "id": number}
        (pid, tid), (to_pid, to_tid) = places[id(span)], places[id(span.swap)]
        # an arrow begins and ends at the slice that contains its time
        events.append(
            {"ph": "s", **shared, "pid": pid, "tid": tid, "ts": round((_us(span.start) + _us(span.end)) / 2, 3)}
        )
        events.append({"ph": "f", "bp": "e", **shared, "pid": to_pid, "tid": to_tid, "ts": _us(span.swap.start)})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": timeline.name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _about(pid: int, tid: int, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _args(span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {"line": span.line or "unknown"}
    if span.sequence:
        args["signature"] = span.sequence
    if span.details:
        args["details"] = span.details
    if span.operations:
        args["operations"] = len(span.operations)
        args["names"] = summary(span.operations)
        args["last line"] = span.operations[-1].line or "unknown"
    return args
