"""Calls of functions of torch at new sizes, each recorded as a single operation.

A trace with open sizes gives the calls of aten for the sizes of a call. To record each of these takes many times what
torch takes to run it. So the whole is a named call, whose body is recorded once somebody reads it, as to compile it.
Until then torch makes the calls one after the other, and its autograd the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import ExecutionError, message
from gtrace.core.base.mechanisms import NAMED_CALLS
from gtrace.core.base.open_numbers import Value
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.resizing import NotOpenError
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import followed, thread
from gtrace.core.transform.named import NamedFunction
from gtrace.interop.aten.custom_functions import CUSTOM
from gtrace.interop.aten.derive import Derived, recorded
from gtrace.interop.aten.open_sizes import Open
from gtrace.interop.aten.overloads import ATTENTION
from gtrace.interop.aten.traced_calls import BY_MEMORY, Step, TracedCall, Type
from gtrace.interop.aten.translate import RECORDED, record_calls
from gtrace.interop.aten.versions import Version

LEAST_CALLS = 8
"""Calls of aten that are worth a single operation, at least: with fewer little is saved."""

MOST_NUMBERS = 64
"""Sizes of which the open numbers are kept."""

Tensors = Sequence[torch.Tensor]


@attrs.frozen(eq=False)
class SingleCall:
    """A traced function with open sizes, whose call is a single operation.

    Attributes:
        name: of the function, in errors.
        traced: its calls of aten.
        integers: of each leaf of its arguments, in order: None for an array, or an integer.
        version: the sizes for which the trace holds.
        constants: the tensors that it reads besides its arguments; they follow these.
        returned: of each result the place of the argument that it is; None: it is computed.
        count: how many calls of aten it makes.
        run: makes the calls: (arguments and constants, open numbers) -> the results that are computed.
    """

    name: str
    traced: TracedCall
    integers: tuple[int | None, ...]
    version: Version[TracedCall]
    constants: tuple[Array, ...]
    returned: tuple[int | None, ...]
    count: int
    run: Callable[[Tensors, Sequence[Value]], list[torch.Tensor]]
    _numbers: BoundedTable[tuple[Aval, ...], list[Value]] = attrs.field(factory=lambda: BoundedTable(MOST_NUMBERS))
    _apart: BoundedTable[tuple[Aval, ...], Derived] = attrs.field(factory=lambda: BoundedTable(MOST_NUMBERS))
    _derived: BoundedTable[tuple[bool, ...], bool] = attrs.field(factory=lambda: BoundedTable(MOST_NUMBERS))

    @classmethod
    def of(
        cls, name: str, traced: TracedCall, integers: Sequence[int | None], version: Version[TracedCall]
    ) -> SingleCall | None:
        """Return a function that can be a single operation; None: it is short, or has calls that torch cannot make."""
        calls = [step for step in traced.steps if step.kind == "call"]
        if len(calls) < LEAST_CALLS or traced.custom or any(map(_is_special, calls)):
            return None
        inputs = {step: k for k, step in enumerate(step for step in traced.steps if step.kind == "input")}
        if not all(isinstance(step, Step) for step in traced.outputs):
            return None
        returned = tuple([inputs.get(step) for step in traced.outputs])
        if None not in returned:
            return None
        constants = tuple([lift("torch", x) for x in traced.constants.values()])
        return cls(
            name, traced, tuple(integers), version, constants, returned, len(calls), _written(traced, list(inputs))
        )

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def weight(self) -> int:
        """The approximate bytes of a call: those of the trace count for its version."""
        return SMALL

    def numbers(self, avals: Sequence[Aval]) -> list[Value]:
        """Return the open numbers of the trace for arguments of these types.

        Raises:
            NotOpenError: it does not hold for their sizes.
        """
        key = tuple(avals[: self.integers.count(None)])
        found = self._numbers.get(key)
        if found is None:
            rest = iter(key)
            given: list[int] = []
            for n in self.integers:
                given += next(rest).shape if n is None else (n,)
            found = self.version.numbers(given)
            if found is None:
                raise NotOpenError(f"the trace of {self.name} does not hold for {key}")
            self._numbers.remember(key, found)
        return found

    def types(self, avals: Sequence[Aval]) -> tuple[Aval, ...]:
        """Return the types of the results that are computed."""
        numbers = self.numbers(avals)
        computed = [step for step, place in zip(self.traced.outputs, self.returned, strict=True) if place is None]
        return tuple([_type(step.results, numbers) for step in computed])

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Record a call: as a single operation, or each call of aten by itself where somebody must see them."""
        given = [cast(x, x.aval.dtype) for x in inputs]
        if not self._takes(given):
            avals = tuple([x.aval for x in given])
            apart = self._apart.get(avals)
            if apart is None:
                apart = recorded(self.traced, avals, None, self.numbers(avals))
                self._apart.remember(avals, apart)
            return apart(given)
        results = iter(_NAMED(self._record, [*given, *self.constants], self))
        return [next(results) if place is None else given[place] for place in self.returned]

    def _takes(self, arrays: Sequence[Array]) -> bool:
        """Whether a call may be a single operation."""
        if not NAMED_CALLS.on or not thread.trace.runs or thread.layout is not None or config.current.eager:
            return False
        avals = [x.aval for x in arrays]
        if any(a.sharding is not None for a in avals):
            return False
        wanted = tuple([x.aval.floating and followed(x) for x in arrays])
        if not any(wanted):
            return True
        known = self._derived.get(wanted)
        if known is None:
            known = self._is_derived(avals, wanted)
            self._derived.remember(wanted, known)
        return known

    def _is_derived(self, avals: Sequence[Aval], wanted: tuple[bool, ...]) -> bool:
        """Whether torch's autograd derives a call: it has one result of floats, and each operator a derivative."""
        made = self.types(avals)
        if not made[0].floating or any(a.floating for a in made[1:]) or any(a.complex for a in (*made, *avals)):
            return False
        zeros = [torch.zeros(a.shape, dtype=a.dtype, device=a.device) for a in (*avals, made[0])]
        constants = [whole(x, self.name) for x in self.constants]
        gradient = _Gradient(self, self.numbers(avals), (*wanted, *[False] * len(constants)))
        try:
            gradient(*zeros[:-1], *constants, zeros[-1])
        except (RuntimeError, IndexError, ValueError):  # also of values that zeros are not valid for
            return False
        return True

    def _record(self, operands: Sequence[Array]) -> Sequence[Array]:
        """Record the calls of aten one by one."""
        count = len(operands) - len(self.constants)
        constants = dict(zip(self.traced.constants, operands[count:], strict=True))
        numbers = self.numbers([x.aval for x in operands])
        found = record_calls(self.traced, operands[:count], None, numbers, constants)
        return [x for x, place in zip(found, self.returned, strict=True) if place is None]


def _is_special(step: Step) -> bool:
    draws = step.random and not step.name.startswith(ATTENTION)  # that is traced without dropout
    return draws or step.name == CUSTOM or step.name in RECORDED or step.name in BY_MEMORY


def _type(results: Type, numbers: Sequence[Value]) -> Aval:
    shape: Any = tuple([numbers[n.place] if n.__class__ is Open else n for n in results.shape])
    return aval(shape, results.dtype, results.device)


def _results(avals: Sequence[Aval], settings: Any) -> tuple[Aval, ...]:
    call: SingleCall = settings[0]
    return call.types(avals)


# -- torch's own calls


@attrs.frozen(eq=False)
class _Gradient:
    """Runs the gradient of a call, by torch's autograd.

    Attributes:
        call: the function.
        numbers: its open numbers.
        wanted: which operands need a cotangent.
    """

    call: SingleCall
    numbers: Sequence[Value]
    wanted: tuple[bool, ...]

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        return self._pulled(*self._followed(tensors[:-1]), tensors[-1])

    def pair(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the call, which keeps what autograd needs, and the gradient, which takes that."""
        held: list[Any] = []

        def forward(*tensors: torch.Tensor) -> list[torch.Tensor]:
            held[:] = self._followed(tensors)
            return [x.detach() for x in held[1]]

        def gradient(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
            leaves, results = held
            held.clear()
            return self._pulled(leaves, results, tensors[-1])

        return forward, gradient

    def _followed(self, tensors: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return operands and results between which autograd knows the way."""
        leaves = [x.detach().requires_grad_(flag) for x, flag in zip(tensors, self.wanted, strict=True)]
        with torch.enable_grad():
            return leaves, self.call.run(leaves, self.numbers)

    def _pulled(self, leaves: Tensors, results: Tensors, ct: torch.Tensor) -> Sequence[torch.Tensor]:
        wanted = tuple([x for x in leaves if x.requires_grad])
        if not results[0].requires_grad:
            return [torch.zeros_like(x) for x in wanted]
        # torch.autograd.grad imports sympy, which takes half a second
        found = internals.RUN_BACKWARD.get()((results[0],), (ct,), False, False, wanted, True, accumulate_grad=False)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def _kernel(avals: Sequence[Aval], settings: Any) -> Callable[..., list[torch.Tensor]]:
    call: SingleCall = settings[0]
    numbers = call.numbers(avals)
    return lambda *tensors: call.run(tensors, numbers)


def _gradient_kernel(avals: Sequence[Aval], settings: Any) -> _Gradient:
    call, wanted = settings
    return _Gradient(call, call.numbers(avals), wanted)


def _operations(settings: Any) -> int:
    call, *wanted = settings
    return call.count * (3 if wanted else 1)  # the gradient of a product is two products


_NAMED = NamedFunction(
    "torch", results=_results, kernel=_kernel, gradient_kernel=_gradient_kernel, operations=_operations
)


def _written(traced: TracedCall, inputs: Sequence[Step]) -> Callable[[Tensors, Sequence[Value]], list[torch.Tensor]]:
    """Return a function that makes the calls of a trace, as Python code: each takes what it takes in eager torch."""
    space: dict[str, Any] = {"Wrong": _wrong_size}
    names: dict[Step, str] = {step: f"x{k}" for k, step in enumerate(inputs)}
    last: dict[Step, int] = {}

    def text(value: Any, at: int) -> str:
        kind = value.__class__
        if kind is Step:
            last[value] = at
            return names[value]
        if kind is list or kind is tuple:
            return f"[{', '.join([text(x, at) for x in value])}]"
        if kind is Open:
            return f"n[{value.place}]"
        if kind in (int, bool, str) or value is None:
            return repr(value)
        space[f"c{len(space)}"] = value
        return f"c{len(space) - 1}"

    lines: list[tuple[int, str]] = []
    constants = [step for step in traced.steps if step.kind == "constant"]
    order = {name: k for k, name in enumerate(traced.constants)}
    for step in constants:
        names[step] = f"k{order[step.target]}"
    for at, step in enumerate(traced.steps):
        if step.kind not in ("call", "item"):
            continue
        name = names.setdefault(step, f"v{at}")
        last[step] = at
        if step.kind == "item":
            lines.append((at, f"{name} = {text(step.args[0], at)}[{step.target!r}]"))
            continue
        space[f"f{at}"] = step.target
        given = [text(x, at) for x in step.args] + [f"{key}={text(x, at)}" for key, x in step.kwargs.items()]
        lines.append((at, f"{name} = f{at}({', '.join(given)})"))
        if step.results.__class__ is Type and any(n.__class__ is Open for n in step.results.shape):
            shape = "".join([text(n, at) + ", " for n in step.results.shape])
            lines.append((at, f"if {name}.shape != ({shape}): raise Wrong({step.name!r}, {name}, ({shape}))"))
    kept = set(traced.outputs)
    dead: dict[int, list[str]] = {}
    for step, at in last.items():
        if step not in kept and step.kind in ("call", "item"):
            dead.setdefault(at, []).append(names[step])
    body = []
    for k, (at, line) in enumerate(lines):
        body.append(line)
        if at in dead and (k + 1 == len(lines) or lines[k + 1][0] != at):
            body.append(f"del {', '.join(dead[at])}")
    outputs = [names[step] for step in traced.outputs if step.kind != "input"]
    taken = "".join([f"x{k}, " for k in range(len(inputs))] + [f"k{k}, " for k in range(len(order))])
    source = "\n ".join([f"{taken.rstrip()} = x", *body, f"return [{', '.join(outputs)}]"])
    exec(f"def run(x, n):\n {source}", space)  # made of names and numbers
    made: Callable[[Tensors, Sequence[Value]], list[torch.Tensor]] = space["run"]
    return made


def _wrong_size(name: str, found: torch.Tensor, shape: tuple[int, ...]) -> ExecutionError:
    fix = "Please report it; GT_DISABLE=named_calls records each call by itself."
    return ExecutionError(message(name, f"a result of shape {shape}, as traced", str(tuple(found.shape)), fix))
