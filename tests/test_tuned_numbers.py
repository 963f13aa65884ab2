"""Numbers that were tuned stand in one table for each backend, say why they are what they are, and are quoted right."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import gtrace

PACKAGE = Path(gtrace.__file__).parent
TABLES = sorted((PACKAGE / "core").rglob("tuned.py"))
PAGES = [*PACKAGE.rglob("*.md"), *(PACKAGE.parent / "docs").rglob("*.md")]

ROOMS = ("passes", "backends", "partitioner", "transform/control")
"""Rooms of core, all of whose tuned numbers stand in tables."""

EXACT = {
    "passes/attention": {"MOST_STEPS"},
    "passes/canonical": {"_MASK", "_ROUNDS", "_MAX_MARKS", "_MAX_WORK"},
    "passes/masks": {"HIDDEN", "LEVEL", "REPLACED"},
    "passes/repeats": {"_AVOIDED"},
    "passes/split": {"NEVER"},
    "backends/runs": {"SHORT_LOOP", "UNCUT"},
    "backends/guards": {"_MAX_POWER"},
    "backends/inductor/accuracy": {"_ERF", "_LOG_ERFC", "_TANH"},
    "backends/inductor/launcher": {"_NOTES"},
    "backends/interpreter/lstm": {"_LSTM"},
    "backends/interpreter/noise": {"FUNCTION", "NOISE"},
    "backends/interpreter/remainders": {"FAR", "FURTHEST"},
    "backends/native/generator": {"OPEN"},
    "backends/native/library": {"FENCE", "POST"},
    "backends/native/writer": {"ALIGNMENT"},
    "backends/symbolic": {"LEAST_FOR_SUMS", "MAX_FREE", "MAX_DIVISOR"},
    "partitioner/ends": {"GRACE", "_NAMED"},
    "partitioner/partitioned": {"FORMAT"},
}
"""By module, the numbers that follow from a definition, or bound a search or a memory: nobody measured them."""

REASON = re.compile(r"\n(Measured: [^;]{10,}; .*(AMD|Intel|Zen|AVX|H100|processor)|Chosen: .{10,})[^\n]*\.(\n[^\n]+)*$")


def value_of(node: ast.expr) -> object:
    """Return the number, or numbers, that an expression of literals has; None: it is no such expression."""
    inner = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
    if not all(isinstance(x, inner) for x in ast.walk(node)):
        return None
    constants = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
    if not constants or not all(type(x) in (int, float) for x in constants):
        return None
    return eval(compile(ast.Expression(node), "", "eval"), {})


@functools.cache
def constants(path: Path) -> dict[str, tuple[object, str]]:
    """Return the numbers of a module by name: each with the docstring that follows it."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign):
            continue
        value, (target, *_) = value_of(statement.value), statement.targets
        if value is None:
            continue
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value if isinstance(target, ast.Tuple) else (value,)
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        found.update({n.id: (x, text) for n, x in zip(names, values, strict=True) if isinstance(n, ast.Name)})
    return {name: x for name, x in found.items() if name.isupper()}


def of_module(path: Path) -> str:
    return path.relative_to(PACKAGE / "core").with_suffix("").as_posix()


@pytest.mark.parametrize("table", TABLES, ids=of_module)
def test_each_number_says_what_measured_it_or_why_it_was_chosen(table):
    assert constants(table)
    for name, (_, text) in constants(table).items():
        assert REASON.search(text), f"{name}: end with a line 'Measured: what; processor.' or 'Chosen: why.'"


def test_one_name_has_one_value():
    names = Counter(name for table in TABLES for name in constants(table))
    assert not [name for name, count in names.items() if count > 1]
    for path in (PACKAGE / "core").rglob("*.py"):
        shared = names.keys() & constants(path).keys()
        assert path in TABLES or not shared, f"{of_module(path)}: the table has {shared}"


def test_rooms_have_no_other_numbers():
    others = {}
    for room in ROOMS:
        for path in sorted(PACKAGE.glob(f"core/{room}/**/*.py")):
            names = constants(path).keys() - EXACT.get(of_module(path), set())
            if path not in TABLES and names:
                others[of_module(path)] = sorted(names)
    assert not others, "move them to a table, or add them to EXACT if nobody could measure them"
    for module, exact in EXACT.items():
        assert exact <= constants(PACKAGE / f"core/{module}.py").keys(), f"{module} has no such number any more"


def quotes(text: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers that a page quotes: `NAME` = 2**16, or `NAME` (4,096)."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    form = r"`([A-Z][A-Z_]+)`(?:\s=\s|\s\()(-?[\d,]*\d(?:\.\d+)?(?:e-?\d+)?)(?:\*\*(\d+))?(?:\s([KMG]iB))?"
    for name, number, power, unit in re.findall(form, text):
        value = float(number.replace(",", "")) ** int(power or 1)
        yield name, value * units.get(unit, 1)


def test_quotes_are_found():
    text = "`A_B` = 2**16 elements, `CD` (4,096), `EF` = 0.05. `GH` (25 MiB) `IJ` (-1e9)"
    found = {"A_B": 65536.0, "CD": 4096.0, "EF": 0.05, "GH": 25.0 * 2**20, "IJ": -1e9}
    assert dict(quotes(text)) == found


def test_pages_quote_the_numbers_that_there_are():
    known: dict[str, set[object]] = {}
    for path in (PACKAGE / "core").rglob("*.py"):
        for name, (value, _) in constants(path).items():
            known.setdefault(name.removeprefix("_"), set()).add(value)
    count = 0
    for page in PAGES:
        for name, value in quotes(page.read_text(encoding="utf-8")):
            count += 1
            assert value in known.get(name, set()), f"{page.name}: `{name}` is {known.get(name)}, not {value}"
    assert count > 40
