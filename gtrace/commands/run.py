"""``gtrace run SCRIPT [ARGS]``: a script or a module, and at its end what compiling cost and saved."""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from types import CodeType, TracebackType
from typing import Any

import attrs

import gtrace
from gtrace.core.base.config import config, process_rank
from gtrace.core.base.errors import is_users
from gtrace.observe import progress, table


@attrs.frozen
class Script:
    """The script or module that runs as ``__main__``.

    Attributes:
        name: as the user gave it: a path, or the name of a module.
        source: of the file; None for a module, which is found when it is run.
    """

    name: str
    source: bytes | None


def run(script: str, args: Sequence[str], *, quiet: bool, jax: bool = False, module: bool = False) -> int:
    """Run a script as ``__main__``; unless `quiet`, print the table when the process ends.

    Args:
        jax: ``import jax`` means ``gtrace.jax``.
        module: `script` is the name of a module, as after ``python -m``.

    Returns:
        The exit code: 2 if the script cannot be read, 1 if it raised, else 0. A script that exits does so itself.
    """
    source = read("run", script, module)
    if source is None:
        return 2
    if jax:
        importlib.import_module("gtrace.jax").install()
    config.default(status=True)
    if not quiet and process_rank() == 0:
        # at the end of the process: after the script's threads, exit handlers and traceback
        atexit.register(_report, os.getpid())
        if sys.stderr is not None and sys.stderr.isatty():
            atexit.register(progress.line.show_compiles())
    return execute(source, args)


def say(text: str) -> None:
    """Print a line to the standard error, if it is open."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def read(command: str, script: str, module: bool = False) -> Script | None:
    """Return a script or a module; None, after a message, if it cannot be read."""
    if module:
        _look_in(os.getcwd())
        top = script.partition(".")[0]
        if top and importlib.util.find_spec(top) is not None:
            return Script(script, None)
        say(f"gtrace {command}: expected the name of a Python module after -m, got {script!r}: there is none here, or"
            " installed.")  # fmt: skip
        return None
    try:
        with open(script, "rb") as file:
            return Script(script, file.read())
    except OSError as error:
        reason = error.strerror or str(error)
        fix = " Name a file; a package is run by -m." if os.path.isdir(script) else ""
        say(f"gtrace {command}: expected the path of a Python script, got {script!r}: {reason}.{fix}")
        return None


def _look_in(folder: str) -> None:
    """Find modules in a folder first, in place of the launcher's own, as Python does for what it runs."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def execute(script: Script, args: Sequence[str]) -> int:
    """Run a script as ``__main__``.

    Returns:
        1 if it raised, 2 if there is no such module, else 0. A script that exits does so itself.
    """
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __cached__=None)
    try:
        code = _module_code(script.name, module) if script.source is None else _script_code(script, module)
        if code is None:
            return 2
        sys.modules["__main__"] = module
        sys.argv = [script.name if script.source is not None else str(module.__file__), *args]
        exec(code, module.__dict__)
    except KeyboardInterrupt as error:
        # the interpreter shows it, and ends as one that was interrupted
        sys.excepthook = _without_launcher(sys.excepthook, _inside(error))
        raise
    except Exception as error:  # noqa: BLE001 - whatever the script raises
        # what the interpreter would do, without this module's frames in the traceback
        trace = _inside(error)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def execute_to_end(script: Script, args: Sequence[str]) -> int:
    """Run a script as `execute` does; one that exits ends only itself.

    Returns:
        The exit code. A message in its place is printed, as the interpreter does.
    """
    try:
        return execute(script, args)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        say(str(ended.code))
        return 1


def _script_code(script: Script, module: types.ModuleType) -> CodeType:
    assert script.source is not None
    path = os.path.abspath(script.name)
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    # as `python SCRIPT`: the script's own directory, behind any symbolic link
    _look_in(os.path.dirname(os.path.realpath(script.name)))
    code: CodeType = compile(script.source, path, "exec", dont_inherit=True)
    return code


def _module_code(name: str, module: types.ModuleType) -> CodeType | None:
    """Return the code of a module, or of the ``__main__`` of a package; None, after a message, if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    loader: Any = None if spec is None else spec.loader
    code: CodeType | None = loader.get_code(loader.name) if hasattr(loader, "get_code") else None
    if spec is None or code is None:
        fix = "There is none of this name, or it is a package without a file __main__.py."
        say(f"gtrace: expected a module that can be run, got {name!r}. {fix}")
        return None
    module.__file__, module.__loader__, module.__spec__ = spec.origin, loader, spec
    module.__dict__.update(__package__=spec.parent, __cached__=spec.cached)
    return code


def _inside(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of the user's on."""
    trace = error.__traceback__
    while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _without_launcher(hook: Any, trace: TracebackType | None) -> Any:
    """Return a hook that shows an error with `trace`, which leaves the frames of the launcher out."""
    return lambda kind, error, _: hook(kind, error.with_traceback(trace), trace)


def _report(process: int) -> None:
    if os.getpid() != process or sys.stdout is None:  # a fork of the script's, or the output is closed
        return
    try:
        stats = gtrace.stats()
        table.write(stats, stats.totals, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader, such as `head`, has closed the pipe; the interpreter's own flush must not fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
