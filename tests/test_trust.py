"""Forms that are wrong, planted on purpose: results stay right, with one warning, and the form is not used again."""

from __future__ import annotations

import os
import re
import runpy
import time
import warnings

import attrs
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.commands import doctor
from gtrace.core.backends.native import library
from gtrace.core.backends.native.generator import generate
from gtrace.core.base.mechanisms import COMPARISONS
from gtrace.core.ir.pipeline import Pass
from gtrace.core.passes import whole_program
from gtrace.core.passes.norm_operators import LayerNorm
from gtrace.core.runtime import comparisons, compilation, programs, reports
from gtrace.core.runtime import engine as engines
from gtrace.core.runtime.cache import store as stores
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.findings import findings
from gtrace.core.runtime.cache.folder import WRONG
from gtrace.core.runtime.first_calls import NewSizes
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def without_a_store():
    """What one test has found out, another one does not know."""
    gt.config.update(cache_size=0)


@pytest.fixture
def kept(tmp_path):
    """A store."""
    with gt.config(background=True, cache_size=10**9, cache_dir=str(tmp_path)):
        yield artifacts.store


@pytest.fixture
def counts():
    """Comparisons from here on."""
    before = gt.stats().totals

    def since():
        now = gt.stats().totals
        return now.compared - before.compared, now.disagreed - before.disagreed

    return since


def lying(name, lie):
    """A wrapper of a function that makes executables, which makes them lie."""
    make = name

    def made(*args, **kwargs):
        executable = make(*args, **kwargs)
        return attrs.evolve(executable, run=lambda tensors: lie(executable.run, tensors))

    return made


def loses_a_term(run, tensors):
    return [x + 1e-4 * x.abs().clamp(min=1e-3) if x.is_floating_point() else x for x in run(tensors)]


def returns_its_input(run, tensors):
    first = tensors[0]
    return [first.clone() if first.shape == x.shape and first.dtype is x.dtype else x for x in run(tensors)]


def is_off_in_one_row(run, tensors):
    return [torch.cat([x[:1] * 2, x[1:]]) if x.dim() else x for x in run(tensors)]


def writes_over_an_input(run, tensors):
    kept = list(tensors)
    results = run(tensors)
    kept[0].mul_(2)
    return results


LIES = [loses_a_term, returns_its_input, is_off_in_one_row, writes_over_an_input]


def f(x, y):
    return gt.sin(x) * y + gt.tanh(x - y) * 0.37


def arrays(rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [gt.from_torch(torch.randn(rows, 5, generator=generator)) for _ in range(2)]


def expected(x, y):
    x, y = (np.asarray(a, np.float64) for a in (x, y))
    return np.sin(x) * y + np.tanh(x - y) * 0.37


def warned(caught):
    texts = [str(w.message) for w in caught if issubclass(w.category, gt.AuditWarning)]
    assert all("gtrace bisect script.py" in text for text in texts)
    assert all(w.filename == __file__ for w in caught if issubclass(w.category, gt.AuditWarning))
    return len(texts)


@pytest.mark.parametrize("lie", LIES)
def test_an_interpreted_form_that_lies(monkeypatch, lie, counts):
    monkeypatch.setattr(programs, "interpreted", lying(programs.interpreted, lie))
    name = ("negative", "abs", "square", "exp")[LIES.index(lie)]  # a program for each
    with gt.config(auto_compile=False), pytest.warns(gt.AuditWarning) as caught:
        for k in range(4):
            x, y = arrays(seed=k)
            before = np.array(x)
            right = getattr(np, name)(expected(x, y)).astype(np.float32)
            assert_close(gt.eval(getattr(gt, name)(f(x, y))), right, scale=4)
            assert np.array_equal(x, before)
    assert warned(caught) == 1 and counts()[1] == 1


@pytest.mark.parametrize("lie", LIES)
def test_a_compiled_form_that_lies(monkeypatch, lie, counts):
    finish = compilation.Compilation.finish

    def finished(self, results):
        code = finish(self, results)
        right = code.executable
        return attrs.evolve(code, executable=attrs.evolve(right, run=lambda tensors: lie(right.run, tensors)))

    monkeypatch.setattr(compilation.Compilation, "finish", finished)
    function = gt.jit(lambda x, y: f(x, y) * 1.5 + float(LIES.index(lie)), wait=True, backend="eager")
    with pytest.warns(gt.AuditWarning) as caught:
        for k in range(4):
            x, y = arrays(seed=k)
            before = np.array(x)
            right = expected(x, y) * 1.5 + float(LIES.index(lie))
            assert_close(function(x, y), right.astype(np.float32), scale=4)
            assert np.array_equal(x, before)
    (program,) = function.programs()
    assert program.tier == "demoted" and "audit: " in program.forms.reason
    assert warned(caught) == 1 and counts()[1] == 1


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("place", [30, -1])
def test_native_code_that_writes_beyond_its_results(monkeypatch, place, counts):
    def strays(graph):
        code = generate(graph)
        return attrs.evolve(code, text=code.text.replace("return refused", f"o0[{place}] = 1; return refused"))

    monkeypatch.setattr(library, "generate", strays)
    number = place + 0.375
    function = gt.jit(lambda x, y: f(x, y) * number, wait=True)
    with pytest.warns(gt.AuditWarning, match="wrote beyond the memory of its results") as caught:
        for k in range(3):
            x, y = arrays(seed=k)
            assert_close(function(x, y), (expected(x, y) * number).astype(np.float32), scale=8)
    assert warned(caught) == 1 and counts()[1] == 1
    (program,) = function.programs()
    assert program.tier == "demoted"


def test_a_fork_in_the_middle_of_a_comparison(monkeypatch):
    """The child compares by itself, and the parent goes on."""
    run, children = comparisons.visit, []

    def forking(*args):
        monkeypatch.setattr(comparisons, "visit", run)
        children.append(os.fork())
        return run(*args)

    monkeypatch.setattr(comparisons, "visit", forking)
    x, y = arrays(seed=1)
    code = 1
    try:
        for k in range(3):  # the first call forks, the second one compares, if it is due
            assert_close(gt.eval(f(x, y) * 2.8125 + k), (expected(x, y) * 2.8125 + k).astype(np.float32), scale=8)
        code = 0
    finally:
        if children == [0]:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def normed(x, w):
    centred = x - x.mean(-1, keepdims=True)
    return gt.tanh((centred / gt.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)) @ w).sum(-1)


def test_a_norm_with_another_eps(monkeypatch):
    forward = LayerNorm.forward

    def other(self, make, given, *rest):
        return forward(self, make, attrs.evolve(given, eps=given.eps + 1e-3), *rest)

    monkeypatch.setattr(LayerNorm, "forward", other)
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(32, 8, generator=generator)
    with gt.config(auto_compile=False), pytest.warns(gt.AuditWarning) as caught:
        for _ in range(3):
            x = torch.randn(16, 32, generator=generator)
            got = gt.tanh(gt.nn.layer_norm(gt.from_torch(x), 32) @ gt.from_torch(w)).sum(-1)
            right = torch.tanh(torch.nn.functional.layer_norm(x.double(), (32,)) @ w.double()).sum(-1)
            assert_close(got, right.float().numpy(), scale=40)
    assert warned(caught) == 1


def test_the_deterministic_mode_runs_what_was_recorded():
    generator = torch.Generator().manual_seed(1)
    x, w = (gt.from_torch(torch.randn(64, 64, generator=generator)) for _ in range(2))
    right = gt.ir.evaluate(gt.make_graph(normed)(x, w), x, w)[0]
    jitted = gt.jit(normed, wait=True)
    forms = []
    for function in (normed, jitted, jitted, normed):
        with gt.config(deterministic=True):
            forms.append(function(x, w).to_torch())
        gt.eval(function(x, w))
    assert all(torch.equal(form, right) for form in forms)


def test_a_rewrite_of_a_recording_that_is_wrong(monkeypatch):
    swap_differences(monkeypatch)

    def long(x, y, times):
        for _ in range(times):
            x = gt.sin(x) * 0.5 - gt.cos(y)
        return x

    with gt.config(auto_compile=False):
        for times in (1, 40):
            with pytest.warns(gt.AuditWarning, match="rewritten into a wrong one") as caught:
                for k in range(3):
                    x, y = arrays(seed=k)
                    right, other = (np.asarray(a, np.float64) for a in (x, y))
                    for _ in range(times):
                        right = np.sin(right) * 0.5 - np.cos(other)
                    assert_close(gt.eval(long(x, y, times)), right.astype(np.float32), scale=300)
            assert warned(caught) == 1


def test_code_that_is_wrong_for_one_size(monkeypatch, counts):
    find = compilation.Compilation.finish

    def finished(self, results):
        code = find(self, results)
        right = code.executable

        def run(tensors):
            out = right.run(tensors)
            return [x + 1 for x in out] if tensors[0].shape[0] == 9 else out

        return attrs.evolve(code, executable=attrs.evolve(right, run=run))

    monkeypatch.setattr(compilation.Compilation, "finish", finished)
    function = gt.jit(lambda x, y: f(x, y) * 1.75, wait=True, backend="eager")
    with pytest.warns(gt.AuditWarning) as caught:
        for rows in (3, 5, 9, 9, 3, 7):
            x, y = arrays(rows)
            assert_close(function(x, y), (expected(x, y) * 1.75).astype(np.float32), scale=4)
    assert warned(caught) == 1 and counts()[1] == 1


def test_later_calls_are_compared_for_a_share_of_the_time(counts):
    with gt.config(auto_compile=False):
        for share, least, most in ((0.0, 1, 1), (1.0, 20, 20)):
            before = counts()[0]
            with gt.config(audit=share):
                for k in range(20):
                    x, y = arrays(seed=k)
                    gt.eval(f(x, y) * (2.25 + share))
            assert least <= counts()[0] - before <= most


def test_each_call_of_a_rewritten_recording_is_compared_if_somebody_asks(counts):
    x, w = gt.ones((16, 32)) * gt.linspace(-1, 1, 32), gt.ones((32, 8))
    gt.eval((x, w))
    with gt.config(auto_compile=False):
        gt.eval(normed(x, w) * 1.125)
        before = counts()[0]
        with gt.config(audit=1.0):
            for _ in range(5):
                gt.eval(normed(x, w) * 1.125)
        assert counts()[0] == before + 5


# -- remembered, reported, explained


def compared_again(function, *arrays):
    """What another process computes, and the programs that it runs."""
    other = engines.Engine()
    route = other.cut(gt.make_graph(function)(*arrays), [x.to_torch().stride() for x in arrays])
    return other.call(route, [x.to_torch() for x in arrays]), other.comparisons.counts


def swap_differences(monkeypatch):
    """Have a rewriting exchange the operands of differences."""

    def swapped(graph):
        nodes = tuple(
            attrs.evolve(n, ins=n.ins[::-1], instr=n.op.instr(n.params, n.instr.ins[::-1])) if n.op.name == "sub" else n
            for n in graph.nodes
        )
        return attrs.evolve(graph, nodes=nodes)

    passes = (*whole_program.SIMPLIFIED.passes, Pass("swapped", swapped))
    monkeypatch.setattr(engines, "SIMPLIFIED", attrs.evolve(whole_program.SIMPLIFIED, passes=passes, when=None))


@pytest.mark.parametrize("plant", ["interpreted", "rewritten"])
def test_a_later_process_does_not_run_a_wrong_form_and_does_not_warn_again(monkeypatch, kept, plant):
    def function(x, y):
        return gt.sin(x) * 0.5 - gt.expm1(y)

    if plant == "interpreted":
        monkeypatch.setattr(programs, "interpreted", lying(programs.interpreted, loses_a_term))
    else:
        swap_differences(monkeypatch)
    x, y = arrays()
    right = (np.sin(np.asarray(x, np.float64)) * 0.5 - np.expm1(np.asarray(y, np.float64))).astype(np.float32)
    for expected_here in (1, 0, 0):
        gt.config.update(cache_dir=str(kept.given))  # the store is read again
        with pytest.warns() as caught:
            (got,), counted = compared_again(function, x, y)
            warnings.warn("the end", stacklevel=1)
        assert_close(got, right, scale=4)
        assert sum(issubclass(w.category, gt.AuditWarning) for w in caught) == expected_here == counted.disagreed
    assert kept.forget_table(WRONG) == 1
    findings.keep_wrong("another form", "read again")
    with pytest.warns(gt.AuditWarning):
        compared_again(function, x, y)


FORMS = {
    "rewritten": (lambda f: f, "sub"),
    "compiled": (lambda f: gt.jit(f, wait=True), "sub"),
}


@pytest.mark.parametrize("form", ["rewritten", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_report_is_a_script_that_shows_the_difference(monkeypatch, kept, form, capsys):
    made, place = FORMS[form]
    if form == "compiled":
        finish = compilation.Compilation.finish

        def finished(self, results):
            code = finish(self, results)
            right = code.executable
            names = [node.op.name for node in self.program.graph.nodes]
            run = right.run if place not in names else lambda x: loses_a_term(right.run, x)
            return attrs.evolve(code, executable=attrs.evolve(right, run=run))

        monkeypatch.setattr(compilation.Compilation, "finish", finished)
    else:
        swap_differences(monkeypatch)
    function = made(lambda x, y, k: (gt.sin(x) * 0.625 - gt.sinh(y), k + 1))
    small, large = [gt.from_torch(x.to_torch().T) for x in arrays()], [gt.full((4, 5), value) for value in (2.0, 0.5)]
    for inputs, most in (((*small, gt.array([3, 2**40])), 1000), ((*large, gt.array([2])), 100)):
        monkeypatch.setattr(reports, "MAX_INPUTS", most)
        gt.eval(inputs)
        with pytest.warns(gt.AuditWarning, match="gtrace bisect .*py") as caught:
            gt.eval(function(*inputs))
        path = kept.reports()[-1]
        assert str(path) in str(caught[0].message) and re.search("of sub( .*)?: ", str(caught[0].message))
        text = path.read_text()
        assert ("drawn(0.5, 0.5" in text) == (inputs[2].size == 1)
        assert "# torch: " in text and "# isa: " in text
        assert ("# code: 5 operations by C++" in text and "#include" in text) == (form == "compiled")
        monkeypatch.setattr(COMPARISONS, "on", False)
        monkeypatch.setenv("GT_DISABLE", "")
        monkeypatch.setenv("GT_CACHE_SIZE", "")
        engines.engine.programs.clear()
        engines.engine.recordings.clear()
        with pytest.raises(SystemExit, match=r"of sub.*: .* elements"), gt.config(cache_size=0):
            runpy.run_path(path)
        assert re.search("wrong from this operation on: .* = sub", capsys.readouterr().out)
        monkeypatch.setattr(COMPARISONS, "on", True)
    found = [finding.found for finding in doctor._reports()]
    assert len(found) == 2
    for path, line in zip(kept.reports(), found, strict=True):
        assert str(path) in line and "into a wrong one: result" in line


def test_reports_are_few_and_belong_to_the_store(monkeypatch, kept):
    monkeypatch.setattr(stores, "MAX_REPORTS", 3)
    paths = [kept.keep_report(f"# report {k}") for k in range(5)]
    assert kept.reports() == paths[2:]
    kept.prune(0)
    assert kept.reports() == paths[2:]
    kept.clear()
    assert kept.reports() == []


def test_explain_says_what_was_compared():
    function = gt.jit(lambda x: gt.tanh(x * 3.375) - gt.sum(x), backend="eager")
    x = gt.linspace(-1, 1, 50)
    with gt.config(audit=1.0):
        for times in ("once, in call 1: ", "2 times, last, in call 2: "):
            gt.eval(function(x))
            text = str(gt.explain(function))
            assert f"compared with the recorded program {times}results were " in text
    alone = gt.jit(lambda x: gt.pure_callback(lambda x: x, x, x * 3.375), backend="eager")
    gt.eval(alone(x))
    assert "not compared: Python functions would notice a second run" in str(gt.explain(alone))


# -- ways to run a program, with a form that lies in each


def forget_programs():
    engines.engine.programs.clear()
    engines.engine.recordings.clear()
    engines.engine.sizes = NewSizes(engines.engine)


def lie_when_interpreted(monkeypatch, lie=loses_a_term):
    monkeypatch.setattr(programs, "interpreted", lying(programs.interpreted, lie))


def lie_when_compiled(monkeypatch, lie=loses_a_term):
    finish = compilation.Compilation.finish

    def finished(self, results):
        code = finish(self, results)
        right = code.executable.run
        return attrs.evolve(code, executable=attrs.evolve(code.executable, run=lambda tensors: lie(right, tensors)))

    monkeypatch.setattr(compilation.Compilation, "finish", finished)


def updated(jit):
    """A step of a state that is written over."""
    step = jit(lambda m, g: m * 0.9 + gt.tanh(g) * 0.1625, wait=True, donate_argnums=0)
    g, m = arrays()[0], gt.zeros((6, 5)) + 1
    for _ in range(4):
        m = gt.eval(step(m, g))
    return m


def drawn_with_keys(jit):
    key, total = gt.random.key(3), 0.0
    for _ in range(3):
        key, one = gt.random.split(key)
        total = gt.eval(total + gt.sin(gt.random.normal(one, (40, 9)) * 1.625))
    return total


def looped(jit):
    step = jit(lambda x: gt.fori_loop(0, 20, lambda i, c: gt.sin(c) * 1.0625 + i * 0.01, x), wait=True)
    return [gt.eval(step(arrays(seed=k)[0])) for k in range(3)]


def branched(jit):
    step = jit(lambda x: gt.cond(x.sum() > 0, lambda x: gt.sin(x) * 2.0625, lambda x: gt.cos(x) * 3.0625, x), wait=True)
    return [gt.eval(step(arrays(seed=k)[0])) for k in range(4)]


def with_layers(jit):
    """A program of equal layers, which is divided."""
    w = gt.from_torch(torch.linspace(-1, 1, 25).reshape(5, 5))
    results = []
    for k in range(3):
        x = arrays(seed=k)[0]
        for _ in range(30):
            x = gt.tanh(x @ w + x * 0.5) * 1.0625 - gt.mean(x, axis=1, keepdims=True)
        results.append(gt.eval(x))
    return results


def of_new_sizes(jit):
    return [gt.eval(gt.sin(x) * y * 1.4375) for x, y in (arrays(rows) for rows in (2, 3, 4, 5, 6, 7, 3, 7))]


def expanded(jit):
    x = gt.from_torch(torch.linspace(-1, 1, 5).expand(6, 5))
    return [gt.eval(gt.sin(x) * 1.8125 + 0.25), x]


def differentiated(jit):
    grad = jit(gt.grad(lambda x, y: (gt.sin(x) * y).sum() * 1.9375), wait=True)
    return [gt.eval(grad(*arrays(seed=k))) for k in range(3)]


WAYS = [updated, drawn_with_keys, looped, branched, with_layers, of_new_sizes, expanded, differentiated]


def does_both(run, tensors):
    """Lose a term of each result, and write over an input."""
    first = tensors[0]
    results = loses_a_term(run, tensors)
    if first.is_floating_point():
        (first[:1] if first.dim() else first).mul_(2)
    return results


@pytest.mark.parametrize("plant", [lie_when_interpreted, pytest.param(lie_when_compiled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_a_lie_in_each_way_to_run_a_program(monkeypatch, way, plant, counts):
    gt.config.update(auto_compile=plant is lie_when_compiled)
    jitted = gt.jit if plant is lie_when_compiled else lambda f, **_: f

    def run():
        return way(jitted)

    with gt.config(deterministic=True):
        right = gt.tree.leaves(run())
    forget_programs()
    plant(monkeypatch, does_both)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = gt.tree.leaves(run())
    for a, b in zip(got, right, strict=True):
        assert_close(a, b, scale=8, steps=200)
    compiles = way in (updated, looped, branched, differentiated)
    if plant is lie_when_interpreted or compiles:
        assert 1 <= warned(caught) <= counts()[1]


@pytest.mark.parametrize("plant", [lie_when_interpreted, lie_when_compiled])
def test_a_form_that_is_right_at_first_is_found_out_later(monkeypatch, plant):
    calls = []

    def lie(run, tensors):
        calls.append(None)
        return run(tensors) if len(calls) < 4 else loses_a_term(run, tensors)

    forget_programs()
    plant(monkeypatch, lie)
    function = gt.jit(lambda x: gt.sin(x) * 1.5625 + gt.cos(x), wait=True)
    x = arrays()[0]
    right = np.sin(np.asarray(x, np.float64)) * 1.5625 + np.cos(np.asarray(x, np.float64))
    end = time.monotonic() + 300  # beside other processes a comparison takes long, and audits are rarer
    with gt.config(audit=0.9, auto_compile=plant is lie_when_compiled), pytest.warns(gt.AuditWarning) as caught:
        while time.monotonic() < end:
            got = gt.eval(function(x) if plant is lie_when_compiled else gt.sin(x) * 1.5625 + gt.cos(x))
            if caught.list:
                break
        assert_close(got, right.astype(np.float32), scale=4)
    assert warned(caught) == 1


def test_a_callback_beside_a_lie_runs_once(monkeypatch):
    seen = []

    def note(x):
        seen.append(x)
        return x * 1.0

    with gt.config(auto_compile=False):
        for _ in range(3):
            x = arrays()[0]
            y = gt.pure_callback(note, x, gt.sin(x) * 1.0625)
            assert_close(gt.eval(y * 2.0), np.sin(np.asarray(x)) * 2.125, scale=4)
    assert len(seen) == 3


def test_an_interrupt_in_a_comparison_leaves_the_form_on_trial(monkeypatch):
    lie_when_interpreted(monkeypatch)
    run = comparisons.visit

    def interrupted(*args):
        monkeypatch.setattr(comparisons, "visit", run)
        raise KeyboardInterrupt

    def function(x):
        return gt.sin(x) * 1.0625 - gt.cosh(x)

    monkeypatch.setattr(comparisons, "visit", interrupted)
    x = arrays()[0]
    y = function(x)
    with pytest.raises(KeyboardInterrupt):
        gt.eval(y)
    right = (np.sin(np.asarray(x, np.float64)) * 1.0625 - np.cosh(np.asarray(x, np.float64))).astype(np.float32)
    with pytest.warns(gt.AuditWarning):
        assert_close(gt.eval(y), right, scale=4)
    assert_close(gt.eval(function(x)), right, scale=4)
