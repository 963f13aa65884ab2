"""Functions that run where their arguments are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace.extend import ArgumentError, Array, is_placeholder, message, tree

__all__ = ["Colocated"]


def _spec(x: Any) -> Any:
    return gt.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, Array) else x


class Colocated:
    """A Python function that runs in this process, on values.

    Args:
        fun: the function.
        out_specs_fn: from the shapes and dtypes of the arguments to those of the results; None: they are not compared.
    """

    def __init__(self, fun: Callable[..., Any], out_specs_fn: Callable[..., Any] | None = None) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._specs = fun, out_specs_fn

    def specialize(
        self, in_specs: Any = None, out_specs_fn: Callable[..., Any] | None = None, devices: Sequence[Any] | None = None
    ) -> Colocated:
        """Return the function with what its results are.

        Args:
            in_specs, devices: without effect.
        """
        return Colocated(self._fun, out_specs_fn or self._specs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Array) and is_placeholder(x) for x in tree.leaves((args, kwargs))):
            fix = "Call it outside of traced functions, or use io_callback."
            raise ArgumentError(message("colocated_python", "arrays with values", "one that is traced", fix))
        out = self._fun(*args, **kwargs)
        if self._specs is None:
            return out
        given, named = tree.map(_spec, (args, kwargs))
        wanted = tree.leaves(self._specs(*given, **named))
        found = tree.leaves(out)
        if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in wanted]:
            got = f"{[_spec(x) for x in found]}"
            raise ArgumentError(message("colocated_python", f"results {wanted}", got, "Mend out_specs_fn."))
        return out
