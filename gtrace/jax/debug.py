"""``jax.debug``: printing and calling back with values. There are none while a function is traced."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from gtrace import tree
from gtrace.jax.adapt import namespace
from gtrace.trace.array import Array
from gtrace.trace.record import thread


def _shown(x: Any) -> Any:
    return x.numpy() if isinstance(x, Array) and thread.trace.capture is None else x


def print(fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any) -> None:  # noqa: A001
    """Print a text with the values of arrays. While a function is traced, it prints once, what the arrays are like.

    >>> import gtrace as gt, gtrace.jax as jax
    >>> jax.debug.print("x = {x}", x=gt.array([1., 2.]))
    x = [1. 2.]
    """
    kwargs.pop("skip_format_check", None)
    builtins.print(fmt.format(*map(_shown, args), **{name: _shown(x) for name, x in kwargs.items()}))


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> None:
    """Call a Python function with arrays. While a function is traced, it is called once, with placeholders."""
    args, kwargs = tree.map(_shown, (args, kwargs))
    callback(*args, **kwargs)


__getattr__, __dir__ = namespace("jax.debug")
