"""Signals: named regions of a program, and what they mean, from a YAML file or from Python.

    forward:
      shard: {axis: 0, workers: [0, 1]}
      backward: backward
      compile: true
    backward:
      shard: {replicated: true}

This module holds the signals of the process. `gtrace.distributed.signal_config` has their possible meanings, and
`gtrace.distributed.signals_file` reads the file.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import MappingProxyType

from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import ConfigError, message
from gtrace.distributed.signal_config import SignalConfig, at_user_line, check_known

__all__ = ["load_config", "register_config"]


class Registry:
    """The signals of this process: those of the file ``config.signals``, overridden by those made in Python."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._loaded: dict[str, SignalConfig] = {}
        self._registered: dict[str, SignalConfig] = {}

    def configure(self, settings: Config) -> None:
        """Read the file in `settings`, if it has changed.

        Raises:
            ConfigError: see `load_config`.
        """
        if settings.signals != self._path:
            self._loaded = self._read(settings.signals) if settings.signals else {}
            self._path = settings.signals

    def load(self, path: str) -> None:
        """Read `path`, even if it was read before, and set ``config.signals`` to it."""
        loaded = self._read(path)
        config.update(signals=path)
        self._loaded = loaded

    def register(self, name: str, signal: SignalConfig) -> None:
        """Add or replace one signal."""
        with at_user_line():
            check_known(signal.backward_signal, {name, *self.signals()})
        self._registered[name] = signal

    def signals(self) -> Mapping[str, SignalConfig]:
        """Return all signals by name."""
        return MappingProxyType({**self._loaded, **self._registered})

    def _read(self, path: str) -> dict[str, SignalConfig]:
        # most programs have no signals file, and PyYAML would be a tenth of gtrace's import time
        reader = importlib.import_module("gtrace.distributed.signals_file")
        return reader.read_signals(path, self._registered)


registry = Registry()
"""The signals of this process."""

config.watch(registry.configure)


def load_config(path: str | os.PathLike[str]) -> Mapping[str, SignalConfig]:
    """Read a YAML signals file; its signals replace those of an earlier file.

    It equals ``gt.config.update(signals=path)`` or GT_CONFIG, except that it also reads a known file again.

    Returns:
        All signals by name, including those of `register_config`.

    Raises:
        ConfigError: the file is unreadable or not YAML, a key is unknown or repeated, a value has the wrong type, or a
            backward names no signal. The message gives file and line.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "signals.yaml")
    ...     with open(path, "w") as file:
    ...         _ = file.write("halves: {shard: {axis: 0, workers: [0, 1]}}")
    ...     load_config(path)["halves"].shard.workers
    (0, 1)
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(message("load_config", "the path of a YAML file", repr(path), "Pass a string or a Path."))
    registry.load(os.fspath(path))
    return registry.signals()


def register_config(name: str, signal: SignalConfig) -> None:
    """Set the meaning of a signal in Python. It overrides the file, and earlier calls.

    Raises:
        ConfigError: `name` is not a string, `signal` is not a `SignalConfig`, or its backward_signal is unknown.

    >>> register_config("doctest", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    >>> registry.signals()["doctest"].shard.axis
    0
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(message("register_config", "the name of a signal", repr(name), "Pass a string."))
    if not isinstance(signal, SignalConfig):
        raise ConfigError(message("register_config", "a gt.SignalConfig", repr(signal), "Pass gt.SignalConfig(...)."))
    registry.register(name, signal)
