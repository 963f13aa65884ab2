"""Readable texts of numbers with units, and of other people's strings."""

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


def duration_text(seconds: float) -> str:
    """Return seconds in a readable unit.

    >>> [duration_text(s) for s in (83.21, 1.234, 0.213, 0.0213, 0.00052, 0.000003, 1.39e-9, 0)]
    ['83.2 s', '1.2 s', '0.21 s', '21.3 ms', '0.52 ms', '3 us', '1.39 ns', '0 s']
    """
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    if seconds >= 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds >= 0.0001:
        return f"{seconds * 1e3:.2f} ms"
    if seconds >= 1e-6:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e9:.3g} ns" if seconds > 0 else "0 s"


def printable(text: str) -> str:
    """Return a text with its control characters escaped, so that a terminal does not obey them.

    >>> printable("caf\\u00e9 \\x1b]0;a title\\x07")
    'caf\u00e9 \\\\x1b]0;a title\\\\x07'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
