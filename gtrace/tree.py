"""Pytrees: nested dict, list, tuple, namedtuple, None and registered classes, with arrays as leaves."""

from gtrace.core.base.tree import *
from gtrace.core.base.tree import __all__ as __all__
