"""Keys, draws, functions of neural networks, images and signals of ``gtrace.jax``, where they differed from JAX's."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.jax.scipy import signal

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def jax_settings():
    with gt.config(x64=False, jax_results=True):
        yield


def test_complex_initializers_have_their_variance():
    for make in (jax.nn.initializers.glorot_uniform, jax.nn.initializers.lecun_normal, jax.nn.initializers.he_normal):
        w = make(dtype="complex64")(KEY, (300, 300))
        expected = 2 if make is jax.nn.initializers.he_normal else 1
        assert w.dtype == "complex64" and abs(float(jnp.mean(jnp.abs(w) ** 2)) * 300 - expected) < 0.06
        assert abs(complex(w.mean())) < 1e-3
    q = np.asarray(jax.nn.initializers.orthogonal(dtype="complex64")(KEY, (3, 3)))
    np.testing.assert_allclose(q @ q.conj().T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("factor", [1j, np.array(1j), np.complex64(1j), jnp.array(1j)])
def test_complex_factors_of_initializers_need_a_complex_dtype(factor):
    for make in (jax.nn.initializers.normal, jax.nn.initializers.truncated_normal, jax.nn.initializers.orthogonal):
        with pytest.raises(gt.DtypeError, match="a real factor"):
            make(factor)(KEY, (2, 2))
    assert jax.nn.initializers.normal(factor, dtype="complex64")(KEY, (2, 2)).dtype == "complex64"
    assert jax.nn.initializers.normal(np.array(2.0))(KEY, (2,)).dtype == "float32"


def test_the_disk_of_a_complex_initializer():
    w = jax.nn.initializers.variance_scaling(1.0, "fan_in", "uniform", dtype="complex64")(KEY, (400, 100))
    assert float(jnp.abs(w).max()) * 20 <= math.sqrt(2)  # a disk of radius sqrt(2) has the variance 1
    w = jax.nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", dtype="complex64")(KEY, (400, 100))
    assert 1.9 < float(jnp.abs(w).max()) * 20 * 0.95311164 <= 2.0


def test_modes_and_axes_of_initializers():
    scaling = jax.nn.initializers.variance_scaling
    w = [scaling(1.0, mode, "normal")(KEY, (4, 16)) for mode in ("fan_in", "fan_geo_avg")]
    np.testing.assert_allclose(w[0], 2 * w[1] / math.sqrt(2), rtol=1e-6)
    normal = jax.random.normal(KEY, (5,))
    np.testing.assert_allclose(scaling(1.0, "fan_in", "normal", in_axis=[0], out_axis=[])(KEY, (5,)), normal / 5**0.5)
    assert scaling(1.0, "fan_in", "normal", in_axis=[], out_axis=[])(KEY, ()).shape == ()
    with pytest.raises(ValueError, match="at least two axes"):
        scaling(1.0, "fan_in", "normal")(KEY, (5,))


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal", "orthogonal"])
def test_a_factor_of_another_dtype_keeps_the_dtype(name):
    init = getattr(jax.nn.initializers, name)(jnp.float32(2.0), dtype="bfloat16")
    assert init(KEY, (2, 2)).dtype == "bfloat16"


def test_residuals_of_attention():
    q, k, v = (jax.random.normal(key, (2, 3, 4, 5)) for key in jax.random.split(KEY, 3))
    out, residual = jax.nn.dot_product_attention(q, k, v, is_causal=True, return_residual=True)
    scores = np.einsum("btnh,bsnh->btns", q, k) / math.sqrt(5)
    scores = np.where(np.tril(np.ones((3, 3), bool))[:, None], scores, -np.inf)
    np.testing.assert_allclose(residual, np.log(np.exp(scores).sum(-1)), rtol=1e-5)
    np.testing.assert_allclose(out, jax.nn.dot_product_attention(q, k, v, is_causal=True), rtol=1e-5, atol=1e-6)
    low = jax.nn.dot_product_attention(*(x.astype("bfloat16") for x in (q, k, v)), return_residual=True)
    assert [x.dtype for x in low] == ["bfloat16", "bfloat16"]


def test_activations_far_from_zero():
    x = [-12.0, -6.0, 1.0, 20.0, math.inf]
    expected = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(jax.nn.gelu(jnp.array(x), approximate=False), expected, rtol=2e-5)
    slopes = jax.vmap(jax.grad(lambda x: jax.nn.gelu(x, approximate=False)))(jnp.array([-math.inf, 0, math.inf]))
    assert slopes.tolist() == [0.0, 0.5, 1.0]
    for dtype in ("float16", "bfloat16", "float32"):
        value, slope = jax.value_and_grad(lambda x: jax.nn.gelu(x, approximate=False))(jnp.array(math.nan, dtype))
        assert jnp.isnan(value)
        assert jnp.isnan(slope)
    far = jnp.array([-math.inf, -1e30, 1e30, math.inf])
    assert jax.nn.squareplus(far).tolist() == pytest.approx([0.0, 1e-30, 1e30, math.inf])
    assert jax.vmap(jax.grad(jax.nn.squareplus))(far).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_one_hot_of_lists_and_of_floats():
    assert jax.nn.one_hot([1, 0], 2).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    with pytest.warns(DeprecationWarning, match="expected integers"):
        jax.nn.one_hot(jnp.ones(1), 2)


# -- keys


@pytest.mark.parametrize(("impl", "name"), [("rbg", "key<rbg>"), ("unsafe_rbg", "key<urbg>")])
def test_keys_of_four_words(impl, name):
    key, plain = jax.random.key(7, impl=impl), jax.random.key(7)
    assert (str(key.dtype), key.shape, key.itemsize, key.nbytes) == (name, (), 16, 16)
    assert jax.random.key_impl(key) == impl and jax.random.key_dtype(impl) == key.dtype != plain.dtype
    assert jax.random.key_data(key).tolist() == jax.random.PRNGKey(7, impl=impl).tolist() == [0, 7, 0, 7]
    for derive in (lambda k: jax.random.split(k, (2, 3)), lambda k: jax.random.fold_in(k, 5)):
        words = jax.random.key_data(derive(key))
        assert words.tolist() == jnp.tile(jax.random.key_data(derive(plain)), 2).tolist()
        assert derive(jax.random.PRNGKey(7, impl=impl)).tolist() == words.tolist()
        assert jax.jit(derive)(key).dtype == derive(key).dtype == key.dtype
    again = jax.random.wrap_key_data(jax.random.key_data(key), impl=key.dtype)
    assert again.dtype == key.dtype and bool(again == key) and bool(jax.random.clone(key) == key)
    for copied in (copy.deepcopy(key), pickle.loads(pickle.dumps(key)), jnp.stack([key])[0], key.reshape(1)[0]):
        assert copied.dtype == key.dtype and bool(copied == key)
    batch = jax.vmap(lambda seed: jax.random.key(seed, impl=impl))(jnp.arange(3))
    assert jax.vmap(jax.random.normal)(batch).shape == (3,) and batch.dtype == key.dtype
    assert jax.lax.scan(lambda k, _: (jax.random.split(k)[0], k), key, None, length=2)[1].dtype == key.dtype
    assert repr(key) == f"Array((), dtype={name}) overlaying:\n[0 7 0 7]"


def test_the_setting_of_the_cipher():
    with jax.default_prng_impl("rbg"):
        assert jax.random.key(0).dtype == "key<rbg>" and jax.random.PRNGKey(0).shape == (4,)
        assert jax.random.split(jax.random.PRNGKey(0)).shape == (2, 4)
    assert jax.random.key(0).dtype == "key<fry>"
    for call in (
        lambda: jax.config.update("jax_default_prng_impl", "philox"),
        lambda: jax.random.key(0, impl="philox"),
        lambda: jax.random.key(0, impl="rbg", dtype=KEY.dtype),
    ):
        with pytest.raises(ValueError, match="got"):
            call()


def test_keys_of_two_ciphers_do_not_mix():
    other = jax.random.key(0, impl="rbg")
    for call in (lambda: KEY == other, lambda: jnp.stack([KEY, other]), lambda: KEY.reshape(1).at[0].set(other)):
        with pytest.raises(TypeError, match="key<rbg>"):
            call()


def test_words_whose_halves_differ_are_mixed():
    words = jnp.array([[1, 2, 3, 4], [1, 2, 1, 2], [1, 2, 3, 5]], "uint32")
    keys = jax.random.wrap_key_data(words, impl="rbg")
    data = jax.random.key_data(keys)
    assert data[1].tolist() == [1, 2, 1, 2] and len({tuple(row) for row in data.tolist()}) == 3
    assert float(jax.random.normal(words[0])) == float(jax.random.normal(keys[0]))


def test_arrays_filled_with_keys():
    kind = KEY.dtype
    made = [jnp.zeros(2, kind), jnp.full(2, 7, dtype=kind), jnp.ones_like(jnp.stack([KEY, KEY])), jnp.full(2, KEY)]
    words = [jax.random.key_data(x).tolist() for x in made]
    assert words == [[[0, 0]] * 2, [[7, 7]] * 2, [[1, 1]] * 2, [[0, 0]] * 2]
    assert jnp.empty((2, 3), kind).shape == (2, 3)
    assert jax.random.key_data(made[0].at[5].get(mode="fill")).tolist() == [2**32 - 1] * 2
    assert jax.jit(jnp.append)(made[0], KEY).shape == (3,) and jax.jit(jnp.array)(KEY).dtype == kind
    assert jax.ShapeDtypeStruct.like(KEY).dtype == kind


def test_arrays_of_keys_made_of_their_parts():
    keys, layout = jax.random.split(KEY, 3), jax.NamedSharding(jax.make_mesh((1,), ("d",)), jax.P("d"))
    made = jax.make_array_from_callback((3,), layout, lambda place: keys[place])
    again = jax.make_array_from_single_device_arrays((3,), layout, [keys])
    assert bool((made == keys).all()) and bool((again == keys).all())


def test_zero_tangents_of_keys_are_symbolic():
    seen = []

    @jax.custom_vjp
    def f(x, state):
        return state

    def forward(x, state):
        return jax.tree.map(lambda value: value.value, state), None

    def backward(_, changes):
        seen.append(changes[1])
        return changes[0], changes

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert jax.grad(lambda x: f(x, (8.0, KEY))[0])(3.0) == 1.0
    assert isinstance(seen[0], jax.custom_derivatives.SymbolicZero) and seen[0].dtype == jax.dtypes.float0


def test_arguments_of_draws():
    assert jax.random.key_data(jax.random.key(np.int64(-(2**31) - 101))).tolist() == [0, 2147483547]
    with pytest.raises(ValueError, match="unsigned"):
        jax.random.bits(KEY, (2,), "int8")
    with pytest.raises(ValueError, match="bounds"):
        jax.random.randint(KEY, (3,), 0, 2**40)
    q = np.asarray(jax.random.orthogonal(KEY, 3, dtype="complex64"))
    np.testing.assert_allclose(q @ q.conj().T, np.eye(3), atol=1e-5)


# -- images and signals


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos3"])
def test_empty_images(method):
    for shape, target in (((1,), (0,)), ((5, 5), (0, 1))):
        assert jax.image.resize(np.ones(shape, "float32"), target, method).shape == target


def test_complex_images_are_resized_by_parts():
    x = np.arange(6.0).reshape(2, 3) + 1j * np.arange(6.0)[::-1].reshape(2, 3)
    out = np.asarray(jax.image.resize(x.astype("complex64"), (4, 5), "cubic"))
    for part in (np.real, np.imag):
        expected = jax.image.resize(part(x).astype("float32"), jnp.array([4, 5]), "cubic")
        np.testing.assert_allclose(part(out), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("antialias", [False, True])
def test_torchs_cubic_method(antialias):
    x = np.random.default_rng(0).normal(size=(6, 7)).astype("float32")
    for target in ((11, 3), (4, 14)):
        expected = torch.nn.functional.interpolate(
            torch.tensor(x)[None, None], target, mode="bicubic", antialias=antialias
        )
        found = jax.image.resize(x, target, "bicubic-pytorch", antialias)
        np.testing.assert_allclose(found, expected[0, 0], atol=1e-5)


def test_places_of_correlate2d():
    scipy_signal = pytest.importorskip("scipy.signal")
    rng = np.random.default_rng(0)
    for sizes in (((4, 4), (2, 3)), ((2, 3), (4, 5)), ((5, 2), (3, 3))):
        x, y = (rng.normal(size=(2, *n)).astype("float32") for n in sizes)
        x, y = x[0] + 1j * x[1], y[0] + 1j * y[1]
        for mode in ("same", "full") if sizes[1] == (3, 3) else ("same", "full", "valid"):
            expected = scipy_signal.correlate2d(x, y, mode)
            np.testing.assert_allclose(signal.correlate2d(x, y, mode), expected, atol=1e-4)


def test_fftconvolve_along_axes():
    x, y = np.arange(12.0, dtype="float32").reshape(2, 6), np.ones((2, 3), "float32")
    expected = np.stack([np.convolve(a, b, "valid") for a, b in zip(x, y, strict=True)])
    np.testing.assert_allclose(signal.fftconvolve(x, y, "valid", axes=1), expected, rtol=1e-5)
    np.testing.assert_allclose(signal.fftconvolve(x, y[:1], "valid", axes=[-1]), expected, rtol=1e-5)


def test_spectra():
    pytest.importorskip("scipy.signal")
    x = np.random.default_rng(0).normal(size=(3, 16)).astype("float32")
    assert signal.csd(x, x, nperseg=8)[1].dtype == "complex64" and signal.welch(x, nperseg=8)[1].dtype == "float32"
    assert np.isfinite(signal.welch(x, nperseg=1)[1]).all()  # the window of one element is 1
    for window in ("triang", ("kaiser", 4.0)):
        _, _, z = signal.stft(x, window=window, nperseg=8)
        times, back = signal.istft(jnp.moveaxis(z, (1, 2), (2, 0)), window=window, nperseg=8, time_axis=0, freq_axis=2)
        np.testing.assert_allclose(back, x.T, atol=1e-5)
        assert times.shape == (16,)
    for window in ("none", ("kaiser", "a"), ("kaiser",), (), [], 3, None, ["a"], [1j], {"a"}):
        for size in (8, None):
            with pytest.raises(ValueError, match=r"\[stft\] expected"):
                signal.stft(x, window=window, nperseg=size)


def test_transforms_of_no_elements_and_of_two_axes():
    assert jnp.fft.fft(jnp.zeros((2, 0))).shape == (2, 0) and jnp.fft.ifftn(jnp.zeros((2, 0))).dtype == "complex64"
    x = jnp.ones((2, 3))
    assert jnp.fft.fftshift(x, axes=[]).shape == jnp.roll(x, [], []).shape == (2, 3)
    np.testing.assert_allclose(jnp.fft.fft2(a=x, axes=(1, 0)), np.fft.fft2(np.ones((2, 3)), axes=(1, 0)), atol=1e-6)
    for call in (
        lambda: jnp.fft.fft2(x, axes=[0]),
        lambda: jnp.fft.irfft2(x, axes=(0, 1, 0)),
        lambda: jnp.fft.fftfreq([1, 2]),
        lambda: jnp.fft.rfftfreq([1, 2]),
    ):
        with pytest.raises(ValueError, match="expected"):
            call()
