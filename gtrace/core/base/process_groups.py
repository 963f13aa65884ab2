"""Compilers as process groups: each is stopped and ended as one, and none outlives this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_GUARD = """
trap '' HUP INT QUIT TERM
read -r _ && exit
kill -s KILL -- "-$1"
[ -z "$2" ] && exit
rm -rf -- "$2" || { sleep 1; rm -rf -- "$2"; }
"""
"""Waits for the end of its input. Those that were just killed may still make a file while the folder is removed."""


def start_group(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stderr: int = subprocess.STDOUT,
    folder: Path | str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a compiler in a process group of its own: Ctrl-C does not reach it.

    Args:
        folder: where it runs; None: where this process does.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=stderr, process_group=0, env=environment, cwd=folder)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group of a compiler, unless that has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and what it started, at once."""
    signal_group(process, signal.SIGKILL)
    process.wait()


class Guard:
    """A shell that outlives this process, ends a group of it then, and removes a folder.

    It does so however this process ends, and also if the group is stopped. Only what ends the shell too, such as the
    end of a container, leaves the folder; see `gtrace.core.runtime.cache.workspace`.

    Args:
        process: the first of the group.
        folder: what the group writes into.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path | None = None) -> None:
        command = ["/bin/sh", "-c", _GUARD, "gtrace", str(process.pid), "" if folder is None else str(folder)]
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell, or no memory for it: the next process clears the folder
            self._shell = subprocess.Popen(
                # none of the program's files and folders is kept in use
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                process_group=0, cwd="/",
            )  # fmt: skip
        _guards.add(self)

    def dismiss(self) -> None:
        """End the shell: the group has ended."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            self._close(shell)
            shell.wait()

    def forked(self) -> None:
        """Leave the shell to the parent of this process, which was forked."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.returncode = 0  # it is no child of this process, which must not wait for it
            self._close(shell)

    def _close(self, shell: subprocess.Popen[bytes]) -> None:
        assert shell.stdin is not None
        with contextlib.suppress(OSError):
            shell.stdin.close()


@contextlib.contextmanager
def guarded(process: subprocess.Popen[bytes], folder: Path) -> Iterator[None]:
    """Within the block, a compiler works in a folder; if this process ends, so does it, and the folder is removed."""
    guard = Guard(process, folder)
    try:
        yield
    finally:
        guard.dismiss()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _forked() -> None:
    for guard in list(_guards):
        guard.forked()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forked)
