"""What libraries on JAX's names need: parts of arrays, checks of values, weak results, effects, slices, spectra."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.signal
import torch

import gtrace as gt
from gtrace.errors import ArgumentError, ShapeError, ShardingError
from gtrace.scipy import spectral

RNG = np.random.default_rng(0)


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def close(ours, theirs, tolerance=1e-5):
    assert np.shape(ours) == np.shape(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=tolerance, atol=tolerance)


# -- parts of arrays


def test_parts_are_the_examples_of_the_axes_of_a_mesh(jax):
    spec, lax = jax.P, jax.lax
    mesh = jax.sharding.AbstractMesh((2, 3), ("i", "j"))
    x, w = (jax.numpy.array(RNG.normal(size=shape), "float32") for shape in ((4, 6), (6, 2)))

    @jax.shard_map(mesh=mesh, in_specs=(spec("i", "j"), spec("j")), out_specs=(spec("i"), spec("i", "j"), spec()))
    def f(x, w):
        return lax.psum(x @ w, "j"), x, lax.pmax(abs(x).max(), ("i", "j"))

    product, same, largest = jax.jit(f, backend="eager")(x, w)
    close(product, x.numpy() @ w.numpy())
    close(same, x.numpy())
    close(largest, abs(x.numpy()).max())
    close(jax.grad(lambda x: f(x, w)[0].sum())(x), np.ones((4, 2)) @ w.numpy().T)
    swapped = jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec(("j", "i")), out_specs=spec(None, ("j", "i")))
    close(swapped(jax.numpy.arange(6.0)[:, None]), np.arange(6.0)[None])
    with pytest.raises(ShapeError, match="sizes that the mesh divides"):
        f(x[:3], w)


def test_meshes_and_layouts_of_one_process(jax):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    assert mesh == jax.sharding.Mesh(np.array(jax.devices()), ("x",)) and mesh.axis_sizes == (1,)
    layout = jax.NamedSharding(mesh, jax.P("x"))
    x = jax.device_put({"a": jax.numpy.arange(3)}, layout)["a"]
    assert x.tolist() == [0, 1, 2] and x.sharding == layout
    assert jax.device_put(2.0, jax.sharding.SingleDeviceSharding(jax.devices()[0])).item() == 2.0
    with jax.set_mesh(mesh):
        assert jax.sharding.get_mesh() is mesh
    made = jax.make_array_from_callback((2,), layout, lambda place: np.arange(2.0)[place])
    assert made.tolist() == [0.0, 1.0]


def test_exchanges_between_examples(jax):
    lax = jax.lax
    x = RNG.normal(size=(4, 4, 8))
    run = lambda f: jax.vmap(f, axis_name="i")(jax.numpy.array(x, "float32"))  # noqa: E731
    close(run(lambda v: lax.all_to_all(v, "i", 0, 1)), x.transpose(1, 2, 0))
    tiles = x.reshape(4, 4, 4, 2)  # example, row, to whom, column
    close(run(lambda v: lax.all_to_all(v, "i", 1, 0, tiled=True)), tiles.transpose(2, 0, 1, 3).reshape(4, 16, 2))
    close(run(lambda v: lax.psum_scatter(v, "i")), x.sum(0))
    close(run(lambda v: lax.psum_scatter(v, "i", scatter_dimension=1, tiled=True)), tiles.sum(0).transpose(1, 0, 2))
    close(run(lambda v: lax.pswapaxes(v, "i", 0)), x.swapaxes(0, 1))
    close(run(lambda v: lax.pshuffle(v, "i", [2, 3, 1, 0])), x[[2, 3, 1, 0]])
    close(run(lambda v: lax.pbroadcast(v, "i", 2)), x[[2, 2, 2, 2]])
    groups, other = [[0, 2], [3, 1]], [2, 3, 0, 1]
    close(run(lambda v: lax.psum(v, "i", axis_index_groups=groups)), x + x[other])
    close(run(lambda v: lax.pmin(v, "i", axis_index_groups=groups)), np.minimum(x, x[other]))
    close(run(lambda v: lax.all_gather(v, "i", axis_index_groups=groups)), x[[[0, 2], [3, 1], [0, 2], [3, 1]]])
    with pytest.raises(ArgumentError, match="groups of one size"):
        run(lambda v: lax.pmax(v, "i", axis_index_groups=[[0], [1, 2, 3]]))


# -- checks of values, and effects


def test_checks_of_values(jax):
    from gtrace.jax.experimental import checkify

    def f(x):
        checkify.check(x > 0, "{x} is not positive", x=x)
        return x * 2

    text = "-1.0 is not positive (`check` failed)"
    for wrapped in (
        checkify.checkify(f),
        jax.jit(checkify.checkify(f), backend="eager"),
        checkify.checkify(jax.jit(f, backend="eager")),
    ):
        error, out = wrapped(-1.0)
        assert error.get() == text and float(out) == -2.0
        assert wrapped(1.0)[0].get() is None
        with pytest.raises(ValueError, match="not positive"):
            error.throw()
    batch = jax.vmap(checkify.checkify(f))(jax.numpy.array([1.0, -1.0]))[0]
    assert batch.get() == f"at mapped index 1: {text}"
    steps = checkify.checkify(lambda x: jax.lax.fori_loop(0, 3, lambda k, x: f(x) - 5, x))(2.0)
    assert steps[0].get() == text
    with pytest.raises(checkify.JaxRuntimeError, match="not positive"):
        f(-1.0)
    bare = jax.jit(f, backend="eager")
    assert float(bare(1.0)) == 2.0
    with pytest.raises(ValueError, match="not positive"):
        bare(-1.0)
    batched = jax.jit(checkify.checkify(jax.vmap(f)), backend="eager")
    assert batched(jax.numpy.ones(2))[0].get() is None and batched(jax.numpy.array([1.0, -1.0]))[0].get() == text


def test_loops_and_branches_print_at_once(jax, capsys):
    def body(x):
        jax.debug.print("at {}", x)
        return x + 1

    jax.lax.while_loop(lambda x: x < 2, body, 0)
    jax.lax.cond(True, body, lambda x: x, 7)
    jax.lax.scan(lambda c, x: (body(c), x), 8, jax.numpy.arange(1))
    assert capsys.readouterr().out.split() == "at 0 at 1 at 7 at 8".split()


# -- numbers


def test_arrays_that_meet_numbers_of_a_higher_kind_are_weak(jax):
    jnp = jax.numpy
    narrow, step = jnp.ones(2, "bfloat16"), jnp.arange(3, 5)
    decay = 0.9 * step
    assert decay.dtype == "float32" and decay.weak_type
    assert (narrow * decay).dtype == "bfloat16" and (narrow / (1 - decay)).dtype == "bfloat16"
    assert jax.jit(lambda n: narrow * (0.9 * n), backend="eager")(step).dtype == "bfloat16"
    assert (jnp.array([True]) * 2).weak_type and not (step / 2).weak_type and not (step * 2).weak_type
    assert (narrow * jnp.full(2, 0.5)).dtype == "bfloat16" and not jnp.full(2, 1, "int32").weak_type
    assert jax.lax.cond(True, lambda: narrow * decay, lambda: narrow).dtype == "bfloat16"
    with gt.config(jax_results=False):
        assert (gt.ones(2, dtype="bfloat16") * (0.9 * gt.arange(2))).dtype == "float32"


def test_names_of_dtypes_with_other_bits_are_no_mistake():
    assert gt.float32 != "complex4" and gt.float32 not in ["complex8", "float128"]


def test_bits_of_negative_integers():
    values = np.array([1, 0, -1, -3, 77, 2**31 - 1], np.int32)
    texts = [np.binary_repr(v, 32) for v in values]
    assert gt.lax.clz(gt.array(values)).tolist() == [32 - len(t.lstrip("0")) for t in texts]
    assert gt.lax.population_count(gt.array(values)).tolist() == [t.count("1") for t in texts]
    high = (values.astype(np.int64) * values[::-1]) >> 32
    assert gt.lax.mulhi(gt.array(values), gt.array(values[::-1].copy())).tolist() == high.tolist()


def test_the_older_form_of_cond(jax):
    add, take = (lambda x: x + 1), (lambda x: x - 1)
    assert [float(jax.lax.cond(p, 2.0, add, 3.0, take)) for p in (True, False)] == [3.0, 2.0]
    assert float(jax.lax.cond(True, add, take, 5.0)) == 6.0


# -- slices at computed places

INDICES = np.array([[0, 1], [2, 3], [1, 9], [-1, 0]])
X = RNG.normal(size=(3, 4, 5)).astype(np.float32)


def inside(index, mode):
    """Where the slice (1, 2, 5) at an index begins; None: it is left out."""
    if mode == "clip":
        return tuple(np.clip(index, 0, (2, 2)))
    return tuple(index) if 0 <= index[0] <= 2 and 0 <= index[1] <= 2 else None


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_gather_and_scatter(mode):
    lax = gt.lax
    taken, added = np.full((4, 2, 5), np.nan), X.astype(np.float64)
    updates = RNG.normal(size=(4, 2, 5)).astype(np.float32)
    for k, index in enumerate(INDICES):
        place = inside(index, mode)
        if place is not None:
            taken[k] = X[place[0], place[1] : place[1] + 2]
            added[place[0], place[1] : place[1] + 2] += updates[k]
    dims = lax.GatherDimensionNumbers((1, 2), (0,), (0, 1))
    close(lax.gather(gt.array(X), gt.array(INDICES), dims, (1, 2, 5), mode=mode), taken)
    first = lax.GatherDimensionNumbers((0, 2), (0,), (0, 1))
    close(lax.gather(gt.array(X), gt.array(INDICES), first, (1, 2, 5), mode=mode), taken.swapaxes(0, 1))
    dims = lax.ScatterDimensionNumbers((1, 2), (0,), (0, 1))
    close(lax.scatter_add(gt.array(X), gt.array(INDICES), gt.array(updates), dims, mode=mode), added)
    slope = gt.grad(lambda u: (lax.scatter_add(gt.array(X), gt.array(INDICES), u, dims, mode=mode) ** 2).sum())
    expected = np.stack([
        np.zeros((2, 5)) if (p := inside(index, mode)) is None else 2 * added[p[0], p[1] : p[1] + 2]
        for index in INDICES
    ])  # fmt: skip
    close(slope(gt.array(updates)), expected)


def test_gather_along_batches():
    dims = gt.lax.GatherDimensionNumbers((2,), (1,), (1,), (0,), (0,))
    index = RNG.integers(0, 4, (3, 2, 1))
    found = gt.lax.gather(gt.array(X), gt.array(index), dims, (1, 1, 5), mode="clip")
    close(found, np.take_along_axis(X, index, 1))
    mapped = gt.vmap(lambda x, k: x[k[:, 0]])(gt.array(X), gt.array(index))
    close(found, mapped.numpy())
    with pytest.raises(ShapeError, match="slices within the operand"):
        gt.lax.gather(gt.array(X), gt.array(index), dims, (1, 1, 6))


# -- products and linear algebra


def test_products_of_groups_of_rows():
    x, w, sizes = RNG.normal(size=(7, 3)), RNG.normal(size=(4, 3, 2)), [2, 0, 3, 1]
    found = gt.lax.ragged_dot(gt.array(x), gt.array(w), gt.array(sizes))
    close(found, np.concatenate([x[:2] @ w[0], x[2:5] @ w[2], x[5:6] @ w[3], np.zeros((1, 2))]))


def test_linear_algebra_of_lax():
    linalg = gt.lax.linalg
    a, c = torch.tensor(RNG.normal(size=(5, 3))), RNG.normal(size=(5, 2))
    factors, taus = torch.geqrf(a)
    for transpose in (False, True):
        theirs = torch.ormqr(factors, taus, torch.tensor(c), transpose=transpose)
        close(linalg.ormqr(gt.array(factors), gt.array(taus), c, transpose=transpose), theirs.numpy())
    close(linalg.householder_product(gt.array(factors), gt.array(taus)), torch.linalg.qr(a).Q.numpy())
    low, middle, high = (RNG.normal(size=(2, 4)) + shift for shift in (0, 5, 0))
    dense = np.stack([np.diag(m) + np.diag(lo[1:], -1) + np.diag(h[:-1], 1)
                      for lo, m, h in zip(low, middle, high, strict=True)])  # fmt: skip
    b = RNG.normal(size=(2, 4, 3))
    close(linalg.tridiagonal_solve(low, middle, high, b), np.linalg.solve(dense, b))
    w = RNG.normal(size=(4, 4))
    values, left, right = (x.numpy() for x in linalg.eig(gt.array(w)))
    close(w @ right, right * values)
    close(left.conj().T @ w, values[:, None] * left.conj().T)
    close(np.linalg.norm(left, axis=0), np.ones(4))
    r = np.linalg.cholesky(w @ w.T + np.eye(4)).T
    updated = linalg.cholesky_update(gt.array(r), gt.array(w[0])).numpy()
    close(updated.T @ updated, r.T @ r + np.outer(w[0], w[0]))
    close(linalg.symmetric_product(gt.array(w), gt.array(r), alpha=2.0, beta=0.5), 2 * w @ w.T + 0.5 * r)


# -- signals and images


@pytest.mark.parametrize("options", [
    {"nperseg": 16}, {"nperseg": 15, "noverlap": 4, "nfft": 20}, {"nperseg": 16, "boundary": "even"},
    {"nperseg": 16, "boundary": "odd", "padded": False}, {"nperseg": 8, "boundary": None, "detrend": "linear"},
    {"nperseg": 8, "return_onesided": False},
    {"nperseg": 8, "boundary": "constant", "window": "hamming", "fs": 10.0},
])  # fmt: skip
def test_transforms_of_stretches_are_scipys(options):
    x = RNG.normal(size=(2, 50))
    for ours, theirs in zip(spectral.stft(gt.array(x), **options), scipy.signal.stft(x, **options), strict=True):
        close(ours, theirs)
    back = {"input_onesided": options.get("return_onesided", True)}
    if options.get("boundary", "zeros") is not None and "noverlap" not in options and "detrend" not in options:
        given = {key: options[key] for key in ("nperseg", "window", "fs") if key in options}
        z = scipy.signal.stft(x[0], **options)[2]
        pair = spectral.istft(gt.array(z), **given, **back), scipy.signal.istft(z, **given, **back)
        for ours, theirs in zip(*pair, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("options", [
    {}, {"scaling": "spectrum"}, {"average": "median"}, {"detrend": "linear", "fs": 3.0, "nfft": 20},
    {"return_onesided": False, "detrend": False},
])  # fmt: skip
def test_spectral_densities_are_scipys(options):
    x, y = RNG.normal(size=(2, 50)), RNG.normal(size=50)
    given = {"nperseg": 15, **options}
    close(spectral.welch(gt.array(x), **given)[1], scipy.signal.welch(x, **given)[1])
    close(spectral.csd(gt.array(x), gt.array(y), **given)[1], scipy.signal.csd(x, y, **given)[1])
    close(spectral.detrend(gt.array(x), bp=[10, 30]), scipy.signal.detrend(x, bp=[10, 30]))


def test_spectra_refuse_what_does_not_fit():
    with pytest.raises(ArgumentError, match="a window of SciPy's"):
        spectral.stft(gt.ones(9), window="kaiser")
    with pytest.raises(ArgumentError, match="noverlap < nperseg"):
        spectral.welch(gt.ones(9), nperseg=4, noverlap=4)


def test_images_scaled_and_moved():
    x = gt.array(RNG.normal(size=(4, 6)).astype(np.float32))
    whole = gt.image.scale_and_translate(x, (8, 9), (0, 1), gt.array([2.0, 1.5]), gt.zeros(2), "cubic")
    close(whole, gt.image.resize(x, (8, 9), "cubic").numpy())
    moved = gt.image.scale_and_translate(x, (4, 6), (1,), gt.ones(1), gt.array([2.0]), "linear")
    close(moved, np.pad(x.numpy(), ((0, 0), (2, 0)))[:, :6])
    slope = gt.grad(lambda t: gt.image.scale_and_translate(x, (4, 6), (1,), gt.ones(1), t[None], "linear")[0, 3])(0.25)
    close(slope, x.numpy()[0, 2] - x.numpy()[0, 3])
    with pytest.raises(ArgumentError, match="expected a kernel, got nearest"):
        gt.image.scale_and_translate(x, (4, 6), (1,), gt.ones(1), gt.ones(1), "nearest")


def test_tables_by_numpys_dtypes_find_those_of_arrays(jax):
    np_float, x = np.dtype("float32"), jax.numpy.ones(2)
    table = {np_float: 1, jax.numpy.dtype("int32"): 2}
    assert table[x.dtype] == table[jax.numpy.result_type(x)] == 1 and table[np.dtype("int32")] == 2
    assert {x.dtype: 3}[np_float] == 3 and np_float in {x.dtype, jax.numpy.argmax(x).dtype}
    with gt.config(jax_results=False):
        assert {torch.float32: 4}[x.dtype] == 4


def test_settings_of_the_command_line(jax, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "--jax_enable_x64", "--other", "--jax_debug_nans=false"])
    with gt.config():
        jax.config.parse_flags_with_absl()
        assert gt.config.x64 and not gt.config.debug_nans
    monkeypatch.setattr(sys, "argv", ["program", "--jax_enable_everything"])
    with pytest.raises(AttributeError, match="jax_enable_everything"):
        jax.config.config_with_absl()


def test_outside_of_any_mesh_there_is_an_empty_one(jax):
    mesh = jax.make_mesh((1,), ("x",))
    for get in (jax.sharding.get_mesh, jax.sharding.get_abstract_mesh):
        assert get().empty and get().axis_names == () and dict(get().shape) == {}
        with jax.set_mesh(mesh):
            assert get() is mesh
    with pytest.raises(ValueError, match="shard_map"):
        jax.shard_map(lambda x: x, in_specs=jax.P("x"), out_specs=jax.P("x"))(jax.numpy.ones(1))


def test_a_layout_for_each_array_of_a_tree(jax):
    layout = jax.NamedSharding(jax.make_mesh((1,), ("x",)), jax.P("x"))
    x = {"a": jax.numpy.ones(2), "b": (jax.numpy.ones(1), jax.numpy.ones(3)), "key": jax.random.key(0)}
    layouts = {"a": layout, "b": jax.devices()[0], "key": jax.NamedSharding(layout.mesh, jax.P())}
    put = jax.device_put(x, layouts)
    assert put["a"].sharding == layout and put["b"][1].sharding.device == jax.devices()[0] and put["key"].shape == ()
    some = {"a": layout, "b": layout}
    for_each = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, some), backend="eager")({"a": x["a"], "b": x["b"]})
    assert for_each["b"][1].sharding == for_each["a"].sharding == layout
    with pytest.raises(ArgumentError, match="tree"):
        jax.device_put(x, {"a": layout})


def test_functions_of_keys_of_which_some_are_unknown(jax):
    partial_eval = importlib.import_module("gtrace.jax.interpreters.partial_eval")
    linear_util = importlib.import_module("gtrace.jax.extend.linear_util")
    key = jax.random.key(7)
    given = [partial_eval.PartialVal.unknown(jax.typeof(key)), partial_eval.PartialVal.known(key)]
    f = linear_util.wrap_init(lambda a, b: [jax.random.fold_in(a, 1), jax.random.fold_in(b, 1), jax.random.normal(a)])
    unknown, known, drawn = partial_eval.trace_to_jaxpr_nounits(f, given)[1]
    assert unknown.const is None and isinstance(unknown.aval, jax.core.AbstractValue) and drawn.aval.shape == ()
    assert known.aval is None and bool(known.const == jax.random.fold_in(key, 1))


def test_none_is_no_static_argument(jax):
    f = jax.jit(lambda x: x * 2, static_argnums=None, static_argnames=None, donate_argnums=None, donate_argnames=None)
    g = jax.pmap(lambda x: x * 2, static_broadcasted_argnums=None)
    h = jax.make_jaxpr(lambda x: x * 2, static_argnums=None)
    assert float(f(1.5)) == 3.0 and g(jax.numpy.ones(1)).tolist() == [2.0] and "mul" in str(h(1.5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_platform_without_devices_is_an_error(jax):
    for platform in ("gpu", "cuda", "tpu"):
        with pytest.raises(RuntimeError, match="devices"):
            jax.devices(platform)
    assert list(importlib.import_module("gtrace.jax.extend.backend").backends()) == ["cpu"]


@pytest.mark.slow
def test_the_check_of_derivatives_loads_without_hypothesis():
    # chex imports it, and does not use it
    script = (
        "import sys; sys.modules['hypothesis'] = None; from gtrace.jax.test_util import check_grads"
        "; print(callable(check_grads))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"


def test_programs_for_arrays_that_need_not_exist(jax):
    like = {"w": jax.ShapeDtypeStruct((2, 3), "float32"), "b": jax.numpy.ones(3)}
    lowered = jax.jit(lambda p, k: p["w"] + p["b"] * jax.random.normal(k), backend="eager").lower(
        like, jax.eval_shape(lambda: jax.random.key(0))
    )
    params = {"w": jax.numpy.ones((2, 3)), "b": like["b"]}
    out = lowered.compile()(params, jax.random.key(1))
    assert out.shape == (2, 3) and float(out[0, 0]) == pytest.approx(1 + float(jax.random.normal(jax.random.key(1))))
    with pytest.raises(ArgumentError, match="expected arrays or numbers as arguments, got str"):
        jax.jit(lambda x, y: x).lower(like["w"], "y")


def test_what_libraries_ask_for_by_name(jax):
    x, partitions = jax.numpy.ones(2), jax.sharding.PartitionSpec
    assert jax.lax.dtype(x.dtype) == jax.lax.dtype(x) == jax.lax.dtype(np.dtype("float32")) == "float32"
    assert partitions.UNCONSTRAINED not in ("x", None)
    with pytest.raises(ValueError, match="names of mesh axes"):
        jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), partitions(partitions.UNCONSTRAINED))


def test_limits_of_dtypes_that_numpy_has_not(jax):
    pytest.importorskip("ml_dtypes")
    for name, most in (("bfloat16", 3.3895314e38), ("float8_e4m3fn", 448.0), ("float32", 3.4028235e38)):
        assert jax.numpy.finfo(name).max.astype("float32") == np.float32(most)


def test_names_that_libraries_import_are_there_and_say_when_they_are_of_no_use(jax):
    from gtrace.jax._src import literals, pjit
    from gtrace.jax.experimental import multihost_utils, sparse
    from gtrace.jax.extend import core

    assert not isinstance(jax.numpy.ones(2), literals.TypedNdArray) and pjit.jit_p is core.primitives.jit_p
    assert not multihost_utils.reached_preemption_sync_point(0)
    assert isinstance(type("Own", (core.Effect,), {})(), core.Effect)
    assert issubclass(sparse.BCOO, sparse.JAXSparse) and core.concrete_or_error(int, 2.0) == 2


def test_kernels_of_pallas_load_and_say_what_to_do_instead():
    from gtrace.jax.experimental import pallas
    from gtrace.jax.experimental.pallas import triton

    for use in (lambda: pallas.pallas_call(lambda x: x), lambda: pallas.program_id(0), triton.CompilerParams):
        with pytest.raises(gt.ArgumentError, match="define_op"):
            use()


def test_names_that_libraries_only_import_load_and_say_what_to_do_instead():
    from gtrace.jax.experimental.pallas.ops.gpu import attention
    from gtrace.jax.experimental.pallas.ops.tpu import flash_attention
    from gtrace.jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    from gtrace.jax import ffi

    uses = (attention.mha, flash_attention.flash_attention, splash_attention_kernel.SegmentIds)
    for use in (*uses, splash_attention_mask.CausalMask):
        with pytest.raises(ArgumentError, match=r"gt\.define_op"):
            use(1, 2)
    assert isinstance(splash_attention_mask.CausalMask, type) and not hasattr(attention, "nothing")
    for use in (ffi.ffi_call, ffi.register_ffi_target, ffi.pycapsule):
        with pytest.raises(ArgumentError, match="pure_callback"):
            use("name", None)


def test_a_run_of_one_process_begins_and_ends(jax):
    distributed = jax.distributed
    assert not distributed.is_initialized()
    distributed.initialize("localhost:1234", num_processes=1, process_id=0)
    try:
        assert distributed.is_initialized()
        with pytest.raises(ArgumentError, match="is_initialized"):
            distributed.initialize()
    finally:
        distributed.shutdown()
    assert not distributed.is_initialized()
    with pytest.raises(ShardingError, match="torchrun"):
        distributed.initialize("localhost:1234", 4, 1)


JAXLIB = """
import importlib.metadata, sys
import gtrace.jax
gtrace.jax.install()
import jax, jaxlib
from jaxlib._jax import PjitFunction
f = jax.jit(lambda x: x)
print(isinstance(f, PjitFunction), isinstance(len, PjitFunction), jaxlib.__version__)
try:
    import jaxlib.xla_extension
except ModuleNotFoundError as error:
    print(error.name)
print(importlib.metadata.version("jax"), importlib.metadata.version("jaxlib"))
print([d.name for d in importlib.metadata.distributions() if d.name in ("jax", "jaxlib")])
gtrace.jax.uninstall()
print("jaxlib" in sys.modules)
try:
    importlib.metadata.version("jax")
except importlib.metadata.PackageNotFoundError as error:
    print(error.name)
"""


def test_jaxlib_has_the_class_of_jitted_functions_where_it_is_not_installed():
    done = subprocess.run([sys.executable, "-c", JAXLIB], capture_output=True, text=True, check=True)
    version = importlib.import_module("gtrace.jax").__version__
    expected = ["True False " + version, "jaxlib.xla_extension", f"{version} {version}", "[]", "False", "jax"]
    assert done.stdout.splitlines() == expected


def test_an_installed_jaxlib_wins(tmp_path):
    package = tmp_path / "jaxlib"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'theirs'\n")
    (package / "xla_extension.py").write_text("")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport gtrace.jax; gtrace.jax.install()\n"
        "import jaxlib, jaxlib.xla_extension, importlib.util\n"
        "print(jaxlib.__version__, importlib.util.find_spec('jaxlib._jax'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["theirs", "None"]
