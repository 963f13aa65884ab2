"""``from_module``: a torch ``nn.Module`` as a pure function of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from gtrace.extend import (
    ArgumentError,
    Array,
    Aval,
    CallTable,
    Derived,
    Draw,
    Drawn,
    RandomOperatorError,
    RecordedCall,
    TorchCall,
    gradients_follow,
    message,
    new_lock,
    ops,
    without_modes,
)
from gtrace.random.continuous import normal, uniform
from gtrace.random.counts import poisson
from gtrace.random.discrete import bernoulli, categorical, permutation
from gtrace.random.gamma_distributions import dirichlet, gamma
from gtrace.random.integers import randint
from gtrace.random.keys import as_key, fold_in
from gtrace.random.transformed import exponential

__all__ = ["from_module"]

State = dict[str, Array]
Tensors = dict[str, torch.Tensor]


class Apply:
    """The function of a torch module; `from_module` makes it.

    Attributes:
        state: the module's buffers, such as running statistics, by name.
    """

    def __init__(self, module: torch.nn.Module, state: State) -> None:
        self._module = module
        self.state = state
        self._names = [sorted(name for name, _ in each) for each in (module.named_parameters(), module.named_buffers())]
        self._calls = CallTable()
        self._lock = new_lock()

    def __repr__(self) -> str:
        return f"<apply of {type(self._module).__name__}>"

    def __reduce__(self) -> Any:
        return Apply, (self._module, self.state)  # a copy traces anew

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
            args, kwargs: the arguments of its ``forward``, with Arrays in place of tensors.
            state: its buffers; None: its original ones.
            key: for dropout and other random operations.
            train: whether it is in training mode, as after ``module.train()``.

        Returns:
            The result of ``forward``; with `state`, a pair of that and the new state.

        Raises:
            ArgumentError: names do not fit. Or the module samples without a `key` or while it reads values, or writes
                to its buffers without a `state`.
            ConcretizationError: it reads values inside `gtrace.jit` or `gtrace.vmap`.
        """
        name = type(self._module).__name__
        params = self._checked(name, "params", params, self._names[0])
        buffers = self._checked(name, "state", self.state if state is None else state, self._names[1])
        call = TorchCall.of(name, (params, buffers, args, kwargs))
        arrays = call.arrays
        drawn = None if key is None else as_key("from_module", key)

        def draw() -> tuple[Array, Draw] | None:
            return None if drawn is None else (drawn, _Draw())

        recorded = self._calls.find_or_look(
            (train, None if drawn is None else drawn.aval),
            call,
            lambda how: self._trace(call, list(params), list(buffers), train, draw, how),
            draw,
            lambda recorded: None if drawn is None else self._check_undrawn(call, recorded),
        )
        if state is None:
            self._check_pure(name, recorded, list(params), list(buffers))
        out, new_state = recorded(arrays if drawn is None else [*arrays, drawn], gradients_follow())
        return out if state is None else (out, new_state)

    def state_dict(self, params: State, state: State | None = None) -> dict[str, Any]:
        """Return parameters and buffers as the module's own ``state_dict``, for a strict ``load_state_dict``.

        Tied weights appear under each of their names, and buffers that are not persistent are left out.

        Args:
            params: by name, as `from_module` returns them.
            state: buffers by name; None: the module's original ones.

        Returns:
            Tensors with their own memory, by name.

        Raises:
            ArgumentError: names do not fit.
        """
        name = type(self._module).__name__
        arrays = self._checked(name, "params", params, self._names[0])
        arrays |= self._checked(name, "state", self.state if state is None else state, self._names[1])
        own = {id(x): key for key, x in (*self._module.named_parameters(), *self._module.named_buffers())}
        known = self._module.state_dict(keep_vars=True)
        return {key: arrays[own[id(x)]].to_torch() if id(x) in own else x for key, x in known.items()}

    def _checked(self, name: str, what: str, given: State, names: Sequence[str]) -> State:
        """Return the arrays in the order of their names, which is that of the leaves of a dict."""
        if not isinstance(given, dict) or len(given) != len(names) or not all(key in given for key in names):
            missing = [key for key in names if not isinstance(given, dict) or key not in given]
            got = f"without {missing[0]!r}" if missing else "other names"
            expected = f"{what} as a dict with the {len(names)} names of the module"
            raise ArgumentError(message(name, expected, got, "from_module returns such a dict."))
        return {key: given[key] if type(given[key]) is Array else ops.array(given[key]) for key in names}

    def _trace(
        self, call: TorchCall, params: list[str], buffers: list[str], train: bool, draw: Drawn, how: Callable[..., Any]
    ) -> Any:
        """Trace the module as a function that returns its result and its new buffers; `how` is a method of the call."""

        def run(params: Tensors, buffers: Tensors, args: Any, kwargs: Any) -> tuple[Any, Tensors]:
            module = _copied(self._module)  # Python state, such as tables of masks, belongs to this run of the tracer
            module.train(train)
            # also those that the module replaces: `self.buffer = self.buffer + 1`
            new: Tensors = {}
            module.register_forward_hook(lambda *_: new.update({key: module.get_buffer(key) for key in buffers}))
            # a write to a view is local, and what torch does not follow keeps the gradient of the parameter
            own = {key: x.view_as(x) for key, x in params.items()}
            out = torch.func.functional_call(module, {**own, **buffers}, args, kwargs, tie_weights=True)
            return out, new

        places = range(len(params), len(params) + len(buffers))
        drawn = draw()
        with self._lock:
            try:
                recorded = how(run, places, range(len(params)), drawn)
            except RandomOperatorError as error:
                if drawn is not None:
                    raise
                fix = "Pass key=gt.random.key(0), or train=False."
                raise ArgumentError(
                    message(call.name, "a key", "none, and the module draws random numbers", fix)
                ) from error
        return recorded

    @staticmethod
    def _check_undrawn(call: TorchCall, recorded: RecordedCall) -> None:
        """Raise for a module that reads values and samples: the values would depend on other samples."""
        assert isinstance(recorded.derived, Derived)  # a call that reads values is traced for its sizes
        graph = recorded.derived.graph
        key = graph.inputs[len(call.arrays)]
        if any(key in node.ins for node in graph.nodes):
            fix = "Pass train=False, or set the rates of its dropout to 0."
            raise ArgumentError(
                message(call.name, "a module that looks at values or draws random numbers", "one that does both", fix)
            )

    @staticmethod
    def _check_pure(name: str, recorded: RecordedCall, params: list[str], buffers: list[str]) -> None:
        """Raise for a call without a state if the module writes to its buffers."""
        returned = recorded.derived.returned
        new = returned[len(returned) - len(buffers) :]
        written = [key for k, (key, place) in enumerate(zip(buffers, new, strict=True)) if place != len(params) + k]
        if written:
            raise ArgumentError(
                message(name, "a state, because the module writes to its buffers", ", ".join(written),
                        "Call apply(params, ..., state=apply.state), which returns the new state too.")
            )  # fmt: skip


class _Draw:
    """Samples for torch's random operators, each with its own key derived from one key."""

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
            # torch.normal(mean, std) has these as first arguments; normal_ has the written tensor before them
            mean, std = _with_defaults(args if name == "normal_functional" else [None, *args])
            return normal(own, a.shape, a.dtype) * std + mean
        if name == "exponential":
            rate = args[1] if len(args) > 1 else 1.0
            # never 0, as in torch: gumbel_softmax takes the logarithm
            return ops.maximum(exponential(own, a.shape, a.dtype), torch.finfo(a.dtype).tiny) / rate
        if name == "multinomial":
            weights, count = args[:2]
            found = categorical(own, ops.log(weights), shape=(count, *weights.shape[:-1]), replace=any(args[2:]))
            return ops.moveaxis(found, 0, -1)
        if overload in _INTEGERS:
            low, high = ([0] + args[_INTEGERS[overload]])[-2:]
            return randint(own, a.shape, low, high, torch.int64).astype(a.dtype)
        if name in _OF_PARAMETERS:
            return _OF_PARAMETERS[name](own, args[0], a.shape).astype(a.dtype)
        if name == "randperm":
            return permutation(own, a.shape[0]).astype(a.dtype)
        return None


_OF_PARAMETERS = {
    "poisson": poisson,
    "_standard_gamma": gamma,
    "_sample_dirichlet": lambda key, weights, shape: dirichlet(key, weights, shape[:-1]),
}
"""Operators that sample with a tensor of parameters: (key, parameters, shape of the result) -> sample."""

_INTEGERS = {
    "aten.randint.default": slice(0, 1),
    "aten.randint.low": slice(0, 2),
    "aten.randint_like.default": slice(1, 2),
    "aten.randint_like.low_dtype": slice(1, 3),
}
"""Operators that sample integers: the positions of their bounds among the arguments."""


def _with_defaults(args: list[Any]) -> tuple[Any, Any]:
    """Return two parameters of a distribution, by default 0 and 1, that follow the first argument."""
    return args[1] if len(args) > 1 else 0.0, args[2] if len(args) > 2 else 1.0


def from_module(module: torch.nn.Module, *example: Any) -> tuple[State, Apply]:
    """Return the parameters of a torch module as a dict of Arrays, and the module as a function of them.

    The module's operations are recorded like any others, so gradients, `vmap`, `jit` and hot paths work through it. The
    module is copied, and shares no memory with the Arrays. It is traced once for each kind of arguments, in training
    and in evaluation. A module that reads values, for example to route tokens to experts, is traced at each call. It
    does not work inside `jit` or `vmap`.

    Args:
        module: pure, except for its buffers and random numbers.
        example: arguments of its ``forward``, to trace it now instead of at its first call.

    Returns:
        ``params, apply``. ``apply(params, *args, state=None, key=None, train=False, **kwargs)`` calls the module;
        ``apply.state`` has its buffers. With ``state=`` it returns the output and the new state.
        ``apply.state_dict(params, state)`` converts back.

    Raises:
        ArgumentError: `module` is not a module, is a TorchScript module, has parameters without a shape, or hooks on
            gradients.

    >>> import torch, gtrace as gt
    >>> params, apply = gt.from_module(torch.nn.Linear(3, 1, bias=False))
    >>> grads = gt.grad(lambda p: apply(p, gt.ones((2, 3))).sum())(params)
    >>> grads["weight"]
    Array([[2., 2., 2.]], dtype=float32)
    """
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(message("from_module", "a torch.nn.Module", type(module).__name__, "See gt.lift."))
    _check_traceable(module)
    with torch.no_grad():
        params = {name: ops.array(value.detach()) for name, value in module.named_parameters()}
        state = {name: ops.array(value.detach()) for name, value in module.named_buffers()}
    apply = Apply(_copied(module), state)
    if example:
        apply(params, *example)
    return params, apply


@without_modes
def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with its own training flag. It shares the module's tensors, but never uses them."""
    shared: dict[int, Any] = {id(x): x for x in (*module.parameters(), *module.buffers())}
    # derived tensors, such as weights of torch.nn.utils.weight_norm, can only be copied without their history
    kept = (x for part in module.modules() for x in vars(part).values())
    shared |= {id(x): x.detach().clone() for x in kept if isinstance(x, torch.Tensor) and not x.is_leaf}
    return copy.deepcopy(module, shared)


def _check_traceable(module: torch.nn.Module) -> None:
    """Raise for a module with parts that cannot be traced."""
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        fix = "Pass the module that it was scripted from, or its weights: gt.tree.map(gt.array, module.state_dict())."
        raise ArgumentError(message(name, "a module written in Python", "one of TorchScript", fix))
    for key, x in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(x):
            fix = "Call the module once, so that it knows its shapes."
            raise ArgumentError(message(name, "parameters that have a shape", f"{key!r} without one", fix))
        if getattr(x, "_backward_hooks", None) or getattr(x, "_post_accumulate_grad_hooks", None):
            _refuse_hook(name, key)
    for key, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            _refuse_hook(name, key)


def _refuse_hook(name: str, key: str) -> NoReturn:
    fix = "Remove it, and change what gt.grad returns, or write that part with gt.custom_vjp."
    raise ArgumentError(message(name, "a module without hooks on gradients", f"one at {key or name!r}", fix))
