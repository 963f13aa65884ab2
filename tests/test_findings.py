"""What comparisons found is known in later processes: forms that agreed are not compared at once again."""

import json
import os
import subprocess
import sys
import textwrap

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.runtime import comparisons, engine, programs, trials
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.findings import Findings

PROGRAM = """
    import json, os, sys
    import gtrace as gt
    if "lies" in sys.argv:
        from gtrace.core.runtime.cache import artifact_cache
        import attrs
        load = artifact_cache.load
        def lying(*args):
            made = load(*args)
            return attrs.evolve(made, run=lambda tensors: [x * 1.001 for x in made.run(tensors)])
        artifact_cache.load = lying
    if "others" in sys.argv:
        import gtrace.core.backends.toolchain as toolchain
        known = toolchain.toolchain()
        known["torch"] = "another version"
    x, y = gt.eval(gt.linspace(-1, 1, 77)), gt.eval(gt.linspace(-2, 2, 55))
    f = gt.jit(lambda x: gt.sinh(x) * 2.75 + gt.cosh(x), wait=True)
    found = [f(x).sum() for _ in range(3)] + [(gt.tanh(y) * 1.25 - gt.arctan(y) + gt.exp(y)).max() for _ in range(3)]
    found = [float(value) for value in found]
    totals = gt.stats().totals
    print(json.dumps([totals.compared, totals.disagreed, found, sorted(p.tier for p in gt.stats() if len(p.ops) > 2)]))
"""


@pytest.fixture
def process(tmp_path):
    """Runs the program in a process; returns how often it compared, what disagreed, its values and its tiers."""

    def run(*args, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
        environment = kept | {"GT_CACHE_DIR": str(tmp_path / "store"), "GT_COMPILE_AFTER": "0"} | variables
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM), *args]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.native
def test_the_next_process_compares_nothing_again(process):
    compared, disagreed, values, tiers = process()
    assert compared >= 2 and not disagreed and "compiled" in tiers
    # draws decide when the next comparison is due; within milliseconds it hardly ever is
    again = min((process() for _ in range(2)), key=lambda run: run[0])
    assert again[0] == 0 and again[1:] == [0, values, tiers]


@pytest.mark.slow
@pytest.mark.native
def test_other_settings_and_versions_compare(process):
    process()
    assert process(GT_AUDIT="1")[0] >= 6, "every call"
    assert process("others")[0] >= 2, "another version of torch"


@pytest.mark.slow
@pytest.mark.native
def test_code_that_is_found_wrong_later_is_not_believed_again(process):
    """As if it were wrong for some values only, which an audit meets."""
    right = process()[2]
    _, disagreed, values, _ = process("lies", GT_AUDIT="1")
    assert disagreed == 1 and values == pytest.approx(right, rel=1e-5)
    _, disagreed, values, tiers = process("lies")
    assert not disagreed and values == pytest.approx(right, rel=1e-5) and "compiled" not in tiers


@pytest.fixture
def later(tmp_path, monkeypatch):
    """Begins another process, as far as findings go: it returns a new engine."""
    current = None

    def begin():
        nonlocal current
        if current is not None:
            current.save()
        current = Findings()
        for module in (comparisons, trials):
            monkeypatch.setattr(module, "findings", current)
        return engine.Engine()

    with gt.config(background=True, cache_size=10**9, cache_dir=str(tmp_path)):
        yield begin


def call(engine, function, *arrays, calls=1):
    """Calls of a function; the results of the last, and how many comparisons that took."""
    before = engine.comparisons.counts.compared
    route = engine.cut(gt.make_graph(function)(*arrays), [x.to_torch().stride() for x in arrays])
    for _ in range(calls):
        results = engine.call(route, [x.to_torch() for x in arrays])
    return results, engine.comparisons.counts.compared - before


def function(x, y):
    return gt.sin(x) * 0.5 - gt.expm1(y), (x * y).sum()


def drawn(seed, size=31):
    rng = np.random.default_rng(seed)
    return [gt.array(rng.normal(size=size).astype(np.float32)) for _ in range(2)]


def test_a_comparison_is_due_after_the_time_of_all_processes(later, monkeypatch):
    assert call(later(), function, *drawn(1))[1] == 1
    for fraction, due in ((0.0, False), (1.0, True)):
        here = later()
        monkeypatch.setattr(comparisons.findings._draws, "random", lambda fraction=fraction: fraction)
        assert call(here, function, *drawn(2))[1] == 0
        assert (call(here, function, *drawn(3), calls=20)[1] > 0) is due


@settings(max_examples=30, deadline=None)
@given(seconds=st.floats(1e-4, 10), share=st.floats(0.001, 0.5), seed=st.integers(0, 1000))
def test_the_time_since_is_within_one_interval(seconds, share, seed):
    made = Findings()
    made._draws.seed(seed)
    assert 0 <= made.since(seconds, share) <= seconds / share
    assert made.since(seconds, 0.0) == 0


def test_what_disagreed_is_compared_though_it_agreed_earlier(later, monkeypatch):
    """A recording of two programs agrees; later one of the two lies, and the recording is found wrong by an audit."""
    assert call(later(), function, *drawn(1))[1] == 1
    here = later()
    make = programs.interpreted

    def lying(*args, **kwargs):
        made = make(*args, **kwargs)
        return attrs.evolve(made, run=lambda tensors: [x * 1.01 for x in made.run(tensors)])

    monkeypatch.setattr(programs, "interpreted", lying)
    with gt.config(audit=1.0), pytest.warns(gt.AuditWarning):
        results, compared = call(here, function, *drawn(4))
    assert compared == 1
    expected = [np.sin(drawn(4)[0].numpy()) * 0.5 - np.expm1(drawn(4)[1].numpy())]
    np.testing.assert_allclose(results[0].numpy(), expected[0], rtol=1e-5, atol=1e-6)
    results, compared = call(later(), function, *drawn(5))
    expected = np.sin(drawn(5)[0].numpy()) * 0.5 - np.expm1(drawn(5)[1].numpy())
    np.testing.assert_allclose(results[0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_damaged_entry_is_compared_again(later):
    assert call(later(), function, *drawn(1))[1] == 1
    later()  # writes what the first one found
    names = artifacts.store.table("gtrace-agreed.json")
    assert names
    artifacts.store.extend("gtrace-agreed.json", dict.fromkeys(names, "no number"))
    assert call(later(), function, *drawn(2))[1] == 1
