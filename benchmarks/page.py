"""Figures on pages, from the JSON that benchmarks wrote: ``python benchmarks/page.py`` writes them.

docs/benchmarks.md has all of them. A page quotes some between two comments, `figures: NAME` and `end of figures`:
`benchmarks/quotes.py` says which rows a table has. So no two pages have different figures of one thing.

Each file in benchmarks/results is what one machine measured, as the option ``--json`` of the programs writes it:

    {"format": 1, "runs": [
        {"program": "dispatch", "date": "2026-11-26", "commit": "e4c3907", "settings": {...}, "machine": {...},
         "versions": {...}, "busy": false, "left_out": [...],
         "load": {"before": 0.1, "during": 0.1, "cores": 2},
         "figures": [{"workload": ..., "side": "gt.jit", "samples": [1.2e-6, ...], "unit": "s",
                      "details": {"first call, s": 0.2}}, ...]}]}

Sides that begin with "gt.jit" or "gtrace" are our own; all others are peers.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import quotes

FORMAT = 1
OURS = ("gt.jit", "gtrace")
"""How the names of gtrace's own sides begin."""
HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
QUOTING = (PAGE, HERE.parent / "README.md", HERE.parent / "docs" / "performance.md")
QUOTE = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)
HEAD = """# Benchmarks

Every figure that was measured, with its command, date, commit and machine. [Performance](performance.md) says what the
figures mean for a program, and how to measure.

A table has a row for each side of a workload. The sides took turns in one run.

| column | says |
|---|---|
| median | the median over the rounds of a run |
| noise | half of the distance between the quartiles of the rounds, as a part of the median |
| gt.jit / this | the time of `gt.jit` divided by that of the row: below 1, `gt.jit` is faster |
| first step, first call | the first one, with whatever it compiles |
| cold, warm | the first call with empty caches, and with those of an earlier process |
| longest later | the longest step after the first |
| peak | the most memory that a later call took |
| of bound | a multiple of the time that the machine needs to copy the bytes and multiply the numbers |

Ratios last longer than times, because machines are shared, and faster on some days than on others.
`python benchmarks/page.py` writes this page from the files in `benchmarks/results`.

## Summary

<!-- figures: summary -->
<!-- end of figures -->
"""

Figure = dict[str, Any]


def quantity(value: float, unit: str) -> str:
    """Return a number with the unit that suits its size, to three digits."""
    if unit == "s":
        for name, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if abs(value) >= 0.9995 * size:  # 999.6 us would be written as 1000
                return f"{value / size:.3g} {name}" if abs(value) < 999.5 * size else f"{value / size:.0f} {name}"
        return f"{value / 1e-9:.3g} ns"
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def ours(figure: Figure) -> bool:
    """Return whether a figure is of a side of gtrace."""
    return str(figure["side"]).startswith(OURS)


def noise(samples: list[float]) -> str:
    """Return half of the distance between the quartiles, as a part of the median; nothing for a single round."""
    if len(samples) < 2:
        return ""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return f"{(high - low) / 2 / abs(middle):.0%}" if middle else ""


def words(name: str) -> str:
    """Return the name of a program or a file as a heading."""
    return name.replace("_", " ").capitalize()


def facts(record: dict[str, Any]) -> str:
    """Return what a record says; the name "memory, MiB" has the unit of its value."""
    said = [(key.partition(", "), value) for key, value in record.items() if value not in (None, False, [], "none")]
    return ", ".join(f"{name} {value} {unit}".strip() for (name, _, unit), value in said)


def command(run: dict[str, Any]) -> str:
    """Return the command that measures a run's figures again."""
    parts = [f"python benchmarks/{run['program']}.py"]
    for name, value in run["settings"].items():
        if value is True:
            parts.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False, [], ""):
            listed = value if isinstance(value, list) else [value]
            parts.append(f"--{name.replace('_', '-')} {shlex.join(map(str, listed))}")
    return " ".join(parts)


def check(data: dict[str, Any], name: str) -> None:
    """Refuse a file of another format, of several machines, without a program to run again, or with empty figures."""
    if data.get("format") != FORMAT or not data.get("runs"):
        raise ValueError(f"{name}: expected runs in format {FORMAT}, got format {data.get('format')}. Measure again.")
    first = data["runs"][0]
    for run in data["runs"]:
        if (run["machine"], run["versions"]) != (first["machine"], first["versions"]):
            raise ValueError(f"{name}: expected one machine and one set of versions. Write a file for each.")
        if not run.get("date") or not run.get("commit"):
            raise ValueError(f"{name}: expected the date and commit of {run['program']}. Add them to its run.")
        if not (HERE / f"{run['program']}.py").exists():
            raise ValueError(f"{name}: no benchmarks/{run['program']}.py measures these figures again")
        empty = [figure["workload"] for figure in run["figures"] if not figure["samples"]]
        if empty or not run["figures"]:
            raise ValueError(f"{name}: {run['program']} has no figures {'of ' if empty else ''}{', '.join(empty)}")


def table(figures: list[Figure]) -> str:
    """Return figures as a Markdown table: a row for each side, ratios where there are peers, a column a detail."""
    sides = list(dict.fromkeys(figure["side"] for figure in figures if ours(figure)))
    compared = sides if any(not ours(figure) for figure in figures) else []
    details = list(dict.fromkeys(name for figure in figures for name in figure["details"]))
    heads = ["workload", "side", "median", "noise", *(f"{side} / this" for side in compared)]
    heads += [name.rpartition(", ")[0] or name for name in details]
    lines = [_row(heads), "|---|---" + "|---:" * (len(heads) - 2) + "|"]
    before = None
    medians = {(f["workload"], f["side"]): statistics.median(f["samples"]) for f in figures}
    for figure in figures:
        workload, value = figure["workload"], medians[figure["workload"], figure["side"]]
        cells = ["" if workload == before else workload, figure["side"], quantity(value, figure["unit"])]
        cells.append(noise(figure["samples"]))
        for side in compared:
            known = not ours(figure) and (workload, side) in medians and value
            cells.append(f"{medians[workload, side] / value:.2f}" if known else "")
        for name in details:
            found = figure["details"].get(name)
            cells.append("" if found is None else quantity(found, name.rpartition(", ")[2]))
        lines.append(_row(cells))
        before = workload
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def section(data: dict[str, Any], name: str) -> str:
    """Return the section of one file."""
    check(data, name)
    first = data["runs"][0]
    parts = [f"## {words(name)}", f"- Machine: {facts(first['machine'])}\n- Versions: {facts(first['versions'])}"]
    before = None
    for run in data["runs"]:
        if run["program"] != before:  # a program that was measured in parts has one heading
            parts.append(f"### {words(run['program'])}")
        before = run["program"]
        parts.append(f"Measured on {run['date']}, commit {run['commit']}:\n\n```sh\n{command(run)}\n```")
        notes = list(run["left_out"])
        if run["busy"]:
            notes.append("Other programs ran beside this run: measure again before trusting a figure.")
        if notes:
            parts.append("\n".join(f"- {note}" for note in notes))
        parts.append(table(run["figures"]))
    return "\n\n".join(parts) + "\n"


def page(folder: Path = RESULTS) -> str:
    """Return the page of all files in a folder."""
    files = sorted(folder.glob("*.json"))
    return "\n".join([HEAD, *(section(json.loads(path.read_text(encoding="utf-8")), path.stem) for path in files)])


def _measured(file: str, program: str, workload: str, side: str) -> tuple[dict[str, Any], Figure]:
    """Return a run and one of its figures."""
    runs = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["runs"]
    for run in runs:
        for figure in run["figures"] if run["program"] == program else ():
            if (figure["workload"], figure["side"]) == (workload, side):
                return run, figure
    raise ValueError(f"results/{file}.json: expected {side!r} in {workload!r} of {program}, which is not there")


def _sources(runs: Iterable[dict[str, Any]]) -> str:
    """Return what stands below a table: where, when and with which versions it was measured."""
    programs: dict[str, dict[str, None]] = {}
    for run in runs:
        versions = ", ".join(f"{name} {run['versions'][name]}" for name in ("python", "torch", "jax"))
        at = f"{run['date']}, commit {run['commit']}; {run['machine']['processor']}, {run['machine']['cores']} cores"
        programs.setdefault(f"{at}; {versions}", {})[f"`{run['program']}`"] = None
    return "\n".join(f"Measured by {', '.join(names)} on {at}." for at, names in programs.items())


def _rows(rows: Iterable[quotes.Row]) -> str:
    lines = [_row(["what", "gtrace", "peer", "peer's time", "ratio"]), "|---|---:|---|---:|---:|"]
    runs = []
    for row in rows:
        values = []
        for side in (row.ours, row.peer):
            run, figure = _measured(row.file, row.program, row.workload, side)
            values.append(figure["details"][row.detail] if row.detail else statistics.median(figure["samples"]))
            runs.append(run)
        unit = row.detail.rpartition(", ")[2] or figure["unit"]
        peer = "torch eager, fused Adam" if row.peer == "torch" else row.peer
        shown = [quantity(value, unit) for value in values]
        lines.append(_row([row.what, shown[0], peer, shown[1], f"{values[0] / values[1]:.2f}"]))
    return "\n".join([*lines, "", _sources(runs)])


def _ratios(table: quotes.Ratios) -> str:
    lines = [_row(["of torch eager's time", *table.kinds.values()]), "|---" + "|---:" * len(table.kinds) + "|"]
    runs = []
    for model, name in table.models.items():
        cells = [name]
        for kind in table.kinds:
            run, ours_ = _measured(table.file, table.program, f"{model}, {kind}", "gtrace")
            _, peer = _measured(table.file, table.program, f"{model}, {kind}", "torch")
            cells.append(f"{statistics.median(ours_['samples']) / statistics.median(peer['samples']):.2f}")
            runs.append(run)
        lines.append(_row(cells))
    return "\n".join([*lines, "", _sources(runs)])


def quoted(name: str) -> str:
    """Return the table of that name."""
    if name not in quotes.TABLES:
        raise ValueError(f"benchmarks/quotes.py: expected one of {', '.join(quotes.TABLES)}, got {name!r}")
    found = quotes.TABLES[name]
    return _ratios(found) if isinstance(found, quotes.Ratios) else _rows(found)


def filled(text: str) -> str:
    """Return a page with its quoted tables as they are today."""
    return QUOTE.sub(lambda match: f"{match[1]}{match[2]}{quoted(match[1])}\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for quoting in QUOTING:
        quoting.write_text(filled(quoting.read_text(encoding="utf-8")), encoding="utf-8")
