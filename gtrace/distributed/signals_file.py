"""The YAML signals file, read as nodes, so that each error has its line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import yaml

from gtrace.core.base.errors import ConfigError
from gtrace.core.base.plain_files import read_plain
from gtrace.distributed.signal_config import (
    InvalidSettingError,
    ShardConfig,
    SignalConfig,
    check_axis,
    check_backward,
    check_compile,
    check_known,
    check_layout,
    check_replicated,
    check_workers,
    nearest,
    shown,
)

_SHARD: dict[str, Callable[[object], None]] = {
    "axis": check_axis,
    "workers": check_workers,
    "replicated": check_replicated,
}
_SIGNAL: dict[str, Callable[[object], None]] = {"backward": check_backward, "compile": check_compile}


def read_signals(path: str, known: Collection[str] = ()) -> dict[str, SignalConfig]:
    """Read a signals file.

    Args:
        known: names of other signals that a backward of this file may name.

    Raises:
        ConfigError: see `gtrace.distributed.signals.load_config`.
    """
    return _Reader(path).read(known)


MOST_VALUES = 200_000
"""The maximal number of values of a file, once for each alias: nested aliases in a few lines may mean billions."""


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, known: Collection[str]) -> dict[str, SignalConfig]:
        root = self._compose()
        self._bound(root)
        if root is None:
            self._fail(1, "signals", "a mapping of signal names", "an empty file", "Name a signal, or unset GT_CONFIG.")
        signals: dict[str, SignalConfig] = {}
        backwards: list[tuple[str, yaml.Node]] = []
        for name, node in self._items(root, "signals", "signal names"):
            signals[name], backward = self._signal(name, node)
            backwards.append((name, backward))
        for name, node in backwards:
            target = signals[name].backward_signal
            self._check(node, f"{name}.", lambda found: check_known(found, {*signals, *known}), target)
        return signals

    def _compose(self) -> yaml.Node | None:
        try:
            return yaml.compose(read_plain(self._path), Loader=yaml.SafeLoader)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"[GT_CONFIG] expected the path of a YAML file that can be read, got {self._path!r}: {reason}."
                " Check the path."
            ) from error
        except yaml.YAMLError as error:
            self._broken(error)
        except RecursionError as error:
            raise ConfigError(
                f"[signals] expected YAML, got lists or mappings nested too deeply. Flatten it. (at {self._path}:1)"
            ) from error

    def _bound(self, root: yaml.Node | None) -> None:
        """Raise for a file with more values than a signals file has."""
        waiting, count = [root], 0
        while waiting:
            node, count = waiting.pop(), count + 1
            if count > MOST_VALUES:
                fix = "Write fewer values, or fewer aliases of aliases."
                self._fail(1, "signals", f"at most {MOST_VALUES:,} values", "more", fix)
            if isinstance(node, yaml.SequenceNode):
                waiting += node.value
            elif isinstance(node, yaml.MappingNode):
                waiting += [part for pair in node.value for part in pair]

    def _broken(self, error: yaml.YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).split("\n")[0]
        line = mark.line + 1 if mark is not None else 1
        self._fail(line, "signals", "YAML", f"an error: {reason}", "Correct the syntax.")

    def _signal(self, name: str, node: yaml.Node) -> tuple[SignalConfig, yaml.Node]:
        """Return the signal, and the node to blame if its backward does not exist."""
        values: dict[str, Any] = {}
        backward = node
        if not _null(node):
            for key, value in self._items(node, name, "options", ("shard", *_SIGNAL)):
                if key == "shard":
                    values[key] = None if _null(value) else self._shard(f"{name}.shard", value)
                    continue
                found = self._value(value)
                self._check(value, f"{name}.", _SIGNAL[key], found)
                values["backward_signal" if key == "backward" else key] = found
                if key == "backward":
                    backward = value
        return SignalConfig(**values, location=f"{self._path}:{node.start_mark.line + 1}"), backward

    def _shard(self, where: str, node: yaml.Node) -> ShardConfig:
        values: dict[str, Any] = {}
        for key, value in self._items(node, where, "options", tuple(_SHARD)):
            values[key] = self._value(value)
            self._check(value, f"{where}.", _SHARD[key], values[key])
        prefix = where.removesuffix("shard")
        self._check(node, prefix, lambda found: check_layout(found.get("axis"), found.get("replicated", False)), values)
        return ShardConfig(**values)

    def _items(
        self, node: yaml.Node, where: str, what: str, allowed: tuple[str, ...] | None = None
    ) -> list[tuple[str, yaml.Node]]:
        """Return the items of a mapping whose keys are distinct strings, in `allowed` if given."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, where, f"a mapping of {what}", self._shown(node), "Write `key: value` lines.")
        items: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self._value(key_node)
            if not isinstance(key, str) or not key:
                self._fail(key_node, where, f"{what} as strings", self._shown(key_node), "Put it in quotes.")
            if key in items:
                self._fail(key_node, where, "each key once", f"a second {shown(key)}", "Remove or rename one of them.")
            if allowed is not None and key not in allowed:
                hint = nearest(key, allowed) or "Remove it."
                self._fail(key_node, where, f"one of {', '.join(allowed)}", shown(key), hint)
            items[key] = value
        return list(items.items())

    def _value(self, node: yaml.Node) -> Any:
        """Return the plain Python value of a node."""
        try:
            return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
        except yaml.YAMLError as error:
            self._broken(error)
        except ValueError as error:
            self._fail(node, "signals", "a YAML value", str(error), "Correct it.")
        except RecursionError:
            self._fail(node, "signals", "a YAML value", "lists or mappings nested too deeply", "Flatten it.")

    def _shown(self, node: yaml.Node) -> str:
        value = self._value(node)
        return "nothing" if value is None else shown(value)

    def _check(self, node: yaml.Node, prefix: str, check: Callable[[Any], None], value: Any) -> None:
        try:
            check(value)
        except InvalidSettingError as problem:
            self._fail(node, prefix + problem.where, problem.expected, problem.got, problem.fix)

    def _fail(self, place: yaml.Node | int, where: str, expected: str, got: str, fix: str) -> NoReturn:
        line = place if isinstance(place, int) else place.start_mark.line + 1
        raise ConfigError(f"[{where}] expected {expected}, got {got}. {fix} (at {self._path}:{line})")


def _null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
