"""The public names: what the families publish is found in the namespaces, and nothing else is.

``python tests/test_names.py`` writes the lists in tests/data anew.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pickletools
import types
from pathlib import Path

import numpy
import pytest

import gtrace as gt
import gtrace.numpy
import gtrace.testing
from gtrace.numpy import reductions

DATA = Path(__file__).parent / "data"
NAMESPACES = {
    "names_gtrace.txt": gt,
    "names_gtrace_extend.txt": gt.extend,
    "names_gtrace_fft.txt": gt.fft,
    "names_gtrace_lax.txt": gt.lax,
    "names_gtrace_linalg.txt": gt.linalg,
    "names_gtrace_nn.txt": gt.nn,
    "names_gtrace_numpy.txt": gt.numpy,
    "names_gtrace_optim.txt": gt.optim,
    "names_gtrace_random.txt": gt.random,
    "names_gtrace_special.txt": gt.special,
}
MODULES = {
    "extend",
    "fft",
    "hotpath",
    "image",
    "lax",
    "linalg",
    "nn",
    "optim",
    "random",
    "segments",
    "sharding",
    "signal",
    "special",
    "tree",
}  # as gt.random and so on


def names(namespace: types.ModuleType) -> list[str]:
    """The public names, without the modules that are there for being parts of the package."""
    return sorted(
        name
        for name, value in vars(namespace).items()
        if not name.startswith("_")
        and (not isinstance(value, types.ModuleType) or (namespace is gt and name in MODULES))
    )


@pytest.mark.parametrize("file", NAMESPACES)
def test_public_names_are_those_on_the_list(file):
    assert names(NAMESPACES[file]) == (DATA / file).read_text(encoding="utf-8").split()


FAMILIES = [
    f"gtrace.core.ops.{path.stem}"
    for path in sorted((Path(gt.__file__).parent / "core" / "ops").glob("*.py"))
    if "\n__all__ = " in path.read_text(encoding="utf-8") and path.stem != "declare"  # which gathers imports
]


NUMPY_ORDER = [name for name in reductions.__all__ if getattr(reductions, name).__module__ == reductions.__name__
               and hasattr(gt, name)]  # fmt: skip


PACKAGES = {
    "numpy": "numpy",
    "numpy.linalg": "linalg",
    "numpy.fft": "fft",
    "nn": "nn",
    "lax": "lax",
    "random": "random",
    "special": "special",
}
"""Folders of families, and the namespace of gt that has what they publish."""

APART = {
    "gtrace.nn.initializers": gt.nn.initializers, "gtrace.lax.linalg": gt.lax.linalg,
    "gtrace.random.seeding": gt, "gtrace.nn.torch_modules": gt,
}  # fmt: skip
"""Families that are a namespace of their own, or that gt itself publishes."""

INNER = {
    "gtrace.numpy.filling", "gtrace.numpy.linalg.arguments", "gtrace.nn.common",
    "gtrace.special.quadrature", "gtrace.nn.torch_losses",
}  # fmt: skip
"""Modules in those folders that publish nothing."""


def published() -> list[tuple[str, list[types.ModuleType]]]:
    """Each family with the namespaces that have what it publishes."""
    found: list[tuple[str, list[types.ModuleType]]] = []
    for family in FAMILIES:
        found.append((family, [gt, gtrace.numpy]))
    for folder, name in PACKAGES.items():
        for path in sorted((Path(gt.__file__).parent / folder.replace(".", "/")).glob("[!_]*.py")):
            family = f"gtrace.{folder}.{path.stem}"
            if family not in INNER:
                found.append((family, [APART.get(family, getattr(gt, name))]))
    return found


@pytest.mark.parametrize(("family", "namespaces"), published())
def test_what_a_family_publishes_is_in_its_namespaces(family, namespaces):
    module = importlib.import_module(family)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        for namespace in namespaces:
            if namespace is not gtrace.numpy or name not in NUMPY_ORDER or family == reductions.__name__:
                found = getattr(namespace, name, "missing")
                assert found is getattr(module, name), f"{namespace.__name__}.{name} is {found}"


METHODS_APART = {
    "argpartition", "base", "byteswap", "choose", "ctypes", "data", "dump", "dumps", "fill", "flags", "flat",
    "getfield", "partition", "resize", "setfield", "setflags", "strides", "tobytes", "tofile",
}  # fmt: skip
"""What Arrays lack of numpy.ndarray: what writes or shows memory; `argpartition` and `choose` are in gt.numpy."""


def test_arrays_have_the_methods_of_numpy():
    missing = {name for name in dir(numpy.ndarray) if not name.startswith("_") and not hasattr(gt.Array, name)}
    # gtrace.jax adds those of JAX's arrays in a process that imports it
    assert missing | {"argpartition", "byteswap", "choose", "tobytes"} == METHODS_APART


def test_families_are_all_there():
    assert len(FAMILIES) > 10


def test_what_is_written_out_in_the_order_of_numpy_has_another_in_gt():
    for name in NUMPY_ORDER:
        ours, theirs = (list(inspect.signature(getattr(n, name)).parameters.values()) for n in (gt, gtrace.numpy))
        assert [(p.name, p.kind) for p in ours] != [(p.name, p.kind) for p in theirs], name


@pytest.mark.parametrize(
    "file",
    [
        "__init__.py", "extend/__init__.py", "lax/__init__.py", "nn/__init__.py", "numpy/__init__.py",
        "numpy/linalg/__init__.py", "optim/__init__.py", "random/__init__.py", "special/__init__.py",
    ],
)  # fmt: skip
def test_type_checkers_take_public_names_for_public(file):
    """Under mypy's --strict, an import makes a name public by a star, or if it is imported as itself."""
    tree = ast.parse((Path(gt.__file__).parent / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                private = (alias.asname or "").startswith("_") and alias.asname != alias.name
                assert alias.name == "*" or private or alias.asname == alias.name, ast.unparse(node)


PUBLIC = [
    gt, gt.nn, gt.optim, gt.random, gt.lax, gt.numpy, gt.linalg, gt.fft, gt.special, gt.tree, gt.ir, gt.errors,
    gt.dtypes, gt.sharding, gt.signal, gt.hotpath, gt.image, gt.segments, gt.testing, gt.nn.initializers, gt.extend,
]  # fmt: skip


@pytest.mark.parametrize("namespace", PUBLIC, ids=lambda n: n.__name__)
def test_public_classes_bear_a_public_module(namespace):
    places = {public.__name__: public for public in PUBLIC}
    for name in getattr(namespace, "__all__", vars(namespace)):
        value = getattr(namespace, name)
        ours = isinstance(value, type) and value.__module__.split(".")[0] == "gtrace"
        if ours and not name.startswith("_") and value.__name__ == name:
            place = places.get(value.__module__)
            assert place is not None and getattr(place, name) is value, f"{value.__module__}.{name}"


def test_pickles_name_public_modules_alone():
    model = gt.nn.Sequential(gt.nn.Linear(2, 3, key=gt.random.key(0)))
    values = [
        model,
        gt.float32,
        gt.ones(2, gt.bfloat16),
        gt.tree.Partial(len, 1),
        gt.ShapeError("x"),
        gt.sharding.P("x"),
    ]
    for value in values:
        named = {text for op, text, _ in pickletools.genops(pickle.dumps(value)) if isinstance(text, str)}
        inner = {text for text in named if text.startswith("gtrace.")} - {public.__name__ for public in PUBLIC}
        assert not inner and any(text.startswith("gtrace") for text in named), value


if __name__ == "__main__":
    for file, namespace in NAMESPACES.items():
        (DATA / file).write_text("\n".join(names(namespace)) + "\n", encoding="utf-8")
