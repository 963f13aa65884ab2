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
