"""Every operation of torch's own tests (OpInfo), called with Arrays: values, derivatives, batching, compiling.

    python tests/conformance.py [--samples N] [--only NAME ...] [--verify N]

Everything is float64 (or what an operation takes instead), on the CPU. The first N samples of each operation are used.
A gradient is that of the sum of the results times fixed numbers, compared with torch's; the second order is the
gradient of the sum of the squares of the first. A tangent is compared with torch's, or with the product of torch's
gradient and the direction, which differ for a few operations. Where a derivative differs from torch's, differences of
values of torch decide. The first samples of all operations whose values are right are compiled too, many in one
program: by Inductor, and by the C++ generator. What comes is compared with what the interpreter gives.

Writes docs/conformance.csv, which has each outcome, and docs/conformance.md. With --only, the other rows stay. With
--verify, nothing is written: some rows, which the table's text chooses, run again. Rows that differ are an error.
"""

from __future__ import annotations

import argparse
import collections
import csv
import io
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from conformance_checks import TRIED, Row, close, failure, named, try_operation
from torch.testing._internal.common_methods_invocations import op_db

import gtrace as gt
from gtrace.core.backends.inductor.refused import uncompilable
from gtrace.core.backends.native.generator import generate, loop_graph, of_open_length
from gtrace.core.backends.native.library import build, load
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.subgraph import subgraph
from gtrace.errors import GtraceError

COMPILED = ("Inductor", "C++")
CHECKS = (*TRIED, *COMPILED)
GROUP = 24
"""How many operations are compiled in one program."""
VERIFIABLE = 2.0
"""Rows that take more seconds than this are not run again by --verify."""
DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE, PAGE = DOCS / "conformance.csv", DOCS / "conformance.md"


def run(names: Iterable[str], samples: int) -> list[Row]:
    rows, names = [], set(names)
    for op in op_db:
        if named(op) in names:
            row = try_operation(op, samples)
            rows.append(row)
            print(f"{row.name:50} {row.seconds:6.1f} s", flush=True)
            for c, outcome in row.results.items():
                if outcome != "ok":
                    print(f"      {c}: {outcome}", flush=True)
    return rows


def cells(row: Row) -> list[str]:
    return [row.name, *[row.results.get(c, "") for c in CHECKS], "slow" if row.seconds > VERIFIABLE else ""]


def by_inductor(group: list[Row]) -> list[gt.Array]:
    # as inputs, so that nothing is computed while compiling
    with gt.config(native=False):
        return gt.jit(whole(group), wait=True)(*all_arrays(group))


def by_generator(group: list[Row]) -> list[torch.Tensor]:
    with tempfile.TemporaryDirectory() as place:
        step = load(build(as_scan(graph_of(group)), Path(place)), "process").run
        found = step([*[x.to_torch() for x in all_arrays(group)], torch.tensor(1)])
        return [y[0].clone() for y in found]


def graph_of(group: list[Row]) -> Graph:
    return dce(gt.make_graph(whole(group))(*all_arrays(group)))


def as_scan(graph: Graph) -> Graph:
    """Return one step of a scan whose constants are the inputs of a graph, and whose outputs are its outputs."""
    body, count = subgraph(graph), len(graph.inputs)
    instr = REGISTRY["scan"].instr((body, 1, False, count, 0), graph.avals)
    return of_open_length(loop_graph(Node(instr, tuple(range(count)), count))[0])


def not_by_inductor(row: Row) -> str | None:
    return uncompilable(gt.make_graph(whole([row]))(*all_arrays([row])))


def not_by_generator(row: Row) -> str | None:
    graph = graph_of([row])
    if len(graph.inputs) != len(all_arrays([row])) or not graph.nodes:
        return "nothing to compile"
    try:
        generate(as_scan(graph))
    except UnsupportedLoopError:
        return "no C++ for it"
    return None


def compare_compiled(rows: list[Row], column: str, refused, compiled) -> None:
    """Compile what can be compiled, in groups; a group with a failure or a mismatch is halved."""
    ready = []
    for row in rows:
        if row.call is None or row.results["forward"] != "ok":
            continue
        try:
            reason = refused(row)
        except GtraceError:
            reason = "looks at values"
        if reason:
            row.note(column, f"({reason})")
        else:
            ready.append(row)
    groups = [ready[k : k + GROUP] for k in range(0, len(ready), GROUP)]
    while groups:
        group = groups.pop()
        start = time.perf_counter()
        try:
            outcome = "ok" if jitted_equal(group, compiled(group)) else "mismatch"
        except Exception as error:  # noqa: BLE001 - it is what the report is about
            outcome = failure(error)
        print(f"{len(group):4} by {column} {time.perf_counter() - start:6.1f} s  {group[0].name} ... {outcome}",
              flush=True)  # fmt: skip
        if outcome == "ok" or len(group) == 1:
            for row in group:
                row.note(column, outcome)
        else:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]


def all_arrays(group: list[Row]) -> list[gt.Array]:
    return [x for row in group for x in row.leaves if isinstance(x, gt.Array)]


def whole(group: list[Row]) -> Callable[..., list[gt.Array]]:
    def function(*given: gt.Array) -> list[gt.Array]:
        rest = iter(given)
        return [y for row in group
                for y in row.call([next(rest) if isinstance(x, gt.Array) else x for x in row.leaves])]  # fmt: skip

    return function


def jitted_equal(group: list[Row], got: list[gt.Array]) -> bool:
    expected = [y for row in group for y in row.call(row.leaves)]
    gt.eval(expected)
    return close(got, [y.to_torch() for y in expected])


def read_table() -> tuple[str, dict[str, list[str]]]:
    """Return what the table was made with, and its cells by operation."""
    text = TABLE.read_text(encoding="utf-8")
    (made_with,), _, *rows = csv.reader(io.StringIO(text))
    return made_with, {row[0]: row for row in rows}


def write_table(made_with: str, rows: dict[str, list[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([made_with])
    writer.writerow(["operation", *CHECKS, "time"])
    writer.writerows(rows[name] for name in map(named, op_db) if name in rows)
    TABLE.write_text(text.getvalue(), encoding="utf-8")


def report(made_with: str, rows: dict[str, list[str]]) -> str:
    """Return the page that says what the table says."""
    outcomes = {c: [(name, row[k + 1]) for name, row in rows.items() if row[k + 1]] for k, c in enumerate(CHECKS)}
    lines = [
        "# Conformance", "",
        "torch has samples for tests of its operations (OpInfo). `make conformance` calls them with Arrays and writes",
        "this page. [The table](conformance.csv) has each outcome. The test suite runs a part of it again.", "",
        f"{made_with}.", "",
        "The last two checks are compiled results, by Inductor and by the C++ generator, against interpreted ones.",
        "\"mismatch\" is another result than torch's, and \"fails\" an error. \"other\" cannot be asked of the",
        "operation: the last table says why.", "",
        "| check | right | mismatch | fails | other |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    reasons: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for c in CHECKS:
        count: collections.Counter[str] = collections.Counter()
        for name, outcome in outcomes[c]:
            count[outcome.partition(":")[0] if outcome[0] != "(" else "other"] += 1
            if outcome[0] == "(":
                reasons[outcome[1:-1], c].append(name)
        lines.append(f"| {c} | {count['ok']} | {count['mismatch']} | {count['fails']} | {count['other']} |")
    lines += ["", "## What is not right", "", "| operation | check | outcome |", "|---|---|---|"]
    lines += [f"| {name} | {c} | {outcome.replace('|', '/')} |" for c in CHECKS for name, outcome in outcomes[c]
              if outcome.startswith(("fails", "mismatch"))]  # fmt: skip
    lines += ["", "## Other outcomes", "", "| outcome | check | operations |", "|---|---|---|"]
    for (reason, c), names in sorted(reasons.items()):
        shown = ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
        lines.append(f"| {reason} | {c} | {shown} |")
    return "\n".join(lines) + "\n"


MOST = 12
"""How many operations the page names beside a reason."""


def verify(count: int) -> list[str]:
    """Run some rows again, and return what differs from the table and the page."""
    made_with, rows = read_table()
    found = [] if PAGE.read_text(encoding="utf-8") == report(made_with, rows) else ["the page is not the table's"]
    names = [named(op) for op in op_db]
    if not made_with.startswith(f"torch {torch.__version__.split('+')[0]}:"):
        print(f"{made_with}; this is {torch.__version__}")
        return found
    if names != list(rows):
        return [*found, "the table has other operations than torch"]
    chosen = random.Random(TABLE.read_bytes()).sample([name for name in names if not rows[name][-1]], count)
    samples = int(made_with.rpartition("first ")[2].split()[0])
    for row in run(chosen, samples):
        for c, was, now in zip(TRIED, rows[row.name][1:], cells(row)[1:], strict=False):
            if was != now:
                found.append(f"{row.name}, {c}: the table says {was!r}, now {now!r}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10, help="how many of each operation")
    parser.add_argument("--only", nargs="+", help="operations, with all their variants")
    parser.add_argument("--verify", type=int, metavar="N", help="run N rows again and write nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    gt.config.update(auto_compile=False)
    if options.verify:
        found = verify(options.verify)
        sys.exit("\n".join([*found, "Run make conformance."]) if found else 0)
    rows = run([named(op) for op in op_db if not options.only or op.name in options.only], options.samples)
    compare_compiled(rows, "Inductor", not_by_inductor, by_inductor)
    compare_compiled(rows, "C++", not_by_generator, by_generator)
    made_with, before = read_table() if options.only else (
        f"torch {torch.__version__.split('+')[0]}: its first {options.samples} samples of each operation,"
        " in float64 on the CPU", {})  # fmt: skip
    before |= {row.name: cells(row) for row in rows}
    write_table(made_with, before)
    PAGE.write_text(report(*read_table()), encoding="utf-8")
    sys.exit(any("mismatch" in row for row in before.values()))


if __name__ == "__main__":
    main()
