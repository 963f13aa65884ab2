"""A table of the parameters of a model."""

from __future__ import annotations

from typing import Any

from gtrace.extend import LONG, lift, tree
from gtrace.nn.layers.base import Module
from gtrace.nn.layers.filters import is_array

__all__ = ["summary"]


def summary(model: Any) -> str:
    """Return a table of the arrays in a pytree: path, class of their module, shape, dtype, number of elements.

    Args:
        model: a module or any pytree; other leaves than arrays are left out.

    >>> print(gt.nn.summary(gt.nn.Linear(3, 4, key=gt.random.key(0))))
    array   module  shape   dtype    numbers
    weight  Linear  (4, 3)  float32       12
    bias    Linear  (4,)    float32        4
    16 numbers in 2 arrays, 64 bytes
    """
    rows = [("array", "module", "shape", "dtype", "numbers")]
    total = size = 0
    for path, leaf in tree.leaves_with_path(model):
        if is_array(leaf):
            a = lift("nn.summary", leaf).aval
            name = tree.keystr(path).removeprefix(".") or "-"
            rows.append((name, _holder(model, path), str(a.shape), LONG[a.dtype], f"{a.size:,}"))
            total, size = total + a.size, size + a.size * a.dtype.itemsize
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for *texts, number in rows:
        left = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
        lines.append("  ".join([*left, number.rjust(widths[-1])]))
    return "\n".join([*lines, f"{total:,} numbers in {len(rows) - 1} arrays, {_bytes(size)}"])


def _holder(model: Any, path: tree.KeyPath) -> str:
    """Return the class of the innermost module on a path."""
    found, node = "", model
    for key in (*path, None):
        if isinstance(node, Module):
            found = type(node).__name__
        if isinstance(key, tree.GetAttrKey):
            node = getattr(node, key.name)
        elif isinstance(key, tree.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, tree.DictKey):
            node = node[key.key]
        else:
            break
    return found


def _bytes(size: int) -> str:
    if size < 1 << 20:
        return f"{size:,} bytes"
    return f"{size / (1 << 20):,.1f} MiB"
