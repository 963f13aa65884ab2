"""``jax.experimental.sparse`` of ``gtrace.jax``: the numbers are those of JAX, and what is refused says why."""

import json
from pathlib import Path

import numpy as np
import pytest
from sparse_programs import PROGRAMS, M, V, numbers

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.errors import ArgumentError, DtypeError, ShapeError
from gtrace.jax.experimental import sparse

EXPECTED = json.loads((Path(__file__).parent / "data" / "jax_sparse.json").read_text())


@pytest.fixture(autouse=True)
def jax_settings():
    with gt.config(x64=False, jax_results=True):
        yield


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_give_the_numbers_of_jax(program):
    found, expected = program(jax, sparse), EXPECTED[program.__name__]
    assert len(found) == len(expected)
    for k, (x, (shape, kind, values)) in enumerate(zip(found, expected, strict=True)):
        own = numbers(x)
        assert own[:2] == [shape, kind], k
        np.testing.assert_allclose(own[2], values, 1e-4, 5e-5, err_msg=str(k))


def test_layouts_that_store_zeros_are_refused_or_warn():
    m = sparse.BCOO.fromdense(M)
    with pytest.raises(sparse.SparseEfficiencyError, match="on_inefficient=None"):
        m.update_layout(n_batch=1)
    with pytest.warns(sparse.SparseEfficiencyWarning, match="many zeros"):
        assert m.update_layout(n_dense=1, on_inefficient="warn").n_dense == 1
    with pytest.raises(ShapeError, match="at most 2 dimensions"):
        m.update_layout(n_batch=3)


def test_what_has_no_sparse_result_is_refused():
    m, v = sparse.BCOO.fromdense(M), jnp.array(V)
    for refused, why in (
        (lambda: sparse.sparsify(jnp.cos)(m), "the operation cos"), (lambda: sparse.sparsify(jnp.exp)(m), "exp"),
        (lambda: v / m, "dense divisor"), (lambda: m**0.5, "positive integer"), (lambda: m + 1.0, "shape"),
        (lambda: m == m, "dense arrays"), (lambda: m[jnp.array([0, 1])], "numbers, slices"),
        (lambda: sparse.bcoo_reshape(sparse.BCOO.fromdense(M, n_batch=1), new_sizes=(12,)), "batch"),
        (lambda: sparse.bcoo_transpose(sparse.BCOO.fromdense(M, n_batch=1), permutation=(1, 0)), "within the batch"),
        (lambda: sparse.bcoo_slice(m, start_indices=(0, 0), limit_indices=(9, 9)), "within"),
        (lambda: sparse.BCSR.fromdense(M).T, "BCOO"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=why):
            refused()


def test_shapes_that_do_not_fit_say_so():
    m = sparse.BCOO.fromdense(M)
    for wrong, why in (
        (lambda: m @ jnp.ones(3), "with 4 rows"), (lambda: sparse.BCOO((m.data, m.indices), shape=(3,)), "places"),
        (lambda: sparse.BCOO((m.data[:2], m.indices), shape=(3, 4)), "places"),
        (lambda: jax.vmap(lambda m: m.data)(m), "a BCOO with a batch"), (lambda: m + m[:2], "one shape"),
        (lambda: sparse.BCSR((m.data, m.data, m.data), shape=(2, 4)), "rows begin"),
        (lambda: sparse.linalg.lobpcg_standard(jnp.eye(4), jnp.ones((4, 1))), "5 k < n"),
        (lambda: sparse.linalg.spsolve(m.data, m.indices, m.data, m.data), "vectors"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=why):
            wrong()
    with pytest.raises(DtypeError, match="one dtype"):
        sparse.linalg.spsolve(jnp.ones(1), jnp.array([0]), jnp.array([0, 1]), jnp.ones(1, jnp.float16))


def test_places_that_would_overflow_are_refused():
    wide = sparse.BCOO((jnp.ones(1), jnp.array([[60000, 50000]])), shape=(70000, 70000))
    with pytest.raises(ArgumentError, match="int64"):
        wide.reshape(490000, 10000)


def test_sparse_arrays_are_pytrees_that_pass_through_loops():
    m = sparse.BCOO.fromdense(M)
    leaves, structure = jax.tree.flatten(m)
    assert len(leaves) == 2 and np.array_equal(structure.unflatten(leaves).todense(), M)
    out = jax.lax.fori_loop(0, 3, lambda i, x: x * 2, sparse.BCOO((m.data, m.indices), shape=m.shape))
    assert np.array_equal(out.todense(), 8 * M)


def test_scipy_matrices_are_taken():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    for kind in (sparse.BCOO, sparse.BCSR):
        assert np.array_equal(kind.from_scipy_sparse(scipy_sparse.csr_matrix(M)).todense(), M)
