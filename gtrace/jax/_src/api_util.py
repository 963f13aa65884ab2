"""``jax._src.api_util``, at the place where e3nn looks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gtrace.extend import both_ways
from gtrace.jax.private_places import public_names


def infer_argnums_and_argnames(
    sig: Any, argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers and the names of arguments, of which the one follow from the other.

    Args:
        sig: the signature of the function.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    if argnums is not None and argnames is not None:
        return numbers, names

    def signed() -> None:
        """Stand for the function."""

    signed.__signature__ = sig  # type: ignore[attr-defined]
    return both_ways(signed, "static", numbers, names)


__getattr__ = public_names(__name__)
