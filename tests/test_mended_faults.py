"""Plain torch still shows each fault that gtrace mends. What torch itself has mended is to be removed.

Compiling takes seconds, so most programs are compiled as one.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from gtrace.core.backends.inductor import accuracy
from gtrace.core.base.mechanisms import MECHANISMS

ROOT = Path(__file__).parent.parent
MENDED = {name: one for name, one in MECHANISMS.items() if one.group == "Mended faults"}
RELEASE = ".".join(torch.__version__.split(".")[:2])

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # Inductor imports it

# tried with both
vectors = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="these programs show faults of code for AVX2 and AVX512",
)


@attrs.frozen(eq=False)
class Fault:
    """A fault.

    Attributes:
        mechanism: what mends it.
        place: the module under gtrace/core/backends and the function that do.
        function: torch's functions that show it, of tensors; None where a test of its own shows it.
        operands: its operands.
        wide: whether the right result is that of float64, because torch without a compiler has the fault, too.
    """

    mechanism: str
    place: str
    function: object = None
    operands: tuple[torch.Tensor, ...] = ()
    wide: bool = False


def gradient(function):
    return torch.func.grad(lambda x: function(x).sum())


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def often(*numbers):
    return torch.tensor(numbers).repeat(32)


def rest(x):
    return x - x.bfloat16().float()


def accurate(function, *shown, wide=False):
    """Return a fault of a function that `accuracy` has another formula for; its name begins with an underscore."""
    return Fault("accurate_functions", f"inductor.accuracy:{function}", *shown[:1], shown[1:], wide)


STEPS, TENTHS, INFINITE = torch.linspace(-1.5, 1.5, 301), torch.full((301,), 0.1), often(float("inf"), float("inf"))
FAR, HUGE, SHORT = randn(20, 50) + 1e5, randn(7, 33) * 1e30, randn(40, 3).bfloat16()
BYTES, FLAGS = (torch.arange(7200) * 37 % 121 + 3).reshape(9, 20, 40), torch.arange(7200).reshape(9, 20, 40) % 7 == 0
MANY, COUNTS = torch.full((1 << 18, 4), 0.1), torch.arange(-128, 128)
TURNED = randn(2, 3, 6, 8, 10).round(decimals=1).permute(0, 1, 4, 3, 2)

FAULTS = {
    "expm1": accurate("_expm1", torch.expm1, often(1e-6, -1e-6)),
    "atanh": accurate("_atanh", torch.atanh, often(1e-9, -1e-9)),
    "acosh": accurate("_acosh", torch.acosh, often(1e30, 2.0)),
    "sinh": accurate("_sinh", torch.sinh, often(89.2, -89.2), wide=True),
    "cosh": accurate("_cosh", torch.cosh, often(89.2, -89.2), wide=True),
    "erf": accurate("_erf", torch.erf, often(1e-6, -1e-6)),
    "remainder": accurate("_remainder", torch.remainder, often(1.0, -1.0), INFINITE),
    "floor_divide": accurate("_floor_divide", torch.floor_divide, often(1.0, -1.0), INFINITE),
    "div": accurate("_with_mode", lambda x, y: torch.div(x, y, rounding_mode="floor"), STEPS, TENTHS),
    "power of a number": accurate("_power_of_number"),
    "outer product": accurate(
        "_outer_product", lambda x, u, v: torch.addr(x, u, v, beta=0.6, alpha=0.2),
        randn(40, 40).bfloat16(), SHORT[:, 0].contiguous(), SHORT[:, 1].contiguous(),
    ),
    "cross": accurate("_cross", torch.linalg.cross, SHORT, SHORT.flip(0)),
    "scatter_add": accurate(
        "_added_in_single_precision", lambda x, i: torch.zeros_like(x).scatter_add(0, i, x),
        torch.full((4000,), 0.1).bfloat16(), torch.zeros(4000, dtype=torch.int64),
    ),
    "var": accurate("_in_double_precision", lambda x: torch.var(x, 1), FAR),
    "std": accurate("_in_double_precision", lambda x: torch.std(x, 1), HUGE),
    "var_mean": accurate("_in_double_precision", lambda x: torch.var_mean(x, 1)[0], FAR),
    "std_mean": accurate("_in_double_precision", lambda x: torch.std_mean(x, 1)[0], HUGE),
    "mean of nothing": accurate(
        "_in_double_precision", lambda x: torch.var_mean(x, 0, correction=-1)[1], torch.zeros(0)
    ),
    "long sums": Fault("long_sums", "interpreter.matmul:matmul_in_blocks"),
    "sum": Fault("double_sums", "inductor.exactness:sum_in_double_precision", lambda x: (x * 1).sum(0), (MANY,)),
    "mean": Fault("double_sums", "inductor.exactness:sum_in_double_precision", lambda x: (x + 1).mean(), (MANY,)),
    "abs of int8": Fault(
        "small_integers", "inductor.exactness:_widen", lambda x: x[::3].abs().int(), (COUNTS.to(torch.int8).flip(0),)
    ),
    "argmin of uint8": Fault(
        "small_integers", "inductor.exactness:_widen", lambda x: (x + x).argmin(2), (BYTES.to(torch.uint8),)
    ),
    "amin of uint8": Fault(
        "small_integers", "inductor.exactness:_widen", lambda x: (x + x).amin(2), (BYTES.to(torch.uint8),)
    ),
    "minima of booleans": Fault("small_integers", "inductor.exactness:_widen", lambda x: (~x).min(2).indices, (FLAGS,)),
    "float to int8": Fault(
        "small_integers", "inductor.exactness:_convert_by_words", lambda x: x.to(torch.int8).int(),
        (often(300.0, -300.0, 1e4),),
    ),
    "number beside bfloat16": Fault(
        "short_floats", "inductor.exactness:_round", lambda x: torch.fmod(x, 1.7),
        (often(1.703125, -1.703125).bfloat16(),),
    ),
    "rounding to bfloat16": Fault(
        "short_floats", "inductor.exactness:_round", lambda x: rest(x * 0.3), (randn(40, 24),)
    ),
    "rounding of what is stored": Fault(
        "short_floats", "inductor.mended:_nothing", lambda x: torch.sort(x * 0.3, 0).values.bfloat16().float(),
        (randn(40, 24),),
    ),
    "gradient of a minimum": Fault(
        "held_values", "inductor.exactness:_hold", gradient(lambda x: torch.atan2(x, x.flip(0)).amin(-1)),
        (randn(2, 2, 3),),
    ),
    "pooling": Fault(
        "ceil_mode_pooling", "inductor.mended:_pooling", gradient(lambda x: F.avg_pool2d(x, 3, 3, ceil_mode=True)),
        (torch.ones(1, 1, 8, 8),),
    ),
    "pooling of boxes": Fault(
        "ceil_mode_pooling", "inductor.mended:_pooling", gradient(lambda x: F.avg_pool3d(x, 2, 2, ceil_mode=True)),
        (torch.ones(1, 1, 7, 7, 7),),
    ),
    "tiled reduction": Fault("reduction_tiling", "inductor.mended:_along_one_axis"),
    "argmax": Fault("extreme_places", "inductor.mended:_with_places", lambda x: (x > 1).int().argmax(), (TURNED,)),
    "max pooling": Fault(
        "extreme_places", "inductor.mended:_with_places",
        lambda x: F.max_pool3d(x, 3, 1, 1, return_indices=True)[1], (TURNED,),
    ),
    "nearest": Fault(
        "nearest_by_scales", "inductor.refused:_is_nearest_by_scales",
        lambda x: F.interpolate(x, scale_factor=(1.3, 1.5)) + 1, (randn(1, 2, 3, 4),),
    ),
}  # fmt: skip
COMPILED = {name: fault for name, fault in FAULTS.items() if fault.function}


def agree(got, want):
    exact = 0 if not want.is_floating_point() else 1e-5
    return torch.allclose(got.double(), want.double(), rtol=exact, atol=0, equal_nan=True)


def check(name, right):
    fault = FAULTS[name]
    module, _, function = fault.place.partition(":")
    file = f"gtrace/core/backends/{module.replace('.', '/')}.py"
    seen = MENDED[fault.mechanism].seen
    newer = [int(x) for x in RELEASE.split(".")] > [int(x) for x in seen.split(".")]
    if right and not newer:
        pytest.skip(f"torch {seen} shows {name!r} on another processor")
    assert not right, (
        f"torch {RELEASE} has mended {name!r}: once pyproject.toml asks for this torch, remove {function} from {file}, "
        f"its case here and, if no case is left, the mechanism {fault.mechanism}"
    )
    assert not newer, f"torch {RELEASE} has {name!r}, too: write that in place of {seen} for {fault.mechanism}"


@pytest.fixture(scope="module")
def compiled():
    """The results of all programs, compiled as one."""

    functions = [fault.function for fault in COMPILED.values()]

    def whole(*operands):
        return [function(*xs) for function, xs in zip(functions, operands, strict=True)]

    results = torch.compile(whole, fullgraph=True)(*[fault.operands for fault in COMPILED.values()])
    return dict(zip(COMPILED, results, strict=True))


@vectors
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_inductor_has_the_fault(compiled, name):
    fault = COMPILED[name]
    operands = [x.double() for x in fault.operands] if fault.wide else fault.operands
    check(name, agree(compiled[name], fault.function(*operands)))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this is a fault of MKL")
@pytest.mark.slow
def test_products_with_long_sums_lose_digits():
    x = torch.full((1 << 20, 2), 0.1)
    check("long sums", torch.allclose(x.T @ x, (x.double().T @ x.double()).float(), rtol=1e-3))


@pytest.mark.slow
def test_cpp_takes_numbers_to_powers_as_floats():
    power = torch.compile(lambda i: 3**i, fullgraph=True, options={"cpp_wrapper": True})
    exponents = torch.tensor([1, 5, 30, 39])
    try:
        right = torch.equal(power(exponents), 3**exponents)
    except RuntimeError as error:
        assert "aoti_torch_cpu_pow_Scalar" in str(error)
        right = False
    check("power of a number", right)


TILED = """
import torch
import torch.nn.functional as F

def tiled(x):
    v = (x * 0.5) * (torch.erf(x * 0.70710678) + 1)
    p = F.pad(v.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
    return torch.matmul(F.pad(v, (0, 0, 0, 0, 0, 58), value=0.5), p)

x = torch.rand(1, 8, 66, 66).contiguous(memory_format=torch.channels_last)
torch.testing.assert_close(torch.compile(tiled, fullgraph=True)(x), tiled(x))
"""


@vectors
@pytest.mark.slow
def test_a_reduction_writes_beyond_its_memory():
    """The process ends, or its result is wrong."""
    done = subprocess.run([sys.executable, "-c", TILED], capture_output=True, text=True)
    assert not done.returncode or done.returncode < 0 or "not close" in done.stderr, done.stderr
    check("tiled reduction", not done.returncode)


def test_every_mending_has_a_program_that_shows_its_fault():
    assert {fault.mechanism for fault in FAULTS.values()} == set(MENDED)
    places = {fault.place for fault in FAULTS.values()}
    for module, function in (place.split(":") for place in places):
        assert hasattr(importlib.import_module(f"gtrace.core.backends.{module}"), function)
    # ours is faster; torch's is right
    named = {function.__name__ for function in accuracy._ACCURATE.values()} - {"_tanh"}
    assert named <= {place.split(":")[1] for place in places}


def test_only_mended_faults_say_where_they_were_seen():
    assert {name for name, one in MECHANISMS.items() if one.seen} == set(MENDED)
    assert all(one.seen for one in MECHANISMS.values() if one.issues)


def test_the_page_has_the_table():
    text = (ROOT / "docs" / "bisect.md").read_text(encoding="utf-8")
    table = ["| name | seen in torch | issues of pytorch |", "|---|---|---|"]
    for one in MENDED.values():
        links = ", ".join(f"[{n}](https://github.com/pytorch/pytorch/issues/{n})" for n in one.issues)
        table.append(f"| `{one.name}` | {one.seen} | {links} |")
    expected = "\n".join(table)
    held = text.partition("<!-- mended faults -->\n")[2].partition("\n<!-- end of mended faults -->")[0]
    assert held == expected, f"write this into docs/bisect.md:\n{expected}"
