"""The immutable array, and forcing: running what was recorded because somebody needs a value."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import numpy as np
import torch

from gtrace.core.backends.interpreter.result_strides import in_one_form
from gtrace.core.base.config import config
from gtrace.core.base.dtypes import BY_TORCH, DType
from gtrace.core.base.errors import DtypeError, ImmutableError, ShapeError, user_location
from gtrace.core.base.events import Forced, bus
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.base.tree.treedef import leaf_class
from gtrace.core.ir.aval import BIT_DTYPES, LONG, Aval, aval
from gtrace.core.ir.op import Leaf, leaf
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.partitioner import workers
from gtrace.core.passes.deferred_updates import DeferredUpdate
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.sharded import Placed, placed, run_checked
from gtrace.core.trace.array_text import array_text, elements_text
from gtrace.core.trace.completion import WRITING, Completion, assign
from gtrace.core.trace.lazy_outputs import DerivedTrace
from gtrace.core.trace.no_value import concretization, leaked
from gtrace.core.trace.record import Donation, Trace, thread

if TYPE_CHECKING:
    from gtrace.interop.tensor_methods import TensorMethods as _Methods
else:
    _Methods = object

__all__ = ["Array"]


@attrs.frozen(eq=False)
class Shard:
    """A part of an array that this process holds.

    Attributes:
        data: the part, as an array of this process alone.
        index: its place in the array.
        rank: the process.
        replica_id: which one it is of the equal parts that processes hold, counted from 0.
    """

    data: Array
    index: tuple[slice, ...]
    rank: int
    replica_id: int


_ref = weakref.ref


@leaf_class
class Array(_Methods):
    """An immutable, lazily computed array.

    Operations on Arrays are recorded; looking at a value (``float``, ``print``, ``numpy``, ``gt.eval`` ...) runs what
    was recorded. Make Arrays with ``gt.array``, ``gt.zeros`` and their like.

    Attributes:
        aval: shape, dtype and device.
    """

    __slots__ = ("aval", "_trace", "_number", "_buf", "_leaf", "__weakref__")

    aval: Aval
    _trace: Trace | None  # the pending trace that will compute it; None once there is a value
    _number: int  # its number there; the inputs of a running gradient have negative ones
    _buf: torch.Tensor | None
    _leaf: Leaf | None  # its record as an input of a trace; None: not made yet

    # NumPy leaves ndarray + Array to Array.__radd__; its functions convert an Array by __array__
    __array_priority__ = 1000

    def __init__(self, *_: Any) -> None:
        raise TypeError("gt.Array is not made by calling it. Use gt.array, gt.asarray, gt.zeros, ...")

    def __init_subclass__(cls, of_keys: bool = False) -> None:
        if not of_keys:
            raise TypeError("gt.Array cannot be subclassed. Wrap it in a pytree class instead (gt.tree.register).")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        """The element type; it equals torch's, NumPy's and its name."""
        return BY_TORCH[self.aval.dtype]

    @property
    def device(self) -> torch.device:
        """Where the value lives."""
        return self.aval.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.aval.nbytes

    @property
    def sharding(self) -> NamedSharding | None:
        """Which part each process holds; None: this process has the value, and others have nothing to do with it.

        Asking for it computes the value: the layouts of results follow from the program as a whole.
        """
        if self._buf is None and (self._trace is None or self._trace.capture is None):
            materialize(self, "sharding")
        return self.aval.sharding

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process holds: one, or none if it is not in the mesh."""
        sharding, data, rank = self.sharding, wrap(materialize(self, "sharding")), workers.rank()
        if sharding is None:
            return [Shard(data, tuple(slice(0, n) for n in self.shape), rank, 0)]
        if rank not in sharding.mesh.ranks:
            return []
        index = sharding.index(self.shape, rank)
        equal = [other for other in sharding.mesh.ranks if sharding.index(self.shape, other) == index]
        return [Shard(data, index, rank, equal.index(rank))]

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.aval.dtype.itemsize

    # looking at values

    def item(self, *index: int) -> bool | int | float | complex:
        """Return the one element, or the one at `index`, as a Python scalar.

        Args:
            index: a place in the flattened array, or one for each axis.

        Raises:
            ValueError: there is not exactly one element.
        """
        if index:
            return (self.reshape(-1)[index[0]] if len(index) == 1 else self[index])._item("item")
        return self._item("item")

    def tolist(self) -> Any:
        """Return the elements as nested Python lists."""
        return _to_list(whole(self, "tolist"))

    def numpy(self) -> np.ndarray:
        """Return the value as a read-only NumPy array; on the CPU it shares memory."""
        return self._numpy("numpy")

    def to_torch(self, *, copy: bool = True) -> torch.Tensor:
        """Return the value as a torch tensor.

        With ``copy=False`` the tensor shares memory with this Array, and writing to it breaks the promise that Arrays
        never change.
        """
        tensor = whole(self, "to_torch")
        return _clone(tensor) if copy else _detach(tensor)

    def block_until_ready(self) -> Array:
        """Compute the value now; returns self."""
        tensor = materialize(self, "block_until_ready")
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        return self

    def _item(self, cause: str) -> Any:
        if self.aval.size != 1:
            raise ShapeError(
                f"[{cause}] expected an array with one element, got {self.aval!r}. Reduce or index it first."
                f" (at {user_location()})"
            )
        return _to_item(whole(self, cause))

    def _numpy(self, cause: str) -> np.ndarray:
        tensor = whole(self, cause)
        if tensor.dtype in BIT_DTYPES:
            name = LONG[tensor.dtype]
            try:
                out = _to_numpy(_bits(tensor)).view(name)
            except TypeError:
                fix = "Use x.astype(gt.float32) first, or import ml_dtypes."
                raise DtypeError(f"[numpy] expected a dtype that NumPy has, got {name}. {fix}") from None
        else:
            out = _to_numpy(tensor)
        out.flags.writeable = False
        return out

    def __bool__(self) -> bool:
        return bool(self._item("bool"))

    def __int__(self) -> int:
        return int(self._item("int"))

    def __float__(self) -> float:
        return float(self._item("float"))

    def __complex__(self) -> complex:
        return complex(self._item("complex"))

    def __index__(self) -> int:
        if self.aval.floating or self.aval.dtype is torch.bool:
            raise TypeError(f"[index] expected an integer array, got {self.aval!r}. Use x.astype(gt.int64).")
        return int(self._item("index"))

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("[len] expected an array with a dimension, got a 0-d array. Use .size.")
        return self.aval.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.aval.shape:
            raise TypeError("[iter] expected an array with a dimension, got a 0-d array. Use x.item().")
        return iter([self[k] for k in range(self.aval.shape[0])])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = self._numpy("numpy")
        if dtype is not None and out.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"[numpy] expected a dtype that needs no copy, got {dtype} for {out.dtype}. Allow the copy."
                )
            return out.astype(dtype)
        return out.copy() if copy else out

    def __dlpack__(self, **kwargs: Any) -> Any:
        return whole(self, "dlpack").__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.aval.device).__dlpack_device__()

    def __repr__(self) -> str:
        if self._buf is None and self._trace.__class__ is Donation:
            return f"Donated({LONG[self.aval.dtype]}{list(self.aval.shape)})"
        if self._buf is None and self._trace is not None and self._trace.capture is not None:
            return f"Traced({LONG[self.aval.dtype]}{list(self.aval.shape)})"
        return array_text(_to_numpy(whole(self, "print")), LONG[self.aval.dtype], weak=self.aval.weak)

    def __str__(self) -> str:
        if self._buf is None and self._trace is not None and self._trace.capture is not None:
            return repr(self)
        return elements_text(_to_numpy(whole(self, "print")), LONG[self.aval.dtype])

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(self._item("format"), spec)

    # immutability

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ImmutableError(
            f"gt.Array is immutable. Instead of x[idx] = y use x = x.at[idx].set(y) (at {user_location()})"
        )

    def __delitem__(self, index: Any) -> NoReturn:
        raise ImmutableError(f"gt.Array is immutable. Build the array you want with indexing (at {user_location()})")

    def backward(self) -> NoReturn:
        """Raise: gradients are functions here."""
        raise ImmutableError(
            "gt.Array has no .backward(). Write the loss as a function f(params) and use gt.value_and_grad(f)(params)"
            f" (at {user_location()})"
        )

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return self

    def __reduce__(self) -> Any:
        tensor = whole(self, "pickle")
        device = None if self.aval.device.type == "cpu" else str(self.aval.device)
        bits = tensor.dtype in BIT_DTYPES
        name = LONG[tensor.dtype] if bits else None
        return _unpickle, (_to_numpy(_bits(tensor) if bits else tensor), name, device)


_new = object.__new__


@without_modes
def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    host = (tensor.float() if tensor.dtype in BIT_DTYPES else tensor).cpu()
    if host.untyped_storage().resizable():
        # from here on torch says that it is not, as of memory that came from outside; see `gtrace.core.trace.donation`
        host.made_by_torch = True  # type: ignore[attr-defined]
    return host.numpy()


@without_modes
def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(BIT_DTYPES[tensor.dtype])


_to_list = without_modes(torch.Tensor.tolist)
_to_item = without_modes(torch.Tensor.item)
_clone = without_modes(torch.Tensor.clone)
_detach = without_modes(torch.Tensor.detach)


@without_modes
def _unpickle(value: np.ndarray, dtype: str | None, device: str | None) -> Array:
    tensor = torch.from_numpy(value.copy())
    if dtype is not None:
        tensor = tensor.view(getattr(torch, dtype))
    return wrap(tensor if device is None else tensor.to(device))


def wrap(tensor: torch.Tensor, weak: bool = False) -> Array:
    """Return an Array of this very tensor, which nobody may write to any more."""
    return wrap_as(tensor, aval(tuple(tensor.shape), tensor.dtype, tensor.device, weak))


def wrap_as(tensor: torch.Tensor, a: Aval, kind: Leaf | None = None) -> Array:
    """Return an Array of this very tensor, whose aval, and perhaps `Leaf`, is known."""
    out: Array = _new(Array)
    out.aval = a
    out._trace = None
    out._number = -1
    out._buf = tensor
    out._leaf = kind
    return out


def fresh(x: Array) -> Array:
    """Return another Array of the value that `x` has; gradients distinguish the two."""
    out: Array = _new(Array)
    out.aval = x.aval
    out._trace = None
    out._number = -1
    out._buf = x._buf
    # noted on `x`, of which each call of a gradient makes another copy
    out._leaf = x._leaf or layout(x)
    return out


_in_one_form = without_modes(in_one_form)


def layout(x: Array) -> Leaf:
    """Return the aval of an Array that has a value, with the strides of its buffer."""
    kind = x._leaf
    if kind is None:
        assert x._buf is not None
        if 1 in x._buf.shape:
            x._buf = _in_one_form(x._buf)
        x._leaf = kind = leaf(x.aval, x._buf.stride())
    return kind


def materialize(x: Array, cause: str) -> torch.Tensor:
    """Return the value of `x`, computing it, and all else that is pending with it, if need be.

    Raises:
        ConcretizationError: `x` is a placeholder of a function being traced.
        LeakError: `x` is a placeholder of a function whose trace is over.
        DonatedError: `x` was given away.
        ExecutionError: torch refused an operation because of the values.
    """
    # read these before the value: another thread that computes it sets the value first and clears these afterwards
    trace, number = x._trace, x._number
    tensor = x._buf
    if tensor is not None:
        if thread.segmentation.lost:
            # it was cut off by mistake, before somebody looks at it
            _follow(cause, len(thread.trace.refs))
        return tensor
    assert trace is not None
    if trace.capture is not None:
        raise leaked(x) if trace.closed else concretization(x, cause)
    if trace is thread.trace:
        flush(cause)
        if x._buf is not None:
            return x._buf
    # pending in another thread, or part of a program that failed: compute x alone
    program = trace.decode([number])
    with WRITING:
        completion = trace.completion
        inputs = trace.inputs(program) if completion is None else []
    if completion is not None:  # its inputs may have been written over
        completion.finish()
        return x._buf if x._buf is not None else materialize(x, cause)
    if Forced in bus.wanted:
        bus.emit(Forced(cause, user_location(), len(program.graph.nodes)))
    if config.current.debug_nans:
        tensors = run_checked(program.graph, inputs)
    else:
        route = engine.divide(program.graph, program.strides)
        tensors = placed(engine.call(route, inputs), route.avals)
    if x._buf is None:
        if isinstance(tensors, Placed):
            x.aval = tensors.avals[0]
        x._buf = tensors[0]
        if trace.__class__ is DerivedTrace:
            x._trace = None  # which has other tensors
    return x._buf


def whole(x: Array, cause: str) -> torch.Tensor:
    """Return the whole value of `x`, gathered if processes hold parts of it. For the errors see `materialize`."""
    tensor = materialize(x, cause)
    sharding = x.aval.sharding
    if sharding is None or (sharding.is_fully_replicated and sharding.mesh.size == workers.count()):
        return tensor
    return engine.whole(layout(x), tensor)


def flush(cause: str) -> None:
    """Run the pending program of this thread; its results go to the Arrays that are still alive."""
    trace = thread.trace
    live: list[Array] = []  # what user code still holds and has no value yet
    numbers: list[int] = []
    for reference in trace.refs:
        held = reference()
        if held is not None and held._buf is None and held.aval.__class__ is Aval:
            live.append(held)
            numbers.append(held._number)
    held = None  # whose value may not be needed any more
    if not live:
        if trace.tape is None:
            thread.begin()
            _follow(cause, 0)
        return
    if thread.trace is not trace:
        return  # a signal handler has run it meanwhile
    if Forced in bus.wanted:
        bus.emit(Forced(cause, user_location(), len(trace.refs)))
    thread.begin()
    trace.closed = True
    if thread.segmentation.watching:
        _follow(cause, len(trace.refs))
    deferred: list[DeferredUpdate] | None = None
    if (config.process if config.blocks() is None else config.current).debug_nans:
        # checked as it was recorded: a rewritten program would show other operations
        program = trace.decode(numbers)
        results = run_checked(program.graph, trace.inputs(program))
    else:
        marks = trace.marks
        plain = trace.tape is None and not marks
        if plain:
            deferred = []
        results = engine.recorded(
            (tuple(trace.flat), tuple(numbers), marks),
            tuple(trace.scalars),
            lambda: trace.decode(numbers),
            trace.leaves,
            marks,
            plain,
            deferred,
        )
    if results.__class__ is Placed:
        for x, a in zip(live, results.avals, strict=True):
            x.aval = a
    if deferred:
        completion = Completion(trace, live, numbers, results, deferred)
        with WRITING:
            trace.completion = completion
        del results, deferred
        completion.finish()
        return
    assign(trace, live, numbers, results, -1 if trace.tape is None else thread.mark)


def _follow(cause: str, pending: int) -> None:
    """Notify the thread's loop segmentation that a trace ended because somebody looks at a value."""
    segmentation = thread.segmentation
    if segmentation.watching and cause not in ("period", "budget") and segmentation.looked(pending):
        thread.trace.limit = 0


def evaluate(arrays: Sequence[Array], cause: str) -> None:
    """Compute the values of `arrays` and of all that is pending with them."""
    for x in arrays:
        if x._buf is None:
            materialize(x, cause)
