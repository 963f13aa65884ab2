"""The differentiated arguments of a call, as a flat list of floating Arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gtrace.core.base import tree
from gtrace.core.base.dtypes import FLOAT0, LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.core.base.tree.treedef import is_whole
from gtrace.core.ops.operands import cast, weak_like
from gtrace.core.ops.shape import constant
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift


def normalize_argnums(name: str, argnums: Any, count: int) -> tuple[int, ...]:
    """Return argnums counted from the front; raise an ArgumentError for what is no position of an argument."""
    several = argnums if isinstance(argnums, (tuple, list, range)) else (argnums,)
    for k in several:
        if not isinstance(k, int) or isinstance(k, bool):
            raise ArgumentError(message(name, "argnums as an int or several", repr(argnums), "Such as argnums=(0, 1)."))
        if not -count <= k < count:
            expected = f"argnums below the {count} positional arguments"
            raise ArgumentError(message(name, expected, str(k), "Differentiated arguments are positional."))
    return tuple(k % count for k in several)


def is_array(leaf: Any) -> bool:
    """Return whether a leaf of a pytree is an array of any library, or a number; a class of them is not."""
    return isinstance(leaf, (Array, int, float, complex)) or (hasattr(leaf, "dtype") and not isinstance(leaf, type))


def only_arrays(leaves: Sequence[Any]) -> bool:
    """Return whether all leaves are Arrays, which need no conversion."""
    for leaf in leaves:
        if leaf.__class__ is not Array:
            return False
    return True


def differentiable(name: str, paths: Sequence[str], leaves: Sequence[Any], integers: bool) -> list[Array]:
    """Return leaves as Arrays; raise for other leaves, and unless `integers` for those not floating."""
    arrays = []
    for path, leaf in zip(paths, leaves, strict=True):
        if not is_array(leaf):
            raise ArgumentError(
                message(name, "arrays or floats in the differentiated arguments", f"{type(leaf).__name__} at {path}",
                        "Move it to another argument, or use argnums.")
            )  # fmt: skip
        x = lift(name, leaf)
        if not (x.aval.floating or integers):
            got, fix = f"{LONG[x.aval.dtype]} at {path}", "Use x.astype(gt.float32), or argnums."
            raise DtypeError(message(name, "floating inputs", got, fix))
        arrays.append(x)
    return arrays


def empty_like(x: Array) -> Any:
    """Return the cotangent of integers, which has no values."""
    return numpy.zeros(x.shape, FLOAT0)


class ArrayCall:
    """The differentiated arguments of one call as a flat list, and the call with replaced arguments.

    Args:
        integers: integers and bools may be among the arguments; they have no derivative.

    Attributes:
        inputs: the floating leaves of the arguments.
        leaves: all leaves.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], argnums: Any, args: tuple[Any, ...], kwargs: Any,
        integers: bool = False,
    ) -> None:  # fmt: skip
        self.function, self.args, self.kwargs = function, args, kwargs
        self.single = argnums.__class__ is int
        if self.single and 0 <= argnums < len(args):
            self.places: tuple[int, ...] = (argnums,)
        else:
            self.places = normalize_argnums(name, argnums, len(args))
        selected = args[argnums] if self.single else tuple([args[k] for k in self.places])
        leaves, self.structure = tree.flatten(selected)
        for x in leaves:
            if x.__class__ is not Array or not x.aval.floating:
                prefix = f"args[{self.places[0]}]" if self.single else "args"
                leaves = differentiable(name, [prefix + p for p in tree.paths(selected)], leaves, integers)
                break
        self.leaves: list[Array] = leaves
        self.inputs = [x for x in leaves if x.aval.floating] if integers else leaves

    def run(self, arrays: Sequence[Array]) -> Any:
        """Call the function with `arrays` in place of the floating leaves."""
        given = list(self.args)
        values = self.pack(arrays, lambda x: x)
        if self.single:
            given[self.places[0]] = values
        else:
            for k, value in zip(self.places, values, strict=True):
                given[k] = value
        return self.function(*given, **self.kwargs)

    def pack(self, values: Sequence[Any], other: Callable[[Array], Any]) -> Any:
        """Return the structure of the arguments with `values` for the inputs and ``other(leaf)`` for other leaves."""
        if len(values) != len(self.leaves):
            given = iter(values)
            values = [next(given) if x.aval.floating else other(x) for x in self.leaves]
        return self.structure.unflatten(values)

    def tangents(self, name: str, values: Any) -> list[Array]:
        """Return the tangents of the inputs, given those of all arguments; raise where they do not match."""
        found = like(name, "tangent", values, self.structure, self.leaves)
        if len(self.inputs) == len(self.leaves):
            return found
        for x, leaf in zip(self.leaves, tree.leaves(values), strict=True):
            if not (x.aval.floating or is_empty(leaf)):
                fix = f"Pass numpy.zeros({x.shape}, gt.jax.float0): no derivative is taken by integers."
                expected = f"a tangent of dtype float0 for {x.aval!r}"
                raise ArgumentError(message(name, expected, type(leaf).__name__, fix))
        return [t for t, x in zip(found, self.leaves, strict=True) if x.aval.floating]

    def gradient(self, cotangents: Sequence[Array], other: Callable[[Array], Any] = empty_like) -> Any:
        """Return the cotangents of the inputs in the structure of the arguments, and ``other(x)`` for integers x."""
        return self.pack(weak_like(cotangents, [x.aval for x in self.inputs]), other)


def is_empty(leaf: Any) -> bool:
    """Whether a leaf is a tangent or cotangent of integers: an array without values."""
    return isinstance(leaf, numpy.ndarray) and leaf.dtype == FLOAT0


class _NoValues:
    """Stands for an array of the dtype `FLOAT0` in a structure, which unflattens to such an array. It has no leaves."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


tree.register_pytree_node(_NoValues, lambda x: ((), x.shape), lambda shape, _: numpy.zeros(shape, FLOAT0))


def without_empty(leaves: list[Any], structure: tree.TreeDef) -> tuple[list[Any], tree.TreeDef]:
    """Return leaves and their structure, in which arrays of the dtype `FLOAT0` are no leaves."""
    if not any(map(is_empty, leaves)):
        return leaves, structure
    value: Any = structure.unflatten([_NoValues(x.shape) if is_empty(x) else x for x in leaves])
    return tree.flatten(value)


def repeat_empty(value: Any, size: int, axes: Callable[[], Sequence[int | None]]) -> Any:
    """Return a pytree whose arrays of the dtype `FLOAT0` have a new axis of this size, where `axes` says for each leaf.

    Args:
        axes: returns the place of the axis for each leaf of `value`; None: no new axis.
    """
    leaves, structure = tree.flatten(value)
    if not any(map(is_empty, leaves)):
        return value
    return structure.unflatten(
        [
            numpy.repeat(numpy.expand_dims(x, axis), size, axis) if is_empty(x) and axis is not None else x
            for x, axis in zip(leaves, axes(), strict=True)
        ]
    )


def check_holomorphic(name: str, arrays: Sequence[Array], what: str) -> None:
    """Raise for real arrays, "inputs" or "outputs", of a function that is differentiated as holomorphic."""
    for x in arrays:
        if not x.aval.complex:
            fix = "Leave holomorphic=True out for real numbers."
            raise DtypeError(message(name, f"complex {what} with holomorphic=True", LONG[x.aval.dtype], fix))


def split_aux(name: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return (output, aux) of a function's result, which must be a pair with `has_aux`; aux is None without."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            message(name, "(output, aux) from a function with has_aux=True", type(result).__name__, "Return a pair.")
        )
    return result


def like(name: str, what: str, values: Any, structure: tree.TreeDef, patterns: Sequence[Array]) -> list[Array]:
    """Return the leaves of `values`, tangents or cotangents, as Arrays with the shapes and dtypes of `patterns`.

    Those of integers may have the dtype `FLOAT0`, which has no values.

    Raises:
        ArgumentError: structure, shape or dtype differs; names the key path.
    """
    leaves, given = tree.flatten(values)
    # the tangent of keys is an array itself
    if given != structure and given != tree.structure(structure.unflatten(patterns), is_leaf=is_whole):
        raise ArgumentError(message(name, f"a {what} of structure {structure}", str(given), "Match the structures."))
    out = []
    for k, (x, leaf) in enumerate(zip(patterns, leaves, strict=True)):
        if not x.aval.floating and is_empty(leaf):
            leaf = constant(0, x.aval)
        value = lift(name, leaf)
        fits = value.aval.dtype is x.aval.dtype or (value.aval.weak and value.aval.complex <= x.aval.complex)
        if value.aval.shape != x.aval.shape or not fits:
            path = tree.paths(values)[k]
            expected, got = f"a {what} with the shape and dtype of {x.aval!r}", repr(value.aval)
            raise ArgumentError(message(name, expected, f"{got} at {path}" if path else got, "Match them."))
        out.append(cast(value, x.aval.dtype))
    return out


def lift_outputs(name: str, value: Any) -> tuple[list[Array], tree.TreeDef]:
    """Return the leaves of a function's output as Arrays, and its structure; raise for other leaves.

    Arrays of the dtype `FLOAT0` are part of the structure.
    """
    leaves, structure = tree.flatten(value)
    if only_arrays(leaves):
        return leaves, structure
    leaves, structure = without_empty(leaves, structure)
    for k, leaf in enumerate(leaves):
        if not is_array(leaf):
            got = f"{type(leaf).__name__} at {tree.paths(value)[k] or 'the top'}"
            raise ArgumentError(message(name, "arrays or numbers as outputs", got, "Return other things as aux."))
    return [lift(name, leaf) for leaf in leaves], structure


def name_of(f: Any, default: str | None = None) -> str:
    """Return what a callable is called: its name, if that is a string, else `default` or the name of its class."""
    name = getattr(f, "__name__", None)
    return name if isinstance(name, str) else default or type(f).__name__


def named(wrapped: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    """Give `wrapped` the name and documentation of `f`."""
    wrapped.__name__ = name_of(f)
    wrapped.__doc__ = f.__doc__
    wrapped.__wrapped__ = f  # type: ignore[attr-defined]
    return wrapped
