"""Timelines as pictures by matplotlib, which the extra ``gtrace[plot]`` installs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.units import duration_text
from gtrace.core.base.whole_files import write_aside
from gtrace.observe.timeline import OPERATIONS, Lane, Span, Timeline

SPAN_COLOURS = {
    "record": "#d5dbe3",
    "canonicalize": "#e0a458",
    "run interpreted": "#7aa6c2",
    "run compiled": "#3a9d5d",
    "compile": "#b04a5a",
    "load": "#8c6bb1",
    "collective": "#2f4b7c",
}
"""Colours of kinds of spans."""

OPERATION_COLOURS = {
    "product": "#c0392b",
    "elementwise": "#2e86c1",
    "loop": "#7d3c98",
    "collective": "#2f4b7c",
    "other": "#5d6d7e",
}
"""Colours of kinds of operations."""

WIDTH, LANE = 14.0, 0.5
"""In inches: the width of the picture, and the height of a lane."""

LEFT, RIGHT, ABOVE, BELOW, LEGEND = 1.75, 0.2, 0.6, 0.45, 0.6
"""In inches: margins beside, above (title and names of swaps) and below a panel, and for the legend."""

COLUMNS = 2400
"""Spans of one kind are drawn as one if they are closer than the width of the time axis divided by this."""

_LETTER = 0.0062
"""The width of a letter, as a fraction of the time axis."""


def matplotlib_module(name: str) -> ModuleType:
    """Return a module of matplotlib.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        return importlib.import_module(f"matplotlib.{name}")
    except ImportError as error:
        fix = "Install it: pip install 'gtrace[plot]'. Pages (.html) and Chrome traces (.json) need nothing."
        raise ArgumentError(message("visualize", "matplotlib, of the extra gtrace[plot]", str(error), fix)) from error


def draw(timelines: Sequence[Timeline], path: str | Path) -> None:
    """Draw runs one below the other, with one time axis, to a file whose suffix sets its type.

    Raises:
        ArgumentError: matplotlib is not installed, or does not support the type.
    """
    figure = matplotlib_module("figure").Figure()
    known = figure.canvas.get_supported_filetypes()
    suffix = Path(path).suffix[1:]
    if suffix not in known:
        fix = "Name a file with one of these, or with .html or .json."
        raise ArgumentError(message("visualize", f"a suffix among {', '.join(sorted(known))}", repr(str(path)), fix))
    height = LEGEND + sum(ABOVE + LANE * len(timeline.lanes) + BELOW for timeline in timelines) + 0.15
    figure.set_size_inches(WIDTH, height)
    end = max(max(timeline.end for timeline in timelines), 1e-6)
    bottom = height - LEGEND
    for timeline in timelines:
        own = LANE * len(timeline.lanes)
        bottom -= ABOVE + own
        place = (LEFT / WIDTH, bottom / height, (WIDTH - LEFT - RIGHT) / WIDTH, own / height)
        _panel(figure.add_axes(place), timeline, end)
        bottom -= BELOW
    figure.axes[-1].set_xlabel("seconds")
    _legend(figure, timelines)
    write_aside(Path(path), lambda aside: figure.savefig(aside, dpi=130, format=suffix))


def _panel(axes: Any, timeline: Timeline, end: float) -> None:
    axes.set_title(f"{timeline.name}: {duration_text(timeline.end)}", loc="left", fontsize=10, pad=18)
    axes.set_xlim(0, end)
    axes.set_ylim(len(timeline.lanes) - 0.5, -0.5)
    names = [_shorten(timeline.title(lane), 22) for lane in timeline.lanes]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for row, lane in enumerate(timeline.lanes):
        axes.axhspan(row - 0.42, row + 0.42, color="#f6f7f9", zorder=0)
        _lane(axes, lane, row, end)
    _compiled_stretches(axes, timeline, end)
    _swaps(axes, timeline, end)


def _lane(axes: Any, lane: Lane, row: int, end: float) -> None:
    for kind, colour in SPAN_COLOURS.items():
        if kind == "compile":
            continue
        bars = _merged([(s.start, s.end) for s in lane.spans if s.kind == kind], end / COLUMNS)
        height = 0.42 if kind == "collective" else 0.72
        # the edge keeps parts shorter than a pixel visible
        axes.broken_barh(
            bars, (row - height / 2, height), facecolors=colour, edgecolors=colour, linewidth=0.4, zorder=2
        )
    for number, (kind, colour) in enumerate(OPERATION_COLOURS.items()):
        times = [operation.at for s in lane.spans for operation in s.operations if operation.kind == kind]
        # each kind has its own height, so that none hides another where they are dense
        y = row - 0.33 + 0.66 * number / len(OPERATION_COLOURS)
        bars = _merged([(at, at) for at in times], end / COLUMNS)
        axes.broken_barh(bars, (y, 0.66 / len(OPERATION_COLOURS)), facecolors=colour, edgecolors=colour,
                         linewidth=0.5, zorder=3)  # fmt: skip
    for span in lane.spans:
        if span.kind != "compile":
            continue
        bar = [(span.start, span.seconds)]
        colour = SPAN_COLOURS["compile"]
        axes.broken_barh(bar, (row - 0.36, 0.72), facecolors=colour, edgecolors="white", linewidth=0.8, zorder=2)
        text = next((text for text in (span.name, span.sequence) if len(text) * _LETTER * end < span.seconds), "")
        if text:
            place = (span.start + span.end) / 2, row
            axes.annotate(text, place, ha="center", va="center", fontsize=7.5, color="white", zorder=5)


def _merged(parts: list[tuple[float, float]], least: float) -> list[tuple[float, float]]:
    """Return (start, width) of parts, after merging those that are closer than `least`."""
    joined: list[list[float]] = []
    for start, end in sorted(parts):
        if joined and start - joined[-1][1] < least:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return [(start, end - start) for start, end in joined]


def _compiled_stretches(axes: Any, timeline: Timeline, end: float) -> None:
    """Mark the times of compiled programs by a line above their lane."""
    for row, lane in enumerate(timeline.lanes):
        runs = [(s.start, s.end) for s in lane.spans if s.kind == "run compiled"]
        parts = _merged(runs, end / 100)
        colour = SPAN_COLOURS["run compiled"]
        axes.broken_barh(parts, (row - 0.46, 0.06), facecolors=colour, edgecolors=colour, linewidth=0.4, zorder=4)


def _swaps(axes: Any, timeline: Timeline, end: float) -> None:
    """Draw an arrow from each compile to the first run of its program, with names above if there is room."""
    rows = {id(span): row for row, lane in enumerate(timeline.lanes) for span in lane.spans}
    made = sorted((span for span in timeline.spans if span.swap is not None), key=_swapped_at)
    free = -1.0
    for span in made:
        assert span.swap is not None
        at = span.swap.start
        axes.annotate(
            "", (at, rows[id(span.swap)]), (span.end, rows[id(span)]), zorder=6,
            arrowprops={"arrowstyle": "-|>", "color": "#222222", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        axes.axvline(at, color="#222222", linewidth=0.6, linestyle=(0, (2, 3)), zorder=1)
        text = f"swap {span.sequence}"
        width = len(text) * _LETTER * end
        left = min(at, end - width)
        if left >= free:
            axes.annotate(
                text, (left, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
                fontsize=7.5, va="bottom",
            )  # fmt: skip
            free = left + width


def _swapped_at(span: Span) -> float:
    assert span.swap is not None
    return span.swap.start


def _legend(figure: Any, timelines: Sequence[Timeline]) -> None:
    patches, lines = matplotlib_module("patches"), matplotlib_module("lines")
    spans = [span for timeline in timelines for span in timeline.spans]
    kinds = {span.kind for span in spans}
    operations = {operation.kind for span in spans for operation in span.operations}
    height = figure.get_figheight()
    first = [patches.Patch(color=colour, label=kind) for kind, colour in SPAN_COLOURS.items() if kind in kinds]
    second = [
        lines.Line2D([], [], color=OPERATION_COLOURS[kind], marker="|", markersize=9, linestyle="", markeredgewidth=2,
                     label=f"recorded: {kind}")
        for kind in OPERATIONS if kind in operations
    ]  # fmt: skip
    for handles, inches in ((first, 0.08), (second, 0.34)):
        if handles:
            figure.legend(
                handles=handles, loc="upper left", bbox_to_anchor=(LEFT / WIDTH, 1 - inches / height), frameon=False,
                ncols=len(handles), fontsize=8.5, borderaxespad=0.0, columnspacing=1.4, handlelength=1.2,
            )  # fmt: skip


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
