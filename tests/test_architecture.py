"""The walls of the house: which room may import which, and what else a reader may rely on when looking for something.

``python tests/test_architecture.py`` draws the rooms and the states of docs/architecture.md anew.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import re
import types
from pathlib import Path

import attrs
import pytest

import gtrace
from gtrace.core.runtime.forms import TRANSITIONS, Forms
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.program_ledger import Ledger

PACKAGE = Path(gtrace.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
MAX_LINES = 500

ROOMS = {
    "core/base": "What knows nothing of programs: errors, settings, events, dtypes, locks, pytrees, torch's names.",
    "core/ir": "What a program is: operations, types, graphs, their text, verifier, signature, simplifications.",
    "core/passes": "What a whole program is rewritten to: canonical form, fusions, layouts, where a program is cut.",
    "core/backends": "What runs a program: the interpreter, Inductor, C++ of our own, and the schedule of their calls.",
    "core/partitioner": "From the program of all processes to the program of one.",
    "core/runtime": "Programs, the policy that compiles them, their tiers; the cache on disk; the worker.",
    "core/trace": "Array, recording, capture, forcing.",
    "core/ops": "The primitives, and the functions made of them.",
    "core/transform": "jit, grad, jvp, vmap, custom rules, checkpoint, scan, cond, while.",
    "interop": "torch's functions and modules on Arrays, and functions of gtrace in torch.",
    "extend": "What libraries over gtrace are built on: operations, rules, tracing, operands, errors.",
    "special": "Special functions.",
    "random": "Draws from keys, and the global stream.",
    "numpy": "Array functions under the names of the array API and NumPy.",
    "nn": "Functions and modules of neural networks.",
    "optim": "Optimizers under optax's contract.",
    "lax": "The names of jax.lax.",
    "image": "Images of other sizes.",
    "segments": "Reductions over segments.",
    "scipy": "Functions under SciPy's names.",
    "distributed": "Meshes, shardings, signals, plans.",
    "saving": "Arrays, checkpoints and exported functions as files.",
    "observe": "Logs, timelines, profiles, statistics.",
    "": "The root: what `import gtrace` publishes.",
    "testing": "Strategies and checks for property tests.",
    "jax": "JAX's names over all of this.",
    "commands": "The command gtrace: a file a command.",
}
"""Every room with a sentence, lowest first: a room imports only rooms above it in this table."""

RANK = {name: k for k, name in enumerate(ROOMS)}
CORE = [name for name in ROOMS if name.startswith("core/")]
VOCABULARY = ["special", "random", "numpy", "nn", "optim", "lax", "image", "segments", "scipy"]
MACHINE = ["core/ir", "core/passes", "core/backends", "core/partitioner", "core/runtime"]
"""What the vocabulary reaches only through core/trace, core/ops and core/transform."""

BUILT = ["nn", "optim", "image", "segments", "scipy", "jax"]
"""What reaches all of core and interop by gtrace.extend, as libraries do."""

BEYOND = ["testing", "jax", "commands"]
"""What stands on the root."""

ON_DEMAND = {"scipy", *BEYOND}
"""What nothing else imports."""

FACES = {"errors", "dtypes", "tree", "ir", "sharding", "signal", "hotpath"}
"""Modules at the top that publish what lies deeper."""

ENTRY = "core.runtime.worker.server"
"""The program of the worker process: it imports the root, as every operation must be declared there."""

SLOTS = {"_buf", "_trace", "_number", "_leaf"}
"""What `ArrayBase` holds."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        out[name.removesuffix("__init__").removesuffix(".")] = ast.parse(path.read_text(encoding="utf-8"))
    return out


def is_package(name: str) -> bool:
    return (PACKAGE / name.replace(".", "/") / "__init__.py").exists()


def room(module: str) -> str:
    """Return the room of a module. Faces are of the root, and ``python -m gtrace`` is a command."""
    first, _, rest = module.replace("__main__", "commands").partition(".")
    name = f"core/{rest.partition('.')[0]}" if first == "core" and rest else first
    return name if name in ROOMS else ""


@functools.cache
def imported(name: str) -> frozenset[str]:
    """Return the modules of gtrace that a module imports: also for type checkers, and by `import_module`."""
    found = set()
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gtrace":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("gtrace.") in modules() else str(node.module))
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    ours = {other.removeprefix("gtrace").removeprefix(".") for other in found if other.split(".")[0] == "gtrace"}
    return frozenset(other for other in ours if other in modules() and other not in (name, "version"))


# -- the walls


@pytest.mark.slow
def test_every_module_stands_in_a_room():
    top = {name.partition(".")[0] for name in modules()} - {"core", "", "__main__", "version"}
    assert top - FACES == {name for name in ROOMS if name and "/" not in name}
    assert {name.split(".")[1] for name in modules() if name.startswith("core.")} == {r.split("/")[1] for r in CORE}


@pytest.mark.slow
def test_rooms_import_only_rooms_below_them():
    for name in modules():
        for other in imported(name) - ({""} if name == ENTRY else set()):
            allowed = RANK[room(other)] <= RANK[room(name)]
            assert allowed, f"gtrace.{name} imports gtrace.{other}, which stands above it"


@pytest.mark.slow
def test_nothing_below_the_root_imports_it_or_a_face():
    for name in modules():
        if room(name) and RANK[room(name)] < RANK[""] and name != ENTRY:
            assert not [other for other in imported(name) if not room(other)], f"gtrace.{name}"


@pytest.mark.parametrize("of", [lambda name: name, room], ids=["files", "rooms"])
def test_no_circle(of):
    graph: dict[str, set[str]] = {}
    for name in modules():
        others = {of(other) for other in imported(name) if name != ENTRY}
        graph.setdefault(of(name), set()).update(others - {of(name)})
    sorter = graphlib.TopologicalSorter(graph)
    assert len(list(sorter.static_order())) == len(graph)  # it raises a CycleError for a circle


def test_the_vocabulary_reaches_the_machine_by_its_functions():
    for name in modules():
        if room(name) in VOCABULARY:
            inner = [other for other in imported(name) if room(other) in MACHINE]
            assert not inner, f"gtrace.{name} imports {inner}: core/ops publishes what it needs"


def test_libraries_reach_core_by_the_surface_for_libraries():
    for name in modules():
        if room(name) in BUILT:
            inner = [other for other in imported(name) if other.startswith(("core", "interop"))]
            assert not inner, f"gtrace.{name} imports {inner}: gtrace/extend publishes what libraries need"


def test_what_is_imported_on_demand_is_imported_by_nothing_below_it():
    for name in modules():
        for other in imported(name):
            at_home = room(other) == room(name) or RANK[room(name)] > RANK[""]
            assert room(other) not in ON_DEMAND or at_home, f"gtrace.{name} imports gtrace.{other}"


def test_no_module_has_the_name_of_something_that_its_package_publishes():
    for name in filter(is_package, modules()):
        package = importlib.import_module(f"gtrace.{name}".removesuffix("."))
        for inner in {other.rpartition(".")[2] for other in modules() if other.rpartition(".")[0] == name and other}:
            found = getattr(package, inner, None)
            assert found is None or isinstance(found, types.ModuleType), f"{package.__name__}.{inner} is two things"


@pytest.mark.slow
def test_slots_of_arrays_are_touched_in_the_trace_and_the_tape_alone():
    for name, tree in modules().items():
        if room(name) == "core/trace" or name == "core.transform.tape":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in SLOTS and ast.unparse(node.value) != "self":
                raise AssertionError(f"gtrace.{name}, line {node.lineno}: core/trace/force has functions for that")


def test_the_state_of_a_program_has_one_owner():
    """Forms, ledgers and programs are changed by their own methods."""
    owners = {"core.runtime.forms": Forms, "core.runtime.program_ledger": Ledger, "core.runtime.program": Program}
    fields = {a.name.lstrip("_") for cls in owners.values() for a in attrs.fields(cls)} - {"key", "settings"}
    for name, tree in modules().items():
        if room(name) not in ("core/runtime", "core/transform", "observe"):
            continue
        for node in ast.walk(tree):
            written = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
            if written and node.attr.lstrip("_") in fields and ast.unparse(node.value) not in ("self", "thread"):
                raise AssertionError(f"gtrace.{name}, line {node.lineno}: {ast.unparse(node)} has an owner")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr") and name in owners:
                raise AssertionError(f"gtrace.{name}, line {node.lineno}: a field that is named by a string")


# -- what a reader relies on


def test_each_package_says_what_it_is():
    for name in filter(is_package, modules()):
        assert ast.get_docstring(modules()[name]), f"gtrace.{name}"
    for name, sentence in ROOMS.items():
        if "core" in name:
            assert ast.get_docstring(modules()[name.replace("/", ".")], clean=False).startswith(sentence.rstrip("."))


def test_each_rung_has_a_page_that_names_its_files():
    for name in [*CORE, "interop", "extend", "distributed", "observe"]:
        text = "".join(page.read_text(encoding="utf-8") for page in (PACKAGE / name).rglob("README.md"))
        files = [path.name for path in (PACKAGE / name).rglob("*") if path.suffix in (".py", ".h", ".pyi")]
        missing = {file for file in files if f"{file})" not in text} - {"__init__.py"}
        assert (PACKAGE / name / "README.md").exists() and not missing, f"{name}: {missing}"


@pytest.mark.slow
def test_imports_stand_at_the_top():
    for name, tree in modules().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = [n for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not inner, f"gtrace.{name}.{function.name} imports inside a function"


def test_packages_and_faces_only_publish():
    for name, tree in modules().items():
        if is_package(name) or name in FACES:
            statements = tree.body
            if name == "":  # it pauses the garbage collector while it imports
                statements = [n for node in tree.body for n in (node.body if isinstance(node, ast.Try) else [node])]
            for node in statements:
                kind = isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) or (
                    isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Call)
                )
                assert kind, f"gtrace/{name} defines something: {ast.unparse(node)[:60]}"


def test_module_size():
    for path in PACKAGE.rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{path.relative_to(PACKAGE)} has {lines} lines: two rooms in one?"


@pytest.mark.slow
def test_two_files_use_private_names_of_torch():
    private = re.compile(r"\btorch\.(_(?!_)\w+|fx\.experimental|utils\._\w+)")
    users = {name for name, tree in modules().items() if private.search(ast.unparse(tree))}
    assert users == {"core.base.torch_internals", "core.ops.softmax_functions"}
    text = (PACKAGE.parent / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for name in users:
        assert f"`{name.replace('.', '/')}.py`" in text, "the page lists them"


# -- facts about operations


RULES = {
    "core.ir.simplify", "core.partitioner.bodies", "core.transform.control.code_motion",
    *(f"core.passes.{name}" for name in ("attention", "channels_last", "contractions",
                                         "norm_operators", "norms", "rowwise")),
}  # fmt: skip
"""What matches patterns of operations."""

EMITTERS = ("core.backends.fx", "core.backends.inductor.", "core.backends.interpreter.", "core.backends.native.")
"""What writes or calls the code of operations."""


def is_name_of_operation(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is ``op.name``, ``node.op.name`` or a variable that was assigned one."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return re.fullmatch(r"(.*\.)?_?op", ast.unparse(node.value)) is not None
    return isinstance(node, ast.Name) and node.id in names


def assigned_names(tree: ast.AST) -> set[str]:
    """Return the variables that are assigned the name of an operation."""
    pairs = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None:
            pairs.append((node.target, node.value))
    return {t.id for t, value in pairs if isinstance(t, ast.Name) and is_name_of_operation(value, set())}


def is_operation(node: ast.AST, declared: set[str]) -> bool:
    """Whether an expression is any operation, or one that its own file declares."""
    text = ast.unparse(node)
    return re.fullmatch(r"(.*\.)?_?op", text) is not None or "REGISTRY" in text or text == "None" or text in declared


def decisions_by_name(tree: ast.AST) -> set[int]:
    """Return the lines that decide something by the names of operations: comparisons, and tables by name."""
    lines = set()
    declared = {
        ast.unparse(target)
        for node in getattr(tree, "body", [])
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("define(")
        for target in node.targets
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.Module):
            continue
        names = assigned_names(function) if isinstance(function, ast.FunctionDef) else set()
        for node in ast.walk(function):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                asked = [inner for side in sides for inner in ast.walk(side) if not isinstance(side, ast.Call)]
                of_node = any(isinstance(x, ast.Attribute) and x.attr == "op" for x in sides)
                if of_node and not all(is_operation(x, declared) for x in sides):
                    lines.add(node.lineno)
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) != "REGISTRY":
                asked = [node.slice]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("startswith", "endswith", "removesuffix"):
                    asked = [node.func.value]
                elif node.func.attr == "get" and ast.unparse(node.func.value) != "REGISTRY":
                    asked = node.args[:1]
            elif isinstance(node, ast.Match):
                asked = [node.subject]
            if any(is_name_of_operation(x, names) for x in asked):
                lines.add(node.lineno)
    return lines


def overloads(tree: ast.AST) -> set[int]:
    """Return the lines that name an operator of torch."""
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.lineno for node in texts if re.match(r"aten\.\w", node.value)}


@pytest.mark.slow
def test_only_rules_and_emitters_know_operations_by_name():
    deciding = {}
    for name, tree in modules().items():
        if room(name) in [*CORE, "distributed", "observe"] and not name.startswith(EMITTERS):
            lines = decisions_by_name(tree) | overloads(tree)
            if lines:
                deciding[name] = sorted(lines)
    others = {name: lines for name, lines in deciding.items() if name not in RULES}
    assert not others, "ask for a trait: gtrace/core/ir/declaration.py has them"
    assert RULES <= deciding.keys(), "these match no pattern any more"


@pytest.mark.parametrize("code", [
    "node.op.name == 'add'", "'add' != op.name", "node.instr.op.name in NAMES", "TABLE[node.op.name]",
    "TABLE.get(op.name)", "node.op is project", "node.op in OPS", "'sum' in {node.op.name for node in nodes}",
    "op.name.startswith('a')",
])  # fmt: skip
def test_a_decision_by_name_is_found(code):
    assert decisions_by_name(ast.parse(code))
    assert decisions_by_name(ast.parse("def f(node):\n    a, name = node.aval, node.op.name\n    return name == 'add'"))
    for allowed in ("op.moves", "message(op.name, x)", "p.op is not q.op", "REGISTRY[node.op.name]", "name == 'x'"):
        assert not decisions_by_name(ast.parse(allowed))


# -- the picture, and the table of states


def states() -> str:
    """Return the states of a program as the page shows them."""
    lines = ["| what happens | in which states | next state |", "|---|---|---|"]
    for event, (before, after) in TRANSITIONS.items():
        lines.append(f"| {event.value} | {', '.join(state.value for state in before)} | {after.value} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the rooms as the page shows them, those that stand on others first."""
    width = max(len(name) for name in ROOMS) + 2
    lines = []
    for name in reversed(ROOMS):
        if name == CORE[-1]:
            lines.append("")
        lines.append(f"{name or 'gtrace':{width}}{ROOMS[name]}")
        if name in ("testing", ""):
            lines.append("")
    return "```text\n" + "\n".join(lines) + "\n```\n"


DRAWN = {"rooms": picture, "states": states}
"""What the page shows between two comments that have its name."""


def around(name: str, text: str) -> tuple[str, str, str]:
    """Return the text up to a picture, the picture, and the rest."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, _, rest = text.partition(begin)
    drawn, _, rest = rest.partition(end)
    return head + begin, drawn, end + rest


@pytest.mark.parametrize("name", DRAWN)
def test_the_page_has_the_picture(name):
    assert around(name, PAGE.read_text(encoding="utf-8"))[1] == DRAWN[name](), "run python tests/test_architecture.py"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for name, draw in DRAWN.items():
        head, _, rest = around(name, text)
        text = head + draw() + rest
    PAGE.write_text(text, encoding="utf-8")
