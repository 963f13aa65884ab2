"""Timing that the benchmarks share: peers interleaved, medians, and the table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[str, float, str, str, float]
"""What was measured, our figure, its unit, the peer and the peer's figure."""


def interleave(peers: dict[str, Callable[[], Any]], calls: int, rounds: int) -> dict[str, float]:
    """Return each peer's median microseconds a call, the peers taking turns."""
    for function in peers.values():
        for _ in range(calls):
            function()
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, function in peers.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def print_table(rows: Sequence[Row]) -> None:
    """Print the figures as a Markdown table; a ratio below 1 is in our favour."""
    print("| what | gtrace | peer | peer's time | ratio |")
    print("|---|---|---|---|---|")
    for what, ours, unit, peer, theirs in rows:
        print(f"| {what} | {ours:.2f} {unit} | {peer} | {theirs:.2f} {unit} | {ours / theirs:.2f} |")
