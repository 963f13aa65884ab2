"""Exceptions and warnings. Every message says what failed, what was expected, what came, and what to do."""

from gtrace.core.base.errors import *
from gtrace.core.base.public_names import publish as _publish

_publish(globals(), "gtrace.core.base.errors")
