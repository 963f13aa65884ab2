"""Modules composed of modules: sequences of layers, and the multilayer perceptron."""

from __future__ import annotations

import functools
import inspect
from itertools import pairwise
from typing import Any

from gtrace.extend import ArgumentError, Array, identity, message, ops, tree
from gtrace.nn.layers.base import Module, check_function, check_key, field
from gtrace.nn.layers.linear import Lambda, Linear
from gtrace.random.keys import split

__all__ = ["MLP", "Sequential"]


@functools.cache
def _takes_key(cls: Any) -> bool:
    return "key" in inspect.signature(cls.__call__).parameters


def _stateful(layer: Any) -> bool:
    return any(map(_stateful, layer.layers)) if isinstance(layer, Sequential) else hasattr(layer, "initial_state")


class Sequential(Module):
    """Layers one after the other, as torch.nn.Sequential; functions among them become `Lambda` modules.

    Layers that take a key get their own if the call has a key. Layers with a state (`initial_state`), such as
    `BatchNorm`, get theirs from a tuple with an entry for each layer.

    >>> one, two = gt.random.split(gt.random.key(0))
    >>> model = gt.nn.Sequential(
    ...     gt.nn.Linear(2, 8, key=one), gt.nn.BatchNorm(8), gt.relu, gt.nn.Linear(8, 1, key=two))
    >>> out, state = model(gt.ones((4, 2)), state=model.initial_state(), training=True)
    >>> out.shape
    (4, 1)
    """

    layers: tuple[Any, ...]

    def __init__(self, *layers: Any) -> None:
        """Take modules and functions.

        Raises:
            ArgumentError: a layer is neither.
        """
        for layer in layers:
            if not callable(layer):
                fix = "Pass the layers one by one: Sequential(*layers)."
                raise ArgumentError(message("nn.Sequential", "modules and functions", type(layer).__name__, fix))
            if isinstance(layer, type):
                fix = f"Make one: {layer.__name__}(...)."
                raise ArgumentError(message("nn.Sequential", "modules", f"the class {layer.__name__}", fix))
        self.layers = tuple(x if isinstance(x, Module) else Lambda(x) for x in layers)

    def initial_state(self) -> tuple[Any, ...] | None:
        """Return the initial states of the layers, None for layers without one; None if no layer has one."""
        if not _stateful(self):
            return None
        return tuple(layer.initial_state() if _stateful(layer) else None for layer in self.layers)

    def __call__(self, x: Any, *, key: Any = None, state: Any = None, training: bool = False) -> Any:
        """Return the result of the last layer; with a state, that and the new state.

        Args:
            key: for layers such as dropout.
            state: in the form of `initial_state`.
            training: for layers with a state.

        Raises:
            ArgumentError: a layer has a state, and none is given.
        """
        keyed = [k for k, layer in enumerate(self.layers) if _takes_key(layer.__class__)]
        keys = {} if key is None or not keyed else dict(zip(keyed, split(key, len(keyed)), strict=True))
        new = [None] * len(self.layers) if state is None else list(state)
        for k, layer in enumerate(self.layers):
            options = {"key": keys[k]} if k in keys else {}
            if not _stateful(layer):
                x = layer(x, **options)
            elif state is None:
                fix = "Pass state=model.initial_state(); the result is (out, state)."
                raise ArgumentError(message("nn.Sequential", f"a state for {type(layer).__name__}", "None", fix))
            else:
                x, new[k] = layer(x, state=new[k], training=training, **options)
        return x if state is None else (x, tuple(new))

    def torch_name(self, path: tree.KeyPath) -> tuple[str, int]:
        """Return the number of a layer, for the path ``.layers[k]``."""
        return str(path[1].idx), 2

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]


class MLP(Module):
    """A multilayer perceptron: linear maps with an activation between them.

    Attributes:
        layers: the `Linear` maps.

    >>> gt.nn.MLP(2, 1, 16, 2, key=gt.random.key(0))(gt.ones((4, 2))).shape
    (4, 1)
    """

    layers: tuple[Linear, ...]
    activation: Any = field(static=True)
    final_activation: Any = field(static=True)

    def __init__(
        self, in_size: int, out_size: int, width: int, depth: int, activation: Any = ops.relu,
        final_activation: Any = identity, bias: bool = True, *, dtype: Any = None, key: Any = None,
    ) -> None:  # fmt: skip
        """Make `depth` hidden layers of `width` and a last map.

        Raises:
            ArgumentError: the key is missing.
        """
        sizes = [in_size, *[width] * depth, out_size]
        keys = split(check_key("MLP", key), depth + 1)
        self.layers = tuple(Linear(m, n, bias, dtype=dtype, key=keys[k]) for k, (m, n) in enumerate(pairwise(sizes)))
        self.activation = check_function("MLP", "activation", activation)
        self.final_activation = check_function("MLP", "final_activation", final_activation)

    def __call__(self, x: Any) -> Array:
        """Return (..., out_size) for x of shape (..., in_size)."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Array = self.final_activation(self.layers[-1](x))
        return out
