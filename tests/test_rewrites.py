"""Each rewrite of programs: what it changes computes the same, and what nearly looks like it is left alone or right.

A rule has instances, which are recorded, and near misses, which are instances with one thing changed. A rule that is
wrong on purpose must be found.
"""

from __future__ import annotations

import itertools
import math
from random import Random

import attrs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import lax
from gtrace import numpy as gnp
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.pipeline import Pass
from gtrace.core.ir.verify import broken_rule
from gtrace.core.passes import attention
from gtrace.core.passes.norm_operators import BatchNorm, GroupNorm, LayerNorm
from gtrace.core.passes.whole_program import SIMPLIFIED
from gtrace.core.runtime.agreement import KERNELS_WORSE, disagreement


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Kernels of a few elements, on several threads, wait for these where other processes run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


N = 3
"""The size of every axis where axes may be exchanged, so that programs have types whatever is exchanged."""


def steps(pipeline):
    """The passes of a pipeline, in order."""
    return [one for step in pipeline.passes for one in ([step] if isinstance(step, Pass) else steps(step))]


STEPS = steps(SIMPLIFIED)
RULES = {step.mechanism.name: step for step in reversed(STEPS) if step.mechanism is not None}
"""The rewrites that can be switched off, by their names in `gtrace bisect --list`."""

# -- instances

SEEDS = st.integers(0, 2**32 - 1)
DTYPES = (gt.float32, gt.float64)


def recorded(r, function, *shapes):
    """The graph of a function of floats, or of its value and gradients."""
    dtype = r.choice(DTYPES)
    args = [gt.zeros(shape, dtype=dtype) for shape in shapes]
    weighted = r.random() < 0.5

    def loss(*args):
        y = function(*args)
        return (gt.sin(y) if weighted else y * y).sum()

    gradients = gt.value_and_grad(loss, tuple(range(len(args))))
    return gt.make_graph(gradients if r.random() < 0.6 else function)(*args)


def a_norm(r):
    kind = r.choice(["layer", "layer", "batch", "last", "groups"])
    shape, axes, of = {
        "layer": ((r.choice([1, 3]), r.choice([2, 5])), (1,), (-1,)),
        "batch": ((3, 4, 5), (0, 2), (4, 1)),
        "last": ((5, 16), (0,), (16,)),
        "groups": ((2, 3, 2, 4), (1, 3), None),
    }[kind]
    n = math.prod(shape[k] for k in axes)
    eps = r.choice([1e-5, 1e-3, 0.5])
    spelling, variance, division, factor = r.randrange(3), r.randrange(4), r.random() < 0.5, r.choice(["", "w", "1+w"])
    shifted, residual = r.random() < 0.6, r.random() < 0.3
    of = tuple(shape[-1] if size == -1 else size for size in of) if of else None

    def mean(x):
        if spelling == 0:
            return x.mean(axes, keepdims=True)
        return x.sum(axes, keepdims=True) / n if spelling == 1 else x.sum(axes, keepdims=True) * (1 / n)

    def norm(x, w=None, b=None):
        centred = x - mean(x)
        v = (mean(centred * centred), x.var(axes, keepdims=True), mean(centred**2), mean(x * x) - mean(x) ** 2)[
            variance
        ]
        v = gt.maximum(v, 0.0) if variance == 3 else v
        y = centred / gt.sqrt(v + eps) if division else centred * gt.rsqrt(v + eps)
        if factor and w is not None:
            y = y * (w if factor == "w" else 1.0 + w)
        if shifted and b is not None:
            y = y + b
        return y + x if residual else y

    return recorded(r, norm, shape, *([of, of] if of else []))


def an_attention(r):
    mask, scale = r.choice(["", "causal", "added", "bias", "hidden"]), r.choice([1.0, 0.5, 4**-0.5])
    number = r.choice([-math.inf, -1e9, -1e30])
    triangle = np.tril(np.ones((32, 32), dtype=bool))

    def apply(q, k, v, bias=None):
        scores = q @ gt.permute_dims(k, (0, 1, 3, 2)) * scale
        places = gt.arange(32)
        causal = places[:, None] >= places[None, :]
        if mask == "causal":
            scores = gt.where(causal, scores, number)
        elif mask == "added":
            scores = scores + gt.where(causal, 0.0, number)
        elif mask == "bias":
            scores = scores + bias
        elif mask == "hidden":
            scores = gt.where(gt.array(triangle), scores, number)
        return gt.softmax(scores) @ v

    shapes = [(2, 2, 32, 4)] * 3 + ([(32, 32)] if mask == "bias" else [])
    return recorded(r, apply, *shapes)


def a_named_call(r):
    """A norm or attention of `gt.nn`, which has a kernel and whose gradient has one."""
    kind = r.choice(["layer", "batch", "groups", "attention"])
    eps, causal, scaled = r.choice([1e-5, 1e-3, 0.5]), r.random() < 0.5, r.random() < 0.5
    if kind == "attention":
        heads = [(2, 33, 2, 16)] * 3
        return recorded(r, lambda q, k, v: gt.nn.dot_product_attention(q, k, v, is_causal=causal), *heads)
    if kind == "layer":
        return recorded(
            r, lambda x, w, b: gt.nn.layer_norm(x, 5, w if scaled else None, b if scaled else None, eps), (3, 5), 5, 5
        )
    if kind == "groups":
        return recorded(r, lambda x, w, b: gt.nn.group_norm(x, 2, w, b, eps), (2, 4, 3), 4, 4)
    return recorded(
        r, lambda x, w, b: gt.nn.batch_norm_train(x, gt.zeros(4), gt.ones(4), w, b, eps=eps)[0], (6, 4, 3), 4, 4
    )


def an_einsum(r):
    letters = r.sample("abcdef", 5)
    rows, summed, columns = letters[: r.choice([1, 2])], letters[2 : r.choice([3, 4])], letters[4:]
    one, other = (r.sample(x, len(x)) for x in (rows + summed, summed + columns))
    result = rows + columns if r.random() < 0.7 else r.sample(rows + columns, len(rows + columns))
    equation = f"{''.join(one)},{''.join(other)}->{''.join(result)}"
    return recorded(r, lambda x, y: gnp.einsum(equation, x, y), (N,) * len(one), (N,) * len(other))


def a_batch(r):
    transposed, summed, shared = r.random() < 0.4, r.random() < 0.6, r.random() < 0.6
    first = r.random() < 0.5

    def products(x, w):
        if shared:
            w = gt.broadcast_to(w[0], (2, N, N))
        w = gt.permute_dims(w, (0, 2, 1)) if transposed else w
        y = x @ w if first else w @ x
        return y.sum(0) if summed else y

    return recorded(r, products, (2, N, N), (2, N, N))


def transposes(r):
    flips, order = [r.random() < 0.5 for _ in range(4)], r.sample(range(3), 3)

    def products(x, y, z):
        z = gt.permute_dims(gt.permute_dims(z, order), r_order)
        x, y = (a.T if flip else a for a, flip in zip((x, y), flips, strict=False))
        out = (x @ y).T if flips[2] else x @ y
        return (out + z[0]).T if flips[3] else out * z[1]

    r_order = r.sample(range(3), 3)
    return recorded(r, products, (N, N), (N, N), (N, N, N))


def parts(r):
    cut, step, axis = r.randrange(1, 4), r.random() < 0.4, r.randrange(2)

    def pieces(x):
        y = gt.permute_dims(x, (1, 0)) if axis else gt.sin(x)
        one, other = (y[::2], y[1::2]) if step else (y[:cut], y[cut:])
        return gt.sin(one).sum() + (other * other * 2.0).sum()

    x = gt.zeros((4, 4), dtype=r.choice(DTYPES))
    return gt.make_graph(gt.value_and_grad(pieces))(x)


def constants(r):
    values = [r.choice([0.0, 1.0, -2.0, 0.1, 3.0, math.inf]) for _ in range(3)]

    def mixed(x, y):
        a, b, c = (gt.full((N, N), value, dtype=x.dtype) for value in values)
        d = gt.where(a > b, a * c, gt.exp(b)) - gt.sqrt(gt.abs(c))
        return x * d + gt.maximum(y, a / 2) - (b + 1.0) * gt.reshape(c, (N, N)).T

    return recorded(r, mixed, (N, N), (N, N))


def expressions(r):
    """Random operations on a few values, of which some are written twice."""
    kinds = [
        lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / (b * b + 1.0), gt.maximum,
        lambda a, b: gt.roll(a, 1, axis=0), lambda a, b: gt.roll(a, 1, axis=1), lambda a, b: gt.sin(b),
        lambda a, b: gt.flip(b, axis=1), lambda a, b: gt.flip(b, axis=0),
    ]  # fmt: skip
    chosen = [(r.choice(kinds), r.randrange(9), r.randrange(9)) for _ in range(6)]

    def compute(x, y):
        values = [x, y]
        for kind, i, j in chosen * 2:
            values.append(kind(values[i % len(values)], values[j % len(values)]))
        return values[-1] + values[-2] * values[-3]

    return recorded(r, compute, (N, N), (N, N))


def loops(r):
    other, length, used = r.random() < 0.5, r.choice([1, 3]), r.random() < 0.5

    def steps(x, c):
        def body(carry, v):
            c, d = carry
            return (gt.tanh(c * v + x[0]), gt.sin(d) if other else d * c), c

        def extended(carry, v):
            after, c = body(carry, v)
            return after, (c, carry[1])

        (last, _), a = lax.scan(body, (c, c + 1.0), x[:length])
        (_, more), (d, e) = lax.scan(extended, (c, c + 1.0), x[:length])
        return last * a.sum(0) + (more * d.sum(0) + e.sum(0) if used else 0.0)

    return recorded(r, steps, (3, N), (N,))


def branches(r):
    first, last = r.sample(range(3), 2)

    def choose(x, y):
        found = lax.cond(
            x[0, 0] > 0, lambda x: (gt.sin(x), x * 2.0, x + y), lambda x: (gt.cos(x), x - y, x * y), x
        )  # fmt: skip
        return found[first] * (found[last] if first else 1.0)

    return recorded(r, choose, (N, N), (N, N))


INSTANCES = {
    "fold": constants, "join_parts": parts, "order_operands": expressions, "cse": expressions,
    "merge_batches": a_batch, "move_transposes": transposes, "merge_calls": loops, "narrow_calls": branches,
    "einsum_matmul": an_einsum, "named_calls": a_named_call, "norm_fusion": a_norm, "attention_fusion": an_attention,
}  # fmt: skip


def instance(name, seed):
    """A program that a rule may change, as it is when the rule gets it."""
    graph = INSTANCES[name](Random(seed))
    for step in STEPS[: STEPS.index(RULES[name])]:
        graph = step.apply(graph)
    return graph


# -- near misses

EXCHANGED = {
    "add": "sub", "sub": "add", "mul": "div", "div": "mul", "mean": "sum", "sum": "mean", "sqrt": "rsqrt", "max": "min",
    "rsqrt": "sqrt", "sin": "cos", "neg": "square", "square": "neg", "maximum": "minimum", "softmax": "log_softmax",
}  # fmt: skip
NUMBERS = [0.5, -1.0, 2.0, 1e-3, 0.0, 3.0]


def variations(node, r):
    """Yield the operation with one thing changed, as far as its result keeps its type."""
    op, (params, ins) = node.op, (node.params, node.ins)

    def made(op, params, ins, avals):
        try:
            instr = op.instr(params, tuple(avals))
        except (gt.GtraceError, RuntimeError, TypeError, ValueError, IndexError, StopIteration):
            return
        if instr.aval is node.instr.aval:
            yield Node(instr, tuple(ins), node.out, node.location)

    avals = node.instr.ins
    if len(ins) == 2 and ins[0] != ins[1] and not op.commutative:
        yield from made(op, params, ins[::-1], avals[::-1])
    if op.name in EXCHANGED:
        yield from made(REGISTRY[EXCHANGED[op.name]], params, ins, avals)
    for k, x in enumerate(ins):
        if isinstance(x, Scalar) and isinstance(x.value, float):
            number = Scalar(r.choice([n for n in NUMBERS if n != x.value]), x.aval)
            yield from made(op, params, (*ins[:k], number, *ins[k + 1 :]), avals)
    for k, value in enumerate(params) if op.rules.body is None else ():
        for other in numbers(value) if op.name == "aten" else others(value, r):
            yield from made(op, (*params[:k], other, *params[k + 1 :]), ins, avals)


def numbers(value):
    """Yield attributes of a kernel with other numbers. Other sizes would let it read beyond its memory."""
    if isinstance(value, float):
        yield 2.0 * value + 0.5
    elif isinstance(value, tuple):
        for k, part in enumerate(value):
            for other in numbers(part):
                yield (*value[:k], other, *value[k + 1 :])


def others(value, r):
    """Yield attributes that are nearly this one."""
    if isinstance(value, float):
        yield 2.0 * value + 0.5
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (n for n in (value + 1, value - 1) if n)  # a step of 0 is none
    elif isinstance(value, str) and "->" in value:
        terms, result = value.split("->")
        yield f"{terms}->{''.join(r.sample(result, len(result)))}"
        yield f"{','.join(''.join(r.sample(term, len(term))) for term in terms.split(','))}->{result}"
    elif isinstance(value, tuple):
        if len(value) > 1:
            yield tuple(r.sample(value, len(value)))
        for k, part in enumerate(value):
            for other in others(part, r):
                yield (*value[:k], other, *value[k + 1 :])


def near_miss(graph, r):
    """A program with one thing changed."""
    fresh, avals = itertools.count(graph.fresh), graph.value_avals()
    k = r.randrange(len(graph.nodes))
    node = graph.nodes[k]
    a = node.instr.aval
    kind = r.choice(["variation", "variation", "variation", "use", "term", "comparison", "operand"])
    before = [x for x in avals if x <= max([*graph.inputs, *(n.out for n in graph.nodes[:k])])]
    earlier = {*graph.inputs, *(n.out for n in graph.nodes[:k])}
    nodes, outputs = list(graph.nodes), graph.outputs
    if kind == "variation":
        found = list(variations(node, r))
        nodes[k] = r.choice(found) if found else node
    elif not isinstance(getattr(a, "dtype", None), torch.dtype) or not a.floating or a.complex or a.weak:
        return graph
    elif kind == "use":
        outputs = (*outputs, node.out)
    elif kind == "operand":
        j = r.randrange(len(node.ins))
        same = [x for x in before if x in earlier and avals[x] is node.instr.ins[j] and x != node.ins[j]]
        if same:
            nodes[k] = attrs.evolve(node, ins=(*node.ins[:j], r.choice(same), *node.ins[j + 1 :]))
    else:

        def new(name, ins, avals):
            return Node(REGISTRY[name].instr((), avals), ins, next(fresh))

        inner = attrs.evolve(node, out=next(fresh))
        number = Scalar(r.choice(NUMBERS), gt.ir.aval((), a.dtype, a.device, weak=True))
        same = [x for x in before if x in earlier and avals[x] is a]
        other = r.choice([number, *same])
        of = (a, other.aval if isinstance(other, Scalar) else a)
        if kind == "term":
            last = new(r.choice(["add", "sub", "mul"]), (inner.out, other), of)
            added = [inner]
        else:
            compared = new(r.choice(["gt", "le", "eq"]), (inner.out, other), of)
            last = new("where", (compared.out, inner.out, number), (compared.instr.aval, a, number.aval))
            added = [inner, compared]
            if r.random() < 0.5:
                added, last = [inner], new(r.choice(["maximum", "minimum"]), (inner.out, other), of)
        if last.instr.aval is not a:
            return graph
        nodes[k : k + 1] = [*added, attrs.evolve(last, out=node.out)]
    changed = Graph(graph.inputs, graph.avals, tuple(nodes), outputs)
    assert broken_rule(changed) is None
    return changed


# -- the check


SPECIAL = [
    lambda x: x.fill_(2.1), lambda x: x.fill_(2.0), lambda x: x[:1].fill_(0.3), lambda x: x[..., :1].fill_(2.0),
    lambda x: x.mul_(3).round_(), lambda x: x.zero_(), lambda x: x.add_(1000.0),
    *[lambda x, size=size: x.mul_(size) for size in (1e-20, 1e-8, 8.0, 1e2, 1e4)],
]  # fmt: skip
"""Equal elements, equal rows or columns, whole numbers, and small, large and distant ones, all written in place."""


def tensors(graph, seed):
    """Inputs: usual ones, but for one that may be special, see `SPECIAL`."""
    rng = np.random.default_rng(seed)
    found = []
    for a in graph.avals:
        x = rng.normal(size=a.shape) if a.floating else rng.integers(0, 2, size=a.shape)
        found.append(torch.from_numpy(np.array(x)).to(a.dtype))
    floats = [x for x in found if x.is_floating_point() and x.dim()]
    if floats and seed % 3 == 0:
        x = floats[seed % len(floats)]
        SPECIAL[seed // 3 % len(SPECIAL)](x)
    return found


def check_kept(rule, graph, seed):
    """Check that what a rule makes of a program computes the same; return whether it left the program alone."""
    after = rule.apply(graph)
    if (after.nodes, after.outputs) == (graph.nodes, graph.outputs):
        return True
    assert broken_rule(after) is None
    inputs = tensors(graph, seed)
    try:
        expected = reference(graph)(inputs)
    except gt.ExecutionError:
        return True  # torch refuses the near miss
    got = reference(after)(inputs)
    worse = KERNELS_WORSE if any(node.op.name == "aten" for node in after.nodes) else 4.0
    assert disagreement(graph, inputs, expected, got, worse) == ""
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_changes_computes_the_same(name):
    changed = []

    @settings(max_examples=15)
    @given(SEEDS)
    def check(seed):
        changed.append(not check_kept(RULES[name], instance(name, seed), seed))

    check()
    assert any(changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_near_misses_are_left_alone_or_right(name):
    @settings(max_examples=25)
    @given(SEEDS, st.integers(1, 2))
    def check(seed, times):
        graph, r = instance(name, seed), Random(seed)
        for _ in range(times):
            graph = near_miss(graph, r)
        check_kept(RULES[name], graph, seed)

    check()


@pytest.mark.parametrize("name", RULES)
def test_what_nobody_needs_is_left_alone_or_right(name):
    for seed in range(5):
        graph = instance(name, seed)
        check_kept(RULES[name], attrs.evolve(graph, outputs=graph.inputs[:1]), seed)


# -- rules that are wrong


def wrong(before, after):
    """What a rule returns if one thing of the last operation that it makes, and that can vary, is another."""
    old = {(node.instr, node.ins) for node in before.nodes}
    nodes = list(after.nodes)
    for k in reversed(range(len(nodes))):
        if (nodes[k].instr, nodes[k].ins) not in old:
            found = list(variations(nodes[k], Random(0)))
            if found:
                nodes[k] = found[0]
                return attrs.evolve(after, nodes=tuple(nodes))
    return after


def planted(rule, compared=False):
    """A rule that is wrong wherever it changes something."""
    return Pass("planted", lambda graph: wrong(graph, rule.run(graph)), rule.mechanism, compared)


def forgetful(graph):
    """Merge operations with equal operands, whatever their attributes."""
    first = {}
    for node in graph.nodes:
        first.setdefault((node.op, node.instr.aval, node.ins), node)
    return attrs.evolve(
        graph, nodes=tuple(attrs.evolve(first[n.op, n.instr.aval, n.ins], out=n.out) for n in graph.nodes)
    )


def one_loop(graph):
    """Take the first of all loops of one type for each of them."""
    first = {}
    nodes = []
    for node in graph.nodes:
        if node.op.loop:
            node = attrs.evolve(first.setdefault(node.instr.aval, node), out=node.out)
        nodes.append(node)
    return attrs.evolve(graph, nodes=tuple(nodes))


def sorted_operands(graph):
    """Sort the operands of differences and quotients, too."""
    nodes = [
        attrs.evolve(n, ins=n.ins[::-1], instr=n.op.instr((), n.instr.ins[::-1]))
        if n.op.name in ("sub", "div") and all(isinstance(x, int) for x in n.ins) and n.ins[0] > n.ins[1] else n
        for n in graph.nodes
    ]  # fmt: skip
    return attrs.evolve(graph, nodes=tuple(nodes))


WRONG = {"cse": forgetful, "order_operands": sorted_operands, "merge_calls": one_loop}
"""Rules that are wrong in their own way."""


def unsound(name):
    rule = RULES[name]
    return Pass("planted", WRONG[name], rule.mechanism) if name in WRONG else planted(rule)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_wrong_rule_is_found(name):
    rule = unsound(name)

    def fails(seed):
        try:
            check_kept(rule, instance(name, seed), seed)
        except (AssertionError, gt.ExecutionError):
            return True
        return False

    some = settings(
        max_examples=200, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    find(SEEDS, fails, settings=some)  # raises NoSuchExample


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.compared])
def test_a_wrong_rule_that_is_evaluated_changes_nothing(name):
    for seed in range(10):
        graph = instance(name, seed)
        check_kept(planted(RULES[name], compared=True), graph, seed)


@pytest.mark.parametrize("kind", [LayerNorm, BatchNorm, GroupNorm], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("what", ["eps", "bias", "gradient"])
def test_a_norm_by_a_wrong_operator_is_left_alone(kind, what, monkeypatch):
    def forward(self, make, given, *others):
        if what == "bias":
            given = attrs.evolve(given, bias=given.weight)
        elif what == "eps":
            given = attrs.evolve(given, eps=given.eps * 1.01)
        return right(self, make, given, *others)

    def backward(self, make, given, cotangent, *others):
        return slope(self, make, given, make("neg", (), cotangent), *others)

    right, slope = kind.forward, kind.backward
    monkeypatch.setattr(
        kind, "backward" if what == "gradient" else "forward", backward if what == "gradient" else forward
    )
    for seed in range(20):
        check_kept(RULES["norm_fusion"], instance("norm_fusion", seed), seed)


@pytest.mark.parametrize("where", ["forward", "mask", "gradient"])
def test_attention_by_a_wrong_kernel_is_left_alone(where, monkeypatch):
    def rewrite(self, build):
        self.scale *= 1.001 if where == "forward" else 1.0
        self.mask = () if where == "mask" else self.mask
        right(self, build)

    def given(self, build, call, place, term, *others):
        gradient = where == "gradient" and term in self.gradients.values() and place < 2
        result(self, build, call, 1 - place if gradient else place, term, *others)

    right, result = attention._Attention.rewrite, attention._Attention._given
    monkeypatch.setattr(attention._Attention, "rewrite", rewrite)
    monkeypatch.setattr(attention._Attention, "_given", given)
    for seed in range(6):
        check_kept(RULES["attention_fusion"], instance("attention_fusion", seed), seed)
