"""The private names of torch: all there in the supported releases; one that has moved costs speed, never a result."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import warnings
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.artifact import compile_artifact, load
from gtrace.core.backends.inductor import failures
from gtrace.core.backends.inductor.driver import compile_request
from gtrace.core.backends.inductor.pointwise import POINTWISE
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.torch_internals import INTERNALS, SUPPORTED, Internal, known
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.text import parse_graph
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.worker.client import worker
from gtrace.testing import assert_close

pytestmark = pytest.mark.inductor

ROOT = Path(__file__).parents[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch in torch
@pytest.mark.parametrize("internal", INTERNALS, ids=str)
def test_this_torch_has_the_name(internal):
    assert internal.get() is not None


def test_the_releases_are_the_same_everywhere():
    low = SUPPORTED[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={low[0]}.{low[1]}" in project["dependencies"], "later ones are taken too"
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert f"| torch | {low[0]}.{low[1]} or later |" in page and internals.supported() in page
    rows = (ROOT / "docs" / "support.md").read_text()
    assert all(re.search(rf"^\| {a}\.{b}\.", rows, re.MULTILINE) for a, b in (SUPPORTED[0], SUPPORTED[-1]))
    assert known(torch.__version__) and not known("2.10.1") and not known("3.0.0a0+cu130")


LENGTH = itertools.count(3)


def hot():
    """Run a new program often enough to be compiled; returns its entry, what it gives, and what it should."""
    x = gt.eval(gt.linspace(-1, 1, 61))
    length, before = next(LENGTH), set(engine.programs)
    for _ in range(5):
        y = x
        for _ in range(length):
            y = gt.sin(y)
        got = np.asarray(y + gt.cosh(x))
    (entry,) = [e for key, e in engine.programs.items() if key not in before]
    expected = xs = np.linspace(-1, 1, 61)
    for _ in range(length):
        expected = np.sin(expected)
    return entry, got, expected + np.cosh(xs)


MOVED = Internal("torch._inductor.compile_fx", "moved")
WORDS = r"gtrace does not know this torch: \S+ has no torch._inductor.compile_fx.moved; tried were 2.11 to 2.15"


def without(monkeypatch, name):
    """Let a name be missing, as in an unknown later release."""
    internal = getattr(internals, name)
    gone = Internal("torch", f"gone_{name}")
    for module in [m for n, m in sys.modules.items() if n.startswith("gtrace.")]:
        for key, value in list(vars(module).items()):
            if value is internal:
                monkeypatch.setattr(module, key, gone)
    monkeypatch.setattr(torch, "__version__", "2.99.0")


def everyday(x):
    """Operations, transforms, an optimizer, random numbers, and modes of torch around a call."""
    optimizer = gt.optim.adamw(1e-2)
    update = optimizer.update(x, optimizer.init(x), x)[0]
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        product = np.asarray(x @ x.T)
    return [
        product, gt.grad(lambda a: (gt.tanh(a) ** 2).sum())(x), gt.vmap(gt.softmax)(x), gt.cumsum(x, 0),
        gt.random.bits(gt.random.key(0), (4,)), gt.optim.apply_updates(x, update),
    ]  # fmt: skip


def of_torch(x):
    return torch.nn.functional.gelu(x) + torch.logcumsumexp(x, 0) + torch.nn.functional.pad(x, (1, -1))


NAMES = [name for name, value in vars(internals).items() if isinstance(value, Internal)]
NEEDED_BY_TORCH_FUNCTIONS = frozenset(
    """
    OVERLOAD DISPATCH_MODE SET_CUDNN_ENABLED SET_MKLDNN_ENABLED MAKE_WRAPPER WITHOUT_FUNCTIONS HAS_KERNEL
    """.split()
)
"""Without them functions of torch cannot be traced, and say so. All else goes on."""


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs_on_and_is_right_without_a_name(monkeypatch, name):
    x = gt.linspace(-1, 1, 64).reshape(8, 8)
    expected, of_tensors = [np.asarray(y) for y in everyday(x)], of_torch(x.to_torch())
    without(monkeypatch, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for a, b in zip(everyday(x + 0), expected, strict=True):
                np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)
            try:
                np.testing.assert_allclose(gt.lift(lambda x: of_torch(x))(x), of_tensors, rtol=1e-5, atol=1e-6)
            except gt.UnsupportedTorchError as error:
                assert name in NEEDED_BY_TORCH_FUNCTIONS and f"2.99.0 has no torch.gone_{name}" in str(error)
    assert torch.backends.mkldnn.enabled, "torch's own switches are as they were"
    said = [str(w.message) for w in caught if issubclass(w.category, gt.UnsupportedTorchWarning)]
    features = [one for one in vars(internals).values() if isinstance(one, internals.Feature) and name in one.names]
    assert len(said) == len(set(said)) <= max(len(features), 1) and all(f"gone_{name}" in text for text in said)


COMPILING = [
    name for name in NAMES
    if getattr(internals, name).module.startswith(("torch._", "torch.fx", "torch.utils"))
    and not any(name in feature.names for feature in vars(internals).values() if isinstance(feature, internals.Feature))
]  # fmt: skip
"""Names that compiling may need, and that belong to no `Feature`; those are tested all at once further down."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILING)
def test_a_program_that_cannot_compile_without_a_name_is_interpreted(monkeypatch, name):
    def build(self, *args):
        raise OSError("no C++ compiler: what Inductor writes is not built here")

    monkeypatch.setattr(internals.CPP_BUILDER.get(), "build", build)
    without(monkeypatch, name)
    with gt.config(hot_threshold=2, native=False, background=False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entry, got, expected = hot()
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    (warning,) = caught
    missing = f"gone_{name}" in str(warning.message)
    assert missing or "no C++ compiler" in str(warning.message)
    assert not missing or entry.tier == "interpreted", "nothing is kept that blames the program"


@pytest.mark.parametrize("name", ["MAKE_FX", "FAKE_TENSOR_MODE", "COMPILE_FX", "TRACING"])
def test_a_moved_name_is_named_once_and_everything_is_interpreted(monkeypatch, name):
    monkeypatch.setattr(internals, name, MOVED)
    with gt.config(hot_threshold=2), pytest.warns(gt.CompileWarning) as caught:
        made = [hot(), hot()]
        jitted = gt.jit(lambda x: gt.sinh(x) * 3 + x)(gt.ones(3))
    (warning,) = caught
    assert re.match(WORDS, str(warning.message)) and str(warning.message).endswith("Everything is interpreted.")
    assert warning.filename == __file__
    assert [(e.tier, bool(re.match(WORDS, e.forms.reason))) for e, _, _ in made] == [("interpreted", True)] * 2
    for _, got, expected in made:
        assert_close(got, expected, check_dtype=False)
    assert_close(jitted, np.sinh(np.ones(3)) * 3 + 1, check_dtype=False)


FEATURES = {name: f for name, f in vars(internals).items() if isinstance(f, internals.Feature)}


@pytest.mark.parametrize(("feature", "name"), [(f, name) for f in FEATURES for name in FEATURES[f].names])
def test_a_feature_without_one_of_its_names_is_off_with_one_warning(monkeypatch, feature, name):
    gone = Internal("torch", f"gone_{feature}_{name}")
    monkeypatch.setattr(internals, name, gone)
    with pytest.warns(gt.UnsupportedTorchWarning) as caught:
        assert not FEATURES[feature].available() and not FEATURES[feature].available()
    (warning,) = caught
    assert f"has no {gone}; " in str(warning.message) and str(warning.message).endswith(FEATURES[feature].without)


def forget(monkeypatch):
    """Let every name that some feature needs be missing."""
    for feature in FEATURES.values():
        # these are asked for once in a process
        for name in () if feature is internals.VECTOR_INSTRUCTIONS else feature.names:
            monkeypatch.setattr(internals, name, Internal("torch", f"gone.{name}"))


def matmul_and_bits(x, key):
    return gt.tanh(x @ x.T).sum(0), gt.random.bits(key, (8,)), gt.nn.max_pool2d(x.reshape(1, 1, 8, 8), 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gtrace.errors.UnsupportedTorchWarning")
@pytest.mark.filterwarnings("ignore:.*no C interface")
def test_programs_compile_without_any_feature(monkeypatch):
    """Patches of Inductor's code and kernels of our own are off; what is left compiles, and is right."""
    x, key = gt.linspace(-1, 1, 64).reshape(8, 8), gt.random.key(0)
    graph = gt.make_graph(matmul_and_bits)(x, key)
    inputs = [x.to_torch(), key.to_torch()] if len(graph.inputs) == 2 else [x.to_torch()]
    expected = interpreter(graph)(inputs)
    for op in POINTWISE:  # as in a process that has compiled nothing yet
        monkeypatch.delitem(internals.LOWERINGS.get(), op, raising=False)
    forget(monkeypatch)
    request = CompileRequest(graph, tuple(contiguous_strides(a.shape) for a in graph.avals))
    for a, b in zip(compile_request(request).executable.run(inputs), expected, strict=True):
        assert_close(a, b)
    open_sizes = attrs.evolve(REQUEST, relations=())
    with pytest.raises(gt.CompileError, match="Each size is compiled by itself"):
        compile_request(open_sizes)


def test_updates_and_modes_go_on_without_their_names(monkeypatch):
    def step(p, g):
        optimizer = gt.optim.adam(1e-2)
        return gt.optim.apply_updates(p, optimizer.update(g, optimizer.init(p), p)[0])

    p, g = gt.linspace(-1, 1, 50), gt.linspace(1, 2, 50)
    expected = np.asarray(step(p, g))
    forget(monkeypatch)
    with pytest.warns(gt.UnsupportedTorchWarning):
        with torch.device("cpu"):
            got = np.asarray(step(p + 0, g))
    assert_close(got, expected)


def test_an_export_says_so(monkeypatch):
    monkeypatch.setattr(internals, "COMPILE_FX", MOVED)
    with pytest.raises(gt.UnsupportedTorchError, match=WORDS):
        gt.export(lambda x: x * 2, gt.ShapeDtypeStruct((3,), "float32"))


REQUEST = CompileRequest(
    parse_graph("graph(%0: f32[8]) {\n  %1: f32[8] = sin(%0)\n  %2: f32[8] = square(%1)\n  return %2\n}"), ((1,),)
)


def test_an_unknown_release_with_other_interfaces_is_not_the_programs_fault(monkeypatch):
    monkeypatch.setattr(internals, "COMPILE_FX", Internal("builtins", "len"))  # which takes one argument
    with pytest.raises(gt.CompileError, match="TypeError") as caught:
        compile_request(REQUEST)
    assert type(caught.value) is gt.CompileError, "in a known release it is an error like any other"
    monkeypatch.setattr(failures, "known", lambda version: False)
    with pytest.raises(gt.UnsupportedTorchError, match="raises TypeError"):
        compile_request(REQUEST)


@pytest.mark.slow
def test_code_that_this_torch_cannot_load_is_kept(monkeypatch, tmp_path):
    """Another torch may be able to: the artifact stays, and nothing is said of the program."""
    with gt.config(background=True, cache_dir=str(tmp_path), hot_threshold=2):
        entry, _, _ = hot()
        assert worker.wait(400) and entry.forms.origin == "worker"
        kept = artifacts.store.all()
        monkeypatch.setattr(internals, "CPU_RUNNER", Internal("torch._C._aoti", "Gone"))
        again = type(engine)()
        route = again.prepare(entry.graph, entry.key.strides)
        with pytest.warns(gt.CompileWarning, match=r"has no torch\._C\._aoti\.Gone"):
            for _ in range(3):
                again.call(route, [torch.linspace(-1, 1, 61)])
        (copy,) = again.programs.values()
        assert copy.tier == "interpreted" and "Gone" in copy.forms.reason
        assert artifacts.store.all() == kept


SCRIPT = """
    import json, os, sys, warnings
    import torch
    import gtrace as gt
    from gtrace.core.runtime.cache.artifact_cache import artifacts
    from gtrace.core.runtime.worker.client import worker

    x = gt.eval(gt.linspace(-1, 1, 61))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in (1.25, 1.25, 1.5):
            for _ in range(4):
                total = float((gt.sinh(x) * scale + gt.cosh(x)).sum())
            assert worker.wait(400)
    print(json.dumps({
        "total": total, "warnings": [str(w.message) for w in caught], "tiers": [p.tier for p in gt.stats()],
        "kept": len(artifacts.store.all()) if artifacts.store else 0,
    }))
"""

REMOVE = """
import sys
import torch
for module, name in {names}:
    if module in sys.modules:
        delattr(sys.modules[module], name)
    else:
        sys.modules[module] = None  # importing it raises ModuleNotFoundError
"""


# torch cannot run an operation without the others
UNUSED_BY_TORCH = [x for x in INTERNALS if x.module.startswith(("torch._inductor", "torch._dynamo", "torch._C"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("background", "removed"), [("0", UNUSED_BY_TORCH), ("1", [internals.COMPILE_FX])], ids=["all", "one"]
)
def test_a_process_without_the_names_imports_and_interprets(tmp_path, background, removed):
    """The process and its worker: Python runs `sitecustomize` first in each."""
    names = [(internal.module, internal.name) for internal in removed]
    (tmp_path / "sitecustomize.py").write_text(REMOVE.format(names=names))
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {"GT_CACHE_DIR": str(tmp_path / "programs"), "GT_BACKGROUND": background, "GT_HOTPATH_THRESHOLD": "2"}
    env |= {
        "GT_COMPILE_SHARE": "1",
        "GT_NATIVE": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    x = np.linspace(-1, 1, 61)
    assert abs(said["total"] - (np.sinh(x) * 1.5 + np.cosh(x)).sum()) < 1e-3
    (warning,) = said["warnings"]
    assert "gtrace does not know this torch" in warning and " has no torch." in warning
    assert (said["kept"], set(said["tiers"])) == (0, {"interpreted"})


# -- what the compiler inlines

SHARED = """
graph(%0: f64[1,3], %1: f64[3], %2: f64[2,3]) {
  %3: f64[2,3] = fma(%1, %2, %1)
  %4: f64[2,3] = fma(%0, 0.0:f64[]~, %3)
  %5: f64[1,1] = logsumexp(%4) {axes=(0, 1), keepdims=True}
  %6: f64[1,1] = gelu(%5) {approximate=True}
  %7: f64[1,1] = erf(%6)
  %8: f64[2,3] = sub(%4, %3)
  %9: f64[2,3] = fma(%2, %1, %8)
  %10: f64[3] = cumsum(%1) {axis=0}
  %11: f64[2,3] = fma(%4, %4, %10)
  %12: f64[2,3] = fma(%11, %3, %2)
  %13: f64[2,3] = flip(%12) {axes=(0, 1)}
  %14: f64[2,3] = fma(%13, 3.0:f64[]~, %8)
  %15: f64[1,1] = asinh(%5)
  %16: f64[2,3] = fma(%5, %11, %3)
  return %7, %9, %14, %15, %16
}
"""
"""Inductor inlines each fma, of twenty operations, into its uses, and those into theirs."""


@pytest.mark.slow
def test_what_the_compiler_inlines_again_and_again_is_traced_once(monkeypatch, tmp_path):
    graph = parse_graph(SHARED.strip())
    block, lines = internals.LOOP_BODY_BLOCK.get(), []
    generate = block.__call__
    monkeypatch.setattr(block, "__call__", lambda self: (lines.append(len(self.graph.nodes)), generate(self))[1])
    request = CompileRequest(graph, tuple(contiguous_strides(a.shape) for a in graph.avals))
    path, _ = compile_artifact(request, tmp_path)
    assert sum(lines) < 20_000, "143,744 lines of Inductor's, several times each, of which most are the same"
    torch.manual_seed(0)
    inputs = [torch.randn(a.shape, dtype=a.dtype) for a in graph.avals]
    for a, b in zip(load(path, inputs[0].device, "process").run(inputs), interpreter(graph)(inputs), strict=True):
        assert_close(a, b)
