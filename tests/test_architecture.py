"""The house: which room may look into which, and how large a module may grow."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import gtrace

PACKAGE = Path(gtrace.__file__).parent
MAX_LINES = 500

# each room imports from rooms before it; files of one room may import one another, without a cycle
ROOMS = [
    {"allocator", "call_errors", "docstrings", "errors", "forks", "locks", "suggestions", "tables", "units", "version"},
    {"torch_internals"},
    {"config", "events", "ambient", "exact"},
    {"dtypes"},
    {"tree", "ir.interning", "ir.sharding", "ir.factors"},
    {"ir.aval"},
    {"ir.sizes"},
    {"ir.cases", "ir.rules"},
    {"ir.unsigned"},
    {"ir.infer"},
    {"ir.op"},
    {"ir.graph"},
    {"ir.aliasing", "ir.derived", "ir.edit", "ir.simplify", "ir.partial_eval", "ir.split", "ir.verify", "ir.evaluate"},
    {"ir.views"},
    {"ir.passes", "ir.repeats", "ir.draws"},
    {"ir.subgraph"},
    {"ir.text", "ir.calls", "ir.build"},
    {"ir.canonical", "ir.user_passes", "ir.signature", "ir.difference"},
    {"ir.values"},
    {"ir.rows"},
    {"ir.norm_operators", "ir.contractions", "ir.masks"},
    {"ir.norms"},
    {"ir.attention"},
    {"ir.simplified"},
    {"ir"},
    {"interp"},
    {"compile.guards", "compile.toolchain"},
    {"compile.executable"},
    {"compile.symbolic"},
    {"compile.request", "compile.aoti", "compile.work", "compile.parts", "compile.faster", "compile.inductor.failures"},
    {"compile.native"},
    {"compile.fx"},
    {"compile.inductor"},
    {"compile.schedule", "compile.artifact"},
    {"compile.backend", "compile.partition"},
    {"cache.fields"},
    {"cache.manifest", "cache.ledger", "cache.divided"},
    {"cache.store"},
    {"worker.pauses"},
    {"worker.lane"},
    {"worker.client"},
    {"worker.sharing"},
    {"cache.artifacts"},
    {"shard.workers", "shard.layouts", "shard.partitioned"},
    {"shard.local_program"},
    {"shard.conversion", "shard.bodies"},
    {"shard.partition"},
    {"shard.stages"},
    {"engine.policy", "engine.audit", "engine.clock", "engine.sharded"},
    {"engine.program"},
    {"engine.compilation", "engine.ledger", "engine.instruments", "engine.programs"},
    {"engine.derived", "engine.judging", "engine.scalars"},
    {"engine.sizes"},
    {"engine.routes"},
    {"engine.tiering"},
    {"engine.engine"},
    {"trace.segmentation"},
    {"trace.record", "trace.text"},
    {"trace.derived", "trace.no_value"},
    {"trace.completion"},
    {"trace.promotion"},
    {"trace.array"},
    {"trace.bind", "trace.convert", "trace.donation"},
    {"trace.fast"},
    {"trace.capture", "trace.ranges"},
    {"trace.replayable"},
    {"trace.numbers"},
    {"ops"},
    {"aten"},
    {"torch_functions", "tensor_methods"},
    {"transform.arguments", "transform.tape"},
    {"transform"},
    {"control"},
    {"random"},
    {"seeding"},
    {"abstract", "jit_arguments", "jit_options", "stages"},
    {"jit", "modules", "define_op"},
    {"torch_autograd"},
    {"export_manifest"},
    {"nn", "optim"},
    {
        "observe",
        "shard",
        "sharding",
        "signal",
        "hotpath",
        "numpy",
        "lax",
        "special",
        "export",
        "segments",
        "image",
        "flattening",
        "callbacks",
    },
    {"saving"},
    {"scipy"},
    {""},
    {"bench"},
    {"commands", "worker.server", "testing"},
    {"jax"},
    {"cli", "__main__"},
]


@functools.cache
def modules() -> dict[str, ast.Module]:
    out = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        out[name.removesuffix("__init__").removesuffix(".")] = ast.parse(path.read_text(encoding="utf-8"))
    return out


PACKAGES = (
    "interp",
    "compile",
    "compile.inductor",
    "cache",
    "worker",
    "engine",
    "trace",
    "aten",
    "transform",
    "control",
    "saving",
    "bench",
    "commands",
)


def room(module: str) -> int:
    for level, names in enumerate(ROOMS):
        if names & {module, module.rpartition(".")[0] or module, module.split(".")[0]}:
            return level
    raise AssertionError(f"gtrace.{module} stands in no room: add it to the list, in its place")


def imported(tree: ast.Module) -> set[str]:
    """The modules of gtrace that a module imports when it is imported."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gtrace":
            base = (node.module or "").removeprefix("gtrace").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                names.add(inner if inner in modules() else base)
        elif isinstance(node, ast.Import):
            names |= {
                a.name.removeprefix("gtrace").removeprefix(".") for a in node.names if a.name.split(".")[0] == "gtrace"
            }
    return names


def test_rooms_import_only_rooms_before_them():
    for name, tree in modules().items():
        if name in PACKAGES:
            assert not imported(tree), f"gtrace/{name}/__init__.py only marks a package"
            continue
        for other in imported(tree):
            assert room(other) <= room(name), f"gtrace.{name} imports gtrace.{other}, which stands above it"


def test_the_public_surface_of_the_ir_is_made_of_ir_modules():
    assert all(name.startswith("ir.") for name in imported(modules()["ir"]))
    for name in modules():
        if name.startswith("ir."):
            assert any(name in names for names in ROOMS), f"gtrace.{name} stands in no room"


def test_no_cycle_within_a_room():
    graph = {name: imported(tree) - {name} for name, tree in modules().items()}
    done: set[str] = set()
    while len(done) < len(graph):
        ready = {name for name, others in graph.items() if name not in done and others <= done}
        assert ready, f"a cycle of imports among {sorted(set(graph) - done)}"
        done |= ready


def test_imports_stand_at_the_top():
    for name, tree in modules().items():
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
                assert not inner, f"gtrace.{name}.{function.name} imports inside a function"


def test_package_files_only_re_export():
    for name, tree in modules().items():
        if (PACKAGE / name.replace(".", "/") / "__init__.py").exists():
            statements = tree.body
            if name == "":  # it pauses the garbage collector while it imports
                statements = [n for node in tree.body for n in (node.body if isinstance(node, ast.Try) else [node])]
            for node in statements:
                kind = isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign)) or (
                    isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Call))
                )
                assert kind, f"gtrace/{name}/__init__.py defines something: {ast.unparse(node)[:60]}"


def test_module_size():
    for path in PACKAGE.rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{path.relative_to(PACKAGE)} has {lines} lines: two rooms in one?"


def test_only_one_file_uses_private_names_of_torch():
    private = re.compile(r"\btorch\.(_(?!_)\w+|fx\.experimental|utils\._\w+)")
    users = {name for name, tree in modules().items() if private.search(ast.unparse(tree))}
    assert users == {"core.base.torch_internals", "core.ops.normalize"}
    text = (PACKAGE.parent / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for name in users:
        assert f"`{name.replace('.', '/')}.py`" in text, "the page lists them"
