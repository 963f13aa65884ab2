"""Updates by Adam and AdamW, written in many ways: their numbers are NumPy's and torch's."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.testing import assert_close

RNG = np.random.default_rng(0)


def interpreted(function, *args):
    """Return the results of an interpreted call as NumPy's."""
    with gt.config(auto_compile=False):
        return [np.asarray(x) for x in gt.tree.leaves(function(*args))]


def quotients(np, p, m, v, g, t):
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g**2
    return p - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


def products(np, p, m, v, g, t):
    m, v = (1 - 0.9) * g + m * 0.9, g * (1 - 0.99) * g + 0.99 * v
    rate, scale = 0.01 / (1 - 0.9**t), 1 / (1 - 0.99**t)
    return p - rate * m / (np.sqrt(scale * v) + 1e-6), m, v


def one_rate(np, p, m, v, g, t):
    m, v = 0.5 * m + 0.5 * g, 0.75 * v + 0.25 * (g * g)
    rate = 0.1 * np.sqrt(1 - 0.75**t) / (1 - 0.5**t)
    return p + -(rate * m / (1e-3 + np.sqrt(v))), m, v


def not_added(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return np.tanh(m / (np.sqrt(v) + 1e-8)), m, v


def update_returned(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    update = -0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p + update, m, v, update


def used_otherwise(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    ratio = m / (np.sqrt(v) + 1e-8)
    return p - 0.1 * ratio, m * 2, np.cos(v) + ratio


def trust_ratio(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    ratio = m / (np.sqrt(v) + 1e-8)
    return p - 0.1 * (np.sum(np.abs(p)) / np.sum(np.abs(ratio))) * ratio, m, v


def rate_of_moment(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p - (0.1 / (1 + np.sum(v))) * (m / (np.sqrt(v) + 1e-8)), m, v


def decayed(np, p, m, v, g, t):
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g**2
    ratio = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p - 0.01 * (ratio + 0.1 * p), m, v


def decayed_by_sum(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return (m / (np.sqrt(v) + 1e-8) + p * 0.1) * (-0.01 / t) + p, m, v


def decayed_first(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p * (1 - 0.01 * 0.1) - 0.01 * (m / (np.sqrt(v) + 1e-8)), m, v


def decay_subtracted(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p + (-0.01 * (m / (np.sqrt(v) + 1e-8)) - 0.001 * p), m, v


def decay_that_changes(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return (1 - 0.1 / t) * p - 0.01 / t * (m / (np.sqrt(v) + 1e-8)), m, v


def decay_returned(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    update = m / (np.sqrt(v) + 1e-8) + 0.1 * p
    return p - 0.01 * update, m, v, update


def decay_towards_another(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p - 0.01 * (m / (np.sqrt(v) + 1e-8) + 0.1 * g), m, v


def no_rate(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p * 0.9 - (t - 3) * (m / (np.sqrt(v) + 1e-8)), m, v


DECAYED = [
    decayed,
    decayed_by_sum,
    decayed_first,
    decay_subtracted,
    decay_that_changes,
    decay_returned,
    decay_towards_another,
    no_rate,
]
FORMS = [quotients, products, one_rate, update_returned, not_added, used_otherwise, trust_ratio, *DECAYED]


def largest_so_far(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, np.maximum(v, 0.999 * v + 0.001 * g**2)
    return p - 0.1 * m / (np.sqrt(v) + 1e-8), m, v


def no_average(np, p, m, v, g, t):
    m, v = 0.9 * m + g, 0.999 * v + 0.001 * g**2
    return p - 0.1 * m / (np.sqrt(v) + 1e-8), m, v


def of_another(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g - m) ** 2
    return p - 0.1 * m / (np.sqrt(v) + 1e-8), m, v


def of_whole_arrays(np, p, m, v, g, t):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p - p * m / (np.sqrt(v * p**2) + 1e-8), m, v


OTHERS = [largest_so_far, no_average, of_another, of_whole_arrays, rate_of_moment]


def operands(shape, dtype=np.float64):
    p, m, g = (RNG.normal(size=shape).astype(dtype) for _ in range(3))
    return p, m, np.abs(RNG.normal(size=shape)).astype(dtype), g


@pytest.mark.parametrize("form", [*FORMS, *OTHERS])
def test_formulas_give_what_numpy_gives(form):
    args = operands((3, 4))
    got = interpreted(functools.partial(form, gt), *map(gt.array, args), gt.array(3.0, gt.float64))
    for x, y in zip(got, form(np, *args, 3.0), strict=True):
        assert_close(x, y)


@given(
    st.sampled_from([*FORMS[:3], *DECAYED[:5]]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from([np.float32, np.float64]),
    st.data(),
)
def test_any_layout_of_the_operands(form, shape, dtype, data):
    def arranged(x):
        how = data.draw(st.sampled_from(["rows", "permuted", "gaps", "repeated"]))
        if how == "permuted":
            axes = data.draw(st.permutations(range(x.ndim)))
            return x.permute(*axes).contiguous().permute(*np.argsort(axes).tolist())
        if how == "gaps":
            return torch.stack([x, x + 1], -1)[..., 0]
        return x[:1].expand(x.shape) if how == "repeated" else x

    tensors = [arranged(torch.from_numpy(x)) for x in operands(shape, dtype)]
    args = [x.numpy() for x in tensors]
    before = [x.copy() for x in args]
    arrays = [gt.from_torch(x) for x in tensors]
    got = interpreted(functools.partial(form, gt), *arrays, gt.array(2.0, dtype))
    for x, y in zip(got, form(np, *args, dtype(2.0)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4 if dtype is np.float32 else 1e-12, atol=1e-6)
    assert all((x == y).all() for x, y in zip(args, before, strict=True))


@pytest.mark.filterwarnings("ignore:divide by zero|invalid value:RuntimeWarning")
@pytest.mark.parametrize("t", [0.0, -1.0, np.inf, np.nan])
def test_numbers_of_steps_that_make_no_sense_give_what_the_formula_gives(t):
    args = operands((3, 4))
    for form in (quotients, products):
        got = interpreted(functools.partial(form, gt), *map(gt.array, args), gt.array(t, gt.float64))
        for x, y in zip(got, form(np, *args, np.float64(t)), strict=True):
            assert_close(x, y)


def torch_losses(kind, steps, **options):
    weights = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in WEIGHTS]
    optimizer = kind(weights, **options)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = (torch.tanh(X @ weights[0]) @ weights[1]).square().mean()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, [w.detach().numpy() for w in weights]


WEIGHTS = RNG.normal(size=(5, 8)), RNG.normal(size=(8, 2))
X = torch.from_numpy(RNG.normal(size=(16, 5)))


def test_training_by_gt_optim_equals_torch():
    other = {"betas": (0.5, 0.9), "eps": 1e-3}
    cases = [
        (gt.optim.adam(0.01), torch.optim.Adam, {"lr": 0.01}),
        (gt.optim.adam(0.01, b1=0.5, b2=0.9, eps=1e-3), torch.optim.Adam, {"lr": 0.01, **other}),
        (gt.optim.adamw(0.01, weight_decay=0.1), torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ]  # fmt: skip
    x = gt.from_torch(X)

    def loss(weights):
        return gt.square(gt.tanh(x @ weights[0]) @ weights[1]).mean()

    for optimizer, kind, options in cases:

        def step(weights, state, optimizer=optimizer):
            value, grads = gt.value_and_grad(loss)(weights)
            updates, state = optimizer.update(grads, state, weights)
            return gt.optim.apply_updates(weights, updates), state, value

        weights = [gt.array(w) for w in WEIGHTS]
        state = optimizer.init(weights)
        losses = []
        for _ in range(20):
            with gt.config(auto_compile=False):
                weights, state, value = step(weights, state)
                losses.append(float(value))
        expected, final = torch_losses(kind, 20, **options)
        assert_close(losses, expected)
        for w, y in zip(weights, final, strict=True):
            assert_close(w, y)


def test_two_updates_that_each_take_a_result_of_the_other_stay_as_they_are():
    def both(p, q, m, v, n, w, g):
        m, v, n, w = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g**2, 0.9 * n + 0.1 * g, 0.9 * w + 0.1 * g**2
        one = p * m - 0.1 * w.sum() * n / (gt.sqrt(v) + 1e-8)
        return one, q * n - 0.1 * m / (gt.sqrt(w) + 1e-8) * v.sum(), m, v, n, w

    tensors = [torch.from_numpy(x) for x in (*operands((3, 4)), *operands((3, 4))[1:])]
    graph = gt.make_graph(both)(*map(gt.from_torch, tensors))
    for x, y in zip(interpreter(graph)(tensors), both(*map(gt.from_torch, tensors)), strict=True):
        assert_close(x, y)


@settings(max_examples=25, deadline=None)
@given(
    sign=st.sampled_from(["+", "-"]),
    decay=st.sampled_from([None, 0.1, -0.1, 0.9, 1.0, 1e-20, "g", "array"]),
    how=st.sampled_from(["in the change", "from the change", "of the parameter", "of the ratio"]),
    rate=st.sampled_from([-0.01, 0.01, 0.0, 1.0, "array"]),
    weight=st.sampled_from([0.1, 0.1 + 1e-9, 0.2]),
    eps=st.sampled_from([1e-8, 0.0, -1e-3, math.inf]),
    also=st.sampled_from(["nothing", "square of the change", "change", "ratio", "moment"]),
    size=st.sampled_from([(2, 3), (1, 1), (0, 3), (64, 64)]),
    special=st.sampled_from([None, np.inf, np.nan, 0.0]),
)
def test_near_misses_give_what_numpy_gives(sign, decay, how, rate, weight, eps, also, size, special):
    """Decays of other signs and places, further uses of what is between, averages that are none, special numbers."""

    def step(np, p, m, v, g, by):
        m, v = 0.9 * m + weight * g, 0.999 * v + 0.001 * g**2
        ratio = m / (np.sqrt(v) + eps)
        of = g if decay == "g" else p
        amount = by if decay == "array" else 0.1 if decay in (None, "g") else decay
        lr = by if rate == "array" else rate
        if decay is None:
            change = lr * ratio
        elif how == "in the change":
            change = lr * ratio - amount * of
        elif how == "from the change":
            change = amount * of - lr * ratio
        elif how == "of the ratio":
            change = lr * (ratio + amount * of)
        else:
            change = lr * ratio
            p = (1 - amount) * p
        new = p + change if sign == "+" else p - change
        used = {
            "square of the change": np.sum(change**2),
            "change": change * 1.0,
            "ratio": np.cos(ratio),
            "moment": m * v,
        }
        return new, m, v, *([used[also]] if also in used else [])

    rng = np.random.default_rng(1)
    p, m, g = (rng.normal(size=size) for _ in range(3))
    v = np.abs(rng.normal(size=size))
    if special is not None and g.size:
        v[-1, -1], g[-1, -1] = abs(special), special
        m[-1, -1] = special
    with gt.config(auto_compile=False):
        results = step(gt, *map(gt.array, (p, m, v, g)), gt.array(0.3, gt.float64))
        got = [np.asarray(x) for x in gt.eval(results)]
    with np.errstate(all="ignore"):
        right = step(np, p, m, v, g, 0.3)
    for x, y in zip(got, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)
