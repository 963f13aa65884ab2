"""One operation of torch's own tests, called with Arrays on torch's samples; see conformance.py."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import gtrace as gt
from gtrace import tree
from gtrace.errors import ConcretizationError, GtraceError

TRIED = ("forward", "gradient", "second order", "jvp", "vmap", "vmap of gradient")
INEXPRESSIBLE = {
    "draws from torch's random state": "draws from torch's global state",
    "writes to its arguments": "leaves its arguments as they are",
    "is in place": "expected a function that returns new arrays",
    "is sparse": "expected a dense tensor",
    "immutable": "gt.Array has no attribute",
    "is in place, unbound": "_' for 'torch._C.TensorBase' objects doesn't apply to a 'Array' object",
    "has complex32, which gtrace lacks": "got torch.complex32",
}
SECONDS = 120


@attrs.define
class Row:
    """What became of one operation: for each check "ok", "mismatch", "fails: why", "(why it is not applicable)"."""

    name: str
    results: dict[str, str] = attrs.field(factory=dict)
    call: Callable[[list[Any]], list[gt.Array]] | None = None
    leaves: list[Any] = attrs.field(factory=list)
    seconds: float = 0.0

    def note(self, check: str, outcome: str) -> None:
        before = self.results.get(check)
        if before in (None, "ok") or outcome == "mismatch":
            self.results[check] = outcome


class TooLongError(Exception):
    pass


@contextlib.contextmanager
def limit(seconds: int):
    def stop(*_):
        raise TooLongError(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def dtype_of(op: OpInfo) -> torch.dtype | None:
    taken = op.supported_dtypes("cpu")
    return next((d for d in (torch.float64, torch.float32, torch.int64, torch.bool) if d in taken), None)


def to_gt(value):
    return tree.map(lambda x: gt.array(x.detach()) if isinstance(x, torch.Tensor) else x, value)


def tensors(result) -> list[torch.Tensor]:
    return [x for x in tree.leaves(result) if isinstance(x, torch.Tensor)]


def arrays(result) -> list[gt.Array]:
    return [x for x in tree.leaves(result) if isinstance(x, gt.Array)]


def close(got, expected, tolerance=1e-7) -> bool:
    if len(got) != len(expected):
        return False
    for a, b in zip(got, expected, strict=True):
        a = a.to_torch() if isinstance(a, gt.Array) else a
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            return False
        loose = max(tolerance, 1e-4 if b.dtype in (torch.float32, torch.complex64) else 0)
        if not torch.allclose(a, b.detach(), rtol=loose, atol=loose * 10, equal_nan=True):
            return False
    return True


def differentiable(sample: SampleInput) -> list[tuple[int, torch.Tensor]]:
    leaves = tree.leaves((sample.input, sample.args, sample.kwargs))
    return [(k, x) for k, x in enumerate(leaves)
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.requires_grad]  # fmt: skip


def weights(shape, dtype):
    count = math.prod(shape)
    numbers = torch.cos(torch.arange(count, dtype=torch.float64)).reshape(shape) + 0.5
    return numbers.to(gt.dtypes.DType(dtype).torch)


def try_sample(row: Row, op: OpInfo, sample: SampleInput) -> None:
    with torch.no_grad():
        try:
            expected = sample_result(op, sample)
        except Exception:  # noqa: BLE001 - the sample itself cannot be run here
            return
    if not tensors(expected) or not tensors((sample.input, sample.args, sample.kwargs)):
        row.note("forward", "(makes arrays from none)")
        return
    if op.name == "repeat":
        row.note("forward", "(is NumPy's method of that name)")
        return
    if "empty" in op.name:
        row.note("forward", "(has no values)")
        return
    if op.name == "as_strided" and sample.input.numel() != sample.input.untyped_storage().nbytes() // 8:
        row.note("forward", "(reads memory outside its argument)")
        return
    try:
        args = to_gt((sample.input, sample.args, sample.kwargs))
    except GtraceError as error:
        row.note("forward", "(is sparse)" if "dense" in str(error) else failure(error))
        return

    function = bound(op.op)

    def call(leaves):
        first, rest, named = tree.structure(args).unflatten(leaves)
        return sample.output_process_fn_grad(function(first, *rest, **named))

    leaves = tree.leaves(args)
    if not check(row, "forward", lambda: arrays(call(leaves)), lambda: tensors(expected)):
        return
    if row.call is None:
        row.call, row.leaves = (lambda given: arrays(call(given))), leaves
    places = differentiable(sample)
    if not op.supports_autograd or not places:
        return
    xs = [leaves[k] for k, _ in places]

    def total(*values):
        filled = list(leaves)
        for (k, _), v in zip(places, values, strict=True):
            filled[k] = v
        outs = [y for y in arrays(call(filled)) if y.aval.floating]
        products = [(y * gt.array(weights(y.shape, y.dtype))).sum().real for y in outs]
        return sum(products, gt.zeros((), dtype=xs[0].dtype))

    def torch_total(*values):
        filled = tree.leaves((sample.input, sample.args, sample.kwargs))
        for (k, _), v in zip(places, values, strict=True):
            filled[k] = v
        structure = tree.structure((sample.input, sample.args, sample.kwargs))
        first, rest, named = structure.unflatten(filled)
        outs = tensors(sample.output_process_fn_grad(op.op(first, *rest, **named)))
        products = [(y * weights(y.shape, y.dtype)).sum() for y in outs if y.is_floating_point() or y.is_complex()]
        return sum([y.real if y.is_complex() else y for y in products], torch.zeros((), dtype=values[0].dtype))

    def torch_grads(values, create_graph=False):
        y = torch_total(*values)
        found = torch.autograd.grad(y, values, create_graph=create_graph, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for v, g in zip(values, found, strict=True)]

    def leaves_at(values):
        return [x.detach().clone().requires_grad_() for x in values]

    def torch_squares(*values):
        return sum((g.detach() ** 2).sum() for g in torch_grads(leaves_at(values)))

    primals = tuple(x.detach() for _, x in places)
    everything = tuple(range(len(xs)))
    gradient = gt.grad(total, argnums=everything)
    try:
        expected_grads = torch_grads(leaves_at(primals))
    except Exception:  # noqa: BLE001 - torch has none either
        return
    if not check(row, "gradient", lambda: list(gradient(*xs)), lambda: expected_grads,
                 instead=lambda: differences(torch_total, primals)):  # fmt: skip
        return
    ways = tuple(weights(x.shape, x.dtype) for x in xs)

    def along():
        found = [sum((g * w).sum() for g, w in zip(expected_grads, ways, strict=True))]
        with contextlib.suppress(Exception):  # torch has no forward derivative
            found.append(torch.func.jvp(torch_total, primals, ways)[1])
        return found

    check(row, "jvp", lambda: [gt.jvp(total, tuple(xs), tuple(map(gt.array, ways)))[1]], lambda: along()[-1:],
          also=lambda: along()[:1])  # fmt: skip
    if op.supports_gradgrad:

        def second():
            values = leaves_at(primals)
            whole = sum((g**2).sum() for g in torch_grads(values, create_graph=True))
            if not whole.requires_grad:
                return [torch.zeros_like(v) for v in values]
            found = torch.autograd.grad(whole, values, allow_unused=True)
            return [torch.zeros_like(v) if g is None else g for v, g in zip(values, found, strict=True)]

        squares = gt.grad(lambda *v: sum((g**2).sum() for g in gradient(*v)), argnums=everything)
        try:
            expected_second = second()
        except Exception:  # noqa: BLE001 - torch has none either
            expected_second = None
        if expected_second is not None:
            check(row, "second order", lambda: list(squares(*xs)), lambda: expected_second, 1e-5,
                  instead=lambda: differences(torch_squares, primals))  # fmt: skip
    twice = [gt.stack([x, x * 1.0]) for x in xs]
    check(row, "vmap", lambda: [gt.vmap(total)(*twice)], lambda: [torch.stack([torch_total(*primals)] * 2)])
    check(row, "vmap of gradient", lambda: list(gt.vmap(gradient)(*twice)),
          lambda: [torch.stack([g, g]) for g in expected_grads])  # fmt: skip


def differences(function: Callable[..., torch.Tensor], primals, step: float = 1e-6) -> list[torch.Tensor]:
    """Return the gradient of a function as central differences of its values."""
    found = []
    for k, x in enumerate(primals):
        slopes = torch.zeros(x.numel(), dtype=x.dtype)
        for j in range(x.numel()):
            there, back = x.flatten().clone(), x.flatten().clone()
            there[j] += step
            back[j] -= step
            ends = [function(*primals[:k], end.reshape(x.shape), *primals[k + 1 :]) for end in (there, back)]
            slopes[j] = (ends[0] - ends[1]).detach() / (2 * step)
        found.append(slopes.reshape(x.shape))
    return found


def bound(function):
    """Return a method of torch.Tensor as the method of that name of whatever it is called on.

    Functions of torch.masked do not hand over to the type of their arguments: they are lifted.
    """
    if getattr(function, "__module__", "") == "torch.masked._ops":
        return gt.lift(function)
    if vars(torch.Tensor.__base__).get(getattr(function, "__name__", "")) is not function:
        return function
    return lambda x, *rest, **named: getattr(x, function.__name__)(*rest, **named)


def sample_result(op: OpInfo, sample: SampleInput):
    return sample.output_process_fn_grad(op.op(sample.input, *sample.args, **sample.kwargs))


def check(row: Row, name: str, ours, theirs, tolerance=1e-7, also=None, instead=None) -> bool:
    """Compare what gtrace gives with what torch gives.

    Args:
        also: other values that are right.
        instead: what torch's values would be if they were right; compared only if they are others.
    """
    try:
        with limit(SECONDS):
            got = ours()
            gt.eval(got)
            expected = theirs()
    except TooLongError as error:
        row.note(name, f"fails: {error}")
        return False
    except Exception as error:  # noqa: BLE001 - it is what the report is about
        for reason, text in INEXPRESSIBLE.items():
            if text in str(error) or (name.startswith("vmap") and isinstance(error, ConcretizationError)):
                row.note(name, f"({reason})" if text in str(error) else "(looks at values)")
                return False
        row.note(name, failure(error))
        return False
    if close(got, expected, tolerance) or (also is not None and close(got, also(), tolerance)):
        row.note(name, "ok")
        return True
    known = all(bool(x.isfinite().all()) for x in expected)
    if known and instead is not None and close(got, instead(), 1e-5):
        row.note(name, "(torch's is not the derivative of its values)")
    else:
        row.note(name, "mismatch")
    return False


def failure(error: Exception) -> str:
    """Return what an error says in short: one line, without the line of this script."""
    text = str(error).split("\n")[0].split(" (at ")[0]
    return f"fails: {type(error).__name__}: {text}"


def try_operation(op: OpInfo, samples: int) -> Row:
    """Try an operation on its first samples."""
    row, start = Row(named(op)), time.process_time()
    dtype = dtype_of(op)
    if dtype is None:
        row.note("forward", "(complex or quantized only)")
        return row
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        gradient = dtype.is_floating_point and op.supports_autograd
        for k, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradient)):
            if k >= samples:
                break
            try_sample(row, op, sample)
    except GtraceError as error:
        row.note("forward", failure(error))
    except Exception:  # noqa: BLE001 - torch's own sample fails
        row.note("forward", "(torch's samples cannot be made here)")
    row.seconds = time.process_time() - start
    return row


def named(op: OpInfo) -> str:
    return op.name + (f" ({op.variant_test_name})" if op.variant_test_name else "")
