"""Derivatives and batching: rules of users, and functions with a name that may have a kernel."""

from gtrace.core.ops.batching import spread
from gtrace.core.transform.batch import batch
from gtrace.core.transform.custom import call_with_rules, custom_call, transposed, with_rules
from gtrace.core.transform.custom_values import KnownZero
from gtrace.core.transform.named import NamedFunction
from gtrace.core.transform.vmap import without_batch

__all__ = [
    "KnownZero", "NamedFunction", "batch", "call_with_rules", "custom_call", "spread", "transposed", "with_rules",
    "without_batch",
]  # fmt: skip
