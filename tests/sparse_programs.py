"""Programs with sparse arrays, of the packages ``jax`` and ``jax.experimental.sparse``; each returns arrays.

`data/make_jax_sparse.py` runs them on JAX and stores the results. `test_jax_sparse.py` runs them on gtrace.
"""

import numpy as np

M = np.array([[0, 2, 0, 1], [3, 0, 0, 0], [0, 0, 4, 0]], np.float32)
V = np.array([1, 2, 3, 4], np.float32)
B = np.zeros((2, 3, 4), np.float32)
B[0, 0, 1], B[0, 2, 3], B[1, 1, 0], B[1, 1, 2], B[1, 2, 2] = 1, 2, 3, 4, 5
"""A matrix, a vector, and a batch of matrices."""


def parts(m):
    """The arrays of a sparse array."""
    return [m.data, m.indices] + ([m.indptr] if hasattr(m, "indptr") else [])


def kinds(sparse):
    """The batch in coordinates with all numbers of batch and dense axes."""
    for n_batch in range(4):
        for n_dense in range(4 - n_batch):
            yield sparse.BCOO.fromdense(B, n_batch=n_batch, n_dense=n_dense)


def duplicates(jax, sparse):
    """A matrix with equal places, zeros, and places beyond it."""
    data = jax.numpy.array([1.0, 2.0, 0.0, 4.0, 5.0, 6.0])
    return sparse.BCOO((data, np.array([[1, 2], [0, 1], [2, 0], [1, 2], [3, 4], [0, 4]])), shape=(3, 4))


def kinds_of_layout(jax, sparse):
    out = []
    for m in kinds(sparse):
        out += [*parts(m), m.todense(), m.nse]
    return out


def padded_dense(jax, sparse):
    m = sparse.BCOO.fromdense(M, nse=6)
    few = sparse.BCOO.fromdense(B, nse=1, n_batch=1)
    return [*parts(m), *parts(few), few.todense()]


def sum_duplicates(jax, sparse):
    m = duplicates(jax, sparse)
    out = [m.todense()]
    for made in (
        sparse.bcoo_sum_duplicates(m), sparse.bcoo_sum_duplicates(m, nse=7), m.sum_duplicates(),
        sparse.bcoo_sort_indices(m),
    ):  # fmt: skip
        out += [*parts(made), made.todense()]
    jitted = jax.jit(lambda d: sparse.bcoo_sum_duplicates(sparse.BCOO((d, m.indices), shape=m.shape), nse=3).data)
    grad = jax.grad(lambda d: (jitted(d) ** 2).sum())(m.data)
    return [*out, jitted(m.data), grad]


def transposes(jax, sparse):
    out = []
    for m in kinds(sparse):
        n, k = m.n_batch, m.n_batch + m.n_sparse
        order = [*range(n)[::-1], *range(n, k)[::-1], *range(k, 3)[::-1]]
        made = sparse.bcoo_transpose(m, permutation=order)
        out += [made.todense(), *parts(made)]
    return [*out, sparse.BCOO.fromdense(M).T.todense()]


def reductions(jax, sparse):
    out = []
    for m in kinds(sparse):
        for axes in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)):
            out.append(sparse.bcoo_reduce_sum(m, axes=axes).todense())
    m = duplicates(jax, sparse)
    return [*out, m.sum(), m.sum(axis=0).todense(), m.sum(1).todense(), sparse.bcoo_reduce_sum(m, axes=(1,)).data]


def shapes(jax, sparse):
    m = sparse.BCOO.fromdense(M)
    b = sparse.BCOO.fromdense(B, n_batch=1)
    dense = sparse.BCOO.fromdense(B, n_dense=1)
    made = [
        sparse.bcoo_reshape(m, new_sizes=(2, 6)), sparse.bcoo_reshape(m, new_sizes=(2, 6), dimensions=(1, 0)),
        sparse.bcoo_reshape(b, new_sizes=(2, 12)), sparse.bcoo_reshape(dense, new_sizes=(6, 2, 2)),
        sparse.bcoo_reshape(m, new_sizes=(1, 3, 4, 1)), m.reshape(4, -1), m.reshape((12,)),
        sparse.bcoo_broadcast_in_dim(m, shape=(2, 3, 4), broadcast_dimensions=(1, 2)),
        sparse.bcoo_broadcast_in_dim(m, shape=(3, 1, 4), broadcast_dimensions=(0, 2)),
        sparse.bcoo_broadcast_in_dim(b, shape=(2, 2, 3, 4), broadcast_dimensions=(0, 2, 3)),
        sparse.bcoo_squeeze(sparse.BCOO.fromdense(M[None, :, None]), dimensions=(0, 2)),
        sparse.bcoo_squeeze(sparse.BCOO.fromdense(M[None, :, None], n_batch=1), dimensions=(0,)),
        sparse.bcoo_concatenate([m, m], dimension=0), sparse.bcoo_concatenate([m, m], dimension=1),
        sparse.bcoo_concatenate([b, b], dimension=0), sparse.bcoo_concatenate([b, b], dimension=2),
        sparse.bcoo_rev(m, (0,)), sparse.bcoo_rev(b, (0, 2)), m[1], m[:, 1:], m[::2, -1], m[None, 1:], m[..., 2], b[1],
        sparse.bcoo_dynamic_slice(m, (1, 2), (2, 2)), sparse.bcoo_dynamic_slice(b, (1, 0, 1), (1, 2, 2)),
        duplicates(jax, sparse)[1:, 1:],
    ]  # fmt: skip
    out = []
    for x in made:
        out += [x.todense(), x.nse, x.n_batch, x.n_dense]
    return [*out, m[0, 1].todense(), *[row.todense() for row in m]]


def layouts(jax, sparse):
    out = []
    for m in kinds(sparse):
        for n_batch in range(4):
            for n_dense in range(4 - n_batch):
                made = sparse.bcoo_update_layout(m, n_batch=n_batch, n_dense=n_dense, on_inefficient=None)
                out += [made.todense(), made.nse]
    return out


def products(jax, sparse):
    jnp = jax.numpy
    m, v = sparse.BCOO.fromdense(M), jnp.array(V)
    rows = jnp.arange(6.0).reshape(2, 3)
    out = [m @ v, rows @ m, m @ jnp.arange(8.0).reshape(4, 2), (m @ m.T).todense(), v[:3] @ m, m.T @ v[:3]]
    for own in kinds(sparse):
        if own.n_dense:
            continue
        for numbers, shape in (
            ((([2], [0]), ([], [])), (4, 2)),
            ((([1], [1]), ([0], [0])), (2, 3, 2)),
            ((([1, 2], [1, 0]), ([], [])), (4, 3)),
            ((([2], [1]), ([], [])), (2, 4)),
            ((([0], [0]), ([], [])), (2, 2)),
            ((([], []), ([], [])), (2,)),
        ):
            if own.n_batch == 0 and numbers[1][0]:
                continue
            x = jnp.cos(jnp.arange(float(np.prod(shape)))).reshape(shape)
            out.append(sparse.bcoo_dot_general(own, x, dimension_numbers=numbers))
            back = tuple((b, a) for a, b in numbers)
            out.append(sparse.bcoo_dot_general(x, own, dimension_numbers=back))
    b = sparse.BCOO.fromdense(B, n_batch=1)
    pair = sparse.bcoo_dot_general(b, b, dimension_numbers=(([2], [2]), ([0], [0])))
    outer = sparse.bcoo_dot_general(m, m, dimension_numbers=(([1], [1]), ([], [])))
    return [*out, pair.todense(), outer.todense(), outer.nse, duplicates(jax, sparse) @ v]


def elementwise(jax, sparse):
    jnp = jax.numpy
    m, other = sparse.BCOO.fromdense(M), sparse.BCOO.fromdense(M[::-1] + np.eye(3, 4, dtype=np.float32))
    v = jnp.array(V)
    made = [
        m * 2, 3.0 * m, m * v, m * v[:3][:, None], m * jnp.array(M), m / 2, m / v, -m, abs(-m), m**2, m + other,
        m - other,
        m + m, m * m, m * other, sparse.bcoo_multiply_sparse(m, other), duplicates(jax, sparse) ** 2,
        sparse.bcoo_multiply_sparse(m, sparse.BCOO.fromdense(V[None])), duplicates(jax, sparse) * other,
    ]  # fmt: skip
    b = sparse.BCOO.fromdense(B, n_batch=1)
    made += [b * v, b * jnp.array(B), sparse.bcoo_multiply_sparse(b, b), b * jnp.arange(2.0)[:, None, None]]
    out = [x.todense() for x in made]
    out += [m + jnp.ones((3, 4)), sparse.bcoo_multiply_dense(m, v), m.astype("int32").todense()]
    return [*out, sparse.bcoo_extract(m, jnp.arange(12.0).reshape(3, 4)).data]


def derivatives(jax, sparse):
    jnp = jax.numpy
    m, v = sparse.BCOO.fromdense(M), jnp.array(V)

    def loss(data, v):
        own = sparse.BCOO((data, m.indices), shape=m.shape)
        return (
            (jnp.tanh(own @ v) ** 2).sum()
            + (own.T @ (own @ v)).sum()
            + sparse.bcoo_reduce_sum(own, axes=(0,)).todense()[1]
        )

    found = sparse.grad(lambda m, v: ((m @ v) ** 2).sum(), argnums=(0, 1))(m, v)
    value, own = sparse.value_and_grad(lambda m: (m @ v)[0])(m)
    return [
        *jax.grad(loss, (0, 1))(m.data, v), *jax.jit(jax.grad(loss, (0, 1)))(m.data, v), found[0].data, found[1], value,
        own.todense(), jax.jvp(lambda d: loss(d, v), (m.data,), (jnp.ones(4),))[1],
        jax.hessian(loss)(m.data, v), jax.grad(lambda x: (sparse.BCOO.fromdense(x, nse=4) @ v).sum())(jnp.array(M)),
        jax.grad(lambda d: sparse.bcoo_multiply_sparse(
            sparse.BCOO((d, m.indices), shape=m.shape), m).todense().sum())(m.data),
        sparse.jacrev(lambda m: m @ v)(m).todense(), sparse.jacfwd(lambda m: m @ v)(m).todense(),
    ]  # fmt: skip


def mapped(jax, sparse):
    jnp = jax.numpy
    b = sparse.BCOO.fromdense(B, n_batch=1)
    v, m = jnp.array(V), sparse.BCOO.fromdense(M)
    wide = jnp.stack([m.data, 2 * m.data])
    rows = sparse.BCSR.fromdense(B, n_batch=1)
    return [
        jax.vmap(lambda m: m @ v)(b), jax.vmap(lambda m: m.T.todense())(b), jax.vmap(lambda m: (2 * m))(b).todense(),
        jax.vmap(lambda x: m @ x)(jnp.stack([v, v + 1])), jax.vmap(lambda m, x: m @ x)(b, jnp.stack([v, v + 1])),
        jax.vmap(lambda d: sparse.BCOO((d, m.indices), shape=m.shape).todense())(wide),
        jax.vmap(lambda d: sparse.BCOO((d, m.indices), shape=m.shape).sum_duplicates(nse=4).data)(wide),
        jax.vmap(jax.grad(lambda d: ((sparse.BCOO((d, m.indices), shape=m.shape) @ v) ** 2).sum()))(wide),
        jax.vmap(lambda m: m @ v)(rows), jax.jit(lambda m: m @ v)(m), jax.vmap(lambda m: m.sum(0))(b).todense(),
        jax.vmap(lambda x: sparse.BCOO.fromdense(x, nse=3))(jnp.array(B)).todense(),
    ]  # fmt: skip


def rows(jax, sparse):
    jnp = jax.numpy
    m, v = sparse.BCSR.fromdense(M), jnp.array(V)
    coordinates = sparse.BCOO.fromdense(M)
    again = sparse.BCSR.from_bcoo(coordinates)
    out = [*parts(m), m.todense(), m @ v, m @ jnp.ones((4, 2)), *parts(again), m.to_bcoo().indices]
    wide = sparse.BCSR.fromdense(B, n_batch=1)
    grown = sparse.BCSR.fromdense(M, nse=6)
    out += [*parts(wide), wide.todense(), wide.to_bcoo().todense(), *parts(grown), grown.todense(), grown @ v]
    grad = jax.grad(lambda d: (sparse.BCSR((d, m.indices, m.indptr), shape=m.shape) @ v).sum())(m.data)
    turned = sparse.BCSR.from_bcoo(sparse.BCOO((coordinates.data[::-1], coordinates.indices[::-1]), shape=(3, 4)))
    return [*out, grad, *parts(turned), m.sum_duplicates(nse=5).todense()]


def sparsified(jax, sparse):
    jnp = jax.numpy
    m, v = sparse.BCOO.fromdense(M), jnp.array(V)
    dup = duplicates(jax, sparse)

    def wrapped(function, *args):
        found = sparse.sparsify(function)(*args)
        return found.todense() if isinstance(found, sparse.JAXSparse) else found

    def looped(m, v):
        return jax.lax.fori_loop(0, 3, lambda i, x: m.T @ (m @ x) * 0.1, v)

    def branched(m):
        return jax.lax.cond(m.sum() > 0, lambda x: 2 * x, lambda x: -x, m)

    return [
        wrapped(lambda m, v: 2 * jnp.dot(jnp.log1p(m.T), v[:3]) + 1, m, v), wrapped(jnp.mean, m),
        wrapped(lambda m: jnp.mean(m, axis=0), m), wrapped(lambda m: jnp.sin(m) + m * 2, dup),
        wrapped(lambda m: jnp.concatenate([m, m]).sum(1), m), wrapped(lambda m: m.reshape(2, 6)[1, 2:], m),
        wrapped(lambda m: jnp.sqrt(m) @ jnp.ones((4, 2)), m), wrapped(lambda m: m[1:] - m[:-1], m),
        wrapped(lambda m: jnp.stack([m, m])[1], m), wrapped(lambda m: jax.jit(lambda x: x * x)(m), m),
        wrapped(looped, m, v), wrapped(branched, m), wrapped(lambda m: m.astype(jnp.int32), m),
        wrapped(lambda m, v: jnp.einsum("ij,j->i", m, v), m, v), wrapped(lambda m: m**3, m),
        wrapped(jnp.matmul, m, m.T),
        wrapped(lambda m, v: m @ v, sparse.BCSR.fromdense(M), v),
        wrapped(lambda m: jnp.tanh(m), sparse.BCSR.fromdense(M)),
        jax.grad(lambda v: sparse.sparsify(lambda m, v: jnp.sum((m @ v) ** 2))(m, v))(v),
        jax.jit(sparse.sparsify(lambda m, v: jnp.square(m) @ v))(m, v),
    ]  # fmt: skip


def made(jax, sparse):
    key = jax.random.key(3)
    out = [sparse.eye(3).todense(), sparse.eye(3, 4, k=1).todense(), sparse.eye(4, 3, -2).todense()]
    out += [sparse.empty((2, 3)).todense()]
    for options in ({}, {"nse": 3}, {"n_batch": 1, "nse": 0.5}, {"n_dense": 1, "nse": 2}, {"sorted_indices": True}):
        m = sparse.random_bcoo(key, (3, 4), **options)
        out += parts(m)
    return out


def solved(jax, sparse):
    jnp = jax.numpy
    a = np.array([[4, 0, 1], [0, 3, 0], [2, 0, 5]], np.float32)
    m, b = sparse.BCSR.fromdense(a), jnp.array([1.0, 2.0, 3.0])
    solve = sparse.linalg.spsolve

    def loss(data, b):
        return (solve(data, m.indices, m.indptr, b) ** 2).sum()

    out = [solve(m.data, m.indices, m.indptr, b), jax.grad(loss, 1)(m.data, b), jax.jit(loss)(m.data, b)]
    return [*out, jax.jvp(loss, (m.data, b), (jnp.ones(5), jnp.ones(3)))[1]]


def eigenvalues(jax, sparse):
    jnp = jax.numpy
    root = jnp.cos(jnp.arange(400.0) ** 2).reshape(20, 20)
    a = root @ root.T
    values, vectors, _ = sparse.linalg.lobpcg_standard(a, jnp.sin(jnp.arange(60.0) ** 2).reshape(20, 3), m=100)
    by_function, _, _ = sparse.linalg.lobpcg_standard(lambda x: a @ x, jnp.eye(20, 2), m=100)
    diagonal = sparse.linalg.lobpcg_standard(jnp.diag(jnp.arange(8.0)), jnp.ones((8, 1)), m=20)
    return [values, jnp.abs(vectors), by_function, diagonal[0]]


def numbers(array):
    """The shape, the kind of dtype, and the numbers of an array."""
    x = np.asarray(array)
    return [list(x.shape), x.dtype.kind, [float(f"{v:.7g}") for v in x.astype(float).ravel()]]


PROGRAMS = [
    kinds_of_layout, padded_dense, sum_duplicates, transposes, reductions, shapes, layouts, products, elementwise,
    derivatives, mapped, rows, sparsified, made, solved, eigenvalues,
]  # fmt: skip
