"""Pytrees with other leaves than arrays: their parts, and transforms of their arrays alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy
import torch

from gtrace.extend import ArgumentError, Array, jit, message, name_of, named, tree, value_and_grad

__all__ = [
    "combine", "filter_grad", "filter_jit", "filter_value_and_grad", "is_array", "is_inexact_array", "partition",
]  # fmt: skip


def is_array(x: Any) -> bool:
    """Return whether x is an array of gtrace, NumPy or torch. Python numbers are not arrays.

    >>> gt.nn.is_array(gt.ones(2)), gt.nn.is_array(1.0)
    (True, False)
    """
    return isinstance(x, (Array, numpy.ndarray, numpy.generic, torch.Tensor))


def is_inexact_array(x: Any) -> bool:
    """Return whether x is an array of floating or complex numbers, and so has gradients.

    >>> gt.nn.is_inexact_array(gt.ones(2)), gt.nn.is_inexact_array(gt.arange(2))
    (True, False)
    """
    if isinstance(x, Array):
        return x.aval.floating
    if isinstance(x, torch.Tensor):
        return x.dtype.is_floating_point or x.dtype.is_complex
    return is_array(x) and numpy.issubdtype(x.dtype, numpy.inexact)


def _is_none(x: Any) -> bool:
    return x is None


def partition(tree_: Any, choose: Any = is_inexact_array) -> tuple[Any, Any]:
    """Return two pytrees like the given one: the chosen leaves, and the others, with None for missing leaves.

    Args:
        choose: a function from leaves to bool, or a pytree of bools whose leaves are at or above the tree's leaves.

    >>> gt.nn.partition({"w": gt.ones(2), "name": "dense"})
    ({'w': Array([1., 1.], dtype=float32), 'name': None}, {'w': None, 'name': 'dense'})
    """
    leaves, structure = tree.flatten(tree_)
    if tree.structure(choose).is_leaf() and callable(choose):  # a module is callable too, and may hold bools
        chosen = [bool(choose(x)) for x in leaves]
    else:
        chosen = tree.leaves(tree.broadcast(choose, tree_))
    return (
        structure.unflatten([x if yes else None for x, yes in zip(leaves, chosen, strict=True)]),
        structure.unflatten([None if yes else x for x, yes in zip(leaves, chosen, strict=True)]),
    )


def combine(*trees: Any) -> Any:
    """Return a pytree with the first leaf that is not None at each position. It inverts `partition`.

    Raises:
        StructureError: the trees have other structures.

    >>> combine((1, None), (None, 2))
    (1, 2)
    """
    return tree.map(lambda *xs: next((x for x in xs if x is not None), None), *trees, is_leaf=_is_none)


@tree.register_static
@attrs.frozen(eq=False)
class _Rest:
    """Values beside arrays in a jitted function's result: part of the structure of the result."""

    value: Any


def filter_jit(f: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return `f` jitted, with every leaf of its arguments that is not an array as a static, hashable value.

    So models with functions, names and numbers can be passed, and results may contain them too. A Python number is part
    of the program; pass a number that changes as an array. Usable as a decorator.

    Args:
        options: options of `gt.jit`, such as `wait`; `static_argnums` and similar options are not needed.

    Raises:
        ArgumentError: (when called) a leaf is neither an array nor hashable.

    >>> @gt.nn.filter_jit
    ... def apply(function, x):
    ...     return function(x), "done"
    >>> apply(gt.exp, gt.zeros(2))
    (Array([1., 1.], dtype=float32), 'done')
    """
    if f is None:
        return lambda function: filter_jit(function, **options)
    function = f

    def run(arrays: Any, static: tuple[Any, ...]) -> Any:
        leaves, structure = tree.flatten(arrays, _is_none)
        filled = [other if x is None else x for x, other in zip(leaves, static, strict=True)]
        args, kwargs = structure.unflatten(filled)
        out, rest = partition(function(*args, **kwargs), is_array)
        return out, _Rest(rest)

    run.__name__ = name_of(f)
    jitted = jit(run, static_argnums=(1,), **options)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs), _is_none)
        static = tuple([None if is_array(x) else x for x in leaves])
        for k, x in enumerate(static):
            if type(x).__hash__ is None:
                path = tree.keystr(tree.flatten_with_path((args, kwargs), _is_none)[0][k][0])
                fix = "Make it a tuple, or an array."
                raise ArgumentError(message("nn.filter_jit", "hashable leaves", f"{type(x).__name__} at {path}", fix))
        arrays = structure.unflatten([x if is_array(x) else None for x in leaves])
        out, rest = jitted(arrays, static)
        return combine(out, rest.value)

    return named(wrapped, f)


def filter_value_and_grad(f: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return a function for the value of `f` and its gradient by the floating arrays in its first argument.

    Other leaves of the argument may have any type; the gradient has None there. Usable as a decorator.

    Args:
        has_aux: `f` returns (value, aux).

    Raises (when called):
        ShapeError, DtypeError: the value is not a floating scalar.

    >>> gt.nn.filter_value_and_grad(lambda m: (m["w"] ** 2).sum())({"w": gt.array([1., 2.]), "name": "dense"})
    (Array(5., dtype=float32), {'w': Array([2., 4.], dtype=float32), 'name': None})
    """
    if f is None:
        return lambda function: filter_value_and_grad(function, has_aux=has_aux)
    function = f

    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        chosen, rest = partition(model)

        def run(arrays: Any, *args: Any, **kwargs: Any) -> Any:
            return function(combine(arrays, rest), *args, **kwargs)

        return value_and_grad(run, has_aux=has_aux)(chosen, *args, **kwargs)

    return named(wrapped, f)


def filter_grad(f: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return a function for the gradient of `f`: see `filter_value_and_grad`. With `has_aux`: (gradient, aux).

    >>> gt.nn.filter_grad(lambda m: m[0] ** 2)((gt.array(3.0), "name"))
    (Array(6., dtype=float32), None)
    """
    if f is None:
        return lambda function: filter_grad(function, has_aux=has_aux)
    both = filter_value_and_grad(f, has_aux=has_aux)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return named(wrapped, f)
