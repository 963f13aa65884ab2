"""Timelines as a page: one HTML file that works without a network, with zoom, pan and hints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from gtrace.observe.picture import OPERATION_COLOURS, SPAN_COLOURS
from gtrace.observe.timeline import Timeline, summary


def timeline_page(timelines: Sequence[Timeline]) -> str:
    """Return the page of runs, one below the other, with one time axis."""
    data = {
        "colours": SPAN_COLOURS,
        "operationColours": OPERATION_COLOURS,
        "runs": [_run(timeline) for timeline in timelines],
    }
    # text inside a script element must not contain its end tag, or the start of a comment
    text = json.dumps(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    template = resources.files("gtrace.observe").joinpath("timeline.html").read_text(encoding="utf-8")
    before, mark, after = template.partition("__DATA__")
    assert mark
    return before + text + after


def _run(timeline: Timeline) -> dict[str, Any]:
    places: dict[int, tuple[int, int]] = {}
    lanes = []
    for row, lane in enumerate(timeline.lanes):
        spans = []
        for k, span in enumerate(lane.spans):
            places[id(span)] = row, k
            spans.append(
                {
                    "kind": span.kind, "start": span.start, "end": span.end, "line": span.line,
                    "sequence": span.sequence, "details": span.details, "names": summary(span.operations),
                    "operations": [[operation.at, operation.kind, operation.name] for operation in span.operations],
                }
            )  # fmt: skip
        lanes.append({"name": timeline.title(lane), "spans": spans})
    swaps = [[*places[id(s)], *places[id(s.swap)]] for s in timeline.spans if s.swap is not None]
    return {"name": timeline.name, "lanes": lanes, "swaps": swaps, "end": timeline.end}
