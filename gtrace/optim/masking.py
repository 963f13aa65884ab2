"""Transformations of some of the parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from gtrace.extend import tree
from gtrace.optim.base import GradientTransformation, Params, State, Updates
from gtrace.optim.replayed import transformation

__all__ = ["MaskedNode", "MaskedState", "masked"]


class MaskedNode(NamedTuple):
    """Replaces an excluded parameter in a state: a node without leaves."""


class MaskedState(NamedTuple):
    """State of `masked`.

    Attributes:
        inner_state: the state of the transformation, with `MaskedNode` for excluded parameters.
    """

    inner_state: Any


@transformation
def masked(inner: GradientTransformation, mask: Any) -> GradientTransformation:
    """Return a transformation of selected updates; the others are unchanged.

    Args:
        mask: a pytree of bools whose leaves are at or above those of the parameters. Or a function that makes one of
            parameters or updates.

    >>> opt = gt.optim.masked(gt.optim.scale(10.0), {"w": True, "b": False})
    >>> params = {"w": gt.array(1.0), "b": gt.array(1.0)}
    >>> opt.update(params, opt.init(params))[0]
    {'w': Array(10., dtype=float32), 'b': Array(1., dtype=float32)}
    """

    def choices(values: Any) -> Any:
        # a mask that is a module is callable too
        return mask(values) if tree.structure(mask).is_leaf() and callable(mask) else mask

    def chosen(choice: Any, values: Any) -> Any:
        return tree.map(lambda yes, x: x if yes else MaskedNode(), choice, values)

    def init(params: Params) -> State:
        return MaskedState(inner.init(chosen(choices(params), params)))

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        choice = choices(updates)
        some = None if params is None else chosen(choice, params)
        new, inner_state = inner.update(chosen(choice, updates), state.inner_state, some)
        return tree.map(lambda yes, a, b: a if yes else b, choice, new, updates), MaskedState(inner_state)

    return GradientTransformation(init, update)
