"""The command line: ``gtrace run | trace | visualize | top | warmup | bisect | plan | cache | bench | doctor``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import attrs

from gtrace.commands import cache, doctor
from gtrace.commands.bench import bench
from gtrace.commands.bisect import bisect, list_mechanisms
from gtrace.commands.launch import launch
from gtrace.commands.plan import check, plan
from gtrace.commands.run import run
from gtrace.commands.top import top
from gtrace.commands.trace import trace
from gtrace.commands.visualize import visualize
from gtrace.commands.warmup import warmup
from gtrace.distributed.estimate import Speeds
from gtrace.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    options = _parser().parse_args(argv)
    match options.command:
        case "run":
            if options.workers > 1 or options.restarts:
                count, restarts = options.workers, options.restarts
                return launch(
                    count, options.script, options.args, quiet=options.quiet, jax=options.jax, restarts=restarts,
                    module=options.module,
                )  # fmt: skip
            return run(options.script, options.args, quiet=options.quiet, jax=options.jax, module=options.module)
        case "trace":
            return trace(options.script, options.args, seconds=options.seconds, folder=options.dir,
                         workers=options.workers, module=options.module)  # fmt: skip
        case "visualize":
            return visualize(options.logs, options.output)
        case "top":
            return top(options.pid, interval=options.interval, once=options.once)
        case "warmup":
            return warmup(options.script, options.args, options.threshold, options.module)
        case "bisect":
            if options.list:
                return list_mechanisms()
            return bisect(
                options.script, options.args, module=options.module, rtol=options.rtol,
                timeout=options.timeout, report=options.report,
            )  # fmt: skip
        case "plan":
            if options.check is not None:
                return check(options.check, options.script, options.html)
            speeds = Speeds(**{name: getattr(options, name) for name in _SPEEDS})
            return plan(options.mesh, options.script, options.args, speeds, options.html, options.module)
        case "cache":
            return cache.command(options)
        case "bench":
            return bench(options.args)
        case _:
            return doctor.doctor()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gtrace", description="JAX-style functional tracing that compiles to PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"gtrace {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser(
        "run",
        help="run a script and end with a table of what compiling cost and saved",
        description="Run SCRIPT as `python SCRIPT ARGS` would, then print what each of its programs cost and saved.",
        epilog="Options before SCRIPT are gtrace's; everything after it goes to the script.",
    )
    command.add_argument(
        "--jax", action="store_true", help="let `import jax` mean gtrace.jax, in the script and in libraries"
    )
    command.add_argument("--quiet", "-q", action="store_true", help="print no table and no progress")
    command.add_argument("--workers", type=_at_least_one, default=1, metavar="N",
                         help="run it in N processes of this machine that share the work (default: 1)")  # fmt: skip
    command.add_argument("--restarts", type=_at_least_zero, default=0, metavar="K",
                         help="start the processes again when one fails, up to K times (default: 0); the script goes on"
                         " from its last checkpoint")  # fmt: skip
    _add_script(command)

    command = commands.add_parser(
        "trace",
        help="run a script and write a timeline of what it did",
        description="Run SCRIPT as `python SCRIPT ARGS` would, and write what it recorded, ran and compiled: an"
        " instruction log for each process, and all of them as a trace for ui.perfetto.dev or chrome://tracing.",
        epilog="Options before SCRIPT are gtrace's; everything after it goes to the script.",
    )
    command.add_argument("-s", "--seconds", type=_positive, metavar="SECONDS",
                         help="end the trace after so long and write the files; the script runs on")  # fmt: skip
    command.add_argument("--dir", default=".", metavar="DIR", help="folder of the files (default: the current one)")
    command.add_argument("--workers", type=_at_least_one, default=1, metavar="N",
                         help="run it in N processes of this machine that share the work (default: 1)")  # fmt: skip
    _add_script(command)

    command = commands.add_parser(
        "visualize",
        help="draw the logs of gtrace trace: a picture or a page",
        description="Draw a timeline from instruction logs. Logs of one run are put together; several runs stand below"
        " one another, with one time axis.",
    )
    command.add_argument("logs", metavar="LOG", nargs="+", help="a log of gtrace trace or of GT_INSTRUCTION_LOG")
    command.add_argument("--output", "-o", required=True, metavar="FILE",
                         help="its suffix says what is drawn: .png, .svg or .pdf (by matplotlib, of the extra"
                         " gtrace[plot]), .html (a page) or .json (a Chrome trace)")  # fmt: skip

    command = commands.add_parser(
        "top",
        help="watch a running program",
        description="Show what a program of yours is doing that was started by gtrace run or gtrace trace, or with"
        " GT_STATUS=1: its programs by time, their tiers, calls a second, compiles, the store, memory, the worker.",
    )
    command.add_argument("--pid", type=_process, metavar="PID", help="the process (default: the one started last)")
    command.add_argument("--interval", type=_positive, default=0.5, metavar="SECONDS",
                         help="time between two updates (default: 0.5)")  # fmt: skip
    command.add_argument("--once", action="store_true", help="print what it is doing now, and end")

    command = commands.add_parser(
        "warmup",
        help="run a script until everything hot in it is compiled and kept on disk",
        description="Run SCRIPT as `python SCRIPT ARGS` would, then wait until each of its hot programs is compiled and"
        " kept on disk, so that the next run starts with them.",
        epilog="Options before SCRIPT are gtrace's; everything after it goes to the script.",
    )
    command.add_argument("--threshold", type=_at_least_one, metavar="N",
                         help="repetitions that make a program hot (default: GT_HOTPATH_THRESHOLD, or 10)")  # fmt: skip
    _add_script(command)

    command = commands.add_parser(
        "bisect",
        help="find the mechanism of gtrace that a wrong result comes from",
        description="Run SCRIPT with all mechanisms on and with all of them off. If the output or the exit code"
        " differs, switch off halves of the mechanisms until one is left; print its name and write a report.",
        epilog="Options before SCRIPT are gtrace's; everything after it goes to the script. The script runs"
        " interpreted, then with every program compiled at its first call, then as usual, until one way differs.",
    )
    command.add_argument("--rtol", type=_positive, default=1e-3, metavar="R",
                         help="relative difference up to which printed numbers are equal (default: 0.001)")  # fmt: skip
    command.add_argument("--timeout", type=_positive, metavar="SECONDS", help="of a single run (default: none)")
    command.add_argument("--report", default="gtrace-bisect.md", metavar="FILE",
                         help="where the report goes (default: gtrace-bisect.md)")  # fmt: skip
    command.add_argument("--list", action="store_true", help="print the mechanisms, and run nothing")
    _add_script(command, nargs="?")

    command = commands.add_parser(
        "plan",
        help="what a script would send and hold on many processes, or what a signals file means",
        description="Run SCRIPT as the first of many processes that do not exist, and print what each of its programs"
        " sends and holds. Values that others would send are made up. With --check, only read a signals file.",
    )
    either = command.add_mutually_exclusive_group(required=True)
    either.add_argument("--mesh", metavar="AXES", help="sizes of the mesh, such as data=64,model=16")
    either.add_argument("--check", metavar="FILE", help="path of a YAML signals file; nothing is run")
    command.add_argument("--html", metavar="FILE", help="also write the plans as a page with a picture of each layout")
    for field in attrs.fields(Speeds):
        command.add_argument(
            f"--{field.name}", type=_positive, default=field.default, metavar="N",
            help=f"for estimates: {_SPEEDS[field.name]} (default: {field.default:g})",
        )  # fmt: skip
    _add_script(command, nargs="?")

    cache.add_parser(commands)
    command = commands.add_parser(
        "bench",
        help="measure gtrace beside torch and JAX, or compare two files of figures",
        add_help=False,
        prefix_chars="+",  # all arguments go to the program of the benchmarks, also options and --help
    )
    command.add_argument("args", nargs=argparse.REMAINDER)
    commands.add_parser(
        "doctor",
        help="check what compiling needs, with a fix for whatever fails",
        description="Print one block to paste into a bug report: versions, compilers, processor, cache, settings,"
        " GPUs and what is off; and check that a program compiles. Environment variables are shown only if they are of"
        " gtrace, torch and its libraries.",
    )
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def _at_least_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def _process(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected the number of a process, got {text!r}")
    return int(text)


_SPEEDS = {
    "flops": "multiplications and additions of products in a second, of one process",
    "memory": "bytes that a process reads or writes in a second",
    "network": "bytes that a process sends in a second",
    "latency": "seconds that a collective takes at least",
}


def _add_script(command: argparse.ArgumentParser, **options: Any) -> None:
    command.add_argument("-m", dest="module", action="store_true",
                         help="SCRIPT is the name of a module, run as by python -m")  # fmt: skip
    command.add_argument("script", metavar="SCRIPT", help="path of a Python script", **options)
    command.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
