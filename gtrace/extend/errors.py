"""Errors that say what failed, what was expected, what came and what to do, at the user's line."""

from gtrace.core.base.call_errors import constructor
from gtrace.core.base.errors import (
    ArgumentError,
    DtypeError,
    ImmutableAttributeError,
    ShapeError,
    message,
    user_location,
)
from gtrace.core.base.suggestions import missing_attribute, suggesting

__all__ = [
    "ArgumentError", "DtypeError", "ImmutableAttributeError", "ShapeError",
    "constructor", "message", "missing_attribute", "suggesting", "user_location",
]  # fmt: skip
