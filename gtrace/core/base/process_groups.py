"""Compilers as process groups: stopped and ended as a whole, they outlive this process for a time at most."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_GUARD = """
trap '' HUP INT QUIT TERM
read -r _ && exit
left=$3
[ "$left" -gt 0 ] && kill -s CONT -- "-$1"
[ "$left" -gt 0 ] && [ -z "$2" ] && exit
while [ "$left" -gt 0 ] && [ -d "$2" ] && kill -s 0 -- "-$1"; do sleep 1; left=$((left - 1)); done
kill -s KILL -- "-$1"
[ -z "$2" ] && exit
rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
"""
"""Waits for the end of its input, and then for the group, which may have some seconds. A group that removes the folder
has ended. Processes that were just killed may still write files, so removal is tried twice."""

GRACE_SECONDS = 2
"""How much longer than it is told a group may take to end by itself."""

MOST_SECONDS = 10**9
"""What any longer time means to the shell."""

MOST_OUTPUT = 1 << 22
"""Bytes that are kept of what a compiler writes; the rest is read and dropped."""

LOOK_SECONDS = 0.2
"""How often somebody who waits for a compiler looks at its limit."""

END_SECONDS = 10.0
"""How long to wait for the end of a process that was killed. One that waits for a file system may take longer."""


def start_group(
    command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | str | None = None
) -> subprocess.Popen[bytes]:
    """Start a compiler in its own process group, so that Ctrl-C does not reach it, in a working folder."""
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdout=pipe, stderr=both, process_group=0, env=environment, cwd=folder)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group of a compiler, unless it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and its children at once."""
    signal_group(process, signal.SIGKILL)
    _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)


def read_output(pipe: IO[bytes], is_late: Callable[[], bool], end: bytes = b"") -> bytes | None:
    """Return what a process writes, up to `end` or until it closes its output; None if that takes too long.

    Args:
        is_late: called again and again, whether it writes or not.
    """
    text = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not is_late():
            if selector.select(LOOK_SECONDS):
                received = os.read(pipe.fileno(), 1 << 16)
                if len(text) < MOST_OUTPUT:
                    text += received
                if not received or (end and received.endswith(end)):
                    return bytes(text)
    return None


def write_input(pipe: IO[bytes], text: bytes, is_late: Callable[[], bool]) -> bool:
    """Write to a process, which may not read; return whether it has read all before it was too late.

    Raises:
        OSError: it has closed its input.
    """
    os.set_blocking(pipe.fileno(), False)
    rest = memoryview(text)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_WRITE)
        while rest and not is_late():
            if selector.select(LOOK_SECONDS):
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(pipe.fileno(), rest) :]
    return not rest


def wait_for_end(process: subprocess.Popen[bytes], is_late: Callable[[], bool]) -> int | None:
    """Return the exit code of a process that has closed its output; None if it takes too long."""
    while process.poll() is None:
        if is_late():
            return None
        time.sleep(0.005)
    return process.returncode


def finish(process: subprocess.Popen[bytes], seconds: float) -> tuple[int, str] | None:
    """Wait for a compiler; return its exit code and what it says, or None if it was ended after some seconds."""
    until = time.monotonic() + seconds
    assert process.stdout is not None
    try:
        output = read_output(process.stdout, lambda: time.monotonic() > until)
        code = None if output is None else wait_for_end(process, lambda: time.monotonic() > until)
    finally:
        end_group(process)  # it runs if it is late, or after Ctrl-C
        process.stdout.close()
    return None if output is None or code is None else (code, output.decode(errors="replace"))


class Guard:
    """A shell that outlives this process, then ends a process group and removes a folder.

    It works however this process ends, even if the group is stopped. If the shell ends too, as at the end of a
    container, the folder stays; see `gtrace.core.base.workspace`.

    Args:
        process: the leader of the group.
        folder: the folder that the group writes to.
        seconds: how long the group may go on without this process. Without a folder it ends by itself then, and only
            has to be woken.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path | None = None, seconds: float = 0) -> None:
        left = math.ceil(min(seconds + GRACE_SECONDS, MOST_SECONDS)) if seconds else 0
        place = "" if folder is None else str(folder)
        command = ["/bin/sh", "-c", _GUARD, "gtrace", str(process.pid), place, str(left)]
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell, or no memory for it: the next process clears the folder
            self._shell = subprocess.Popen(
                # a folder that stays open could not be unmounted
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                process_group=0, cwd="/",
            )  # fmt: skip
        _guards.add(self)

    def dismiss(self) -> None:
        """End the shell, because the group has ended."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            self._close(shell)
            _wait(shell)

    def forked(self) -> None:
        """Leave the shell to the parent of this forked process."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.returncode = 0  # it is not a child of this process, which must not wait for it
            self._close(shell)

    def _close(self, shell: subprocess.Popen[bytes]) -> None:
        assert shell.stdin is not None
        with contextlib.suppress(OSError):
            shell.stdin.close()


@contextlib.contextmanager
def guarded(process: subprocess.Popen[bytes], folder: Path, seconds: float = 0) -> Iterator[None]:
    """In the block, a compiler works in a folder. If this process ends, the compiler ends and the folder is removed.

    Args:
        seconds: how much later that is, at most.
    """
    guard = Guard(process, folder, seconds)
    try:
        yield
    finally:
        guard.dismiss()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _forked() -> None:
    for guard in list(_guards):
        guard.forked()


if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=_forked)
