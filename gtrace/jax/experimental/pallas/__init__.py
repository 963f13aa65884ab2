"""The names of ``jax.experimental.pallas``, so that libraries with kernels of it load. A kernel cannot be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gtrace.core.base.errors import ArgumentError, message


def absent(name: str) -> Callable[..., NoReturn]:
    """Return a function of Pallas, which refuses to be called."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise ArgumentError(
            message(
                f"pallas.{name}", "no kernel of Pallas", "one", "Give a kernel to gt.define_op as a torch function."
            )
        )

    call.__name__ = call.__qualname__ = name
    return call


BlockSpec, CostEstimate, GridSpec = map(absent, ("BlockSpec", "CostEstimate", "GridSpec"))
cdiv, debug_print, ds, dslice, load = map(absent, ("cdiv", "debug_print", "ds", "dslice", "load"))
num_programs, pallas_call, program_id = map(absent, ("num_programs", "pallas_call", "program_id"))
store, when = map(absent, ("store", "when"))

__all__ = [
    "BlockSpec", "CostEstimate", "GridSpec", "cdiv", "debug_print", "ds", "dslice", "load", "num_programs",
    "pallas_call", "program_id", "store", "when",
]  # fmt: skip
