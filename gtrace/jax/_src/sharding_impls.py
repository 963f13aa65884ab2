"""``jax._src.sharding_impls``: layouts that are not stated, and the check of stated ones."""

from __future__ import annotations

from typing import Any

from gtrace.jax.private_places import public_names

__all__ = ["UNSPECIFIED", "UnspecifiedValue", "canonicalize_sharding"]


class UnspecifiedValue:
    """The class of the layout that is not stated."""

    def __repr__(self) -> str:
        return "UnspecifiedValue"


UNSPECIFIED = UnspecifiedValue()


def canonicalize_sharding(sharding: Any, api_name: str, check_mesh_consistency: bool = True) -> Any:
    """Return a layout as it is: a `PartitionSpec` needs no mesh here.

    >>> canonicalize_sharding(None, "jnp.zeros") is None
    True
    """
    return sharding


__getattr__ = public_names(__name__)
