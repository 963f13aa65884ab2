"""``jax.experimental.layout``: records of how arrays lie in memory, which change nothing here."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Format", "Layout"]


@attrs.frozen
class Layout:
    """The order of the dimensions in memory.

    Attributes:
        major_to_minor: the dimensions, the slowest first.
    """

    major_to_minor: tuple[int, ...]
    tiling: Any = None
    sub_byte_element_size_in_bits: int = 0


@attrs.frozen
class Format:
    """A layout and a sharding.

    >>> Format(None, None)
    Format(layout=None, sharding=None)
    """

    layout: Any = None
    sharding: Any = None
