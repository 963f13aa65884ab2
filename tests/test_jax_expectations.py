"""What the tests of libraries on JAX expect: jitted functions, types of arrays, devices, and texts of errors."""

from __future__ import annotations

import inspect

import pytest

import gtrace as gt


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def test_jitted_functions_have_jax_s_text_class_and_signature(jax):
    def scaled(x, *, by=1):
        return x * by

    for f in (jax.jit(scaled), jax.jit(static_argnames="by")(scaled)):
        assert str(f) == f"<PjitFunction of {scaled!r}>" and type(f).__name__ == "PjitFunction"
        for follow in (True, False):
            assert str(inspect.signature(f, follow_wrapped=follow)) == "(x, *, by=1)"
        assert f(2.0, by=3).item() == 6.0 and f.lower(2.0).compile()(2.0).item() == 2.0
    assert "PjitFunction" in str(jax.pmap(scaled))
    assert isinstance(inspect.signature(type(f)), inspect.Signature)


def test_disable_jit_calls_the_function_itself(jax):
    f = jax.jit(lambda x: x * 2 if x > 0 else -x)
    with jax.disable_jit():
        assert f(3.0) == 6.0 and f(-3.0) == 3.0 and jax.grad(f)(3.0).item() == 2.0
        assert jax.jit(f)(2.0) == 4.0 and jax.jit(lambda n, x: [x] * n, static_argnums=0)(2, 1.0) == [1.0, 1.0]
        assert jax.vmap(jax.jit(lambda x: x * 2))(jax.numpy.ones(2)).tolist() == [2.0, 2.0]
        with pytest.raises(jax.errors.ConcretizationTypeError):
            jax.make_jaxpr(f)(2.0)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        f(3.0)
    with jax.disable_jit(False), pytest.raises(jax.errors.ConcretizationTypeError):
        f(3.0)


def test_types_of_arrays_have_an_undivided_layout(jax):
    x = jax.numpy.ones((2, 3))
    layout = jax.typeof(x).sharding
    assert layout.is_fully_replicated and layout.spec == jax.P(None, None) and layout.mesh.empty
    mesh = layout.mesh
    assert not (mesh.are_all_axes_explicit or mesh.are_all_axes_auto or mesh.are_all_axes_manual)
    assert jax.jit(lambda y: len(jax.typeof(y).sharding.spec) * y)(1.0).item() == 0.0
    assert jax.eval_shape(lambda y: y, jax.typeof(x)).shape == (2, 3)
    mesh = jax.make_mesh((1,), ("data",))
    assert mesh.are_all_axes_auto and not mesh.are_all_axes_explicit
    placed = jax.NamedSharding(mesh, jax.P("data"))
    assert placed.device_set == {jax.devices()[0]} and placed.num_devices == 1


def test_what_stands_for_an_array_is_no_attrs_class(jax):
    # dm-tree takes instances of attrs classes apart
    for leaf in (jax.ShapeDtypeStruct((2,), "float32"), jax.typeof(1.0), jax.devices()[0], jax.numpy.ones(2)):
        assert not hasattr(leaf, "__attrs_attrs__"), type(leaf)


@pytest.mark.parametrize("platform", ["tpu", "no such platform"])
def test_a_platform_without_devices_is_a_runtime_error_alone(jax, platform):
    with pytest.raises(RuntimeError, match="Unknown backend") as found:
        jax.devices(platform)
    assert not isinstance(found.value, ValueError)


def test_texts_of_errors_say_what_jax_s_do(jax):
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        jax.numpy.broadcast_shapes((2,), (3,))
    with pytest.raises(ValueError, match="Dict key mismatch"):
        jax.tree.map(lambda x, y: x, {"a": 1}, {"a": 1, "b": 2})
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="could not be broadcast together"):
        jax.numpy.ones((2, 2)) + jax.numpy.ones(2)


def test_texts_of_checks_show_arrays(jax):
    from gtrace.jax.experimental import checkify

    def f(x):
        checkify.check(x > 0, "found {tree!r}", tree=x)
        return x

    err, _ = jax.jit(checkify.checkify(f))(jax.numpy.float32(-1))
    assert err.get().startswith("found Array(-1., dtype=float32)")

    def g(key):
        checkify.check(jax.random.uniform(key) > 2, "no luck with {}", key)

    err, _ = jax.jit(checkify.checkify(g))(jax.random.split(jax.random.key(1))[0])
    assert err.get().startswith("no luck with Array((), dtype=key<fry>)")
    assert jax.device_get(err).get().startswith("no luck with Array((), dtype=key<fry>)")
    err = checkify.checkify(f)(jax.numpy.float32(-1))[0]
    assert jax.device_get(err).get().startswith("found Array(-1., dtype=float32)")


def test_a_layout_over_several_processes_says_what_is_of_this_one(jax):
    (own,) = jax.devices("cpu")
    several = jax.NamedSharding(jax.sharding.AbstractMesh((2,), ("x",)), jax.P("x"))
    assert several.device_set == {own, 1} and several.addressable_devices == {own} and not several.is_fully_addressable
    assert several.addressable_devices_indices_map((4,)) == {own: (slice(0, 2),)}
    assert jax.NamedSharding(jax.make_mesh((1,), ("x",)), jax.P("x")).is_fully_addressable
