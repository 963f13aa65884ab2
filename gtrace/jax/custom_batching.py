"""The names of ``jax.custom_batching``: functions with a batching rule of their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gtrace.extend import (
    FLOAT0,
    ArgumentError,
    Array,
    batch,
    capture,
    is_empty,
    jvp,
    lift,
    message,
    name_of,
    spread,
    tree,
    without_batch,
)
from gtrace.jax.avals import instantiate_zeros
from gtrace.jax.custom_derivatives import Stating
from gtrace.jax.lax import map as lax_map
from gtrace.jax.primitives import AxisData, Primitive, fancy_primitive_batchers, primitive_jvps

__all__ = ["custom_vmap", "sequential_vmap"]


class custom_vmap(Stating):  # noqa: N801 - JAX's name
    """A function with a rule for batches, which `def_vmap` sets. Derivatives are those of the function and the rule.

    The rule takes the size of the batch, a list that says of each argument whether it is batched, and the arguments
    with the batch on axis 0. It returns the output, and for each leaf of it whether it is batched.

    >>> import gtrace.jax as jax
    >>> @custom_vmap
    ... def f(x):
    ...     return x + 1
    >>> @f.def_vmap
    ... def rule(axis_size, in_batched, x):
    ...     return x + axis_size, in_batched[0]
    >>> f(0.0), jax.vmap(f)(jax.numpy.arange(2.))
    (1.0, Array([2., 3.], dtype=float32))
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.vmap_rule: Callable[..., Any] | None = None

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule; return it."""
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            AttributeError: there is no rule.
            ArgumentError: the rule returns another structure than the function.
        """
        rule, name = self.vmap_rule, name_of(self.fun)
        if rule is None:
            fix = f"Set it with {name}.def_vmap."
            raise AttributeError(message("custom_vmap", f"a batching rule for {name}", "none", fix))
        if kwargs:
            bound = inspect.signature(self.fun).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        leaves, structure = tree.flatten(args)
        out: list[tree.TreeDef] = []

        def call(*flat: Any) -> list[Any]:
            results, found = tree.flatten(self.fun(*structure.unflatten(flat)))
            out[:] = [found]
            return results

        def flat_rule(size: int, batched: Sequence[bool], *flat: Any) -> tuple[list[Any], list[bool]]:
            flags: Any = structure.unflatten(batched)
            result, result_batched = rule(size, list(flags), *structure.unflatten(flat))
            results, found = tree.flatten(result)
            flags, kinds = tree.flatten(result_batched)
            for what, got in (("an output", found), ("flags of the output", kinds)):
                if got != out[0]:
                    raise ArgumentError(message("custom_vmap", f"{what} like {out[0]}", f"{got}", f"{name} has it."))
            return results, flags

        results = _call_p.bind(*leaves, call=call, rule=flat_rule)
        return out[0].unflatten(results)


_call_p = Primitive("custom_vmap_call")
_call_p.multiple_results = True


@_call_p.def_impl
def _impl(*args: Any, call: Callable[..., Any], rule: Callable[..., Any]) -> list[Any]:
    return list(call(*args))


def _batched(axis: AxisData, args: Sequence[Any], axes: Sequence[int | None], *, call: Any, rule: Any) -> Any:
    """Return what the rule does: of the batched arguments the batch is on axis 0."""
    results, flags = rule(axis.size, [place is not None for place in axes], *args)
    return results, [0 if flag else None for flag in flags]


def _differentiated(
    rule: Any, size: int, values: Sequence[Any], batched: Sequence[bool] | None = None
) -> tuple[list[Any], list[bool]]:
    """Return the results of a rule and their tangents, and which of them are batched.

    Args:
        values: the arguments and their tangents.
        batched: which arguments are batched; None: none.
    """
    count = len(values) // 2
    given = [
        numpy.zeros(x.shape, FLOAT0) if is_empty(t) else t for x, t in zip(values[:count], values[count:], strict=True)
    ]
    flags: list[bool] = []

    def run(*primals: Any) -> Any:
        outs, flags[:] = rule(size, batched or [False] * count, *primals)
        return outs

    outs, moved = jvp(run, values[:count], given)
    return [*outs, *moved], [*flags, *flags]


def _of_examples(
    function: Any, size: int, batched: Sequence[bool], args: Sequence[Any]
) -> tuple[list[Any], list[bool]]:
    """Return what a function of one example returns for a batch of some arguments, and which results are batched."""
    places = [k for k, x in enumerate(args) if type(x) is Array]
    arrays, flags = [args[k] for k in places], [batched[k] for k in places]
    found: list[Any] = []

    def run(inputs: Sequence[Array]) -> Any:
        values = list(args)
        for k, x in zip(places, inputs, strict=True):
            values[k] = x
        found[:] = function(values)[0]
        return [lift("custom_vmap", x) for x in found if not is_empty(x)], None

    avals = [without_batch(x.aval) if flag else x.aval for x, flag in zip(arrays, flags, strict=True)]
    captured = capture(run, avals, "the rule of custom_vmap")
    every = (*flags, *[False] * len(captured.constants))
    rest = iter(batch(captured.graph, size, (*arrays, *captured.constants), every))
    pairs = [(x, False) if is_empty(x) else next(rest) for x in found]
    return [x for x, _ in pairs], [flag for _, flag in pairs]


def _moved(primals: Sequence[Any], tangents: Sequence[Any], *, call: Any, rule: Any) -> tuple[list[Any], list[Any]]:
    """Return results and their tangents, by a call whose rule for batches differentiates the rule."""
    count = len(primals)

    def both(*args: Any) -> list[Any]:
        outs, moved = jvp(call, args[:count], args[count:])
        return [*outs, *moved]

    def both_rule(size: int, batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
        pairs = list(zip(batched[:count], batched[count:], strict=True))
        if not any(p and t for p, t in pairs):  # as in JAX, the rule gets an example of such arguments
            return _of_examples(functools.partial(_differentiated, rule, size), size, batched, args)
        joint = [p or t for p, t in pairs]
        values = [
            spread(lift("custom_vmap", x), size) if joint[k % count] and not batched[k] and not is_empty(x) else x
            for k, x in enumerate(args)
        ]
        return _differentiated(rule, size, values, joint)

    found = _call_p.bind(*primals, *map(instantiate_zeros, tangents), call=both, rule=both_rule)
    return found[: len(found) // 2], found[len(found) // 2 :]


fancy_primitive_batchers[_call_p] = _batched
primitive_jvps[_call_p] = _moved


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """Return the function, whose batches are computed one example after the other, as ``jax.lax.map`` does.

    >>> import gtrace.jax as jax
    >>> jax.vmap(sequential_vmap(lambda x, y: x + y), (0, None))(jax.numpy.arange(2.), 1.0)
    Array([1., 2.], dtype=float32)
    """
    made = custom_vmap(f)

    @made.def_vmap
    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        leaves, structure = tree.flatten(args)
        flags = tree.leaves(tuple(in_batched))

        def one(examples: list[Any]) -> Any:
            rest = iter(examples)
            values = [next(rest) if flag else x for x, flag in zip(leaves, flags, strict=True)]
            return made(*structure.unflatten(values))

        out = lax_map(one, [x for x, flag in zip(leaves, flags, strict=True) if flag])
        return out, tree.map(lambda _: True, out)

    return made
