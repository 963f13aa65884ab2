"""``gtrace plan --check FILE``: what a signals file means, without running anything."""

from __future__ import annotations

import sys

from gtrace.errors import ConfigError
from gtrace.shard.signals import SignalConfig
from gtrace.shard.signals_file import read_signals


def check(path: str) -> int:
    """Print the signals of a file; returns 0, or 2 if it has an error, which is printed with its line."""
    try:
        signals = read_signals(path)
    except ConfigError as error:
        print(f"gtrace plan: {error}", file=sys.stderr)
        return 2
    for name, signal in signals.items():
        print(f"{name}: {_meaning(signal)}")
    return 0


def _meaning(signal: SignalConfig) -> str:
    parts = []
    if signal.shard is not None:
        ranks = signal.shard.workers
        who = "all workers" if ranks is None else f"workers {', '.join(map(str, ranks))}"
        how = "the same on" if signal.shard.axis is None else f"split along axis {signal.shard.axis} over"
        parts.append(f"{how} {who}")
    if signal.backward_signal is not None:
        parts.append(f"gradients as {signal.backward_signal!r}")
    if signal.compile:
        mode = "default" if signal.compile is True else signal.compile
        parts.append(f"compiled on its own, mode {mode}")
    return "; ".join(parts) or "nothing"
