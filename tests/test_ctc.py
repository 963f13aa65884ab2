"""gt.nn.ctc_loss: values and gradients against torch, and against a sum over all alignments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's usual name

import gtrace as gt
from gtrace.testing import assert_close, check_grads, check_vmap

RNG = np.random.default_rng(0)
T, N, C, S = 7, 4, 5, 3
LOGITS = RNG.normal(size=(T, N, C))
TARGETS = np.array([[1, 2, 3], [1, 1, 4], [2, 2, 2], [4, 3, 1]])
INPUTS, LENGTHS = np.array([7, 6, 7, 3]), np.array([3, 2, 3, 0])


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def ours(logits, targets, *rest, **keywords):
    return gt.nn.ctc_loss(gt.nn.log_softmax(logits, -1), targets, *rest, **keywords)


def theirs(logits, targets, *rest, **keywords):
    return F.ctc_loss(torch.log_softmax(logits, -1), torch.tensor(targets), *map(torch.tensor, rest), **keywords)


JOINED = np.concatenate([row[:n] for row, n in zip(TARGETS, LENGTHS, strict=True)])
CASES = {
    "padded": ((LOGITS, TARGETS, INPUTS, LENGTHS), {}),
    "joined": ((LOGITS, JOINED, INPUTS, LENGTHS), {}),
    "sum": ((LOGITS, TARGETS, INPUTS, LENGTHS), {"reduction": "sum"}),
    "none": ((LOGITS, TARGETS, INPUTS, LENGTHS), {"reduction": "none"}),
    "blank": ((LOGITS, TARGETS - 1, INPUTS, LENGTHS), {"blank": 4}),
    "one": ((LOGITS[:, 0], TARGETS[0], 7, 3), {}),
    "one in vain": ((LOGITS[:, 0], TARGETS[0], 2, 3), {"reduction": "none"}),
    "too short": ((LOGITS, TARGETS, np.array([2, 2, 4, 1]), LENGTHS), {"zero_infinity": True}),
    "no labels": ((LOGITS, np.zeros((N, 0), dtype=np.int64), INPUTS, 0 * LENGTHS), {}),
    "long": ((RNG.normal(size=(60, 2, C)) * 30, TARGETS[:2], np.array([60, 50]), LENGTHS[:2]), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name):
    (logits, *rest), keywords = CASES[name]
    x = torch.tensor(logits, requires_grad=True)
    want = theirs(x, *rest, **keywords)
    got = ours(logits, *rest, **keywords)
    assert got.shape == want.shape and got.dtype == gt.float64
    assert_close(got, want)
    if not want.isfinite().all():
        return
    want.sum().backward()
    grad = gt.grad(lambda x: ours(x, *rest, **keywords).sum())(logits)
    np.testing.assert_allclose(grad, x.grad, rtol=1e-8, atol=1e-11)


def test_the_sum_over_all_alignments():
    logits, labels = RNG.normal(size=(4, 3)), (1, 2)
    total = 0.0
    chances = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    for path in itertools.product(range(3), repeat=4):
        if tuple(k for k, _ in itertools.groupby(path) if k) == labels:
            total += math.prod(chances[t, k] for t, k in enumerate(path))
    assert_close(ours(logits, np.array(labels), 4, 2, reduction="sum"), -math.log(total))


@pytest.mark.slow
def test_lengths_that_are_arrays_under_jit():
    args = [gt.array(x) for x in (LOGITS, JOINED, INPUTS, LENGTHS)]
    expected = ours(*CASES["joined"][0])
    assert_close(gt.jit(ours, backend="eager")(*args), expected, check_dtype=False)
    grad = gt.jit(gt.grad(ours), backend="eager")
    np.testing.assert_allclose(grad(*args), gt.grad(ours)(*args), rtol=1e-10, atol=1e-13)
    batched = gt.vmap(ours, (0, None, 0, None))(np.stack([LOGITS] * 2), TARGETS, np.stack([INPUTS] * 2), LENGTHS)
    assert_close(batched, gt.stack([expected] * 2))


@pytest.mark.slow
def test_further_derivatives_and_batches():
    def loss(x):
        return gt.nn.ctc_loss(x, TARGETS[:2], INPUTS[:2], LENGTHS[:2])

    check_grads(loss, (LOGITS[:, :2],), order=2, rtol=1e-4, atol=1e-5)
    check_vmap(loss, (np.stack([LOGITS[:, :2], LOGITS[:, 2:]]),))


def test_impossible_sequences():
    short = np.array([2, 2, 4, 0])
    assert np.asarray(ours(LOGITS, TARGETS, short, LENGTHS, reduction="none")).tolist()[0] == math.inf
    grad = gt.grad(lambda x: ours(x, TARGETS, short, LENGTHS, zero_infinity=True))(LOGITS)
    assert np.isfinite(grad).all()
    never = np.where(np.arange(C) == 1, -math.inf, LOGITS)  # a class that cannot be
    assert ours(never, TARGETS, INPUTS, LENGTHS, reduction="none").tolist()[0] == math.inf


def test_dtypes():
    assert ours(LOGITS.astype(np.float32), TARGETS, INPUTS, LENGTHS).dtype == gt.float32
    assert ours(gt.array(LOGITS, dtype=gt.bfloat16), TARGETS, INPUTS, LENGTHS).dtype == gt.float32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ours(LOGITS[0, 0], TARGETS, INPUTS, LENGTHS), gt.ShapeError, r"\[ctc_loss\] expected log-prob"),
        (lambda: ours(LOGITS, TARGETS[:2], INPUTS, LENGTHS), gt.ShapeError, r"\[ctc_loss\] expected targets of \(4,"),
        (lambda: ours(LOGITS, TARGETS, INPUTS[:2], LENGTHS), gt.ShapeError, r"lengths of shape \(4,\), got i64\[2\]"),
        (lambda: ours(LOGITS, TARGETS, INPUTS, 3), gt.ShapeError, r"lengths of shape \(4,\)"),
        (lambda: ours(LOGITS, TARGETS, INPUTS, LENGTHS, blank=5), gt.ArgumentError, r"a blank from 0 to 4, got 5"),
        (lambda: ours(LOGITS, TARGETS, INPUTS, LENGTHS, reduction="max"), gt.ArgumentError, r"\[ctc_loss\]"),
        (lambda: ours(LOGITS, TARGETS * 0.5, INPUTS, LENGTHS), gt.DtypeError, r"expected integers"),
    ],
)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


# -- torch's function on Arrays


FORMS = {
    "lists": lambda z: z.tolist(),
    "tensors": torch.tensor,
    "arrays": gt.array,
    "NumPy": lambda z: z,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("one")])
def test_torchs_function_on_arrays(form, name):
    (logits, targets, frames, lengths), keywords = CASES[name]
    x = torch.tensor(logits, requires_grad=True)
    want = theirs(x, targets, frames, lengths, **keywords)
    (expected,) = torch.autograd.grad(want.sum(), x)

    def loss(x):
        given = map(FORMS[form], (frames, lengths))
        return F.ctc_loss(torch.log_softmax(x, -1), torch.tensor(targets), *given, **keywords)

    assert_close(loss(gt.array(logits)), want)
    if want.isfinite().all():
        found = gt.grad(lambda x: loss(x).sum())(gt.array(logits))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)


def test_torchs_function_has_torchs_gradient_by_what_is_no_logarithm_of_probabilities():
    x, rest = torch.tensor(LOGITS, requires_grad=True), (torch.tensor(TARGETS), INPUTS.tolist(), LENGTHS.tolist())
    (expected,) = torch.autograd.grad(F.ctc_loss(x, *rest), x)
    found = gt.grad(lambda x: F.ctc_loss(x, *rest))(gt.array(LOGITS))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)
    constant = gt.grad(lambda x: torch.no_grad()(F.ctc_loss)(x, *rest) + x.sum())(gt.array(LOGITS))
    np.testing.assert_array_equal(constant, np.ones_like(LOGITS))


def test_other_lengths_are_the_same_jitted_program():
    step = gt.jit(gt.value_and_grad(lambda x, *rest: F.ctc_loss(torch.log_softmax(x, -1), *rest)), backend="eager")
    for frames, lengths in ((INPUTS, LENGTHS), (INPUTS[::-1], LENGTHS[::-1]), (INPUTS - 2, LENGTHS.clip(0, 1))):
        value, slope = step(*map(gt.array, (LOGITS, TARGETS, frames.copy(), lengths.copy())))
        x = torch.tensor(LOGITS, requires_grad=True)
        want = theirs(x, TARGETS, frames.copy(), lengths.copy())
        assert_close(value, want.detach())
        if want.isfinite():
            np.testing.assert_allclose(slope, torch.autograd.grad(want, x)[0], rtol=1e-8, atol=1e-11)
    assert len(step.programs()) == 1


@pytest.mark.parametrize("frames", [[8, 6, 7, 3], [7, 6, 7], [7.0, 6.0, 7.0, 3.0]])
def test_what_torch_refuses_is_refused(frames):
    with pytest.raises((gt.ArgumentError, RuntimeError, TypeError, gt.ConcretizationError)):
        F.ctc_loss(gt.array(LOGITS), torch.tensor(TARGETS), frames, LENGTHS.tolist())


# -- repeats


def repeated(repeats, dim, size=None):
    return lambda x: torch.repeat_interleave(x, repeats, dim, output_size=size)


@pytest.mark.parametrize("dim", [0, -1, None])
@pytest.mark.parametrize("form", [torch.tensor, gt.array])
def test_repeats_that_are_an_array(dim, form):
    x = RNG.normal(size=(4, 3))
    count = x.size if dim is None else x.shape[dim]
    for k in range(3):
        repeats = (np.arange(count) * 5 + k) % 3
        for given in (repeats, repeats[:1] + 1):
            leaf = torch.tensor(x, requires_grad=True)
            want = repeated(torch.tensor(given), dim)(leaf)
            (expected,) = torch.autograd.grad((want**2).sum(), leaf)
            for function in (repeated(form(given), dim), lambda x, given=given: x.repeat_interleave(form(given), dim)):
                np.testing.assert_array_equal(function(gt.array(x)), want.detach())
                np.testing.assert_allclose(gt.grad(lambda x, f=function: (f(x) ** 2).sum())(gt.array(x)), expected)
    rows = gt.vmap(lambda x: torch.repeat_interleave(x, torch.tensor([3, 0, 2]), 0))(x)
    np.testing.assert_array_equal(rows, np.repeat(x, [3, 0, 2], 1))
    jitted = gt.jit(lambda x, r: torch.repeat_interleave(x, r, 0, output_size=7), backend="eager")
    np.testing.assert_array_equal(jitted(x, np.array([3, 0, 2, 2])), np.repeat(x, [3, 0, 2, 2], 0))


def test_repeats_that_torch_takes_or_refuses_itself():
    x = gt.arange(3.0)
    assert torch.repeat_interleave(x, 2).tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.repeat_interleave(gt.array([1, 0, 2])).tolist() == [0, 2, 2]
    assert torch.repeat_interleave(x, torch.tensor([0, 0, 0]), 0).shape == (0,)
    assert torch.repeat_interleave(gt.zeros((0, 2)), torch.zeros(0, dtype=torch.int64), 0).shape == (0, 2)
    for wrong in (torch.tensor([1, -1, 1]), torch.tensor([1, 2]), torch.tensor([1.0, 1.0, 1.0])):
        with pytest.raises((gt.ArgumentError, RuntimeError, gt.ConcretizationError)):
            torch.repeat_interleave(x, wrong, 0)
    with pytest.raises(gt.ConcretizationError):
        gt.jit(lambda x, r: torch.repeat_interleave(x, r, 0))(x, gt.array([1, 2, 0]))
