"""Common subexpressions of the bodies of Inductor's kernels.

Inductor inlines a value into each of its uses, several levels deep. It removes equal lines only when it generates
code, and it does that several times for a kernel, to choose among ways to vectorize it. So a chain of operations that
use their operands twice becomes thousands of lines, of which a few dozen differ. 18 operations took half a minute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.mechanisms import SHARED_BODIES


@contextlib.contextmanager
def without_common_subexpressions() -> Iterator[None]:
    """Remove, from each body as soon as Inductor has traced it, what is computed a second time."""
    if not SHARED_BODIES.on or not internals.SHORTER_BODIES.available():
        yield
        return
    block = internals.LOOP_BODY_BLOCK.get()
    original = block.__init__

    def traced(self: Any, *args: Any) -> None:
        original(self, *args)
        _share(self.graph)

    block.__init__ = traced
    try:
        yield
    finally:
        block.__init__ = original


def _share(graph: Any) -> None:
    written = {node.args[1] for node in graph.nodes if node.target in ("store", "store_reduction")}
    first: dict[Any, Any] = {}
    for node in graph.nodes:
        # methods are elementwise operations, loads and reductions; other modules are masked bodies and indirect indices
        if (node.op != "call_method" and node.target != "get_index") or not node.users:
            continue
        if node.target == "load" and node.args[1] in written:
            continue
        same = first.setdefault((node.target, exact_key((node.args, tuple(node.kwargs.items())))), node)
        if same is not node:
            SHARED_BODIES.used()
            node.replace_all_uses_with(same)
            graph.erase_node(node)
