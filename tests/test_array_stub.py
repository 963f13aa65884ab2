"""The stub of ArrayBase, from which type checkers know the methods that Array gets when gtrace is imported.

``python tests/test_array_stub.py`` writes it anew.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import gtrace as gt
from gtrace.core.ops.methods import ArrayMethods
from gtrace.core.trace import array_base
from gtrace.interop import tensor_methods
from gtrace.interop.tensor_methods import TensorMethods

STUB = Path(array_base.__file__).with_suffix(".pyi")

HEAD = """# Written by tests/test_array_stub.py from ArrayMethods and TensorMethods.
# mypy: disable-error-code="misc, override"

import builtins
from typing import Any, Self

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.op import Leaf

class ArrayBase:
    __slots__ = {slots}

    aval: Aval
    _trace: Any
    _number: builtins.int
    _buf: torch.Tensor | None
    _leaf: Leaf | None

"""

BUILTINS = {"bool", "int", "float", "complex", "str", "tuple", "list", "dict"}
"""Written with their module: some of them are also names of methods."""


def annotation(stated: Any) -> str:
    """Return what the stub says of a type: as the function states it if that needs no imports, else Any."""
    text = "Any" if stated is inspect.Parameter.empty else str(stated)
    words = re.findall(r"\w+", text)
    if not {*words} <= BUILTINS | {"Any", "Array", "None"}:
        return "Any"
    text = re.sub(r"\bArray\b", "Self", text)
    return re.sub(rf"\b({'|'.join(sorted(BUILTINS))})\b", r"builtins.\1", text)


def parameter(p: inspect.Parameter) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = "" if p.default is p.empty else " = ..."
    return f"{star}{p.name}: {annotation(p.annotation).replace('Self', 'Any')}{default}"


def method(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    written = ["self"] if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL else []
    previous = parameters[0].kind
    for p in parameters[len(written) :]:
        if previous is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            written.append("/")
        if p.kind is p.KEYWORD_ONLY and previous not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            written.append("*")
        written.append(parameter(p))
        previous = p.kind
    return f"    def {name}({', '.join(written)}) -> {annotation(signature.return_annotation)}: ...\n"


def stub() -> str:
    """Return the text of the stub."""
    found = {name: value for base in (ArrayMethods, TensorMethods) for name, value in vars(base).items()}
    text = HEAD.format(slots=array_base.ArrayBase.__slots__)
    for name, value in found.items():
        if isinstance(value, property):
            text += f"    @property\n{method(name, value.fget)}"
        elif inspect.isfunction(value):
            text += method(name, value)
    return text


def test_the_stub_has_the_methods_of_arrays():
    assert STUB.read_text(encoding="utf-8") == stub(), "run python tests/test_array_stub.py"


def test_arrays_have_what_the_stub_says():
    named = re.findall(r"^    def (\w+)\(", STUB.read_text(encoding="utf-8"), re.M)
    refused = {name for name, value in vars(gt.Array).items() if isinstance(value, tensor_methods.Refused)}
    assert len(named) > 100
    assert not [name for name in named if not hasattr(gt.Array, name) or name in refused]


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
