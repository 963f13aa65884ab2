"""Numbers with units, as people read them."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """Return a number of bytes with a binary unit.

    >>> [bytes_text(n) for n in (12, 2048, 3 * 2**20, 5 * 2**30)]
    ['12 B', '2.0 KiB', '3.0 MiB', '5.0 GiB']
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << power:
            return f"{count / (1 << power):.1f} {unit}"
    return f"{count:.0f} B"
