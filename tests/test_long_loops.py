"""Loops that take long in one call: they go on in blocks of steps, with the results of the whole loop."""

from __future__ import annotations

import pytest

import gtrace as gt
from gtrace.core.backends import long_loops
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.program import Program
from gtrace.core.transform.control import stepping
from gtrace.testing import assert_close

STEPS = 400


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Each look at the clock of a loop is a millisecond later: a loop is long after 100 steps, a block has 32."""
    now = iter(range(10**9))
    for module in (long_loops, stepping):
        monkeypatch.setattr(module, "perf_counter", lambda: next(now) * 1e-3)


@pytest.fixture
def blocks(monkeypatch):
    """The steps of each block that runs."""
    sizes, original = [], long_loops.LongLoop.block
    monkeypatch.setattr(
        long_loops.LongLoop, "block", lambda self, *args: sizes.append(self.steps) or original(self, *args)
    )
    return sizes


def step_by_step(f, *args):
    with gt.config(auto_compile=False):
        return gt.eval(f(*args))


def move(c, x):
    return gt.sin(c) * 0.9 + x, c.sum()


def scanned(**options):
    return lambda xs: gt.scan(move, gt.zeros(3), xs, **options)


def until(limit):
    return lambda xs: gt.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, gt.sin(s[1]) + xs[s[0]]), (0, xs[:3]))


def nested(xs):
    def outer(c, x):
        return gt.fori_loop(0, 20, lambda i, d: gt.sin(d) + x, c), c

    return gt.scan(outer, xs[:2], xs)


def branches(xs):
    def step(c, x):
        return gt.cond(x > 0.5, lambda c: c * 0.5, lambda c: gt.cos(c), c), c

    return gt.cond(xs[0] < 1, lambda xs: gt.scan(step, 0.3, xs), lambda xs: gt.scan(step, 0.1, xs), xs)


def drawn(xs):
    def step(key, x):
        key, own = gt.random.split(key)
        return key, gt.random.normal(own, (2,)) + x

    key, ys = gt.scan(step, gt.random.key(3), xs)
    return gt.random.key_data(key), ys


LOOPS = {
    "scan": scanned(),
    "reversed": scanned(reverse=True),
    "without inputs": lambda xs: gt.scan(lambda c, _: (gt.cos(c), c), xs[:2], None, length=STEPS),
    "inputs not in rows": lambda xs: gt.scan(move, gt.zeros(3), (xs[:, None] * gt.ones(3)).T.copy().T),
    "large outputs": lambda xs: gt.scan(lambda c, x: (c + x, c), gt.zeros(8192), xs)[1][::50],
    "large outputs reversed": lambda xs: gt.scan(lambda c, x: (c + x, c), gt.zeros(8192), xs, reverse=True)[1][::50],
    "no carry": lambda xs: gt.map(lambda x: gt.while_loop(lambda s: s < x * 3, lambda s: s + 1, 0.0), xs),
    "several types": lambda xs: gt.scan(
        lambda c, x: ((~c[0], c[1] * 3 + 1, c[2] + gt.float64(x)), (c[1] % 7, c[0])),
        (gt.array(True), gt.array(1, gt.int32), gt.array(0.0, gt.float64)),
        xs,
    ),
    "while": until(STEPS - 3),
    "while, ends with a block": until(101 + 64),
    "while, ends at once after a block": until(102 + 32),
    "bounds that are arrays": lambda xs: gt.fori_loop(0, gt.array(STEPS), lambda i, c: gt.sin(c) + xs[i], xs[:3]),
    "nested": nested,
    "in a branch": branches,
    "keys": drawn,
    "gradient": lambda xs: gt.grad(lambda xs: scanned()(xs)[0].sum())(xs),
    "tangent": lambda xs: gt.tree.leaves(gt.jvp(until(STEPS - 3), (xs,), (gt.ones_like(xs),))[1])[-1],
    "batched": lambda xs: gt.vmap(lambda n: gt.while_loop(lambda s: s < n, lambda s: s + 1, 0))(gt.array([150, 399])),
}
"""Functions of 400 numbers."""


@pytest.fixture
def compiled(monkeypatch):
    """Compiles programs that are a loop alone at their first call, and no others."""

    def seconds(program):
        return 0.0 if all(node.op.loop or node.op.projection for node in program.graph.nodes) else 1e9

    monkeypatch.setattr(Program, "native_seconds", property(seconds))


def compiled_by(run):
    """Return the one program that a call compiles, and its results."""
    before = {p for p in engine.programs.values() if p.forms.origin}
    results = run()
    (program,) = [p for p in engine.programs.values() if p.forms.origin and p not in before]
    return program, results


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_in_blocks_gives_what_it_gives_step_by_step(name, blocks):
    xs = gt.linspace(0, 1, STEPS)
    expected = step_by_step(LOOPS[name], xs)
    assert not blocks
    got = gt.eval(LOOPS[name](xs))
    assert blocks
    assert_close(gt.tree.leaves(got), gt.tree.leaves(expected), steps=4 * STEPS, scale=10.0)


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("reverse", [False, True])
def test_the_rest_of_a_scan_is_compiled(reverse, blocks, compiled):
    def run():
        xs = gt.linspace(0, 1, 450) + 0.0
        return gt.eval(gt.scan(lambda c, x: (gt.sin(c) * 0.8 + x, c.sum()), gt.zeros(3), xs, reverse=reverse))

    with gt.config(auto_compile=False):
        expected = run()
    compared = engine.comparisons.counts.compared
    block, got = compiled_by(run)
    assert_close(got, expected, steps=1000, scale=10.0)
    assert blocks == [32] * 10
    assert block.ledger.compiled_calls == 10
    assert engine.comparisons.counts.compared == compared + 1


@pytest.mark.slow
@pytest.mark.native
def test_the_rest_of_a_while_loop_is_compiled(blocks, compiled):
    def run():
        limit = gt.ones(()) * 450.0
        return gt.eval(
            gt.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, gt.sin(s[1]) * 0.9 + 1), (0.0, gt.ones(3)))
        )

    with gt.config(auto_compile=False):
        expected = run()
    block, got = compiled_by(run)
    assert_close(got, expected, steps=1000, scale=10.0)
    assert blocks == [32] * 11
    assert block.ledger.compiled_calls == 11


def worth_compiling(x):
    for _ in range(10):
        x = gt.sin(x) * 0.5 + 1.0
    return x


def test_each_step_calls_python_once_and_in_order(blocks):
    seen = []

    def step(c, x):
        gt.io_callback(lambda x: seen.append(round(float(x))), None, x, ordered=True)
        return c + x, worth_compiling(c)

    gt.eval(gt.scan(step, 0.0, gt.arange(float(STEPS)) + 0.0))
    assert blocks
    assert seen == list(range(STEPS))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_a_block_ends_the_loop_and_nothing_else(error, blocks):
    at = 250

    def look(x):
        if round(float(x)) == at:
            raise error("stop")
        return x

    def run():
        def step(c, x):
            return c + gt.pure_callback(look, gt.ShapeDtypeStruct((), gt.float32), x), worth_compiling(c)

        return gt.scan(step, 0.0, gt.arange(float(STEPS)) + 0.0)[0]

    with pytest.raises(error, match="stop"):
        gt.eval(run())
    assert blocks
    blocks.clear()
    at = -1
    assert float(run()) == STEPS * (STEPS - 1) / 2
    assert blocks


def test_values_that_torch_refuses_in_a_block_name_the_users_line(blocks):
    xs = gt.arange(STEPS)[::-1] + 0
    with pytest.raises(gt.ExecutionError, match="test_long_loops"):
        gt.eval(gt.scan(lambda c, x: ((100 + c % 2) // x, c), 0, xs))
    assert blocks


@pytest.mark.parametrize(
    "options",
    [{"deterministic": True}, {"auto_compile": False}, {"hot_threshold": 5}, {"debug_nans": True}],
    ids=str,
)
def test_loops_go_on_in_blocks_only_where_time_decides(options, blocks):
    with gt.config(**options):
        gt.eval(scanned()(gt.linspace(0, 1, STEPS) + 0.0))
    assert not blocks


def long_scan(xs):
    return gt.scan(lambda c, x: (gt.cos(c) * 0.7 + x, None), xs[:2], xs)[0]


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("donated", [(), (0,)])
def test_a_call_that_began_before_its_code_was_there_is_made_by_the_code(donated, blocks, tmp_path):
    # interpreted, these steps take minutes; as blocks, or by the code of the whole, a moment
    xs = gt.eval(gt.linspace(0, 1, 3_000_000 + len(donated)))
    engine.tiering._made.clear()  # code for another length
    before = set(engine.programs.values())
    with gt.config(background=True, cache_dir=str(tmp_path), jit_wait=0.0):
        result = gt.eval(gt.jit(long_scan, donate_argnums=donated)(xs))
    (whole,) = [p for p in engine.programs.values() if p not in before and p.has_calls]
    assert (whole.ledger.interpreted_calls, whole.ledger.compiled_calls, blocks) == (1, 1, [])
    assert_close(result, long_scan(gt.linspace(0.9999, 1, 300)), steps=1000)  # it forgets where it began


@pytest.mark.slow
@pytest.mark.native
def test_an_interpreted_call_of_a_trial_that_has_clearly_lost_is_ended():
    xs = gt.eval(gt.linspace(0, 1, 200_003))
    f, before = gt.jit(long_scan, wait=True), set(engine.programs.values())
    first = gt.eval(f(xs))
    (whole,) = [p for p in engine.programs.values() if p not in before and p.has_calls]
    for _ in range(2000):
        if whole.forms.trial is None:
            break
        assert (gt.eval(f(xs)) == first).all()
    assert whole.ledger.interpreted_calls >= 6 and whole.tier == "compiled"
    assert whole.ledger.interpreted_call is None  # none of them ended by itself


def test_the_trial_of_the_whole_loop_knows_that_it_would_take_long_without_blocks(monkeypatch):
    def run():
        xs = gt.linspace(0, 1, STEPS) * 2.0
        return gt.eval(gt.scan(lambda c, x: (gt.cos(c) * 0.7 + x, c), gt.zeros(2), xs))

    before = set(engine.programs.values())
    run()
    (whole,) = [p for p in engine.programs.values() if p not in before and len(p.graph.nodes) > 3]
    assert whole.ledger.interpreted_calls == 1
    assert whole.ledger.interpreted_call is None
    assert whole.ledger.expected > 0.0
