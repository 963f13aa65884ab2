"""Of ``jax.api_util``, functions of flat arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gtrace.jax import paths
from gtrace.jax.avals import ShapedArray, get_aval
from gtrace.jax.extend.linear_util import WrappedFun

__all__ = [
    "argnums_partial",
    "debug_info",
    "flatten_axes",
    "flatten_fun",
    "flatten_fun_nokwargs",
    "safe_map",
    "shaped_abstractify",
]


def safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """Return the results of a function for elements of several sequences of one length, as a list.

    >>> safe_map(lambda x, y: x + y, [1, 2], [3, 4])
    [4, 6]
    """
    return [f(*given) for given in zip(*args, strict=True)]


def shaped_abstractify(x: Any) -> ShapedArray:
    """Return the shape and dtype of an array or a number.

    >>> shaped_abstractify(gt.ones((2, 3), dtype="float32"))
    ShapedArray(float32[2,3])
    """
    found = get_aval(x)
    return ShapedArray(found.shape, found.dtype, getattr(found, "weak_type", False))


def debug_info(traced_for: str, fun: Any, args: Any, kwargs: Any, **options: Any) -> types.SimpleNamespace:
    """Return a record of the traced function and the reason, for errors."""
    return types.SimpleNamespace(traced_for=traced_for, func_src_info=getattr(fun, "__name__", str(fun)))


def _flattened(f: WrappedFun, in_tree: Any, named: bool) -> tuple[WrappedFun, Callable[[], Any]]:
    structures: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        given = in_tree.unflatten(leaves)
        args, kwargs = given if named else (given, {})
        out, structure = paths.flatten(f.call_wrapped(*args, **kwargs))
        structures[:] = [structure]
        return out

    return WrappedFun(flat, {}), lambda: structures[0]


def flatten_fun(f: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """Return a function of leaves, and what gives the structure of its results after it was called.

    Args:
        in_tree: the structure of the arguments by position and of those by name, as a pair.
    """
    return _flattened(f, in_tree, True)


def flatten_fun_nokwargs(f: WrappedFun, in_tree: Any) -> tuple[WrappedFun, Callable[[], Any]]:
    """`flatten_fun`, for arguments by position alone."""
    return _flattened(f, in_tree, False)


def argnums_partial(
    f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True
) -> tuple[WrappedFun, list[Any]]:
    """Return a function of some of the arguments, the others fixed, and these arguments.

    >>> from gtrace.jax.extend.linear_util import wrap_init
    >>> f, given = argnums_partial(wrap_init(lambda x, y: x - y), 1, (5, 2))
    >>> f.call_wrapped(*given), f.call_wrapped(4)
    (3, 1)
    """
    numbers = (dyn_argnums,) if isinstance(dyn_argnums, int) else tuple(dyn_argnums)
    places = sorted({k % len(args) for k in numbers})

    def call(*given: Any, **kwargs: Any) -> Any:
        merged = dict(enumerate(args)) | dict(zip(places, given, strict=True))
        return f.call_wrapped(*merged.values(), **kwargs)

    return WrappedFun(call, {}), [args[k] for k in places]


def flatten_axes(name: str, treedef: Any, axis_tree: Any, *, kws: bool = False, tupled_args: bool = False) -> list[Any]:
    """Return the axis of each leaf of a structure, from a tree of axes that is a prefix of it.

    >>> flatten_axes("vmap", gt.tree.structure((1, (2, 3))), (0, None))
    [0, None, None]
    """
    whole = treedef.unflatten(list(range(treedef.num_leaves)))
    out: list[Any] = []

    def spread(axis: Any, part: Any) -> None:
        out.extend([axis] * len(paths.leaves(part)))

    paths.map(spread, axis_tree, whole, is_leaf=lambda x: x is None)
    return out
