"""The surface for libraries, gtrace.extend: its page lists every name, and every name has a user.

``python tests/test_extend.py`` writes the list in docs/extend.md anew.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path

import numpy
import torch

import gtrace as gt
from gtrace.extend import REGISTRY, bind, define

PACKAGE = Path(gt.__file__).parent
PAGE = PACKAGE.parent / "docs" / "extend.md"
BEGIN, END = "<!-- names -->\n", "<!-- end of names -->\n"
GROUPS = [
    "operations", "rules", "operands", "dtypes", "keys", "trees", "tracing", "effects", "torch_calls", "errors",
    "libraries", "public",
]  # fmt: skip
"""The modules of the surface in the order of the page."""


def stated(module: str, name: str) -> str:
    """Return what a module says of a value below its assignment."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node, after in itertools.pairwise(body):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
        if name in [ast.unparse(target) for target in targets if target is not None]:
            return str(below or "")
    return ""


def described(group: str) -> list[tuple[str, str]]:
    """Return the names of a group, each with the first sentence that describes it."""
    module = importlib.import_module(f"gtrace.extend.{group}")
    homes = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = []
    for name in module.__all__:
        value = getattr(module, name)
        documented = inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
        text = value.__doc__ if documented else stated(homes[name], name)
        found.append((name, " ".join((text or "").strip().split("\n\n")[0].split()).replace("|", "\\|")))
    return found


def names() -> str:
    """Return the lists of the page."""
    parts = []
    for group in GROUPS:
        doc = importlib.import_module(f"gtrace.extend.{group}").__doc__
        rows = "".join(f"| `{name}` | {text} |\n" for name, text in described(group))
        parts.append(f"### {group}\n\n{doc}\n\n| name | what it is |\n|---|---|\n{rows}")
    return "\n".join(parts)


def test_the_page_lists_every_name():
    assert f"{BEGIN}{names()}{END}" in PAGE.read_text(encoding="utf-8"), "run python tests/test_extend.py"
    assert set(GROUPS) == {path.stem for path in (PACKAGE / "extend").glob("[!_]*.py")}


def test_every_name_is_described_and_in_one_group():
    listed = [pair for group in GROUPS for pair in described(group)]
    assert [name for name, text in listed if not text] == []
    assert len({name for name, _ in listed}) == len(listed)


def test_what_gtrace_publishes_elsewhere_is_in_a_group_of_its_own():
    spaces = [gt, gt.errors, gt.ir, gt.dtypes, gt.sharding]
    for group in GROUPS:
        for name, _ in described(group):
            found = any(getattr(space, name, None) is getattr(gt.extend, name) for space in spaces)
            assert found is (group == "public"), name


def test_every_name_has_a_user():
    rooms = [
        gt.nn,
        gt.optim,
        gt.image,
        gt.segments,
        importlib.import_module("gtrace.scipy"),
        importlib.import_module("gtrace.jax"),
    ]
    texts = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    rooms = [file for room in ("nn", "optim", "scipy", "jax") for file in (PACKAGE / room).rglob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (*rooms, PACKAGE / "image.py", PACKAGE / "segments.py")]
    used = {
        alias.name
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "gtrace.extend"
        for alias in node.names
    }
    assert {name for group in GROUPS for name, _ in described(group)} - used == set()


def test_a_kernel_of_a_library_runs_between_compiled_parts(tmp_path, request):
    held = define(
        "test_extend.held", lambda x, low: torch.from_numpy(numpy.maximum(x.numpy(), low)), params=("low",),
        numbers=True, interpreted=True, shape=lambda avals, low: avals[0].shape, nondiff="an example",
    )  # fmt: skip

    request.addfinalizer(lambda: REGISTRY.pop(held.name))

    def wave(x):
        for _ in range(8):
            x = gt.sin(x) * gt.exp(-x * x) + gt.cos(x)
        return x

    def f(x):
        return wave(bind(held, (wave(x),), (0.5,)))

    x = gt.linspace(-1, 1, 1000)
    with gt.config(cache_dir=str(tmp_path)):
        jitted = gt.jit(f, wait=True)
        numpy.testing.assert_allclose(jitted(x), f(x), rtol=1e-4)
        (program,) = gt.explain(jitted).programs
    kinds = [type(call.what).__name__ for call in program.regions]
    assert program.program.tier == "compiled" and kinds == ["CompileRequest", "Graph", "CompileRequest"]


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{names()}{END}{rest.partition(END)[2]}", encoding="utf-8")
