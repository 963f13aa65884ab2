"""Tensors in a file: what comparing a call takes in memory stays within a limit."""

import errno
import os

import numpy as np
import pytest
import torch
from made_up_compiler import made_up
from test_trust import lie_when_interpreted

import gtrace as gt
from gtrace.core.backends.interpreter.reference import reference, visit, wide
from gtrace.core.base.spill import Spill
from gtrace.core.runtime import comparisons, taken_inputs, whole_calls

SIZE = 60_000  # elements, so that each tensor is larger than those that always stay in memory


def drawn(kind, seed):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(SIZE,)) * 40)
    return values.to(kind) if kind is not torch.complex64 else torch.complex(values, -values).to(kind)


TENSORS = {
    "float32": lambda k: drawn(torch.float32, k),
    "bfloat16": lambda k: drawn(torch.bfloat16, k).repeat(2),
    "int8": lambda k: drawn(torch.int8, k).repeat(2),
    "bool": lambda k: drawn(torch.float32, k).repeat(2) > 0,
    "conjugate": lambda k: drawn(torch.complex64, k).conj(),
    "negative": lambda k: torch.complex(*[drawn(torch.float32, k)] * 2).conj().imag,
    "transposed": lambda k: drawn(torch.float32, k).reshape(200, 300).T,
    "with gaps": lambda k: drawn(torch.float32, k).repeat(2).reshape(300, 400)[:, ::2],
    "expanded": lambda k: drawn(torch.float32, k)[:300, None].expand(300, 200),
    "empty": lambda k: torch.empty(0, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_as_they_were(name):
    made = [TENSORS[name](k) for k in range(5)]
    spill = Spill(limit=300_000)
    kept = [spill.keep(x) for x in made]
    for _ in range(2):
        for k in (3, 0, 4, 1, 2):
            found = kept[k].get()
            assert found.dtype is made[k].dtype and torch.equal(found, made[k])
            assert name in ("with gaps", "expanded", "negative") or found.stride() == made[k].stride()
            assert spill.held <= 300_000 or made[0].nbytes > 300_000
    spill.close()


def test_places_of_dropped_tensors_are_used_again():
    spill = Spill(limit=1)
    for k in range(20):
        one, two = (spill.keep(drawn(torch.float32, j)) for j in (k, k + 1))
        assert torch.equal(one.get(), drawn(torch.float32, k)) and torch.equal(two.get(), drawn(torch.float32, k + 1))
        spill.drop(one)
        spill.drop(two)
    assert spill.held == 0 and os.fstat(spill._file.number).st_size <= 4 * 4 * SIZE


def test_a_forked_process_writes_to_a_file_of_its_own():
    spill = Spill(limit=1)
    kept = [spill.keep(drawn(torch.float32, k)) for k in range(3)]
    child = os.fork()
    code = 1
    try:
        mine = [spill.keep(drawn(torch.float32, k + (100 if child else 200))) for k in range(4)]
        right = all(torch.equal(x.get(), drawn(torch.float32, k)) for k, x in enumerate(kept))
        own = [drawn(torch.float32, k + (100 if child else 200)) for k in range(4)]
        code = int(not (right and all(torch.equal(x.get(), y) for x, y in zip(mine, own, strict=True))))
    finally:
        if not child:
            os._exit(code)
    assert code == 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def step(w, m, x):
    def loss(w):
        hidden = x
        for k in range(3):
            hidden = gt.tanh(hidden @ w[k]) + 0.125 * hidden
        return (hidden**2).mean()

    value, gradient = gt.value_and_grad(loss)(w)
    m = 0.9 * m + gradient
    return w - 0.0625 * m, m, value


def arguments():
    rng = np.random.default_rng(5)
    return [rng.normal(size=shape).astype(np.float32) * 0.125 for shape in ((3, 160, 160), (3, 160, 160), (200, 160))]


def test_a_visit_gives_what_the_reference_returns():
    graph = gt.make_graph(step)(*map(gt.array, arguments()))
    tensors = [torch.from_numpy(x) for x in arguments()]
    for around in (None, wide):
        spill, found = Spill(limit=200_000), {}
        inputs = [spill.keep(x) for x in tensors]
        visit(graph, inputs, found.__setitem__, spill, around)
        for k, x in enumerate(reference(graph, around)(tensors)):
            assert torch.equal(found[k], x)
        assert all(torch.equal(x.get(), y) for x, y in zip(inputs, tensors, strict=True))


@pytest.fixture
def little_memory(monkeypatch):
    """Let comparisons keep nothing in memory but what they compute with."""
    made = []

    class Watched(Spill):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(taken_inputs, "LEAST_MEMORY", 100_000)
    monkeypatch.setattr(taken_inputs, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr(whole_calls, "COMPARING", 0)
    monkeypatch.setattr(taken_inputs, "Spill", Watched)
    return made


def test_programs_are_compared_in_little_memory(little_memory):
    before = gt.stats().totals
    given = arguments()
    expected = [np.asarray(x, np.float64) for x in step(*[gt.array(x.astype(np.float64)) for x in given])]
    for k, x in enumerate(gt.jit(step)(*map(gt.array, given))):
        np.testing.assert_allclose(np.asarray(x), expected[k], rtol=2e-4, atol=2e-6)
    after = gt.stats().totals
    assert after.compared > before.compared and after.disagreed == before.disagreed
    assert any(spill.limit == 100_000 and not spill._inside for spill in little_memory)


def test_a_wrong_form_is_found_in_little_memory(little_memory, monkeypatch):
    lie_when_interpreted(monkeypatch)
    x = np.linspace(-2, 2, SIZE, dtype=np.float32)
    with pytest.warns(gt.AuditWarning):
        found = np.asarray(gt.sin(gt.array(x)) * 1.1875 - gt.cosh(gt.array(x)))
    np.testing.assert_allclose(found, np.sin(x) * 1.1875 - np.cosh(x), rtol=1e-5, atol=1e-5)


def test_a_full_disk_ends_the_comparison_and_not_the_program(little_memory, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = gt.stats().totals
    x = np.linspace(-2, 2, SIZE, dtype=np.float32)
    f = gt.jit(lambda x, y: (gt.sin(x) * 1.3125 - gt.cosh(y)) * gt.tanh(x))
    np.testing.assert_allclose(
        np.asarray(f(gt.array(x), gt.array(x[::-1].copy()))),
        (np.sin(x) * 1.3125 - np.cosh(x[::-1])) * np.tanh(x), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    after = gt.stats().totals
    assert after.not_compared > before.not_compared and after.compared == before.compared


def test_a_reference_that_takes_too_long_ends_the_comparison_for_good(monkeypatch):
    reasons, skip = [], comparisons.Comparisons.skip
    monkeypatch.setattr(
        comparisons.Comparisons, "skip", lambda self, *args: reasons.append(args[1]) or skip(self, *args)
    )
    monkeypatch.setattr(whole_calls, "COMPARING", 0)
    for name in ("PATIENCE", "TIMES"):
        monkeypatch.setattr(comparisons, name, 0)
    f = gt.jit(lambda w, m, x: step(w, m, x * 2.5))
    for _ in range(3):
        gt.eval(f(*map(gt.array, arguments())))
    assert reasons == ["its reference takes too long"]


def test_what_does_not_fit_into_stated_memory_is_said(monkeypatch):
    monkeypatch.setattr(taken_inputs, "LARGE", 0)
    graph = gt.make_graph(lambda x: gt.sin(x) * 1.25)(gt.ones(SIZE))
    needed = 4 * 3 * 4 * SIZE
    for free, reason in ((needed // 3, "memory"), (needed, "")):
        monkeypatch.setattr(taken_inputs, "free_memory", lambda device, free=free: free)
        assert (reason in comparisons.obstacle(graph)) if reason else not comparisons.obstacle(graph)
    monkeypatch.setattr(taken_inputs, "free_memory", lambda device: 1000.0)
    taken = taken_inputs.taken(graph, [torch.ones(SIZE)], ())
    assert taken.spill.limit == 500, "never more than half of what is free"


def test_a_long_recording_runs_as_recorded_until_comparing_it_pays(monkeypatch):
    monkeypatch.setattr(whole_calls, "AT_ONCE", 0.0)
    given, compared = list(map(gt.array, arguments())), []
    with made_up(monkeypatch):  # it is never told to compile
        f = gt.jit(lambda w, m, x: step(w, m, x * 1.5))
        for _ in range(10):
            gt.eval(f(*given))
            compared.append(gt.stats().totals.compared)
    assert len(set(compared[:6])) == 1 and compared[6] == compared[5] + 1 and len(set(compared[6:])) == 1
