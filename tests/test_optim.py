"""gt.optim: parameters after updates against optax's stored ones; schedules, structure, dtypes, transforms, errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import assert_close

STORED = json.loads((Path(__file__).parent / "data" / "optax.json").read_text(encoding="utf-8"))
NAMES = {
    **{name: getattr(gt.optim, name) for name in dir(gt.optim) if not name.startswith("_")},
    "NUMBERS": gt.optim.MuonDimensionNumbers(1, 0),
}


def made(text):
    return eval(text.replace("contrib.", ""), NAMES)


def parameters(dtype=np.float64):
    return {
        "w": np.linspace(-1.5, 2.0, 24).reshape(4, 6).astype(dtype),
        "b": np.array([0.5, -2.0, 0.01], dtype),
        "s": np.array(1.25, dtype),
    }


def gradients(params, step):
    return gt.tree.map(lambda p: gt.cos(p * (step + 1)) + 0.1 * p, params)


def run(opt, dtype, step_of=lambda f: f):
    """Return the parameters after each stored number of updates."""
    params = gt.tree.map(gt.array, parameters(dtype))
    state = opt.init(params)

    @step_of
    def step(params, state, number):
        updates, state = opt.update(gradients(params, number), state, params)
        return gt.optim.apply_updates(params, updates), state

    out = []
    for number in range(max(STORED["steps"])):
        params, state = step(params, state, gt.array(number))
        if number + 1 in STORED["steps"]:
            out.append(params)
    return out


@pytest.mark.parametrize("text", STORED["cases"])
def test_optimizers_are_those_of_optax(text):
    # optax computes Adafactor's decay in float32, whatever the parameters
    tolerance = 1e-6 if "adafactor" in text else 1e-11
    for got, want in zip(run(made(text), np.float64), STORED["cases"][text], strict=True):
        for name in want:
            np.testing.assert_allclose(got[name].numpy(), want[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("text", ["adamw(0.1)", "adafactor(0.1)", "contrib.muon(0.1)", "MultiSteps(adam(0.1), 2)"])
def test_parameters_keep_their_dtype(text):
    wanted = STORED["cases"][text][-1]
    for dtype, tolerance in ((gt.float32, 2e-4 if "muon" in text else 1e-5), (gt.bfloat16, 0.1)):
        params = gt.tree.map(lambda x, dtype=dtype: gt.array(x).astype(dtype), parameters())
        opt = made(text)
        state = opt.init(params)
        for step in range(6):
            updates, state = opt.update(gradients(params, step), state, params)
            params = gt.optim.apply_updates(params, updates)
        for name, x in params.items():
            assert x.dtype == dtype
            # Muon makes small singular values large, and with them what 16 bits lose
            if (dtype, name, text) != (gt.bfloat16, "w", "contrib.muon(0.1)"):
                np.testing.assert_allclose(x.astype(gt.float64).numpy(), wanted[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("text", STORED["schedules"])
def test_schedules_are_those_of_optax(text):
    schedule = made(text)
    for count, want in enumerate(STORED["schedules"][text]):
        for given_count in (count, gt.array(count, dtype=gt.int32)):
            assert float(schedule(given_count)) == pytest.approx(want, rel=1e-6, abs=1e-7)


def test_a_training_step_is_one_program():
    """The state has the same structure and types after each step, so nothing is traced or compiled anew."""
    schedule = gt.optim.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6)
    opt = gt.optim.chain(gt.optim.clip_by_global_norm(1.0), gt.optim.adamw(schedule))
    jitted = []

    def jit(f):
        jitted.append(gt.jit(f, backend="eager"))
        return jitted[0]

    compiled = run(opt, np.float32, jit)
    assert len(jitted[0].programs()) == 1
    for got, want in zip(compiled, run(opt, np.float32), strict=True):
        for name in want:
            np.testing.assert_allclose(got[name].numpy(), want[name].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (gt.optim.adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
        (gt.optim.adamw(0.1, weight_decay=0.01), lambda p: torch.optim.AdamW(p, 0.1)),
        (gt.optim.sgd(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (gt.optim.rmsprop(0.01, 0.99, eps_in_sqrt=False), lambda p: torch.optim.RMSprop(p)),
        (gt.optim.adafactor(0.01, clipping_threshold=None, multiply_by_parameter_scale=False), None),
    ],
    ids=["adam", "adamw", "sgd", "rmsprop", "adafactor"],
)
def test_optimizers_descend_as_those_of_torch(ours, theirs):
    target = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
    params = gt.zeros((3, 4), dtype=gt.float64)
    tensor = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    state, optimizer = ours.init(params), theirs([tensor]) if theirs else None
    for _ in range(30):
        grads = gt.grad(lambda p: ((p - target) ** 2).sum())(params)
        updates, state = ours.update(grads, state, params)
        params = gt.optim.apply_updates(params, updates)
        if optimizer:
            optimizer.zero_grad()
            ((tensor - torch.tensor(target)) ** 2).sum().backward()
            optimizer.step()
    assert float(((params - target) ** 2).sum()) < float((target**2).sum())
    if optimizer:
        assert_close(params, tensor)


class Model(gt.nn.Module):
    layer: gt.nn.Linear
    name: object
    steps: gt.Array


def test_models_with_more_than_arrays_are_updated_in_part():
    model = Model(gt.nn.Linear(2, 1, key=gt.random.key(0)), "model", gt.array(3))
    opt = gt.optim.adam(0.1)
    state = opt.init(gt.nn.partition(model)[0])
    grads = gt.nn.filter_grad(lambda m: (m.layer(gt.ones(2)) ** 2).sum())(model)
    updates, state = opt.update(grads, state)
    new = gt.optim.apply_updates(model, updates)
    assert new.name == "model" and int(new.steps) == 3
    moved = abs(new.layer.weight - model.layer.weight)
    assert_close(moved, gt.full(moved.shape, 0.1))


@given(st.floats(0.1, 5.0), st.floats(0.1, 5.0), st.integers(0, 2**31))
def test_clipped_updates_have_the_norm_and_direction(size, limit, seed):
    values = np.random.default_rng(seed).normal(size=7)
    values *= size / np.linalg.norm(values)
    grads = {"a": gt.array(values[:3]), "b": gt.array(values[3:])}
    out, _ = gt.optim.clip_by_global_norm(limit).update(grads, gt.optim.EmptyState())
    assert_close(gt.optim.global_norm(out), min(size, limit))
    flat = np.concatenate([out["a"].numpy(), out["b"].numpy()])
    assert_close(flat, values * min(1.0, limit / size))


@given(st.integers(1, 4), st.integers(1, 3))
def test_gradients_of_several_batches_are_one_update(every, rounds):
    """Updates are zero until the last batch, and then those by the mean."""
    opt, plain = gt.optim.MultiSteps(gt.optim.adam(0.1), every), gt.optim.adam(0.1)
    params = other = gt.array([1.0, 2.0])
    state, plain_state = opt.init(params), plain.init(other)
    rng = np.random.default_rng(every)
    for _ in range(rounds):
        batches = [gt.array(rng.normal(size=2).astype(np.float32)) for _ in range(every)]
        for k, g in enumerate(batches):
            updates, state = opt.update(g, state, params)
            assert bool(opt.has_updated(state)) == (k == every - 1)
            assert (k == every - 1) or updates.tolist() == [0.0, 0.0]
            params = gt.optim.apply_updates(params, updates)
        updates, plain_state = plain.update(sum(batches) / every, plain_state)
        other = gt.optim.apply_updates(other, updates)
        assert_close(params, other)
    inner = opt.gradient_transformation()
    assert inner.init(params)._fields == state._fields


def test_muon_updates_are_about_orthogonal():
    opt = gt.optim.scale_by_muon()
    x = gt.array(np.random.default_rng(0).normal(size=(8, 20)))
    out, _ = opt.update(x, opt.init(x))
    singular = np.linalg.svd(out.numpy(), compute_uv=False)
    assert singular.min() > 0.5 and singular.max() < 1.5


def test_a_gradient_goes_through_updates():
    """The learning rate that is best after two steps, by the derivative of the loss after them."""

    def after(rate):
        opt = gt.optim.sgd(rate, momentum=0.5)
        params = gt.array(1.0, dtype=gt.float64)
        state = opt.init(params)
        for _ in range(2):
            updates, state = opt.update(2 * params, state)
            params = gt.optim.apply_updates(params, updates)
        return params**2

    rate, step = 0.1, 1e-6
    slope = (float(after(rate + step)) - float(after(rate - step))) / (2 * step)
    # the differences round numbers that are larger by 1 / step
    assert_close(gt.grad(after)(gt.array(rate, dtype=gt.float64)), slope, scale=float(after(rate)) / step)


def test_mistakes_are_named():
    opt = gt.optim.adamw(0.1)
    params = gt.ones(2)
    with pytest.raises(gt.ArgumentError, match=r"update\(grads, state, params\)"):
        opt.update(params, opt.init(params))
    with pytest.raises(gt.ArgumentError, match="the states of 2"):
        gt.optim.sgd(0.1).update(params, opt.init(params))
    with pytest.raises(gt.StructureError):
        opt.update({"a": params}, opt.init(params), params)
    with pytest.raises(gt.ShapeError, match=r"gt\.optim\.muon"):
        gt.optim.scale_by_muon().update(params, gt.optim.scale_by_muon().init(params))
    with pytest.raises(gt.ArgumentError, match="two axes of a matrix"):
        gt.optim.muon(0.1, muon_weight_dimension_numbers=gt.optim.MuonDimensionNumbers(1, 1))
    with pytest.raises(gt.ArgumentError, match="decay_steps above 0"):
        gt.optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10)
    for rate in (-0.1, float("nan")):
        with pytest.raises(gt.ArgumentError, match="a learning rate of at least 0"):
            gt.optim.adam(rate)
    with pytest.raises(gt.ArgumentError, match="scales >= 0"):
        gt.optim.piecewise_constant_schedule(1.0, {1: -1.0})
    with pytest.raises(gt.ArgumentError, match="a boundary between"):
        gt.optim.join_schedules([gt.optim.constant_schedule(1.0)], [1])
    for name, text in {"step": r"optimizer.update\(grads", "zero_grad": "nothing to reset", "lr": "'lr'$"}.items():
        with pytest.raises(AttributeError, match=text):
            getattr(gt.optim.adam(0.1), name)
    with pytest.raises(AttributeError, match="Did you mean 'sgd'"):
        _ = gt.optim.SGD
    with pytest.raises(AttributeError, match="Did you mean 'rmsprop'"):
        _ = gt.optim.rms_prop


def counted(update):
    """Return an update of the user's, and how often it ran."""
    calls = []

    def counting(grads, state, params=None):
        calls.append(1)
        return update(grads, state, params)

    return counting, calls


REPLAYED = [
    lambda: gt.optim.adam(0.1), lambda: gt.optim.adamw(0.1, weight_decay=0.01, nesterov=True),
    lambda: gt.optim.sgd(0.1, momentum=0.9), lambda: gt.optim.lion(0.1),
    lambda: gt.optim.chain(gt.optim.clip_by_global_norm(1.0), gt.optim.rmsprop(0.1)),
    lambda: gt.optim.adam(gt.optim.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)),
    lambda: gt.optim.adafactor(0.1),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("make", REPLAYED)
def test_updates_are_the_same_in_every_step_and_context(make):
    params = {"w": gt.array([[1.0, -2.0], [0.5, 0.25]]), "b": gt.array([0.1, -0.2])}

    def step(params, state):
        grads = gt.grad(lambda p: gt.square(p["w"] @ p["b"] - 1.0).sum())(params)
        updates, state = make_once.update(grads, state, params)
        return gt.optim.apply_updates(params, updates), state

    make_once = make()
    ours, state = params, make_once.init(params)
    for _ in range(6):  # the first two record it one by one
        fresh = make()  # which never saw such arguments
        grads = gt.grad(lambda p: gt.square(p["w"] @ p["b"] - 1.0).sum())(ours)
        expected = fresh.update(grads, state, ours)
        jitted = gt.jit(step)(ours, state)
        updates, after = make_once.update(grads, state, ours)
        assert gt.tree.structure(after) == gt.tree.structure(expected[1])
        for a, b in zip(gt.tree.leaves((updates, after)), gt.tree.leaves(expected), strict=True):
            assert a.dtype == b.dtype and a.aval.weak == b.aval.weak
            assert_close(a, b, check_dtype=False)
        ours, state = gt.optim.apply_updates(ours, updates), after
        for a, b in zip(gt.tree.leaves((ours, state)), gt.tree.leaves(jitted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_gradients_go_through_updates_that_were_recorded_before():
    opt, params = gt.optim.adam(0.1), gt.array([1.0, -2.0])
    state = opt.init(params)

    def after(params):
        grads = gt.grad(lambda p: (p**3).sum())(params)
        return gt.optim.apply_updates(params, opt.update(grads, state, params)[0]).sum()

    found = [np.asarray(gt.grad(after)(params)) for _ in range(4)]
    assert all((one == found[0]).all() for one in found)
    updates = [opt.update(params, state, params)[0] for _ in range(4)]
    assert all((np.asarray(one) == np.asarray(updates[0])).all() for one in updates)
    batched = gt.vmap(lambda g: opt.update(g, state, params)[0])(gt.stack([params, 2 * params]))
    assert_close(batched[0], updates[0])


def test_functions_of_the_user_run_at_every_step():
    rate = {"now": 0.5}
    own, calls = counted(gt.optim.sgd(1.0).update)
    chained = gt.optim.chain(gt.optim.GradientTransformation(gt.optim.sgd(1.0).init, own), gt.optim.scale(1.0))
    scheduled = gt.optim.sgd(lambda count: rate["now"])
    grads = gt.array([1.0])
    states = chained.init(grads), scheduled.init(grads)
    for k in range(5):
        rate["now"] = 0.5 / (k + 1)
        chained.update(grads, states[0])
        updates, _ = scheduled.update(grads, states[1])
        assert_close(updates, [-rate["now"]])
    assert len(calls) == 5


@dataclasses.dataclass
class Halving:
    """A schedule that has no hash, as classes that compare by their fields."""

    value: float

    def __call__(self, count):
        return self.value / 2**count


@gt.tree.register
class Named:
    """A node of a tree whose data has no hash."""

    def __init__(self, weight, names):
        self.weight, self.names = weight, names

    def tree_flatten(self):
        return (self.weight,), self.names

    @classmethod
    def tree_unflatten(cls, names, parts):
        return cls(*parts, names)


def test_schedules_and_trees_may_have_no_hash():
    opt = gt.optim.adam(Halving(0.5))
    state = opt.init(gt.zeros(2))
    found = []
    for _ in range(4):
        updates, state = opt.update(gt.array([1.0, -2.0]), state)
        found.append(updates)
    assert_close(gt.stack(found), [[-(0.5 / 2**k), 0.5 / 2**k] for k in range(4)])
    plain, params = gt.optim.sgd(0.1), Named(gt.ones(2), ["w"])
    for _ in range(4):
        updates, _ = plain.update(params, plain.init(params), params)
        assert_close(updates.weight, [-0.1, -0.1])


def test_parts_of_a_chain_are_replayed_beside_the_users():
    own = gt.optim.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, state))
    opt = gt.optim.chain(gt.optim.scale_by_adam(), own, gt.optim.scale(-0.1))
    alone = gt.optim.adam(0.1)
    params = gt.array([1.0, -2.0])
    state, other = opt.init(params), alone.init(params)
    for _ in range(4):
        updates, state = opt.update(params, state, params)
        want, other = alone.update(params, other, params)
        assert_close(updates, want)


def test_wrong_trees_are_refused_after_right_ones():
    opt, params = gt.optim.adam(0.1), {"w": gt.ones(2)}
    state = opt.init(params)
    for _ in range(4):
        opt.update(params, state, params)
    with pytest.raises(gt.StructureError):
        opt.update({"v": gt.ones(2)}, state, params)
    assert opt.update(params, state, {"w": 1.0})[0]["w"].shape == (2,)  # a number is no array
    assert opt.update({"w": gt.ones(2, dtype=gt.float64)}, state)[0]["w"].dtype == gt.float64


@pytest.mark.parametrize("eps_in_sqrt", [True, False])
def test_centred_variances_are_never_negative(eps_in_sqrt):
    """The variance of one gradient is 0, which rounding may bring below 0."""
    p, g = (gt.array(np.random.default_rng(k).normal(size=5000).astype(np.float32)) for k in range(2))
    optimizer = gt.optim.rmsprop(0.01, centered=True, bias_correction=True, eps_in_sqrt=eps_in_sqrt)
    updates, _ = optimizer.update(g, optimizer.init(p), p)
    assert np.isfinite(np.asarray(updates)).all()
