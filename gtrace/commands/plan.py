"""``gtrace plan``: what a script would send and hold on many processes; what a signals file means."""

from __future__ import annotations

import collections
import sys
from collections.abc import Sequence

from gtrace.commands import plan_page
from gtrace.commands.run import execute_to_end, read
from gtrace.core.base.errors import ConfigError
from gtrace.core.base.events import Divided, bus
from gtrace.core.base.units import duration_text, printable
from gtrace.core.base.whole_files import write_text
from gtrace.core.ir.sharding import parse_mesh
from gtrace.core.partitioner import processes
from gtrace.core.partitioner.partitioned import Partitioned
from gtrace.distributed.estimate import Speeds
from gtrace.distributed.plan import plan_of
from gtrace.distributed.signal_config import SignalConfig
from gtrace.distributed.signals_file import read_signals


def plan(
    mesh: str, script: str | None, args: Sequence[str], speeds: Speeds, page: str | None = None,
    module: bool = False,
) -> int:  # fmt: skip
    """Run a script as the first of the processes of a mesh, and print what each of its programs sends and holds.

    Args:
        speeds: of the hardware, for estimates.
        page: a file to write the plans to, as HTML.
        module: `script` is the name of a module, as after ``python -m``.

    Returns:
        2 if there is no such mesh or script or the page cannot be written, 1 if the script raised, else 0.
    """
    try:
        size = parse_mesh(mesh).size
    except ValueError as error:
        print(f"gtrace plan: expected a mesh such as data=64,model=16, got {mesh!r}: {error}", file=sys.stderr)
        return 2
    source = None if script is None else read("plan", script, module)
    if script is None or source is None:
        if script is None:
            print("gtrace plan: expected the path of a Python script after --mesh, got none.", file=sys.stderr)
        return 2
    calls: collections.Counter[int] = collections.Counter()
    programs: dict[int, Partitioned] = {}

    def divided(event: Divided) -> None:
        calls[event.digest] += 1
        programs[event.digest] = event.made

    with processes.pretend(size):
        unsubscribe = bus.subscribe(divided, Divided)
        try:
            code = execute_to_end(source, args)
        finally:
            unsubscribe()
    plans = [(plan_of(made), calls[digest]) for digest, made in programs.items()]
    for found, count in plans:
        took = found.estimate(speeds)
        print(f"{count} calls: {found}")
        print(
            f"  a call takes about {duration_text(took.total)}: computing {duration_text(took.computing)}, sending"
            f" {duration_text(took.sending)}"
        )
    if page is not None:
        try:
            write_text(page, plan_page.page(f"{script} on {mesh}", plans, speeds))
        except OSError as error:
            print(printable(f"gtrace plan: {page} cannot be written: {error.strerror}."), file=sys.stderr)
            return 2
    if not programs:
        print("No program is divided: nothing in it has a sharding.")
    return code


def check(path: str, script: str | None = None, page: str | None = None) -> int:
    """Print the signals of a file; return 0, or 2 after an error, which is printed with its line.

    Args:
        script, page: what the user named besides, which is an error: nothing is run, and so there are no plans.
    """
    for what, given, fix in (("SCRIPT", script, "run it"), ("--html", page, "have plans to write")):
        if given is not None:
            print(
                f"gtrace plan: expected no {what} beside --check, got {given!r}. Use --mesh to {fix}.", file=sys.stderr
            )
            return 2
    try:
        signals = read_signals(path)
    except ConfigError as error:
        print(f"gtrace plan: {error}", file=sys.stderr)
        return 2
    for name, signal in signals.items():
        print(f"{name}: {_meaning(signal)}")
    return 0


def _meaning(signal: SignalConfig) -> str:
    parts = []
    if signal.shard is not None:
        ranks = signal.shard.workers
        who = "all workers" if ranks is None else f"workers {', '.join(map(str, ranks))}"
        how = "the same on" if signal.shard.axis is None else f"split along axis {signal.shard.axis} over"
        parts.append(f"{how} {who}")
    if signal.backward_signal is not None:
        parts.append(f"gradients as {signal.backward_signal!r}")
    if signal.compile:
        mode = "default" if signal.compile is True else signal.compile
        parts.append(f"compiled on its own, mode {mode}")
    return "; ".join(parts) or "nothing"
