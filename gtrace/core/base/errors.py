"""Exceptions and warnings. Every message says what failed, what was expected, what came, and what to do.

The shape is ``[op] expected X, got Y. Fix. (at file:line)``, where the location is the user's line: the innermost
frame outside this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import types
import warnings

__all__ = [
    "GtraceError", "ShapeError", "BoundsError", "DtypeError", "RangeError", "DeviceError", "ArgumentError",
    "AxisNameError", "StructureError",
    "ImmutableError", "ImmutableAttributeError", "ConcretizationError", "BoolConcretizationError",
    "IntegerConcretizationError", "ArrayConcretizationError", "MaskConcretizationError", "LeakError",
    "DonatedError", "KeyReuseError", "ConfigError", "UnknownSettingError",
    "ExecutionError", "CheckError", "OutOfMemoryError", "NonFiniteError", "ShardingError", "DistributedError",
    "DivergenceError",
    "TransientCompileError", "UnsupportedTorchError", "GraphError", "CompileError", "CacheError", "ExportError",
    "CheckpointError",
    "CompileWarning", "CacheWarning", "AuditWarning", "ConfigWarning", "ShardingWarning", "PromotionWarning",
    "RetracingWarning", "UnsupportedTorchWarning",
]  # fmt: skip


def _folder(package: str) -> str:
    """Return the folder of an installed package; a folder of the user's may have its name."""
    found = importlib.util.find_spec(package)
    assert found is not None  # it is required
    assert found.origin is not None
    return os.path.dirname(found.origin) + os.sep


_NOT_USERS = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
    _folder("optree"),
    _folder("torch"),
    "<frozen",
    "<attrs generated",
    contextlib.__file__,
    threading.__file__,
)
"""How the names of files begin that are no code of the user's."""

_UNKNOWN = "<unknown>:0"
"""The line where there is no frame of the user's, as in a command of gtrace."""


class GtraceError(Exception):
    """Base class of every error that gtrace raises on purpose."""


class ShapeError(GtraceError, ValueError, TypeError):
    """Shapes (or axes, or indices known while recording) that do not fit the operation.

    NumPy raises ValueError for them, and JAX TypeError for most.
    """


class BoundsError(ShapeError, IndexError):
    """An index, known while recording, outside its axis, or a mask of another shape than the axes it covers."""


class DtypeError(GtraceError, TypeError, ValueError):
    """A dtype the operation, or gtrace, does not take."""


class RangeError(DtypeError, OverflowError):
    """A number that the dtype cannot hold."""


class DeviceError(GtraceError, ValueError, RuntimeError):
    """Operands that live on different devices, or a device that does not exist."""


class ArgumentError(GtraceError, TypeError, ValueError):
    """An argument of the wrong kind: structure, type or value."""


class AxisNameError(ArgumentError, NameError):
    """A named axis that no enclosing function binds."""


class StructureError(ArgumentError):
    """Pytrees whose structures should agree, and do not."""


class ImmutableError(GtraceError, TypeError):
    """An attempt to change a gt.Array in place."""


class ImmutableAttributeError(ImmutableError, AttributeError):
    """A method or attribute of torch.Tensor that an immutable array without autograd state cannot have."""


class ConcretizationError(GtraceError, TypeError):
    """The value of a placeholder was asked for while a function is being traced."""


class BoolConcretizationError(ConcretizationError):
    """A placeholder decided on a branch, as in ``if x > 0``."""


class IntegerConcretizationError(ConcretizationError):
    """A placeholder was used where Python takes an integer only, as in ``range(n)``."""


class ArrayConcretizationError(ConcretizationError):
    """A placeholder was converted to an array of another library."""


class MaskConcretizationError(ConcretizationError, IndexError):
    """A placeholder of booleans was used as an index: the size of the result depends on its values."""


class LeakError(GtraceError, RuntimeError, TypeError):
    """A placeholder outlived the trace that made it."""


class DonatedError(GtraceError, RuntimeError):
    """The use of an array that was given away to a call."""


class KeyReuseError(GtraceError, RuntimeError):
    """A random key was used a second time, which would repeat its numbers."""


class ConfigError(GtraceError, ValueError):
    """A wrong setting: environment variable, ``gt.config`` argument or signals file."""


class UnknownSettingError(ConfigError, AttributeError):
    """A setting of JAX's that does not exist."""


class ExecutionError(GtraceError, RuntimeError):
    """torch refused an operation when it ran, for a reason only the values show (a matrix that is singular, say)."""


class CheckError(ExecutionError, ValueError):
    """A check of ``jax.experimental.checkify`` failed."""


class OutOfMemoryError(ExecutionError, MemoryError):
    """There was no memory for a program when it ran."""


class NonFiniteError(GtraceError, FloatingPointError):
    """With ``GT_DEBUG_NANS=1``: an operation produced a NaN or an infinity that its operands do not explain."""

    def in_step(self, loop: str, step: int) -> NonFiniteError:
        """Return the same error with the step of the loop in which it arose, counted from 0."""
        return NonFiniteError(f"{self} In step {step} of {loop}.")

    def called_by(self, operation: str, location: str | None) -> NonFiniteError:
        """Return the same error with the line of the loop or branch that it arose in.

        Bodies that are equal programs are one object, with the lines of the first; this line tells them apart.
        """
        return self if location is None else NonFiniteError(f"{self} The {operation} is at {location}.")


class ShardingError(GtraceError, ValueError):
    """A mesh, a partition specification or a sharding that makes no sense, or does not fit the array or the workers."""


class DistributedError(ExecutionError):
    """The workers cannot communicate: one has ended, does not answer, or was never started."""


class DivergenceError(DistributedError):
    """The workers are about to run different programs."""


class GraphError(GtraceError, ValueError):
    """IR text that does not parse, or a graph that breaks an SSA rule."""


class CompileError(GtraceError, RuntimeError):
    """The compiler failed. The engine turns it into a ``CompileWarning`` and interprets instead."""


class TransientCompileError(CompileError):
    """The machine failed, not the program: no memory, no disk space, no compiler, or one that was killed.

    A later process tries again.
    """


class UnableError(TransientCompileError):
    """This machine or process can compile nothing, whatever the program."""


class UnsupportedTorchError(CompileError):
    """This torch lacks private names that gtrace compiles with. Everything is interpreted."""


class UnsupportedTorchWarning(UserWarning):
    """gtrace does not know this torch, and some features are off."""


class CompileWarning(UserWarning):
    """The compiler failed for one signature; its program is interpreted instead."""


class CacheError(GtraceError, OSError):
    """A folder or file of compiled programs that must not, or cannot, be used."""


class ExportError(GtraceError, ValueError):
    """A function that cannot be exported, or a file that cannot be loaded."""


class CheckpointError(GtraceError, OSError):
    """A checkpoint, or a file of arrays, that is not there, is damaged or of another format."""


class CacheWarning(UserWarning):
    """Compiled programs on disk that are damaged, or a folder that cannot be used; they are compiled again."""


class AuditWarning(UserWarning):
    """A compiled program gave another result than its interpretation; it is not used any more."""


class ShardingWarning(UserWarning):
    """An operation that cannot be divided among the workers: each computes all of it."""


class PromotionWarning(UserWarning):
    """NumPy's float64 makes a float32 program float64."""


class RetracingWarning(UserWarning):
    """A torch module that looks at values is traced at each call."""


class ConfigWarning(UserWarning):
    """An environment variable that looks like one of gtrace's but is not."""


def user_location() -> str:
    """Return ``file:line`` of the innermost frame outside gtrace and the libraries it calls through.

    Returns:
        The location, or ``"<unknown>:0"`` when every frame belongs to the package.
    """
    return users_line(sys._getframe(1))


def users_line(frame: types.FrameType | None) -> str:
    """Return the same for a frame and those that called it."""
    while frame is not None:
        code = frame.f_code
        known = _lines.get(id(code))
        if known is None:
            known = _remember(code)
        lines = known[1]
        if lines is not None:
            line = lines.get(frame.f_lasti)
            if line is None:
                line = lines[frame.f_lasti] = f"{code.co_filename}:{frame.f_lineno}"
            return line
        frame = frame.f_back
    return _UNKNOWN


_lines: dict[int, tuple[types.CodeType, dict[int, str] | None]] = {}
"""By the identity of a code object: the object, and its lines so far by instruction; None for code that is not the
user's. Every operation of a captured function is noted with its line, so that this must be fast."""

MAX_CODES = 4096
"""Code objects remembered; beyond it all are forgotten."""


def _remember(code: types.CodeType) -> tuple[types.CodeType, dict[int, str] | None]:
    if len(_lines) >= MAX_CODES:
        _lines.clear()
    known = _lines[id(code)] = code, {} if is_users(code.co_filename) else None
    return known


def is_users(name: str) -> bool:
    """Whether a file of code is outside gtrace and the libraries it calls through."""
    return not name.startswith(_NOT_USERS)


def message(op: str, expected: str, got: str, fix: str = "") -> str:
    """Format one error message in the shape that all of gtrace uses.

    >>> message("matmul", "inner dimensions that agree", "3 and 4", "Transpose one of them.").split(" (at ")[0]
    '[matmul] expected inner dimensions that agree, got 3 and 4. Transpose one of them.'
    """
    location = user_location()
    where = "" if location == _UNKNOWN else f" (at {location})"
    return f"[{op}] expected {expected}, got {got}." + (f" {fix}" if fix else "") + where


def refused(op: str, operands: str, error: BaseException, hint: str) -> str:
    """Format the message of an operation that torch refused when it ran, because of values.

    Args:
        operands: their types.
        error: what torch raised.
        hint: where the operation is.

    >>> refused("cholesky", "f32[2,2]", RuntimeError("not positive"), "It is %2.")
    '[cholesky] expected values that the operation takes, got f32[2,2] that torch refused: not positive. It is %2.'
    """
    reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
    return f"[{op}] expected values that the operation takes, got {operands} that torch refused: {reason}. {hint}"


def warn_at(text: str, location: str, category: type[Warning]) -> None:
    """Warn at a line of the user's, as `user_location` gives it."""
    name, _, line = location.rpartition(":")
    warnings.warn_explicit(text, category, name, int(line))
