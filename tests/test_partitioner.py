"""Programs divided among processes compute what one process computes: every operation, random programs, and the
collectives that known strategies need."""

from __future__ import annotations

import lockstep
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import testing
from gtrace.core.ir.graph import subgraphs
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import print_dims
from gtrace.core.partitioner import processes
from gtrace.core.passes.subgraph_calls import communicates
from gtrace.core.trace.bind import bind
from gtrace.distributed.collectives import placed_op
from gtrace.sharding import Mesh, NamedSharding, P
from gtrace.testing.samples import caller

MESHES = [
    Mesh([0, 1], "a"),
    Mesh([0, 1, 2], "a"),
    Mesh([0, 1, 2, 3], "a"),
    Mesh([[0, 1], [2, 3]], ("a", "b")),
    Mesh([[3, 1, 4], [5, 0, 2]], ("a", "b")),
]


def check(graph, mesh, shardings, tensors, canonical=False):
    graph = lockstep.placed(graph, shardings)
    got, made = lockstep.run(graph, mesh, tensors, canonical)
    for x, y in zip(got, lockstep.interpret(graph, tensors), strict=True):
        lockstep.close(x, y)
    return made


def tensors_of(arrays):
    return [x.to_torch() for x in arrays]


OPS = [op for op in REGISTRY.values() if op.rules.result is None and op.arity != 0 and not op.placement]


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_operation_is_right_with_any_one_dimension_divided(op):
    for sample in op.cases.samples():
        call = caller(op, sample)
        arrays = [gt.asarray(x) for x in testing.samples.arrays_in([sample.args, sample.kwargs])]
        traced = gt.jit(call).trace(*arrays)
        tensors = tensors_of([*arrays, *traced.constants])
        for mesh in MESHES[:2]:
            for k, x in enumerate(arrays):
                for d in range(x.ndim):
                    shardings = [None] * len(tensors)
                    shardings[k] = NamedSharding(mesh, P(*[None] * d, "a"))
                    check(traced.graph, mesh, shardings, tensors)


@pytest.mark.parametrize("mesh", MESHES[:3], ids=lambda mesh: f"of {mesh.size}")
@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16], ids=str)
def test_a_mean_of_more_elements_than_float16_counts(dtype, mesh):
    x = gt.ones((4, 50_001), dtype=dtype) * 0.75
    for d, spec in enumerate((P("a", None), P(None, "a"))):
        graph = gt.jit(lambda x: (gt.mean(x), gt.mean(x, axis=1))).trace(x).graph
        graph = lockstep.placed(graph, [NamedSharding(mesh, spec)])
        got, _ = lockstep.run(graph, mesh, tensors_of([x]), False)
        assert [y.unique().tolist() for y in got] == [[pytest.approx(0.75, rel=0.01)]] * 2, d


@st.composite
def specs(draw, mesh, ndim):
    """Draw the axes of each dimension: each mesh axis for one of them, or for none."""
    dims = [[] for _ in range(ndim)]
    for name in draw(st.permutations(mesh.axis_names)):
        if ndim:
            where = draw(st.integers(-1, ndim - 1))
            if where >= 0:
                dims[where].append(name)
    return P(*[tuple(axes) or None for axes in dims])


@pytest.mark.slow
@given(st.data())
def test_random_programs_are_the_same_on_any_mesh(data):
    graph = data.draw(testing.graphs(continuous=True, control=True, max_nodes=10))
    mesh = data.draw(st.sampled_from(MESHES))
    shardings = [
        data.draw(st.one_of(st.none(), st.builds(NamedSharding, st.just(mesh), specs(mesh, len(a.shape)))))
        for a in graph.avals
    ]
    assume(any(s is not None for s in shardings))
    tensors = tensors_of(data.draw(testing.arguments(graph)))
    check(graph, mesh, shardings, tensors, canonical=data.draw(st.booleans()))


SEVERAL = [
    Mesh([0, 1], "a"), Mesh([3, 2], "a"), Mesh([0], "a"), Mesh([3], "b"), Mesh([1, 2, 3], "a"), MESHES[3],
]  # fmt: skip
EVERYONE = Mesh(range(4), "everyone")


@pytest.mark.slow
@given(st.data())
def test_random_programs_are_the_same_on_several_meshes(data):
    """Of some of the processes, which have some, all or none in common."""
    graph = data.draw(testing.graphs(continuous=True, control=True, max_nodes=10))
    meshes = data.draw(st.lists(st.sampled_from(SEVERAL), min_size=1, max_size=3, unique=True))
    shardings = []
    for a in graph.avals:
        mesh = data.draw(st.sampled_from([None, *meshes]))
        shardings.append(None if mesh is None else NamedSharding(mesh, data.draw(specs(mesh, len(a.shape)))))
    used = {*graph.outputs, *(value for node in graph.nodes for value in node.values())}
    assume(any(s is not None and v in used for s, v in zip(shardings, graph.inputs, strict=True)))
    tensors = tensors_of(data.draw(testing.arguments(graph)))
    check(graph, EVERYONE, shardings, tensors, canonical=data.draw(st.booleans()))


@pytest.mark.parametrize("meshes", [SEVERAL[2:4], SEVERAL[:2], SEVERAL[2:5:2], [MESHES[3], SEVERAL[1]]], ids=str)
def test_a_pipeline_of_two_stages_learns_the_same(meshes):
    first, second = meshes

    def step(w1, w2, x, y):
        def loss(w1, w2):
            with processes.pretend(4):
                h = gt.tanh(x @ w1)
                h = bind(placed_op, (h,), (str(first), *[print_dims(((first.axis_names[0],), ()))] * 2))
                h = bind(placed_op, (h,), (str(second), *[print_dims(((second.axis_names[0],), ()))] * 2))
                return ((h @ w2 - y) ** 2).mean()

        value, grads = gt.value_and_grad(loss, argnums=(0, 1))(w1, w2)
        return [w1 - 0.1 * grads[0], w2 - 0.1 * grads[1], value]

    arrays = [draw(1, 6, 8), draw(2, 8, 3), draw(3, 10, 6), draw(4, 10, 3)]
    where = [NamedSharding(first, P()), NamedSharding(second, P()), NamedSharding(first, P(first.axis_names[0]))]
    made = check(gt.make_graph(step)(*arrays), EVERYONE, [*where, NamedSharding(second, P())], tensors_of(arrays))
    assert [a.sharding.mesh for a in made.avals] == [first, second, second]
    if not set(first.ranks) & set(second.ranks):
        # the activations, and back their cotangents
        assert [one.name for one in made.transfers].count("send") == 2


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_attention_with_sequence_and_batch_divided(mesh):
    def attention(q, k, v):
        weights = gt.softmax(q @ k.mT / 2.0, axis=-1)
        return ((weights @ v) ** 2).sum()

    q, k, v = (gt.random.normal(gt.random.key(n), (3, 10, 4)) for n in range(3))
    graph = gt.make_graph(gt.value_and_grad(attention, argnums=(0, 1, 2)))(q, k, v)
    sequence = NamedSharding(mesh, P(mesh.axis_names[1:] or None, mesh.axis_names[0]))
    made = check(graph, mesh, [sequence] * 3, tensors_of([q, k, v]))
    assert not made.gathered and made.transfers


def test_strategies_send_what_they_have_to():
    """Data parallel: the sum of all gradients. Fully sharded: parameters gathered once, gradients in parts."""
    n, size = 4, 4 * (64 * 128 + 128 * 32)

    def step(params, x, y):
        grads = gt.grad(lambda p: ((gt.relu(x @ p[0]) @ p[1] - y) ** 2).mean())(params)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

    def plan(data, weights):
        def array(shape, spec):
            return gt.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(Mesh(range(n), "a"), spec))

        return gt.sharding.plan(
            step, [array((64, 128), weights), array((128, 32), weights)], array((256, 64), data), array((256, 32), data)
        )

    replicated, split = plan(P("a"), P()), plan(P("a"), P("a"))
    assert [(one.name, one.arrays) for one in replicated.transfers] == [("all_reduce", 2)]
    assert replicated.moved == 2 * (n - 1) / n * size
    assert sorted(one.name for one in split.transfers) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert split.moved == 2 * (n - 1) / n * size
    assert split.input_bytes == replicated.input_bytes - (n - 1) * size // n
    assert all("test_partitioner.py" in one.location for one in split.transfers)


def rnn(w, h, xs):
    def cell(h, x):
        h = gt.tanh(x @ w["in"] + h @ w["own"])
        return h, h * 2

    last, ys = gt.scan(cell, h, xs)
    return (last**2).sum() + (ys**3).mean()


def trained(w, xs):
    """A loop that trains: parameters are carried."""

    def step(w, x):
        value, grad = gt.value_and_grad(lambda w: ((gt.tanh(x @ w) - 0.1) ** 2).mean())(w)
        return w - 0.1 * grad, value

    return gt.scan(step, w, xs, length=3)


def shrunk(x, w):
    """A loop whose test needs all of its state."""
    return gt.while_loop(lambda x: (x**2).sum() > 1.0, lambda x: (x @ w) * 0.5, x)


def chosen(k, x, w):
    return gt.switch(k, [lambda x, w: x @ w, lambda x, w: gt.sin(x) * w.sum(), lambda x, w: x[::-1]], x, w)


def nested(w, xs):
    def outer(c, x):
        c = gt.while_loop(lambda c: c.sum() > 3.0, lambda c: c * 0.5, gt.abs(c @ w) + x)
        return gt.cond(c.max() > 0.5, lambda c: c - c.mean(), lambda c: c * 2, c), c.sum()

    return gt.scan(outer, xs[0], xs)


def draw(n, *shape):
    return gt.random.normal(gt.random.key(n), shape)


def at(*spec):
    return lambda mesh: NamedSharding(mesh, P(*[mesh.axis_names[k] if isinstance(k, int) else k for k in spec]))


WEIGHTS = {"in": draw(1, 4, 6) * 0.5, "own": draw(2, 6, 6) * 0.5}
LOOPS = {
    "the batch of a recurrent net": (
        gt.value_and_grad(rnn, argnums=(0, 1)), (WEIGHTS, draw(3, 10, 6), draw(4, 5, 10, 4)),
        {2: at(0), 3: at(None, 0)}),
    "its parameters too": (
        gt.value_and_grad(rnn, argnums=(0, 1)), (WEIGHTS, gt.zeros((10, 6)), draw(4, 5, 10, 4)),
        {0: at(None, 0), 1: at(0), 3: at(None, 0)}),
    "steps": (gt.value_and_grad(rnn), (WEIGHTS, draw(3, 10, 6), draw(4, 5, 10, 4)), {3: at(0)}),
    "data of a loop that trains": (trained, (draw(5, 4, 6), draw(6, 3, 8, 4)), {1: at(None, 0)}),
    "parameters of a loop that trains": (trained, (draw(5, 4, 6), draw(6, 3, 8, 4)), {0: at(0), 1: at(None, 0)}),
    "the state of while_loop": (shrunk, (draw(7, 9, 6) * 4, draw(8, 6, 6) * 0.3), {0: at(0)}),
    "its columns": (shrunk, (draw(7, 9, 6) * 4, draw(8, 6, 6) * 0.3), {0: at(None, 0), 1: at(0)}),
    "operands of branches": (
        gt.vmap(chosen, in_axes=(None, 0, None)), (1, draw(9, 2, 4, 4), draw(1, 4, 4)), {1: at(None, 0)}),
    "a branch that sends": (gt.value_and_grad(lambda k, x, w: chosen(k, x, w).sum(), argnums=(1, 2)),
                            (0, draw(9, 5, 4), draw(1, 4, 4)), {1: at(None, 0), 2: at(0)}),
    "loops in loops": (nested, (draw(1, 6, 6), draw(2, 4, 5, 6)), {0: at(0), 1: at(None, 0)}),
}  # fmt: skip


@pytest.mark.parametrize("mesh", [MESHES[1], MESHES[2], MESHES[4]], ids=str)
@pytest.mark.parametrize("case", LOOPS)
def test_loops_and_branches_are_divided(case, mesh):
    f, args, placed = LOOPS[case]
    arrays = gt.tree.leaves(args)
    graph = gt.make_graph(f)(*args)
    shardings = [placed[k](mesh) if k in placed else None for k in range(len(arrays))]
    made = check(graph, mesh, shardings, tensors_of(map(gt.asarray, arrays)))
    assert not made.gathered


def test_a_recurrent_net_with_its_batch_divided_sends_nothing_in_its_loops():
    """The state is carried in parts, although it begins as zeros that each process has."""
    mesh = MESHES[2]
    args = WEIGHTS, gt.zeros((8, 6)), draw(4, 5, 8, 4)
    graph = lockstep.placed(gt.make_graph(gt.grad(rnn))(*args), [None, None, None, at(None, 0)(mesh)])
    _, made = lockstep.run(graph, mesh, tensors_of(gt.tree.leaves(args)))
    loops = [node for node in made.graph.nodes if node.op.name == "scan"]
    assert len(loops) == 2
    for node in loops:
        (body,) = subgraphs(node.params)
        assert not communicates(body.graph)
        assert {a.shape[0] for a in body.graph.out_avals} == {2}


def test_a_layout_asked_for_in_a_loop_holds_there():
    """Although all that the loop is given is whole."""
    mesh = MESHES[2]
    layout = NamedSharding(mesh, P("a"))

    def f(x):
        with processes.pretend(4):
            return gt.scan(lambda c, _: (gt.sin(gt.with_sharding(c @ c.T, layout)) @ c, None), x, None, length=3)[0]

    made = check(gt.make_graph(f)(draw(1, 8, 4)), mesh, [NamedSharding(mesh, P())], tensors_of([draw(1, 8, 4)]))
    (loop,) = (node for node in made.graph.nodes if node.op.name == "scan")
    assert (2, 8) in {node.instr.aval.shape for node in loop.params[0].graph.nodes if node.op.name == "matmul"}


def test_a_loop_that_sends_counts_each_step():
    mesh = MESHES[2]
    x = gt.ShapeDtypeStruct((3, 8, 4), "float32", sharding=at(None, 0)(mesh))
    plan = gt.sharding.plan(trained, gt.ShapeDtypeStruct((4, 6), "float32", sharding=at()(mesh)), x)
    assert {one.times for one in plan.transfers} >= {3}
    # the gradient and, joined with it, the loss of each step
    assert plan.moved == 2 * 3 / 4 * 3 * (4 * 6 + 1) * 4


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.data())
def test_sums_that_are_sent_together_are_the_sums(kinds, data):
    """Sums that need others, sums that do not, sums along other axes, and what is computed from them."""
    mesh = data.draw(st.sampled_from(MESHES[2:]))

    def f(x, *ws):
        found, last = [], x.sum()
        for kind, w in zip(kinds, ws, strict=True):
            total = x.mT @ (x * w)
            if kind == 1:
                total = x.mT @ (x * last)
            elif kind == 2:
                total = (x * w).sum(1)
            elif kind == 3:
                total = gt.sin(total) + x.max()
            found.append(total)
            last = total.mean()
        return found

    arrays = [draw(k, 6, 4) if k == 0 else draw(k, 6, 1) for k in range(len(kinds) + 1)]
    graph = gt.make_graph(f)(*arrays)
    names = mesh.axis_names
    x = data.draw(st.sampled_from([P(names[0]), P(names[0], names[-1] if len(names) > 1 else None), P(None, names[0])]))
    made = check(
        graph, mesh, [NamedSharding(mesh, x), *[None] * len(kinds)], tensors_of(arrays), data.draw(st.booleans())
    )
    if set(kinds) == {0} and x[0] == names[0]:
        assert len([one for one in made.transfers if one.name == "all_reduce"]) <= 2
