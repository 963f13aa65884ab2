"""Calls of Python functions from programs."""

from gtrace.core.ops.host_calls import TOKEN, function_of, note_effect, register
from gtrace.core.trace.capture import note_token
from gtrace.core.transform.callbacks import call_for_effect

__all__ = ["TOKEN", "call_for_effect", "function_of", "note_effect", "note_token", "register"]
