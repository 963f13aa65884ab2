"""Weights by torch's names: converts between modules and torch's ``state_dict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from gtrace.extend import ArgumentError, Array, ShapeError, lift, message, tree
from gtrace.nn.layers.base import Module
from gtrace.nn.layers.filters import is_array

__all__ = ["load_state_dict", "state_dict"]

T = TypeVar("T")


def state_dict(model: Any) -> dict[str, Array]:
    """Return the arrays of a module, or another pytree, by their names in torch's ``state_dict``.

    A name is the path of attributes, keys and numbers, separated by dots. Layers of a `Sequential` have only their
    numbers, and parameters of `LSTM` and `GRU` are called ``weight_ih_l0`` and so on.

    >>> list(gt.nn.state_dict(gt.nn.Sequential(gt.nn.Linear(2, 3, key=gt.random.key(0)), gt.relu)))
    ['0.weight', '0.bias']
    """
    return {name: lift("nn.state_dict", x) for name, x in _named(model)[0] if is_array(x)}


def load_state_dict(model: T, state: Mapping[str, Any], *, strict: bool = True) -> T:
    """Return a module with the arrays of a ``state_dict``, from torch or `state_dict`, in the module's dtypes.

    Args:
        state: arrays of any library by name.
        strict: raise for names that the module does not have. With False, they are ignored. Missing names always raise.

    Raises:
        ArgumentError: a name is missing, or, if `strict`, unknown.
        ShapeError: an array has another shape.

    >>> import torch, gtrace as gt
    >>> theirs = torch.nn.Linear(2, 3)
    >>> ours = gt.nn.load_state_dict(gt.nn.Linear(2, 3, key=gt.random.key(0)), theirs.state_dict())
    >>> bool((ours.bias == theirs.bias.detach()).all())
    True
    """
    named, structure = _named(model)
    names = [name for name, x in named if is_array(x)]
    missing, unknown = [n for n in names if n not in state], [n for n in state if n not in names]
    if missing or (unknown and strict):
        what = "without " + ", ".join(missing) if missing else "with " + ", ".join(unknown)
        fix = "Check the model's sizes and names, with gt.nn.summary." if missing else "Or pass strict=False."
        raise ArgumentError(message("nn.load_state_dict", "an array for each name", f"a state {what}", fix))
    leaves = []
    for name, leaf in named:
        if not is_array(leaf):
            leaves.append(leaf)
            continue
        old, new = lift("nn.load_state_dict", leaf), lift("nn.load_state_dict", state[name])
        if old.shape != new.shape:
            fix = "JAX's weights of linear maps are (in, out): transpose them."
            raise ShapeError(message("nn.load_state_dict", f"{name} of shape {old.shape}", str(new.shape), fix))
        leaves.append(new.astype(old.dtype))
    loaded: Any = structure.unflatten(leaves)
    return cast(T, loaded)


def _named(model: Any) -> tuple[list[tuple[str, Any]], tree.TreeDef]:
    """Return the leaves of a pytree with their torch names, and its structure."""
    pairs, structure = tree.flatten_with_path(model)
    return [(_name(model, path), leaf) for path, leaf in pairs], structure


def _name(node: Any, path: tree.KeyPath) -> str:
    parts = []
    while path:
        name, count = node.torch_name(path) if isinstance(node, Module) else (tree.keystr(path[:1], simple=True), 1)
        parts.append(name)
        for key in path[:count]:
            node = getattr(node, key.name) if isinstance(key, tree.GetAttrKey) else _child(node, key)
        path = path[count:]
    return ".".join(parts)


def _child(node: Any, key: Any) -> Any:
    return node[key.idx] if isinstance(key, tree.SequenceKey) else node[key.key]
