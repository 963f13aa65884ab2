"""Indices of every kind through ``gtrace.jax``, held against NumPy, or JAX's values where it differs."""

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.errors import DtypeError

X = np.arange(120).reshape(2, 3, 4, 5)
E = np.index_exp


@pytest.fixture(autouse=True)
def jaxs_settings():
    with gt.config(jax_results=True, x64=False):
        yield


AS_IN_NUMPY = [
    E[True], E[False], E[..., True], E[..., False], E[0, :2, True], E[0, :2, False], E[:2, np.array([0, 2]), True],
    E[np.array([1, 0]), :, True], E[True, :, True, :, np.array(True)], E[np.array(False)], E[None, True, None],
    E[np.bool_(True), 1],
    E[np.zeros(0, bool)], E[np.zeros((2, 0), bool)], E[:, np.zeros((0, 4), bool)], E[np.zeros((0, 3), bool), 1],
    E[np.array([1, 0]), ..., 0, 0, 0], E[0, ..., 0, 0, np.array([1, 2])],
    E[:, np.array([0, 2]), ..., 0, np.array([1, 2])],
    E[:, np.array([0, 2]), ..., np.array([1, 3]), :], E[:, np.array([0, 2]), ..., np.array([1, 3]), None, :],
    E[0, ..., np.arange(4) > 1, np.array([1, 3])], E[[0, 1], [1, 2]], E[[True, False]], E[0, [], 1],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("index", AS_IN_NUMPY, ids=str)
def test_an_index_reads_and_writes_as_in_numpy(index):
    expected = X[index]
    assert jnp.asarray(X)[index].tolist() == expected.tolist() and jnp.asarray(X)[index].shape == expected.shape
    assert jax.jit(lambda x: x[index])(X).shape == expected.shape
    for values in (7, np.arange(expected.size).reshape(expected.shape)):
        host = X.copy()
        host[index] = values
        assert jnp.asarray(X).at[index].set(values).tolist() == host.tolist()


def test_transforms_of_these_indices():
    x = jnp.ones((4, 2, 3, 5))
    assert jax.vmap(lambda x: x[True, :2])(x).shape == (4, 1, 2, 3, 5)
    assert jax.vmap(lambda x: x[:, jnp.array([0, 1]), ..., 0])(x).shape == (4, 2, 2)
    weights = np.arange(4.0).reshape(2, 2)
    found = jax.grad(lambda x: (x[:, np.array([0, 1]), ..., 0] * weights).sum())(jnp.ones((2, 3, 1)))
    assert found.ravel().tolist() == [0, 2, 0, 1, 3, 0]
    assert jax.jit(lambda x, mask: x.at[mask].set(5.0))(jnp.array(1.0), jnp.array(True)).item() == 5
    # a list may hold values of a traced function
    assert jax.jit(lambda x, i: x[[i, i + 1], [0, 1]])(jnp.arange(12).reshape(3, 4), 1).tolist() == [4, 9]


REFUSED = {
    "a list": (lambda x: x[[0, 1]], TypeError),
    "a list of booleans": (lambda x: x[[True, False, True]], TypeError),
    "a list in at": (lambda x: x.at[[0]].set(1.0), TypeError),
    "a float": (lambda x: x[0.0], TypeError),
    "an array of floats": (lambda x: x[jnp.array([1.0])], TypeError),
    "a string": (lambda x: x["a"], TypeError),
    "a traced bound": (lambda x: jax.jit(lambda n: x[:n])(2), IndexError),
    "a traced mask": (lambda x: jax.jit(lambda m: x[m])(jnp.array([True, False, True])), IndexError),
    "a traced mask without axes": (lambda x: jax.jit(lambda m: x[m])(jnp.array(True)), IndexError),
    "a mask of another size": (lambda x: x[np.array([True, False])], IndexError),
    "an empty mask of another size": (lambda x: x[np.zeros((2, 0), bool)], IndexError),
    "elements of an empty axis": (lambda x: jnp.take(x[:0], jnp.array([0])), IndexError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_that_is_refused(name):
    function, error = REFUSED[name]
    with pytest.raises(error):
        function(jnp.arange(3.0))


def test_lists_stay_indices_without_jax_results():
    with gt.config(jax_results=False):
        assert gt.arange(4)[[0, 2]].tolist() == [0, 2] and gt.arange(4).at[[0]].set(5).tolist() == [5, 1, 2, 3]


def test_integers_outside_their_axis_raise_on_request():
    x, read = jnp.arange(3), jax.jit(lambda x: x[5])
    five = np.uint8(5)
    assert x[five].item() == 2 and x.at[np.int64(-9)].get().item() == 0 and x.at[five].set(7).tolist() == x.tolist()
    assert x[5].item() == 2 and x.at[5].get().item() == 2 and read(x).item() == 2 and x.at[-9].get().item() == 0
    with gt.config():
        jax.config.update("jax_check_static_indices", True)
        for function in (lambda x: x[5], lambda x: x.at[-9].get(), lambda x: x[None, 5, jnp.array([0])[0]], read):
            with pytest.raises(IndexError):
                function(x)
        assert x[jnp.array(5)].item() == 2  # not an index that is known


OUTSIDE = {
    None: ([0.0, 2.0], [0.0, 1.0, 2.0]), "clip": ([0.0, 2.0], [9.0, 1.0, 8.0]), "fill": ([7.0, 7.0], [0.0, 1.0, 2.0]),
    "drop": ([7.0, 7.0], [0.0, 1.0, 2.0]), jax.lax.GatherScatterMode.CLIP: ([0.0, 2.0], [9.0, 1.0, 8.0]),
    "promise_in_bounds": ([0.0, 2.0], None),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", OUTSIDE, ids=str)
@pytest.mark.parametrize("jitted", [False, True])
def test_negative_indices_that_do_not_count_from_the_end(mode, jitted):
    read, written = OUTSIDE[mode]
    options = {"mode": mode, "wrap_negative_indices": False}
    run = jax.jit if jitted else lambda function: function
    x, index, values = jnp.arange(3.0), jnp.array([-1, 5]), jnp.array([9.0, 8.0])
    assert run(lambda x, i: x.at[i].get(fill_value=7.0, **options))(x, index).tolist() == read
    if written is None:
        return
    assert run(lambda x, i, v: x.at[i].set(v, **options))(x, index, values).tolist() == written
    for name, function in (("add", np.add), ("multiply", np.multiply), ("max", np.maximum), ("power", np.power)):
        host = np.arange(3.0)
        if written[0]:
            host[[0, 2]] = function(host[[0, 2]], [9.0, 8.0])
        assert run(lambda x, i, v: getattr(x.at[i], name)(v, **options))(x, index, values).tolist() == host.tolist()  # noqa: B023
    applied = run(lambda x: x.at[jnp.array([-1, 1])].apply(lambda y: y + 1, unique_indices=True, **options))(x).tolist()
    assert applied == ([1.0, 2.0, 2.0] if written[0] else [0.0, 2.0, 2.0])


def test_static_negative_integers_that_lie_outside():
    x = jnp.arange(3.0)
    assert x.at[-1].add(1.0, wrap_negative_indices=False).tolist() == [0, 1, 2]
    assert x.at[-1].get(wrap_negative_indices=False).item() == 0
    assert x.at[-2:].set(9.0, wrap_negative_indices=False).tolist() == [0, 9, 9]
    options = {"mode": "fill", "fill_value": 0, "wrap_negative_indices": False}
    found = jax.grad(lambda x: x.at[jnp.array([-1, 1])].get(**options).sum())(x)
    assert found.tolist() == [0, 1, 0]


# -- functions of places

TRACED = {
    "tri": (lambda k: jnp.tri(3, 4, k), 1, np.tri(3, 4, 1)),
    "eye": (lambda k: jnp.eye(3, 4, k), -1, np.eye(3, 4, -1)),
    "insert": (lambda i: jnp.insert(jnp.arange(6).reshape(2, 3), i, jnp.array([7, 8]), axis=1), 1,
               np.insert(np.arange(6).reshape(2, 3), 1, [7, 8], axis=1)),
    "insert several": (lambda i: jnp.insert(jnp.arange(6), i, jnp.array([7, 8])), np.array([-1, 2]),
                       np.insert(np.arange(6), [-1, 2], [7, 8])),
    "delete": (lambda i: jnp.delete(jnp.arange(6).reshape(2, 3), i, axis=1), -1, [[0, 1], [3, 4]]),
    "delete several": (lambda i: jnp.delete(jnp.arange(5), i, assume_unique_indices=True), np.array([1, -1]),
                       [0, 2, 3]),
    "unravel_index": (lambda n: jnp.unravel_index(jnp.array([1, 5, -1]), (2, n))[1], 3, [1, 2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_places_may_be_values_of_a_traced_function(name):
    function, place, expected = TRACED[name]
    assert function(place).tolist() == jax.jit(function)(place).tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
@pytest.mark.parametrize("trim", ["fb", "f", "B"])
def test_zeros_are_trimmed_along_axes(axis, trim):
    for x in (np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 2, 0, 0], [0, 0, 0, 0]]), np.zeros((2, 3)), np.ones((3, 0))):
        assert jnp.trim_zeros(x, trim, axis).tolist() == np.trim_zeros(x, trim, axis).tolist()
    assert jnp.trim_zeros(jnp.array(0)).shape == ()


def test_dtypes_of_places():
    kinds = [jnp.unravel_index(jnp.array([3], kind), (2, 3))[0].dtype for kind in ("uint32", "int8")]
    kinds += [jnp.ravel_multi_index((jnp.array([1], kind),) * 2, (2, 3)).dtype for kind in ("int16", "uint8")]
    kinds += [jnp.ravel_multi_index((jnp.array([1]),) * 2, (2, 3), "ignore", dtype="int16").dtype]
    kinds += [jnp.unwrap(jnp.array([0, 5], "int16"), period=2).dtype, jnp.arange(3).searchsorted(1).dtype]
    assert list(map(str, kinds)) == ["uint32", "int8", "int16", "uint8", "int16", "int16", "int32"]


def test_modes_that_look_at_values():
    places = (jnp.array([0, 1]), jnp.array([2, 3]))
    assert jnp.ravel_multi_index(places, (2, 4)).tolist() == [2, 7]
    with pytest.raises(ValueError, match=r"indices in \[0, 3\)"):
        jnp.ravel_multi_index(places, (2, 3))
    with pytest.raises(jax.errors.ConcretizationTypeError, match="mode"):
        jax.jit(lambda places: jnp.ravel_multi_index(places, (2, 3)))(places)
    assert jnp.choose(jnp.array([1, 0]), [jnp.array([1, 2]), 5]).tolist() == [5, 2]
    with pytest.raises(ValueError, match=r"indices in \[0, 2\)"):
        jnp.choose(jnp.array([1, -1]), [jnp.array([1, 2]), 5])


def test_take_along_axis_by_sums():
    x, index = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, -1, 5], "int8")
    assert jnp.take_along_axis(x, index, 0, mode="one_hot").tolist() == [3, 3, 0]
    many = jnp.arange(200.0)
    found = jnp.take_along_axis(many, index, 0, mode="fill", fill_value=7, wrap_negative_indices=False)
    assert found.tolist() == [2, 7, 5]


def test_masks_of_another_length():
    x = jnp.arange(6).reshape(2, 3)
    assert jnp.compress(jnp.array([1, 0, 0, 0]), x, axis=0).tolist() == [[0, 1, 2]]
    with pytest.raises(ValueError, match="beyond the axis"):
        jnp.compress(jnp.array([1, 0, 0, 1]), x, axis=0)
    assert jnp.lexsort((jnp.array(1.0), jnp.array(2.0))).tolist() == 0


def test_places_are_integers_that_their_dtype_holds():
    small = jnp.array([10], "int8")
    with pytest.raises(DtypeError, match="got int8 for 10000"):
        jnp.ravel_multi_index((small, small), (100, 100))
    assert jnp.ravel_multi_index((small, small), (100, 100), dtype="int16").tolist() == [1010]
    assert jnp.ravel_multi_index((small,), (128,)).dtype == "int8"
    for index in (jnp.ones(1), jnp.ones(1, bool), jnp.ones(1, "complex64")):
        with pytest.raises(DtypeError, match="expected integers"):
            jnp.ravel_multi_index((index,), (3,))
        with pytest.raises(DtypeError, match="expected integers"):
            jnp.choose(index, [1, 2])


def test_places_that_are_booleans_or_outside():
    x = jnp.arange(4.0)
    assert jnp.take(x, jnp.array([True, False])).tolist() == [1.0, 0.0]
    assert jnp.take(x, True) == 1
    for run in (lambda f: f, jax.jit):
        delete = run(lambda x, places: jnp.delete(x, places, assume_unique_indices=True))
        assert delete(x, jnp.array([0, 7])).tolist() == [1.0, 2.0]
        assert delete(x, jnp.array([-9])).tolist() == [1.0, 2.0, 3.0]
        assert delete(x, jnp.array([-1, 1])).tolist() == [0.0, 2.0]
    assert jnp.isscalar("a")
    assert not jnp.isscalar(None)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_padding_by_functions_and_complex_extremes(wrap):
    def around(vector, width, axis, options, put):
        before, after = width
        vector = put(vector, slice(0, before), options.get("value", 10) + axis)
        return put(vector, slice(vector.size - after, None), vector[before])

    def into(vector, where, value):
        vector[where] = value
        return vector

    x = np.arange(6).reshape(2, 3)
    ours = lambda *args: around(*args, lambda v, k, y: v.at[k].set(y))  # noqa: E731
    theirs = lambda vector, *args: into(vector, slice(None), around(vector, *args, into))  # noqa: E731
    for width, options in ((1, {}), (((1, 2), (0, 1)), {"value": 5})):
        got = wrap(lambda x, w=width, o=options: jnp.pad(x, w, ours, **o))(x)
        np.testing.assert_array_equal(got, np.pad(x, width, theirs, **options))
    z = np.array([[1 + 2j, 1 - 3j, 5j], [2, 1, 7 - 1j]], "complex64")
    for mode in ("maximum", "minimum"):
        for length in (None, 1, ((1, 2), (2, 1))):
            got = wrap(lambda z, m=mode, n=length: jnp.pad(z, ((2, 1), (0, 3)), m, stat_length=n))(z)
            np.testing.assert_array_equal(got, np.pad(z, ((2, 1), (0, 3)), mode, stat_length=length))
    with pytest.raises(ValueError, match="unsupported keyword arguments for mode 'edge': stat_length"):
        jnp.pad(x, 1, "edge", stat_length=1)
