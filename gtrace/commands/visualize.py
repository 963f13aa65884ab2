"""``gtrace visualize LOG... --output FILE``: instruction logs as a picture, a page or a Chrome trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gtrace.core.base.errors import ArgumentError
from gtrace.core.base.units import printable
from gtrace.core.base.whole_files import write_text
from gtrace.observe.chrome import chrome_trace
from gtrace.observe.page import timeline_page
from gtrace.observe.picture import draw
from gtrace.observe.timeline import read_timelines


def visualize(logs: Sequence[str], output: str) -> int:
    """Write the timelines of logs to a file whose suffix sets its type; return the exit code."""
    try:
        timelines = read_timelines(logs)
        match Path(output).suffix:
            case ".html":
                write_text(output, timeline_page(timelines))
            case ".json":
                if len(timelines) > 1:
                    print("gtrace visualize: expected the logs of one run for .json, got more.", file=sys.stderr)
                    return 2
                write_text(output, json.dumps(chrome_trace(timelines[0])))
            case _:
                draw(timelines, output)
    except OSError as error:
        got = f"{error.filename!r}: {error.strerror}" if error.filename else str(error)
        print(f"gtrace visualize: expected files to read and to write, got {got}.", file=sys.stderr)
        return 2
    except ArgumentError as error:
        print(f"gtrace visualize: {error}", file=sys.stderr)
        return 2
    print(f"{printable(output)}: {sum(len(timeline.spans) for timeline in timelines)} spans of {len(timelines)} "
          f"run{'s' * (len(timelines) != 1)}")  # fmt: skip
    return 0
