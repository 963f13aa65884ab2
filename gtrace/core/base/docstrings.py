"""Docstrings of functions that a loop defines."""

from __future__ import annotations

import textwrap


def with_example(doc: str, name: str, examples: str) -> str:
    """Return a docstring with the example of one function.

    Args:
        doc: the docstring without an example.
        name: the function's name.
        examples: doctests of several functions. One of them calls ``.name(``.

    >>> with_example("Return x.", "f", ">>> m.f(1)\\n1\\n>>> m.g(2)\\n2\\n").split("\\n")
    ['Return x.', '', '    >>> m.f(1)', '    1', '    ']
    """
    [example] = [part for part in examples.split(">>> ")[1:] if f".{name}(" in part]
    shown = textwrap.indent(f">>> {example}", "    ")
    return f"{doc.rstrip()}\n\n{shown}    "
