"""``gtrace top``: a screen of what a running program is doing."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gtrace.ir.signature import short
from gtrace.observe.stats import duration
from gtrace.observe.status import folder
from gtrace.observe.table import TIERS

PATIENCE = 5.0
"""Seconds that a program may take to answer: all its threads may be inside one long call."""

ROWS = 15
"""Programs shown."""


def top(pid: int | None, *, interval: float, once: bool) -> int:
    """Show a running program until it ends, or Ctrl-C; returns the exit code.

    Args:
        pid: the process; None: the one of this user that was started last.
        once: print once; so it is also where the output is no terminal.
    """
    try:
        running = _running()
    except OSError as error:
        print(f"gtrace top: {error}", file=sys.stderr)
        return 2
    if pid is None:
        pid = max(running, key=running.__getitem__, default=None)
    if pid is None or pid not in running:
        which = "a running program" if pid is None else f"a running program with process {pid}"
        others = f" These can be watched: {', '.join(map(str, sorted(running)))}." if running else ""
        print(f"gtrace top: expected {which}, got none. Start it with gtrace run, or with GT_STATUS=1.{others}",
              file=sys.stderr)  # fmt: skip
        return 2
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    before = ask(_path(pid))
    if before is None:
        print(f"gtrace top: process {pid} has ended, or does not answer.", file=sys.stderr)
        return 1
    if once or not console.is_terminal:
        console.print(screen(before, before))
        return 0
    with Live(screen(before, before), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                now = ask(_path(pid))
                if now is None:
                    break
                live.update(screen(now, before), refresh=True)
                before = now
        except KeyboardInterrupt:
            return 0
    console.print(screen(before, before))
    console.print(f"process {pid} has ended")
    return 0


def _path(pid: int) -> Path:
    return folder() / f"{pid}.sock"


def _running() -> dict[int, float]:
    """Return the programs that can be watched, and when each was started; sockets without a program are removed."""
    found = {}
    for path in folder().glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.settimeout(PATIENCE)
                connection.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                path.unlink(missing_ok=True)  # its program was killed
                continue
            except TimeoutError:
                pass  # it is busy
            found[int(path.stem)] = path.stat().st_mtime
    return found


def ask(path: Path) -> dict[str, Any] | None:
    """Return what a program says of itself; None if it has ended or does not answer."""
    parts = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(path))
            while part := connection.recv(1 << 16):
                parts.append(part)
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

    command = " ".join(now["command"]) or "python"
    rank = f", rank {now['rank']}" if now["rank"] else ""
    memory = f"memory {_size(now['memory'])}" + ("" if now["gpu"] is None else f", GPU {_size(now['gpu'])}")
    calls = f"{now['calls']} calls, {rate(now['calls'], before['calls']) or '-'} calls/s"
    store = "off" if now["store"] is None else f"{now['loaded']} found"
    head = [
        Text(f"{command}  (process {now['pid']}{rank})", style="bold"),
        Text(f"{now['count']} programs, {calls}, {memory}"),
        Text(f"worker: {now['worker']}, {now['pending']} to compile;  store: {store};  {now['compiles']} compiled"),
    ]
    table = Table(box=None, pad_edge=False)
    for name in ("signature", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("ops", "calls", "calls/s", "time", "a call"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("operations")  # the one that gives way where there is little room
    for row in now["programs"][:ROWS]:
        tier = "compiling" if row["compiling"] else row["tier"]
        table.add_row(
            short(row["signature"]), Text(tier, style=TIERS.get(tier, "")), str(row["ops"]), str(row["calls"]),
            rate(row["calls"], earlier.get(row["signature"], 0)), duration(row["seconds"]),
            duration(row["seconds"] / row["calls"]) if row["calls"] else "",
            Text(" ".join(row["names"]), no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip
    return Group(*head, Text(""), table)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
