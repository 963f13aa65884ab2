"""Pytrees: `gtrace.tree`, and what arguments and results need besides."""

from gtrace.core.base import tree
from gtrace.core.base.tree.nodes import static_value
from gtrace.core.base.tree.treedef import UNSET, whole_leaves
from gtrace.core.transform.arguments import is_array, is_empty, lift_outputs, like, without_empty

__all__ = [
    "UNSET", "is_array", "is_empty", "lift_outputs", "like", "static_value", "tree", "whole_leaves",
    "without_empty",
]  # fmt: skip
