"""``from_module``: a torch ``nn.Module`` as a pure function of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import attrs
import torch

from gtrace import tree
from gtrace.aten.derive import Derived
from gtrace.errors import ArgumentError, message
from gtrace.exact import exact_key
from gtrace.ir.aval import Aval
from gtrace.locks import new_lock
from gtrace.ops.create import array
from gtrace.random.continuous import normal, uniform
from gtrace.random.discrete import bernoulli
from gtrace.random.keys import as_key, fold_in
from gtrace.torch_functions import TENSOR, traced
from gtrace.trace.array import Array

__all__ = ["from_module"]

State = dict[str, Array]


@attrs.frozen(eq=False)
class _Traced:
    """A module traced for one kind of arguments.

    Attributes:
        derived: from parameters, buffers, arrays and perhaps a key to the results and the new buffers.
        structure: of the result.
        others: the leaves of the result that are no arrays, and `TENSOR` in the place of those that are.
        written: names of the buffers that the module writes to.
    """

    derived: Derived
    structure: tree.TreeDef
    others: list[Any]
    written: tuple[str, ...]


class Apply:
    """The function of a module; made by `from_module`.

    Attributes:
        state: the module's buffers, such as running statistics, by name.
    """

    def __init__(self, module: torch.nn.Module, state: State) -> None:
        self._module = module
        self.state = state
        self._traced: dict[Hashable, _Traced] = {}
        self._lock = new_lock()

    def __repr__(self) -> str:
        return f"<apply of {type(self._module).__name__}>"

    def __call__(
        self,
        params: State,
        *args: Any,
        state: State | None = None,
        key: Any = None,
        train: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call the module.

        Args:
            params: its parameters by name.
            args, kwargs: of its ``forward``, with Arrays in the place of tensors.
            state: its buffers; None: those that it had.
            key: for dropout and whatever else draws random numbers.
            train: whether it trains, as after ``module.train()``, or is evaluated.

        Returns:
            What ``forward`` returns; with `state`, a pair of that and the new state.

        Raises:
            ArgumentError: names that do not fit, a module that draws without a `key`, or writes to its buffers without
                a `state`.
        """
        name = type(self._module).__name__
        params = self._checked(name, "params", params, self._module.named_parameters())
        buffers = self._checked(name, "state", self.state if state is None else state, self._module.named_buffers())
        leaves, structure = tree.flatten((args, kwargs))
        leaves = [array(x.detach()) if isinstance(x, torch.Tensor) else x for x in leaves]
        arrays = [*params.values(), *buffers.values(), *[x for x in leaves if type(x) is Array]]
        if key is not None:
            arrays.append(as_key("from_module", key))
        others = [None if type(x) is Array else exact_key(x) for x in leaves]
        kind = train, key is None, structure, *others, *[x.aval for x in arrays]
        traced = self._traced.get(kind)
        if traced is None:
            traced = self._trace(name, list(params), list(buffers), leaves, structure, arrays, key is not None, train)
            self._traced[kind] = traced
        if traced.written and state is None:
            names = ", ".join(traced.written)
            raise ArgumentError(
                message(name, "a state, because the module writes to its buffers", names,
                        "Call apply(params, ..., state=apply.state), which returns the new state too.")
            )  # fmt: skip
        results = traced.derived(arrays)
        count = len(results) - len(buffers)
        values = iter(results[:count])
        out = traced.structure.unflatten([next(values) if x is TENSOR else x for x in traced.others])
        return out if state is None else (out, dict(zip(buffers, results[count:], strict=True)))

    def _checked(self, name: str, what: str, given: State, expected: Any) -> State:
        """Return the arrays in the module's order."""
        names = [key for key, _ in expected]
        if not isinstance(given, dict) or set(given) != set(names):
            missing = sorted(set(names) - set(given if isinstance(given, dict) else ()))
            got = f"without {missing[0]!r}" if missing else "other names"
            raise ArgumentError(message(name, f"{what} as a dict with the {len(names)} names of the module", got))
        return {key: given[key] if type(given[key]) is Array else array(given[key]) for key in names}

    def _trace(
        self, name: str, params: list[str], buffers: list[str], leaves: list[Any], structure: Any,
        arrays: list[Array], draws: bool, train: bool,
    ) -> _Traced:  # fmt: skip
        result: list[Any] = []

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            rest = iter(tensors)
            state = {key: next(rest) for key in (*params, *buffers)}
            args, kwargs = structure.unflatten([next(rest) if type(x) is Array else x for x in leaves])
            found = torch.func.functional_call(self._module, state, args, kwargs, tie_weights=True)
            values, form = tree.flatten(found)
            result[:] = form, [TENSOR if isinstance(x, torch.Tensor) else x for x in values]
            return [*[x for x in values if isinstance(x, torch.Tensor)], *[state[key] for key in buffers]]

        places = range(len(params), len(params) + len(buffers))
        with self._lock:
            self._module.train(train)
            try:
                derived = traced(name, run, [x.aval for x in arrays], places, _Draw() if draws else None)
            except ArgumentError as error:
                if draws or "torch's global state" not in str(error):
                    raise
                fix = "Pass key=gt.random.key(0), or train=False."
                raise ArgumentError(message(name, "a key", "none, and the module draws random numbers", fix)) from None
        new = derived.graph.outputs[len(derived.graph.outputs) - len(buffers) :]
        old = derived.graph.inputs[len(params) : len(params) + len(buffers)]
        written = tuple(key for key, a, b in zip(buffers, new, old, strict=True) if a != b)
        form, others = result
        return _Traced(derived, form, others, written)


class _Draw:
    """Draws what random operators of torch give, each with a key of its own that follows from one key."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: Array, overload: str, a: Aval, args: list[Any]) -> Any:
        self._count += 1
        own = fold_in(key, self._count)
        name = overload.removeprefix("aten.").split(".")[0].rstrip("_")
        if name == "bernoulli":
            p = args[1] if len(args) > 1 else args[0]
            return bernoulli(own, p, a.shape).astype(a.dtype)
        if name == "native_dropout":
            x, p, train = args
            kept = bernoulli(own, 1.0 - p, a.shape)
            return (
                [x * kept.astype(a.dtype) * (1.0 / (1.0 - p)), kept] if train and p < 1 else [x * (1.0 - train), kept]
            )
        if name in ("rand", "rand_like"):
            return uniform(own, a.shape, a.dtype)
        if name in ("randn", "randn_like"):
            return normal(own, a.shape, a.dtype)
        if name == "uniform":
            low, high = _with_defaults(args)
            return uniform(own, a.shape, a.dtype, low, high)
        if name in ("normal", "normal_functional"):
            mean, std = _with_defaults(args)
            return normal(own, a.shape, a.dtype) * std + mean
        return None


def _with_defaults(args: list[Any]) -> tuple[Any, Any]:
    """Return two parameters of a distribution, by default 0 and 1, that follow the first argument."""
    return args[1] if len(args) > 1 else 0.0, args[2] if len(args) > 2 else 1.0


def from_module(module: torch.nn.Module, *example: Any) -> tuple[State, Apply]:
    """Return the parameters of a torch module as a dict of Arrays, and the module as a function of them.

    What the module computes is recorded like any other operation, so gradients, `vmap`, `jit` and hot paths work
    through it. The module is copied, and shares no memory with the Arrays; it is traced once for each kind of
    arguments, in training and in evaluation.

    Args:
        module: pure, but for its buffers and for random numbers.
        example: arguments of its ``forward``, to trace it with now and not at its first call.

    Returns:
        ``params, apply``. ``apply(params, *args, state=None, key=None, train=False, **kwargs)`` calls the module;
        ``apply.state`` has its buffers. With ``state=`` it returns the output and the new state.

    Raises:
        ArgumentError: `module` is no module.

    >>> import torch, gtrace as gt
    >>> params, apply = gt.from_module(torch.nn.Linear(3, 1, bias=False))
    >>> grads = gt.grad(lambda p: apply(p, gt.ones((2, 3))).sum())(params)
    >>> grads["weight"]
    Array([[2., 2., 2.]], dtype=float32)
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(message("from_module", "a torch.nn.Module", type(module).__name__, "See gt.lift."))
    with torch.no_grad():
        params = {name: array(value.detach()) for name, value in module.named_parameters()}
        state = {name: array(value.detach()) for name, value in module.named_buffers()}
    # the copy has the flag of training to itself, and the tensors of the module, which it never uses
    shared: dict[int, Any] = {id(x): x for x in (*module.parameters(), *module.buffers())}
    apply = Apply(copy.deepcopy(module, shared), state)
    if example:
        apply(params, *example)
    return params, apply
