"""Writes docs/jax-tests.md from the rows of a run."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import outcomes
import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "jax-tests.md"

VERDICTS = {
    "fault": "to be mended",
    "stated": "another result, which [what differs](jax-differences.md) states",
    "not offered": "not offered, for the reason given",
    "internals": "asks for JAX's internals",
    "words": "raises or prints the same in other words",
    "jax": "fails on JAX 0.10.2 too",
}
ASKED = ("fault", "stated", "not offered")
"""Verdicts whose tests count: the others ask for internals, words or what JAX has not."""


class Cause:
    """Why tests fail: a pattern of their rows, and a verdict."""

    def __init__(self, about: str, verdict: str, match: str, kinds: str = "") -> None:
        self.about, self.verdict, self.pattern, self.kinds = about, verdict, re.compile(match, re.S), kinds
        if verdict not in VERDICTS:
            raise ValueError(f"expected one of {', '.join(VERDICTS)} as verdict, got {verdict!r}")

    def __contains__(self, row: dict[str, Any]) -> bool:
        text = f"{row['test']}\n{row['error']}: {row['text']}\n" + "\n".join(row["places"])
        return (not self.kinds or row["kind"] in self.kinds) and self.pattern.search(text) is not None


CAUSES = [Cause(**entry) for entry in yaml.safe_load((HERE / "causes.yaml").read_text("utf-8"))]
UNKNOWN = Cause("not looked at", "fault", "")
WORDS = Cause("another text of an error", "words", "", "t")


def cause_of(row: dict[str, Any]) -> Cause:
    """Return the first cause of causes.yaml that a failure matches."""
    return next((c for c in [*CAUSES, WORDS] if row in c), UNKNOWN)


class Outcomes:
    """What came of the tests of a file in one form."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        rows = {outcomes.plain(row["test"]): row for row in map(json.loads, lines)}
        self.collected = rows.pop("(collected)", {}).get("number", 0)
        self.rows = list(rows.values())
        self.failed = [r for r in self.rows if r["outcome"] == "failed"]
        self.passed = sum(r["outcome"] == "passed" for r in self.rows)
        self.skipped = [r["why"] for r in self.rows if r["outcome"] == "skipped"]
        self.causes = collections.Counter(cause_of(r) for r in self.failed)

    def names(self, outcome: str) -> list[str]:
        """Return the tests with an outcome."""
        return [outcomes.plain(r["test"]) for r in self.rows if r["outcome"] == outcome]

    @property
    def counted(self) -> int:
        """How many tests ran that do not ask for internals or words."""
        return self.passed + sum(n for c, n in self.causes.items() if c.verdict in ASKED)

    def __str__(self) -> str:
        kinds = collections.Counter(r["kind"] for r in self.failed)
        failed = ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())) or "none"
        return f"{self.passed} of {self.counted} right; failed: {failed}; skipped: {len(self.skipped)}"

    def cell(self) -> str:
        """Return the text of a cell."""
        return f"{self.passed} of {self.counted}, {100 * self.passed / self.counted:.1f} %" if self.counted else ""


START = """# JAX's own tests

JAX's test suite runs on gtrace: `import jax` means `gtrace.jax`, and JAX's own functions compare and draw. The project
does not contain those tests. [What differs](jax-differences.md) says which results are others on purpose.

    make jax-tests JAX_SOURCE=PATH     # a checkout of JAX at the tag jax-v0.10.2; it writes this page

"Interpreted" runs every program uncompiled, and "x64" the same with `jax_enable_x64`. "Compiled" waits for code in
each `jit`. "Second process" runs once more with what that has stored. A file ends after a time limit. Its tests have an
order that was drawn once, so what has run is a sample.

A cell has how many tests pass, of those that count. A test that uses a private name of JAX is skipped. One that asks
for JAX's programs, counts or words does not count.

"""


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(x).replace("|", "\\|") for x in line) + " |\n" for line in lines)


def write(build: Path, files: Sequence[str], forms: Sequence[str]) -> None:
    """Write the page."""
    found = {(f, form): Outcomes(build / form.replace(" ", "-") / f"{f}.jsonl") for f in files for form in forms}
    rows = []
    for f in files:
        first = found[f, forms[0]]
        rows.append([f, first.collected, *[found[f, form].cell() for form in forms]])
    total = [sum(found[f, form].passed for f in files) for form in forms]
    counted = [sum(found[f, form].counted for f in files) for form in forms]
    rows.append(["all", sum(r[1] for r in rows), *[
        f"{p} of {n}, {100 * p / n:.1f} %" if n else "" for p, n in zip(total, counted, strict=True)
    ]])  # fmt: skip
    passed = {name for f in files for name in found[f, forms[0]].names("passed")}
    lost = {form: sum(name in passed for f in files for name in found[f, form].names("failed")) for form in forms[2:]}
    causes: dict[Cause, list[int]] = {}
    for k, form in enumerate(forms):
        for f in files:
            for cause, n in found[f, form].causes.items():
                causes.setdefault(cause, [0] * len(forms))[k] += n
    ordered = sorted(causes.items(), key=lambda item: (list(VERDICTS).index(item[0].verdict), -max(item[1])))
    text = START + table(["file", "tests", *forms], rows)
    fails = " and ".join(f"{n} fail in the form {form!r}" for form, n in lost.items())
    text += f"\nOf the tests that pass interpreted, {fails}.\n"
    text += "\n## What the others want\n\n" + table(
        ["cause", "verdict", *forms], [[c.about, VERDICTS[c.verdict], *n] for c, n in ordered]
    )
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name}: {', '.join(f'{form} {c}' for form, c in zip(forms, rows[-1][2:], strict=True))}")
