"""docs/functions.md: what is known of every function, tried on the example of its docstring.

``python tests/test_functions_page.py`` writes it anew, in some minutes.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace import tree
from gtrace.core.base.events import Recorded, bus
from gtrace.core.ir.op import REGISTRY
from gtrace.errors import GtraceError

PAGE = Path(__file__).parents[1] / "docs" / "functions.md"
NAMESPACES: dict[str, types.ModuleType] = {
    "gt": gt, "gt.numpy": gt.numpy, "gt.linalg": gt.linalg, "gt.fft": gt.fft, "gt.special": gt.special, "gt.nn": gt.nn,
    "gt.lax": gt.lax, "gt.random": gt.random,
}  # fmt: skip
DTYPES = {"bool": "b", "int64": "i", "bfloat16": "h", "float32": "f", "complex64": "c"}
CONTROL = frozenset({"cond", "switch", "scan", "while"})
CHECKED = 30
"""How many rows the test tries again."""


@attrs.define
class Call:
    """The first call of a function in its example."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = attrs.field(factory=dict)
    operations: list[str] = attrs.field(factory=list)
    made: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.made:
            return self.function(*args, **kwargs)
        self.made, self.args, self.kwargs = True, args, kwargs
        stop = bus.subscribe(lambda event: self.operations.append(event.op), Recorded)
        try:
            return self.function(*args, **kwargs)
        finally:
            stop()


def functions() -> Iterator[tuple[str, str, Callable[..., Any], list[str]]]:
    """Yield (namespace, name, function, other names), each function once, where it is first met."""
    names: dict[int, list[str]] = {}
    found = []
    for prefix, namespace in NAMESPACES.items():
        for name, value in sorted(vars(namespace).items()):
            plain = callable(value) and not isinstance(value, (type, types.ModuleType, gt.dtypes.DType))
            if name.startswith("_") or not plain or (prefix == "gt" and not of_arrays(value)):
                continue
            if id(value) not in names:
                found.append((prefix, name, value))
            names.setdefault(id(value), []).append(f"{prefix}.{name}")
    for prefix, name, value in found:
        yield prefix, name, value, names[id(value)][1:]


def of_arrays(value: Any) -> bool:
    """Whether a function of gt is one of arrays, not a transformation or a tool."""
    return getattr(value, "__module__", "").startswith(("gtrace.core.ops", "gtrace.core.trace.fast", "gtrace.numpy"))


def first_call(prefix: str, name: str, function: Callable[..., Any]) -> Call:
    """Run the example of a function; return its first call there."""
    call = Call(function)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.MonkeyPatch.context() as patch:
            for namespace in NAMESPACES.values():
                for alias, value in list(vars(namespace).items()):
                    if value is function:
                        patch.setattr(namespace, alias, call)
            for example in doctest.DocTestParser().get_examples(function.__doc__ or ""):
                names: dict[str, Any] = locals().setdefault(
                    "names", {"gt": gt, "gnp": gt.numpy, "numpy": np, "torch": torch}
                )
                with contextlib.suppress(Exception):  # some examples show errors
                    exec(compile(example.source, "<example>", "single"), names)
    return call


def attempt(make: Callable[[], Any]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make()
    except (GtraceError, TypeError, ValueError, IndexError, NotImplementedError, RuntimeError, AttributeError):
        return False
    return True


def arrays_of(call: Call) -> tuple[list[int], list[Any], Callable[..., Any]]:
    """Return the places of floating arrays among the leaves of the arguments, the leaves, and how to call with them."""
    leaves, structure = tree.flatten((list(call.args), call.kwargs))
    places = [k for k, x in enumerate(leaves) if isinstance(x, (gt.Array, np.ndarray))]
    places = places or [k for k, x in enumerate(leaves) if type(x) is float]

    def run(*values: Any) -> list[gt.Array]:
        filled = list(leaves)
        for k, value in zip(places, values, strict=True):
            filled[k] = value
        args, kwargs = structure.unflatten(filled)
        return [y for y in tree.leaves(call.function(*args, **kwargs)) if isinstance(y, gt.Array)]

    return places, [gt.asarray(leaves[k]) for k in places], run


def derivatives(call: Call) -> str:
    _, arrays, run = arrays_of(call)
    floats = [k for k, x in enumerate(arrays) if x.aval.floating]

    def total(*chosen: Any) -> Any:
        filled = list(arrays)
        for k, x in zip(floats, chosen, strict=True):
            filled[k] = x
        outs = [y for y in run(*filled) if y.aval.floating]
        return sum(((y * y).sum().real for y in outs), gt.zeros(()))

    results: list[gt.Array] = []
    # outside its example, a function may lack what surrounds it there, such as the axis name of a vmap
    if not floats or not attempt(lambda: results.extend(run(*arrays))) or not any(y.aval.floating for y in results):
        return ""
    chosen = [arrays[k] for k in floats]
    every = tuple(range(len(chosen)))
    slopes = gt.grad(total, every)
    found = []
    if attempt(lambda: gt.make_graph(lambda *x: gt.jvp(total, x, x))(*chosen)):
        found.append("forward")
    if attempt(lambda: gt.make_graph(slopes)(*chosen)):
        found.append("reverse")
        squares = gt.grad(lambda *x: sum((g * g).sum().real for g in slopes(*x)), every)
        if attempt(lambda: gt.make_graph(squares)(*chosen)):
            found.append("second")
    return "all" if len(found) == 3 else ", ".join(found) or "none"


def dtypes(call: Call) -> str:
    places, arrays, run = arrays_of(call)
    if not places:
        return ""

    some = any(x.aval.floating for x in arrays)

    def converted(x: gt.Array, dtype: str) -> gt.Array:
        if some and not x.aval.floating:
            return x
        return (x.real if x.aval.complex and dtype != "complex64" else x).astype(dtype)

    def of(dtype: str) -> bool:
        return attempt(lambda: gt.make_graph(run)(*[converted(x, dtype) for x in arrays]))

    return "".join(letter for dtype, letter in DTYPES.items() if of(dtype))


def row(prefix: str, name: str, function: Callable[..., Any], others: list[str]) -> str:
    call = first_call(prefix, name, function)
    operations = [op for op in dict.fromkeys(call.operations) if op not in ("project", "identity", "stop_gradient")]
    own = [op for op in operations if op != "aten"]
    if not operations:
        rules = ""
    elif "aten" in operations:
        rules = "torch" if not own else "torch, composed"
    else:
        rules = "stated" if len(own) == 1 else "composed"
    shown = ", ".join(operations[:4]) + (", ..." if len(operations) > 4 else "")
    known = call.made and not CONTROL & set(operations) and all(op in REGISTRY for op in operations)
    more = (derivatives(call), dtypes(call)) if known else ("", "")
    return f"{label(prefix, name, others)} | {shown} | {rules} | {' | '.join(more)} |"


def label(prefix: str, name: str, others: list[str]) -> str:
    return f"| `{prefix}.{name}`" + (f" ({', '.join(others)})" if others else "")


HEAD = """# Functions

Every function of arrays, tried on the example of its docstring; `python tests/test_functions_page.py` writes this page.

- *operations*: what a call records, the first four.
- *rules*: where its derivatives and batching come from: `stated` with the operation, `torch`, from which they are
  derived by tracing, or `composed` of those of several operations.
- *derivatives*: `all` is forward, reverse and second order. Empty: the example has no floating argument or result. Many
  of these functions have derivatives for floating arrays all the same.
- *dtypes* of its floating arguments, or of all: `b` bool, `i` int64, `h` bfloat16, `f` float32, `c` complex64.

| function | operations | rules | derivatives | dtypes |
|---|---|---|---|---|
"""


def test_every_function_has_an_example():
    modules = gt.nn.initializers, gt.signal, gt.image, gt.segments, gt.sharding
    for namespace in (*NAMESPACES.values(), gt.optim, gt.tree, *modules):
        for name, value in vars(namespace).items():
            public = isinstance(value, types.FunctionType) and not name.startswith("_")
            if public and (namespace not in modules or value.__module__ == namespace.__name__):
                assert doctest.DocTestParser().get_examples(value.__doc__ or ""), f"{namespace.__name__}.{name}"


def test_every_function_has_a_row():
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    rows = [line.split(" | ")[0] for line in text[len(HEAD) :].splitlines()]
    assert rows == [label(prefix, name, others) for prefix, name, _, others in functions()]


def test_rows_say_what_is_so():
    """Of some, because all take a minute."""
    every = list(functions())
    lines = PAGE.read_text(encoding="utf-8")[len(HEAD) :].splitlines()
    for k in random.Random(0).sample(range(len(every)), CHECKED):
        assert row(*every[k]) == lines[k]


if __name__ == "__main__":
    rows = []
    for each in functions():
        print(each[0], each[1], file=sys.stderr)
        rows.append(row(*each))
    PAGE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
