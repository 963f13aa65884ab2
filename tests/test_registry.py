"""The registry walk: what every operation gets for being declared.

Parity with NumPy and with torch over dtypes and shapes, gradients to second order against finite differences,
interpreted against compiled, and error inputs. The declarations in gtrace/ops bring the samples.
"""

from __future__ import annotations

import contextlib
import doctest
import types

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.numpy
from gtrace.ir.op import REGISTRY, Op, Sample, define
from gtrace.runtime.interpret import bound_impl, direct_impl
from gtrace.trace.capture import capture

# operations with sub-graphs, and the one that takes out their results, have tests of their own: test_control.py
OPS = [op for op in REGISTRY.values() if op.result is None]
FLOATING = {np.float64: (1e-10, 1e-12), np.float32: (2e-5, 1e-6)}


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def is_float(value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def cast_floats(value, dtype):
    if isinstance(value, list):
        return [cast_floats(v, dtype) for v in value]
    return value.astype(dtype) if is_float(value) else value


def to_gt(value):
    if isinstance(value, (list, tuple)):
        return type(value)(to_gt(v) for v in value)
    return gt.array(value) if isinstance(value, np.ndarray) else value


def floats_of(value) -> list[np.ndarray]:
    if isinstance(value, list):
        return [x for v in value for x in floats_of(v)]
    return [value] if is_float(value) else []


def with_floats(args, values):
    """Return the arguments as gt values, their floating arrays replaced, in order, by `values`."""
    rest = iter(values)

    def build(value):
        if isinstance(value, list):
            return [build(v) for v in value]
        return next(rest) if is_float(value) else to_gt(value)

    return [build(a) for a in args]


def cases(ops):
    return [pytest.param(op, sample, id=f"{op.name}-{k}") for op in ops for k, sample in enumerate(op.samples())]


def test_every_operation_brings_samples_and_a_rule_or_a_reason():
    for op in OPS:
        assert op.samples is not None and op.samples(), f"{op.name} has no samples"
        assert op.user is not None, f"{op.name} has no user function"
        rules = [rule for rule in (op.partials, op.vjp, op.nondiff) if rule is not None]
        assert len(rules) == 1, f"{op.name} needs exactly one of partials, vjp and a reason for having none"
        assert op.nondiff is None or len(op.nondiff) > 10, f"{op.name} does not say why it has no derivative"
        assert op.arity == 0 or op.elementwise or op.batch is not None, f"{op.name} has no batching rule"
        if op.partials is not None:
            assert len(op.partials) == op.arity, f"{op.name} needs one partial an operand"


def test_an_operation_without_a_rule_cannot_be_declared():
    with pytest.raises(ValueError, match="exactly one"):
        define("test_without_rule", torch.neg)
    with pytest.raises(ValueError, match="already"):
        define("add", torch.add, nondiff="a name that is taken")
    assert "test_without_rule" not in REGISTRY


@pytest.mark.parametrize(("op", "sample"), cases(op for op in OPS if op.reference is not None))
def test_parity_with_numpy(op: Op, sample: Sample):
    for dtype, (rtol, atol) in FLOATING.items():
        args = [cast_floats(a, dtype) for a in sample.args]
        got = np.asarray(op.user(*to_gt(args), **sample.kwargs))
        expected = np.asarray(op.reference(*args, **sample.kwargs))
        assert got.shape == expected.shape
        assert (got.dtype.kind == "f") == (expected.dtype.kind == "f")
        if dtype is np.float32:
            # linspace and arange compute in double in NumPy, reductions in another order
            rtol, atol = 1e-4, 1e-5
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


TORCH = [op for op in OPS if not op.params and op.arity in (1, 2, 3)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "sample"), cases(TORCH))
def test_parity_with_torch(op: Op, sample: Sample, dtype: torch.dtype):
    tensors = []
    for a in sample.args:
        if isinstance(a, np.ndarray):
            t = torch.tensor(a)
            tensors.append(t.to(dtype) if t.is_floating_point() else t)
        else:
            tensors.append(a)
    got = op.user(*[gt.array(t) if isinstance(t, torch.Tensor) else t for t in tensors], **sample.kwargs)
    like = next(t for t in tensors if isinstance(t, torch.Tensor))
    if op.name == "where":
        like = torch.zeros((), dtype=got.dtype)
    plain = [t if isinstance(t, torch.Tensor) else torch.tensor(t, dtype=like.dtype) for t in tensors]
    expected = op.impl(*plain)
    assert got.shape == tuple(expected.shape)
    np.testing.assert_array_equal(got.to_torch().double().numpy(), expected.double().numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("op", "sample"), cases(OPS))
def test_stated_shapes_dtypes_and_direct_calls_are_those_of_the_implementation(op: Op, sample: Sample, dtype):
    inputs = []

    def built(value, make):
        if isinstance(value, list):
            return [built(v, make) for v in value]
        return make(value) if isinstance(value, np.ndarray) else value

    def keep(value):
        t = torch.tensor(value)
        inputs.append(t.to(dtype) if t.is_floating_point() else t)

    built(list(sample.args), keep)

    def call(*given):
        rest = iter(given)
        return gt.tree.leaves(op.user(*built(list(sample.args), lambda _: next(rest)), **sample.kwargs)), None

    captured = capture(lambda given: call(*given), [gt.array(t).aval for t in inputs], op.name)
    graph = captured.graph
    env = dict(zip(graph.inputs, [*inputs, *(x.to_torch() for x in captured.constants)], strict=True))
    for node in graph.nodes:
        operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
        env[node.out] = expected = bound_impl(node)(*operands)
        if isinstance(expected, torch.Tensor):
            assert (tuple(expected.shape), expected.dtype) == (node.instr.aval.shape, node.instr.aval.dtype)
            got = direct_impl(node)(*operands)
            assert got.dtype is expected.dtype
            assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("op", "sample"), [p for p in cases(op for op in OPS if op.nondiff is None) if floats_of(list(p.values[1].args))]
)
def test_gradients_to_second_order(op: Op, sample: Sample):
    floats = [x.astype(np.float64) for x in floats_of(list(sample.args))]
    shape = op.user(*with_floats(sample.args, [gt.array(x) for x in floats]), **sample.kwargs)
    if shape.dtype != torch.float64:
        pytest.skip("the sample is cast to another dtype")
    cotangent = gt.array(np.random.default_rng(3).normal(size=shape.shape))
    directions = [gt.array(np.random.default_rng(5 + k).normal(size=x.shape)) for k, x in enumerate(floats)]

    def first(*values):
        return (op.user(*with_floats(sample.args, values), **sample.kwargs) * cotangent).sum()

    gradient = gt.grad(first, argnums=tuple(range(len(floats))))

    def second(*values):
        return sum(((g * u).sum() for g, u in zip(gradient(*values), directions, strict=True)), start=gt.array(0.0))

    for function, rtol, atol in ((first, 1e-5, 1e-6), (second, 1e-4, 1e-5)):
        got = gt.grad(function, argnums=tuple(range(len(floats))))(*[gt.array(x) for x in floats])
        for g, expected in zip(got, differences(function, floats), strict=True):
            np.testing.assert_allclose(np.asarray(g), expected, rtol=rtol, atol=atol)


def differences(function, arrays, step=1e-6):
    """Central differences of a scalar function by each element of each array."""
    out = []
    for k, x in enumerate(arrays):
        g = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = [y.copy() for y in arrays]
                moved[k][place] += sign * step
                ends.append(float(function(*[gt.array(y) for y in moved])))
            g[place] = (ends[0] - ends[1]) / (2 * step)
        out.append(g)
    return out


@pytest.mark.parametrize(
    ("op", "sample"), [p for p in cases(op for op in OPS if op.nondiff is None) if floats_of(list(p.values[1].args))]
)
def test_forward_mode_to_second_order(op: Op, sample: Sample):
    """jvp against reverse mode: <ct, J t> = <J' ct, t>; and again for the derivative of the jvp."""
    floats = [gt.array(x.astype(np.float64)) for x in floats_of(list(sample.args))]
    tangents = [gt.array(np.random.default_rng(7 + k).normal(size=x.shape)) for k, x in enumerate(floats)]

    def call(*values):
        return op.user(*with_floats(sample.args, values), **sample.kwargs)

    out, t = gt.jvp(call, floats, tangents)
    if out.dtype != torch.float64:
        pytest.skip("the sample is cast to another dtype")
    assert t.aval is out.aval
    ct = gt.array(np.random.default_rng(3).normal(size=out.shape))

    def pairing(*values):
        return (gt.jvp(call, values, tangents)[1] * ct).sum()

    def pulled(*values):
        grads = gt.vjp(call, *values)[1](ct)
        return sum(((g * t).sum() for g, t in zip(grads, tangents, strict=True)), start=gt.array(0.0))

    np.testing.assert_allclose(float(pairing(*floats)), float(pulled(*floats)), rtol=1e-9, atol=1e-11)
    # reverse over forward, forward over reverse, forward over forward
    argnums = tuple(range(len(floats)))
    for a, b in zip(gt.grad(pairing, argnums)(*floats), gt.grad(pulled, argnums)(*floats), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-8, atol=1e-10)
    second = [float(gt.jvp(f, floats, tangents)[1]) for f in (pairing, pulled)]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("op", "sample"), cases(op for op in OPS if op.arity != 0))
def test_vmap_equals_the_stacked_loop(op: Op, sample: Sample):
    """Every operation with each choice of batched operands, the batch on different axes; and doubly batched."""
    arrays = arrays_of(list(sample.args))
    batch = 3
    for chosen in range(1, 2 ** len(arrays)):
        flags = [bool(chosen >> k & 1) for k in range(len(arrays))]
        examples = [batch_of(x, batch, k) if flag else x for k, (x, flag) in enumerate(zip(arrays, flags, strict=True))]

        def call(*values):
            return op.user(*with_arrays(sample.args, values), **sample.kwargs)

        axes = [(k % (x.ndim + 1) if flag else None) for k, (x, flag) in enumerate(zip(arrays, flags, strict=True))]
        moved = [x if a is None else np.moveaxis(x, 0, a) for x, a in zip(examples, axes, strict=True)]
        try:
            got = gt.vmap(call, in_axes=tuple(axes), out_axes=-1)(*map(gt.array, moved))
        except gt.ConcretizationError:
            # a mask is turned into places, whose number depends on its values
            assert op.name in ("index", "index_put")
            continue
        rows = [
            np.asarray(call(*[gt.array(x[i] if flag else x) for x, flag in zip(examples, flags, strict=True)]))
            for i in range(batch)
        ]
        assert got.dtype == torch.tensor(rows[0]).dtype
        np.testing.assert_allclose(np.asarray(got), np.stack(rows, -1), rtol=1e-10, atol=1e-12)
        twice = gt.vmap(gt.vmap(call, in_axes=tuple(axes)), in_axes=tuple(0 if flag else None for flag in flags))
        doubled = [np.stack([x, x]) if flag else x for x, flag in zip(moved, flags, strict=True)]
        np.testing.assert_allclose(
            np.asarray(twice(*map(gt.array, doubled))), np.stack([np.stack(rows)] * 2), rtol=1e-10, atol=1e-12
        )


def arrays_of(value) -> list[np.ndarray]:
    if isinstance(value, list):
        return [x for v in value for x in arrays_of(v)]
    if isinstance(value, tuple):
        return [x for v in value for x in arrays_of(v)] if any(isinstance(v, np.ndarray) for v in value) else []
    return [value] if isinstance(value, np.ndarray) else []


def with_arrays(args, values):
    """Return the arguments with their arrays, in order, replaced by `values`."""
    rest = iter(values)

    def build(value):
        if isinstance(value, (list, tuple)) and arrays_of(value):
            return type(value)(build(v) for v in value)
        return next(rest) if isinstance(value, np.ndarray) else value

    return [build(a) for a in args]


def batch_of(x: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return `size` arrays like `x`: its own elements in other orders, so that indices stay in range."""
    rng = np.random.default_rng(seed)
    return np.stack([x, *(rng.permutation(x.ravel()).reshape(x.shape) for _ in range(size - 1))])


DTYPES = [gt.bool, gt.uint8, gt.int8, gt.int16, gt.int32, gt.int64, gt.float16, gt.bfloat16, gt.float32, gt.float64]


@pytest.mark.parametrize("op", [op for op in OPS if op.elementwise and not op.params], ids=lambda op: op.name)
def test_empty_and_0d_operands(op: Op):
    first = next(a for a in op.samples()[0].args if isinstance(a, np.ndarray))
    dtypes = [torch.tensor(first).dtype] * op.arity
    if op.name == "where":
        dtypes = [torch.bool, torch.float64, torch.float64]
    for shapes in (((),) * 3, ((0, 2),) * 3, ((0, 1), (3,), ()), ((1,), (), (1, 1))):
        tensors = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
        got, expected = op.user(*map(gt.array, tensors)), op.impl(*tensors)
        assert (got.shape, got.dtype) == (tuple(expected.shape), expected.dtype)
        np.testing.assert_array_equal(np.asarray(got), expected.numpy())


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_dtype_is_refused_while_recording_or_it_runs(op: Op):
    taken = 0
    for sample in op.samples():
        for dtype in DTYPES:

            def build(value, dtype=dtype):
                if isinstance(value, list):
                    return [build(v) for v in value]
                if not isinstance(value, np.ndarray):
                    return value
                return gt.array(np.ones_like(value)).astype(dtype) if is_float(value) else gt.array(value)

            try:
                out = op.user(*[build(a) for a in sample.args], **sample.kwargs)
            except gt.DtypeError as error:
                assert "test_registry.py:" in str(error)
                continue
            gt.eval(out)
            taken += 1
    assert taken


@pytest.mark.parametrize("dtype", [gt.bfloat16, gt.float16, gt.float32, gt.float64], ids=str)
@pytest.mark.parametrize(("op", "sample"), cases(op for op in OPS if op.nondiff is None))
def test_gradients_have_the_dtype_and_shape_of_the_operand(op: Op, sample: Sample, dtype: torch.dtype):
    operands = [gt.array(x).astype(dtype) for x in floats_of(list(sample.args))]
    if not operands or not op.user(*with_floats(sample.args, operands), **sample.kwargs).dtype.is_floating_point:
        return
    grads = gt.grad(
        lambda *xs: op.user(*with_floats(sample.args, xs), **sample.kwargs).sum(), argnums=tuple(range(len(operands)))
    )(*operands)
    assert [g.aval for g in grads] == [x.aval for x in operands]


@pytest.mark.parametrize("group", range(4))
def test_interpreted_equals_compiled(group: int):
    """One program a group, with the first samples of a quarter of the registry in float32, and their gradients."""
    chosen = [(op, s) for op in OPS[group::4] for s in op.samples()[:2]]
    arrays = [[cast_floats(a, np.float32) for a in sample.args] for _, sample in chosen]
    flat = [[gt.array(x) for x in floats_of(args)] for args in arrays]

    def run(values):
        out = {}
        for (op, sample), args, xs in zip(chosen, arrays, values, strict=True):

            def call(*ys, op=op, sample=sample, args=args):
                return op.user(*with_floats(args, ys), **sample.kwargs)

            y = call(*xs)
            out[f"{op.name}-{len(out)}"] = y
            if op.nondiff is None and xs and y.dtype == torch.float32:
                grads = gt.grad(lambda *ys, call=call: (call(*ys) * 0.5).sum(), argnums=tuple(range(len(xs))))(*xs)
                out[f"{op.name}-{len(out)}-grad"] = grads
        return out

    interpreted, compiled = run(flat), gt.jit(run)(flat)
    assert any(e.tier == "compiled" and len(e.ops) > 100 for e in gt.stats())
    for name, expected in interpreted.items():
        for a, b in zip(gt.tree.leaves(compiled[name]), gt.tree.leaves(expected), strict=True):
            assert a.aval is b.aval, name
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-6, err_msg=name)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-6, 1e30, 3.0]
INTEGERS = [-128, -7, -3, -1, 0, 1, 2, 3, 5, 7, 127]


def test_special_values_interpreted_and_compiled():
    """NaN, infinities, signed zeros, tiny, huge and the ends of int8, in one program of all elementwise operations."""
    pairs = {}
    for dtype in (np.float32, np.float64):
        x, y = np.meshgrid(np.array(SPECIAL, dtype), np.array(SPECIAL, dtype))
        pairs[np.dtype(dtype).name] = x.ravel(), y.ravel()
    for dtype in (np.int8, np.int32):
        x, y = np.meshgrid(np.array(INTEGERS, dtype), np.array([v for v in INTEGERS if v], dtype))
        pairs[np.dtype(dtype).name] = x.ravel(), y.ravel()
    # shifts beyond the width of the type have no meaning
    chosen = [op for op in OPS if op.elementwise and not op.params and op.arity in (1, 2) and "shift" not in op.name]

    def run(operands):
        out = {}
        for name, (x, y) in operands.items():
            for op in chosen:
                with contextlib.suppress(gt.DtypeError):  # bits of floats
                    out[f"{op.name} {name}"] = op.user(x) if op.arity == 1 else op.user(x, y)
        return out

    operands = {name: (gt.array(x), gt.array(y)) for name, (x, y) in pairs.items()}
    interpreted, compiled = run(operands), gt.jit(run)(operands)
    for name, expected in interpreted.items():
        rtol, atol = (1e-12, 1e-300) if "float64" in name else (1e-5, 1e-30)
        if name == "erf float32":
            atol = 1e-6  # the vector code's polynomial
        if name.startswith("floor_divide float"):
            continue  # below, without quotients that overflow
        np.testing.assert_allclose(np.asarray(compiled[name]), np.asarray(expected), rtol=rtol, atol=atol, err_msg=name)
    for name in ("float32", "float64"):
        finite = ~(np.abs(pairs[name][0]) > 1e29) | ~(np.abs(pairs[name][1]) < 1e-5)
        got, expected = compiled[f"floor_divide {name}"], interpreted[f"floor_divide {name}"]
        np.testing.assert_array_equal(np.asarray(got)[finite], np.asarray(expected)[finite])


@pytest.mark.parametrize(
    ("op", "bad"),
    [
        pytest.param(op, bad, id=f"{op.name}-{k}")
        for op in OPS
        if op.errors is not None
        for k, bad in enumerate(op.errors())
    ],
)
def test_wrong_inputs_are_refused_at_the_users_line(op: Op, bad):
    with pytest.raises(bad.error, match=bad.match) as info:
        op.user(*to_gt(list(bad.args)), **bad.kwargs)
    assert "test_registry.py:" in str(info.value)
    assert "expected" in str(info.value) and "got" in str(info.value)


def public_functions():
    for module in (gt, gt.numpy):
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, types.FunctionType):
                if value.__module__.startswith("gtrace."):
                    yield pytest.param(value, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_every_public_function_shows_an_example_that_runs(function):
    # pytest finds the doctests of functions where they are written; those of declared operations only here
    names = {**function.__globals__, "gt": gt}
    test = doctest.DocTestParser().get_doctest(function.__doc__ or "", names, function.__name__, None, 0)
    assert test.examples, "no example"
    report = []
    doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)
