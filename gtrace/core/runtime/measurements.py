"""What this process has measured, for later ones: lines for the ledger of the store."""

from __future__ import annotations

from collections.abc import Iterable

from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.program import Program

LEAST_SECONDS = 0.01
"""A program that was never compiled has a line only if at least this much time was spent on it."""


def save_ledger(programs: Iterable[Program]) -> None:
    """Add what this process has measured to the ledger of the store."""
    if artifacts.store is None:
        return
    lines: dict[str, LedgerEntry] = {}
    for program in programs:
        if program.forms.origin or program.ledger.seconds >= LEAST_SECONDS:
            lines[program.signature.exact] = LedgerEntry(
                ops=" ".join(node.op.name for node in program.graph.nodes[:12]),
                nodes=len(program.graph.nodes),
                saved_seconds=program.ledger.saved_seconds or 0.0,
                tier=program.tier,
                **program.ledger.figures(),
            )
    artifacts.store.note(lines)
