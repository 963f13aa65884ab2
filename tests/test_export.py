"""Exported functions: the same results from a file, in another process and in C++, and errors for what does not fit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import damage
import launch
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.base import json_fields
from gtrace.saving import export as exports
from gtrace.testing import assert_close

DEPLOY = Path(__file__).resolve().parent.parent / "examples" / "deploy"
sys.path.insert(0, str(DEPLOY))
from export_model import COLUMNS, classifier, recurrent_filter  # noqa: E402

TASKS = Path("/proc/self/task")
WEIGHTS = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def model(params, x):
    head = gt.array(WEIGHTS)
    h = gt.tanh(x @ params["w"] + params["b"])
    out = {"rows": h.sum(1), "same": x, "both": [h, h], "view": x.T, "head": (x @ head).mean(), "none": None}
    return {**out, "numbered": numbered(x)}


@gt.lift
def numbered(x):
    """An operator of torch whose constant is an open size."""
    return torch.arange(x.shape[0]) * x[:, 0]


PARAMS = {"w": gt.eval(gt.array(WEIGHTS) * 2), "b": gt.eval(gt.linspace(0, 1, 4))}


def rows(n):
    return gt.eval(gt.array(np.random.default_rng(n).normal(size=(n, 8)).astype(np.float32)))


@pytest.fixture(scope="module")
def exported():
    return gt.export(model, PARAMS, gt.ShapeDtypeStruct(("batch", 8), "float32"))


@pytest.fixture(scope="module")
def file(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model.gtx"
    exported.save(path)
    return path


@pytest.fixture(scope="module")
def loaded(file):
    return gt.load(file)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5, 23, 1000])
def test_results_are_those_of_the_function_at_every_size(exported, loaded, n):
    x = rows(n)
    expected = model(PARAMS, x)
    for function in (exported, loaded):
        got = function(PARAMS, x)
        assert gt.tree.structure(got) == gt.tree.structure(expected)
        for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


DERIVATIVES = {
    "grad": lambda f, x: gt.grad(f)(x),
    "jvp": lambda f, x: gt.jvp(f, (x,), (x,)),
    "linearize": lambda f, x: gt.linearize(f, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_a_call_in_a_derivative_raises(loaded, derivative):
    def loss(x):
        return sum(leaf.sum() for leaf in gt.tree.leaves(loaded(PARAMS, x * 1)) if leaf.dtype == gt.float32)

    with pytest.raises(gt.ArrayConcretizationError, match=r"not being differentiated.*Export the gradient"):
        DERIVATIVES[derivative](loss, rows(6))
    assert gt.grad(lambda x: loss(gt.stop_gradient(x)) * x.sum())(rows(6)).shape == rows(6).shape


@pytest.mark.slow
def test_results_share_no_memory_with_inputs_or_each_other(loaded):
    x = rows(6)
    # views of the arrays' own memory
    views = [np.asarray(leaf) for leaf in (*gt.tree.leaves(loaded(PARAMS, x)), x)]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(views) for b in views[:k])


@pytest.mark.slow
def test_loading_imports_no_compiler(file):
    code = f"""
        import sys, numpy as np, gtrace as gt
        f = gt.load({str(file)!r})
        out = f({{"w": gt.ones((8, 4)), "b": gt.zeros(4)}}, gt.ones((3, 8)))
        print(np.asarray(out["rows"]).round(3))
        heavy = [m for m in ("torch._inductor.compile_fx", "torch._dynamo", "sympy") if m in sys.modules]
        assert not heavy, heavy
    """
    with launch.from_scratch():
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[4. 4. 4.]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((PARAMS, np.ones((3, 9), np.float32)), gt.ShapeError, r"float32\[batch,8\] at args\[1\], got f32\[3,9\]"),
        ((PARAMS, np.ones((0, 8), np.float32)), gt.ShapeError, "not 0"),
        ((PARAMS, np.ones((3, 8))), gt.DtypeError, r"\.astype\('float32'\)"),
        ((PARAMS,), gt.ArgumentError, "arguments of structure"),
        (({**PARAMS, "c": 1.0}, np.ones((3, 8), np.float32)), gt.ArgumentError, "arguments of structure"),
    ],
)
def test_arguments_that_do_not_fit(loaded, args, error, words):
    with pytest.raises(error, match=words):
        loaded(*args)


@pytest.mark.slow
def test_a_saved_function_is_closed_to_others_whatever_the_umask(exported, tmp_path):
    before = os.umask(0)
    try:
        exported.save(tmp_path / "open.gtx")
    finally:
        os.umask(before)
    assert (tmp_path / "open.gtx").stat().st_mode & 0o022 == 0
    gt.load(tmp_path / "open.gtx")


def test_what_cannot_be_exported():
    spec = gt.ShapeDtypeStruct(("n", 3), "float32")
    with pytest.raises(gt.ExportError, match=r"while_loop.*no open sizes.*Fix the sizes"):
        gt.export(lambda x: gt.while_loop(lambda s: s.sum() < 9, lambda s: s + 1, x), spec)
    with pytest.raises(gt.ExportError, match=r"scan.*2000 steps of 2 operations unroll to none or more"):
        gt.export(lambda x: gt.scan(lambda c, _: (gt.sin(c) * 2, None), x, None, length=2000), spec)
    with pytest.raises(gt.ExportError, match="numbers that do not depend on open sizes"):
        gt.export(lambda x: x * x.shape[0] + 1, spec)
    with pytest.raises(gt.ExportError, match=r"arrays that do not depend on open sizes, got .*23"):
        gt.export(lambda x: x * gt.array(float(x.shape[0])), spec)
    with pytest.raises(gt.ExportError, match="same operations for every size"):
        gt.export(lambda x: x.sum() if x.shape[0] > 30 else gt.sin(x) * 2, spec)
    with pytest.raises(gt.ExportError, match="at most 2"):
        gt.export(lambda x: x, gt.ShapeDtypeStruct(("a", "b", "c"), "float32"))
    with pytest.raises(gt.ConcretizationError):
        gt.export(lambda x: float(x.sum()), spec)
    with pytest.raises(gt.ArgumentError, match=r"gt\.export"):
        gt.eval_shape(lambda x: x, spec)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_of_any_compression_is_refused(method, tmp_path):
    path, text = tmp_path / "damaged.gtx", json.dumps({"text": list(range(500))})
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("manifest.json", text)
    whole = path.read_bytes()
    for at in range(30 + len("manifest.json"), len(whole) // 2, 7):  # the header of the file comes before
        path.write_bytes(whole[:at] + b"\xff" * 9 + whole[at + 9 :])
        with pytest.raises(gt.ExportError, match=r"damaged\.gtx"):
            gt.load(path)


@pytest.mark.slow
def test_files_that_cannot_be_loaded(file, tmp_path):
    with pytest.raises(FileNotFoundError):
        gt.load(tmp_path / "nothing")
    text = tmp_path / "text"
    text.write_text("not an archive")
    with pytest.raises(gt.ExportError, match="Export the function again"):
        gt.load(text)

    def changed(name, change):
        path = tmp_path / "changed.gtx"
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
            for entry in old.namelist():
                content = old.read(entry)
                new.writestr(entry, change(content) if entry == name else content)
        return path

    with pytest.raises(gt.ExportError, match="not what was written"):
        gt.load(changed("model.pt2", lambda content: content[:-10] + b"0123456789"))

    def field(name, value, checksum=True):
        def change(content):
            told = {**json.loads(content), name: value}
            del told["checksum"]
            return json.dumps(json_fields.with_checksum(told) if checksum else told).encode()

        return changed("manifest.json", change)

    def other(field_, value):
        with zipfile.ZipFile(file) as archive:
            return field("toolchain", {**json.loads(archive.read("manifest.json"))["toolchain"], field_: value})

    for name, value, words in [
        ("format", 1, "expected format 3, got 1"),
        ("inputs", [["x", [3], "f99", "cpu"]], "'inputs' to be a list of inputs"),
        ("inputs", [["x", [3], "f32", "abacus"]], "'inputs' to be"), ("cases", [{}], "a field 'ones'"),
        ("out_avals", ["f32"], "'out_avals' to be a list of types"), ("toolchain", {}, "a toolchain of gtrace, torch"),
        ("in_tree", {"list": [0, 0]}, "a tree of the inputs"), ("out_tree", {"set": []}, "a tree of results"),
        ("cases", [], "at least one package"), ("cases", [{"ones": [], "file": "../a.pt2"}], "the name of a package"),
    ]:  # fmt: skip
        with pytest.raises(gt.ExportError, match=words):
            gt.load(field(name, value))
    with pytest.raises(gt.ExportError, match="its checksum is not that of its content"):
        gt.load(field("name", "another", checksum=False))
    for name, value, words in [
        ("torch", "1.13.0", "torch 1.13.0"), ("isa", "AVX1024", "AVX1024"), ("machine", "Plan9 pdp11", "pdp11"),
    ]:  # fmt: skip
        with pytest.raises(gt.ExportError, match=words):
            gt.load(other(name, value))


@pytest.mark.slow
def test_no_damage_gives_an_error_of_another_library(file, tmp_path):
    """Any byte of the file, and any field of its manifest: an ExportError, or the results that were exported."""
    rng, path = random.Random(0), tmp_path / "damaged.gtx"
    whole, x = file.read_bytes(), rows(5)
    expected = np.asarray(gt.load(file)(PARAMS, x)["rows"])
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    refused = 0
    for k in range(120):
        if k % 4 == 0:
            # the directory of the archive is at its end
            path.write_bytes(whole[:-500] + damage.of_bytes(rng, whole[-500:]))
        elif k % 40 == 1:
            path.write_bytes(damage.of_bytes(rng, whole))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in entries.items():
                    manifest = name == "manifest.json"
                    archive.writestr(name, damage.of_json(rng, content, checksum=k % 2 == 0) if manifest else content)
        try:
            got = gt.load(path)(PARAMS, x)["rows"]
        except gt.errors.GtraceError:
            refused += 1
        else:
            np.testing.assert_array_equal(np.asarray(got), expected)
    assert refused > 80


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("g++")), reason="needs cmake and g++")
@pytest.mark.long
def test_the_package_runs_in_cpp(tmp_path):
    build = tmp_path / "build"
    configure = ["cmake", "-S", DEPLOY, "-B", build, f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"]
    for command in (configure, ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    x = np.arange(5 * COLUMNS, dtype=np.float32).reshape(5, COLUMNS) * np.float32(0.01)
    for exported in (classifier(), recurrent_filter()):
        exported.save_package(tmp_path / "model.pt2")
        done = subprocess.run(
            [build / "deploy", tmp_path / "model.pt2", "5", str(COLUMNS)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        got = np.array(done.stdout.split(), dtype=np.float32).reshape(5, -1)
        assert_close(got, exported(x), check_dtype=False)


WIDE = gt.eval(gt.linspace(0, 1, 50_000))
"""A constant: code of Inductor that computes it would start threads of its own."""


def loops_and_branches(x, weights, divisors):
    """A scan of the rows, forward and backward, with a loop and a branch in it; a while loop; a branch outside."""

    def step(state, row):
        count, level = state
        level = gt.cond(
            level.sum() > 1, lambda: gt.fori_loop(0, 3, lambda i, v: v * 0.5 + i, level), lambda: level + row
        )
        return (count + 1, level), (level[::-1], count)

    (count, level), (levels, counts) = gt.scan(step, (0, gt.zeros(3)), x)
    slope = gt.grad(
        lambda w: (gt.scan(lambda c, row: (gt.tanh(c * w + row), c), gt.zeros(3), x, reverse=True)[1] ** 2).sum()
    )
    found = gt.while_loop(lambda s: s[1] < 50, lambda s: (s[0] + 1, s[1] * 1.5 + 1), (0, abs(level.sum())))
    choice = gt.switch(count % 3, [lambda v: v, lambda v: v * 2, lambda v: v.sum() + 0 * v], x)
    quotients = gt.scan(lambda c, d: (c // d, c), 100, divisors)[1]
    wide = gt.fori_loop(0, 2, lambda i, v: gt.sin(v) + i, WIDE)
    out = {"scan": [count, level, levels, counts], "slope": slope(level), "while": found, "choice": choice}
    return {**out, "wide": wide, "quotients": quotients, "double": 2 * gt.cos(weights * x[:, 0])}


def sum_for_double(graph):
    """A pass that adds what `cos` returns to itself, where it would be doubled."""
    cosines = {node.out for node in graph.nodes if node.op.name == "cos"}
    nodes = []
    for node in graph.nodes:
        if node.op.name == "mul" and not cosines.isdisjoint(node.ins):
            a = node.instr.ins[0]
            node = gt.ir.Node(gt.ir.ops["add"].instr((), (a, a)), node.ins[:1] * 2, node.out)
        nodes.append(node)
    return gt.ir.Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


@pytest.fixture(scope="module")
def exported_loops():
    # one program for several tests: each takes seconds to compile
    with gt.ir.register_pass(sum_for_double):
        return gt.export(
            loops_and_branches, gt.ShapeDtypeStruct(("steps", 3), "float32"),
            gt.ShapeDtypeStruct(("steps",), "float32"), gt.ShapeDtypeStruct(("steps",), "int64"),
        )  # fmt: skip


def arguments(n):
    return gt.eval((rows(40)[:n, :3] * 1, gt.linspace(-1, 1, n), gt.array(np.resize([1, 2, 5], n))))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 40])
def test_loops_and_branches(exported_loops, n):
    given = arguments(n)
    got, expected = exported_loops(*given), loops_and_branches(*given)
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)
    assert not np.shares_memory(np.asarray(got["choice"]), np.asarray(given[0]))


@pytest.mark.slow
@pytest.mark.skipif(not TASKS.is_dir(), reason="the threads of the process are counted")
def test_exported_loops_use_threads(exported_loops):
    """A thread has OpenMP threads of its own, from its first parallel section on."""
    given, found = arguments(3), []

    def run(threads):
        torch.set_num_threads(threads)
        before = {task.name for task in TASKS.iterdir()}
        result = np.asarray(exported_loops(*given)["wide"])
        # others may end meanwhile, such as those of an earlier thread
        found.append((len({task.name for task in TASKS.iterdir()} - before), result))

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            one = threading.Thread(target=run, args=[threads])
            one.start()
            one.join()
    finally:
        torch.set_num_threads(before)
    (alone, expected), (together, got) = found
    assert alone == 0 and together >= 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
def test_sizes_of_one_name_are_equal(exported_loops):
    x, _, divisors = arguments(3)
    with pytest.raises(gt.ShapeError, match=r"float32\[steps\] at args\[1\].*steps=3"):
        exported_loops(x, gt.ones(1), divisors)


@pytest.mark.slow
def test_an_exported_loop_refuses_what_the_interpreter_does(exported_loops):
    x, weights, _ = arguments(4)
    got = exported_loops(x, weights, gt.array([1, 2, 5, 1]))["quotients"]
    np.testing.assert_array_equal(np.asarray(got), [100, 100, 50, 10])
    with pytest.raises(RuntimeError):
        exported_loops(x, weights, gt.array([1, 0, 5, 1]))


@pytest.mark.slow
def test_registered_passes_rewrite_what_is_exported(exported_loops):
    cosine = re.search(r"(%\d+):.* = cos\(", exported_loops.text)[1]
    assert f"add({cosine}, {cosine})" in exported_loops.text


@pytest.mark.long
def test_a_scan_with_open_sizes_in_its_body_is_unrolled():
    cell = gt.eval(gt.array(WEIGHTS[:4]))

    def network(x):
        return gt.scan(
            lambda h, row: (gt.tanh(h @ cell + row), h.sum()), gt.zeros((x.shape[0], 4)), gt.swapaxes(x, 0, 1)
        )

    exported = gt.export(network, gt.ShapeDtypeStruct(("batch", 6, 4), "float32"))
    for n in (1, 9):
        x = gt.eval(gt.sin(gt.arange(n * 24)).reshape(n, 6, 4).astype("float32"))
        for a, b in zip(exported(x), network(x), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [0.0, 1e-3])
def test_a_package_is_compared_when_it_is_made(monkeypatch, wrong):
    scale = gt.linspace(1, 2, 12)

    def compiled(request, path, folder, constants):
        path.write_bytes(b"code")
        monkeypatch.setattr(exports, "_program", lambda *_: run)

        def run(tensors):
            (x,) = tensors
            return [torch.log(x) * constants[0] + wrong]

        return ()

    monkeypatch.setattr(exports, "compile_package", compiled)
    for given in (np.linspace(1, 2, 12, dtype=np.float32), gt.ShapeDtypeStruct((12,), "float32")):
        if wrong:
            with pytest.raises(gt.ExportError, match=r"other results: result 0 of mul.*elements"):
                gt.export(lambda x: gt.log(x) * scale, given)
        else:
            assert gt.export(lambda x: gt.log(x) * scale, given)(gt.ones(12)).shape == (12,)
