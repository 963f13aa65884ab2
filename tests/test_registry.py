"""The registry walk: what every operation gets for being declared. `gtrace.testing` has the checks, for one operation.

Parity with an independent reference (NumPy, SciPy or the definition) and with torch over dtypes and shapes, gradients
to second order against finite differences, forward mode, batching, interpreted against compiled, and error inputs. The
declarations bring the samples and the references.
"""

from __future__ import annotations

import contextlib
import doctest
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.numpy
from gtrace import testing
from gtrace.core.ir.op import REGISTRY, Op, define

OPS = [op for op in REGISTRY.values() if op.cases.elsewhere is None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def each(ops, core=1):
    """Run a test for each operation; the core of the tests has each first of so many."""
    marked = [pytest.param(op, marks=[pytest.mark.slow] * (k % core > 0)) for k, op in enumerate(ops)]
    return pytest.mark.parametrize("op", marked, ids=lambda op: op.name)


def check_samples(op, check, *others):
    """Run a check for each sample of an operation; an error says which sample it was."""
    for k, sample in enumerate(op.cases.samples()):
        try:
            check(op, sample, *others)
        except Exception as error:
            error.add_note(f"{op.name}, sample {k} {others or ''}: {sample}")
            raise


def has_floats(sample):
    return any(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in gt.tree.leaves(list(sample.args)))


# compiled in one program; those made of hundreds of torch calls take minutes, and shifts beyond the width of the type
# have no meaning: they are compared in their own tests
SERIES = {"erfcx", "sine_integral", "cosine_integral", "fresnel_s", "fresnel_c", "owens_t"}
"""A compiler takes longer for these, sums of many terms, than for all others together: --large compiles them."""

COMPILED_TOGETHER = [
    op for op in OPS
    if op.elementwise and not op.params and op.arity in (1, 2) and not op.complex
    and not op.name.startswith(("bessel", "exp1", "expi", "gammainc")) and "shift" not in op.name
]  # fmt: skip

DIFFERENTIABLE = [op for op in OPS if op.rules.nondiff is None and any(map(has_floats, op.cases.samples()))]


@each(OPS)
def test_every_operation_brings_samples_and_a_rule_or_a_reason(op: Op):
    testing.check_declaration(op)


def test_an_operation_without_a_rule_cannot_be_declared():
    with pytest.raises(ValueError, match="exactly one"):
        define("test_without_rule", torch.neg)
    with pytest.raises(ValueError, match="already"):
        define("add", torch.add, nondiff="a name that is taken")
    assert "test_without_rule" not in REGISTRY


@pytest.mark.parametrize("op", [op for op in REGISTRY.values() if op.cases.elsewhere is not None], ids=repr)
def test_an_operation_without_samples_says_where_it_is_tested(op: Op):
    module, _, against = op.cases.elsewhere.partition(": ")
    assert Path(__file__).with_name(f"{module}.py").exists() and len(against) > 10
    assert op.cases.samples is None and op.rules.result is not None, "an operation on arrays has samples"


@each(OPS)
def test_parity_with_the_reference(op: Op):
    check_samples(op, testing.check_reference)


ORDINARY = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 20.0, -20.0, 1e-6, 700.0]
EXTREME = [np.nan, np.inf, -np.inf, 1e-300, -1e30, 1e30, 1e300]
# where SciPy and gtrace mean different things, or neither has digits
ORDINARY_ONLY = {
    "gammaln": "at -inf SciPy returns -inf, C and torch inf",
    "polygamma": "that of -inf is a series without a sum",
    "gammainc": "the result is tiny, or both are huge", "gammaincc": "the result is tiny, or both are huge",
    "einsum": "sums of infinities depend on the order", "gelu_grad": "the reference is a complex step, NaN at infinity",
    **dict.fromkeys(["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"], "at inf SciPy returns NaN, not the limit 0"),
    "remainder": "its quotient overflows", "fmod": "its quotient overflows",
    "zeta": "torch returns NaN where both are huge",
}  # fmt: skip
UNUSUAL = {
    **dict.fromkeys(["gamma_moment", "beta_moment", "deviance"], "for positive numbers"),
    "searchsorted": "for sorted numbers",
}  # fmt: skip


@each(op for op in OPS if op.name not in UNUSUAL)
def test_parity_with_the_reference_at_special_values(op: Op):
    values = ORDINARY if op.name in ORDINARY_ONLY else ORDINARY + EXTREME
    check_samples(op, testing.check_special_values, np.array(values))


@each(op for op in OPS if not op.params and op.arity in (1, 2, 3))
def test_parity_with_the_reference_in_float64(op: Op):
    for dtype in DTYPES:
        check_samples(op, testing.check_precision, dtype)


@each(OPS)
def test_stated_shapes_dtypes_and_direct_calls_are_those_of_the_implementation(op: Op):
    for dtype in DTYPES:
        check_samples(op, testing.check_inference, dtype)


@each(DIFFERENTIABLE, core=5)
def test_derivatives_to_second_order_in_both_modes(op: Op):
    check_samples(op, testing.check_gradients)


def test_derivatives_for_complex_operands():
    """Every operation that takes them, against torch's gradient, and the modes against one another."""
    ops = [op for op in OPS if op.rules.nondiff is None]
    taken = {op.name for op in ops for sample in op.cases.samples() if testing.check_complex(op, sample)}
    assert len(taken) >= 60, sorted({op.name for op in ops} - taken)


@each((op for op in OPS if op.arity != 0), core=4)
def test_vmap_equals_the_stacked_loop(op: Op):
    """Every operation with each choice of batched operands, the batch on different axes; and doubly batched."""
    check_samples(op, testing.check_batching)


@each(op for op in OPS if op.elementwise and not op.params)
def test_empty_and_0d_operands(op: Op):
    testing.check_empty_and_0d(op)


@pytest.mark.slow
@each(OPS)
def test_a_dtype_is_refused_while_recording_or_it_runs(op: Op):
    testing.check_dtypes(op)


@each(DIFFERENTIABLE)
def test_gradients_have_the_dtype_and_shape_of_the_operand(op: Op):
    for dtype in DTYPES:
        check_samples(op, testing.check_gradient_types, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(4))
def test_interpreted_equals_compiled(group: int, large: bool):
    """One program a group: the first sample of operations in float32 (--large: two of all, with gradients).

    Without --large, not of those that the next test compiles.
    """
    ops = OPS if large else [op for op in OPS if op not in COMPILED_TOGETHER and op.name not in SERIES]
    assert testing.check_compiled(ops[group::4], samples=2 if large else 1, gradients=large) > 15


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("samples", None, "square has no samples"),
        ("nondiff", "a reason beside a rule", "square needs exactly one"),
        ("partials", (lambda x, out: x * 2.0,) * 2, "square needs one partial an operand"),
        ("partials", (lambda x, out: x,), "expected the derivative fwd"),
        ("reference", None, "square has no reference"),
        ("reference", np.abs, "square"),
        ("impl", torch.abs, "square"),
        ("shape", lambda avals: (1, *avals[0].shape), "square: f64"),
    ],
    ids=["samples", "rules", "partials", "wrong partial", "no reference", "reference", "implementation", "shape"],
)
def test_check_op_finds_a_wrong_declaration(change_op, field, value, match):
    op = REGISTRY["square"]
    testing.check_op(op, compiled=False)
    change_op(op, field, value)
    with pytest.raises(AssertionError, match=match):
        testing.check_op("square", compiled=False)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-6, 1e30, 3.0]
SPECIAL += [
    1e-45,
    1e-40,
    -1e-40,
    1.2e-38,
    1e-20,
    -1e-3,
    0.9999999,
    1.0000001,
    88.5,
    -1e10,
    1.1e19,
    -1e38,
    3e38,
    -3.4e38,
]
INTEGERS = [-128, -7, -3, -1, 0, 1, 2, 3, 5, 7, 127]


@pytest.mark.slow
def test_special_values_interpreted_and_compiled(large):
    """NaN, infinities, signed zeros, subnormal, huge and the ends of int8, in elementwise operations at once."""
    pairs = {}
    for dtype in (np.float32, np.float64)[: 2 if large else 1]:
        x, y = np.meshgrid(np.array(SPECIAL, dtype), np.array(SPECIAL, dtype))
        pairs[np.dtype(dtype).name] = x.ravel(), y.ravel()
    for dtype in (np.int8, np.int32)[: 2 if large else 1]:
        x, y = np.meshgrid(np.array(INTEGERS, dtype), np.array([v for v in INTEGERS if v], dtype))
        pairs[np.dtype(dtype).name] = x.ravel(), y.ravel()

    def run(operands):
        out = {}
        for name, (x, y) in operands.items():
            for op in COMPILED_TOGETHER:
                if op.name in SERIES and not large:
                    continue
                with contextlib.suppress(gt.DtypeError):  # bits of floats
                    out[f"{op.name} {name}"] = op.cases.user(x) if op.arity == 1 else op.cases.user(x, y)
        return out

    operands = {name: (gt.array(x), gt.array(y)) for name, (x, y) in pairs.items()}
    interpreted = run(operands)
    gt.eval(interpreted)  # before there is a compiled program for it
    compiled = gt.jit(run)(operands)
    for name, array in interpreted.items():
        got, expected = np.asarray(compiled[name]), np.asarray(array)
        rtol, atol = (1e-12, 1e-322) if "float64" in name else (1e-5, 1e-44)
        if name.startswith("remainder float"):
            # where the quotient overflows, torch's vector code returns NaN and the code for what is left over does not
            x, y = pairs[name.split()[1]]
            with np.errstate(all="ignore"):
                kept = ~np.isinf(x / y) | (y == 0)
            got, expected = got[kept], expected[kept]
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=name)
        zero = (expected == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]), err_msg=name)


@pytest.mark.parametrize("size", [35, pytest.param(1, marks=pytest.mark.long)])
def test_the_sign_of_zero_of_extremes_depends_on_the_operands_alone(size: int):
    """Wherever an element stands, interpreted and compiled, in every dtype: 0.0 is larger than -0.0."""
    a, b = (np.signbit(np.resize(v, size)) for v in ([0.0, -0.0, -0.0], [-0.0, 0.0]))
    no, yes = np.zeros_like(a), np.ones_like(a)
    dtypes = gt.float16, gt.bfloat16, gt.float32, gt.float64
    pairs = [[gt.array(np.where(v, -0.0, 0.0)).astype(dtype) for v in (a, b)] for dtype in dtypes]

    def extremes(x, y):
        numbers = [f(x, c) for f in (gt.maximum, gt.minimum) for c in (0.0, -0.0, 1.0, -1.0)]
        return [gt.maximum(x, y), gt.minimum(x, y), gt.clip(x, -0.0, 1.0), gt.clip(y, -1.0, 0.0), *numbers]

    def everywhere(pairs):
        return [extremes(x, y) for x, y in pairs]

    interpreted = everywhere(pairs)
    gt.eval(interpreted)
    for found in (*interpreted, *gt.jit(everywhere)(pairs)):
        signs = [np.signbit(v.to_torch().float().numpy()) for v in found]
        for got, expected in zip(signs, [a & b, a | b, a, b, no, a, no, a, a, yes, a, yes], strict=True):
            np.testing.assert_array_equal(got, expected)


@each(op for op in OPS if op.cases.errors is not None)
def test_wrong_inputs_are_refused_at_the_users_line(op: Op):
    for bad in op.cases.errors():
        testing.check_refusal(op, bad)


def public_functions():
    for module in (gt, gt.numpy, gt.special):
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, types.FunctionType):
                if value.__module__.startswith("gtrace."):
                    yield pytest.param(value, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_every_public_function_shows_an_example_that_runs(function):
    names = {**function.__globals__, "gt": gt, "gnp": gt.numpy}
    test = doctest.DocTestParser().get_doctest(function.__doc__ or "", names, function.__name__, None, 0)
    assert test.examples, "no example"
    if function.__globals__ is vars(sys.modules[function.__module__]):
        return  # pytest finds it, and runs its example; it does not find declared operations
    report = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)
