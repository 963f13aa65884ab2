"""Warnings of compiles that failed: one for each program, and one for what the machine lacks, whatever the program."""

from __future__ import annotations

from gtrace.core.base.errors import (
    CompileError,
    CompileWarning,
    TransientCompileError,
    UnableError,
    UnsupportedTorchError,
    warn_at,
)
from gtrace.core.ir.signature import Signature


def concerns_every_program(error: CompileError) -> bool:
    """Whether nothing can be compiled here: then programs stay interpreted, and none has failed."""
    return isinstance(error, (UnsupportedTorchError, UnableError))


class CompileWarnings:
    """Warns of failed compiles, and remembers what was said of the machine."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def forget(self) -> None:
        """Say everything once more."""
        self._said.clear()

    def warn(self, signature: Signature, error: CompileError, location: str) -> None:
        """Warn at a line of the user's, unless another program has met the same.

        Args:
            signature: of the program.
            location: see `gtrace.core.base.errors.user_location`.
        """
        text = str(error)
        if isinstance(error, (UnsupportedTorchError, TransientCompileError)):
            # private names that are missing are many, and one warning is enough
            fact = type(error).__name__ if isinstance(error, UnsupportedTorchError) else text
            if fact in self._said:
                return
            self._said.add(fact)
        if concerns_every_program(error):
            text = f"{text}. Everything is interpreted."
        else:
            text = f"compiling {signature} failed, interpreting instead: {text} (GT_DEBUG_COMPILE=2 for the traceback)"
        warn_at(text, location, CompileWarning)
