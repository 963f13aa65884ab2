"""Functions that ``gtrace.jax`` adds or adapts: windows, trees, keys, arrays' methods, roots, batches on one device."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.errors import ArgumentError, DtypeError, ShapeError
from gtrace.testing import assert_close


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


# shapes, sums, and sums weighted by cosines, of JAX 0.10
TRANSPOSED = [
    ([2, 5, 6, 4], -7.19575, -0.0234603),
    ([2, 5, 6, 4], -7.62906, -29.8409),
    ([2, 7, 7, 4], -1.26081, -0.0828603),
    ([2, 7, 7, 4], -1.26081, 0.164493),
    ([2, 6, 6, 4], 4.29376, -0.969463),
    ([2, 6, 6, 4], 7.04529, -2.21913),
    ([2, 10, 18, 4], 0.51504, 1.14982),
    ([2, 10, 18, 4], -1.71082, -4.70795),
    ([2, 11, 18, 4], -1.26081, 1.75906),
    ([2, 11, 18, 4], -1.2608, -3.24005),
    ([2, 10, 16, 4], 4.29376, 1.42531),
    ([2, 10, 16, 4], 7.0453, -0.479014),
    ([2, 3, 6, 18], 2.46363, 5.85663),
]


def summary(y):
    weights = np.cos(np.arange(y.size)).reshape(y.shape)
    return [list(y.shape), float(y.sum()), float((y.numpy() * weights).sum())]


def test_transposed_convolutions_and_patches_are_jaxs(jax):
    lax, jnp = jax.lax, jax.numpy
    x = jnp.array(np.sin(np.arange(180)).reshape(2, 5, 6, 3))
    w = jnp.array(np.cos(np.arange(72)).reshape(3, 2, 3, 4))
    found = []
    for strides in ((1, 1), (2, 3)):
        for padding in ("SAME", "VALID", ((1, 2), (0, 1))):
            for flipped in (False, True):
                kernel = jnp.swapaxes(w, 2, 3) if flipped else w
                y = lax.conv_transpose(x, kernel, strides, padding, transpose_kernel=flipped)
                found.append(summary(y))
                if not flipped:
                    layout = ("NHWC", "HWIO", "NHWC")
                    assert lax.conv_transpose_shape_tuple(x.shape, w.shape, strides, padding, layout) == y.shape
    layout = ("NHWC", "HWIO", "NHWC")
    found.append(summary(lax.conv_general_dilated_patches(x, (2, 3), (2, 1), "SAME", dimension_numbers=layout)))
    for ours, theirs in zip(found, TRANSPOSED, strict=True):
        assert ours[0] == theirs[0]
        np.testing.assert_allclose(ours[1:], theirs[1:], rtol=1e-3, atol=1e-2)


def test_shapes_of_windows_are_those_of_the_results(jax):
    lax = jax.lax
    x, w = gt.ones((2, 8, 7, 3)), gt.ones((3, 2, 3, 4))
    layout = ("NHWC", "HWIO", "NHWC")
    for strides, padding in (((1, 1), "SAME"), ((2, 3), "VALID"), ((2, 1), [(1, 0), (2, 2)])):
        y = lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=layout)
        assert lax.conv_general_shape_tuple(x.shape, w.shape, strides, padding, layout) == y.shape
        z = lax.reduce_window(x[0, :, :, 0], 0.0, lax.add, (3, 2), strides, padding)
        assert lax.reduce_window_shape_tuple((8, 7), (3, 2), strides, padding) == z.shape
    with pytest.raises(ShapeError, match="SAME, VALID or pairs"):
        lax.conv_transpose(x, w, (1, 1), "FULL")


def test_products_are_computed_in_the_preferred_dtype(jax):
    jnp = jax.numpy
    x = jnp.full((2, 64), 1.001, dtype=jnp.bfloat16)
    for y in (
        jnp.einsum("ij,kj->ik", x, x, preferred_element_type=jnp.float32),
        jnp.matmul(x, x.T, preferred_element_type=jnp.float32),
        jnp.linalg.matmul(x, x.T, preferred_element_type=jnp.float32),
        x.dot(x.T, preferred_element_type=jnp.float32),
    ):
        assert y.dtype == "float32" and y.shape == (2, 2)
    assert jnp.einsum(x, [0, 1], x, [0, 1], [0]).dtype == "bfloat16" and x.dot(x.T, precision="highest").ndim == 2


def test_arguments_of_vmap_that_are_no_arrays(jax):
    apply = jax.vmap(lambda f, x, options: f(x) * options["scale"], in_axes=(None, 0, None))
    assert apply(jax.numpy.square, gt.array([1.0, 2.0]), {"scale": 3, "name": "text"}).tolist() == [3.0, 12.0]
    with pytest.raises(ArgumentError, match=r"arrays or numbers along a batch axis, got str at \[0\]\[1\]"):
        jax.vmap(lambda x, y: x)(gt.ones(2), "text")


def test_methods_of_arrays(jax):
    x = jax.numpy.arange(3.0)
    assert next(iter(x.devices())).platform == "cpu" and x.platform() == "cpu" and x.is_fully_addressable
    assert np.sum(x) == 3.0 and np.max(x) == 2.0
    assert jax.numpy.where(True, 1.0, 2.0).weak_type and not x.weak_type
    assert (jax.numpy.ones(2, jax.numpy.bfloat16) * jax.numpy.where(True, 1.0, 2.0)).dtype == "bfloat16"
    y = x + 1
    assert not y.is_ready() and y.block_until_ready().is_ready() and not y.is_deleted()


def test_keys_from_words_and_with_ciphers(jax):
    random = jax.random
    first = random.normal(random.key(42, impl="threefry2x32"), (2,)).tolist()
    assert random.normal(jax.numpy.array([0, 42], jax.numpy.uint32), (2,)).tolist() == first
    assert random.normal(gt.from_torch(torch.tensor([0, 42], dtype=torch.int32)), (2,)).tolist() == first
    assert random.normal(random.clone(random.PRNGKey(42)), (2,)).tolist() == first
    with pytest.raises(ArgumentError, match="a cipher among threefry2x32, rbg"):
        random.key(0, impl="philox4x32")
    kept = random.PRNGKey(1).astype(random.PRNGKey(1).dtype)
    assert kept.dtype == "uint32", "a conversion to the dtype that it has leaves an array as it is"


def test_trees_with_paths_and_by_levels(jax):
    value = {"a": [1, (2, 3)], "b": None}
    found = jax.tree.leaves_with_path(value, is_leaf=lambda path, x: len(path) == 2, is_leaf_takes_path=True)
    assert [x for _, x in found] == [1, (2, 3)]
    assert jax.tree.map_with_path(lambda path, x: len(path), value) == {"a": [2, (3, 3)], "b": None}
    assert jax.tree.reduce_associative(lambda a, b: f"({a}{b})", [1, 2, 3, 4, 5]) == "(((12)(34))5)"
    assert jax.tree.reduce_associative(max, [], identity=7) == 7
    with pytest.raises(TypeError, match="identity="):
        jax.tree.reduce_associative(max, [])
    tree_util = jax.tree_util
    assert tree_util.is_tree_node([]) and tree_util.is_tree_node(None) and not tree_util.is_tree_node(1)
    assert tree_util.flatten_one_level((5, [6]))[0] == [5, [6]]
    keyed = tree_util.flatten_one_level_with_keys({"b": 1, "a": [2]})[0]
    assert [(tree_util.keystr((key,)), x) for key, x in keyed] == [("['a']", [2]), ("['b']", 1)]


def test_names_of_numpys(jax):
    jnp = jax.numpy
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    assert_close(jnp.var(x, axis=1, mean=np.ones((3, 1))), np.mean((x - 1) ** 2, 1), check_dtype=False)
    assert_close(jnp.std(x, mean=1.0), np.sqrt(np.mean((x - 1) ** 2)), check_dtype=False)
    assert jnp.argsort(x, dtype=jnp.int8).dtype == "int8" and jnp.cov(x, dtype=jnp.float16).dtype == "float16"
    parts = jnp.unique_all(np.array([3, 1, 3]), size=3)
    assert parts.values.tolist() == [1, 3, 1] and parts.counts.tolist() == [1, 2, 0]
    assert jnp.unique_values(np.array([3, 1]), size=3, fill_value=9).tolist() == [1, 3, 9]
    for coefficients in ([0.0, 1, -3, 2, 0], [2.0], [0.0, 0.0]):
        ours, theirs = jnp.roots(np.array(coefficients)).numpy(), np.roots(coefficients)
        np.testing.assert_allclose(np.sort_complex(ours), np.sort_complex(theirs.astype(complex)), atol=1e-5)
    numbers = np.array([1, -1, 0, 2], np.float32)
    assert np.array_equal(jnp.spacing(numbers), np.spacing(numbers))
    bits = rng.integers(0, 2, (3, 11))
    for axis in (None, 0, 1):
        for order in ("big", "little"):
            packed = np.packbits(bits, axis, order)
            assert np.array_equal(jnp.packbits(bits, axis, order), packed)
            for count in (None, 9, -2, 40):
                theirs = np.unpackbits(packed, axis, count, order)
                assert np.array_equal(jnp.unpackbits(packed, axis, count, order), theirs)
    z = np.array([1 + 2j, 1 - 1j, -3, 0], np.complex64)
    assert np.array_equal(jnp.sort_complex(z), np.sort_complex(z))
    for name in ("maximum", "minimum"):
        assert np.array_equal(getattr(jnp, name)(z, z[::-1].copy()), getattr(np, name)(z, z[::-1]))
    assert np.array_equal(jnp.mask_indices(3, jnp.triu, 1), np.mask_indices(3, np.triu, 1))
    assert jnp.place(np.arange(4.0), np.arange(4) > 1, np.array([7.0]), inplace=False).tolist() == [0, 1, 7, 7]
    polynomials = rng.normal(size=(3, 2)).astype(np.float32)
    expected = [np.polyval(polynomials[:, k], 1.5) for k in range(2)]
    assert_close(jnp.polyval(polynomials, 1.5), expected, check_dtype=False)
    with pytest.raises(DtypeError, match="integers or booleans"):
        jnp.packbits(np.ones(3))


def test_roots_and_linear_systems_have_the_derivative_of_the_solution(jax):
    lax = jax.lax

    def root(a):
        def newton(f, x):
            return lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)

        return lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))

    assert abs(root(gt.array(4.0)).item() - 2) < 1e-6 and abs(jax.grad(root)(4.0).item() - 0.25) < 1e-5
    matrix, right = gt.array([[3.0, 1.0], [0.0, 2.0]]), gt.array([1.0, 2.0])

    def solved(matrix, right):
        def by_inverse(product, y):
            columns = jax.vmap(product, out_axes=1)(jax.numpy.eye(2))
            return gt.linalg.inv(columns) @ y

        return lax.custom_linear_solve(lambda x: matrix @ x, right, by_inverse, by_inverse).sum()

    def plain(matrix, right):
        return gt.linalg.solve(matrix, right).sum()

    def along(f):
        return lambda m, b: jax.jvp(f, (m, b), (m, b))[1]

    for twice in (lambda f: jax.jacfwd(f, 1), lambda f: jax.jacfwd(jax.grad(f)), lambda f: jax.grad(along(f))):
        np.testing.assert_allclose(twice(solved)(matrix, right), twice(plain)(matrix, right), rtol=1e-4, atol=1e-5)
    ours = jax.jit(jax.grad(solved, (0, 1)), backend="eager")(matrix, right)
    theirs = jax.grad(lambda m, b: gt.linalg.solve(m, b).sum(), (0, 1))(matrix, right)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


def test_names_of_jax_itself(jax, capsys):
    forward, backward = jax.fwd_and_bwd(lambda x, y: x * y, argnums=1)
    value, kept = forward(2.0, 3.0)
    assert value == 6.0 and backward(kept, 1.0) == 2.0
    shared = jax.pmap(lambda x, n: x / jax.lax.psum(x, "i") * n, axis_name="i", static_broadcasted_argnums=1)
    assert shared(gt.array([1.0, 3.0]), 2).tolist() == [0.5, 1.5]
    assert jax.process_indices() == [0] and jax.P is jax.sharding.PartitionSpec
    jax.print_environment_info()
    assert "gtrace" in capsys.readouterr().out
    with jax.profiler.trace("unused"), jax.profiler.StepTraceAnnotation("train", step_num=1):
        assert jax.profiler.annotate_function(abs) is abs
    x = gt.array([3.0, 1.0, 2.0])
    assert jax.lax.approx_min_k(x, 2)[0].tolist() == [1.0, 2.0] and jax.lax.dtype(x) == "float32"
    assert jax.lax.top_k(gt.stack([x, -x]), 1, axis=0)[0].tolist() == [[3.0, 1.0, 2.0]]
    assert jax.scipy.special.gammainc(a=2.0, x=1.0).item() == jax.scipy.special.gammainc(2.0, 1.0).item()


# the dtypes of JAX 0.10's results, and whether they are weak
WEAK = {
    "i * 0.9": ("float32", True), "half * (i[:2] * 0.9)": ("bfloat16", False), "i / 2": ("float32", False),
    "i / 2.0": ("float32", True), "jnp.sqrt(2)": ("float32", True), "jnp.sqrt(i)": ("float32", False),
    "jnp.divide(2, 3)": ("float32", True), "jnp.asarray([True]) * 2": ("int32", True), "i * 2j": ("complex64", True),
    "jnp.where(i > 1, i, 0.5)": ("float32", True), "jnp.maximum(i, 1.5)": ("float32", True), "i * 2": ("int32", False),
    "half * np.float32(2)": ("float32", False), "np.float64(2) * i": ("float32", False),
    "half + np.int64(1)": ("bfloat16", False), "jnp.sqrt(np.float32(2))": ("float32", False),
    "0.5 ** i": ("float32", False), "0.5 ** i[1]": ("float32", True), "i ** 0.5": ("float32", True),
    "jax.jit(lambda k: 0.5 ** k, backend='eager')(i[1])": ("float32", False), "jnp.sum(i * 0.5)": ("float32", False),
    "jax.vmap(lambda k: half * (0.5 * k))(i)": ("bfloat16", False),
    "jax.lax.fori_loop(0, 2, lambda k, x: x * (0.5 ** k), half)": ("bfloat16", False),
    "jax.lax.scan(lambda c, x: (c * 0.5 + x * 0.5, c), half, i)[0]": ("bfloat16", False),
}  # fmt: skip


@pytest.mark.parametrize("text", WEAK)
def test_numbers_among_integers_are_weak_as_in_jax(jax, text):
    names = {"jax": jax, "jnp": jax.numpy, "np": np, "i": jax.numpy.arange(3), "half": jax.numpy.ones(2, "bfloat16")}
    found = eval(text, names)
    assert (str(found.dtype), found.aval.weak) == WEAK[text]


def test_weak_results_are_for_jax_alone():
    assert not (gt.arange(3) * 0.9).aval.weak and (gt.ones(2, gt.bfloat16) * np.float32(2)).dtype == "bfloat16"


def test_updates_of_a_wider_dtype_are_cast(jax):
    i = jax.numpy.arange(3)
    with pytest.warns(FutureWarning, match="computed in float32"):
        assert i.at[0].set(2.7).tolist() == [2, 1, 2]
    with pytest.warns(FutureWarning):
        assert i.at[1].add(gt.array(2.7)).tolist() == [0, 3, 2]  # JAX adds before it casts
    with pytest.warns(FutureWarning):
        assert i.at[i > 0].multiply(1.5).tolist() == [0, 1, 3]
    with pytest.warns(FutureWarning):
        assert jax.numpy.ones(2).at[0].set(2 + 1j).tolist() == [2.0, 1.0]
    assert i.at[2].divide(4).tolist() == [0.0, 1.0, 0.5]
    with gt.config(jax_results=False), pytest.raises(DtypeError, match="an update"):
        i.at[0].set(2.7)


@pytest.mark.parametrize(
    "name", ["cumsum", "cumprod", "nancumsum", "nancumprod", "cumulative_prod", "x.cumsum", "x.cumprod"]
)
def test_running_sums_and_products_keep_the_dtype_of_the_elements(jax, name):
    f = getattr(jax.numpy, name) if name[:2] != "x." else lambda x: jax.jit(lambda x: getattr(x, name[2:])(0))(x)
    assert [f(gt.array([1, 2], dtype=kind)).dtype for kind in ("int8", "uint8", "int16")] == ["int8", "uint8", "int16"]
    assert f(gt.array([True, False])).dtype == "int32"
    with gt.config(jax_results=False, x64=True):
        assert gt.array([1], dtype="int8").cumsum().dtype == gt.array([1], dtype="int8").cumprod(0).dtype == "int64"


def test_lists_where_jax_has_lists(jax):
    x = jax.numpy.array([3.0, 1.0, 2.0])
    values, places = found = jax.lax.top_k(x, 2)
    assert type(found) is list and values.tolist() == [3.0, 2.0] and places.tolist() == [0, 2]
    assert type(jax.lax.approx_max_k(x, 1)) is type(jax.lax.approx_min_k(x, 1)) is list
    assert type(jax.numpy.atleast_1d(x, 1.0)) is list and jax.numpy.atleast_2d(x).shape == (1, 3)
    found = jax.lax.linalg.lu(jax.numpy.eye(2))
    assert type(found) is list and found[2].dtype == "int32"


def test_what_has_no_value_yet_stays_on_its_device(jax):
    doubled = lambda x: 2 * jax.device_get({"x": x})["x"]  # noqa: E731
    assert jax.grad(doubled)(1.0) == jax.jvp(doubled, (1.0,), (1.0,))[1] == jax.jit(doubled)(1.0) == 2
    assert jax.vmap(jax.grad(doubled))(jax.numpy.ones(2)).tolist() == jax.vmap(doubled)(np.ones(2)).tolist() == [2, 2]


def test_segments_below_zero_are_left_out(jax):
    ids = np.array([0, 1, 5, -1])
    assert jax.ops.segment_sum(jax.numpy.ones(4), ids, 3).tolist() == [1.0, 1.0, 0.0]
    assert jax.ops.segment_max(jax.numpy.ones(4), ids, 3).tolist() == [1.0, 1.0, -np.inf]


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "uint8", "bool", "complex64"])
def test_arrays_full_of_a_scalar_of_numpys_have_its_dtype(jax, kind):
    expected = {"float64": "float32"}.get(kind, kind)
    value = np.dtype(kind).type(1)
    for found in (jax.numpy.full(2, value), jax.lax.full((2,), value), jax.jit(lambda: jax.numpy.full(2, value))()):
        assert found.dtype == expected and found.tolist() == [1, 1]
    assert jax.numpy.full(2, 1).weak_type


def test_segments_take_what_broadcasts_to_them(jax):
    ids = np.array([0, 2, 0])
    assert jax.ops.segment_max(3.0, ids, 3).tolist() == [3.0, -np.inf, 3.0]
    assert jax.ops.segment_sum(np.ones((1, 2)), ids, 3).tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert jax.ops.segment_sum(np.ones((1, 3)), np.array([[0, 1, 1]] * 3), 2).tolist() == [[3.0] * 3, [6.0] * 3]
    with pytest.raises(ShapeError, match="broadcasts to"):
        jax.ops.segment_sum(np.ones(2), ids, 3)


def test_functions_of_the_parts_of_one_process(jax):
    from gtrace.jax.experimental.mesh_utils import create_device_mesh

    jnp, part = jax.numpy, jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(create_device_mesh((1, 1)), ("a", "b"))
    assert mesh.devices.shape == (1, 1) and dict(mesh.shape) == {"a": 1, "b": 1}

    def product(x, y):
        return jax.lax.psum(x @ y, "b") + jax.lax.axis_index("a")

    whole = jax.shard_map(product, mesh=mesh, in_specs=(part("a", "b"), part("b")), out_specs=part("a"))
    assert jax.jit(whole, backend="eager")(jnp.ones((2, 3)), jnp.ones(3)).tolist() == [3.0, 3.0]
    assert jax.grad(lambda y: whole(jnp.ones((2, 3)), y).sum())(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
    placed = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), part("d")))
    assert (placed * 2).tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.slow
def test_differential_equations_and_their_adjoint(jax):
    from gtrace.jax.experimental.ode import odeint

    jnp = jax.numpy

    def field(y, t, k):
        return {"x": y["v"], "v": -k["w"] * y["x"] - k["d"] * y["v"] + jnp.sin(t)}

    def loss(start, t, k):
        y = odeint(field, start, t, k, rtol=1e-5, atol=1e-6)
        return jnp.sum(y["x"] ** 2 + y["v"] ** 2)

    start = {"x": jnp.array(1.0), "v": jnp.array(0.0)}
    given = start, jnp.linspace(0, 2, 5), {"w": jnp.array(2.0), "d": jnp.array(0.1)}
    value, (by_start, by_times, by_constants) = jax.value_and_grad(loss, (0, 1, 2))(*given)
    # of JAX's odeint
    np.testing.assert_allclose(value, 3.6047099, rtol=1e-3)
    np.testing.assert_allclose([by_start["x"], by_start["v"]], [8.812, 0.014], atol=2e-3)
    np.testing.assert_allclose(by_times, [0.027, 0.354, -1.178, -1.251, 0.226], atol=2e-3)
    np.testing.assert_allclose([by_constants["w"], by_constants["d"]], [1.453, -2.046], atol=2e-3)


@pytest.mark.native
@pytest.mark.parametrize("typed", [False, True])
def test_loops_with_keys_compile_as_a_whole(jax, typed):
    from gtrace.core.backends.scheduler import Scheduler
    from gtrace.core.ir.aval import contiguous_strides

    random, jnp = jax.random, jax.numpy
    key = random.key(3) if typed else random.PRNGKey(3)
    assert random.split(key).dtype == random.fold_in(key, 1).dtype == key.dtype == ("key<fry>" if typed else "uint32")
    assert random.key_data(random.split(key))[1].tolist() == gt.random.split(gt.random.key(3))[1].tolist()

    def walk(key):
        def step(carry, _):
            key, x = carry
            key, own = random.split(key)
            return (key, x + random.normal(own, (3,)).sum()), x

        return jax.lax.scan(step, (key, 0.0), None, length=20)

    graph = gt.make_graph(walk)(key)
    strides = [contiguous_strides(a.shape) for a in graph.avals]
    calls = Scheduler("inductor", "default", 1).schedule(graph, strides).calls
    assert any(request.native for call in calls for request in call.requests)
    assert jnp.allclose(walk(key)[0][1], jax.jit(walk, backend="eager")(key)[0][1])
    with gt.config(debug_key_reuse=True), pytest.raises(gt.errors.KeyReuseError):
        random.normal(key)
        random.uniform(key)


def test_rules_get_float0_where_integers_have_no_derivative(jax):
    jnp, float0 = jax.numpy, jax.dtypes.float0
    x, n = jnp.array([1.0, 2.0]), jnp.array([3, 4])
    scaled = jax.custom_jvp(lambda x, n: (x * n, n.max()))

    @scaled.defjvp
    def rule(primals, tangents):
        assert tangents[1].dtype == float0 and tangents[1].shape == (2,)
        return scaled(*primals), (5 * tangents[0], np.zeros((), float0))

    placed = jax.custom_vjp(lambda x: (x, x.argmax()))

    def backward(residuals, cotangents):
        assert cotangents[1].dtype == float0 and cotangents[1].shape == ()
        return (7 * cotangents[0],)

    placed.defvjp(lambda x: (placed(x), None), backward)
    for f, each in ((lambda x: scaled(x, n)[0].sum(), 5.0), (lambda x: placed(x)[0].sum(), 7.0)):
        assert jax.grad(f)(x).tolist() == jax.jit(jax.grad(f))(x).tolist() == [each, each]
        assert jax.vmap(jax.grad(f))(jnp.stack([x, x])).tolist() == [[each, each]] * 2


def test_rules_with_symbolic_zeros_and_linear_calls(jax):
    @jax.custom_vjp
    def f(x, y):
        return x * y

    def forward(x, y):
        assert x.perturbed and not y.perturbed
        x, y = jax.custom_derivatives.custom_vjp_primal_tree_values((x, y))
        return x * y, (x, y)

    f.defvjp(forward, lambda kept, ct: (2 * ct * kept[1], None), symbolic_zeros=True)
    assert jax.grad(f)(3.0, 5.0).item() == 10.0

    @jax.custom_jvp
    def g(x):
        return x

    @functools.partial(g.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        zero = jax.custom_derivatives.SymbolicZero
        assert not isinstance(tangents[0], zero)
        return primals[0], zero(jax.typeof(primals[0]))

    assert jax.grad(g)(3.0).item() == 0.0
    call = functools.partial(jax.custom_derivatives.linear_call, lambda r, x: r * x, lambda r, ct: 10 * r * ct)
    assert jax.grad(lambda x: call(2.0, x))(3.0).item() == 20.0
    assert jax.jvp(lambda x: call(2.0, x), (3.0,), (1.0,))[1].item() == 2.0


def test_roots_have_derivatives_of_both_modes_and_of_any_order(jax):
    def newton(f, x):
        return jax.lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)

    def root(a):
        return jax.lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))

    assert_close(jax.jvp(root, (4.0,), (1.0,))[1], 0.25, check_dtype=False)
    assert_close(jax.grad(jax.grad(root))(4.0), -1 / 32, check_dtype=False)


def test_cells_hold_arrays_where_they_were_made(jax):
    jnp = jax.numpy
    ref = jax.new_ref(jnp.zeros(3))
    ref[1] = 2.0
    ref.addupdate(0, 1.0)
    assert ref[...].tolist() == [1.0, 2.0, 0.0] and ref.shape == (3,)

    def inside(x):
        own = jax.new_ref(x)
        own[0] = ref[1]
        return jax.freeze(own)

    assert jax.jit(inside, backend="eager")(jnp.ones(2)).tolist() == [2.0, 1.0]
    with pytest.raises(gt.errors.LeakError, match="Return the new value, or carry it"):
        jax.jit(lambda x: ref.__setitem__(0, x), backend="eager")(1.0)
    assert jax.ref.swap(ref, 2, 5.0).item() == 0.0 and jax.freeze(ref).tolist() == [1.0, 2.0, 5.0]
    with pytest.raises(ArgumentError, match="frozen or freed"):
        _ = ref[0]


def test_sparse_matrices(jax):
    jnp = jax.numpy
    from gtrace.jax.experimental import sparse

    dense = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]], np.float32)
    m = sparse.BCOO.fromdense(jnp.array(dense))
    v, w = np.arange(3, dtype=np.float32), np.ones((4, 2), np.float32)
    assert m.nse == 3 and np.array_equal(m.todense().numpy(), dense) and np.array_equal(m.T.todense().numpy(), dense.T)
    assert np.array_equal((m @ jnp.array(v)).numpy(), dense @ v)
    assert np.array_equal(m.__rmatmul__(w).numpy(), w @ dense)
    assert np.array_equal(m.sum(0).todense().numpy(), dense.sum(0)) and np.array_equal(
        (2 * m).todense().numpy(), 2 * dense
    )
    grad = jax.grad(lambda data: (sparse.BCOO((data, m.indices), shape=m.shape) @ v).sum())(m.data)
    assert grad.tolist() == [1.0, 0.0, 2.0]
    with pytest.raises(ShapeError, match="with 3 rows"):
        m @ jnp.ones(2)
    traced = jax.jit(lambda x: sparse.BCOO.fromdense(x, nse=4).todense(), backend="eager")(jnp.array(dense))
    assert np.array_equal(traced.numpy(), dense)


# of JAX 0.10
def test_further_functions_of_lax_and_nn(jax):
    jnp, lax = jax.numpy, jax.lax
    a, x = jnp.array([2.0, 0.5]), jnp.array([1.0, 3.0])
    assert_close(lax.igamma_grad_a(a[0], x[0]), -0.27619603)
    assert_close(lax.random_gamma_grad(a[0], x[0]), 0.7507787)
    assert lax.reduce_xor(jnp.array([[1, 3], [4, 4]]), (0, 1)).item() == 2
    images = jnp.arange(18.0).reshape(1, 2, 3, 3)
    weights = jnp.cos(jnp.arange(3 * 8 * 4.0)).reshape(3, 8, 2, 2)
    local = lax.conv_general_dilated_local(images, weights, (1, 1), "VALID", (2, 2))
    assert local.shape == (1, 3, 2, 2)
    want = [np.sum(np.asarray(images)[0, :, :2, :2].ravel() * np.asarray(weights)[0, :, 0, 0])]
    assert_close(local[0, 0, 0, 0], want[0], check_dtype=False)
    u, h, _, _ = lax.linalg.qdwh(jnp.array([[1.0, 2.0], [3.0, 5.0]]))
    assert_close(u @ h, [[1.0, 2.0], [3.0, 5.0]])
    assert lax.tanh_p is lax.tanh_p and repr(lax.tanh_p) == "tanh"
    assert_close(lax.tanh_p.bind(x), np.tanh([1.0, 3.0]), check_dtype=False)
    with pytest.raises(ArgumentError, match="Call the function of that name"):
        lax.infeed_p.bind(x)
    assert jax.ops.segment_sum(jnp.ones(3), jnp.array([0, 5, 1]), 2, mode="clip").tolist() == [1.0, 2.0]
    assert jnp.polymul(jnp.array([0, 1.0]), jnp.array([2.0]), trim_leading_zeros=True).tolist() == [2.0]


def test_errors_have_the_classes_that_programs_for_jax_catch(jax):
    jnp, errors = jax.numpy, jax.errors
    ones, jit = jnp.ones, jax.jit
    table = [  # a mistake, and what JAX 0.10 raises for it
        (lambda: ones(2) + ones(3), TypeError),
        (lambda: ones((2, 3)) @ ones((2, 3)), TypeError),
        (lambda: ones(6).reshape(4), TypeError),
        (lambda: jnp.stack([ones(2), ones(3)]), ValueError),
        (lambda: jax.grad(lambda x: x * 2)(ones(3)), TypeError),
        (lambda: jax.vjp(jnp.sin, ones(2))[1]((ones(2), ones(2))), ValueError),
        (lambda: jax.vmap(jnp.sin, in_axes=None)(ones(2)), ValueError),
        (lambda: jit(lambda x, n: x, static_argnums=1)(1.0, [1]), ValueError),
        (lambda: jit(lambda x: x if x > 0 else -x)(1.0), errors.TracerBoolConversionError),
        (lambda: jit(lambda n: list(range(n)))(3), errors.TracerIntegerConversionError),
        (lambda: jit(np.asarray)(ones(2)), errors.TracerArrayConversionError),
        (lambda: jit(lambda x: x[x > 0])(ones(2)), errors.NonConcreteBooleanIndexError),
        (lambda: jit(lambda x: x[x > 0])(ones(2)), IndexError),
        (lambda: jit(float)(1.0), errors.ConcretizationTypeError),
    ]
    for mistake, kind in table:
        with pytest.raises(kind):
            mistake()
    with pytest.raises(errors.ConcretizationTypeError) as found:
        jit(float)(1.0)
    assert not isinstance(found.value, errors.TracerBoolConversionError)
    kept = []
    jit(lambda x: kept.append(x) or x)(1.0)
    with pytest.raises(errors.UnexpectedTracerError) as leak:
        kept[0] + 1
    assert isinstance(leak.value, TypeError)


def test_derivatives_where_two_pieces_meet_are_jaxs(jax):
    jnp, nn = jax.numpy, jax.nn
    table = [  # a function, a point, its derivative there in JAX 0.10
        (nn.leaky_relu, 0.0, 1.0),
        (nn.hard_tanh, 1.0, 1.0),
        (nn.hard_tanh, -1.0, 1.0),
        (nn.sparse_sigmoid, 1.0, 0.25),
        (nn.relu6, 6.0, 0.0),
        (nn.relu, 0.0, 0.0),
        (lambda x: jnp.fmax(x, 0.0), 0.0, 0.0),
        (lambda x: jnp.fmin(0.0, x), 0.0, 1.0),
        (lambda x: jnp.maximum(x, 0.0), 0.0, 0.5),
        (lambda x: jnp.clip(x, -1.0, 1.0), 1.0, 0.5),
    ]
    for f, point, expected in table:
        assert_close(jax.grad(f)(point), expected, check_dtype=False)


def test_mul_is_a_name_of_multiply_in_updates(jax):
    assert jax.numpy.ones(3).at[1].mul(4.0).tolist() == [1.0, 4.0, 1.0]


NAN, INF = float("nan"), float("inf")


def test_functions_that_jax_0_12_added(jax):
    lax, jnp = jax.lax, jax.numpy
    x = jnp.array([-2.0, 0.0, 0.5, 1.0, 3.0, INF])
    rows, erfcinv = jnp.array([[3, 1, 2], [4, 4, 5]]), jax.scipy.special.erfcinv
    with_nan = jnp.array([3, 1, 2, NAN])
    table = [  # what is called, and what JAX 0.12 gives
        (jnp.minmax(rows), (1, 5)),
        (jnp.minmax(jnp.array([[3.0, 1, NAN]]), axis=0, keepdims=True), ([[3, 1, NAN]], [[3, 1, NAN]])),
        (jnp.minmax(x[:3], initial=(-5.0, 9.0), where=x[:3] > 0), (-5, 9)),
        (jnp.top_k(rows, 2), ([[3, 2], [5, 4]], [[0, 2], [2, 0]])),
        (jnp.top_k(rows, 2, axis=0), ([[4, 4, 5], [3, 1, 2]], [[1, 1, 1], [0, 0, 0]])),
        (jnp.top_k(with_nan, 2), ([NAN, 3], [3, 0])),
        (jnp.top_k(with_nan, 2, mode="smallest"), ([1, 2], [1, 2])),
        (lax.log2(x), [NAN, -INF, -1, 0, 1.5849625, INF]),
        (lax.one_minus_square(x), [-3, 1, 0.75, 0, -8, -INF]),
        (lax.one_minus_square(jnp.array([1, 2])), [0, -3]),
        (jax.grad(lax.one_minus_square)(1e-9), -2e-9),
        (lax.polynomial(x, jnp.array([1.0, 2.0, 3.0])), [9, 1, 2.75, 6, 34, INF]),
        (lax.polynomial(x, (1.0, 2.0, jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))), [1, 1, 2.75, 7, 52, INF]),
        (lax.polynomial(x, []), [0, 0, 0, 0, 0, 0]),
        (jax.grad(lax.polynomial)(3.0, [1.0, 2.0, 3.0]), 20),
        (erfcinv(jnp.array([0.0, 0.5, 1, 2, -1, 1e-20])), [INF, 0.47693628, 0, -INF, NAN, 6.6015806]),
        (jax.grad(erfcinv)(0.5), -1.112585),
    ]
    for k, (found, wanted) in enumerate(table):
        np.testing.assert_allclose(np.array(found), np.array(wanted), rtol=1e-6, err_msg=f"row {k}")
    weak = [lax.log2(3.0), lax.polynomial(3.0, [1.0, 2.0]), lax.polynomial(3, [1, 2]), lax.polynomial(3.0, [])]
    strong = [erfcinv(1), erfcinv(0.5), lax.polynomial(jnp.float32(3), [1.0]), *jnp.minmax(3)]
    assert [a.weak_type for a in (*weak, *strong)] == [True] * len(weak) + [False] * len(strong)
    for wrong in (lambda: lax.log2(rows), lambda: jnp.top_k(rows, 4), lambda: jnp.top_k(rows, 1, mode="min")):
        with pytest.raises((DtypeError, ShapeError, ArgumentError), match=r"\[(log2|top_k)\] expected"):
            wrong()


def test_options_and_parameters_that_jax_0_12_added(jax):
    assert jax.jit(lambda x: x * 2, inline=jax.Inline.AUTO)(1.5) == 3
    assert jax.make_mesh((1,), ("a",)).axis_names == jax.make_mesh(axis_shapes=(1,), axis_names=("a",)).axis_names
    assert jax.get_mesh().empty and jax.get_abstract_mesh().empty
    with jax.use_abstract_mesh(jax.make_mesh(axis_sizes=(1,), axis_names=("a",))):
        assert not jax.get_mesh().empty
    assert jax.numpy.lexsort([jax.numpy.array([2, 1])], batch_size=3).tolist() == [1, 0]
    with pytest.raises(ArgumentError, match="with_logs left to its default"):
        jax.custom_gradient(lambda x: (x, lambda g: g), with_logs=True)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_deviations_without_degrees_of_freedom_are_nan(name):
    import gtrace.jax.numpy as jnp

    x = jnp.array([[1.0, 2.0, 4.0], [1.0, 2.0, jnp.nan]])
    function = getattr(jnp, name)
    assert jnp.isnan(function(x, ddof=9))
    assert jnp.isnan(function(x[0], ddof=3)) and not jnp.isnan(function(x[0], ddof=2))
    assert jnp.isnan(function(x, axis=1, ddof=2, keepdims=True)).tolist() == [[False], [True]]


def test_derivatives_by_what_the_functions_of_a_linear_solve_close_over(jax):
    """The matrix is closed over by the solver too, through which no derivative passes. The right one: -A^-T g x^T."""
    matrix, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])

    def inverse(m):
        (a, b), (c, d) = m
        return gt.stack([gt.stack([d, -b]), gt.stack([-c, a])]) / (a * d - b * c)

    def loss(m):
        solved = jax.lax.custom_linear_solve(
            lambda x: m @ x, gt.array(b), lambda matvec, b: inverse(m) @ b, symmetric=True
        )
        return (solved**2).sum()

    x = np.linalg.solve(matrix, b)
    right = -np.outer(np.linalg.solve(matrix.T, 2 * x), x)
    for gradient in (gt.grad(loss), gt.jit(gt.grad(loss)), gt.jacfwd(loss)):
        np.testing.assert_allclose(np.asarray(gradient(gt.array(matrix))), right, rtol=1e-5)

    def root(a):
        def newton(f, x):
            return gt.sqrt(a) + 0.0 * f(x)

        return jax.lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))

    np.testing.assert_allclose(float(gt.grad(root)(4.0)), 0.25, rtol=1e-6)


def test_matrices_that_should_be_hermitian_are_made_so_first(jax):
    jnp, lax, linalg = jax.numpy, jax.lax.linalg, jax.scipy.linalg
    a = jnp.array([[1.0, 2.0, -3.0], [0.5, 4.0, 6.0], [1.0, -1.0, 1.0]])
    values = np.array([-1.3687805, 1.8675281, 5.5012517], np.float32)  # of JAX 0.10
    for found in (
        jnp.linalg.eigh(a)[0], jnp.linalg.eigh(a, "U").eigenvalues, jnp.linalg.eigvalsh(a), lax.eigh(a)[1],
        linalg.eigh(a)[0], linalg.eigh(a, eigvals_only=True),
    ):  # fmt: skip
        assert_close(found, values, steps=16, scale=6.0)
    assert_close(
        jnp.linalg.svd(a, hermitian=True).S, values[::-1] * np.array([1, 1, -1], np.float32), steps=16, scale=6.0
    )
    z = jnp.array([[4.0, 2j], [0.0, 5.0]])
    mean = jnp.array([[4.0, 1j], [-1j, 5.0]])
    for function in (jnp.linalg.cholesky, lax.cholesky):
        assert function(z).tolist() == function(mean, symmetrize_input=False).tolist()
        assert function(z, symmetrize_input=False).tolist() != function(z).tolist()
    slope = jax.grad(lambda m: jnp.linalg.cholesky(m).sum())(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
    assert slope[0, 1] == slope[1, 0]


def test_codes_of_floats_and_places_that_do_not_count_from_the_end(jax):
    jnp, nan = jax.numpy, np.nan
    x = jnp.array([0.0, nan, 2.0, 0.5, -1.0])
    with pytest.warns(DeprecationWarning, match="one_hot"):
        found = jax.nn.one_hot(x, 3, axis=0, dtype=bool)
    assert found.tolist() == np.equal.outer(np.arange(3), np.asarray(x)).tolist()
    m, places = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[0, -1], [1, -3]])
    take = jnp.take_along_axis
    np.testing.assert_array_equal(take(m, places, 1, wrap_negative_indices=False), [[1.0, nan], [4.0, nan]])
    np.testing.assert_array_equal(take(m, places, 1, "clip", wrap_negative_indices=False), [[1.0, 1.0], [4.0, 3.0]])


def test_complex_numbers_become_real_with_a_warning(jax):
    jnp = jax.numpy
    z = jnp.array([1.5 + 2j, -3j, np.inf + 1j])
    for cast in (
        lambda kind: z.astype(kind), lambda kind: jnp.asarray(z, dtype=kind), lambda kind: jnp.array(z, kind),
        lambda kind: jax.lax.convert_element_type(z, kind),
    ):  # fmt: skip
        for kind in ("float32", "int8", "float16"):
            with pytest.warns(np.exceptions.ComplexWarning, match="imaginary part is lost"):
                assert cast(kind).tolist() == z.real.astype(kind).tolist()


def test_a_cotangent_may_stand_for_those_of_a_subtree(jax):
    f = jax.custom_vjp(lambda d, y: d["a"][0] * d["a"][1] * y)
    for given, expected in (
        ({"a": 2.0, "b": None}, ([2.0, 2.0], 0.0)),
        ({"a": [1.0, None], "b": 3.0}, ([1.0, 0.0], 3.0)),
        (4.0, ([4.0, 4.0], 4.0)),
    ):
        f.defvjp(lambda d, y: (f(d, y), None), lambda _, g, given=given: (given, None))
        found = jax.grad(f)({"a": [1.0, 2.0], "b": 5.0}, 1.0)
        assert ([x.item() for x in found["a"]], found["b"].item()) == expected
    f.defvjp(lambda d, y: (f(d, y), None), lambda _, g: ({"a": [1.0], "b": 1.0}, None))
    with pytest.raises(ArgumentError, match="a cotangent from bwd of structure"):
        jax.grad(f)({"a": [1.0, 2.0], "b": 5.0}, 1.0)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_rules_get_defaults_of_arguments(jax, kind):
    """Those that a call leaves out, by position, as the rule takes them."""
    f = getattr(jax, kind)(lambda x, n, scale=3.0, other=None: x * n * scale, nondiff_argnums=(1, 3))
    if kind == "custom_jvp":
        f.defjvp(lambda n, other, primals, tangents: (f(primals[0], n), 10 * n * primals[1] * tangents[0]))
    else:
        f.defvjp(lambda x, n, scale, other: (f(x, n), scale), lambda n, other, scale, g: (10 * n * scale * g, None))
    assert f(1.0, 2) == 6.0
    assert jax.grad(f)(1.0, 2).item() == jax.jit(jax.grad(f), static_argnums=1)(1.0, 2).item() == 60.0


def test_static_argnums_and_names_together_are_taken_as_they_are(jax):
    """JAX infers the ones from the others only where one kind is given."""

    @functools.partial(jax.jit, static_argnums=(1,), static_argnames=("mode",))
    def f(x, n, mode="add"):
        return x + n if mode == "add" else x * n

    assert (f(2.0, 3).item(), f(2.0, 3, mode="mul").item()) == (5.0, 6.0)
    with pytest.raises(ArgumentError, match="got str"):
        f(2.0, 3, "mul")


def test_checkpointed_functions_get_arrays(jax):
    given = []
    f = jax.checkpoint(lambda x, flag, on: given.append((type(flag), type(on))) or x, static_argnums=2)
    f(1.0, True, True)
    jax.grad(f)(1.0, True, True)
    assert given == [(gt.Array, bool)] * 2


def test_numbers_that_agree(jax):
    from gtrace.jax._src.public_test_util import check_close

    x = jax.numpy.ones(4)
    check_close({"a": x}, {"a": x + 1e-6})
    check_close(x, x + 1e-3, atol=1e-3)
    for y, bounds in ((x + 1e-4, {}), (x + 1e-3, {"rtol": {"float32": 1e-5}}), (x[:2], {})):
        with pytest.raises(AssertionError):
            check_close(x, y, **bounds)


def test_the_state_of_tracing_differs_in_transforms(jax):
    state = jax.extend.core.get_opaque_trace_state
    outside, found = state(), []

    def f(x):
        found.append((state() == outside, state() == state(), hash(state()) == hash(state())))
        return x

    f(1.0)
    for transform in (jax.grad, jax.value_and_grad, jax.jit, lambda f: lambda x: jax.jvp(f, (x,), (x,))):
        transform(f)(1.0)
    assert found == [(True, True, True), *[(False, True, True)] * 4] and state() == outside


def test_pmap_takes_arguments_by_name(jax):
    x = jax.numpy.ones(1)
    f = jax.pmap(lambda x, y=1: x + y)
    assert f(x, y=2 * x).tolist() == [3.0] and f(x).tolist() == [2.0]
    assert list(inspect.signature(f).parameters) == ["x", "y"]
    assert jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)(x, 3).tolist() == [3.0]


def test_histograms_with_complex_weights(jax):
    jnp = jax.numpy
    x, weights = jnp.array([1, 2, 3]), jnp.array([1j, 2.0, 3 + 1j])
    counts, edges = jnp.histogram(x, 2, weights=weights)
    assert counts.tolist() == [1j, 5 + 1j]
    assert edges.tolist() == [1, 2, 3]
    assert counts.dtype == edges.dtype == "complex64"
    expected = np.array([1j, 5 + 1j]) / (5 + 2j)
    assert_close(jnp.histogram(x, 2, weights=weights, density=True)[0], expected, check_dtype=False)
    cells = jnp.histogramdd(jnp.array([[1.0], [2.0], [3.0]]), 2, weights=weights, density=True)[0]
    assert_close(cells, expected, check_dtype=False)


def test_pmap_returns_the_first_of_results_without_an_axis(jax):
    x = jax.numpy.arange(6.0).reshape(2, 3)
    assert jax.pmap(lambda x: x, out_axes=None)(x).tolist() == [0, 1, 2]
    both, one = jax.pmap(lambda x: (x, {"sum": x.sum()}), out_axes=(1, None))(x)
    assert both.tolist() == x.T.tolist() and one["sum"] == 3


def test_an_array_of_one_part_has_a_value_and_a_dtype(jax):
    x = jax.numpy.arange(4)
    made = lambda x, dtype=None: jax.make_array_from_single_device_arrays((4,), x.sharding, [x], dtype=dtype)  # noqa: E731
    assert made(x).tolist() == made(x, "int32").tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="a part of dtype float32, got int32"):
        made(x, "float32")
    with pytest.raises(ValueError, match="a part that has a value"):
        jax.jit(made)(x)
