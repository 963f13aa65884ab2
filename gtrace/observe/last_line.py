"""The last line of a terminal, drawn again in place; what the program prints stands above it.

The live displays of rich write what the program prints to their own file. With the standard error on a terminal and the
standard output in a file, the file would lack it. Here each text goes where the program sent it, unchanged.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Hashable
from typing import Any, TextIO

from gtrace.core.base.locks import new_lock

STATUS, BAR = 0, 1
"""What may be shown; of two, the one that stands later here."""


class LastLine:
    """The last line of a terminal. Nothing is written where the file is none, or cannot be drawn again."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._terminal = _terminal(file)
        self._lock = new_lock()
        self._shown: dict[int, Any] = {}
        self._console: Any = None
        self._drawn = False
        self._at_start = True  # what comes next begins a line, as far as is known
        self._proxies: list[tuple[str, _Above]] = []

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return getattr(self._file, "closed", False)  # a file of the program's own may lack what it does not need

    @property
    def usable(self) -> bool:
        """Whether the file is a terminal that can erase a line."""
        if not self._file.isatty():
            return False
        console = self._rich()
        return bool(console.is_terminal and not console.is_dumb_terminal)

    @property
    def width(self) -> int:
        """Columns for what is shown."""
        return int(self._rich().width) - 1  # a full line would begin the next one

    def show(self, kind: int, what: Any) -> None:
        """Show something that rich prints, in place of what was shown of this kind."""
        with self._lock:
            if not self.usable:
                return
            self._shown[kind] = what
            self._intercept()
            self._draw()

    def clear(self, kind: int, *, keep: bool = False) -> None:
        """Show this no more.

        Args:
            keep: leave it on the terminal, and go on below.
        """
        with self._lock:
            if self._shown.pop(kind, None) is None:
                return
            if keep and self._drawn:
                self._file.write("\n")
                self._drawn = False
            if self._shown:
                self._draw()
                return
            self.erase()
            proxies, self._proxies = self._proxies, []
            for name, proxy in proxies:
                if getattr(sys, name) is proxy:  # else the program has put something in its place
                    setattr(sys, name, proxy.stream)

    def erase(self) -> None:
        """Take the line away until it is drawn again."""
        with self._lock:
            if self._drawn:
                control = importlib.import_module("rich.control").Control
                kinds = importlib.import_module("rich.segment").ControlType
                self._rich().control(control(kinds.CARRIAGE_RETURN, (kinds.ERASE_IN_LINE, 2)))
                self._file.flush()
                self._drawn = False

    def forked(self) -> None:
        """Leave the line to the parent, as in a process that was forked."""
        for name, proxy in self._proxies:
            if getattr(sys, name) is proxy:
                setattr(sys, name, proxy.stream)
        self._proxies, self._shown, self._drawn = [], {}, False

    def _rich(self) -> Any:
        if self._console is None:
            # rich is imported by those who see something
            self._console = importlib.import_module("rich.console").Console(file=self._file)
        return self._console

    def _intercept(self) -> None:
        """Stand between the program and its streams that end on this terminal."""
        if not self._proxies:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and not isinstance(stream, _Above) and _terminal(stream) == self._terminal:
                    proxy = _Above(stream, self)
                    setattr(sys, name, proxy)
                    self._proxies.append((name, proxy))

    def _draw(self) -> None:
        # the program may have printed the beginning of a line, which must not be written over
        if self._shown and self._at_start:
            console = self._rich()
            options = console.options.update(width=self.width, height=1)
            line, *_ = console.render_lines(self._shown[max(self._shown)], options, pad=False)
            self.erase()
            console.print(importlib.import_module("rich.segment").Segments(line), end="")
            self._file.flush()
            self._drawn = True

    def written(self, proxy: _Above, text: str) -> int:
        """Write what the program prints above the line."""
        with self._lock:
            self.erase()
            count = proxy.stream.write(text)
            proxy.stream.flush()
            if text:
                self._at_start = text.endswith("\n")
            self._draw()
            return count


class _Above:
    """A stream of the program, of which the text stands above the line.

    Attributes:
        stream: the program's own.
    """

    def __init__(self, stream: TextIO, line: LastLine) -> None:
        self.stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.written(self, text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _inner(file: Any) -> Any:
    return file.stream if isinstance(file, _Above) else file


def _terminal(file: TextIO) -> Hashable:
    """Return what two files have in common if they end on one terminal, and otherwise no two."""
    if file.isatty():
        try:
            return "terminal", os.fstat(file.fileno()).st_rdev
        except (AttributeError, OSError):  # a terminal of the program's own, without a file descriptor
            pass
    return id(file)


_lines: weakref.WeakValueDictionary[Hashable, LastLine] = weakref.WeakValueDictionary()
"""By the terminal: several that show something on one share its line."""


def line_of(file: TextIO) -> LastLine:
    """Return the line of the terminal on which a file ends."""
    own = _inner(file)
    terminal = _terminal(own)
    line = _lines.get(terminal)
    if line is None or line.closed:
        line = _lines[terminal] = LastLine(own)
    return line


def _forked() -> None:
    for line in list(_lines.values()):
        line.forked()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forked)
