"""Exceptions and warnings. Every message says what failed, what was expected, what came, and what to do.

The form is ``[op] expected X, got Y. Fix. (at file:line)``. The location is the user's line: the innermost frame
outside this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterable

__all__ = [
    "GtraceError", "ShapeError", "BoundsError", "DtypeError", "RangeError", "DeviceError", "ArgumentError",
    "AxisNameError", "StructureError", "ClosureError", "RuleError",
    "ImmutableError", "ImmutableAttributeError", "ConcretizationError", "BoolConcretizationError",
    "IntegerConcretizationError", "ArrayConcretizationError", "MaskConcretizationError",
    "SliceConcretizationError", "LeakError",
    "DonatedError", "KeyReuseError", "ConfigError", "UnknownSettingError",
    "ExecutionError", "CheckError", "OutOfMemoryError", "NonFiniteError", "ShardingError", "DistributedError",
    "DivergenceError",
    "TransientCompileError", "UnsupportedTorchError", "GraphError", "CompileError", "CacheError", "ExportError",
    "CheckpointError",
    "CompileWarning", "CacheWarning", "AuditWarning", "ConfigWarning", "ShardingWarning", "PromotionWarning",
    "RetracingWarning", "UnsupportedTorchWarning",
]  # fmt: skip


def _folder(package: str) -> str:
    """Return the folder of an installed package. A folder of the user may have the same name."""
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
"""Prefixes of the names of files that are not the user's code."""

_UNKNOWN = "<unknown>:0"
"""The location if no frame is the user's, as in a command of gtrace."""


class GtraceError(Exception):
    """Base class of every error that gtrace raises on purpose."""


class ShapeError(GtraceError, ValueError, TypeError):
    """Shapes, axes or known indices that do not fit the operation.

    It is a ValueError as in NumPy, and a TypeError as most are in JAX.
    """


class BoundsError(ShapeError, IndexError):
    """An axis that the array has not, a known index outside its axis, or a mask unlike the axes that it covers.

    It is an IndexError too, as NumPy's AxisError and IndexError are.
    """


class DtypeError(GtraceError, TypeError, ValueError):
    """A dtype that the operation, or gtrace, does not accept."""


class RangeError(DtypeError, OverflowError):
    """A number that the dtype cannot represent."""


class DeviceError(GtraceError, ValueError, RuntimeError):
    """Operands on different devices, or a device that does not exist."""


class ArgumentError(GtraceError, TypeError, ValueError):
    """An argument with a wrong structure, type or value."""


class AxisNameError(ArgumentError, NameError):
    """An axis name that no enclosing function binds."""


class StructureError(ArgumentError):
    """Pytrees whose structures should agree but do not."""


class ImmutableError(GtraceError, TypeError):
    """An attempt to change a gt.Array in place."""


class ImmutableAttributeError(ImmutableError, AttributeError):
    """A method or attribute of torch.Tensor that an immutable array without autograd state cannot have."""


class ConcretizationError(GtraceError, TypeError):
    """The value of a placeholder was asked for while a function is traced."""


class BoolConcretizationError(ConcretizationError):
    """A placeholder decided on a branch, as in ``if x > 0``."""


class IntegerConcretizationError(ConcretizationError):
    """A placeholder was used where Python requires an integer, as in ``range(n)``."""


class ArrayConcretizationError(ConcretizationError):
    """A placeholder was converted to an array of another library."""


class MaskConcretizationError(ConcretizationError, IndexError):
    """A placeholder of booleans was used as an index; the size of the result depends on its values."""


class SliceConcretizationError(IntegerConcretizationError, IndexError):
    """A placeholder was used as a bound of a slice; the size of the result depends on it."""


class LeakError(GtraceError, RuntimeError, TypeError):
    """A placeholder outlived its trace."""


class ClosureError(ArgumentError, LeakError):
    """A function with a derivative of its own uses a value of a function that is differentiated or traced."""


class RuleError(ArgumentError, AttributeError):
    """A function was called before its rule for derivatives was stated."""


class DonatedError(GtraceError, RuntimeError):
    """An array was used after it was donated to a call."""


class KeyReuseError(GtraceError, RuntimeError):
    """A random key was used twice, which repeats its numbers."""


class ConfigError(GtraceError, ValueError):
    """A wrong setting: environment variable, ``gt.config`` argument or signals file."""


class UnknownSettingError(ConfigError, AttributeError):
    """A setting of JAX that does not exist."""


class ExecutionError(GtraceError, RuntimeError):
    """torch rejected the values of an operation when it ran, such as a singular matrix."""


class CheckError(ExecutionError, ValueError):
    """A check of ``jax.experimental.checkify`` failed."""


class OutOfMemoryError(ExecutionError, MemoryError):
    """A program ran out of memory."""


class NonFiniteError(GtraceError, FloatingPointError):
    """With ``GT_DEBUG_NANS=1``: an operation on finite operands produced a NaN or an infinity."""

    def in_step(self, loop: str, step: int) -> NonFiniteError:
        """Return the same error with the loop step that raised it, counted from 0."""
        return NonFiniteError(f"{self} In step {step} of {loop}.")

    def called_by(self, operation: str, location: str | None) -> NonFiniteError:
        """Return the same error with the line of the loop or branch that raised it.

        Equal bodies are one object, which has the lines of the first. This line tells them apart.
        """
        return self if location is None else NonFiniteError(f"{self} The {operation} is at {location}.")


class ShardingError(GtraceError, ValueError):
    """A mesh, partition specification or sharding that is invalid, or does not fit the array or the processes."""


class DistributedError(ExecutionError):
    """The processes cannot communicate: one has ended, does not answer, or never started."""


class DivergenceError(DistributedError):
    """The processes are about to run different programs."""


class GraphError(GtraceError, ValueError):
    """IR text that does not parse, or a graph that violates SSA form."""


class CompileError(GtraceError, RuntimeError):
    """The compiler failed. The engine warns with a ``CompileWarning`` and interprets."""


class TransientCompileError(CompileError):
    """The machine failed, not the program: no memory, no disk space, no compiler, or a killed compiler.

    A later process tries again.
    """


class UnableError(TransientCompileError):
    """This machine or process cannot compile any program."""


class UnsupportedTorchError(CompileError):
    """This torch lacks private names that compiling needs. Everything is interpreted."""


class UnsupportedTorchWarning(UserWarning):
    """This torch lacks names that some features need. These features are off."""


class CompileWarning(UserWarning):
    """The compiler failed for one program, which is interpreted instead."""


class CacheError(GtraceError, OSError):
    """A folder or file of compiled programs that is unsafe or unusable."""


class ExportError(GtraceError, ValueError):
    """A function that cannot be exported, or an exported file that cannot be loaded."""


class CheckpointError(GtraceError, OSError):
    """A checkpoint or file of arrays that is missing, damaged or of another format."""


class CacheWarning(UserWarning):
    """Damaged compiled programs on disk, or an unusable folder; the programs are compiled again."""


class AuditWarning(UserWarning):
    """A form of a program disagreed with the recorded program, and is no longer used."""


class ShardingWarning(UserWarning):
    """An operation cannot be divided among processes, so each of them computes all of it."""


class PromotionWarning(UserWarning):
    """A NumPy float64 array turns a float32 program into float64."""


class RetracingWarning(UserWarning):
    """A torch module that reads values is traced at each call, or a torch function for each of many numbers."""


class ConfigWarning(UserWarning):
    """An environment variable whose name resembles one of gtrace's."""


def user_location() -> str:
    """Return ``file:line`` of the innermost frame outside gtrace and the libraries that it calls.

    Returns:
        The location, or ``"<unknown>:0"`` if every frame belongs to those packages.
    """
    return users_line(sys._getframe(1))


def users_line(frame: types.FrameType | None) -> str:
    """Return ``file:line`` of the innermost user frame among a frame and its callers."""
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
"""By the identity of a code object: the object, and its known lines by instruction; None if it is not the user's. Each
captured operation looks up its line here, so this must be fast."""

MAX_CODES = 4096
"""Code objects to remember; beyond this number all are dropped."""


def _remember(code: types.CodeType) -> tuple[types.CodeType, dict[int, str] | None]:
    if len(_lines) >= MAX_CODES:
        _lines.clear()
    known = _lines[id(code)] = code, {} if is_users(code.co_filename) else None
    return known


def is_users(name: str) -> bool:
    """Whether a code file is outside gtrace and the libraries that it calls."""
    return not name.startswith(_NOT_USERS)


def message(op: str, expected: str, got: str | Iterable[object], fix: str = "") -> str:
    """Return an error message in the form that all of gtrace uses.

    Args:
        got: a text, or several values, such as the types of operands.

    >>> message("matmul", "inner dimensions that agree", "3 and 4", "Transpose one of them.").split(" (at ")[0]
    '[matmul] expected inner dimensions that agree, got 3 and 4. Transpose one of them.'
    >>> message("add", "numbers", (1, "a")).split(" (at ")[0]
    "[add] expected numbers, got 1 and 'a'."
    """
    if not isinstance(got, str):
        got = " and ".join(map(repr, got))
    location = user_location()
    where = "" if location == _UNKNOWN else f" (at {location})"
    return f"[{op}] expected {expected}, got {got}." + (f" {fix}" if fix else "") + where


def refused(op: str, operands: str, error: BaseException, hint: str) -> str:
    """Return the message for an operation that torch rejected because of values.

    Args:
        operands: their types.
        error: torch's exception.
        hint: the location of the operation.

    >>> refused("cholesky", "f32[2,2]", RuntimeError("not positive"), "It is %2.")
    '[cholesky] expected values that the operation takes, got f32[2,2] that torch refused: not positive. It is %2.'
    """
    reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
    return f"[{op}] expected values that the operation takes, got {operands} that torch refused: {reason}. {hint}"


def warn_at(text: str, location: str, category: type[Warning]) -> None:
    """Warn at a line of the user's code, as `user_location` returns it."""
    name, _, line = location.rpartition(":")
    warnings.warn_explicit(text, category, name, int(line))
