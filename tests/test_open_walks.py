"""What is recorded once for all sizes: rules of derivatives, backward walks, library functions, named calls."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.base.errors import GtraceError
from gtrace.core.ir.graph import DeferredSubgraph, Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.trace.capture import capture
from gtrace.core.trace.open_programs import Conditions, Count, Number, changes, filled, split, tried
from gtrace.core.transform import open_pullbacks, tape
from gtrace.core.transform.open_rules import open_rule, recorder, sizes_of
from gtrace.testing import assert_close
from gtrace.testing.samples import sampled


def all_instructions(op):
    for params, kinds in sampled(op):
        try:
            yield op.instr(params, kinds)
        except GtraceError:
            continue


def arrays_of(instr):
    """Arrays of the types of an instruction's operands, with Scalars for weak numbers, its result and a cotangent."""
    made = []

    def run(arrays):
        made.extend(arrays)
        return arrays, None

    capture(run, [*instr.ins, instr.aval, instr.aval], "a test")
    *operands, out, ct = made
    numbers = iter((0.75, 1.5, 2.25))
    return [
        Scalar(next(numbers), a) if instr.op.elementwise and a.weak and a.floating and not a.shape else x
        for x, a in zip(operands, instr.ins, strict=True)
    ], out, ct  # fmt: skip


def other_sizes(rng, sizes, conditions):
    """Sizes that fulfil the conditions of a program."""
    order = conditions.orders[0] if conditions.orders else ()
    own = [int(n) for n in rng.choice([*range(2, 400), 5003, 30011], len(sizes), replace=False)]
    if order:
        own = [n for _, n in sorted(zip(order, sorted(own), strict=True))]
    own = [dict(conditions.kept).get(k, n) for k, n in enumerate(own)]
    for k, places, offset in conditions.products:
        own[k] = int(np.prod([own[j] for j in places])) + offset
    return tuple(own)


def bound(value, sizes, numbers):
    if isinstance(value, Number):
        return value.of(numbers[value.place])
    return value.of(sizes) if isinstance(value, Count) else value


@pytest.mark.parametrize("name", sorted(n for n, op in REGISTRY.items() if op.rules.nondiff is None))
def test_a_rule_records_its_program_at_other_sizes(name):
    """The sizes are drawn, and none of those for which the program was found."""
    rng = np.random.default_rng(len(name))
    for instr in all_instructions(REGISTRY[name]):
        known = sizes_of(instr)
        if known is None or not instr.aval.floating or not any(a.floating for a in instr.ins):
            continue
        operands, out, ct = arrays_of(instr)
        needed = [x.__class__ is not Scalar and x.aval.floating for x in operands]
        found = open_rule(tape._rule, instr, operands, out, ct, needed, ())
        if found is None:
            continue
        numbers = [x.value for x in operands if isinstance(x, Scalar)]
        arrays = [*[x for x in operands if not isinstance(x, Scalar)], out, ct]
        record = recorder(tape._rule, instr, operands, range(len(arrays)), needed)
        for _ in range(8):
            sizes = other_sizes(rng, known[0], found.program.conditions)
            if len(set(sizes)) < len(sizes) or not found.program.conditions.hold(sizes):
                continue
            others = numbers if found.fixed else [x + 0.125 for x in numbers]
            graph, _ = record(changes(known[0], sizes), others)
            assert graph.outputs == found.program.outputs
            for node, (op, params, ins, scalars) in zip(graph.nodes, found.program.steps, strict=True):
                assert node.op is op and node.params == filled(params, sizes)
                assert [x if isinstance(x, int) else x.aval for x in node.ins] == list(ins)
                own = [x.value for x in node.ins if isinstance(x, Scalar)]
                assert own == [bound(x, sizes, others) for x in scalars]


def test_most_rules_have_one_program():
    """The search above would find nothing to compare if no rule had one."""
    kinds = collections.Counter()
    for op in REGISTRY.values():
        if op.rules.nondiff is None and op.elementwise and not op.params:
            for instr in all_instructions(op):
                if sizes_of(instr) is not None and instr.aval.floating and all(a.floating for a in instr.ins):
                    operands, out, ct = arrays_of(instr)
                    needed = [x.__class__ is not Scalar for x in operands]
                    kinds[open_rule(tape._rule, instr, operands, out, ct, needed, ()) is not None] += 1
    assert kinds[True] > 20 * kinds[False]


def test_a_pattern_tells_sizes_from_other_integers():
    assert split([(20, 7)], [((0, 1), 19, -20, 7)])[1] == split([(30, 5)], [((0, 1), 29, -30, 5)])[1]
    assert split([(20, 7)], [(19,)])[1] != split([(20, 7)], [(18,)])[1]
    assert split([(20, 20)])[1] != split([(20, 7)])[1], "equal sizes are another pattern"
    assert split([(20, 1)])[1] != split([(20, 2)])[1], "a size of 1 broadcasts"
    assert split([(20,), (7,)])[1] != split([(20, 7)])[1]
    assert split([tuple(range(2, 99))]) is None


@pytest.mark.parametrize(
    ("function", "opens"),
    [
        (lambda x: x * 2 if x.shape[0] < 10_000 else x * 3, False),
        (lambda x: x * 2 if x.shape[0] % 2 else x * 3, False),
        (lambda x: x * 2 if x.shape[0] > 3 else x * 3, False),
        (lambda x: x[: max(x.shape[0] // 2, 1)], False),
        (lambda x: x * 2 if x.shape[0] > 0 else x * 3, True),
        (lambda x: x.reshape((1, x.shape[0])) * x.shape[0], True),
    ],
)
def test_functions_that_do_something_else_at_other_sizes_have_no_program(function, opens):
    def record(others, _):
        made = capture(lambda xs: ([function(xs[0])], None), [gt.ir.aval((others[50],), gt.float32)], "a test")
        return made.graph, made.result

    assert (tried(record, (50,)) is not None) is opens


def test_conditions():
    held = Conditions(((2, (0, 1), 0),), ((0, 1),), ((3, 8),))
    assert held.hold((3, 5, 15, 8))
    assert not held.hold((3, 5, 16, 8)) and not held.hold((5, 3, 15, 8)) and not held.hold((3, 5, 15, 9))


class Programs:
    """Losses as people write them, with torch beside. Sizes that change are n and b."""

    @staticmethod
    def mlp(m, w, x, n):
        h = x @ w["a"]
        h = h / (1 + m.exp(-h)) + 0.5 * h
        return ((h @ w["b"]) ** 2).sum() / n

    @staticmethod
    def slices(m, w, x, n):
        h = x @ w["a"]
        left, right = h[:, :4], h[:, 4:]
        return (m.tanh(left * right)[: n - 1] ** 2).mean() + (h[1:] * h[:-1]).sum() / (n * n)

    @staticmethod
    def reshaped(m, w, x, n):
        h = (x @ w["a"]).reshape((n, 2, 4))
        h = m.softmax(h, -1).reshape((n * 2, 4))
        return (h @ w["c"]).mean()

    @staticmethod
    def powers(m, w, x, n):
        return ((x @ w["a"]) ** 3 * (1.0 / n)).sum() + (m.exp(x * 0.1) ** (1.0 + 1.0 / n)).mean() + 0.0 * w["b"].sum()


class Gt:
    exp, tanh = gt.exp, gt.tanh
    softmax = staticmethod(lambda x, axis: gt.nn.softmax(x, axis=axis))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "slices", "reshaped", "powers"])
@pytest.mark.parametrize("jitted", [False, True])
def test_walks_of_new_sizes_are_appended_and_right(name, jitted, monkeypatch):
    replayed = collections.Counter()
    original = open_pullbacks.OpenPullback.replay

    def replay(self, trace, sizes, inputs):
        found = original(self, trace, sizes, inputs)
        replayed[found is not None] += 1
        return found

    monkeypatch.setattr(open_pullbacks.OpenPullback, "replay", replay)
    rng = np.random.default_rng(3)
    w = {k: rng.standard_normal(s).astype(np.float32) for k, s in {"a": (6, 8), "b": (8, 3), "c": (4, 2)}.items()}
    ours, program = {k: gt.array(v) for k, v in w.items()}, getattr(Programs, name)
    f = gt.value_and_grad(lambda w, x, n: program(Gt, w, x, n))
    if jitted:
        f = gt.jit(f, static_argnums=2)
    for n in (31, 40, 12, 17, 8, 6, 4, 2, 1, 3, 90, 50, 61, 31, 40):
        if name == "slices" and n < 2:
            continue
        x = rng.standard_normal((n, 6)).astype(np.float32)
        value, grads = f(ours, gt.array(x), n)
        theirs = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in w.items()}
        expected = program(torch, theirs, torch.tensor(x, dtype=torch.float64), n)
        expected.backward()
        np.testing.assert_allclose(float(value), expected.item(), rtol=1e-5)
        for k, g in grads.items():
            other = theirs[k].grad
            other = np.zeros(w[k].shape) if other is None else other.numpy()
            np.testing.assert_allclose(np.asarray(g), other, rtol=1e-4, atol=1e-5)
    assert replayed[True] >= 4, "no walk was appended at another size"


def test_a_size_beyond_the_order_of_a_walk_is_walked_anew():
    def loss(w, x):
        return (x[:, : w.shape[0]] * w).sum() + (gt.concat([x, x], axis=1)[:, 3:] ** 2).mean()

    for n in (20, 30, 8, 9, 50, 7, 21):
        x, w = np.linspace(0, 1, 2 * n, dtype=np.float32).reshape(2, n), np.ones(6, np.float32)
        got = gt.grad(loss)(gt.array(w), gt.array(x))
        np.testing.assert_allclose(np.asarray(got), x[:, :6].sum(0), rtol=1e-5)


def norm_and_attend(w, x):
    h = gt.nn.layer_norm(x, 8, w, w)
    q = h.reshape((x.shape[0], x.shape[1], 2, 4)).transpose((0, 2, 1, 3))
    return (gt.nn.scaled_dot_product_attention(q, q, q) ** 2).mean()


def test_bodies_of_named_calls_are_captured_once_somebody_reads_them(monkeypatch):
    read = []
    original = DeferredSubgraph._subgraph
    monkeypatch.setattr(DeferredSubgraph, "_subgraph", lambda self: (read.append(self), original(self))[1])
    w, rng = np.linspace(0.5, 1.5, 8, dtype=np.float32), np.random.default_rng(0)
    for n in range(70, 90):
        before = len(read)
        x = rng.standard_normal((2, n, 8)).astype(np.float32)
        value, g = gt.value_and_grad(norm_and_attend)(gt.array(w), gt.array(x))
        ours = float(value), np.asarray(g)
        a = torch.tensor(w, dtype=torch.float64, requires_grad=True)
        t = torch.tensor(x, dtype=torch.float64)
        q = torch.nn.functional.layer_norm(t, (8,), a, a).reshape(2, n, 2, 4).transpose(1, 2)
        expected = (torch.nn.functional.scaled_dot_product_attention(q, q, q) ** 2).mean()
        expected.backward()
        np.testing.assert_allclose(ours[0], expected.item(), rtol=1e-5)
        np.testing.assert_allclose(ours[1], a.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert len(read) == before, "a new size captured a body"
    graph = gt.make_graph(norm_and_attend)(gt.array(w), gt.ones((2, 71, 8)))
    assert "named_call" in str(graph) and "rsqrt" in str(graph)


def test_walks_of_users_rules_run_them_at_each_size():
    seen = []

    @gt.custom_vjp
    def f(x):
        return x * 2

    def backward(residual, ct):
        seen.append(ct.shape)
        return (ct * 5,)

    f.defvjp(lambda x: (f(x), None), backward)
    for n in range(20, 26):
        assert_close(gt.grad(lambda x: f(x).sum())(gt.ones(n)), np.full(n, 5.0), check_dtype=False)
    assert len(seen) >= 6
