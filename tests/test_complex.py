"""Complex arrays and wide unsigned integers: exchange, functions, refusals, derivatives, transforms, programs."""

from __future__ import annotations

import cmath
import math
import operator
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
import gtrace.numpy
from gtrace import ir, testing
from gtrace.core.ops.samples import complex_uniform
from gtrace.testing import assert_close

COMPLEX = [gt.complex64, gt.complex128]
UNSIGNED = [gt.uint16, gt.uint32, gt.uint64]
Z, W = complex_uniform(3, 4), complex_uniform(4, seed=1)
X = Z.real


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def close(got, expected, tol=1e-12):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == expected.dtype, (got.dtype, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)


# exchange


@pytest.mark.parametrize("dtype", [*COMPLEX, *UNSIGNED], ids=str)
def test_exchange_keeps_dtype_and_values(dtype):
    host = np.array([[1, 2], [3, 2**16 - 1]]).astype(str(dtype).removeprefix("torch."))
    if dtype in COMPLEX:
        host = host + np.asarray(0.5j, host.dtype)
    x = gt.array(host)
    assert x.dtype == dtype and x.tolist() == host.tolist() and x[0, 1].item() == host[0, 1]
    for back in (
        x.numpy(), np.asarray(x), x.to_torch().numpy(), np.from_dlpack(x), pickle.loads(pickle.dumps(x)).numpy(),
        gt.from_numpy(host).numpy(), gt.from_torch(torch.from_numpy(host)).numpy(), gt.from_dlpack(host).numpy(),
        gt.asarray(host.tolist(), dtype=dtype).numpy(), gt.stack([gt.array(row) for row in host]).numpy(),
        gt.asarray(host, dtype=str(dtype).removeprefix("torch.")).numpy(), (x * 1).numpy(),
    ):  # fmt: skip
        assert back.dtype == host.dtype and (back == host).all()
    assert repr(x).endswith(f"dtype={host.dtype})")
    for made in (
        gt.zeros(2, dtype),
        gt.ones((), dtype),
        gt.full(2, 3, dtype),
        gt.eye(2, dtype=dtype),
        gt.empty_like(x),
    ):
        assert made.dtype == dtype and gt.eval(made) is not None


def test_complex_numbers_from_python_numpy_and_torch():
    for value in (1j, np.complex64(1j), np.complex128(1j), gt.array(1j), torch.tensor(1j)):
        assert complex(gt.asarray(value)) == 1j
    assert gt.array(1 + 2j).dtype == gt.array([1.0, 2j]).dtype == gt.ones(1, dtype=complex).dtype == gt.complex64
    assert gt.array(np.complex128(1j)).dtype == gt.complex128 and str(gt.array(1 + 2j)) == "(1+2j)"
    assert gt.array([0j, 1j], dtype=bool).tolist() == [False, True]
    lazy = torch.tensor([1 + 2j, 3.0])
    for view in (lazy.conj(), lazy.conj().imag):  # torch marks these as to be conjugated or negated
        assert (
            gt.array(view).tolist() == view.resolve_conj().resolve_neg().tolist()
            and gt.from_torch(view).numpy() is not None
        )


def test_the_ends_of_unsigned_integers():
    for dtype in UNSIGNED:
        most = gt.iinfo(dtype).max
        assert gt.array([0, most], dtype=dtype).tolist() == [0, most]
        assert gt.full(1, most, dtype=dtype).tolist() == [most]
        for bad in (-1, most + 1):
            for call in (lambda b=bad, d=dtype: gt.array([b], dtype=d), lambda b=bad, d=dtype: gt.ones(1, d) * b):
                with pytest.raises(gt.DtypeError):
                    call()
    assert gt.array(np.array([2**64 - 1], np.uint64)).tolist() == [2**64 - 1]
    assert (gt.array([2**63], dtype=gt.uint64) == 2**63).tolist() == [True]


# functions

UNARY = [
    "negative", "abs", "sign", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "square", "reciprocal", "sin",
    "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "real", "imag",
    "conj", "conjugate", "angle", "isreal", "iscomplex", "isnan", "isinf", "isfinite", "sum", "mean", "prod", "var",
    "std", "cumsum", "ravel", "transpose", "flip", "count_nonzero", "any", "all",
]  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name):
    special = np.array([0, 1, -2.0, 1j, -0.5j, np.nan, np.inf + 1j]) if name.startswith("is") else Z
    close(getattr(gt, name)(gt.array(special)), getattr(np, name)(special))
    if name in ("real", "imag", "conj", "conjugate", "angle", "isreal", "iscomplex"):
        close(getattr(gt.numpy, name)(gt.array(X)), getattr(np, name)(X))


@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "power", "equal", "not_equal", "logical_and"]
)
@pytest.mark.parametrize("other", [W, W.real, 2, 0.5, 1 - 2j], ids=["c128", "f64", "int", "float", "complex"])
def test_functions_of_two(name, other):
    for x, y in ((Z, other), (other, Z)):
        close(
            getattr(gt, name)(*[gt.array(v) if isinstance(v, np.ndarray) else v for v in (x, y)]),
            getattr(np, name)(x, y),
        )


PRODUCTS = [
    (lambda m, z, w: m.matmul(z, w)),
    (lambda m, z, w: m.dot(z, w)),
    (lambda m, z, w: m.einsum("ij,j->i", z, w)),
    (lambda m, z, w: m.tensordot(z, w, 1)),
    (lambda m, z, w: m.outer(z, w)),
    (lambda m, z, w: m.vecdot(z, w)),
    (lambda m, z, w: m.concatenate([z, w[None]])),
    (lambda m, z, w: m.where(m.isreal(w), z, w)),
    (lambda m, z, w: m.stack([w, w.real])),
    (lambda m, z, w: z[::-1, [0, 2]].T.reshape(2, 3) * 1j),
    (lambda m, z, w: m.angle(z, deg=True)),
    (lambda m, z, w: m.take(z, m.asarray([2, 0]), axis=1)),
    (lambda m, z, w: m.pad(z, 1)),
    (lambda m, z, w: m.linspace(0, 1, 3, dtype=m.complex128) * w[0]),
]


@pytest.mark.parametrize("call", PRODUCTS)
def test_products_and_moves(call):
    close(call(gt, gt.array(Z), gt.array(W)), call(np, Z, W))


PARTS = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan]
INFINITIES = np.array([complex(a, b) for a in PARTS for b in PARTS])


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_sums_and_signs_at_infinity_are_numpys(dtype):
    z = INFINITIES.astype(dtype)
    x, y = (v.ravel() for v in np.meshgrid(z, z))
    with np.errstate(all="ignore"):
        for ours, theirs in (
            (gt.array(x) + gt.array(y), x + y), (gt.array(x) - gt.array(y), x - y), (gt.array(z) + np.inf, z + np.inf),
            (1j - gt.array(z), 1j - z), (gt.array(x) + gt.array(y) - gt.array(x) + 1, x + y - x + 1),
            (gt.jit(lambda a, b: a + b - 2j * b)(gt.array(z), gt.array(z)), z + z - 2j * z),
        ):  # fmt: skip
            np.testing.assert_array_equal(ours.numpy().view(dtype(0).real.dtype), theirs.view(dtype(0).real.dtype))
        np.testing.assert_allclose(gt.sign(gt.array(z)).numpy(), np.sign(z), rtol=1e-6)
    far = dtype(np.finfo(dtype).max * (0.8 - 0.8j))
    np.testing.assert_allclose(gt.sign(gt.array(far)).numpy(), (1 - 1j) / math.sqrt(2), rtol=1e-6)  # NumPy: 1j


def test_powers_of_and_with_zero():
    zeros, z = np.zeros(9, np.complex64), np.full(9, 2 - 1j, np.complex64)
    for x, y in ((zeros, zeros), (z, zeros), (zeros, z), (zeros, 0), (0, zeros), (0j, zeros), (zeros, 0j)):
        given = [gt.array(v) if isinstance(v, np.ndarray) else v for v in (x, y)]
        np.testing.assert_allclose(gt.power(*given).numpy(), np.power(x, y), rtol=1e-6)
        np.testing.assert_allclose(gt.jit(gt.power)(*given).numpy(), np.power(x, y), rtol=1e-6)


def test_slopes_of_signs_and_moduli():
    def turned(re, im):
        unit = gt.sign(gt.complex(re, im))
        return gt.real(unit) + 2 * gt.imag(unit) + gt.real(gt.round(unit))

    testing.check_grads(turned, [gt.array(Z.real), gt.array(Z.imag)])
    at = gt.array([complex(np.inf, 1), complex(0, -np.inf), 0, 3 + 4j])
    assert_close(gt.grad(lambda z: gt.abs(z).sum())(at), np.array([1, 1j, 0, 0.6 - 0.8j], np.complex64))
    assert gt.grad(lambda z: gt.real(gt.sign(z)).sum())(at)[:3].tolist() == [0, 0, 0]


def test_parts_and_updates():
    z = gt.array(Z)
    close(gt.complex(z.real, z.imag), Z)
    close(gt.complex(1, gt.ones(2)), np.array([1 + 1j] * 2, np.complex64))
    assert gt.complex(gt.ones(2, gt.float64), 1).dtype == gt.complex128
    assert gt.complex(gt.ones(2, gt.bfloat16), 1.0).dtype == gt.complex64
    x = gt.ones(2)
    assert x.real.tolist() == x.conj().tolist() == [1, 1] and x.imag.tolist() == [0, 0]
    assert gt.iscomplexobj(z) and gt.isrealobj(x) and gt.iscomplexobj(1j) and gt.isrealobj([1, 2])
    assert gt.jit(lambda z, x: z if gt.iscomplexobj([(x,), z]) and gt.isrealobj([x]) else x)(z, x).aval.complex
    for update in (lambda x: x.at[0].set(2j), lambda x: x.at[0].multiply(x[1]), lambda x: x.at[[0, 0]].add(1j)):
        assert update(z).dtype == gt.complex128
    close(z.at[[0, 0]].add(1j), Z + np.array([[2j], [0], [0]]))
    tiny = gt.array([1e-320 + 0j, 0, 3 + 4j])
    close(gt.sign(tiny.astype(gt.complex128))[1:], np.array([0, 0.6 + 0.8j], np.complex128), 1e-7)


REFUSED = [
    operator.lt, operator.ge, lambda z, _: gt.max(z), lambda z, _: gt.argmin(z), lambda z, _: gt.sort(z, axis=0),
    lambda z, _: gt.argsort(z), gt.maximum, gt.minimum, gt.floor_divide, gt.remainder, gt.arctan2,
    lambda z, _: gt.floor(z), lambda z, _: gt.clip(z, 0, 1), lambda z, _: gt.clip(z), lambda z, _: gt.relu(z),
    lambda z, _: gt.softmax(z), lambda z, _: gt.signbit(z), lambda z, w: gt.searchsorted(w, z),
    lambda z, _: gt.gelu(z), lambda z, _: z.astype(gt.float32),
    lambda z, _: z.astype(int), lambda z, _: gt.complex(z, 1.0), lambda z, _: z & z, lambda z, _: z.at[0].max(1.0),
    lambda z, _: gt.ones(3).at[0].set(z[0, 0]), lambda z, _: gt.random.uniform(gt.random.key(0), (), gt.complex64),
    lambda z, _: gt.zeros(3)[z], lambda z, _: gt.random.bernoulli(gt.random.key(0), z),
]  # fmt: skip


@pytest.mark.parametrize("call", REFUSED)
def test_what_has_no_meaning_is_refused_while_recording(call):
    with pytest.raises(gt.DtypeError, match=r"expected .* got .* \(at .*test_complex.py"):
        gt.make_graph(call)(gt.array(Z), gt.array(W))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x * 3, [3, 6]), (lambda x: x / 2, [0.5, 1.0]), (lambda x: x == 2, [False, True]),
        (lambda x: x & 3, [1, 2]), (lambda x: gt.where(x == 1, x, 7), [1, 7]), (lambda x: x[gt.array([1, 1])], [2, 2]),
        (lambda x: gt.concat([x, x]), [1, 2, 1, 2]), (lambda x: x.astype(gt.int8), [1, 2]),
        (lambda x: gt.sort(x, descending=True), [2, 1]), (lambda x: gt.arange(2, dtype=x.dtype), [0, 1]),
        (lambda x: x * 1.5, [1.5, 3.0]), (lambda x: x * True, [1, 2]), (lambda x: gt.vmap(lambda y: y * y)(x), [1, 4]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_what_wide_unsigned_integers_can(dtype, call, expected):
    x = gt.array([1, 2], dtype=dtype)
    assert call(x).tolist() == gt.jit(call)(x).tolist() == expected


def _edges(dtype):
    """Pairs of numbers of all sizes, those that are negative as signed ones included."""
    info = np.iinfo(dtype)
    some = np.array(
        [0, 1, 2, 3, 7, 41, info.max // 2, info.max // 2 + 1, info.max // 2 + 8, info.max - 1, info.max], dtype
    )
    return tuple(part.ravel() for part in np.meshgrid(some, some))


# functions of two arrays of which torch has no kernel for wide unsigned integers, under their names in NumPy
PAIRS = (
    "add subtract multiply floor_divide remainder fmod maximum minimum less less_equal greater greater_equal equal"
    " bitwise_and bitwise_or bitwise_xor logical_and logical_xor"
).split()


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_arithmetic_of_wide_unsigned_integers_is_that_of_numpy(name):
    x, y = _edges(name)
    for function in PAIRS:
        a, b = (x[y > 0], y[y > 0]) if function in ("floor_divide", "remainder", "fmod") else (x, y)
        got, expected = getattr(gt.numpy, function)(gt.array(a), gt.array(b)), getattr(np, function)(a, b)
        assert got.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, err_msg=function)
    shifts = (y % np.iinfo(name).bits).astype(name)
    np.testing.assert_array_equal(gt.array(x) << gt.array(shifts), np.left_shift(x, shifts))
    np.testing.assert_array_equal(gt.array(x) >> gt.array(shifts), np.right_shift(x, shifts))
    for function in ("abs", "sign", "negative", "invert", "square", "max", "min", "argmax", "argmin", "sum", "prod",
                     "cumsum", "cumprod", "sort", "argsort", "flip", "diff", "unique", "ptp"):  # fmt: skip
        kind = {"kind": "stable"} if "sort" in function else {}
        got, expected = getattr(gt.numpy, function)(gt.array(x)), getattr(np, function)(x, **kind)
        assert got.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, err_msg=function)
    rows = x.reshape(11, 11)
    np.testing.assert_array_equal(gt.array(rows) @ gt.array(rows), rows @ rows)
    sequence = np.unique(x)
    np.testing.assert_array_equal(gt.searchsorted(gt.array(sequence), gt.array(y)), np.searchsorted(sequence, y))
    np.testing.assert_array_equal(gt.clip(gt.array(x), 2, int(x.max()) - 1), np.clip(x, 2, int(x.max()) - 1))
    np.testing.assert_array_equal(gt.array(x).at[gt.array([1, 1])].add(3)[1], x[1] + x.dtype.type(6))
    np.testing.assert_array_equal(gt.array(x).at[gt.array([0])].max(int(x.max()))[0], x.max())
    np.testing.assert_array_equal(gt.vmap(lambda a, b: a - b)(gt.array(x), gt.array(y)), x - y)
    np.testing.assert_array_equal(gt.jit(lambda a: gt.max(a) // 2)(gt.array(x)), x.max() // 2)
    np.testing.assert_array_equal(gt.array(x) // 7 + 1, x // 7 + x.dtype.type(1))


def test_a_graph_of_wide_unsigned_integers_is_evaluated_as_it_runs():
    x = np.array([1, 2**63 + 5], np.uint64)
    graph = gt.make_graph(lambda x: (x - 2) // 3)(gt.array(x))
    np.testing.assert_array_equal(ir.evaluate(graph, torch.from_numpy(x))[0].numpy(), (x - np.uint64(2)) // 3)


def test_no_random_numbers_of_wide_unsigned_integers():
    with pytest.raises(gt.DtypeError, match="astype"):
        gt.random.randint(gt.random.key(0), (2,), 0, 2, gt.uint32)


# scalars in programs


@pytest.mark.parametrize(
    "value",
    [1j, 1 + 2j, -2.5j, 0j, -0j, complex(-0.0, 0.0), complex(0, -0.0), complex("nan+infj"), complex("-inf+nanj")],
)
def test_complex_scalars_are_printed_and_parsed(value):
    graph = gt.make_graph(lambda z: z * value)(gt.array(Z))
    again = ir.parse_graph(str(graph))
    assert str(again) == str(graph) and repr(again.nodes[0].ins[1].value) == repr(value)
    assert ir.sign(ir.canonicalize(again).graph) == ir.sign(ir.canonicalize(graph).graph)
    for text in ("2jj", "(1+j", "(2j", "complex(1)"):
        with pytest.raises(gt.GraphError):
            ir.parse_graph(f"graph(%0: c64[]) {{\n  %1: c64[] = mul(%0, {text}:c64[]~)\n  return %1\n}}")


@given(st.lists(st.complex_numbers(max_magnitude=1e3) | st.sampled_from([0j, -0j, complex(-0.0, 0.0)]), max_size=6))
@settings(deadline=None, max_examples=30)
def test_programs_tell_scalars_apart(values):
    z = gt.array(1 + 1j, dtype=gt.complex128)
    for value in values:
        got = complex(z * value)
        assert cmath.isclose(got, (1 + 1j) * value, abs_tol=1e-12)
        assert repr(gt.where(z == 0, z, value).item()) == repr(value)


def test_constants_fold_and_numbers_in_bodies_become_inputs():
    z = gt.array(Z)
    graph = ir.canonicalize(gt.make_graph(lambda z: z * (gt.full((3, 4), 2j, gt.complex128) * 2j))(z)).graph
    assert [n.op.name for n in graph.nodes] == ["mul"] and graph.nodes[0].ins[1].value == -4
    for k in range(5):
        step = gt.fori_loop(0, 3, lambda _, c, k=k: c * (1j * k) + 1.0, z)
        expected = Z
        for _ in range(3):
            expected = expected * (1j * k) + 1.0
        close(step, expected)
        close(gt.cond(z.real.sum() > -100, lambda z, k=k: z * complex(1, k), lambda z: z, z), Z * complex(1, k))


# derivatives


def real_of(z):
    return (gt.abs(z) ** 3 + gt.real(z * z) * gt.imag(gt.exp(z)) + gt.angle(z) * gt.abs(gt.conj(z) - z) ** 2).sum()


def test_the_gradient_is_the_conjugate_of_torchs():
    t = torch.tensor(Z, requires_grad=True)
    ((t.abs() ** 3 + (t * t).real * t.exp().imag + t.angle() * (t.conj() - t).abs() ** 2).sum()).backward()
    got = gt.grad(real_of)(gt.array(Z))
    close(got, t.grad.conj().resolve_conj().numpy())
    close(gt.jit(gt.grad(real_of))(gt.array(Z)), got)
    close(gt.vmap(gt.grad(real_of))(gt.array(Z)), got)


ANALYTIC = [
    (lambda z: gt.real(z), lambda z: 1), (lambda z: gt.imag(z), lambda z: -1j),
    (lambda z: gt.abs(z) ** 2, lambda z: 2 * z.conj()),
    (gt.abs, lambda z: z.conj() / np.abs(z)), (gt.angle, lambda z: -1j / z),
    (lambda z: gt.real(z**3), lambda z: 3 * z**2), (lambda z: gt.real(gt.conj(z) ** 2), lambda z: 2 * z),
    (lambda z: gt.real(gt.exp(1j * z)), lambda z: 1j * np.exp(1j * z)),
    (lambda z: gt.real(2j**z), lambda z: 2j**z * np.log(2j)),
    (lambda z: gt.real(z**0.5), lambda z: 0.5 * z**-0.5), (lambda z: gt.real(1 / z), lambda z: -1 / z**2),
    (lambda z: gt.var(gt.stack([z, 0 * z])), lambda z: 0.5 * z.conj()), (lambda z: gt.log(gt.abs(z)), lambda z: 1 / z),
]  # fmt: skip


@pytest.mark.parametrize(("f", "derivative"), ANALYTIC)
def test_gradients_are_dx_minus_i_dy(f, derivative):
    for value in Z.ravel()[:4]:
        expected = np.asarray(derivative(value), np.complex128)
        close(gt.grad(f)(gt.array(value)), expected, 1e-10)
        # along t the derivative is the real part of gradient * t
        moved = gt.jvp(f, (gt.array(value),), (gt.array(np.complex128(0.3 - 2j)),))[1]
        close(moved, np.real(expected * (0.3 - 2j)), 1e-10)


HOLOMORPHIC = [
    (gt.exp, np.exp), (gt.sin, np.cos), (lambda z: z**3, lambda z: 3 * z**2), (gt.log, lambda z: 1 / z),
    (gt.tanh, lambda z: 1 / np.cosh(z) ** 2), (lambda z: (2 + 1j) * z, lambda z: 2 + 1j + 0 * z),
    (gt.sqrt, lambda z: 0.5 / np.sqrt(z)), (gt.arctan, lambda z: 1 / (1 + z * z)),
]  # fmt: skip


@pytest.mark.parametrize(("f", "derivative"), HOLOMORPHIC)
def test_holomorphic_derivatives(f, derivative):
    w = gt.array(W)
    close(gt.vmap(gt.grad(f, holomorphic=True))(w), derivative(W))
    for jacobian in (gt.jacrev, gt.jacfwd):
        close(jacobian(f, holomorphic=True)(w), np.diag(derivative(W)))
    value, slope = gt.value_and_grad(f, holomorphic=True)(w[0])
    assert value.aval is slope.aval
    second = gt.grad(gt.grad(f, holomorphic=True), holomorphic=True)(w[0])
    close(gt.hessian(f, holomorphic=True)(w[0]), second)


def test_vjp_does_not_conjugate():
    z, w = gt.array(Z[0]), gt.array(W)
    _, pullback = gt.vjp(lambda a, b: a * b, z, w)
    ct = complex_uniform(4, seed=7)
    for got, expected in zip(pullback(gt.array(ct)), (ct * W, ct * Z[0]), strict=True):
        close(got, expected)
    close(gt.vjp(gt.conj, z)[1](gt.array(ct))[0], ct.conj())
    close(gt.linearize(lambda a: a * w, z)[1](gt.array(ct)), ct * W)


@pytest.mark.slow
def test_a_real_operand_has_real_derivatives():
    x, w = gt.array(X[0]), gt.array(W)
    for f in (
        lambda x: gt.abs(x * w).sum(), lambda x: gt.real((x + w) @ (w * x)),
        lambda x: gt.real(gt.where(x > 0, x, w).sum() * 1j),
        lambda x: gt.abs(gt.complex(x, 2 * x) ** 2).sum(),
        lambda x: gt.real(x.astype(gt.complex128).at[0].multiply(1j)).sum(),
        lambda x: gt.imag(gt.cumsum(x, dtype=gt.complex128) @ w), lambda x: gt.abs(gt.sum(x, dtype=gt.complex128) * 2j),
        lambda x: gt.abs(gt.concat([x, w])).sum(), lambda x: gt.real(gt.sign(gt.complex(x, 1.0))).sum(),
    ):  # fmt: skip
        got = gt.grad(f)(x)
        assert got.dtype == gt.float64
        testing.check_grads(f, (x,), order=2)
        steps = [(float(f(x + e)) - float(f(x - e))) / 2e-6 for e in gt.eye(4, dtype=gt.float64) * 1e-6]
        np.testing.assert_allclose(got, steps, rtol=1e-6, atol=1e-7)
    value, moved = gt.jvp(lambda x: x * w, (x,), (gt.ones(4, gt.float64),))
    assert moved.dtype == value.dtype == gt.complex128
    assert gt.jacfwd(lambda x: x * w)(x).dtype == gt.complex128


def test_derivatives_at_zero_are_zero():
    assert gt.grad(gt.abs)(0j).item() == 0 and gt.grad(lambda z: gt.real(gt.sign(z)))(0j).item() == 0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: gt.grad(lambda z: z * 2)(1j), "expected a real output, got complex64.*holomorphic=True"),
        (lambda: gt.value_and_grad(gt.exp, holomorphic=True)(1.0), "complex inputs with holomorphic=True, got float32"),
        (lambda: gt.grad(gt.abs, holomorphic=True)(1j), "complex outputs"),
        (lambda: gt.jacrev(gt.exp)(gt.array(1j)), "real outputs"),
        (lambda: gt.jacfwd(gt.abs)(gt.array(1j)), "real inputs"),
        (lambda: gt.hessian(gt.abs)(gt.array(1j)), "real inputs"),
        (lambda: gt.jacfwd(gt.exp, holomorphic=True)(1.0), "complex inputs"),
        (lambda: gt.jvp(gt.exp, (1.0,), (1j,)), "tangent with the shape and dtype"),
        (lambda: gt.vjp(gt.abs, 1j)[1](1j), "cotangent with the shape and dtype"),
    ],
)
def test_derivatives_that_do_not_exist_are_refused(call, match):
    with pytest.raises((gt.DtypeError, gt.ArgumentError), match=match):
        call()


def test_control_flow_and_rules_of_the_users():
    z = gt.array(W)

    def scanned(z):
        return gt.real(gt.scan(lambda c, x: (c * x + 1j, c), z[0], z)[0])

    def unrolled(z):
        c = z[0]
        for k in range(4):
            c = c * z[k] + 1j
        return gt.real(c)

    close(gt.grad(scanned)(z), gt.grad(unrolled)(z))
    close(gt.grad(gt.checkpoint(unrolled))(z), gt.grad(unrolled)(z))

    @gt.custom_vjp
    def half(z):
        return z * z

    half.defvjp(lambda z: (z * z, z), lambda z, ct: (ct * z,))
    close(gt.grad(lambda z: gt.real(half(z)).sum())(z), W)


# programs


def test_programs_with_complex_values_stay_interpreted_without_a_warning(recwarn):
    def f(z, scale):
        return gt.abs(gt.exp(z * scale) + gt.sin(z)).sum() + gt.real(z @ z)

    expected = np.abs(np.exp(W * 2j) + np.sin(W)).sum() + np.real(W @ W)
    for jitted in (gt.jit(f), gt.jit(f, wait=True), gt.jit(f, backend="aot_eager")):
        for _ in range(3):
            close(jitted(gt.array(W), 2j), expected)
    with gt.config(compile=True):
        close(f(gt.array(W), 2j), expected)
    found = [e for e in gt.stats() if "modulus" in e.ops and "exp" in e.ops]
    assert any(e.reason == "Inductor generates no code for complex numbers" for e in found)
    assert {e.tier for e in found if e.reason} == {"interpreted"}
    assert not recwarn.list


def test_export_refuses_complex_values():
    with pytest.raises(gt.ExportError, match="no code for complex numbers"):
        gt.export(lambda z: gt.abs(z), gt.ShapeDtypeStruct((2,), gt.complex64))


def test_scalars_that_change_become_inputs():
    z = gt.array(W)
    for k in range(6):
        close(z * complex(k, -1) + 1j, W * complex(k, -1) + 1j)
    jitted = gt.jit(lambda z, s: z * s)
    for s in (1j, 2 + 1j, 3.0, 2):
        close(jitted(z, s), W * s)
    assert gt.eval_shape(lambda z: gt.abs(z), gt.ShapeDtypeStruct((2,), gt.complex128)).dtype == gt.float64


def test_nan_search_finds_complex_nans():
    with gt.config(debug_nans=True), pytest.raises(gt.NonFiniteError, match="div"):
        gt.eval(gt.array(W) / 0.0)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_normal_draws(dtype):
    draw = gt.random.normal(gt.random.key(3), (20000,), dtype)
    host = draw.numpy()
    assert draw.dtype == dtype and abs(host.mean()) < 0.03
    np.testing.assert_allclose([host.real.var(), host.imag.var()], [0.5, 0.5], atol=0.02)
    assert abs((host.real * host.imag).mean()) < 0.02
    a, b = (k for k in gt.random.split(gt.random.key(3)))
    real = (
        gt.random.normal(a, (3,), dtype.torch.to_real()) / 2**0.5,
        gt.random.normal(b, (3,), dtype.torch.to_real()) / 2**0.5,
    )
    close(gt.random.normal(gt.random.key(3), (3,), dtype), gt.complex(*real), 1e-6)
