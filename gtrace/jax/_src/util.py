"""``jax._src.util``: helpers for lists, which libraries with rules of their own import."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from gtrace.jax.api_util import safe_map

__all__ = ["merge_lists", "partition_list", "safe_map", "safe_zip", "split_list", "unzip2", "unzip3", "wraps"]

T = TypeVar("T")
wraps = functools.wraps


def safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the elements of sequences of one length, side by side, as a list.

    Raises:
        ValueError: the lengths differ.

    >>> safe_zip([1, 2], [3, 4])
    [(1, 3), (2, 4)]
    """
    return list(zip(*args, strict=True))


def unzip2(xys: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first and the second elements of pairs.

    >>> unzip2([(1, "a"), (2, "b")])
    ((1, 2), ('a', 'b'))
    """
    pairs = list(xys)
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)


def unzip3(xyzs: Iterable[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the first, second and third elements of triples."""
    triples = list(xyzs)
    return tuple(x for x, _, _ in triples), tuple(y for _, y, _ in triples), tuple(z for _, _, z in triples)


def split_list(args: Sequence[T], ns: Sequence[int]) -> list[list[T]]:
    """Return a list in parts of these lengths, and the rest as one more.

    >>> split_list([1, 2, 3, 4], [1, 2])
    [[1], [2, 3], [4]]
    """
    left, parts = list(args), []
    for n in ns:
        parts.append(left[:n])
        left = left[n:]
    return [*parts, left]


def partition_list(bs: Sequence[bool], l: Sequence[T]) -> tuple[list[T], list[T]]:  # noqa: E741 - JAX's name
    """Return the elements whose mark is false, and those whose mark is true.

    >>> partition_list([True, False, True], "abc")
    (['b'], ['a', 'c'])
    """
    marked = list(zip(bs, l, strict=True))
    return [x for b, x in marked if not b], [x for b, x in marked if b]


def merge_lists(bs: Sequence[bool], l0: Sequence[T], l1: Sequence[T]) -> list[T]:
    """Return one list of two: the inverse of `partition_list`.

    >>> merge_lists([True, False, True], ["b"], ["a", "c"])
    ['a', 'b', 'c']
    """
    sources = iter(l0), iter(l1)
    return [next(sources[bool(b)]) for b in bs]
