"""Pytrees, beyond `gtrace.tree`."""

from gtrace.core.base.tree.nodes import static_value
from gtrace.core.base.tree.treedef import UNSET, is_whole, whole_leaves

__all__ = [
    "UNSET", "is_whole", "static_value", "whole_leaves",
]  # fmt: skip
