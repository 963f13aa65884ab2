"""The identity, zero, and chains of transformations."""

from __future__ import annotations

from gtrace.extend import ArgumentError, message
from gtrace.optim.base import GradientTransformation, Params, State, Updates, stateless, zeros_of
from gtrace.optim.replayed import transformation, updates_of

__all__ = ["chain", "identity", "set_to_zero"]


@transformation
def identity() -> GradientTransformation:
    """Return the transformation that leaves updates unchanged.

    >>> gt.optim.identity().update(gt.array(3.0), gt.optim.EmptyState())[0]
    Array(3., dtype=float32)
    """
    return stateless(lambda updates, params: updates)


@transformation
def set_to_zero() -> GradientTransformation:
    """Return the transformation to zeros. With `masked`, it freezes parameters.

    >>> gt.optim.set_to_zero().update(gt.array(3.0), gt.optim.EmptyState())[0]
    Array(0., dtype=float32)
    """
    return stateless(lambda updates, params: zeros_of(updates))


@transformation
def chain(*transforms: GradientTransformation) -> GradientTransformation:
    """Return a sequence of transformations; its state is the tuple of their states.

    >>> opt = gt.optim.chain(gt.optim.clip(1.0), gt.optim.scale(-0.5))
    >>> opt.update(gt.array([3.0, 0.5]), opt.init(gt.zeros(2)))[0]
    Array([-0.5 , -0.25], dtype=float32)
    """
    steps = updates_of(transforms)

    def init(params: Params) -> State:
        return tuple([t.init(params) for t in transforms])

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        if len(state) != len(transforms):
            got = f"a state of {len(state)}"
            raise ArgumentError(message("optim.chain", f"the states of {len(transforms)}", got, "Use its own init."))
        new = []
        for step, s in zip(steps, state, strict=True):
            updates, s = step(updates, s, params)
            new.append(s)
        return updates, tuple(new)

    return GradientTransformation(init, update)
