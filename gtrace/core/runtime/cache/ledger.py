"""What processes measured of each program, added up over all of them: the lines of the store's ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from gtrace.core.base import json_fields

FORMAT = 5
"""Of the JSON; a ledger of another format is not read."""


@attrs.frozen
class LedgerEntry:
    """The line of one program. Times are in seconds.

    Attributes:
        ops: the names of its first operations.
        nodes: how many operations it has.
        tier: in which the latest process left it.
        runs: processes that measured it.
        compile_seconds: that compilers worked for it, without waiting.
    """

    ops: str = ""
    nodes: int = 0
    tier: str = ""
    runs: int = 1
    interpreted_calls: int = 0
    interpreted_seconds: float = 0.0
    compiled_calls: int = 0
    compiled_seconds: float = 0.0
    compile_seconds: float = 0.0
    saved_seconds: float = 0.0

    def plus(self, later: LedgerEntry) -> LedgerEntry:
        """Return the line of both: what was counted or timed is added, the rest is that of `later`.

        >>> LedgerEntry(tier="interpreted", runs=2).plus(LedgerEntry(tier="compiled", compiled_calls=5)).runs
        3
        """
        added = [f.name for f in attrs.fields(LedgerEntry) if f.name not in ("ops", "nodes", "tier")]
        return attrs.evolve(later, **{name: getattr(self, name) + getattr(later, name) for name in added})


_entry = json_fields.reader(LedgerEntry)


def to_json(entries: Mapping[str, LedgerEntry]) -> str:
    """Return the text of the ledger's file; keys are signatures. It states its own checksum."""
    programs = {name: attrs.asdict(entry) for name, entry in entries.items()}
    return json.dumps(json_fields.with_checksum({"format": FORMAT, "programs": programs}))


def from_json(text: str | bytes) -> dict[str, LedgerEntry]:
    """Return the lines in the text of the ledger's file; none if another version of gtrace wrote it.

    Raises:
        ValueError: it is none, or not what was written; says what was expected.
    """
    data = json_fields.checked(text, None)
    if data.get("format") != FORMAT:
        return {}  # of another version of gtrace: the ledger begins anew
    programs = json_fields.field(data, "programs", "an object", json_fields.exactly(dict))
    return {name: _entry(fields) for name, fields in programs.items()}
