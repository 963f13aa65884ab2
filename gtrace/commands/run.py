"""``gtrace run SCRIPT [ARGS]``: a script, and at its end what compiling cost and saved."""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence

import gtrace
from gtrace.config import config
from gtrace.observe import progress, table


def run(script: str, args: Sequence[str], *, quiet: bool, jax: bool = False) -> int:
    """Run a script as ``__main__``; unless `quiet`, print the table when the process ends.

    Args:
        jax: ``import jax`` means ``gtrace.jax``.

    Returns:
        The exit code: 2 if the script cannot be read, 1 if it raised, else 0. A script that exits does so itself.
    """
    source = read("run", script)
    if source is None:
        return 2
    if jax:
        importlib.import_module("gtrace.jax").install()
    config.default(status=True)
    if not quiet and int(os.environ.get("RANK", "0")) == 0:
        # at the end of the process: after the script's threads, exit handlers and traceback
        atexit.register(_report, os.getpid())
        if sys.stderr.isatty():
            atexit.register(progress.line.show_compiles())
    return execute(source, script, args)


def read(command: str, script: str) -> bytes | None:
    """Return the source of a script; None, after a message, if it cannot be read."""
    try:
        with open(script, "rb") as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"gtrace {command}: expected the path of a Python script, got {script!r}: {reason}.", file=sys.stderr)
        return None


def execute(source: bytes, script: str, args: Sequence[str]) -> int:
    """Run a script as ``__main__``; returns 1 if it raised, else 0. A script that exits does so itself."""
    path = os.path.abspath(script)
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = [script, *args]
    if not sys.flags.safe_path:
        # as `python SCRIPT`: the script's own directory, behind any symbolic link, in place of the launcher's
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:  # noqa: BLE001 - whatever the script raises
        # what the interpreter would do, without this module's frame in the traceback
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _report(process: int) -> None:
    if os.getpid() != process:  # a fork of the script's
        return
    try:
        table.write(gtrace.stats(), sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader, such as `head`, has closed the pipe; the interpreter's own flush must not fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
