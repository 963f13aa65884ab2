"""The generators of programs, one for each kind of work."""

from fuzz import calls, functions, models  # noqa: F401 - they enter their generators
from fuzz.drawing import GENERATORS

__all__ = ["GENERATORS"]
