"""Leaves of pytrees by dotted names, as in torch's ``state_dict``, and trees filled from names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping
from typing import Any

from gtrace.core.base import tree
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, StructureError, message
from gtrace.core.ir.aval import Aval, aval, sharded
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import evaluate
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.transform.arguments import is_array
from gtrace.core.transform.eval_shape import ShapeDtypeStruct

ALONE = "value"
"""The name of a tree that is one leaf."""

RESERVED = "__metadata__"
"""The name that the safetensors format keeps for itself."""

SHOWN = 4
"""The number of names that an error lists."""


def named_leaves(op: str, value: Any) -> tuple[dict[str, Any], tree.TreeDef]:
    """Return the leaves of a pytree by name, and its structure.

    Raises:
        ArgumentError: two leaves have one name, such as those of ``{"a": {"b": x}, "a.b": y}``, or the program ends and
            trees can no longer be taken apart.

    >>> named_leaves("save_arrays", {"layers": [1, 2]})[0]
    {'layers.0': 1, 'layers.1': 2}
    """
    pairs, structure = tree.flatten_with_path(value)
    if pairs and pairs[0][1].__class__ in (dict, list, tuple):
        fix = "Import gtrace before atexit.register: then the function runs before gtrace ends."
        raise ArgumentError(message(op, "a program that runs", "its end, after other exit handlers", fix))
    named: dict[str, Any] = {}
    for path, leaf in pairs:
        name = tree.keystr(path, simple=True, separator=".") or ALONE
        if name in named:
            raise ArgumentError(message(op, "leaves with different names", f"two named {name!r}", "Rename a key."))
        named[name] = leaf
    return named, structure


def check_written(op: str, path: str | os.PathLike[str], *texts: Collection[str]) -> None:
    """Raise for a path, or for texts such as names, with which a safetensors file could not be read again.

    Raises:
        ArgumentError: it is no UTF-8, or a name is `RESERVED`.
    """
    for text in itertools.chain([os.fspath(path)], *texts):
        try:
            text.encode()
        except UnicodeEncodeError:
            fix = "Name it in letters that files can have."
            raise ArgumentError(message(op, "a path, names and metadata of UTF-8", ascii(text), fix)) from None
    if any(RESERVED in names for names in texts):
        fix = "Rename the key: the format has it for metadata."
        raise ArgumentError(message(op, "leaves with names of their own", f"one named {RESERVED!r}", fix))


def expected_type(op: str, name: str, leaf: Any) -> Aval:
    """Return the aval, with sharding, that an example describes.

    Raises:
        ArgumentError: the example is not an array, number or `ShapeDtypeStruct`.
    """
    if isinstance(leaf, ShapeDtypeStruct):
        plain = aval(tuple(leaf.shape), as_dtype(leaf.dtype), leaf.device)
        return sharded(plain, leaf.sharding) if isinstance(leaf.sharding, NamedSharding) else plain
    if not is_array(leaf):
        got = f"{type(leaf).__name__} at {name!r}"
        raise ArgumentError(message(op, "arrays in like", got, "Pass arrays or gt.ShapeDtypeStructs."))
    x = lift(op, leaf)
    evaluate([x], op)  # the layouts of results follow from the whole program
    return x.aval


def check_names(op: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise for missing or unexpected names.

    Raises:
        StructureError: there are such names.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    if missing or unexpected:
        parts = [f"{what} {_listed(names)}" for what, names in (("no", missing), ("also", unexpected)) if names]
        fix = "Load it without like=, as a dict by name, and choose from that."
        raise StructureError(message(op, f"the {len(expected)} names of like", " and ".join(parts), fix))


def check_type(op: str, name: str, expected: Aval, found: Aval) -> None:
    """Raise for an array with another shape or dtype.

    Raises:
        ShapeError, DtypeError: it differs.
    """
    if found.shape != expected.shape:
        fix = "Load it without like=, and change it as the program now needs it."
        raise ShapeError(message(op, f"shape {expected.shape} for {name!r}", str(found.shape), fix))
    if found.dtype is not expected.dtype:
        fix = f"Ask for {LONG[found.dtype]} in like, and convert what is loaded with .astype."
        raise DtypeError(message(op, f"{LONG[expected.dtype]} for {name!r}", LONG[found.dtype], fix))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
