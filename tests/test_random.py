"""gt.random against stored draws of jax.random, and what only gtrace has: vmap-able keys as arrays, reuse, streams."""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.ops.special import fma
from gtrace.ops.threefry import block

R = gt.random
STORED = json.loads(Path(__file__).with_name("data").joinpath("jax_random.json").read_text(encoding="utf-8"))
# what jax computes with logarithms and erf_inv, in units in the last place; float64 there is less exact than here
ULPS = {"float32": 3, "float16": 1, "bfloat16": 0, "float64": 40}
EXACT = {"uniform"}


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def to_gt(value):
    if not isinstance(value, dict):
        return value
    return gt.array(value["array"], dtype=getattr(gt, value["dtype"]))


def draw(case, key=None):
    if case["name"] == "key":
        return R.key(case["seed"])
    kwargs = {name: to_gt(v) for name, v in case["kwargs"].items()}
    if case["name"] == "bits":
        kwargs = {"width": int(kwargs.pop("dtype", "uint32").removeprefix("uint"))}
    return getattr(R, case["name"])(R.key(case["seed"]) if key is None else key, *map(to_gt, case["args"]), **kwargs)


def expected(case):
    out = case["out"]
    if out["values"] and isinstance(out["values"][0], str):
        return np.array([float.fromhex(v) for v in out["values"]]).reshape(out["shape"])
    wide = np.array([v - 2**64 if v >= 2**63 else v for v in out["values"]], dtype=np.int64)
    return wide.reshape(out["shape"])


def described(case):
    return f"{case['name']}-{case['seed']}-{case['args']}-{case['kwargs']}".replace(" ", "")[:90]


@pytest.mark.parametrize("case", STORED["cases"], ids=described)
def test_the_draws_of_jax(case):
    got, want = draw(case), expected(case)
    assert got.shape == want.shape
    kind = case["out"]["dtype"]
    if kind in ULPS:
        assert str(got.dtype) == f"torch.{kind}"
        # the spacing of the dtype where the expected values lie
        eps = torch.finfo(got.dtype).eps
        spacing = eps * 2.0 ** np.floor(np.log2(np.maximum(np.abs(want), torch.finfo(got.dtype).tiny)))
        distance = np.abs(got.to_torch().double().numpy() - want) / spacing
        assert distance.max(initial=0) <= (0 if case["name"] in EXACT else ULPS[kind])
    else:
        asked = case["kwargs"].get("dtype", "") if case["name"] == "randint" else ""
        wanted = "bool" if kind == "bool" else asked or "int64"
        assert str(got.dtype) == f"torch.{wanted}"
        np.testing.assert_array_equal(got.to_torch().long().numpy(), want)
