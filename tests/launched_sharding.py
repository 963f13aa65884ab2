"""What test_sharding.py runs in four processes: each check compares with what this process computes alone.

    gtrace run --quiet --workers 4 tests/launched_sharding.py FOLDER

Writes FOLDER/RANK.json: for each check "ok" or what went wrong.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.partitioner import processes
from gtrace.core.runtime.engine import engine
from gtrace.sharding import NamedSharding, P, make_mesh
from gtrace.testing import assert_close

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
rng = np.random.default_rng(0)
LINE, GRID = make_mesh((-1,), "data"), make_mesh((2, 2), ("data", "model"))
RANK = gt.sharding.process_index()


def loss(params, x, y):
    h = gt.tanh(x @ params["w1"] + params["b1"])
    return ((h @ params["w2"] - y) ** 2).mean()


def step(params, momentum, x, y):
    value, grads = gt.value_and_grad(loss)(params, x, y)
    momentum = gt.tree_map(lambda m, g: 0.9 * m + g, momentum, grads)
    return gt.tree_map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


PARAMS = {
    "w1": rng.normal(size=(6, 8)).astype(np.float32),
    "b1": rng.normal(size=8).astype(np.float32),
    "w2": rng.normal(size=(8, 4)).astype(np.float32),
}

REPLICATED = {"w1": P(), "b1": P(), "w2": P()}
STRATEGIES = {
    "data parallel": (LINE, P("data"), REPLICATED),
    "tensor parallel": (LINE, P(), {"w1": P(None, "data"), "b1": P("data"), "w2": P("data")}),
    "fully sharded": (LINE, P("data"), {"w1": P("data"), "b1": P("data"), "w2": P("data")}),
    "data by model": (GRID, P("data"), {"w1": P(None, "model"), "b1": P("model"), "w2": P("model")}),
}


def check_strategies():
    """Every strategy, with a batch that divides and one that does not, as recorded and jitted, is the same."""
    for name, (mesh, data, specs) in STRATEGIES.items():
        for batch in (16, 10):
            x = rng.normal(size=(batch, 6)).astype(np.float32)
            y = rng.normal(size=(batch, 4)).astype(np.float32)
            alone = gt.tree_map(gt.array, PARAMS)
            rest = gt.tree_map(gt.zeros_like, alone)
            own = {k: gt.device_put(v, NamedSharding(mesh, specs[k])) for k, v in PARAMS.items()}
            momentum = {k: gt.device_put(np.zeros_like(v), NamedSharding(mesh, specs[k])) for k, v in PARAMS.items()}
            placed = [gt.device_put(v, NamedSharding(mesh, data)) for v in (x, y)]
            run = step if batch == 10 else gt.jit(step, backend="eager", wait=True)
            for _ in range(3):
                alone, rest, expected = step(alone, rest, gt.array(x), gt.array(y))
                own, momentum, value = run(own, momentum, *placed)
                assert_close(value, expected)
            for k in PARAMS:
                np.testing.assert_allclose(own[k].numpy(), alone[k].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
                assert (
                    own[k].sharding.padded(2).spec[: own[k].ndim]
                    == NamedSharding(mesh, specs[k]).padded(own[k].ndim).spec
                ), (name, k, own[k].sharding)


def check_arrays():
    """Arrays of parts are looked at, pickled and made of parts."""
    value = np.arange(30.0).reshape(10, 3)
    x = gt.device_put(value, NamedSharding(LINE, P("data")))
    (shard,) = x.addressable_shards
    np.testing.assert_array_equal(shard.data.numpy(), value[shard.index])
    assert shard.data.shape == ((3, 3) if RANK < 3 else (1, 3))
    np.testing.assert_array_equal(x.numpy(), value)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).numpy(), value)
    assert repr(x[9]) == repr(gt.array(value[9])), repr(x[9])
    assert float(x.max()) == 29.0
    again = gt.from_process_local(x.sharding, shard.data, (10, 3))
    np.testing.assert_array_equal(again.numpy(), value)
    assert x.T.sharding.spec == P(None, "data")
    for dtype in (gt.bool, gt.int16, gt.uint16, gt.bfloat16, gt.complex64):
        one = gt.device_put(gt.array(value[:, 0] % 2).astype(dtype), NamedSharding(LINE, P("data")))
        assert (one.astype(gt.complex64).numpy() == value[:, 0] % 2).all(), dtype
        assert complex(one.astype(gt.int64 if dtype is gt.bool else dtype).sum()) == 5, dtype
    order = NamedSharding(gt.sharding.Mesh([3, 1, 0, 2], "data"), P("data"))
    z = gt.device_put(value, order)
    np.testing.assert_array_equal(z.numpy(), value)
    assert_close(z[:8] @ z[:8].T, value[:8] @ value[:8].T, check_dtype=False)


def check_transforms():
    """A layout asked for inside jit, grad and vmap is the one that results have."""
    x = gt.device_put(gt.ones((8, 4)), NamedSharding(LINE, P("data")))
    with LINE:
        f = gt.jit(lambda x: gt.with_sharding(x * 2, P(None, "data")), backend="eager")
        assert f(x).sharding.spec == P(None, "data")
        g = gt.grad(lambda x: (gt.with_sharding(x, P()) ** 2).sum())(x)
        np.testing.assert_array_equal(g.numpy(), np.full((8, 4), 2.0))
        v = gt.vmap(lambda row: gt.with_sharding(row + 1, P("data")))(gt.zeros((3, 8)))
        assert v.sharding.spec == P(None, "data")


def check_randomness():
    """Random numbers are the same on any mesh."""
    expected = gt.random.normal(gt.random.key(7), (8, 3)).numpy()
    draw = gt.with_sharding(gt.random.normal(gt.random.key(7), (8, 3)), NamedSharding(LINE, P("data")))
    np.testing.assert_array_equal(draw.numpy(), expected)


def check_equal_programs():
    """Processes whose parts have equal shapes run programs of one signature."""
    before = set(engine.programs)
    x = gt.device_put(gt.ones((8, 5)), NamedSharding(LINE, P("data")))
    float((gt.sin(x) @ gt.ones((5, 2))).sum())
    own = sorted(key.signature for key in set(engine.programs) - before)
    everyone = processes.exchange(own)
    assert own and all(other == own for other in everyone), everyone


def check_gathered():
    """An operation that cannot be divided is right, and says so once."""
    x = gt.device_put(np.arange(8.0), NamedSharding(LINE, P("data")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            y = gt.lift(torch.logcumsumexp)(x + 1, 0)
            assert abs(float(y[7]) - math.log(sum(math.exp(k) for k in range(1, 9)))) < 1e-5
    texts = [str(w.message) for w in caught if w.category is gt.ShardingWarning]
    assert len(texts) == 1 and "[aten]" in texts[0], texts
    assert caught[0].filename == __file__


def check_loops():
    """Loops and branches run in parts, and send within their bodies, interpreted and compiled."""

    def train(w, xs):
        def step(w, x):
            value, grad = gt.value_and_grad(lambda w: ((gt.tanh(x @ w) - 0.1) ** 2).mean())(w)
            return w - 0.1 * grad, value

        return gt.scan(step, w, xs)

    def shrink(x):
        small = gt.while_loop(lambda x: (x**2).sum() > 1.0, lambda x: x * 0.7, x)
        return gt.cond(small.max() > 0.0, lambda x: x - x.mean(0), lambda x: x, small)

    w, xs = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=(3, 10, 4)).astype(np.float32)
    expected, values = train(gt.array(w), gt.array(xs))
    smaller = shrink(gt.array(xs[0])).numpy()
    compiled = functools.partial(gt.jit, wait=True)
    eager = functools.partial(gt.jit, backend="eager", wait=True)
    for spec, ways in ((P(), [compiled]), (P("data"), [lambda f: f, eager])):
        own = gt.device_put(w, NamedSharding(LINE, spec))
        placed = gt.device_put(xs, NamedSharding(LINE, P(None, "data")))
        for wrapped in ways:
            with warnings.catch_warnings():
                warnings.simplefilter("error", gt.ShardingWarning)
                got, losses = wrapped(train)(own, placed)
                np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
                assert_close(losses, values)
                way = eager if wrapped is compiled else wrapped
                np.testing.assert_allclose(way(shrink)(placed[0]).numpy(), smaller, rtol=1e-5, atol=1e-6)


def check_pipeline():
    """Two stages by signals, of one worker each and of two, learn what one process learns."""
    x, y = rng.normal(size=(12, 6)).astype(np.float32), rng.normal(size=(12, 4)).astype(np.float32)

    def train(params, x, y):
        def loss(p):
            with gt.signal.context("launched_first"):
                h = gt.tanh(gt.signal.tensor(x, name="launched_first") @ p["w1"] + p["b1"])
            with gt.signal.context("launched_second"):
                return ((h @ p["w2"] - gt.signal.tensor(y, name="launched_second")) ** 2).mean()

        value, grads = gt.value_and_grad(loss)(params)
        return gt.tree_map(lambda p, g: p - 0.1 * g, params, grads), value

    def trained(wrapped, place):
        params, values = {k: gt.signal.tensor(gt.array(v), name=place(k)) for k, v in PARAMS.items()}, []
        for _ in range(4):
            params, value = wrapped(train)(params, gt.array(x), gt.array(y))
            values.append(float(value))
        return params, values

    alone, expected = trained(lambda f: f, lambda k: "launched_nothing")
    for first, second in (([0], [1]), ([0, 1], [2, 3]), ([3, 1], [2])):
        for kind, ranks in (("first", first), ("second", second)):
            for name, shard in (("", {"axis": 0}), ("_weights", {"replicated": True})):
                config = gt.SignalConfig(shard=gt.ShardConfig(workers=ranks, **shard))
                gt.register_config(f"launched_{kind}{name}", config)
        place = {"w1": "launched_first_weights", "b1": "launched_first_weights", "w2": "launched_second_weights"}.get
        for wrapped in (lambda f: f, lambda f: gt.jit(f, backend="eager", wait=True)):
            params, values = trained(wrapped, place)
            assert_close(np.float32(values), np.float32(expected))
            assert params["w1"].sharding.mesh.ranks == tuple(first) and params["w2"].sharding.mesh.ranks == tuple(
                second
            )
            assert len(params["w2"].addressable_shards) == (RANK in second)
            for k in PARAMS:
                np.testing.assert_allclose(params[k].numpy(), alone[k].numpy(), rtol=1e-4, atol=1e-6)


def check_deterministic():
    """Sums over processes are added in the order of the parts, and nothing is compiled."""
    value = rng.normal(size=(4, 1000)).astype(np.float32)
    expected = ((value[0] + value[1]) + value[2]) + value[3]
    order = NamedSharding(gt.sharding.Mesh([3, 1, 0, 2], "data"), P("data"))
    with gt.config(deterministic=True):
        for sharding in (NamedSharding(LINE, P("data")), order):
            x = gt.device_put(value, sharding)
            np.testing.assert_array_equal(x.sum(0).numpy(), expected)
            f = gt.jit(lambda x, to=sharding: gt.with_sharding(x.sum(0), to), wait=True)
            np.testing.assert_array_equal(f(x).numpy(), expected)
            assert all(program.tier == "interpreted" for program in f.programs())


def check_divergence():
    """Different programs raise on every process, which says where and in what; then the processes go on."""
    x = gt.eval(gt.device_put(gt.ones(8), NamedSharding(LINE, P("data"))))
    y = gt.sin(x) if RANK == 2 else gt.cos(x)
    try:
        float(y.sum())
    except gt.DivergenceError as error:
        assert "at rank 2 than at rank 0: operation 0 was cos, now sin" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    assert float(x.sum()) == 8.0


def check_signals():
    """Regions lay out what they compute and its cotangents, by settings alone; numbers do not change."""
    x = rng.normal(size=(8, 6)).astype(np.float32)
    w = gt.tree_map(gt.array, PARAMS)

    def inside(params, x):
        with gt.signal.context("launched_region"):
            h = gt.tanh(x @ params["w1"])
        return h

    alone = inside(w, gt.array(x))
    expected = gt.grad(lambda p: inside(p, gt.array(x)).sum())(w)["w1"]
    gt.register_config("launched_back", gt.SignalConfig(shard=gt.ShardConfig(replicated=True)))
    gt.register_config(
        "launched_region", gt.SignalConfig(shard=gt.ShardConfig(axis=0), backward_signal="launched_back")
    )
    for wrapped in (lambda f: f, lambda f: gt.jit(f, backend="eager")):
        h = wrapped(inside)(w, gt.array(x))
        assert h.sharding.spec == P("workers", None), h.sharding
        assert_close(h, alone)
        grads = wrapped(gt.grad(lambda p: inside(p, gt.array(x)).sum()))(w)["w1"]
        assert_close(grads, expected)
    gt.register_config("launched_few", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 4])))
    try:
        gt.signal.tensor(gt.ones(4), name="launched_few")
    except gt.ConfigError as error:
        assert "expected some of the 4 workers" in str(error)
    else:
        raise AssertionError("nothing was raised")


def check_example():
    """The example learns the same, data parallel and fully sharded by a change of YAML only."""
    import train_sharded

    expected, _ = train_sharded.train(1)
    for name in ("signals.yaml", "signals_fully_sharded.yaml"):
        gt.load_config(train_sharded.SIGNALS.with_name(name))
        losses, _ = train_sharded.train(1)
        assert_close(np.float32(losses), np.float32(expected), steps=1_000)  # of dozens of updates
        layers, means = train_sharded.initial()
        split = None if name == "signals.yaml" else "workers"
        assert means[0]["w"].sharding.spec == layers[0]["w"].sharding.spec == P(split, None)


def check_saving():
    """Checkpoints and files of arrays over processes are read on other meshes, and while the program runs on."""
    folder = Path(sys.argv[1], "run")
    value = np.arange(70.0).reshape(10, 7)
    state = {
        "rows": gt.device_put(value, NamedSharding(LINE, P("data"))),
        "grid": gt.device_put(value, NamedSharding(GRID, P("model", "data"))),
        "both": gt.device_put(value, NamedSharding(GRID, P(None, ("data", "model")))),
        "few": gt.device_put(value[:2, 0], NamedSharding(LINE, P("data"))),
        "whole": gt.array(value), "rate": 0.1,
    }  # fmt: skip
    gt.save_checkpoint(folder, state, step=0)
    saving = gt.save_checkpoint(folder, gt.tree_map(lambda x: x * 2, state), step=1, wait=False)
    for _ in range(20):
        float((state["rows"] * state["rows"]).sum())  # collectives of the program, beside those of saving
    assert saving.result().name == "step_000000001"
    refuses = RANK == 1  # the others hear of it, and do not wait
    with pytest.raises(gt.errors.ArgumentError if refuses else gt.CheckpointError, match="arrays, numbers and text"):
        gt.save_checkpoint(folder, {**state, "rate": object() if refuses else 0.1}, step=2)
    other = {**state, "rows": state["grid"], "grid": gt.array(value), "both": state["rows"], "whole": state["both"]}
    loaded, step = gt.load_checkpoint(folder, like=other)
    assert step == 1 and loaded["rate"] == 0.2
    for name, x in other.items():
        if name != "rate":
            assert loaded[name].sharding == x.sharding, name
            np.testing.assert_array_equal(loaded[name].numpy(), x.numpy() * 2, err_msg=name)
    arrays = {name: x for name, x in state.items() if name != "rate"}
    gt.save_arrays(folder / "arrays", arrays)
    again = gt.load_arrays(folder / "arrays", like=arrays)
    assert all(again[name].sharding == x.sharding for name, x in arrays.items())
    np.testing.assert_array_equal(again["grid"].numpy(), value)


results = {}
for check in [value for key, value in list(globals().items()) if key.startswith("check_")]:
    try:
        check()
        results[check.__name__] = "ok"
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        results[check.__name__] = traceback.format_exc()
        break  # the processes may not be at the same place any more
Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(results))
