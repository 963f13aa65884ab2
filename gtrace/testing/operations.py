"""The checks of every declared operation: `check_op` runs them all, and each is a function.

The material is the declaration's: samples, error samples, reference, rules. A part that does not apply to an operation
passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch

import gtrace as gt
from gtrace.core.backends.inductor.refused import uncompilable
from gtrace.core.backends.interpreter.interpreter import bound_impl, direct_impl
from gtrace.core.base import tree
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.base.errors import ConcretizationError, DtypeError, user_location
from gtrace.core.ir.cases import BadSample, Sample
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture
from gtrace.testing.checks import check_grads, check_vmap, uncompiled
from gtrace.testing.closeness import assert_close
from gtrace.testing.samples import arrays_in, caller, map_arrays

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_BATCH = 3


def check_op(op: Op | str, *, compiled: bool = True) -> None:
    """Check an operation: parity, inference, derivatives, batching, compiled form, errors.

    Args:
        op: the operation or its name.
        compiled: also compile its samples and their gradients, which takes seconds.

    Raises:
        AssertionError: the first part that fails; its traceback says which.

    >>> check_op("square", compiled=False)
    """
    op = REGISTRY[op] if isinstance(op, str) else op
    check_declaration(op)
    assert op.cases.samples is not None
    for sample in op.cases.samples():
        for dtype in FLOAT_DTYPES:
            check_inference(op, sample, dtype)
            check_precision(op, sample, dtype)
            check_gradient_types(op, sample, dtype)
        check_reference(op, sample)
        check_gradients(op, sample)
        check_complex(op, sample)
        check_batching(op, sample)
    check_empty_and_0d(op)
    check_dtypes(op)
    for bad in op.cases.errors() if op.cases.errors is not None else ():
        check_refusal(op, bad)
    if compiled:
        check_compiled([op])


# -- arguments of samples


def is_float(value: Any) -> bool:
    """Whether an argument is a floating NumPy array."""
    return isinstance(value, numpy.ndarray) and value.dtype.kind == "f"


def float_caller(op: Op, sample: Sample) -> tuple[Callable[..., Any], list[numpy.ndarray]]:
    """Return the call that a sample is as a function of its floating arrays, and these."""
    arrays = list(arrays_in(list(sample.args)))
    call = caller(op, sample)

    def of_floats(*values: Any) -> Any:
        rest = iter(values)
        return call(*[next(rest) if is_float(x) else gt.array(x) for x in arrays])

    return of_floats, [x for x in arrays if is_float(x)]


# -- the parts


def check_declaration(op: Op) -> None:
    """Check that an operation has samples, a reference, and either rules or a reason for having none."""
    assert op.cases.samples is not None and op.cases.samples(), f"{op.name} has no samples"
    assert op.cases.user is not None, f"{op.name} has no user function"
    assert op.cases.reference is not None, f"{op.name} has no reference"
    rules = [rule for rule in (op.rules.partials, op.rules.vjp, op.rules.nondiff) if rule is not None]
    assert len(rules) == 1, f"{op.name} needs exactly one of partials, vjp and a reason for having none"
    assert op.rules.nondiff is None or len(op.rules.nondiff) > 10, f"{op.name} does not say why it has no derivative"
    assert op.arity == 0 or op.elementwise or op.rules.batch is not None, f"{op.name} has no batching rule"
    if op.rules.partials is not None:
        assert len(op.rules.partials) == op.arity, f"{op.name} needs one partial an operand"


def check_reference(op: Op, sample: Sample) -> None:
    """Compare with the operation's reference, in float64 and float32."""
    for dtype in (numpy.float64, numpy.float32):
        args = map_arrays(lambda x: x.astype(dtype) if is_float(x) else x, sample.args)  # noqa: B023 - called at once
        assert_close(*_with_reference(op, args, sample), op.name, check_dtype=False)  # NumPy may compute in double


def check_special_values(op: Op, sample: Sample, special: numpy.ndarray) -> None:
    """Compare with the operation's reference in float64, with NaN, infinities or other such numbers among its floats.

    Args:
        special: the numbers. An elementwise operation gets each, and each pair; others get some of them at some places.
    """
    arrays = list(arrays_in(sample.args))
    if not any(map(is_float, arrays)):
        return
    if op.elementwise and all(map(is_float, arrays)):
        grid = iter(numpy.meshgrid(*[special] * len(arrays), indexing="ij"))
        return _compare_each(op, map_arrays(lambda _: next(grid).ravel(), sample.args), sample)
    rng = numpy.random.default_rng(0)

    def salted(x: numpy.ndarray) -> numpy.ndarray:
        return numpy.where(rng.random(x.shape) < 0.25, rng.choice(special, x.shape), x) if is_float(x) else x

    _compare_each(op, map_arrays(salted, sample.args), sample)


def _compare_each(op: Op, args: Sequence[Any], sample: Sample) -> None:
    """Compare each element at its own scale: some are huge. Expansions of special functions have many terms."""
    got, expected = _with_reference(op, args, sample)
    with numpy.errstate(all="ignore"):
        assert_close(got, expected, op.name, steps=10_000, scale=numpy.maximum(abs(expected), 1e-4), check_dtype=False)


def _with_reference(op: Op, args: Sequence[Any], sample: Sample) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the result and that of the reference, which have the same shape and are of the same kind."""
    assert op.cases.user is not None and op.cases.reference is not None
    got = numpy.asarray(op.cases.user(*map_arrays(gt.array, args), **sample.kwargs))
    with numpy.errstate(all="ignore"):
        expected = numpy.asarray(op.cases.reference(*args, **sample.kwargs))
    assert got.shape == expected.shape, op.name
    assert (got.dtype.kind in "fc") == (expected.dtype.kind in "fc"), op.name
    return got, expected


def check_precision(op: Op, sample: Sample, dtype: torch.dtype) -> None:
    """Compare an operation without attributes, its floats cast to `dtype`, with its reference computed in float64."""
    if op.params or op.arity not in (1, 2, 3):
        return
    tensors = [_tensor(a, dtype) if isinstance(a, numpy.ndarray) else a for a in sample.args]
    assert op.cases.user is not None and op.cases.reference is not None
    got = op.cases.user(*[gt.array(t) if isinstance(t, torch.Tensor) else t for t in tensors], **sample.kwargs)
    like = next(t for t in tensors if isinstance(t, torch.Tensor))
    if like.dtype is torch.bool and got.dtype != torch.bool:
        like = torch.zeros((), dtype=got.aval.dtype)  # a choice between numbers
    plain = [t if isinstance(t, torch.Tensor) else torch.tensor(t, dtype=like.dtype) for t in tensors]
    wide = [(t.double() if t.is_floating_point() else t).numpy() for t in plain]
    expected = numpy.asarray(op.cases.reference(*wide))
    largest = numpy.abs(expected).max(initial=1.0)
    assert_close(got, expected, op.name, steps=4, scale=largest, check_dtype=False)


def _tensor(x: numpy.ndarray, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.tensor(x)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def check_inference(op: Op, sample: Sample, dtype: torch.dtype) -> None:
    """Compare shape, dtype and direct call, where they are stated, with the implementation, floats cast to `dtype`."""
    inputs = [_tensor(x, dtype) for x in arrays_in(list(sample.args))]
    call = caller(op, sample)
    avals = [gt.array(t).aval for t in inputs]
    captured = capture(lambda given: (tree.leaves(call(*given)), None), avals, op.name)
    graph = captured.graph
    env: dict[Any, Any] = dict(zip(graph.inputs, [*inputs, *(x.to_torch() for x in captured.constants)], strict=True))
    for node in graph.nodes:
        operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
        env[node.out] = expected = bound_impl(node)(*operands)
        if isinstance(expected, torch.Tensor):
            inferred = node.instr.aval
            assert (tuple(expected.shape), expected.dtype) == (inferred.shape, inferred.dtype), (
                f"{node.op.name}: {inferred}"
            )
            got = direct_impl(node)(*operands)
            assert got.dtype is expected.dtype
            assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0)), f"{node.op.name} called directly"


def check_gradients(op: Op, sample: Sample, modes: Sequence[str] = ("fwd", "rev")) -> None:
    """Compare derivatives to second order with central differences, and the modes with one another."""
    call, floats = float_caller(op, sample)
    if op.rules.nondiff is not None or not floats:
        return
    wide = [gt.array(x.astype(numpy.float64)) for x in floats]
    if call(*wide).dtype == torch.float64:  # otherwise the sample is cast to another dtype
        tangents = [gt.array(numpy.ones_like(x, dtype=numpy.float64)) for x in floats]
        if "fwd" in modes:
            out, moved = gt.jvp(call, wide, tangents)
            assert moved.aval is out.aval, f"{op.name} has a tangent of type {moved.aval} for {out.aval}"
        check_grads(call, wide, order=2, modes=modes)


def check_gradient_types(op: Op, sample: Sample, dtype: torch.dtype) -> None:
    """Check that gradients have the shapes and dtypes of their operands, floats cast to `dtype`."""
    call, floats = float_caller(op, sample)
    operands = [gt.array(x).astype(dtype) for x in floats]
    if op.rules.nondiff is not None or not operands or not call(*operands).aval.floating:
        return
    grads = gt.grad(lambda *xs: gt.real(call(*xs)).sum(), argnums=tuple(range(len(operands))))(*operands)
    assert [g.aval.plain for g in grads] == [x.aval for x in operands], op.name


def check_complex(op: Op, sample: Sample) -> bool:
    """Compare derivatives for complex128 operands with torch's, and the modes with one another.

    torch's gradient is the conjugate of ours. Forward and reverse mode agree if Re(cotangent * tangent) does.

    Returns:
        Whether the operation takes complex operands and has a derivative.
    """
    arrays = list(arrays_in(list(sample.args)))
    own = caller(op, sample)
    inexact = [x for x in arrays if x.dtype.kind in "fc"]
    if op.rules.nondiff is not None or not inexact:
        return False

    def call(*values: Any) -> Any:
        rest = iter(values)
        return own(*[next(rest) if x.dtype.kind in "fc" else gt.array(x) for x in arrays])

    operands = [gt.array(x if x.dtype.kind == "c" else x + 0.5j * _normal(x.shape, 1)) for x in inexact]
    try:
        out, pullback = gt.vjp(call, *operands)
        if not out.aval.floating:
            return False
        ct = gt.array(_normal(out.shape, 2) + (1j * _normal(out.shape, 3) if out.aval.complex else 0.0))
        grads = pullback(ct)
    except DtypeError:
        return False
    tangents = [gt.array(_normal(x.shape, 4) + 1j * _normal(x.shape, 5)) for x in operands]
    _, moved = gt.jvp(call, tuple(operands), tuple(tangents))
    assert moved.aval is out.aval, f"{op.name} has a tangent of type {moved.aval} for {out.aval}"
    assert [g.aval.plain for g in grads] == [x.aval for x in operands], op.name
    pairs = [*zip(grads, tangents, strict=True)]
    backward = sum(float(gt.real(gt.sum(g * t))) for g, t in pairs)
    forward = float(gt.real(gt.sum(ct * moved)))
    assert abs(forward - backward) <= 1e-9 * (1 + abs(forward)), f"{op.name}: {forward} forward, {backward} backward"
    for got, expected in zip(grads, _torch_gradient(op, call, operands, ct), strict=False):
        assert_close(got, expected, op.name)
    return True


def _normal(shape: tuple[int, ...], seed: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).normal(size=shape)


def _torch_gradient(op: Op, call: Callable[..., Any], operands: Sequence[Array], ct: Array) -> list[numpy.ndarray]:
    """Return the conjugate of torch's gradient by each operand; nothing if torch has none."""
    captured = capture(lambda given: (tree.leaves(call(*given)), None), [x.aval for x in operands], op.name)
    graph = captured.graph
    inputs = [x.to_torch().requires_grad_() for x in operands]
    constants = [x.to_torch() for x in captured.constants]
    env: dict[Any, Any] = dict(zip(graph.inputs, [*inputs, *constants], strict=True))
    try:
        for node in graph.nodes:
            values = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
            env[node.out] = bound_impl(node)(*values)
        result = env[graph.outputs[0]]
        found = torch.autograd.grad(result, inputs, ct.to_torch().conj(), materialize_grads=True)
    except RuntimeError as error:
        assert "does not support automatic differentiation" in str(error), f"{op.name}: {error}"
        return []
    return [g.conj().resolve_conj().numpy() for g in found]


def check_batching(op: Op, sample: Sample) -> None:
    """Compare vmap with a stacked loop for each choice of batched operands, the batch on different axes; and nested."""
    if op.arity == 0:
        return
    arrays = list(arrays_in(list(sample.args)))
    call = caller(op, sample)
    for chosen in range(1, 2 ** len(arrays)):
        flags = [bool(chosen >> k & 1) for k in range(len(arrays))]
        axes = tuple(k % (x.ndim + 1) if flag else None for k, (x, flag) in enumerate(zip(arrays, flags, strict=True)))
        batches = [
            x if axis is None else numpy.moveaxis(_batch_of(x, k), 0, axis)
            for k, (x, axis) in enumerate(zip(arrays, axes, strict=True))
        ]
        try:
            check_vmap(call, [gt.array(x) for x in batches], axes, -1)
        except ConcretizationError:
            # a mask is turned into places, whose number depends on its values
            assert any(x.dtype == bool for x in arrays), f"{op.name} looks at values"
            continue
        doubled = [numpy.stack([x, x]) if flag else x for x, flag in zip(batches, flags, strict=True)]
        outer = tuple(0 if flag else None for flag in flags)
        check_vmap(gt.vmap(call, axes), [gt.array(x) for x in doubled], outer)


def _batch_of(x: numpy.ndarray, seed: int) -> numpy.ndarray:
    """Return arrays like `x`: its own elements in other orders, so that indices stay in range."""
    rng = numpy.random.default_rng(seed)
    return numpy.stack([x, *(rng.permutation(x.ravel()).reshape(x.shape) for _ in range(_BATCH - 1))])


def check_empty_and_0d(op: Op) -> None:
    """Compare an elementwise operation without attributes with its reference, on empty and 0-d operands too."""
    reference, user = op.cases.reference, op.cases.user
    if not op.elementwise or op.params or op.cases.samples is None or user is None or reference is None:
        return
    arrays = list(arrays_in(list(op.cases.samples()[0].args)))
    dtypes = [torch.tensor(x).dtype for x in arrays]
    dtypes += [dtypes[-1]] * ((op.arity or 0) - len(dtypes))
    for shapes in (((),) * 3, ((0, 2),) * 3, ((0, 1), (3,), ()), ((1,), (), (1, 1))):
        fill = arrays[0].flat[0].item()
        tensors = [torch.full(shape, fill, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
        got = user(*map(gt.array, tensors))
        expected = numpy.asarray(reference(*[t.numpy() for t in tensors]))
        assert (got.shape, got.dtype) == (expected.shape, torch.from_numpy(expected).dtype), op.name
        assert_close(got, expected, op.name, steps=40)


def check_dtypes(op: Op) -> None:
    """Check that each dtype is refused while recording, at the user's line, or runs; and that one runs."""
    assert op.cases.samples is not None and op.cases.user is not None
    taken = 0
    for sample in op.cases.samples():
        for dtype in DTYPES.values():
            args = map_arrays(lambda x: _ones(x, dtype), list(sample.args))  # noqa: B023 - called at once
            try:
                out = op.cases.user(*args, **sample.kwargs)
            except DtypeError as error:
                _at_users_line(error)
                continue
            gt.eval(out)
            taken += 1
    assert taken, f"{op.name} takes no dtype"


def _ones(x: numpy.ndarray, dtype: torch.dtype) -> Array:
    return gt.array(numpy.ones_like(x)).astype(dtype) if is_float(x) else gt.array(x)


def check_compiled(ops: Iterable[Op], samples: int = 2, gradients: bool = True) -> int:
    """Compare compiled with interpreted results, of the first samples of operations and of their gradients.

    Everything is one program in float32: compiling many small ones would take much longer.

    Args:
        samples: how many of each operation.
        gradients: also compile gradients, which takes twice as long; what they consist of are operations too.

    Returns:
        How many samples were compiled.
    """
    chosen, names = [], []
    for op in ops:
        if op.cases.samples is None or op.placement:  # which would lay out all that is compiled with it
            continue
        for sample in op.cases.samples()[:samples]:
            call, floats = float_caller(op, sample)
            if uncompilable(gt.make_graph(call)(*[x.astype(numpy.float32) for x in floats])):
                continue
            chosen.append((call, floats))
            names.append((op.name, op.rules.nondiff is None))
    flat = [[gt.array(x.astype(numpy.float32)) for x in floats] for _, floats in chosen]

    def run(values: list[list[Array]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for (name, differentiable), (call, _), xs in zip(names, chosen, values, strict=True):
            y = out[f"{name}-{len(out)}"] = call(*xs)
            if gradients and differentiable and xs and y.dtype == torch.float32:
                half = gt.grad(lambda *ys, call=call: (call(*ys) * 0.5).sum(), argnums=tuple(range(len(xs))))
                out[f"{name}-{len(out)}-grad"] = half(*xs)
        return out

    with gt.config(auto_compile=False):
        interpreted, jitted = run(flat), gt.jit(run)
        compiled = jitted(flat)
        assert not uncompiled(jitted), "the program could not be compiled"
        for name, expected in interpreted.items():
            for a, b in zip(tree.leaves(compiled[name]), tree.leaves(expected), strict=True):
                assert a.aval is b.aval, name
            assert_close(compiled[name], expected, name)
    return len(chosen)


def check_refusal(op: Op, bad: BadSample) -> None:
    """Check that a wrong call raises the right error, which says what was expected, what came, and the user's line."""
    assert op.cases.user is not None
    try:
        op.cases.user(*map_arrays(gt.array, list(bad.args)), **bad.kwargs)
    except bad.error as error:
        assert re.search(bad.match, str(error)), f"{op.name}: expected {bad.match!r} in {error}"
        assert "expected" in str(error) and "got" in str(error), str(error)
        _at_users_line(error)
        return
    raise AssertionError(f"[check_op] expected {op.name} to raise {bad.error.__name__}, got a result.")


def _at_users_line(error: Exception) -> None:
    place = user_location()
    assert place in str(error), f"expected the user's line, {place}, in {error}"
