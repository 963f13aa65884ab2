"""docs/benchmarks.md from the JSON that benchmarks wrote: ``python benchmarks/page.py`` writes it.

Each file in benchmarks/results is one run of one machine:

    {"machine": {"cores": 2, ...}, "versions": {"torch": "2.13.0", ...}, "settings": {...},
     "rows": [{"what": ..., "peer": ..., "ours_s": 1.2e-6, "peer_s": 2e-6, "ratio": 0.6, "command": ...}, ...]}

An optional "title" heads its section; without one the name of the file does. Rows of one command are one table. A row
may have further numbers, which become columns: names that end in ``_s`` are seconds, in ``_bytes`` memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
FIELDS = ("what", "peer", "ours_s", "peer_s", "ratio", "command")
HEAD = """# Benchmarks

Each row compares gtrace with a peer that did the same work in the same run, the two taking turns. A ratio below 1 says
that gtrace took less time. Ratios last longer than times: the machine is shared, and faster on some days than on
others. [Performance](performance.md) explains where the time goes. `python benchmarks/page.py` writes this page from
the files in `benchmarks/results`.
"""


def seconds(value: float) -> str:
    """Return a time with a unit that suits it, to three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= 0.9995 * size:  # 999.6 us would be written as 1000
            return f"{value / size:.3g} {unit}" if abs(value) < 999.5 * size else f"{value / size:.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def memory(value: float) -> str:
    """Return a number of bytes in MiB."""
    return f"{value / 2**20:.1f} MiB"


def written(name: str, value: Any) -> str:
    """Return a value of a row as the table shows it; the name of a column says what it measures."""
    if value is None:
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value).replace("|", "\\|")
    return seconds(value) if name.endswith("_s") else memory(value) if name.endswith("_bytes") else f"{value:.2f}"


def heading(name: str) -> str:
    """Return the heading of a column."""
    known = {"ours_s": "gtrace", "peer_s": "peer's time"}
    return known.get(name, name.removesuffix("_s").removesuffix("_bytes").replace("_", " "))


def check(run: dict[str, Any], name: str) -> None:
    """Refuse a file that lacks a part, or whose ratios are not those of its times."""
    missing = [part for part in ("machine", "versions", "settings", "rows") if part not in run]
    if missing:
        raise ValueError(f"{name}: expected machine, versions, settings and rows; {', '.join(missing)} missing")
    for k, row in enumerate(run["rows"]):
        absent = [field for field in FIELDS if field not in row]
        if absent:
            raise ValueError(f"{name}: row {k} has no {', '.join(absent)}")
        # all three may be rounded
        quotient = row["ours_s"] / row["peer_s"]
        if abs(row["ratio"] - quotient) > 0.01 + 0.03 * quotient:
            raise ValueError(f"{name}: row {k}: {row['ratio']} is not {row['ours_s']} / {row['peer_s']}")


def facts(record: dict[str, Any]) -> str:
    """Return a record as words: ``cores 2, torch 2.13.0``."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in record.items())


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a Markdown table, with a column for each further field that one of them has."""
    columns = list(FIELDS[:-1]) + sorted({key for row in rows for key in row} - set(FIELDS))
    lines = ["| " + " | ".join(heading(c) for c in columns) + " |", "|---|---" + "|---:" * (len(columns) - 2) + "|"]
    lines += ["| " + " | ".join(written(c, row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def section(run: dict[str, Any], name: str) -> str:
    """Return the section of one file."""
    check(run, name)
    parts = [f"## {run.get('title', name.replace('_', ' ').capitalize())}"]
    named = (("Machine", run["machine"]), ("Versions", run["versions"]), ("Settings", run["settings"]))
    parts.append("\n".join(f"- {what}: {facts(record)}" for what, record in named if record))
    for command in dict.fromkeys(row["command"] for row in run["rows"]):
        parts.append(f"```sh\n{command}\n```")
        parts.append(table([row for row in run["rows"] if row["command"] == command]))
    return "\n\n".join(parts) + "\n"


def page(folder: Path = RESULTS) -> str:
    """Return the page of all files in a folder."""
    files = sorted(folder.glob("*.json"))
    return "\n".join([HEAD, *(section(json.loads(path.read_text(encoding="utf-8")), path.stem) for path in files)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
