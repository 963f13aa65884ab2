"""``to_torch_function``: a gtrace function as a torch function that torch's autograd differentiates.

A call is one node of torch's autograd graph. Its forward pass and its gradient are two compiled programs, split from
one recording. The forward pass returns the residuals that the gradient needs.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.devices import as_device
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import dce
from gtrace.core.ops.complex_numbers import conj
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.convert import plain_tensor, with_own_memory
from gtrace.core.trace.force import whole
from gtrace.core.trace.promotion import as_dtype, wide
from gtrace.core.transform.arguments import lift_outputs
from gtrace.core.transform.jit import Jitted, jit
from gtrace.core.transform.vjp import vjp
from gtrace.interop.calls import static_key

__all__ = ["to_torch_function"]

Arrays = Sequence[Array]
Tensors = Sequence[torch.Tensor]
Flat = Callable[[Arrays], list[Array]]

MAX_PLANS = 1024
"""The number of argument kinds that a function caches."""

PLAN = 4000
"""Bytes of one cache entry without its programs, which jitted functions hold."""


@attrs.frozen(eq=False)
class _Compiled:
    """A graph that runs on tensors.

    Attributes:
        jitted: takes the inputs and the constants.
        constants: Arrays from outside.
    """

    name: str
    jitted: Jitted
    constants: Arrays

    @classmethod
    def of(cls, name: str, graph: Graph, constants: Arrays, options: dict[str, Any]) -> _Compiled:
        return cls(name, jit(lambda *arrays: replay(graph, arrays), **options), constants)

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return results with their own memory, because torch programs write to tensors."""
        arrays = [wrap(plain_tensor(self.name, x)) for x in tensors]
        results = [whole(x, self.name) for x in self.jitted(*arrays, *self.constants)]
        others = [whole(x, self.name) for x in (*arrays, *self.constants)]
        for k, x in enumerate(results):
            (results[k],) = with_own_memory([x], [*others, *results[:k]])
        return results


@attrs.frozen(eq=False)
class _Split:
    """A function and its gradient with respect to some inputs.

    Attributes:
        forward: maps inputs to outputs and residuals.
        backward: maps the cotangents, the `kept` values and the residuals to the gradients.
        kept: the inputs and outputs that the gradient needs; outputs are numbered after inputs.
    """

    forward: _Compiled
    backward: _Compiled
    kept: tuple[int, ...]


class _Plan:
    """A function of a flat list of tensors with certain types."""

    def __init__(self, name: str, flat: Flat, avals: Sequence[Aval], options: dict[str, Any]) -> None:
        self.name, self.flat, self.avals, self.options = name, flat, tuple(avals), options
        captured = capture(lambda xs: (flat(xs), None), avals, f"{name} called at {user_location()}")
        self.out_avals: Sequence[Aval] = captured.graph.out_avals
        self.run = _Compiled.of(name, captured.graph, captured.constants, options)
        self.inexact = [k for k, a in enumerate(self.out_avals) if a.floating or a.complex]
        self._splits: dict[tuple[int, ...], _Split] = {}
        self._gradients: dict[tuple[int, ...], _Plan] = {}

    def _gradient(self, wanted: tuple[int, ...], arrays: Arrays) -> tuple[list[Array], list[Array]]:
        """Return the outputs and the gradients by the `wanted` inputs, given the inputs and then the cotangents.

        For complex numbers, torch's gradients and cotangents are the conjugates of gtrace's.
        """
        inputs, cts = list(arrays[: len(self.avals)]), arrays[len(self.avals) :]

        def chosen(*values: Array) -> tuple[list[Array], list[Array]]:
            given = list(inputs)
            for k, x in zip(wanted, values, strict=True):
                given[k] = x
            outputs = self.flat(given)
            return [outputs[k] for k in self.inexact], outputs

        _, pullback, outputs = vjp(chosen, *[inputs[k] for k in wanted], has_aux=True)
        return outputs, [conj(g) for g in pullback([conj(ct) for ct in cts])]

    @property
    def _cotangents(self) -> list[Aval]:
        return [self.out_avals[k] for k in self.inexact]

    def split(self, wanted: tuple[int, ...]) -> _Split:
        """Return the two programs for a gradient by the `wanted` inputs."""
        found = self._splits.get(wanted)
        if found is None:
            self._splits[wanted] = found = self._make_split(wanted)
        return found

    def _make_split(self, wanted: tuple[int, ...]) -> _Split:
        def joint(arrays: Arrays) -> tuple[list[Array], None]:
            outputs, grads = self._gradient(wanted, arrays)
            return [*outputs, *grads], None

        captured = capture(joint, [*self.avals, *self._cotangents], f"the gradient of {self.name}")
        graph, count = captured.graph, len(self.out_avals)
        inputs, outputs = graph.inputs[: len(self.avals)], graph.outputs[:count]
        constants = graph.inputs[len(self.avals) + len(self.inexact) :]
        known = (*inputs, *constants)
        early, late = partial_eval(attrs.evolve(graph, outputs=graph.outputs[count:]), known, again=True)
        places = {value: k for k, value in reversed(list(enumerate((*inputs, *outputs))))}
        kept = [value for value in early.outputs if value in places]
        fixed = [value for value in early.outputs if value in constants and value not in places]
        new = [value for value in early.outputs if value not in places and value not in constants]
        table = graph.value_avals()
        forward = dce(Graph(known, tuple(table[v] for v in known), graph.nodes, (*outputs, *new)))
        cts = graph.inputs[len(self.avals) : len(self.avals) + len(self.inexact)]
        order = (*cts, *kept, *new, *fixed)
        backward = Graph(order, tuple(table[v] for v in order), late.nodes, late.outputs)
        values = dict(zip(constants, captured.constants, strict=True))
        return _Split(
            _Compiled.of(self.name, forward, captured.constants, self.options),
            _Compiled.of(self.name, backward, [values[v] for v in fixed], self.options),
            tuple(places[v] for v in kept),
        )

    def gradient(self, wanted: tuple[int, ...]) -> _Plan:
        """Return the gradient as a differentiable function of inputs and cotangents."""
        found = self._gradients.get(wanted)
        if found is None:
            avals = [*self.avals, *self._cotangents]
            name = f"the gradient of {self.name}"
            found = _Plan(name, lambda arrays: self._gradient(wanted, arrays)[1], avals, self.options)
            self._gradients[wanted] = found
        return found

    def apply(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return the outputs; if torch's autograd follows an input, it gets a node."""
        wanted: tuple[int, ...] = ()
        if torch.is_grad_enabled():
            wanted = tuple(k for k, x in enumerate(tensors) if x.requires_grad)
        if not wanted or not self.inexact:
            return self.run(tensors)
        return list(_Node.apply(self, wanted, *tensors)[: len(self.out_avals)])


class _Node(torch.autograd.Function):
    """A call in torch's autograd graph. Its outputs are the function's outputs and the residuals."""

    @staticmethod
    def forward(plan: _Plan, wanted: tuple[int, ...], *tensors: torch.Tensor) -> Any:
        return tuple(plan.split(wanted).forward(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        plan, wanted, *tensors = inputs
        count = len(plan.out_avals)
        ctx.plan, ctx.wanted = plan, wanted
        ctx.mark_non_differentiable(*[x for k, x in enumerate(output) if k not in plan.inexact])
        # the user may write to an output that the gradient does not need
        both = (*tensors, *output)
        later = [k for k in plan.split(wanted).kept if k >= len(tensors)]
        ctx.save_for_backward(*tensors, *[both[k] for k in later], *output[count:])
        ctx.places = {k: len(tensors) + n for n, k in enumerate(later)}

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        plan, wanted = ctx.plan, ctx.wanted
        saved = ctx.saved_tensors
        inputs = saved[: len(plan.avals)]
        cts = [grads[k] for k in plan.inexact]
        if torch.is_grad_enabled():  # it may be differentiated again
            found = plan.gradient(wanted).apply([*inputs, *cts])
        else:
            split = plan.split(wanted)
            kept = [saved[ctx.places.get(k, k)] for k in split.kept]
            found = split.backward([*cts, *kept, *saved[len(inputs) + len(ctx.places) :]])
        out: list[Any] = [None] * len(plan.avals)
        for k, grad in zip(wanted, found, strict=True):
            out[k] = grad
        return (None, None, *out)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *operands: Any) -> NoReturn:
        fix = "Use gt.vmap inside the function, and gt.jacrev for Jacobians."
        raise ArgumentError(message("to_torch_function", "a call outside of torch's batches", "torch.vmap", fix))


class TorchFunction:
    """A gtrace function of torch tensors; `to_torch_function` makes it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__: str = getattr(function, "__name__", type(function).__name__)
        self._function, self._options = function, options
        self._plans: BoundedTable[Hashable, tuple[_Plan, tree.TreeDef]] = BoundedTable(MAX_PLANS, PLAN)
        self._disabled: Any = None

    def __repr__(self) -> str:
        return f"<torch function {self.__name__}>"

    def __reduce__(self) -> Any:
        return TorchFunction, (self._function, self._options)  # a copy traces anew

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchFunction:
        if isinstance(self._function, types.FunctionType):
            return self  # functions of Python are copied like this, so the compiled code is kept
        return TorchFunction(copy.deepcopy(self._function, memo), self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if internals.dynamo_imported():
            # torch.compile breaks its graph here, and does not trace gtrace
            if self._disabled is None:
                self._disabled = torch.compiler.disable(self._call)
            return self._disabled(args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        leaves = [x.to_torch(copy=False) if type(x) is Array else x for x in leaves]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        avals = [aval(tuple(x.shape), as_dtype(x.dtype), as_device(x.device)) for x in tensors]
        rest = iter(avals)
        own = [next(rest) if isinstance(x, torch.Tensor) else static_key(self.__name__, x) for x in leaves]
        key = structure, wide(), *own
        found = self._plans.get(key)
        if found is None:
            found = self._plan(leaves, structure, avals)
            self._plans.remember(key, found)
        plan, out_structure = found
        return out_structure.unflatten(plan.apply(tensors))

    def _plan(self, leaves: list[Any], structure: tree.TreeDef, avals: list[Aval]) -> tuple[_Plan, tree.TreeDef]:
        result: list[tree.TreeDef] = []

        def flat(arrays: Arrays) -> list[Array]:
            rest = iter(arrays)
            rebuilt: Any = structure.unflatten([next(rest) if isinstance(x, torch.Tensor) else x for x in leaves])
            outputs, out_structure = lift_outputs(self.__name__, self._function(*rebuilt[0], **rebuilt[1]))
            result[:] = [out_structure]
            return outputs

        plan = _Plan(self.__name__, flat, avals, self._options)
        # only mark which leaves are tensors, so that this does not keep their memory alive
        leaves[:] = [_PLACE if isinstance(x, torch.Tensor) else x for x in leaves]
        return plan, result[0]


_PLACE = torch.empty(0)


def to_torch_function(
    f: Callable[..., Any], *, backend: str = "inductor", mode: str = "default", wait: float | bool | None = None
) -> TorchFunction:
    """Return a function of Arrays as one of torch tensors, for torch's training loops.

    torch's autograd differentiates it, to any order. `f` is traced and compiled once for each kind of arguments, as in
    `gt.jit`. Input tensors are not copied, and results have their own memory. A call inside ``torch.compile`` breaks
    its graph. Autocast has no effect inside: `f` computes in the dtypes of its inputs.

    Args:
        f: a pure function of pytrees.
        backend, mode, wait: as for `gt.jit`.

    Returns:
        A function of pytrees of tensors, nn.Parameters and hashable values, which are constants of the trace. It
        returns tensors in place of Arrays.

    Raises:
        ArgumentError: `f` is not a function; (when called) an argument is not hashable, or is a tensor without values,
            such as those of torch's tracers.
        ConcretizationError: (when called) `f` reads values.

    >>> import torch, gtrace as gt
    >>> norm = gt.to_torch_function(lambda x: gt.sqrt((x * x).sum()))
    >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> norm(x).backward()
    >>> x.grad
    tensor([0.6000, 0.8000])
    """
    if not callable(f):
        raise ArgumentError(message("to_torch_function", "a function", type(f).__name__, "Pass a callable."))
    return TorchFunction(f, {"backend": backend, "mode": mode, "wait": wait})
