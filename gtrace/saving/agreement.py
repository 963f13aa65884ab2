"""Saves of several processes: all of them have the same tree, and hear of a failure in any of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gtrace.core.base.errors import CheckpointError, message
from gtrace.core.ir.aval import aval
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array

T = TypeVar("T")


def types(arrays: Mapping[str, Array], shardings: bool = True) -> dict[str, str]:
    """Return the types of arrays as texts, without their devices, which differ between processes.

    Args:
        shardings: False before they are computed: until then, only those of some may be known.
    """
    texts = {name: repr(aval(x.shape, x.aval.dtype, weak=x.aval.weak)) for name, x in arrays.items()}
    if shardings:
        laid_out = {name: x.aval.sharding.text for name, x in arrays.items() if x.aval.sharding is not None}
        texts |= {name: f"{texts[name]}{{{text}}}" for name, text in laid_out.items()}
    return texts


def agree(op: str, tree: Mapping[str, str], group: Any) -> None:
    """Raise, in all processes of a group, unless they have equal trees.

    Args:
        tree: what each leaf is, by name.
        group: a process group of all processes, which is otherwise idle; None: there are no others.

    Raises:
        CheckpointError: the trees differ.
    """
    if group is None:
        return
    digest = hashlib.sha256(repr(sorted(tree.items())).encode()).digest()
    if len(set(processes.exchange(digest, group))) == 1:
        return
    first, *others = processes.exchange(dict(tree), group)
    for rank, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            ours, theirs = (each.get(name, "absent") for each in (first, other))
            if ours != theirs:
                got = f"{name!r}, which is {ours} in process 0 and {theirs} in process {rank}"
                fix = "All processes save the same names and types; only what the arrays hold may differ."
                raise CheckpointError(message(op, "one tree in all processes", got, fix))


def together(op: str, function: Callable[[], T], group: Any) -> T:
    """Return the result of a function, if it succeeds in all processes of a group.

    Args:
        group: see `agree`.

    Raises:
        CheckpointError: it failed in another process.
        The exception of this process, if it failed here.
    """
    if group is None:
        return function()
    found, failed = processes.in_all(function, group)
    if failed:
        raise CheckpointError(message(op, "success in all processes", failed, "See that process."))
    return found
