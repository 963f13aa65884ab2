"""The cause of an exception in torch's compilers: the program, a passing state of the machine, or an unknown torch."""

from __future__ import annotations

import contextlib
import errno
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import torch

from gtrace.core.base.errors import CompileError, TransientCompileError, UnsupportedTorchError
from gtrace.core.base.torch_internals import COMPILE_EVENTS, known, unsupported

_ERRNOS = frozenset(
    {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EIO}
)

_MESSAGES = re.compile(
    r"""std::bad_alloc | out\ of\ memory | cannot\ allocate\ memory | can't\ allocate\ memory | not\ enough\ memory
    | virtual\ memory\ exhausted | memory\ exhausted | ALLOC_FAILED | no\ space\ left\ on\ device
    | disk\ quota\ exceeded | too\ many\ open\ files | resource\ temporarily\ unavailable
    | killed\ signal\ terminated | terminated\ with\ signal\ \d+ | internal\ compiler\ error:\ killed""",
    re.IGNORECASE | re.VERBOSE,
)
"""What compilers and torch say when memory or disk space ran out, or when the system killed a compiler."""


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
        TransientCompileError: the machine had no memory or disk space, or a compiler was killed.
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
        if COMPILE_EVENTS.module in sys.modules:
            # an interrupted event of torch's own log never ends, and the next compile would be said to overlap it
            events = COMPILE_EVENTS.get()()
            events.get_stack().clear()
            events.get_pt2_compile_substack().clear()
        raise
    except UnsupportedTorchError:
        raise
    except Exception as error:  # compilers raise whatever they like
        reason = f"{type(error).__name__}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        if is_transient(error):
            raise TransientCompileError(reason) from error
        if named := _TARGET.search(str(error)):
            reason = f"{reason} {named[0]}"
        if isinstance(error, (AttributeError, TypeError, ImportError)) and not known(torch.__version__):
            raise unsupported(f"raises {reason}") from error
        raise CompileError(reason) from error


def is_transient(error: BaseException) -> bool:
    """Whether compiling failed for want of memory or disk space, or because a compiler was killed.

    >>> is_transient(MemoryError()), is_transient(RuntimeError("std::bad_alloc")), is_transient(ValueError("3"))
    (True, True, False)
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(one, OSError) and one.errno in _ERRNOS:
            return True
        # killed by a signal: a program causes that only through the memory its compilation needs
        if isinstance(one, subprocess.CalledProcessError) and one.returncode < 0:
            return True
        if _MESSAGES.search(str(one)):
            return True
        # torch's own errors keep their cause in a field
        waiting += [one.__cause__, one.__context__, getattr(one, "inner_exception", None)]
    return False
