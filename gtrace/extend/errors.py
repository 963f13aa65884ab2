"""Errors that say what failed, what was expected, what came and what to do, at the user's line."""

from gtrace.core.base.call_errors import constructor
from gtrace.core.base.errors import message, user_location
from gtrace.core.base.suggestions import missing_attribute, suggesting

__all__ = ["constructor", "message", "missing_attribute", "suggesting", "user_location"]
