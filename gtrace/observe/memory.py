"""``gt.memory()``: the current memory of Arrays; ``gt.peak_memory``: a function's memory when interpreted."""

from __future__ import annotations

import functools
import gc
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import Owned, TensorFunction, interpreter
from gtrace.core.backends.schedule import CallSequence
from gtrace.core.base.errors import ArgumentError, UnsupportedTorchError, is_users, message
from gtrace.core.base.torch_internals import DISPATCH_MODE
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.base.units import bytes_text
from gtrace.core.ir.aval import Aval, Bundle, contiguous_strides
from gtrace.core.ir.graph import Graph, Node, subgraphs
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.routes import Parts, Route
from gtrace.core.trace.array import Array
from gtrace.core.trace.record import Donation, Trace
from gtrace.core.transform.eval_shape import capture_like
from gtrace.observe import html

__all__ = ["memory", "peak_memory"]

MAX_ROWS = 20
"""The number of printed lines."""


# -- current memory


@attrs.frozen
class LiveMemory:
    """The memory of the Arrays that one line made.

    Attributes:
        line: the user's line; empty if unknown.
        nbytes: bytes of their values. Arrays that share memory count once.
        arrays: the number of Arrays.
        kinds: the number of Arrays of each type.
    """

    line: str
    nbytes: int
    arrays: int
    kinds: dict[str, int]


class Memory(list[LiveMemory]):
    """The memory by line, largest first. It prints as a table, also in notebooks.

    Attributes:
        pending: Arrays without a value, and so without memory.
        kept: bytes of values that only pending operations need.
    """

    def __init__(self, lines: Sequence[LiveMemory], pending: int, kept: int = 0) -> None:
        super().__init__(lines)
        self.pending, self.kept = pending, kept

    @property
    def nbytes(self) -> int:
        """The bytes of all Arrays."""
        return sum(row.nbytes for row in self)

    def __repr__(self) -> str:
        return (
            f"<Memory: {bytes_text(self.nbytes)} in {sum(row.arrays for row in self)} arrays; print it for the table>"
        )

    def __str__(self) -> str:
        lines = [self._head(), *[f"{a:>10} {b:>7}  {c}  {d}".rstrip() for a, b, c, d in map(_cells, self[:MAX_ROWS])]]
        if len(self) > MAX_ROWS:
            lines.append(f"and {len(self) - MAX_ROWS} more lines")
        return "\n".join(lines)

    def _head(self) -> str:
        text = (
            f"{bytes_text(self.nbytes)} in {sum(row.arrays for row in self)} arrays; {self.pending} have no value yet"
        )
        if self.kept:
            text += f", and what is pending keeps {bytes_text(self.kept)} besides"
        if any(not row.line for row in self):
            text += "; lines are known of arrays made after tracemalloc.start(25)"
        return text

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        heads = ("bytes", "arrays", "line", "types")
        return html.fragment(html.tag("div", self._head()), html.table(heads, map(_cells, self[:MAX_ROWS]), heads[:2]))


def _cells(row: LiveMemory) -> tuple[str, str, str, str]:
    kinds = sorted(row.kinds.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{count} x {kind}" for kind, count in kinds[:4]) + ", ..." * (len(kinds) > 4)
    return bytes_text(row.nbytes), str(row.arrays), row.line or "unknown line", shown


def memory() -> Memory:
    """Return the bytes of this process's Arrays, by the user's line that made them.

    Lines come from Python's `tracemalloc`. They are known for Arrays made while it traces enough frames:
    ``tracemalloc.start(25)``, or ``PYTHONTRACEMALLOC=25``.

    >>> import tracemalloc
    >>> tracemalloc.start(25)
    >>> x = gt.ones((512, 512)).block_until_ready()
    >>> held = max(gt.memory(), key=lambda row: row.kinds.get("f32[512,512]", 0))
    >>> tracemalloc.stop()
    >>> held.nbytes, held.kinds
    (1048576, {'f32[512,512]': 1})
    """
    rows: dict[str, tuple[int, int, dict[str, int]]] = {}
    storages: set[int] = set()
    pending = 0
    traces = []
    for x in gc.get_objects():
        if type(x) is Trace and x.capture is None:
            traces.append(x)
        if type(x) is not Array:
            continue
        tensor = getattr(x, "_buf", None)  # another thread may not have finished making it
        if tensor is None:
            pending += type(getattr(x, "_trace", None)) is not Donation
            continue
        storage = tensor.untyped_storage()
        own = 0 if storage.data_ptr() in storages else storage.nbytes()
        storages.add(storage.data_ptr())
        line = _line(x)
        nbytes, arrays, kinds = rows.get(line, (0, 0, {}))
        kinds[repr(x.aval)] = kinds.get(repr(x.aval), 0) + 1
        rows[line] = nbytes + own, arrays + 1, kinds
    found = [LiveMemory(line, *row) for line, row in rows.items()]
    needed = [leaf.untyped_storage() for trace in traces for leaf in list(trace.leaves) if type(leaf) is torch.Tensor]
    kept = {storage.data_ptr(): storage.nbytes() for storage in needed if storage.data_ptr() not in storages}
    return Memory(sorted(found, key=lambda row: -row.nbytes), pending, sum(kept.values()))


def _line(x: Array) -> str:
    trace = tracemalloc.get_object_traceback(x)
    for frame in reversed(trace or ()):
        if is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


# -- predicted memory


@attrs.frozen
class PeakMemory:
    """The predicted memory of a function when interpreted.

    Attributes:
        inputs: bytes of its arguments, and of outside Arrays that it uses.
        outputs: bytes of its results.
        peak: the most bytes that are live at once, including inputs.
        operation: the operation that runs at the peak.
        line: the user's line of that operation; empty if unknown.
    """

    inputs: int
    outputs: int
    peak: int
    operation: str
    line: str

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return (
            f"peak {bytes_text(self.peak)} at {self.operation}{where}: inputs {bytes_text(self.inputs)}, outputs"
            f" {bytes_text(self.outputs)}"
        )


def peak_memory(f: Callable[..., Any], *args: Any, **kwargs: Any) -> PeakMemory:
    """Predict the peak memory of `f` for these arguments, without running it.

    The interpreter's calls are made in order on tensors without data. Values are dropped after their last use, as
    in a run. Temporary memory inside a library call is not counted. A compiled program usually
    needs less.

    Args:
        args, kwargs: pytrees of arrays, numbers or `gt.ShapeDtypeStruct`.

    Raises:
        ArgumentError: the program runs on several processes; see `gt.sharding.plan`.
        ConcretizationError: `f` reads a value.

    >>> x = gt.ShapeDtypeStruct((1024, 1024), "float32")
    >>> print(gt.peak_memory(lambda x: ((x @ x) * 2 + x.T @ x).sum(), x))
    peak 16.0 MiB at mul (<doctest gtrace.observe.memory.peak_memory[1]>:1): inputs 4.0 MiB, outputs 4 B
    """
    graph = capture_like("peak_memory", f, args, kwargs).graph
    route = engine.cut(graph, [contiguous_strides(a.shape) for a in graph.avals])
    if route.avals is not None:
        fix = "gt.sharding.plan says what each process holds."
        raise ArgumentError(message("peak_memory", "a program of one process", "arrays with shardings", fix))
    return predict(route, graph.avals)


@without_modes
def predict(route: Route | Parts, avals: Sequence[Aval]) -> PeakMemory:
    """Return the predicted memory of a program for arguments of these types."""
    meter = _Meter()
    inputs = [meter.empty(a) for a in avals]
    held = meter.live
    run = meter.run(route)
    with meter.mode():
        outputs = run(inputs)
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in outputs}
    for x in inputs:
        storages.pop(x.untyped_storage()._cdata, None)
    return PeakMemory(held, sum(storages.values()), meter.peak, meter.operation, meter.line)


class _Meter:
    """Counts the bytes of storages of tensors without data, as they are made and freed.

    Attributes:
        live: the current bytes.
        peak: the most bytes so far, with the `operation` and `line` at that time.
    """

    def __init__(self) -> None:
        self.live = self.peak = 0
        self.operation = self.line = ""
        self._known: set[int] = set()
        self._node: Node | None = None

    def count(self, x: object) -> None:
        """Count the memory of a tensor, until it is freed."""
        if isinstance(x, torch.Tensor) and x.device.type == "meta":
            storage = x.untyped_storage()
            key, nbytes = storage._cdata, storage.nbytes()
            if key not in self._known:
                self._known.add(key)
                weakref.finalize(storage, self._free, key, nbytes)
                self.live += nbytes
                self.note(0)

    def note(self, more: int) -> None:
        """Update the peak for this many additional bytes."""
        if self.live + more > self.peak:
            self.peak = self.live + more
            if self._node is not None:
                self.operation, self.line = self._node.op.name, self._node.location or ""

    def _free(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live -= nbytes

    def empty(self, a: Aval) -> torch.Tensor:
        """Return a tensor without data."""
        out = torch.empty(a.shape, dtype=a.dtype, device="meta")
        self.count(out)
        return out

    def mode(self) -> Any:
        """Return a mode that counts every tensor that torch makes."""
        meter = self

        class Counting(DISPATCH_MODE.get()):  # type: ignore[misc]  # looked up at first use
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = function(*args, **(kwargs or {}))
                for x in out if isinstance(out, (tuple, list)) else (out,):
                    meter.count(x)
                return out

        return Counting()

    def run(self, route: Route | Parts) -> TensorFunction:
        """Return a function that runs a route as the engine does, with interpreters whose memory is counted."""
        if isinstance(route, Parts):
            calls = route.calls
            assert isinstance(calls, CallSequence)  # other calls have shardings
            steps = [attrs.evolve(step, run=self.run(way)) for step, way in zip(calls.steps, route.routes, strict=True)]
            return attrs.evolve(calls, steps=tuple(steps)).run
        if route.program is None:
            return lambda tensors: [tensors[-1 - k] for k in route.outputs]
        interpret = self.interpreter(route.program.graph)

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            given = list(tensors) if route.returns_inputs else tensors
            chosen = [tensors[k] for k in route.inputs]
            if isinstance(tensors, Owned):
                chosen = Owned(chosen)
                tensors.clear()
            results = interpret(chosen)
            return [results[k] if k >= 0 else given[-1 - k] for k in route.outputs]

        return run

    def interpreter(self, graph: Graph) -> TensorFunction:
        """Return the interpreter of a graph, for tensors without data."""
        return interpreter(graph, self._around)

    def _around(self, node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        # for a loop or branch, the peak of one run of a body
        inside = max((_body_bytes(sub.graph) for sub in subgraphs(node.params)), default=0)

        def call(*operands: torch.Tensor) -> Any:
            self._node = node
            if node.op.rules.body is not None:
                results = self._results(node)
                self.note(inside)
                return results
            try:
                return function(*operands)
            except UnsupportedTorchError:
                raise
            except (RuntimeError, NotImplementedError):
                return self._results(node)  # the function reads values

        return call

    def _results(self, node: Node) -> Any:
        a = node.instr.aval
        return [self.empty(one) for one in a.avals] if isinstance(a, Bundle) else self.empty(a)


def _body_bytes(graph: Graph) -> int:
    """Return the peak bytes of a body beside its inputs."""
    return _body_peak(graph) - sum(a.nbytes for a in graph.avals)


@functools.lru_cache(maxsize=256)
def _body_peak(graph: Graph) -> int:
    meter = _Meter()
    inputs = [meter.empty(a) for a in graph.avals]
    run = meter.interpreter(graph)
    with meter.mode():
        run(inputs)
    return meter.peak
