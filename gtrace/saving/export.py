"""Compiled functions as files: ``gt.export`` traces and compiles, ``gt.load`` loads and runs.

The file is a zip archive: a manifest (inputs, outputs, guards, toolchain), the IR's text, and an AOTInductor
package for each case of open sizes. Loading reads JSON and a shared library, and needs neither a tracer nor a compiler.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.backends.aoti import load as load_artifact
from gtrace.core.backends.guards import hold
from gtrace.core.backends.inductor.driver import compile_package
from gtrace.core.backends.inductor.refused import uncompilable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.symbolic import Relation, fit, shape_of
from gtrace.core.backends.toolchain import architecture, missing_instructions, toolchain
from gtrace.core.backends.whole_libraries import check_library
from gtrace.core.base import tree
from gtrace.core.base.archives import MAX_TEXT, Archive, write_archive
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import (
    ArgumentError,
    CompileError,
    DtypeError,
    ExportError,
    ShapeError,
    UnsupportedTorchError,
    message,
)
from gtrace.core.base.private_folders import read_trusted
from gtrace.core.base.whole_files import write_aside
from gtrace.core.base.workspace import workspace
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.partitioner.partition import find_meshes
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.subgraph_calls import has_effects
from gtrace.core.passes.user_passes import registered, rewritten
from gtrace.core.runtime.comparisons import tried
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import refuse_followed, whole
from gtrace.core.transform.eval_shape import ShapeDtypeStruct, capture_like
from gtrace.interop.lstm import layers_as_loops
from gtrace.saving.export_manifest import CaseManifest, ExportManifest, InputSpec

__all__ = ["Exported", "export", "load"]

MAX_NAMES = 2
"""The maximal number of open sizes. Each doubles the packages, because a size of 1 has its own."""

_EXAMPLES = ((23, 41), (29, 47), (37, 53))
"""Example values of open sizes, for recording. A fixed size is unlikely to be a simple function of them."""

_DAMAGED = (KeyError, NotImplementedError, OSError, OverflowError, RuntimeError, ValueError)
"""Exceptions from reading a damaged file: from archives, manifests and torch's loader."""


@attrs.frozen(eq=False)
class Case:
    """One package.

    Attributes:
        ones: the names of the open sizes that are 1.
        file: its name in the archive.
        program: takes all inputs.
        guards: conditions on the sizes of the inputs.
        text: the program in the IR's text.
    """

    ones: frozenset[str]
    file: str
    content: bytes
    program: TensorFunction
    guards: tuple[Any, ...]
    text: str


@attrs.frozen(eq=False)
class Exported:
    """A compiled function. Call it like the original function; `save` writes it to a file."""

    name: str
    inputs: tuple[InputSpec, ...]
    out_avals: tuple[Aval, ...]
    _in_tree: Any
    _out_tree: Any
    _cases: tuple[Case, ...]

    @property
    def text(self) -> str:
        """The program in the IR's text; open sizes have example values."""
        return self._cases[0].text

    def __repr__(self) -> str:
        return f"<exported {self.name}({', '.join(map(str, self.inputs))})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function.

        Raises:
            ArgumentError: the arguments have another structure.
            ShapeError, DtypeError: an array does not fit its specification.
            ArrayConcretizationError: an array is being differentiated: the file has no derivative.
        """
        given = _encode(_numbered((args, kwargs))[0], self.name)
        if given != self._in_tree:
            expected = json.dumps(self._in_tree)
            fix = "Pass what it was exported with."
            raise ArgumentError(message(self.name, f"arguments of structure {expected}", json.dumps(given), fix))
        arrays = [lift(self.name, x, share=True) for x in tree.leaves((args, kwargs))]
        for x in arrays:
            refuse_followed(x, self.name, "Export the gradient, as of gt.grad(f), or pass gt.stop_gradient(x).")
        named = self._check(arrays)
        ones = frozenset(name for name, n in named.items() if n == 1)
        sizes = [n for x in arrays for n in x.shape]
        case = next((c for c in self._cases if c.ones == ones and hold(c.guards, sizes)), None)
        if case is None:
            got = ", ".join(f"{name}={n}" for name, n in named.items())
            fix = "Export it again with an example of such sizes, or pad."
            raise ShapeError(message(self.name, "sizes that it was compiled for", got, fix))
        results = case.program([whole(x, self.name).contiguous() for x in arrays])
        kinds, expected_kinds = [t.dtype for t in results], [a.dtype for a in self.out_avals]
        if kinds != expected_kinds:
            got, expected = (", ".join(LONG[kind] for kind in each) for each in (kinds, expected_kinds))
            fix = "The file is damaged: export the function again."
            raise ExportError(message(self.name, f"results of {expected}", got, fix))
        outputs = []
        for t, a in zip(results, self.out_avals, strict=True):
            outputs.append(wrap_as(t, aval(tuple(t.shape), t.dtype, a.device, a.weak)))
        return _decode(self._out_tree, outputs)

    def _check(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Return the open sizes by name."""
        named: dict[str, int] = {}
        for x, spec in zip(arrays, self.inputs, strict=True):
            got = f"{x.aval!r} at {spec.path}"
            if x.aval.dtype is not spec.dtype:
                fix = f"Convert it with .astype({LONG[spec.dtype]!r})."
                raise DtypeError(message(self.name, f"{spec} at {spec.path}", got, fix))
            fits = len(x.shape) == len(spec.shape)
            for n, expected in zip(x.shape, spec.shape, strict=False):
                if isinstance(expected, str):
                    fits &= named.setdefault(expected, n) == n and n > 0
                else:
                    fits &= n == expected
            if not fits:
                known = ", ".join(f"{name}={n}" for name, n in named.items())
                fix = f"Here {known}; sizes of one name are equal and not 0." if known else "Pass that shape."
                raise ShapeError(message(self.name, f"{spec} at {spec.path}", got, fix))
        return named

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that `load` reads. The file is written aside and then moved to `path`.

        Raises:
            OSError: the file cannot be written.
        """
        cases = tuple(
            CaseManifest(c.ones, c.file, hashlib.sha256(c.content).hexdigest(), c.guards, c.text) for c in self._cases
        )
        manifest = ExportManifest(
            self.name, self.inputs, self.out_avals, self._in_tree, self._out_tree, _toolchain(self.inputs), cases
        )

        def write(aside: Path) -> None:
            texts = [("manifest.json", manifest.to_json().encode()), ("graph.txt", self.text.encode())]
            write_archive(aside, [*texts, *((case.file, case.content) for case in self._cases)])
            aside.chmod(aside.stat().st_mode & ~0o022)  # `load` rejects native code that others can write

        write_aside(Path(path), write)

    def save_package(self, path: str | os.PathLike[str], ones: Sequence[str] = ()) -> None:
        """Write only the AOTInductor package (``.pt2``), for C++. The file is written aside and then moved to `path`.

        It takes the dense arrays of the arguments in the order of `inputs`, and checks nothing.

        Args:
            ones: the names of open sizes that are 1; these have their own package.

        Raises:
            ArgumentError: there is no such package.
            OSError: the file cannot be written.
        """
        case = next((c for c in self._cases if c.ones == frozenset(ones)), None)
        if case is None:
            known = ", ".join(str(sorted(c.ones)) for c in self._cases)
            raise ArgumentError(message("save_package", f"ones among {known}", str(sorted(ones)), "Name one of these."))
        write_aside(Path(path), lambda aside: aside.write_bytes(case.content))


def export(f: Callable[..., Any], *specs: Any, **named_specs: Any) -> Exported:
    """Trace `f`, compile it ahead of time, and return the content of its file.

    Args:
        specs, named_specs: like the arguments of `f`: pytrees of arrays or of `ShapeDtypeStruct`. A size of the latter
            may be a name, such as "batch", which leaves it open. Equal names mean equal sizes.

    Raises:
        ExportError: the program has an unsupported loop, or depends on an open size in an unsupported way; or the
            compiled code computes something else.
        CompileError: the compiler failed.
        ConcretizationError: `f` reads a value.

    >>> spec = gt.ShapeDtypeStruct(("batch", 3), "float32")
    >>> exported = gt.export(lambda x: x * 2, spec)  # doctest: +SKIP
    >>> exported(gt.ones((5, 3))).shape  # doctest: +SKIP
    (5, 3)
    """
    name = getattr(f, "__name__", type(f).__name__)
    leaves, _ = tree.flatten((specs, named_specs))
    numbered, paths = _numbered((specs, named_specs))
    in_tree = _encode(numbered, "export")
    inputs = tuple(_spec(leaf, path) for leaf, path in zip(leaves, paths, strict=True))
    names = sorted({n for spec in inputs for n in spec.shape if isinstance(n, str)})
    if len(names) > MAX_NAMES:
        fix = "Fix the others, or export one file for each."
        raise ExportError(message("export", f"at most {MAX_NAMES} open sizes", ", ".join(names), fix))
    cases, out_avals, out_tree = [], None, None
    subsets = [s for k in range(len(names) + 1) for s in itertools.combinations(names, k)]
    for ones in subsets:
        case, avals, structure = _case(f, specs, named_specs, names, frozenset(ones))
        cases.append(case)
        if out_avals is None:
            out_avals = avals
            out_tree = _encode(structure.unflatten(range(structure.num_leaves)), "export")
    return Exported(name, inputs, out_avals or (), in_tree, out_tree, tuple(cases))


def _case(
    f: Callable[..., Any], specs: Any, named_specs: Any, names: Sequence[str], ones: frozenset[str]
) -> tuple[Case, tuple[Aval, ...], Any]:
    """Compile the package in which the sizes `ones` are 1 and the other named ones are open."""
    graphs, captured = [], None
    free = [name for name in names if name not in ones]
    for example in _EXAMPLES if free else _EXAMPLES[:1]:
        sizes: dict[str, int] = {**dict.fromkeys(ones, 1), **dict(zip(free, example, strict=False))}
        args, kwargs = tree.map(lambda leaf, sizes=sizes: _sized(leaf, sizes), (specs, named_specs))
        again = capture_like("export", f, args, kwargs)
        captured = captured or again
        recorded = layers_as_loops(rewritten(again.graph, registered.passes))
        _check_constants(captured.constants, again.constants)
        # in the order of recording, which is that of every size; the canonical order breaks ties by sizes
        graphs.append(renumber(CANONICAL.run(recorded)))
    assert captured is not None
    graph = graphs[0]
    if find_meshes(graph):
        fix = "Export the function without gt.with_sharding, and pass it arrays of this process alone."
        raise ExportError(message("export", "a program of one process", "one with shardings", fix))
    if has_effects(graph):
        fix = "Leave out gt.pure_callback, gt.io_callback and jax.debug.print."
        raise ExportError(message("export", "a program that needs no Python", "one that calls Python functions", fix))
    reason = uncompilable(graph)
    if reason:
        fix = "Use float32, as the real and imaginary part, int64, and sizes in place of scales."
        raise ExportError(message("export", "operations that Inductor compiles", reason, fix))
    relations = _relate(graphs) if free else None
    strides = tuple(contiguous_strides(a.shape) for a in graph.avals)
    constants = [whole(x, "export").contiguous() for x in captured.constants]
    file = "_".join(["model", *(f"{name}_1" for name in sorted(ones))]) + ".pt2"
    with workspace() as folder:
        path = folder / file
        request = CompileRequest(graph, strides, relations=relations)
        try:
            guards = compile_package(request, path, folder / "files", constants)
        except CompileError as error:
            if not isinstance(error.__cause__, UnsupportedLoopError):
                raise
            fix = "Fix the sizes in the loop, unroll it in Python, or leave out the operation."
            raise ExportError(message("export", "loops that native code can run", str(error.__cause__), fix)) from error
        content = path.read_bytes()
    program = _loaded(content, file, graph)
    leaves = tree.leaves((specs, named_specs))
    examples = [_example(leaf, a) for leaf, a in zip(leaves, graph.avals, strict=False)]
    problem = tried(graph, lambda tensors: program(tensors[: len(leaves)]), [*examples, *constants])
    if problem:
        fix = "A compiler, or gtrace, is at fault: report it. `gtrace bisect` finds the mechanism."
        raise ExportError(message("export", "code that computes what was recorded", f"other results: {problem}", fix))
    return Case(ones, file, content, program, guards, print_graph(graph)), graph.out_avals, captured.result


def _example(leaf: Any, a: Aval) -> torch.Tensor:
    """Return an input to compare a package for: the user's; for a type, numbers about 0, or integers 0 and 1."""
    if not isinstance(leaf, ShapeDtypeStruct):
        return whole(lift("export", leaf), "export").contiguous()
    drawn = torch.randn(a.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (drawn if a.dtype.is_floating_point or a.dtype.is_complex else drawn > 0).to(a.device, a.dtype)


def _relate(graphs: Sequence[Graph]) -> tuple[Relation, ...]:
    """Return how the integers of a program follow from its sizes, given recordings with several sizes.

    Raises:
        ExportError: an integer does not follow from the sizes.
    """
    skeletons, shapes = zip(*(shape_of(graph) for graph in graphs), strict=True)
    fix = "Write it without Python code that depends on the size, or export one file for each size."
    if any(other != skeletons[0] for other in skeletons):
        raise ExportError(message("export", "the same operations for every size", "others for some", fix))
    relations = fit([shape.sizes for shape in shapes], shapes[0].dims)
    if isinstance(relations, int):
        values = [shape.sizes[relations] for shape in shapes]
        raise ExportError(message("export", "integers that are simple functions of the open sizes", str(values), fix))
    for column in zip(*(shape.scalars for shape in shapes), strict=True):
        if len(set(column)) > 1:
            got = ", ".join(repr(x.value) for x in column)
            raise ExportError(
                message("export", "numbers that do not depend on open sizes", got, "Take a mean instead.")
            )
    return relations


def _check_constants(first: Sequence[Array], again: Sequence[Array]) -> None:
    """Raise for outside arrays that change with the open sizes, because the file holds one value of each."""
    for x, y in zip(first, again, strict=False):
        if x is not y:
            a, b = whole(x, "export"), whole(y, "export")
            same = x.aval is y.aval and bool(((a == b) | (a != a) & (b != b)).all())  # NaNs count as equal
            if not same:
                got = f"{x!r} for one size, {y!r} for another" if a.numel() == 1 else repr(x.aval)
                fix = "Compute them from the arguments with gtrace's operations."
                raise ExportError(message("export", "closed-over arrays that do not depend on open sizes", got, fix))


def _spec(leaf: Any, path: str) -> InputSpec:
    if isinstance(leaf, ShapeDtypeStruct):
        return InputSpec(path, leaf.shape, leaf.dtype.torch, str(leaf.device))
    a = lift("export", leaf).aval
    return InputSpec(path, a.shape, a.dtype, str(a.device))


def _sized(leaf: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(leaf, ShapeDtypeStruct):
        return leaf
    return ShapeDtypeStruct(tuple(sizes.get(n, n) for n in leaf.shape), leaf.dtype, leaf.device)


def load(path: str | os.PathLike[str]) -> Exported:
    """Return the function in a file that `Exported.save` wrote.

    Raises:
        ExportError: the file is invalid or damaged, was made for another torch or machine, or another user could have
            written it.

    >>> try:
    ...     gt.load("nothing.gtx")
    ... except FileNotFoundError as error:
    ...     print(error.filename)
    nothing.gtx
    """
    try:
        content = read_trusted(Path(path), links=True)
    except FileNotFoundError:
        raise
    except OSError as error:
        fix = "If you trust who made it, copy it to a folder of yours: it holds native code. See docs/security.md."
        raise ExportError(message("load", "a file that only you can have written", f"{path}: {error}", fix)) from error
    try:
        with Archive(content) as archive:
            manifest = ExportManifest.from_json(archive.read("manifest.json", MAX_TEXT))
            _check_toolchain(manifest.toolchain, _toolchain(manifest.inputs))
            device = torch.device(manifest.inputs[0].device) if manifest.inputs else torch.device("cpu")
            cases = []
            for case in manifest.cases:
                content = archive.read(case.file)
                if hashlib.sha256(content).hexdigest() != case.sha256:
                    raise ValueError(f"{case.file} is not what was written")
                program = _program(content, case.file, device)
                cases.append(Case(case.ones, case.file, content, program, case.guards, case.text))
    except (FileNotFoundError, UnsupportedTorchError):
        raise
    except _DAMAGED as error:
        fix = "Export the function again."
        raise ExportError(message("load", "a file that gt.export wrote", f"{path}: {error}", fix)) from error
    return Exported(
        manifest.name, manifest.inputs, manifest.out_avals, manifest.in_tree, manifest.out_tree, tuple(cases)
    )


def _toolchain(inputs: Sequence[InputSpec]) -> dict[str, str]:
    """Return what the code of a program for these inputs depends on."""
    device = next((x.device for x in inputs if x.device != "cpu"), "cpu")
    return toolchain() | {"gpu": architecture(torch.device(device))}


def _check_toolchain(made: Mapping[str, str], here: Mapping[str, str]) -> None:
    if made.keys() != here.keys():
        raise ValueError(f"expected a toolchain of {', '.join(here)}, got {', '.join(made)}")
    for field in ("machine", "gpu"):
        if made[field] != here[field]:
            raise ValueError(f"it was made for {field} {made[field]}, this is {here[field]}")
    if made["torch"].split(".")[:2] != here["torch"].split(".")[:2]:
        raise ValueError(f"it was made with torch {made['torch']}, this is {here['torch']}")
    missing = missing_instructions(made["isa"], here["isa"])
    if missing:
        raise ValueError(f"it needs a processor with {', '.join(missing)}")


def _loaded(content: bytes, file: str, graph: Graph) -> TensorFunction:
    return _program(content, file, graph.avals[0].device if graph.avals else torch.device("cpu"))


def _program(content: bytes, file: str, device: torch.device) -> TensorFunction:
    """Return the program in a package."""
    with workspace() as folder:
        path = folder / file
        with Archive(content) as archive:  # written anew, so that torch reads the names that were checked
            write_archive(path, ((name, archive.read(name)) for name in archive.sizes), compressed=False)
        check_library(path)
        return load_artifact(path, device, "cache").run


# -- pytrees as JSON, with leaves as numbers


def _numbered(structure: Any) -> tuple[Any, list[str]]:
    leaves, treedef = tree.flatten(structure)
    paths = [("args", "kwargs")[int(path[1])] + path[3:] for path in tree.paths(structure)]
    return treedef.unflatten(range(len(leaves))), paths


def _encode(value: Any, op: str) -> Any:
    """Return the JSON form of a pytree of numbers.

    Raises:
        ExportError: it has a container that a file cannot name.
    """
    if value is None or type(value) is int:
        return value
    if type(value) is dict and all(isinstance(k, str) for k in value):
        return {"dict": {k: _encode(v, op) for k, v in sorted(value.items())}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(v, op) for v in value]}
    fix = "Use dicts with string keys, lists and tuples."
    raise ExportError(message(op, "pytrees of dicts, lists and tuples", type(value).__name__, fix))


def _decode(data: Any, values: Sequence[Any]) -> Any:
    if data is None:
        return None
    if isinstance(data, int):
        return values[data]
    ((kind, inner),) = data.items()
    if kind == "dict":
        return {k: _decode(v, values) for k, v in inner.items()}
    items = [_decode(v, values) for v in inner]
    return items if kind == "list" else tuple(items)
