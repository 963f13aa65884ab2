"""Arrays never change: nobody else has their memory, neither whoever gave the data nor whoever looks at them."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.image
import gtrace.jax
import gtrace.jax.numpy
import gtrace.scipy.linalg
import gtrace.segments
import gtrace.special

FLOATS = np.array([[0.5, 0.25], [0.125, 1.0]], np.float32)
ROW, INTS = FLOATS[0], np.array([1, 0])


def first(*args):
    return args[0]


CALLS = [
    lambda m: (m(FLOATS),), lambda m: (m(FLOATS), m(FLOATS)), lambda m: (m(FLOATS), m(FLOATS), m(FLOATS)),
    lambda m: ([m(FLOATS), m(FLOATS)],), lambda m: ([m(FLOATS)],), lambda m: ({"a": m(FLOATS)},),
    lambda m: (m(FLOATS), 0), lambda m: (m(FLOATS), (2, 2)), lambda m: (m(FLOATS), "float32"), lambda m: (m(ROW),),
    lambda m: (m(FLOATS), m(INTS)), lambda m: (m(FLOATS), m(INTS), 0), lambda m: (m(ROW), m(ROW)),
    lambda m: (m(INTS),), lambda m: (True, m(FLOATS), m(FLOATS)), lambda m: ((2, 2), m(FLOATS)),
    lambda m: (first, m(FLOATS)), lambda m: (first, 0, m(FLOATS)), lambda m: ("ij->ij", m(FLOATS)),
    lambda m: (gt.random.key(0), m(FLOATS)),
]  # fmt: skip
"""Arguments that many functions take, made of NumPy arrays or tensors by `m`."""

SHARE = {"asarray", "from_dlpack", "from_numpy", "from_torch"}
"""Functions whose names say that they share memory."""

NO_FUNCTIONS_OF_ARRAYS = {"breakpoint", "distribute", "export", "load", "profile"}

ROOMS = {
    "gtrace": gt, "numpy": gt.numpy, "numpy.linalg": gt.numpy.linalg, "numpy.fft": gt.numpy.fft, "lax": gt.lax,
    "nn": gt.nn, "random": gt.random, "special": gtrace.special, "segments": gtrace.segments, "image": gtrace.image,
    "scipy.linalg": gtrace.scipy.linalg, "jax": gtrace.jax, "jax.numpy": gtrace.jax.numpy,
}  # fmt: skip

LEAST = {"gtrace": 150, "numpy": 250, "jax.numpy": 200}
"""How many functions some of the calls fit, at least."""


def functions(room):
    module = ROOMS[room]
    for name in getattr(module, "__all__", None) or dir(module):
        f = getattr(module, name)
        if callable(f) and not inspect.isclass(f) and not name.startswith(("_", "save")):
            if name not in SHARE | NO_FUNCTIONS_OF_ARRAYS:
                yield name, f


def values(result):
    arrays = [x for x in gt.tree.leaves(result) if isinstance(x, gt.Array)]
    return [x.to_torch().to(torch.complex128).numpy() for x in arrays]


def overwrite(args):
    for x in args:
        if isinstance(x, (list, tuple, dict)):
            overwrite(x.values() if isinstance(x, dict) else x)
        elif isinstance(x, (np.ndarray, torch.Tensor)):
            x[...] = 0 if x.dtype in (np.int64, torch.int64) else 77


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("room", ROOMS)
def test_what_is_given_may_be_written_to_afterwards(room):
    """Every public function, with every call that it takes: the result is that of the values at the call."""
    rng, fitting = random.Random(0), 0
    for name, f in functions(room):
        made = 0
        for call in CALLS:
            make = rng.choice([np.array, torch.tensor])
            args = call(make)
            try:
                gt.seed(0)
                expected = values(f(*call(make)))
                gt.seed(0)
                got = f(*args)
            except Exception:  # noqa: BLE001 - the call does not fit the function
                continue
            overwrite(args)
            for a, b in zip(values(got), expected, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{name} with call {CALLS.index(call)} of {make}")
            made += bool(expected)
            if made == 4:
                break
        fitting += made > 0
    assert fitting >= LEAST.get(room, 0)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize(
    "call",
    [
        gt.jit(lambda x: x), gt.jit(lambda x: (x, x.T)), gt.vmap(lambda x: x),
        lambda x: gt.array([x, x]), lambda x: gt.array([[x], [gt.ones((2, 2))]]), lambda x: gt.asarray([x, x]),
        lambda x: gt.zeros((2, 2)).at[0].set(x[0]), lambda x: gt.zeros((2, 2)) + x,
        lambda x: gt.value_and_grad(lambda y: (y * y).sum())(x), lambda x: gt.vjp(lambda y: y, gt.ones((2, 2)))[1](x),
        lambda x: gt.scan(lambda c, row: (c, row), 0.0, x), lambda x: gt.cond(True, lambda y: y, lambda y: y, x),
        lambda x: gt.optim.adam(0.1).init({"w": x}),
    ],
)  # fmt: skip
def test_programs_keep_what_they_were_given(make, call):
    expected, x = values(call(make(FLOATS))), make(FLOATS)
    got = call(x)
    overwrite([x])
    assert expected
    for a, b in zip(values(got), expected, strict=True):
        np.testing.assert_array_equal(a, b)


class Lent:
    """An object that hands out its own memory, also where NumPy asks for a copy."""

    def __init__(self, data):
        self.data = data

    def __array__(self, dtype=None, copy=None):
        return self.data


LIKE = gt.ShapeDtypeStruct((2, 2), "float32")


@pytest.mark.parametrize(
    "call",
    [
        gt.array, lambda x: gt.array([x, x]), lambda x: gt.asarray(x, copy=True), gtrace.jax.numpy.array,
        lambda x: gt.pure_callback(lambda: x, LIKE), lambda x: gt.io_callback(lambda: x, LIKE),
        lambda x: gt.jit(lambda y: gt.pure_callback(lambda _: x, LIKE, y))(FLOATS),
    ],
)  # fmt: skip
def test_objects_that_become_arrays_are_copied(call):
    given = Lent(FLOATS.copy())
    got = gt.eval(call(given))
    expected = values(got)
    given.data[...] = 77
    for a, b in zip(values(got), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "float16", "uint64"])
def test_nothing_that_shows_an_array_can_be_written_to(dtype):
    x = gt.eval(gt.array(np.arange(4)).astype(dtype))
    before = x.tolist()
    for view in (x.numpy(), np.asarray(x), np.asarray(x, copy=False), x.numpy().T, np.asarray(x).view()):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
        assert memoryview(view).readonly
    for copy in (np.array(x), np.from_dlpack(x), torch.from_dlpack(x), x.to_torch(), torch.tensor(x.numpy())):
        copy[:] = 1
    assert x.tolist() == before
    with pytest.raises(TypeError):
        memoryview(x)


def test_dlpack_refuses_to_lend_memory():
    x = gt.eval(gt.arange(3.0) + 0)
    with pytest.raises(BufferError, match=r"copy=False.*x\.numpy\(\)"):
        np.from_dlpack(x, copy=False)
    assert gt.from_dlpack(x) is x


def test_dtypes_of_ml_dtypes_are_read_only_too():
    pytest.importorskip("ml_dtypes")
    view = gt.eval(gt.ones(3, dtype=gt.bfloat16)).numpy()
    for array in (view, view.base):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_and_scalars_of_ml_dtypes_become_arrays(name):
    host = np.arange(6).reshape(2, 3).astype(getattr(pytest.importorskip("ml_dtypes"), name))
    for value in (host, host.T, host[::-1], host[0, 1:2].reshape(()), host[:0], host.astype(host.dtype.newbyteorder())):
        for make in (gt.asarray, gt.array, gt.from_numpy):
            x = make(value)
            assert x.dtype == name and x.shape == value.shape
            np.testing.assert_array_equal(x.astype(gt.float32).numpy(), value.astype(np.float32))
    assert gt.asarray(host[0, 1]).dtype == gt.array([host[0, 1], host[1, 1]]).dtype == name
    assert gt.asarray(host, dtype=gt.int32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert gt.jit(lambda: gt.asarray(host))().dtype == gt.jit(lambda x: x)(host).dtype == name
    assert gt.asarray(host).numpy().dtype == host.dtype
