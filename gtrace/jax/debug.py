"""``jax.debug``: printing and calling back with values, each time a program runs."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable
from typing import Any

from gtrace.extend import call_for_effect
from gtrace.jax import meshes
from gtrace.jax.adapt import namespace
from gtrace.jax.extend.absent import absent_class


def print(fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any) -> None:  # noqa: A001
    """Print a text with the values of arrays: at once, or, in a function that is traced, each time its program runs.

    Under `vmap` it prints for each example. In a traced function, it prints if a result of that function is computed.

    >>> import gtrace.jax as jax
    >>> jax.debug.print("x = {x}", x=gt.array([1., 2.]))
    x = [1. 2.]
    """
    kwargs.pop("skip_format_check", None)

    def show(*values: Any, **named: Any) -> None:
        builtins.print(fmt.format(*values, **named))

    call_for_effect("debug.print", show, args, kwargs, ordered=ordered, key=fmt)


def log(fmt: str, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any) -> None:
    """As `print`, to the logger ``jax``, at the level of information."""
    kwargs.pop("skip_format_check", None)

    def note(*values: Any, **named: Any) -> None:
        logging.getLogger("jax").info(fmt.format(*values, **named))

    call_for_effect("debug.log", note, args, kwargs, ordered=ordered, key=fmt)


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> None:
    """Call a Python function with arrays: at once, or, in a function that is traced, each time its program runs."""
    call_for_effect("debug.callback", callback, args, kwargs, ordered=ordered)


DebugEffect, OrderedDebugEffect = absent_class("DebugEffect"), absent_class("OrderedDebugEffect")

__getattr__, __dir__ = namespace("jax.debug", meshes)
