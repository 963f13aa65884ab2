"""The names of ``jax.ad_checkpoint``: `checkpoint` whose policies are functions of primitives, as in JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs

import gtrace as gt
from gtrace import checkpoint_name as checkpoint_name
from gtrace.ir import Instr, Node
from gtrace.jax.adapt import namespace
from gtrace.jax.equations import Writer
from gtrace.jax.extend.core.primitives import named

name_p = named("name")


class _Decision:
    """The decision of a policy about a value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


Saveable, Recompute = _Decision("Saveable"), _Decision("Recompute")


@attrs.frozen
class Offloadable:
    """A policy's decision to move a value to another memory; it is kept where it is.

    Attributes:
        src, dst: names of memories.
    """

    src: str
    dst: str


Policy = Callable[..., Any]
"""(primitive, *types of the operands, **parameters of the equation) -> whether the result is kept, or a decision."""


def _kept(decision: Any) -> bool:
    return decision is True or decision is Saveable or isinstance(decision, Offloadable)


_MOVES = frozenset(["broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose"])
"""Equations that are written around others to give their operands and results another form."""


def _of_instruction(policy: Policy) -> Callable[[Instr], bool]:
    """Return a policy as a function of gtrace's instructions: it is asked for the equation that computes the result."""

    def keeps(instr: Instr) -> bool:
        writer = Writer()
        places = range(len(instr.ins))
        writer.atoms.update({k: writer.variable(a) for k, a in zip(places, instr.ins, strict=True)})
        writer.uses = Counter(places)
        writer.write([Node(instr, tuple(places), len(places))])
        eqns = [eqn for eqn in writer.eqns if eqn.primitive.name not in _MOVES] or writer.eqns
        if not eqns:
            return False
        return _kept(policy(eqns[-1].primitive, *[v.aval for v in eqns[-1].invars], **eqns[-1].params))

    return keeps


def everything_saveable(*_: Any, **__: Any) -> bool:
    """Keep all values."""
    return True


def nothing_saveable(*_: Any, **__: Any) -> bool:
    """Keep nothing."""
    return False


def dots_saveable(prim: Any, *_: Any, **__: Any) -> bool:
    """Keep the results of matrix products and convolutions."""
    return prim.name in ("dot_general", "conv_general_dilated")


def dots_with_no_batch_dims_saveable(prim: Any, *_: Any, **params: Any) -> bool:
    """Keep the results of matrix products without batches."""
    return prim.name == "dot_general" and not any(params["dimension_numbers"][1])


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Return the policy `dots_with_no_batch_dims_saveable`: values stay in the memory where they are."""
    return dots_with_no_batch_dims_saveable


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Return the policy that keeps what `checkpoint_name` gave one of these names."""
    names = frozenset(names_which_can_be_saved)
    return lambda prim, *_, **params: prim.name == "name" and params["name"] in names


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Return the policy that keeps what `checkpoint_name` gave a name, unless it is one of these."""
    names = frozenset(names_not_to_save)
    return lambda prim, *_, **params: prim.name == "name" and params["name"] not in names


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Return the policy that keeps everything but what `checkpoint_name` gave one of these names."""
    names = frozenset(names_not_to_save)
    return lambda prim, *_, **params: not (prim.name == "name" and params["name"] in names)


def save_and_offload_only_these_names(
    *, names_which_can_be_saved: Sequence[str], names_which_can_be_offloaded: Sequence[str], offload_src: str,
    offload_dst: str,
) -> Policy:  # fmt: skip
    """Return the policy that keeps what has one of these names; it stays in the memory where it is."""
    return save_only_these_names(*names_which_can_be_saved, *names_which_can_be_offloaded)


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Return the policy that keeps what one of two policies keeps."""
    return lambda *args, **params: _kept(policy_1(*args, **params)) or _kept(policy_2(*args, **params))


class checkpoint_policies:  # noqa: N801 - JAX's name
    """Choices of what `checkpoint` keeps for the backward pass. All give the same results.

    >>> import gtrace.jax as jax
    >>> f = jax.checkpoint(jax.numpy.sin, policy=jax.checkpoint_policies.dots_saveable)
    >>> jax.grad(f)(jax.numpy.ones(())).shape
    ()
    """

    everything_saveable = staticmethod(everything_saveable)
    nothing_saveable = staticmethod(nothing_saveable)
    dots_saveable = checkpoint_dots = staticmethod(dots_saveable)
    dots_with_no_batch_dims_saveable = staticmethod(dots_with_no_batch_dims_saveable)
    checkpoint_dots_with_no_batch_dims = staticmethod(dots_with_no_batch_dims_saveable)
    offload_dot_with_no_batch_dims = staticmethod(offload_dot_with_no_batch_dims)
    save_only_these_names = staticmethod(save_only_these_names)
    save_any_names_but_these = staticmethod(save_any_names_but_these)
    save_anything_except_these_names = staticmethod(save_anything_except_these_names)
    save_and_offload_only_these_names = staticmethod(save_and_offload_only_these_names)
    save_from_both_policies = staticmethod(save_from_both_policies)


_NAMED = {f: f.__name__ for f in (everything_saveable, nothing_saveable, dots_saveable)}
"""Policies that `gt.checkpoint` has under a name."""


def checkpoint(
    fun: Callable[..., Any] | None = None, *, prevent_cse: bool = True, policy: Policy | str | None = None,
    static_argnums: int | Sequence[int] = (), concrete: bool = False,
) -> Any:  # fmt: skip
    """``gt.checkpoint``; a policy may be a function that is asked of each equation whether its result is kept.

    >>> import gtrace.jax as jax
    >>> f = jax.checkpoint(lambda x: jax.numpy.sin(jax.numpy.sin(x)), policy=lambda prim, *_, **__: prim.name == "sin")
    >>> round(float(jax.grad(f)(2.0)), 4)
    -0.2556
    """
    if policy is not None and not isinstance(policy, str):
        chosen: Any = _NAMED.get(policy) or _of_instruction(policy)
    else:
        chosen = policy
    return gt.checkpoint(fun, policy=chosen, static_argnums=static_argnums)


__getattr__, __dir__ = namespace("jax.ad_checkpoint")
