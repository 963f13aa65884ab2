"""Writes docs/ecosystem.md from results.json: python tests/ecosystem/page.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "ecosystem.md"
RESULTS = HERE / "results.json"

START = """# Libraries and models of others

Libraries of JAX run unchanged under `gtrace run --jax`, and models of torch by `gt.from_module`. A program writes this
page: each row says what was run, with which commit, and when.

    make ecosystem LIB=optax     # a folder with the library, its quickstart, and its own tests where it has some
    make ecosystem               # all of them

[Coming from JAX](coming-from-jax.md) and [torch](torch.md) say what works in general, and what does not.

## Libraries of JAX

jax and jaxlib are not installed. A quickstart is a small program of
[`tests/ecosystem/quickstarts`](../tests/ecosystem/quickstarts). It states the numbers of several parts. They are
compared with those of JAX 0.10.2, to 1e-4 of the largest. Samples of a posterior are compared as loosely as they
scatter.

| library | version | parts that run | with JAX's numbers | stopped by | commit | date |
|---|---|---|---|---|---|---|
"""

TESTS = """
## The libraries' own tests

These are the tests in a library's package or in its source distribution. The distributions of Equinox, lineax,
optimistix and diffrax have none. A test counts if it passes on JAX 0.10.2, on the same machine.

    python tests/ecosystem/run.py rlax --only tests --jax PYTHON   # a Python that has JAX and pytest

| library | version | tests that count | pass here | what stops the others, and how many | commit | date |
|---|---|---|---|---|---|---|
"""

MODELS = """
## Models of torch

Small models with random weights. Values, gradients of all parameters and new buffers are compared with torch's, in
evaluation and in training, without dropout. Models of timm run in float64, because batch norms over few elements
amplify rounding. Causal language models also write eight tokens, greedily and with a cache. They are those of
`model.generate`. For a part of the models, float32 is compared with torch in float64. The root mean square of the
errors is at most twice that of torch, for results and for gradients.

| package | version | models | agree | same tokens | as exact as torch | what differs or raises | commit | date |
|---|---|---|---|---|---|---|---|---|
"""


def read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {"libraries": {}, "models": {}, **known}


def remember(kind: str, name: str, row: dict[str, Any]) -> None:
    """Keep a result of the "libraries" or the "models"."""
    results = read()
    results[kind][name] = row
    rows = []
    for k in ("libraries", "models"):
        lines = [f"  {json.dumps(n)}: {json.dumps(results[k][n])}" for n in sorted(results[k])]
        rows.append(f' "{k}": {{\n' + ",\n".join(lines) + "\n }")
    RESULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def told(row: dict[str, Any]) -> str:
    own = f"; own tests: {row['tests']['pass']} of {row['tests']['of']}" if row["tests"] else ""
    return (
        f"{row['ran']} of {row['parts']} parts, {row['equal']} with JAX's numbers  {row['stopped by']}".rstrip() + own
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").strip()


def text() -> str:
    """Return the page."""
    results = read()
    titles = json.loads((HERE / "libraries.json").read_text(encoding="utf-8"))
    libraries = tests = ""
    for name in sorted(results["libraries"], key=str.lower):
        row = results["libraries"][name]
        words = row["stopped by"].removeprefix("gtrace.errors.").partition(". ")[0]
        stopped = cell(words or (f"differs: {', '.join(row['differ'])}" if row["differ"] else ""))
        equal = "all" if row["equal"] == row["parts"] else row["equal"]
        parts = f"{row['ran']} of {row['parts']}"
        fields = (titles[name]["title"], row["version"], parts, equal, stopped, row["commit"], row["date"])
        libraries += f"| {' | '.join(map(str, fields))} |\n"
        own = row["tests"]
        if own is not None:
            count = own["of"] if own["on"] == "JAX" else f"{own['of']}, not tried on JAX"
            own_fields = (
                titles[name]["title"],
                row["version"],
                count,
                own["pass"],
                cell(own["reasons"]),
                own["commit"],
                own["date"],
            )
            tests += f"| {' | '.join(map(str, own_fields))} |\n"
    models = ""
    for name, row in results["models"].items():
        counts = [" of ".join(map(str, row["counts"].get(what, []))) for what in ("models", "generate", "precise")]
        fields = (name, row["version"], row["names"], *counts, cell(row["others"]), row["commit"], row["date"])
        models += f"| {' | '.join(fields)} |\n"
    return START + libraries + (TESTS + tests if tests else "") + (MODELS + models if models else "")


def write() -> None:
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write()
