"""What Inductor compiles gives torch's numbers, also where its own lowerings do not: public reports name each kind.

All cases are one program: compiling takes seconds.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gtrace as gt

CASES = {}
"""By name: a function of tensors, its operands, how many units in the last place it may be off, and the same function
of Arrays."""

generator = torch.Generator().manual_seed(0)


def case(name, function, *operands, units=0, ours=None):
    CASES[name] = function, operands, units, ours or gt.lift(function)


def randn(*shape):
    return torch.randn(shape, generator=generator)


def gradient_case(name, function, x, units):
    """The gradient of the sum of a function of one tensor, weighted."""

    def theirs(x):
        t = x.clone().requires_grad_()
        y = function(t)
        return torch.autograd.grad((y * weights(y.shape)).sum(), t)[0]

    def loss(x):
        y = gt.lift(function)(x)
        return (y * gt.array(weights(y.shape))).sum()

    case(name, theirs, x, units=units, ours=gt.grad(loss))


def weights(shape):
    return torch.arange(np.prod(shape), dtype=torch.float32).reshape(tuple(shape)) % 5 + 1


# integers that C++ promotes: each result is made wider, so that one that did not wrap is seen
for dtype in (torch.int8, torch.uint8, torch.int16):
    kind = str(dtype)[6:]
    x = torch.arange(-40000, 40000, 97).to(dtype) if dtype is torch.int16 else torch.arange(256).to(dtype)
    y = x.roll(7)
    shifts, divisors, small = (x & 7), torch.where(y == 0, 3, y).to(dtype), (x & 3)
    for name, function, other in [
        ("abs", lambda x, y: x.abs(), y), ("neg", lambda x, y: -x, y), ("sign", lambda x, y: x.sign(), y),
        ("add", lambda x, y: x + y, y), ("sub", lambda x, y: x - y, y), ("mul", lambda x, y: x * y, y),
        ("invert", lambda x, y: ~x, y), ("left", lambda x, y: x << y, shifts), ("right", lambda x, y: x >> y, shifts),
        ("floor_divide", lambda x, y: torch.floor_divide(x, y), divisors), ("remainder", lambda x, y: x % y, divisors),
        ("power", lambda x, y: x**y, small), ("number power", lambda x, y: 3**y + x, small),
        ("clip", lambda x, y: x.clamp(3, 100) + y, y), ("minimum", lambda x, y: torch.minimum(x, y) + y, y),
        ("square", lambda x, y: x.square(), y), ("narrowed", lambda x, y: (x.to(torch.int32) * 7).to(x.dtype), y),
    ]:  # fmt: skip
        if dtype is torch.int8 or name in ("neg", "mul", "left", "floor_divide"):
            case(f"{kind} {name}", lambda x, y, f=function: f(x, y).to(torch.int32), x, other)
    box = (torch.arange(9 * 20 * 40) * 37 % 121 + 3).reshape(9, 20, 40).to(dtype)
    for name, function in {
        "argmin": lambda x: (x + x).argmin(2), "argmax": lambda x: (x + x).argmax(2), "amin": lambda x: (x + x).amin(2),
        "amax": lambda x: (x + x).amax(0), "min": lambda x: (x + x).min(2).values,
        "max": lambda x: (x + x).max(1).indices, "all of all": lambda x: (x - 3).amin(),
        "sum": lambda x: (x + x).sum(2), "prod": lambda x: (x % 3 + 1).prod(2), "cumsum": lambda x: (x + x).cumsum(1),
        "any": lambda x: (x + x > 100).any(2), "all": lambda x: (x + x > 3).all(1),
    }.items():  # fmt: skip
        if dtype is torch.int8 or name in ("argmin", "amin"):
            case(f"{kind} {name}", function, box)
flags = torch.arange(9 * 20 * 40).reshape(9, 20, 40) % 7 == 0
for name in ("any", "all", "sum", "amin", "amax", "cumsum"):
    case(f"bool {name}", lambda x, name=name: getattr(~x, name)(2), flags)
for axis in (0, 2):
    case(f"bool place of a minimum {axis}", lambda x, axis=axis: (~x).min(axis).indices, flags)
    case(f"bool minimum {axis}", lambda x, axis=axis: (~x).min(axis).values.int(), flags)
case("number to integers", lambda i: (3**i) % 7, torch.tensor([1, 5, 30]))

# numbers beside 16-bit floats, and roundings to 16 bits
for dtype in (torch.bfloat16, torch.float16):
    kind = str(dtype)[6:]
    x = torch.cat([randn(500) * 3, torch.tensor([1.7, -1.7, 0.1, 3.4])]).to(dtype)
    for name, function in {
        "fmod": lambda x: torch.fmod(x, 1.7), "remainder": lambda x: x % 1.7, "floor_divide": lambda x: x // 1.7,
        "add": lambda x: x + 1.7, "sub": lambda x: x - 1.7, "rsub": lambda x: 1.7 - x, "mul": lambda x: x * 1.7,
        "div": lambda x: x / 1.7, "lt": lambda x: x < 1.7, "eq": lambda x: x == 1.7, "ge": lambda x: x >= 0.1,
        "clamp": lambda x: x.clamp(0.1, 1.7),
        "where": lambda x: torch.where(x > 0, x, 1.7) - x, "maximum": lambda x: torch.clamp_min(x, 1.7) * x,
        "floor of a product": lambda x: torch.floor(x * x * 8), "sum of products": lambda x: x * x + x - x * x,
        "minima": lambda x: x[:500].reshape(20, 25) * 1.25 == (x[:500].reshape(20, 25) * 1.25).amin(1, keepdim=True),
    }.items():  # fmt: skip
        if dtype is torch.bfloat16 or name in ("fmod", "floor of a product"):
            case(f"{kind} {name}", lambda x, f=function: f(x).to(torch.float32), x)
    wide = randn(40, 24)
    case(f"{kind} split", lambda x, d=dtype: (x * 0.3).to(d).float(), wide)
    case(f"{kind} rest", lambda x, d=dtype: x * 0.3 - (x * 0.3).to(d).float(), wide)
    case(f"{kind} twice", lambda x, d=dtype: ((x * 0.3).to(d) + (x * 0.7).to(d)).float(), wide)
    case(f"{kind} sorted", lambda x, d=dtype: torch.sort(x * 0.3, 0).values.to(d).float().sum(1), wide, units=16)

# values that are computed twice and compared
x = randn(37)
gradient_case("amin", lambda x: torch.amin(torch.atan2(x, x.flip(0)), -1), randn(5, 19), 64)
gradient_case("amax", lambda x: torch.amax(torch.exp(torch.sin(x)), 0), randn(21, 18), 64)
case("equal copies", lambda x: torch.sin(x) == torch.sin(x).flip(0), torch.cat([x, x.flip(0)]))
case("largest", lambda x: (torch.sin(x) >= torch.sin(x).amax(1, keepdim=True)).sum(1), randn(9, 21))

# functions that overflow before their value does
for dtype, top in ((torch.float32, 89.3), (torch.float64, 710.3)):
    x = torch.linspace(-top, top, 101, dtype=dtype)
    # torch's code for one number does not overflow
    case(f"sinh {dtype}", lambda x: torch.stack([v.sinh() for v in x]), x, units=4, ours=lambda x: gt.sinh(x) + 0)
    case(f"cosh {dtype}", lambda x: torch.stack([v.cosh() for v in x]), x, units=4, ours=lambda x: gt.cosh(x) + 0)

case("floor_divide", lambda x: torch.floor_divide(torch.sort(torch.sin(x)).values, 0.1), torch.linspace(0.05, 1.5, 30))
case("div floor", lambda x: torch.div(x, 0.1, rounding_mode="floor"), torch.linspace(-1.5, 1.5, 301))
case("remainder", lambda x: torch.remainder(x, 0.1), torch.linspace(-1.5, 1.5, 301))

# average pooling whose windows overhang
for rank, pool in enumerate((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), 1):
    for count in (True, False)[rank > 1 :]:
        pooled = lambda x, f=pool, c=count: f(x, 3, 2, padding=1, ceil_mode=True, count_include_pad=c)  # noqa: E731
        case(f"pool {rank} {count}", pooled, randn(1, 2, *[6] * rank), units=16)
        gradient_case(f"gradient of pool {rank} {count}", pooled, randn(1, 2, *[6] * rank), 16)


# places of extremes, which loops over transposed memory meet in another order
# products that torch rounds one by one, and numbers beside bytes
for dtype in (torch.bfloat16, torch.float32):
    u, v = randn(40, 3).to(dtype), randn(40, 3).to(dtype)
    case(f"cross {dtype}", lambda u, v: torch.linalg.cross(u, v).float(), u, v, units=dtype is torch.float32 and 8)
    outer = lambda x, u, v: torch.addr(x, u[:, 0], v[0], beta=0.6, alpha=0.2).float()  # noqa: E731
    case(f"outer product {dtype}", outer, randn(40, 3).to(dtype), u, v, units=dtype is torch.float32 and 8)
octets = torch.arange(256).to(torch.uint8)
for name, function in {
    "eq": lambda x: x == -1, "lt": lambda x: x < 300, "remainder": lambda x: x % 300,
    "fmod": lambda x: torch.fmod(x, 300), "divided": lambda x: torch.div(x, 300, rounding_mode="trunc"),
}.items():  # fmt: skip
    case(f"number beside bytes {name}", lambda x, f=function: f(x).int(), octets)

box = randn(2, 3, 6, 8, 10).round(decimals=1).permute(0, 1, 4, 3, 2)
for name, function in {
    "argmin": lambda x: (torch.sin(x) + x).argmin(), "argmax": lambda x: (x > 1).int().argmax(),
    "flipped": lambda x: x[0].flip(1).argmax(), "rows": lambda x: (x * 2).flatten(2).argmax(2),
    "pool": lambda x: F.max_pool3d(x, 3, 1, 1, return_indices=True)[1],
    "pool 2": lambda x: F.max_pool2d(x[0] * 2, (3, 4), 2, 1, return_indices=True)[1],
    "dilated": lambda x: F.max_pool2d(x[0], (5, 2), 1, 0, (1, 3), return_indices=True)[1],
}.items():  # fmt: skip
    case(f"places {name}", function, box)
gradient_case("gradient of max_pool3d", lambda x: F.max_pool3d(x, 3, 1, 1), box[:1], 64)

# variances that float32 cannot hold, or of which it keeps few digits; a mean of nothing
for dtype in (torch.float32, torch.bfloat16):
    for scale in (1e30, 1e-30):
        x = (randn(7, 33) * scale).to(dtype)
        case(f"std {dtype} {scale}", lambda x: torch.std(x, 1), x, units=2)
        case(f"std_mean {dtype} {scale}", lambda x: torch.std_mean(x, 0)[0], x, units=2)
# torch's mean of a whole array is rounded before it is subtracted
case("var", lambda x: torch.var(x.double()).float(), randn(20, 50) + 1e5, units=2, ours=gt.lift(torch.var))
case("var_mean", lambda x: torch.var_mean(x, 1)[0], randn(20, 50) + 1e5, units=2)
case("mean of nothing", lambda x: torch.var_mean(x, 0, correction=-1)[1], torch.zeros(0))

# limits of a dtype
limits = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.5])
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    case(f"nan_to_num {dtype}", lambda x: torch.nan_to_num(x).float(), limits.to(dtype))
    for small in (torch.int8, torch.uint8, torch.int16):
        numbers = torch.tensor([300.0, -300.0, 1e4, -1.5, 127.9] * 9).to(dtype)
        case(f"{dtype} to {small}", lambda x, d=small: x.to(d).to(torch.int32), numbers)


def tiled(x):
    """A reduction that Inductor tiles along two axes, with a tail in both."""
    v = (x * 0.5) * (torch.erf(x * 0.70710678) + 1)
    p = F.pad(v.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
    return torch.matmul(F.pad(v, (0, 0, 0, 0, 0, 58), value=0.5), p).sum()


LAST = randn(1, 8, 66, 66).contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def compiled():
    """The results of all cases in one program of Inductor's, and its gradient of `tiled`."""
    operands = [x for _, own, *_ in CASES.values() for x in own]

    def whole(last, *xs):
        rest = iter(xs)
        found = {name: ours(*[next(rest) for _ in own]) for name, (_, own, _, ours) in CASES.items()}
        return found, gt.grad(gt.lift(tiled))(last)

    jitted = gt.jit(whole)
    with gt.config(native=False, compile=True):
        results = gt.eval(jitted(gt.from_torch(LAST), *map(gt.array, operands)))
    assert all(program.tier == "compiled" and not program.native for program in jitted.programs())
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_values(compiled, name):
    function, operands, units, _ = CASES[name]
    want = function(*operands)
    got = compiled[0][name].to_torch()
    assert got.dtype is want.dtype
    if not units:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:
        eps = torch.finfo(want.dtype).eps
        torch.testing.assert_close(
            got, want, rtol=units * eps, atol=units * eps * float(want[want.isfinite()].abs().min())
        )


@pytest.mark.slow
def test_reduction_tiled_along_two_axes(compiled):
    t = LAST.clone().requires_grad_()
    (want,) = torch.autograd.grad(tiled(t), t)
    torch.testing.assert_close(compiled[1].to_torch(), want, rtol=0, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize("scales", [(1.3, 1.5), (2.0, 2.0), (1.0, 1.9), (0.7, 3.0)])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_neighbours_by_scales(mode, scales):
    """Neighbours by scales that are no integers are torch's, which depend on the strides."""
    x = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    fractional = any(scale % 1 for scale in scales)
    jitted = gt.jit(lambda x: gt.lift(F.interpolate)(x, scale_factor=scales, mode=mode))
    if fractional:  # others are compiled
        with gt.config(compile=True):
            got = jitted(gt.from_torch(x))
        assert torch.equal(got.to_torch(), F.interpolate(x, scale_factor=scales, mode=mode))
        (program,) = jitted.programs()
        assert "neighbours" in program.forms.reason
    else:
        assert not gt.core.backends.inductor.refused.uncompilable(gt.make_graph(jitted)(gt.from_torch(x)))


INTERPRETED = {
    "bytes, bilinear": (
        lambda x: F.interpolate(x, (5, 7), mode="bilinear"),
        (torch.arange(96).reshape(1, 2, 6, 8) * 37 % 256).to(torch.uint8),
    ),
    "bytes, bicubic": (
        lambda x: F.interpolate(x, scale_factor=(1.5, 2.0), mode="bicubic"),
        (torch.arange(96).reshape(1, 2, 6, 8) * 37 % 256).to(torch.uint8),
    ),
    "next bfloat16": (lambda x: torch.nextafter(x, x + 1), torch.tensor([1.0, -2.0, 0.0]).bfloat16()),
    "next float16": (lambda x: torch.nextafter(x, x + 1), torch.tensor([1.0, -2.0, 0.0]).half()),
    "laguerre": (lambda x: torch.special.laguerre_polynomial_l(x, 40), torch.linspace(0, 90, 50)),
    "grid": (
        lambda x: F.grid_sample(x[:1], x[1:, :1, :, :2], align_corners=False),
        torch.linspace(-1, 1, 50).reshape(2, 1, 5, 5).bfloat16(),
    ),
}


@pytest.mark.parametrize("name", INTERPRETED)
def test_what_inductor_cannot_round_as_torch_is_interpreted(name):
    function, x = INTERPRETED[name]
    jitted = gt.jit(gt.lift(function))
    assert "Inductor" in gt.core.backends.inductor.refused.uncompilable(gt.make_graph(jitted)(gt.from_torch(x)))
    with gt.config(native=False, compile=True):
        assert torch.equal(jitted(gt.from_torch(x)).to_torch(), function(x))


def test_operators_without_an_interface_are_no_failure():
    """A program of singular values has nothing to compile, and nobody is told that it failed."""
    matrix = np.random.default_rng(0).normal(size=(4, 3))
    with warnings.catch_warnings(), gt.config(compile=True):
        warnings.simplefilter("error")
        values = gt.jit(lambda a: gt.linalg.svd(a)[1] + 1.0)(gt.array(matrix))
    np.testing.assert_allclose(values, np.linalg.svd(matrix)[1] + 1.0, rtol=1e-6)
