"""Every operation of torch's own tests (OpInfo), called with Arrays: values, derivatives, batching, compiling.

    python tests/conformance.py [--samples N] [--only NAME] [--compiled]

Writes docs/conformance.md unless one operation is named. Everything is float64 (or what an operation takes instead), on
the CPU. The first N samples of each operation are used. A gradient is that of the sum of the results times fixed
numbers, compared with torch's; the second order is the gradient of the sum of the squares of the first. A tangent is
compared with torch's, or with the product of torch's gradient and the direction, which differ for a few operations.
With --compiled, the first samples of all operations whose values are right are also compiled by Inductor, many in one
program, and compared with what the interpreter gives.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import gtrace as gt
from gtrace import tree
from gtrace.core.backends.scheduler import uncompilable
from gtrace.errors import ConcretizationError, GtraceError

CHECKS = ("forward", "gradient", "second order", "jvp", "vmap", "vmap of gradient", "compiled")
GROUP = 24
"""How many operations are compiled in one program."""
INEXPRESSIBLE = {
    "draws from torch's random state": "draws from torch's global state",
    "writes to its arguments": "leaves its arguments as they are",
    "is in place": "expected a function that returns new arrays",
    "is sparse": "expected a dense tensor",
    "immutable": "gt.Array has no attribute",
    "is in place, unbound": "_' for 'torch._C.TensorBase' objects doesn't apply to a 'Array' object",
    "has complex32, which gtrace lacks": "got torch.complex32",
    "is NumPy's method of that name": "[repeat] expected an integer",
}
SECONDS = 60


@attrs.define
class Row:
    """What became of one operation: for each check "ok", "mismatch", a reason why not, or None: not applicable."""

    name: str
    results: dict[str, str | None] = attrs.field(factory=dict)
    notes: dict[str, str] = attrs.field(factory=dict)
    call: Callable[[list[Any]], list[gt.Array]] | None = None
    leaves: list[Any] = attrs.field(factory=list)

    def note(self, check: str, outcome: str | None, note: str = "") -> None:
        before = self.results.get(check)
        if before in (None, "ok") or outcome == "mismatch":
            self.results[check] = outcome if outcome is not None else before
            if note:
                self.notes[check] = note


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
    if "empty" in op.name:
        row.note("forward", "(has no values)")
        return
    if op.name == "as_strided" and sample.input.numel() != sample.input.untyped_storage().nbytes() // 8:
        row.note("forward", "(reads memory outside its argument)")
        return
    try:
        args = to_gt((sample.input, sample.args, sample.kwargs))
    except GtraceError as error:
        row.note("forward", "(is sparse)" if "dense" in str(error) else "fails", str(error)[:300])
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

    def torch_grads(create_graph=False):
        values = [x.detach().clone().requires_grad_() for _, x in places]
        y = torch_total(*values)
        found = torch.autograd.grad(y, values, create_graph=create_graph, allow_unused=True)
        return values, [torch.zeros_like(v) if g is None else g for v, g in zip(values, found, strict=True)]

    everything = tuple(range(len(xs)))
    gradient = gt.grad(total, argnums=everything)
    try:
        _, expected_grads = torch_grads()
    except Exception:  # noqa: BLE001 - torch has none either
        return
    if not check(row, "gradient", lambda: list(gradient(*xs)), lambda: expected_grads):
        return
    moved = [gt.array(weights(x.shape, x.dtype)) for x in xs]
    along = [sum((g * weights(g.shape, g.dtype)).sum() for g in expected_grads)]
    with contextlib.suppress(Exception):  # torch has no forward derivative
        primals = tuple(x.detach() for _, x in places)
        along.append(torch.func.jvp(torch_total, primals, tuple(weights(x.shape, x.dtype) for x in primals))[1])
    check(row, "jvp", lambda: [gt.jvp(total, tuple(xs), tuple(moved))[1]], lambda: along[-1:], instead=along[:1])
    if op.supports_gradgrad:

        def second():
            values, grads = torch_grads(create_graph=True)
            whole = sum((g**2).sum() for g in grads)
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
            check(row, "second order", lambda: list(squares(*xs)), lambda: expected_second, 1e-5)
    twice = [gt.stack([x, x * 1.0]) for x in xs]
    check(
        row, "vmap", lambda: [gt.vmap(total)(*twice)], lambda: [torch.stack([torch_total(*[x for _, x in places])] * 2)]
    )
    check(row, "vmap of gradient", lambda: list(gt.vmap(gradient)(*twice)),
          lambda: [torch.stack([g, g]) for g in expected_grads])  # fmt: skip


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


def check(row: Row, name: str, ours, theirs, tolerance=1e-7, instead=()) -> bool:
    try:
        with limit(SECONDS):
            got = ours()
            gt.eval(got)
            expected = theirs()
    except TooLongError as error:
        row.note(name, "fails", str(error))
        return False
    except Exception as error:  # noqa: BLE001 - it is what the report is about
        for reason, text in INEXPRESSIBLE.items():
            if text in str(error) or (name.startswith("vmap") and isinstance(error, ConcretizationError)):
                row.note(name, f"({reason})" if text in str(error) else "(looks at values)")
                return False
        row.note(name, "fails", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300])
        return False
    if close(got, expected, tolerance) or (instead and close(got, instead, tolerance)):
        row.note(name, "ok")
        return True
    row.note(name, "mismatch")
    return False


def run(only: str | None, samples: int) -> list[Row]:
    rows = []
    for op in op_db:
        name = op.name + (f" ({op.variant_test_name})" if op.variant_test_name else "")
        if only is not None and only != op.name:
            continue
        dtype = dtype_of(op)
        row = Row(name)
        rows.append(row)
        if dtype is None:
            row.note("forward", "(complex or quantized only)")
            continue
        start = time.perf_counter()
        try:
            gradient = dtype.is_floating_point and op.supports_autograd
            for k, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradient)):
                if k >= samples:
                    break
                try_sample(row, op, sample)
        except GtraceError as error:
            row.note("forward", "fails", str(error)[:300])
        except Exception as error:  # noqa: BLE001 - torch's own sample fails
            row.note("forward", "(torch's samples cannot be made here)", str(error)[:100])
        seconds = time.perf_counter() - start
        print(f"{name:50} {seconds:6.1f} s  " + "  ".join(
            f"{c}: {row.results.get(c)}" for c in CHECKS if row.results.get(c) != "ok"), flush=True)  # fmt: skip
        for c, note in row.notes.items():
            print(f"      {c}: {note}", flush=True)
    return rows


def compare_compiled(rows: list[Row]) -> None:
    """Compile what can be compiled, in groups; a group with a failure or a mismatch is halved."""
    ready = []
    for row in rows:
        if row.call is None or not all(result == "ok" for result in [row.results["forward"]]):
            continue
        try:
            reason = uncompilable(gt.make_graph(whole([row]))(*only_arrays(row)))
        except GtraceError:
            reason = "looks at values"
        if reason:
            row.note("compiled", f"({reason})")
        else:
            ready.append(row)
    groups = [ready[k : k + GROUP] for k in range(0, len(ready), GROUP)]
    while groups:
        group = groups.pop()
        given = [x for row in group for x in only_arrays(row)]
        start = time.perf_counter()
        try:
            # as inputs, so that nothing is computed while compiling
            got = gt.jit(whole(group), wait=True)(*given)
            reason = "" if jitted_equal(group, got) else "mismatch"
        except Exception as error:  # noqa: BLE001 - it is what the report is about
            reason = f"{type(error).__name__}: {error}"[:300]
        print(f"{len(group):4} compiled {time.perf_counter() - start:6.1f} s  {group[0].name} ... {reason}", flush=True)
        if not reason:
            for row in group:
                row.note("compiled", "ok")
        elif len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        else:
            group[0].note("compiled", "mismatch" if reason == "mismatch" else "fails", reason)


def only_arrays(row: Row) -> list[gt.Array]:
    return [x for x in row.leaves if isinstance(x, gt.Array)]


def whole(group: list[Row]) -> Callable[..., list[gt.Array]]:
    def function(*given: gt.Array) -> list[gt.Array]:
        rest = iter(given)
        return [y for row in group
                for y in row.call([next(rest) if isinstance(x, gt.Array) else x for x in row.leaves])]  # fmt: skip

    return function


def jitted_equal(group: list[Row], got: list[gt.Array]) -> bool:
    expected = [y for row in group for y in row.call(row.leaves)]
    gt.eval(expected)
    return close(got, [y.to_torch() for y in expected])


def report(rows: list[Row], samples: int) -> str:
    lines = [
        "# Conformance",
        "",
        f"torch {torch.__version__}, its own test samples (OpInfo), the first {samples} of each operation, float64 on"
        " the CPU. `make conformance` writes this page.",
        "",
        "| check | right | mismatch | fails | not expressible |",
        "|---|---|---|---|---|",
    ]
    for c in CHECKS:
        count = collections.Counter()
        for row in rows:
            result = row.results.get(c)
            if result is not None:
                count["other" if result.startswith("(") else result] += 1
        if count:
            lines.append(f"| {c} | {count['ok']} | {count['mismatch']} | {count['fails']} | {count['other']} |")
    lines += ["", "## What is not right", "", "| operation | check | outcome |", "|---|---|---|"]
    for row in rows:
        for c in CHECKS:
            result = row.results.get(c)
            if result in ("fails", "mismatch"):
                note = row.notes.get(c, "").split(" (at ")[0].replace("|", "/")  # without the line of this script
                lines.append(f"| {row.name} | {c} | {result}: {note[:160]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    gt.config.update(auto_compile=False)
    rows = run(options.only, options.samples)
    if options.compiled:
        compare_compiled(rows)
    if options.only is None:
        page = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"
        page.write_text(report(rows, options.samples), encoding="utf-8")
    sys.exit(any("mismatch" in row.results.values() for row in rows))


if __name__ == "__main__":
    main()
