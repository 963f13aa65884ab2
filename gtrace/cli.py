"""The command line: ``gtrace run SCRIPT [ARGS]``."""

from __future__ import annotations

import argparse
import atexit
import builtins
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.status import Status

import gtrace
from gtrace.events import CompileFailed, CompileFinished, CompileStarted, bus
from gtrace.observe import table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    options = _parser().parse_args(argv)
    return run(options.script, options.args, quiet=options.quiet)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gtrace", description="JAX-style functional tracing that compiles to PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"gtrace {gtrace.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "run",
        help="run a script and end with a table of what compiling cost and saved",
        description="Run SCRIPT as `python SCRIPT ARGS` would, then print what each of its programs cost and saved.",
        epilog="Options before SCRIPT are gtrace's; everything after it goes to the script.",
    )
    command.add_argument("--quiet", "-q", action="store_true", help="print no table and no progress")
    command.add_argument("script", metavar="SCRIPT", help="path of a Python script")
    command.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def run(script: str, args: Sequence[str], *, quiet: bool) -> int:
    """Run a script as ``__main__``; unless `quiet`, print the table when the process ends.

    Returns:
        The exit code: 2 if the script cannot be read, 1 if it raised, else 0. A script that exits does so itself.
    """
    try:
        with open(script, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"gtrace run: expected the path of a Python script, got {script!r}: {reason}.", file=sys.stderr)
        return 2
    if not quiet:
        # at the end of the process: after the script's threads, exit handlers and traceback
        atexit.register(_report, os.getpid())
        if sys.stderr.isatty():
            atexit.register(_show_progress())
    return _execute(source, script, args)


def _execute(source: bytes, script: str, args: Sequence[str]) -> int:
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
        # the reader, such as `head`, has seen enough; the interpreter's own flush must not fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_progress() -> Callable[[], None]:
    """Show a spinner on the terminal while the compiler runs; returns the function that ends that."""
    status = Status("", console=Console(stderr=True))

    def started(event: CompileStarted) -> None:
        status.update(f"compiling {event.signature} ({event.ops} ops)")
        status.start()

    def ended(_: CompileFinished | CompileFailed) -> None:
        status.stop()

    unsubscribe = [bus.subscribe(started, CompileStarted), bus.subscribe(ended, CompileFinished, CompileFailed)]

    def stop() -> None:
        for function in unsubscribe:
            function()
        status.stop()

    return stop
