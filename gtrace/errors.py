"""Exceptions and warnings. Every message says what failed, what was expected, what came, and what to do."""

from gtrace.core.base.errors import *
