"""``gtrace top``: a screen of what a running program is doing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gtrace.core.base.units import bytes_text, duration_text, printable
from gtrace.core.ir.signature import short
from gtrace.observe.status import folders, is_private
from gtrace.observe.table import TIERS, FittingTable

PATIENCE = 5.0
"""Seconds that a program may take to answer: all its threads may be inside one long call."""

ROWS = 15
"""Programs shown."""

COLUMNS = ("signature", "tier", "ops", "calls", "calls/s", "time", "a call", "operations")
NUMBERS = COLUMNS[2:7]
"""Columns that are aligned to the right."""

GIVE_WAY = ("operations", "ops", "a call", "time", "signature", "calls/s")
"""Columns that are left out, one after another, where there is little room."""

SILENT = f"does not answer within {PATIENCE:.0f} s: it is stopped, or inside one long call"
"""The message for a running program that does not answer."""


def top(pid: int | None, *, interval: float, once: bool) -> int:
    """Show a running program until it ends, or Ctrl-C; return the exit code.

    Args:
        pid: the process; None: the one of this user that was started last.
        once: print once, as for an output that is no terminal.
    """
    try:
        running = _running()
    except OSError as error:
        print(f"gtrace top: {error}", file=sys.stderr)
        return 2
    if pid is None:
        pid = max(running, key=lambda one: running[one][0], default=None)
    if pid is None or pid not in running:
        which = "a running program" if pid is None else f"a running program with process {pid}"
        others = f" These can be watched: {', '.join(map(str, sorted(running)))}." if running else ""
        print(f"gtrace top: expected {which}, got {_got(pid)}.{others}", file=sys.stderr)
        return 2
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    path = running[pid][1]
    try:
        before = ask(path)
        if before is not None and (once or not console.is_terminal):
            time.sleep(interval)
            console.print(screen(ask(path) or before, before))
            return 0
    except TimeoutError:
        print(f"gtrace top: process {pid} {SILENT}.", file=sys.stderr)
        return 1
    if before is None:
        print(f"gtrace top: process {pid} has ended.", file=sys.stderr)
        return 1
    with Live(screen(before, before), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                try:
                    now = ask(path)
                except TimeoutError:
                    live.update(Group(screen(before, before), Text(f"\nit {SILENT}")), refresh=True)
                    continue
                if now is None:
                    break
                live.update(screen(now, before), refresh=True)
                before = now
        except KeyboardInterrupt:
            return 0
    console.print(screen(before, before))
    console.print(f"process {pid} has ended")
    return 0


def _got(pid: int | None) -> str:
    """Return why a process cannot be watched, in words."""
    start = "Start it with gtrace run, or with GT_STATUS=1"
    if pid is None:
        return f"none. {start}"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return "none: there is no such process"
    except PermissionError:
        return "one of another user, who alone can watch it"
    return f"one that cannot be watched. {start}"


def _running() -> dict[int, tuple[float, Path]]:
    """Return the programs that can be watched: when each was started, and its socket. Sockets of ended ones go."""
    found = {}
    for path in (path for place in folders() if is_private(place) for path in place.glob("*.sock")):
        if not path.stem.isdecimal():
            continue
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(FileNotFoundError):  # it has just ended
            try:
                connection.settimeout(PATIENCE)
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)  # its program was killed
                continue
            except TimeoutError:
                pass  # it is busy
            found[int(path.stem)] = path.stat().st_mtime, path
    return found


def ask(path: Path) -> dict[str, Any] | None:
    """Return what a program says of itself; None if it has ended.

    Raises:
        TimeoutError: it does not answer.
    """
    parts = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(path))
            while part := connection.recv(1 << 16):
                parts.append(part)
        except TimeoutError:
            raise
        except OSError:
            return None
    try:
        answer: dict[str, Any] = json.loads(b"".join(parts))
    except ValueError:  # it ended in the middle
        return None
    return answer


def screen(now: dict[str, Any], before: dict[str, Any]) -> Group:
    """Return what is shown of two answers; calls a second are those between them."""
    seconds = now["at"] - before["at"]
    earlier = {row["signature"]: row["calls"] for row in before["programs"]}

    def rate(calls: int, then: int) -> str:
        return f"{(calls - then) / seconds:.0f}" if seconds > 0 else ""

    # names of files need not be text
    command = printable(" ".join(now["command"]).encode(errors="replace").decode()) or "python"
    rank = f", rank {now['rank']}" if now["rank"] else ""
    memory = f"memory {bytes_text(now['memory'])}" + ("" if now["gpu"] is None else f", GPU {bytes_text(now['gpu'])}")
    calls = f"{now['calls']} calls, {rate(now['calls'], before['calls']) or '-'} calls/s"
    store = "off" if now["store"] is None else f"{now['loaded']} found"
    head = [
        Text(f"{command}  (process {now['pid']}{rank})", style="bold"),
        Text(f"{now['count']} programs, {calls}, {memory}"),
        Text(f"worker: {now['worker']}, {now['pending']} to compile;  store: {store};  {now['compiles']} compiled"),
    ]
    rows: list[tuple[str | Text, ...]] = []
    for row in now["programs"][:ROWS]:
        tier = "compiling" if row["compiling"] else row["tier"]
        cells: tuple[str | Text, ...] = (
            short(row["signature"]), Text(tier, style=TIERS.get(tier, "")), str(row["ops"]), str(row["calls"]),
            rate(row["calls"], earlier.get(row["signature"], 0)), duration_text(row["seconds"]),
            duration_text(row["seconds"] / row["calls"]) if row["calls"] else "",
            Text(printable(" ".join(row["names"])), no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip
        rows.append(cells)
    return Group(*head, Text(""), FittingTable(COLUMNS, rows, NUMBERS, GIVE_WAY, 6, box=None, pad_edge=False))
