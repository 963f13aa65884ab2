"""The examples run, a few steps of each, and state their results; what they compute for themselves is right."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gtrace as gt
from gtrace.testing import assert_close

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LINES = {
    "char_transformer": r"held-out text: (\d\.\d+) bits a character",
    "cnn_digits": r"test accuracy (\d\.\d+) on 360 digits",
    "vae": r"held-out bound: (-\d+\.\d+) nats an image",
    "neural_ode": r"from 64 new starts: (\d\.\d+)",
    "ppo_pole": r"mean length of 20 new episodes: (nan|[\d.]+) of 500",
    "hmc": r"of a covariance: (\d+\.\d+)",
    "fine_tuning": r"(\d\.\d+) after fine-tuning",
    "train_dataset": r"test accuracy (\d\.\d+) on 360 digits",
    "gaussian_process": r"root mean square error (\d\.\d+)",
}


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_an_example_states_its_result(name, capsys):
    module = loaded(name)
    if name == "char_transformer":
        module.LAYERS, module.WIDTH = 1, 16
    with gt.config(auto_compile=False):
        result = module.main(quick=True)
    stated = re.search(LINES[name], capsys.readouterr().out.splitlines()[-1])
    assert stated
    assert math.isnan(result) if name == "ppo_pole" else math.isfinite(result)


@pytest.mark.parametrize("name", ["numpyro_posterior", "diffrax_lynx"])
def test_an_example_without_its_library_says_how_to_run_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name.partition("_")[0], None)  # not installed
    with pytest.raises(SystemExit, match=f"pip install .*gtrace run --jax examples/{name}.py"):
        loaded(name)


@pytest.mark.parametrize(("page", "name"), [("numpyro", "numpyro_posterior"), ("diffrax", "diffrax_lynx")])
def test_a_page_shows_what_is_in_its_program(page, name):
    shown = re.findall(r"```py\n(.*?)```", (EXAMPLES.parent / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.S)
    program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert shown and all(block in program for block in shown)


def test_every_example_is_in_the_table():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == set(re.findall(r"^\| \[`(\w+\.py)`\]", text, re.MULTILINE))


def test_the_pole_falls_as_the_equations_say():
    cart = loaded("ppo_pole").Cart(0)
    cart.state = [0.0, 0.0, 0.1, 0.0]
    state, fell, over = cart.step(1)
    # Florian (2007), equations 23 and 24, without friction
    part = (10.0 + 0.05 * 0.0) / 1.1
    turn = (9.8 * math.sin(0.1) - math.cos(0.1) * part) / (0.5 * (4 / 3 - 0.1 * math.cos(0.1) ** 2 / 1.1))
    assert_close(state, [0.0, 0.02 * (part - 0.05 * turn * math.cos(0.1) / 1.1), 0.1, 0.02 * turn])
    assert not fell and not over
    while not fell:
        _, fell, over = cart.step(1)
    assert over and 1 < cart.steps < 20


def test_sampling_with_the_cache_is_sampling_from_the_whole_text():
    module = loaded("char_transformer")
    model = module.Model(7, gt.random.key(0))
    tokens = gt.array([[1, 2, 3, 4, 5, 6]])
    cache = model.blocks.initial_cache(1, 6)
    rows = []
    for k in range(6):
        row, cache = model(tokens[:, k : k + 1], cache)
        rows.append(row)
    np.testing.assert_allclose(gt.concat(rows, axis=1).numpy(), model(tokens).numpy(), rtol=1e-4, atol=1e-5)


def test_the_integrator_has_the_order_of_its_method():
    """Half the steps, 16 times the error; against a solution that is known."""
    module = loaded("neural_ode")
    errors = []
    for points in (11, 21):
        module.SECONDS, module.POINTS = 2.0, points
        out = module.integrate(lambda y: -y, gt.ones((1, 2), dtype=gt.float64), points)
        errors.append(abs(float(out[-1, 0, 0]) - math.exp(-2.0)))
    assert errors[0] / errors[1] == pytest.approx(16.0, rel=0.15)


@pytest.mark.slow
def test_an_interrupted_run_on_a_dataset_ends_as_one_that_ran_through(tmp_path, capsys):
    module = loaded("train_dataset")
    with gt.config(auto_compile=False):
        module.main(epochs=1, checkpoint=str(tmp_path / "parts"))
        module.main(epochs=2, checkpoint=str(tmp_path / "parts"))
        assert "goes on after epoch 1\nepoch   2" in capsys.readouterr().out
        module.main(epochs=2, checkpoint=str(tmp_path / "whole"))
    like = {"params": module.params, "optimizer": module.optimizer.init(module.params), "buffers": module.apply.state}
    parts, whole = (gt.load_checkpoint(str(tmp_path / name), like=like) for name in ("parts", "whole"))
    assert parts[1] == whole[1] == 2
    for x, y in zip(gt.tree.leaves(parts[0]), gt.tree.leaves(whole[0]), strict=True):
        assert_close(x, y)
