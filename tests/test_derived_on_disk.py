"""What is derived from torch is kept on disk; and what a process imports for its first operations."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import launch
import pytest

import gtrace as gt
from gtrace.core.base.json_fields import with_checksum
from gtrace.core.runtime.cache import store as stores
from gtrace.core.runtime.cache.folder import DERIVED
from gtrace.core.runtime.cache.store import Store

PROGRAM = """
    import sys
    import numpy, torch, gtrace as gt
    import torch.nn.functional as F

    x = gt.array(numpy.linspace(-1.0, 2.0, 16).reshape(4, 4))
    eye = gt.eye(4, dtype=gt.float64)
    image, kernel = gt.ones((1, 1, 5, 5)), gt.ones((1, 1, 3, 3))

    def loss(x):
        u, s, v = gt.linalg.svd(x)
        factor = gt.linalg.cholesky(x @ x.T + 5 * eye)
        margin = F.multi_margin_loss(x, gt.arange(4))  # whose rule is torch's to say
        return margin + F.celu(u @ v).sum() + factor.sum() + torch.linalg.inv(s @ x + x)[0, 0]

    total = [gt.linalg.svd(x)[1], F.conv2d(image, kernel), gt.grad(loss)(x + eye),
             gt.vmap(gt.grad(lambda y: F.hardswish(y).sum()))(x), *torch.topk(x, 2), gt.jvp(F.celu, (x,), (x,))[1]]
    print(*[f"{float(abs(y).sum()):.9f}" for y in total])
    print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
"""


def run(code, folder, process=launch.from_scratch):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {"GT_CACHE_DIR": str(folder), "GT_AUTO_COMPILE": "0", "PYTHONPATH": str(Path(gt.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with process():
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.slow
def test_a_second_process_derives_nothing(tmp_path):
    (first, _), _ = run(PROGRAM, tmp_path, contextlib.nullcontext)
    (second, tracer), _ = run(PROGRAM, tmp_path)
    assert tracer == "False False"
    assert second == first
    # a damaged text is derived again
    kept = tmp_path / DERIVED
    texts = kept.read_text()
    changed = json.loads(texts.replace("graph(", "grahp("))
    del changed["checksum"]
    kept.write_text(json.dumps(with_checksum(changed)))
    (third, _), errors = run(PROGRAM, tmp_path, contextlib.nullcontext)
    assert (third, errors) == (first, "")
    assert json.loads(kept.read_text()) == json.loads(texts)


@pytest.mark.slow
def test_a_result_inside_another_is_the_same_in_a_second_process(tmp_path):
    code = """
        import torch, gtrace as gt
        count, edges = torch.histogramdd(gt.array([[0.0, 1.0], [1.0, 0.0], [2.0, 0.5]]), [3, 2])
        print(count.tolist(), [e.tolist() for e in edges])
    """
    first, second = (run(code, tmp_path, contextlib.nullcontext) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("text", ["{", "[]", '{"texts": {"a": 1}}', "{}"])
def test_a_damaged_file_is_removed_with_a_warning(tmp_path, text):
    store = Store(tmp_path, 2**20)
    store.extend(DERIVED, {"a": "text"})
    assert Store(tmp_path, 2**20).table(DERIVED) == {"a": "text"}
    (tmp_path / DERIVED).write_text(text)
    with pytest.warns(gt.CacheWarning, match="derived.json cannot be used"):
        assert store.table(DERIVED) == {}
    assert not (tmp_path / DERIVED).exists() and store.all() == []


def test_the_oldest_texts_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "MAX_TABLE", 2)
    store = Store(tmp_path, 2**20)
    for name in "abc":
        store.extend(DERIVED, {name: name})
    assert store.table(DERIVED) == {"b": "b", "c": "c"}


@pytest.mark.slow
def test_without_a_store_everything_is_derived(tmp_path):
    code = PROGRAM + "    gt.config.update(cache_size=0)\n"
    code = code.replace("import sys\n", "import sys, gtrace\n    gtrace.config.update(cache_size=0)\n", 1)
    (_, tracer), _ = run(code, tmp_path)
    assert tracer == "True True" and not list(tmp_path.iterdir())


WALK = """
    import sys, warnings
    import torch, gtrace as gt

    class Refuse:
        def find_spec(self, name, path, target=None):
            if name in ("sympy", "torch._dynamo"):
                raise ImportError(f"{op} imports {name}")

    sys.meta_path.insert(0, Refuse())
    from gtrace.core.ir.op import REGISTRY
    for op, record in sorted(REGISTRY.items()):
        if record.cases.samples is not None and op != "aten":
            for sample in record.cases.samples():
                gt.eval(record.cases.user(*sample.args, **sample.kwargs))
    print(len(REGISTRY))
"""


@pytest.mark.slow
def test_no_operation_imports_torchs_tracer(tmp_path):
    (count,), _ = run(WALK, tmp_path)
    assert int(count) > 150


@pytest.mark.parametrize(
    ("op", "params", "shapes"),
    [
        ("index", ((0,),), ["f32[3,4]", "i64[2]", "i64[3]"]),
        ("gather", (1,), ["f32[3,4]", "i64[4,4]"]),
        ("scatter_add", (0,), ["f32[3,4]", "i64[2,4]", "f32[1,4]"]),
        ("index_put", ((0,), (False,), False), ["f32[3,4]", "f64[2,4]", "i64[2]"]),
        ("index_put", ((0,), (False,), False), ["f32[3,4]", "f32[3,4]", "i64[2]"]),
        ("einsum", ("ab,bc->ac",), ["f32[2,3]", "f32[4,5]"]),
        ("einsum", ("ab,bc->ac",), ["f32[2,3,1]", "f32[3,5]"]),
    ],
)
def test_shape_rules_refuse_what_torch_would(op, params, shapes):
    named = ", ".join(f"{k}={v!r}" for k, v in zip(gt.ir.ops[op].params, params, strict=True))
    inputs = ", ".join(f"%{k}: {shape}" for k, shape in enumerate(shapes))
    operands = ", ".join(f"%{k}" for k in range(len(shapes)))
    text = f"graph({inputs}) {{\n  %9: f32[1] = {op}({operands}) {{{named}}}\n  return %9\n}}"
    with pytest.raises((gt.GraphError, gt.ShapeError), match=rf"\[{op}\] expected"):
        gt.ir.parse_graph(text)


@pytest.mark.slow
def test_the_types_of_most_calls_are_had_without_torch_s_tracer(tmp_path):
    code = """
        import sys
        import torch, gtrace as gt
        import torch.nn.functional as F

        x = gt.array([[0.5, -1.0, 2.0, 0.1], [0.2, 0.3, -0.4, 1.0]])

        def loss(x):
            best = torch.topk(x, 2)[0].sum() + torch.sort(x, 1)[0][0, 1] + torch.logsumexp(x, 1).sum()
            wide = F.interpolate(x[None], size=7).sum() + F.pad(x[None], (1, 1), mode="reflect").prod(1).sum()
            kept = F.smooth_l1_loss(x, x * 2) + F.logsigmoid(x).sum() + F.glu(x).sum() + x[:, [0, 2]].sum()
            return best + wide + kept + (2.0 ** x).sum() + F.softshrink(x).sum() + F.normalize(x).amax(1).sum()

        print(f"{float(abs(gt.grad(loss)(x)).sum()):.6f}")
        print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
    """
    (value, tracer), _ = run(code, tmp_path)
    assert (float(value) > 0, tracer) == (True, "False False")
