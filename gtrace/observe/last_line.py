"""The last line of a terminal, redrawn in place below the program's output.

The live displays of rich write the program's output to their own file. If stderr is a terminal and stdout a file, that
file would lack the output. Here each text goes unchanged to where the program sent it.
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
"""The kinds of content; the last kind here is shown if there are several."""


class LastLine:
    """The last line of a terminal. If the file is not a terminal, or cannot be redrawn, nothing is written."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._terminal = _terminal(file)
        self._lock = new_lock()
        self._shown: dict[int, Any] = {}
        self._console: Any = None
        self._drawn = False
        self._at_start = True  # whether the next text begins a line, as far as known
        self._proxies: list[tuple[str, _Above]] = []

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return getattr(self._file, "closed", False)  # the program's own file object may lack the attribute

    @property
    def usable(self) -> bool:
        """Whether the file is a terminal that can erase a line."""
        if not self._file.isatty():
            return False
        console = self._rich()
        return bool(console.is_terminal and not console.is_dumb_terminal)

    @property
    def width(self) -> int:
        """The number of usable columns."""
        return int(self._rich().width) - 1  # a full line would wrap

    def show(self, kind: int, what: Any) -> None:
        """Show content that rich prints; it replaces earlier content of this kind."""
        with self._lock:
            if not self.usable:
                return
            self._shown[kind] = what
            self._intercept()
            self._draw()

    def clear(self, kind: int, *, keep: bool = False) -> None:
        """Stop showing this kind.

        Args:
            keep: leave it on the terminal, and continue below.
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
                if getattr(sys, name) is proxy:  # otherwise the program has replaced it
                    setattr(sys, name, proxy.stream)

    def erase(self) -> None:
        """Remove the line until it is drawn again."""
        with self._lock:
            if self._drawn:
                control = importlib.import_module("rich.control").Control
                kinds = importlib.import_module("rich.segment").ControlType
                self._rich().control(control(kinds.CARRIAGE_RETURN, (kinds.ERASE_IN_LINE, 2)))
                self._file.flush()
                self._drawn = False

    def forked(self) -> None:
        """Leave the line to the parent of this forked process."""
        for name, proxy in self._proxies:
            if getattr(sys, name) is proxy:
                setattr(sys, name, proxy.stream)
        self._proxies, self._shown, self._drawn = [], {}, False

    def _rich(self) -> Any:
        if self._console is None:
            # only those who show something import rich
            self._console = importlib.import_module("rich.console").Console(file=self._file)
        return self._console

    def _intercept(self) -> None:
        if not self._proxies:
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name)
                if stream is not None and not isinstance(stream, _Above) and _terminal(stream) == self._terminal:
                    proxy = _Above(stream, self)
                    setattr(sys, name, proxy)
                    self._proxies.append((name, proxy))

    def _draw(self) -> None:
        # the program may have printed the beginning of a line, which must not be overwritten
        if self._shown and self._at_start:
            console = self._rich()
            options = console.options.update(width=self.width, height=1)
            line, *_ = console.render_lines(self._shown[max(self._shown)], options, pad=False)
            self.erase()
            console.print(importlib.import_module("rich.segment").Segments(line), end="")
            self._file.flush()
            self._drawn = True

    def written(self, proxy: _Above, text: str) -> int:
        """Write the program's text above the line."""
        with self._lock:
            self.erase()
            count = proxy.stream.write(text)
            proxy.stream.flush()
            if text:
                self._at_start = text.endswith("\n")
            self._draw()
            return count


class _Above:
    """A stream of the program whose text appears above the line.

    Attributes:
        stream: the original stream.
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
    """Return a key that two files share exactly if they end on one terminal."""
    if file.isatty():
        try:
            return "terminal", os.fstat(file.fileno()).st_rdev
        except (AttributeError, OSError):  # a program's own terminal without a file descriptor
            pass
    return id(file)


_lines: weakref.WeakValueDictionary[Hashable, LastLine] = weakref.WeakValueDictionary()
"""By terminal: all content for one terminal shares its line."""


def line_of(file: TextIO) -> LastLine:
    """Return the line of the terminal that a file writes to."""
    own = _inner(file)
    terminal = _terminal(own)
    line = _lines.get(terminal)
    if line is None or line.closed:
        line = _lines[terminal] = LastLine(own)
    return line


def _forked() -> None:
    for line in list(_lines.values()):
        line.forked()


if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=_forked)
