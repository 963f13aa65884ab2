"""Timing that can be believed: workloads are checked, sides take turns, and each waits for its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy
import torch

import gtrace
from gtrace.core.base import tree
from gtrace.core.runtime.worker.client import worker
from measuring.libraries import EAGER, Function, Names, Side, reference_names
from measuring.results import BenchmarkError, Figure

SETTLE_CALLS, SETTLE_SECONDS = 60, 1.0
"""Calls before timing, in which hot paths are compiled and compared: so many, or for so long."""

ROUND_SECONDS = 0.02
"""A side is called so often in a round that it takes about this long."""

MAX_CALLS = 1000

Arrays = tuple[Any, ...]


@attrs.frozen
class Work:
    """The least that a program must do: bytes read and written, and multiplications and additions of products."""

    moved: float = 0.0
    operations: float = 0.0


@attrs.frozen
class Workload:
    """A program, as data.

    Attributes:
        name: what it does.
        arrays: makes its arguments: pytrees of NumPy arrays.
        program: from a library's names to a function of the arguments.
        sides: programs for single sides, by the side's name, where a library's users write something else.
        trainers: for sides that train in place: make a function that takes the arguments, begins from them when it is
            first called, and goes on from its own state. It compiles what it wants compiled.
        checked: the part of a result that is compared with the reference.
        reference: from the arguments to the right results; None: the program in torch, with float64.
        tolerance: largest difference, as a part of the largest number of an array.
        transforms: whether it makes gradients or batches.
        excluded: sides that leave it out.
        work: the least that it must do; None: not known.
    """

    name: str
    arrays: Callable[[], Arrays]
    program: Callable[[Names], Function]
    sides: Mapping[str, Callable[[Names], Function]] = attrs.field(factory=dict)
    trainers: Mapping[str, Callable[[], Function]] = attrs.field(factory=dict)
    checked: Callable[[Any], Any] = lambda result: result
    reference: Callable[..., Any] | None = None
    tolerance: float = 1e-4
    transforms: bool = False
    excluded: Sequence[str] = ()
    work: Work | None = None

    def function(self, side: Side) -> Function:
        """Return the function that a side calls, compiled if the side compiles."""
        if side.name in self.trainers:
            return self.trainers[side.name]()
        made = self.sides.get(side.name, self.program)(side.names())
        return made if self.transforms and side.compiles_losses else side.wrap(made)

    def takes_part(self, side: Side) -> bool:
        """Whether a side says more than the others about this workload."""
        return side.name not in self.excluded and (self.transforms or not side.transforms_only)


# -- checks


def to_numpy(value: Any) -> numpy.ndarray:
    """Return a leaf of a result as a NumPy array."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, gtrace.Array):
        return value.to_torch().detach().cpu().numpy()
    return numpy.asarray(value)


def other(arrays: Arrays) -> Arrays:
    """Return other arguments: of the same shapes and kinds."""
    rng = numpy.random.default_rng(7)

    def change(value: Any) -> Any:
        array = numpy.asarray(value)
        if array.dtype.kind in "fc":
            return (array * 1.25 + 0.05 * rng.normal(size=array.shape)).astype(array.dtype)
        return array[::-1].copy() if array.ndim and array.shape[0] > 1 else (array + 1).astype(array.dtype)

    return tree.map(change, arrays)


def expected(workload: Workload, arrays: Arrays) -> Any:
    """Return the right results, made with float64."""
    if workload.reference is not None:
        return workload.reference(*arrays)

    def convert(value: Any) -> torch.Tensor:
        array = numpy.array(value)
        return torch.from_numpy(array.astype(numpy.float64) if array.dtype.kind == "f" else array)

    program = workload.sides.get(EAGER.name, workload.program)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return workload.checked(program(reference_names())(*tree.map(convert, arrays)))
    finally:
        torch.set_default_dtype(before)


def compare(workload: Workload, side: str, result: Any, reference: Any) -> None:
    """Raise instead of reporting the speed of wrong results.

    Raises:
        BenchmarkError: a number differs by more than the workload's tolerance.
    """
    got, want = (tree.leaves(value) for value in (workload.checked(result), reference))
    if len(got) != len(want):
        raise BenchmarkError(f"{workload.name}: {side} returned {len(got)} arrays, expected {len(want)}.")
    for k, (a, b) in enumerate(zip(map(to_numpy, got), map(to_numpy, want), strict=True)):
        if a.shape != b.shape:
            raise BenchmarkError(f"{workload.name}: {side} returned shape {a.shape}, expected {b.shape} (array {k}).")
        if not b.size:
            continue
        largest = max(float(numpy.abs(b).max()), 1e-30)
        worst = float(numpy.abs(a.astype(numpy.float64) - b).max()) / largest
        if not worst <= workload.tolerance:
            raise BenchmarkError(
                f"{workload.name}: {side} is wrong: its array {k} differs from the float64 reference by {worst:.1e} of"
                f" its largest number, more than {workload.tolerance:.0e}."
            )


def refuse_empty(workload: Workload, side: str, arrays: Arrays, first: Any, second: Any) -> None:
    """Raise for a workload that computes nothing, or nothing that depends on its arguments.

    Args:
        first: the result of `arrays`.
        second: the result of other arguments.

    Raises:
        BenchmarkError: it must not be timed.
    """
    results = [to_numpy(leaf) for leaf in tree.leaves(first)]
    if not any(array.size for array in results):
        raise BenchmarkError(f"{workload.name}: {side} returns no number, so nothing needs to be computed.")
    inputs = [numpy.asarray(leaf) for leaf in tree.leaves(arrays)]
    if all(any(_equal(array, given) for given in inputs) for array in results):
        raise BenchmarkError(f"{workload.name}: {side} returns its arguments, so nothing is computed.")
    if all(_equal(a, to_numpy(b)) for a, b in zip(results, tree.leaves(second), strict=True)):
        raise BenchmarkError(
            f"{workload.name}: {side} returns the same for other arguments, so it need not be computed again."
        )


def _equal(a: numpy.ndarray, b: numpy.ndarray) -> bool:
    return a.shape == b.shape and bool(numpy.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


@attrs.frozen
class Case:
    """A workload with its arguments, others, and the right results of both."""

    workload: Workload
    arrays: Arrays
    right: Any
    changed: Arrays
    right_changed: Any


def case(workload: Workload) -> Case:
    """Make the arguments and the references of a workload."""
    arrays = workload.arrays()
    changed = other(arrays)
    return Case(workload, arrays, expected(workload, arrays), changed, expected(workload, changed))


@attrs.frozen
class Prepared:
    """A side of a workload, ready to be timed: its call, and the seconds of the first one."""

    call: Callable[[], Any]
    first: float


def prepare(given: Case, side: Side) -> Prepared:
    """Build a side, run it, and check its results.

    Raises:
        BenchmarkError: the results are wrong, or need not be computed.
    """
    workload = given.workload
    args = tree.map(side.convert, given.arrays)
    function = workload.function(side)

    def call() -> Any:
        return side.wait(function(*args))

    start = time.perf_counter()
    result = call()
    first = time.perf_counter() - start
    compare(workload, side.name, result, given.right)
    if side.name not in workload.trainers:  # which would go on from their own state
        second = side.wait(function(*tree.map(side.convert, given.changed)))
        refuse_empty(workload, side.name, given.arrays, result, second)
        compare(workload, side.name, second, given.right_changed)
    return Prepared(call, first)


# -- timing


def settle(call: Callable[[], Any]) -> None:
    """Call until what is hot is compiled and has been compared with what it replaces; once, if nothing compiles."""
    start = time.perf_counter()
    for _ in range(SETTLE_CALLS if gtrace.config.auto_compile else 1):
        call()
        if time.perf_counter() - start > SETTLE_SECONDS:
            break
    worker.wait(600.0)


def interleave(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Return the seconds a call, of each round; the sides take turns, and each call waits for its result."""
    counts = {}
    with gtrace.config(hot_threshold=2):
        for name, call in calls.items():
            settle(call)
            start = time.perf_counter()
            call()
            counts[name] = max(1, min(MAX_CALLS, int(ROUND_SECONDS / max(time.perf_counter() - start, 1e-7))))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(counts[name]):
                    call()
                times[name].append((time.perf_counter() - start) / counts[name])
    return {name: tuple(values) for name, values in times.items()}


def measure(workload: Workload, sides: list[Side], rounds: int) -> list[Figure]:
    """Check a workload and time its sides.

    Raises:
        BenchmarkError: a side's results are wrong, or the workload is empty.
    """
    given = case(workload)
    ready = {side.name: prepare(given, side) for side in sides if workload.takes_part(side)}
    times = interleave({name: side.call for name, side in ready.items()}, rounds)
    return [
        Figure(workload.name, name, samples, details={"first call, s": ready[name].first})
        for name, samples in times.items()
    ]
