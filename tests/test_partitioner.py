"""Programs divided among processes compute what one process computes: every operation, random programs, and the
collectives that known strategies need."""

from __future__ import annotations

import lockstep
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import testing
from gtrace.ir.op import REGISTRY
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
    assert [one.name for one in replicated.transfers] == ["all_reduce"] * 2
    assert replicated.moved == 2 * (n - 1) / n * size
    assert sorted(one.name for one in split.transfers) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert split.moved == 2 * (n - 1) / n * size
    assert split.input_bytes == replicated.input_bytes - (n - 1) * size // n
    assert all("test_partitioner.py" in one.location for one in split.transfers)
