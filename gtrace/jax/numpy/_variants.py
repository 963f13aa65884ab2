"""Functions of ``jax.numpy`` whose parameters mean something else in gtrace, or that gtrace has no use for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy

from gtrace import numpy as ours
from gtrace.extend import (
    ArgumentError,
    Array,
    DtypeError,
    ShapeError,
    as_int,
    cast,
    distinct,
    lift,
    message,
    ops,
    promote_arrays,
)
from gtrace.jax import complex_order
from gtrace.jax.adapt import documented
from gtrace.jax.keys import taking_keys
from gtrace.jax.numpy._reductions import with_dtype
from gtrace.jax.promotion_checks import checks
from gtrace.numpy.functional import core_names

__all__ = [
    "ComplexWarning", "absolute", "argsort", "array_repr", "array_str", "atleast_1d", "atleast_2d", "atleast_3d",
    "ceil", "einsum_path", "floor", "get_printoptions", "histogram", "histogram_bin_edges", "isscalar", "iterable",
    "place", "polyder", "polydiv", "positive", "printoptions", "save", "savez", "set_printoptions", "square", "top_k",
    "transpose", "trunc", "unique_all", "unique_counts", "unique_inverse", "unique_values", "vectorize", "where",
]  # fmt: skip


def _listed(name: str) -> Callable[..., Any]:
    function = getattr(ours, name)

    @functools.wraps(function)
    def call(*arys: Any) -> Any:
        found = function(*arys)
        return list(found) if isinstance(found, tuple) else found

    return taking_keys(f"jax.numpy.{name}", call)


atleast_1d, atleast_2d, atleast_3d = _listed("atleast_1d"), _listed("atleast_2d"), _listed("atleast_3d")


@functools.partial(taking_keys, "jax.numpy.where")
def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """``gt.where``, or, with a condition alone, the places where it holds: one array an axis."""
    if x is not None and y is not None:
        return ops.where(condition, x, y)
    if x is not None or y is not None:
        raise ArgumentError(message("where", "both x and y, or neither", "one of them", "Pass both."))
    return ops.nonzero(condition, size=size, fill_value=0 if fill_value is None else fill_value)


def vectorize(pyfunc: Callable[..., Any], *, excluded: Any = (), signature: str | None = None) -> Callable[..., Any]:
    """``gt.numpy.vectorize``; the setting ``jax_numpy_rank_promotion`` holds for the axes that it loops over.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.vectorize(jnp.add)(jnp.arange(2), 1).tolist()
    [1, 2]
    """
    plain = ours.vectorize(pyfunc, excluded=excluded, signature=signature)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if checks.ranks != "allow":
            looped = [numpy.shape(x) for k, x in enumerate(args) if k not in excluded and x is not None]
            cores = [len(names) for names in core_names(signature)[0]] if signature else [0] * len(looped)
            loops = [shape[: max(len(shape) - n, 0)] for shape, n in zip(looped, cores, strict=False)]
            checks.check_ranks("vectorize", loops, checks.ranks)
        return plain(*args, **kwargs)

    return call


def isscalar(element: Any) -> bool:
    """Return whether something is a number or text, or an array without dimensions, also one of NumPy's.

    >>> import numpy
    >>> isscalar(numpy.array(16)), isscalar([16])
    (True, False)
    """
    return element.ndim == 0 if hasattr(element, "ndim") else numpy.isscalar(element)


def iterable(y: Any) -> bool:
    """Return whether something can be iterated over."""
    return bool(numpy.iterable(y))


def printoptions(**options: Any) -> AbstractContextManager[Any]:
    """NumPy's options of printing, which Arrays print with, for a block."""
    return numpy.printoptions(**options) if options else contextlib.nullcontext()


def set_printoptions(**options: Any) -> None:
    """Set NumPy's options of printing, which Arrays print with."""
    numpy.set_printoptions(**options)


@functools.partial(taking_keys, "jax.numpy.transpose")
def transpose(a: Any, axes: Any = None) -> Array:
    """``gt.transpose`` with the axes as one argument."""
    return ops.permute_dims(lift("transpose", a), axes)


def array_repr(
    arr: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the array as text with its dtype, under the options of printing that are given."""
    given = {"linewidth": max_line_width, "precision": precision, "suppress": suppress_small}
    with numpy.printoptions(**{key: value for key, value in given.items() if value is not None}):  # type: ignore[arg-type]
        return repr(arr)


def array_str(
    a: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the elements as text, as numpy.array_str."""
    return numpy.array_str(numpy.asarray(a), max_line_width, precision, suppress_small)


def get_printoptions() -> dict[str, Any]:
    """Return NumPy's options of printing, which Arrays print with."""
    return dict(numpy.get_printoptions())


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> Any:
    """Return the order in which NumPy would contract the operands, and a text about it."""
    shapes: list[Any] = [
        x if isinstance(x, (str, list)) else numpy.broadcast_to(numpy.float32(0), x.shape) for x in operands
    ]
    return numpy.einsum_path(subscripts, *shapes, optimize="greedy" if optimize in ("auto", True) else optimize)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Array:
    """Return `arr` with its elements where `mask` holds replaced, in order, by `vals` and again from their start."""
    if inplace:
        fix = "Pass inplace=False, and use the result."
        raise ArgumentError(message("place", "inplace=False", "True: Arrays never change", fix))
    x, values = lift("place", arr), ops.reshape(lift("place", vals), (-1,))
    kept = ops.reshape(lift("place", mask), (-1,))
    order = ops.subtract(ops.cumsum(kept.astype("int32")), 1)
    chosen = values[ops.remainder(order, values.size)].astype(x.dtype)
    return ops.reshape(ops.where(kept, chosen, ops.reshape(x, (-1,))), x.shape)


save, savez = numpy.save, numpy.savez
ComplexWarning = numpy.exceptions.ComplexWarning


def _of_booleans(name: str, given: Callable[[Array], Array]) -> Callable[[Any], Array]:
    function = getattr(ours, name)

    def call(x: Any, /) -> Array:
        x = lift(name, x)
        return given(x) if x.dtype == "bool" else function(x)

    return documented(call, name, f"``gt.numpy.{name}``, which takes booleans too.")


absolute, positive = (_of_booleans(name, distinct) for name in ("abs", "positive"))
ceil, floor, trunc = (_of_booleans(name, distinct) for name in ("ceil", "floor", "trunc"))
square = _of_booleans("square", lambda x: x.astype("int32"))


def top_k(
    a: Any, k: int, /, *, axis: int = -1, mode: str = "largest", sorted: bool = True  # noqa: A002 - JAX's name
) -> tuple[Array, Array]:  # fmt: skip
    """Return the k largest, or smallest, elements along an axis, in this order, and their places, int32.

    Of equal elements the first comes first. NaN counts as greater than any number.

    Raises:
        DtypeError: complex numbers.
        ArgumentError: another `mode`.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.top_k(jnp.array([3.0, 1.0, 2.0]), 2, mode="smallest")
    (Array([1., 2.], dtype=float32), Array([1, 2], dtype=int32))
    """
    x = lift("top_k", a)
    if ops.iscomplexobj(x):
        raise DtypeError(message("top_k", "real numbers", repr(x.aval), "Complex numbers have no order."))
    if mode not in ("largest", "smallest"):
        raise ArgumentError(message("top_k", '"largest" or "smallest" as mode', repr(mode), "Pass one of them."))
    last = ops.moveaxis(x, axis, -1)
    count = as_int("top_k", "k", k)
    if not 0 <= count <= last.shape[-1]:
        raise ShapeError(message("top_k", f"a k of at most {last.shape[-1]}", str(count), "Pass a smaller k."))
    places = ops.argsort(last, -1, descending=mode == "largest")[..., :count]
    values = ops.take_along_axis(last, places, -1)
    return ops.moveaxis(values, -1, axis), ops.moveaxis(places, -1, axis).astype("int32")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:  # noqa: A002
    """``gt.numpy.histogram_bin_edges``, with the edges in the floating dtype of `a`."""
    return cast(ours.histogram_bin_edges(a, bins, range), promote_arrays("histogram", a, floating=True)[0].aval.dtype)


def histogram(
    a: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002
    weights: Any = None,
    density: bool | None = None,
) -> tuple[Array, Array]:
    """``gt.numpy.histogram``, with the counts and edges in the common floating dtype of `a` and the weights."""
    x, *given = promote_arrays("histogram", a, *[] if weights is None else [weights], floating=True)
    kind = x.aval.dtype
    if x.aval.complex and not ops.iscomplexobj(a):
        x = ops.real(x)
    edges = histogram_bin_edges(x, bins, range)
    counts, _ = ours.histogram(x, edges, None, density, *given)
    return cast(counts, kind), cast(edges, kind)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """``gt.numpy.polydiv``, where the remainder has as many coefficients as `u`."""
    u, v = ops.asarray(u), ops.asarray(v)
    quotient, rest = ours.polydiv(u, v)
    if u.size >= v.size:  # NaN and infinities spread
        rest = ops.concat([ops.multiply(quotient, 0.0), rest[: v.size - 1]])
    return quotient, ours.trim_zeros(rest, "f") if trim_leading_zeros else rest


def polyder(p: Any, m: int = 1) -> Array:
    """``gt.numpy.polyder`` of floats, which integers become."""
    return ours.polyder(promote_arrays("polyder", p, floating=True)[0], m)


argsort = with_dtype("argsort", complex_order.argsort, inexact=False)


def _unique_part(name: str) -> Callable[..., Any]:
    flags = {"return_inverse": name in ("unique_all", "unique_inverse"), "return_index": name == "unique_all",
             "return_counts": name in ("unique_all", "unique_counts")}  # fmt: skip
    plain = getattr(ours, name)

    @functools.wraps(plain)
    def call(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
        if size is None:
            return plain(x)
        fill = {} if fill_value is None else {"fill_value": fill_value}
        found = ours.unique(x, size=size, **flags, **fill)
        if name == "unique_values":
            return found
        values, *rest = found
        if flags["return_inverse"]:
            rest[int(flags["return_index"])] = ops.reshape(rest[int(flags["return_index"])], lift(name, x).shape)
        kind = type(plain(ops.zeros(1)))
        return kind(values, *rest)

    del call.__wrapped__  # its parameters are not those of this one
    return call


unique_all, unique_counts = _unique_part("unique_all"), _unique_part("unique_counts")
unique_inverse, unique_values = _unique_part("unique_inverse"), _unique_part("unique_values")
