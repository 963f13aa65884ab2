"""The text of JAX's programs, as JAX writes it: a program, or a part of one, is on one line if it fits 80 columns."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy

from gtrace.extend import LONG
from gtrace.ir import DTYPES

WIDTH = 80

_SHORT = {LONG[dtype]: name for name, dtype in DTYPES.items()}

_HIDDEN: dict[str, tuple[Any, ...]] = {
    "accuracy": (None,), "shape": (), "sharding": (None,), "precision": (None,), "out_sharding": (None,),
}  # fmt: skip
"""Parameters that are not written where they have one of these values."""

_OWN: dict[str, dict[str, Any]] = {
    "iota": {"sharding": ...}, "reshape": {"sharding": ...}, "reduce_sum": {"out_sharding": ...},
    "conv_general_dilated": {"precision": ..., "out_sharding": ...},
}  # fmt: skip
"""Parameters that these primitives have written all the same."""


def short(aval: Any) -> str:
    """Return a type as ``f32[2,3]``."""
    name = str(aval.dtype)
    return f"{_SHORT.get(name, name)}[{','.join(map(str, aval.shape))}]"


def literal(atom: Any) -> str:
    """Return a number with its type."""
    value = atom.val
    if hasattr(value, "item"):
        value = value.item()
    if str(atom.aval.dtype) == "float32" and isinstance(value, float):
        value = float(numpy.float32(value))
    return f"{value}:{short(atom.aval)}"


class _Names:
    """The letters of variables, in the order in which they are met."""

    def __init__(self) -> None:
        self.known: dict[Any, str] = {}
        self.count = 0

    def fresh(self) -> str:
        n, text = self.count, ""
        self.count += 1
        while True:
            n, rest = divmod(n, 26)
            text = string.ascii_lowercase[rest] + text
            if not n:
                return text

    def __call__(self, atom: Any) -> str:
        if hasattr(atom, "val"):
            return literal(atom)
        if type(atom).__name__ == "DropVar":
            return "_"
        found = self.known.get(atom)
        if found is None:
            found = self.known[atom] = self.fresh()
        return found

    def typed(self, atoms: Sequence[Any]) -> str:
        return " ".join([f"{self(v)}:{short(v.aval)}" for v in atoms])


def of_program(jaxpr: Any, names: Any = None, room: int = WIDTH) -> str:
    """Return the text of a program.

    Args:
        room: the columns that a text of one line may take.
    """
    names = names or _Names()
    consts, given = names.typed(jaxpr.constvars), names.typed(jaxpr.invars)
    head = f"{{ lambda {consts}; {given}. let" if given else f"{{ lambda {consts}; . let"
    equations = [of_equation(eqn, names) for eqn in jaxpr.eqns]
    results = ", ".join([names(v) for v in jaxpr.outvars])
    results = f"({results},)" if len(jaxpr.outvars) == 1 else f"({results})"
    one = " ".join([head, "; ".join(equations), "in", results, "}"] if equations else [head, "", "in", results, "}"])
    if "\n" not in one and len(one) <= room:
        return one
    lines = [_indented(text, 4) for text in equations]
    return "\n".join([head, *lines, f"  in {results} }}"])


def _indented(text: str, by: int) -> str:
    return "\n".join([" " * by + line for line in text.split("\n")])


def of_equation(eqn: Any, names: Any = None) -> str:
    """Return the text of an equation."""
    names = names or _Names()
    name = eqn.primitive.name
    results = names.typed(eqn.outvars)
    operands = " ".join(map(names, eqn.invars))
    if name == "jit":
        inner = eqn.params["jaxpr"].jaxpr
        for mine, outer in zip([*inner.invars, *inner.outvars], [*eqn.invars, *eqn.outvars], strict=True):
            if not hasattr(outer, "val") and outer in names.known and not hasattr(mine, "val"):
                names.known.setdefault(mine, names.known[outer])
    shown = sorted(_shown(name, eqn.params).items())
    texts = [f"{key}={_parameter(key, value, names)}" for key, value in shown]
    head = f"{results} = " if results else ""
    one = f"{head}{name}[{' '.join(texts)}] {operands}" if texts else f"{head}{name} {operands}"
    simple = not any(hasattr(value, "eqns") for _, value in shown)
    if not shown or ("\n" not in one and simple and len(one) <= WIDTH - 2):
        return one
    if name == "jit":
        texts.sort(key=lambda text: not text.startswith("name="))
    return "\n".join([f"{head}{name}[", *[_indented(text, 2) for text in texts], f"] {operands}"])


def _shown(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that are written."""
    own = _OWN.get(name, {})
    out = {}
    for key, value in params.items():
        if key.startswith("_") or (key in _HIDDEN and key not in own and value in _HIDDEN[key]):
            continue
        if name == "broadcast_in_dim" and (key == "shape" or value == ()):
            continue
        if name == "jit" and key not in ("name", "jaxpr"):
            continue
        if (name == "scan" and key == "linear") or (name.startswith("custom_") and key == "num_consts"):
            continue
        out[key] = value
    return out


def _parameter(key: str, value: Any, names: Any) -> str:
    room = WIDTH - len(key) - 7
    if hasattr(value, "invars") or hasattr(value, "jaxpr"):
        return of_program(getattr(value, "jaxpr", value), names, room)
    if isinstance(value, tuple) and value and all(hasattr(v, "jaxpr") for v in value):
        return "\n".join(["(", *[_indented(of_program(v.jaxpr, names, room), 2) for v in value], ")"])
    if key == "dimension_numbers" and type(value) is tuple:
        pairs = [f"({', '.join([str(list(axes)) for axes in pair])})" for pair in value]
        return f"({', '.join(pairs)})"
    if callable(value) and hasattr(value, "__name__") and not isinstance(value, type):
        return str(value.__name__)
    return str(value)
