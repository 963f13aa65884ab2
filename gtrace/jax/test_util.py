"""Of ``jax.test_util``, the check of derivatives; it needs the extra of ``gtrace.testing``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """``gtrace.testing.check_grads``, which computes in float64 whatever the number rules are, and chooses its steps.

    Raises:
        AssertionError: a derivative is wrong.
        ImportError: hypothesis is not installed, which ``gtrace.testing`` needs.

    >>> import gtrace.jax as jax
    >>> check_grads(jax.numpy.sin, (1.0,), order=2)
    """
    checks = importlib.import_module("gtrace.testing.checks")  # chex imports this module, and needs no hypothesis
    given = {name: value for name, value in (("atol", atol), ("rtol", rtol)) if value is not None}
    with gt.config(x64=True):
        checks.check_grads(f, args, order, modes, **given)
