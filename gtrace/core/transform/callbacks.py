"""Calls of Python functions with array values: immediate if the values exist, else operations of the program.

A traced function records the call (`gtrace.core.ops.host_calls`). The interpreter makes it between compiled parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.host_calls import METHODS, TOKEN, CallName, called_op, host_call, note_effect, register
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.bind import bind
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import whole
from gtrace.core.trace.record import thread
from gtrace.core.transform.eval_shape import ShapeDtypeStruct

__all__ = ["io_callback", "pure_callback"]

_METHODS: dict[str | None, str] = {
    None: "sequential",
    "legacy_vectorized": "expand_dims",
    **{name: name for name in METHODS},
}
"""gtrace's names for JAX's ways to compute a batch."""

_known: BoundedTable[Hashable, CallName] = BoundedTable(1024)


def _number(name: str, function: Callable[..., Any], key: Hashable) -> CallName:
    """Return the number of a call. Equal calls of a function share it, so that programs are found again."""
    try:
        number = _known.get(key)
    except TypeError:
        return register(name, function)
    if number is None:
        number = register(name, function)
        _known.remember(key, number)
    return number


def _is_data(x: Any) -> bool:
    return type(x) in (bool, int, float, complex) or (
        isinstance(x, (numpy.ndarray, numpy.generic)) and x.dtype.kind in "biufc"
    )


@attrs.frozen(eq=False)
class _Call:
    """The arguments of a call without its arrays, and how to put these, as NumPy arrays, back in place.

    It holds no placeholder, so that a recorded call may keep it.
    """

    structure: tree.TreeDef
    rest: list[Any]
    places: tuple[int, ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Call, list[Array]]:
        """Return the arguments without arrays, and the arrays; numbers are arrays."""
        given, structure = tree.flatten((args, kwargs))
        leaves = [lift("callback", x) if _is_data(x) else x for x in given]
        places = tuple([k for k, x in enumerate(leaves) if isinstance(x, Array)])
        rest = [None if isinstance(x, Array) else x for x in leaves]
        return cls(structure, rest, places), [leaves[k] for k in places]

    def key(self) -> Hashable:
        """What tells calls apart, beside their arrays. Constants count with their types."""
        return self.structure, self.places, tuple([(type(x), x) for x in self.rest])

    def arguments(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these values for the arrays."""
        leaves = list(self.rest)
        for k, x in zip(self.places, arrays, strict=False):
            leaves[k] = x
        rebuilt: Any = self.structure.unflatten(leaves)
        return rebuilt

    def values(self, arrays: Sequence[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the arrays' values, even while derivatives follow them: callbacks have none."""
        return self.arguments([wrap(whole(x, "numpy")).numpy() for x in arrays])


def call_for_effect(
    name: str, callback: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, ordered: bool = False,
    key: Hashable = None,
) -> None:  # fmt: skip
    """Call a Python function for its effect. A traced program calls it each time it runs.

    Args:
        ordered: it runs after all earlier ordered calls.
        key: identifies the function; None: the function itself.
    """
    given, operands = _Call.of(args, kwargs)
    if thread.trace.capture is None:
        positional, keywords = given.values(operands)
        callback(*positional, **keywords)
        return

    def run(arrays: list[Any]) -> Sequence[Any]:
        positional, keywords = given.arguments(arrays)
        callback(*positional, **keywords)
        return [TOKEN]

    number = _number(name, run, _key(name, callback if key is None else key, given))
    note_effect(number, operands, ordered)


def _key(name: str, function: Any, given: _Call, *rest: Any) -> Hashable:
    return name, function, given.key(), *rest


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """Call a Python function of NumPy arrays; return its results as Arrays. It has no derivative.

    With values, it is called at once. In traced functions, the call is an operation of the program. It may be
    repeated, or dropped if its result is unused.

    Args:
        callback: a function without effects.
        result_shape_dtypes: pytree of what has a shape and a dtype, such as ``gt.ShapeDtypeStruct``.
        args, kwargs: of `callback`: pytrees of arrays and numbers, all of which it gets as NumPy arrays, and constants.
        vmap_method: under `vmap`, ``"sequential"`` (or None) calls it for one example after the other; with
            ``"expand_dims"`` and ``"broadcast_all"`` it takes all of them on a first axis, which arrays that are not
            batched have with size 1, or repeated.

    Raises:
        ArgumentError: there is no such method.
        ShapeError: the results have other shapes.

    >>> gt.pure_callback(numpy.sort, gt.ShapeDtypeStruct(3, "float32"), gt.array([3., 1., 2.]))
    Array([1., 2., 3.], dtype=float32)
    """
    return _called("pure_callback", callback, result_shape_dtypes, args, kwargs, vmap_method)


def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call a Python function of NumPy arrays like `pure_callback`; the function may have effects.

    A traced program calls it each time it runs, if any result of the traced function is used.

    Args:
        ordered: it runs after the ordered calls that were traced before it.

    >>> gt.io_callback(lambda x: x + 1, gt.ShapeDtypeStruct((), "float32"), gt.array(1.0), ordered=True)
    Array(2., dtype=float32)
    """
    if result_shape_dtypes is None:
        call_for_effect("io_callback", callback, args, kwargs, ordered=ordered)
        return None
    return _called("io_callback", callback, result_shape_dtypes, args, kwargs, None, effect=True, ordered=ordered)


def _called(
    name: str, callback: Callable[..., Any], results: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    vmap_method: str | None, *, effect: bool = False, ordered: bool = False,
) -> Any:  # fmt: skip
    if vmap_method not in _METHODS:
        known = ", ".join(repr(method) for method in _METHODS if method)
        raise ArgumentError(message(name, f"{known} as vmap_method", repr(vmap_method), "Pass one of them."))
    given, operands = _Call.of(args, kwargs)
    specs, structure = tree.flatten(tree.map(lambda spec: ShapeDtypeStruct(spec.shape, spec.dtype), results))

    def checked(found: Any) -> list[Any]:
        leaves, got = tree.flatten(found)
        if got != structure:
            raise ShapeError(message(name, f"results of the structure {structure}", str(got), "Return that."))
        return leaves

    if thread.trace.capture is None:
        positional, keywords = given.values(operands)
        outs = []
        for spec, value in zip(specs, checked(callback(*positional, **keywords)), strict=True):
            out = ops.asarray(value if isinstance(value, Array) else numpy.asarray(value).copy(), spec.dtype)
            if out.shape != spec.shape:
                raise ShapeError(message(name, f"a result of shape {spec.shape}", str(out.shape), "Reshape it."))
            # a gradient that follows the arguments must not treat the result as a constant
            followed = thread.trace.tape is not None and operands
            outs.append(bind(called_op, (out, *operands), (name,)) if followed else out)
        return structure.unflatten(outs)

    def run(arrays: list[Any]) -> Sequence[Any]:
        positional, keywords = given.arguments(arrays)
        return [*checked(callback(*positional, **keywords)), *([TOKEN] if effect else [])]

    kinds = [(tuple(spec.shape), spec.dtype.torch) for spec in specs]
    number = _number(name, run, _key(name, callback, given, tuple(kinds), structure))
    if effect:
        return structure.unflatten(note_effect(number, operands, ordered, kinds))
    return structure.unflatten(host_call(number, operands, kinds, _METHODS[vmap_method]))
