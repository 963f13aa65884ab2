"""Mechanisms are switched off by name, and `gtrace bisect` finds the one that a wrong result comes from."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.commands.bisect import blamed
from gtrace.core.base import mechanisms

ROOT = Path(__file__).parent.parent
CONSTANTS = {name: one for name, one in vars(mechanisms).items() if isinstance(one, mechanisms.Mechanism)}


def run(code: str, **settings: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **settings})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_mechanism_can_be_switched_off_and_says_that_it_was_used():
    assert {name.lower() for name in CONSTANTS} == set(mechanisms.MECHANISMS)
    asked, said = set(), set()
    for path in (ROOT / "gtrace").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in CONSTANTS:
                {"on": asked, "used": said}.get(node.attr, set()).add(node.value.id)
            # a pass asks for its mechanism, and says that it was used
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Pass":
                passed = {x.attr for x in node.args if isinstance(x, ast.Attribute)}
                asked |= passed & CONSTANTS.keys()
                said |= passed & CONSTANTS.keys()
    assert asked == set(CONSTANTS)
    # what a program loads and what it may overwrite are seen elsewhere
    assert set(CONSTANTS) - said <= {"STORE", "ACCURATE_FUNCTIONS", "POOLING_KERNEL"}


def test_the_page_has_the_table():
    text = (ROOT / "docs" / "bisect.md").read_text(encoding="utf-8")
    table = ["| name | group | what it does |", "|---|---|---|"]
    table += [f"| `{one.name}` | {one.group} | {one.what} |" for one in mechanisms.MECHANISMS.values()]
    expected = "\n".join(table)
    held = text.partition("<!-- mechanisms -->\n")[2].partition("\n<!-- end of mechanisms -->")[0]
    assert held == expected, f"write this into docs/bisect.md:\n{expected}"


def test_unknown_names_are_refused_with_the_nearest_one():
    done = subprocess.run(
        [sys.executable, "-c", "import gtrace"],
        capture_output=True, text=True, env={**os.environ, "GT_DISABLE": "norm_fusoin"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "[GT_DISABLE] expected names of mechanisms, got 'norm_fusoin'. Did you mean norm_fusion?" in done.stderr


def test_what_is_off_cannot_change_later():
    with pytest.raises(gt.errors.ConfigError, match="Set GT_DISABLE before gtrace is imported"):
        gt.config.update(disable="cse")


PROGRAM = """
import gtrace as gt, gtrace.testing, torch
from gtrace.core.backends.toolchain import toolchain

def loss(p, x):
    x = gt.nn.layer_norm(x @ p, (16,))
    w = gt.softmax(x @ x.T, -1) @ x
    return (gt.tanh(w) ** 2).mean()

def torch_loss(p, x):
    x = torch.nn.functional.layer_norm(x @ p, (16,))
    w = torch.softmax(x @ x.T, -1) @ x
    return (torch.tanh(w) ** 2).mean()

x, p = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)), torch.eye(16)
optimizer = gt.optim.adam(0.1)
q, y, state = gt.array(p), gt.array(x), optimizer.init(gt.array(p))
p.requires_grad_()
peer = torch.optim.Adam([p], 0.1)
for k in range(4):
    grads = gt.grad(loss)(q, y)
    updates, state = optimizer.update(grads, state, q)
    q = gt.optim.apply_updates(q, updates)
    peer.zero_grad(); torch_loss(p, x).backward(); peer.step()
gt.testing.assert_close(q, p.detach(), steps=1000)
total, steps = gt.scan(lambda c, v: (c + v, c), gt.zeros(16), y)
gt.testing.assert_close(total, x.sum(0), scale=30.0)
print(toolchain()["off"].count(",") + 1 if toolchain()["off"] else 0)
"""


@pytest.mark.slow
def test_programs_are_right_with_everything_off_and_with_some():
    assert run(PROGRAM, GT_DISABLE="all", GT_COMPILE="1") == f"{len(CONSTANTS)}\n"
    assert run(PROGRAM, GT_DISABLE="cse, norm_fusion,fold", GT_MECHANISM_LOG=os.devnull) == "3\n"


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_halving_finds_exactly_what_makes_a_script_wrong(drawn):
    n, wanted = drawn
    assert blamed(range(n), lambda off: wanted <= set(off)) == sorted(wanted)


TRAINING = """
import attrs
import gtrace as gt
from gtrace.core.passes import driver
from gtrace.core.passes.norm_operators import LayerNorm

honest = LayerNorm.forward

def planted(self, make, given, *others):  # a rewrite that is wrong
    return honest(self, make, attrs.evolve(given, eps=given.eps + 100.0), *others)

LayerNorm.forward = planted
driver.computes = lambda *args, **kwargs: True  # the evaluation of what it replaces would refuse it
key = gt.random.key(0)
params = {"w": gt.random.normal(key, (64, 64)), "s": gt.ones(64), "b": gt.zeros(64)}
x = gt.random.normal(key, (32, 64))
optimizer = gt.optim.adam(1e-2)
state = optimizer.init(params)

def norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / gt.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

def mean_square(p):
    return (((norm(x @ p["w"]) * p["s"] + p["b"]) @ p["w"]) ** 2).mean()

for _ in range(3):
    loss, grads = gt.value_and_grad(mean_square)(params)
    updates, state = optimizer.update(grads, state, params)
    params = gt.optim.apply_updates(params, updates)
    last = float(loss)
print(f"loss {last:.6f}")
"""


@pytest.mark.slow
def test_bisect_finds_a_wrong_rewrite_in_a_training_run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    command = [sys.executable, "-m", "gtrace", "bisect", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("norm_fusion: ")
    assert "GT_DISABLE=norm_fusion" in done.stderr
    report = (tmp_path / "gtrace-bisect.md").read_text(encoding="utf-8")
    assert "- norm_fusion: " in report and "## Versions" in report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said", "status"),
    [
        ("raise SystemExit(3)", "fails with all mechanisms off, too (exit code 3", 2),
        ("import time; print(time.time_ns())", "two equal runs of script.py differ", 2),
    ],
)
def test_bisect_says_why_a_script_tells_nothing(tmp_path, code, said, status):
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "gtrace", "bisect", "--rtol", "1e-12", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
