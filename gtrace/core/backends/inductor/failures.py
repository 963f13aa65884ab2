"""The cause of an exception in torch's compilers: the program, a passing state of the machine, or an unknown torch."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import torch

from gtrace.core.base.errors import CompileError, TransientCompileError, UnsupportedTorchError
from gtrace.core.base.torch_internals import COMPILE_EVENTS, FORGOTTEN_EVENTS, known, unsupported

_MESSAGES = re.compile(
    r"""std::bad_alloc | out\ of\ memory | cannot\ allocate\ memory | can't\ allocate\ memory | not\ enough\ memory
    | virtual\ memory\ exhausted | memory\ exhausted | ALLOC_FAILED | no\ space\ left\ on\ device
    | disk\ quota\ exceeded | too\ many\ open\ files | resource\ temporarily\ unavailable
    | killed\ signal\ terminated | terminated\ with\ signal\ \d+ | internal\ compiler\ error:\ (killed|bus\ error)
    | permission\ denied | read-only\ file\ system | file\ too\ large | input/output\ error | stale\ file\ handle
    | text\ file\ busy | file\ size\ limit\ exceeded | PytorchStreamWriter\ failed
    | can't\ start\ new\ thread | (after|at)\ (interpreter\ )?shutdown
    | no\ working\ C\+\+\ compiler | failed\ to\ find\ C\ compiler | cannot\ find\ a\ working\ triton
    | active\ drivers | CUDA\ driver | CUDA_HOME | cannot\ find\ -lcuda\b | cuda\.h:\ no\ such\ file""",
    re.IGNORECASE | re.VERBOSE,
)
"""What compilers, Python and torch say when the machine lacks something, or when the system killed a compiler."""

_DIAGNOSTIC = re.compile(
    r"""^(?P<file>[^\n:]+):\d+(:\d+)?:\ error: | undefined\ reference\ to | internal\ compiler\ error:\ in\b
    | template\ instantiation\ depth\ exceeds""",
    re.MULTILINE | re.VERBOSE,
)
"""What C++ compilers say about a program. Their fatal errors are about files: one is missing, or cannot be written."""

_SOURCES = (".cpp", ".cu")
"""Of programs. Other files belong to the compiler, torch or gtrace."""

_ASKED = "required from"
"""What compilers say when a program makes a header wrong: by arguments of a template."""

_STATES = (
    MemoryError,
    OSError,  # a file, a folder, a program that cannot be started
    ImportError,  # what a compiler needs is not installed
    RecursionError,  # it depends on how deep the caller is
    TransientCompileError,  # of our own, within one of Inductor's
    subprocess.TimeoutExpired,
    concurrent.futures.BrokenExecutor,
    concurrent.futures.CancelledError,
    torch.OutOfMemoryError,
)
"""Exceptions that tell of the machine or of this process, never of the program."""

NO_INTERFACE = "Inductor has no C interface for"
"""How an error begins that names the operators of torch which compiled code cannot call."""

_TARGET = re.compile(r"target: (\w+\.\w+\.\w+)")
"""How Inductor names the operator that it fails on."""


def named_operators(reason: str) -> frozenset[str]:
    """Return the operators, by overload, that a compiler's error is about.

    >>> sorted(named_operators("NotImplementedError: Inductor has no C interface for aten.a.default, aten.b.out"))
    ['aten.a.default', 'aten.b.out']
    """
    _, _, listed = reason.partition(NO_INTERFACE)
    return frozenset(re.findall(r"\w+\.\w+\.\w+", listed) if listed else _TARGET.findall(reason))


@contextlib.contextmanager
def compiler_errors() -> Iterator[None]:
    """Raise every exception of the compilers as the gtrace error for its cause.

    Raises:
        TransientCompileError: the machine or this process failed, or a compiler was missing or killed.
        UnsupportedTorchError: gtrace does not know this version of torch, whose interfaces differ.
        CompileError: the compiler failed on the program.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch's own deprecations are not the user's, and under -W error they would fail every compile
            for category in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", category)
            yield
    except KeyboardInterrupt:
        if COMPILE_EVENTS.module in sys.modules and FORGOTTEN_EVENTS.available():
            # an interrupted event of torch's own log never ends, and the next compile would be said to overlap it
            events = COMPILE_EVENTS.get()()
            events.get_stack().clear()
            events.get_pt2_compile_substack().clear()
        raise
    except (TransientCompileError, UnsupportedTorchError):
        raise
    except Exception as error:  # compilers raise whatever they like
        reason = f"{type(error).__name__}: {_summary(error)}"
        unknown = isinstance(error, (AttributeError, TypeError, ImportError)) and not known(torch.__version__)
        if is_transient(error) and not (unknown and isinstance(error, ImportError)):
            raise TransientCompileError(reason) from error
        if named := _TARGET.search(str(error)):
            reason = f"{reason} {named[0]}"
        if unknown:
            raise unsupported(f"raises {reason}") from error
        raise CompileError(reason) from error


def is_transient(error: BaseException) -> bool:
    """Whether compiling failed because of the machine or this process, so that a later process may succeed.

    Of a C++ compiler that failed, only what it says about a line of the program counts as the program's fault.

    >>> is_transient(MemoryError()), is_transient(RuntimeError("std::bad_alloc")), is_transient(ValueError("3"))
    (True, True, False)
    """
    if not threading.main_thread().is_alive() or sys.is_finalizing():
        return True  # modules and threads that the compilers need are gone
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _STATES):
            return True
        # a compiler that was killed, or that ended without a word about the program
        if isinstance(one, subprocess.CalledProcessError) and (one.returncode < 0 or not _blames(one.output)):
            return True
        if _MESSAGES.search(str(one)):
            return True
        # torch's own errors keep their cause in a field
        waiting += [one.__cause__, one.__context__, getattr(one, "inner_exception", None)]
    return False


def _blames(output: str | bytes | None) -> bool:
    """Whether a C++ compiler says that the program is wrong."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    first = _DIAGNOSTIC.search(text)
    if first is None:
        return False
    # what is wrong in a header from the start is no fault of the program, unless it asked for that
    return not first["file"] or first["file"].endswith(_SOURCES) or _ASKED in text


def _summary(error: BaseException) -> str:
    """Return the first line of an error, with that of the C++ compiler if there is one."""
    text = str(error).strip() or type(error).__name__
    first, _, rest = text.partition("\n")
    said = re.search(r"^.*(error: .*|not found|cannot .*)$", rest, re.MULTILINE)
    return f"{first}: {said[0].strip()}" if said else first
