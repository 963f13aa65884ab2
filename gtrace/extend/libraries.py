"""What a library needs around its functions: public classes, bounded caches, locks, docstrings."""

from gtrace.core.base.docstrings import with_example
from gtrace.core.base.locks import new_lock
from gtrace.core.base.public_names import publish

__all__ = [
    "new_lock", "publish", "with_example",
]  # fmt: skip
