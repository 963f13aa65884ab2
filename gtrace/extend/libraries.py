"""What a library is made of beside its functions: public classes, names, docstrings, locks."""

from gtrace.core.base.docstrings import with_example
from gtrace.core.base.locks import new_lock
from gtrace.core.base.public_names import publish
from gtrace.core.transform.arguments import name_of, named

__all__ = ["name_of", "named", "new_lock", "publish", "with_example"]
