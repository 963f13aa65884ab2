"""Of ``jax.extend.linear_util``, functions with a transformation around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from gtrace.extend import ArgumentError, message


class WrappedFun:
    """A function and its parameters by name.

    Attributes:
        f: the function.
        params: what each call passes on by name.
    """

    def __init__(self, f: Callable[..., Any], params: dict[str, Any]) -> None:
        self.f = f
        self.params = params

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.f(*args, **{**self.params, **kwargs})


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, **options: Any) -> WrappedFun:
    """Return a function as an object.

    >>> wrap_init(lambda x: x + 1).call_wrapped(1)
    2
    """
    return WrappedFun(f, params or {})


def transformation(gen: Callable[..., Any], *args: Any) -> Callable[..., NoReturn]:
    """Return a function that refuses to be called: JAX's transformations of wrapped functions are not here."""

    @functools.wraps(gen)
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        fix = "Write a function that calls the other, and use gt.vmap, gt.grad and the like."
        raise ArgumentError(message("jax.extend.linear_util.transformation", "no use of it", gen.__name__, fix))

    return call


transformation_with_aux = transformation


def merge_linear_aux(aux1: Callable[[], Any], aux2: Callable[[], Any]) -> tuple[bool, Any]:
    """Return which of two functions has a result, as those of `flatten_fun` have once they were called, and the result.

    >>> merge_linear_aux(lambda: [][0], lambda: "there")
    (False, 'there')
    """
    try:
        return True, aux1()
    except IndexError:
        return False, aux2()


__all__ = ["WrappedFun", "merge_linear_aux", "transformation", "transformation_with_aux", "wrap_init"]
