"""The possible meanings of a signal: records, and checks of their values."""

from __future__ import annotations

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator

import attrs

from gtrace.core.backends.backend import MODES
from gtrace.core.base.errors import ConfigError, message

__all__ = ["ShardConfig", "SignalConfig"]


class InvalidSettingError(ValueError):
    """An invalid value of a setting: the parts of an error to which the caller adds file and line.

    Attributes:
        where, expected, got, fix: as in `gtrace.core.base.errors.message`.
    """

    def __init__(self, where: str, expected: str, got: object, fix: str) -> None:
        super().__init__(where, expected, got, fix)
        self.where, self.expected, self.got, self.fix = where, expected, shown(got), fix


class _Short(reprlib.Repr):
    """Writes values as `repr` does, with limited length: lists and mappings of a file may be endless."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict, self.maxstring, self.maxother = 3, 8, 4, 200, 200

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 256 else f"a number of {x.bit_length()} bits"


_short = _Short()


def shown(value: object) -> str:
    """Return the `repr` of a value, or its beginning if it is long.

    >>> shown("data"), shown([[[[[0]]]]]), shown(1 << 9999)
    ("'data'", '[[[[...]]]]', 'a number of 10000 bits')
    """
    text = _short.repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


@contextlib.contextmanager
def at_user_line() -> Iterator[None]:
    """Turn an `InvalidSettingError` of the block into a `ConfigError` with the user's line."""
    try:
        yield
    except InvalidSettingError as problem:
        raise ConfigError(message(problem.where, problem.expected, problem.got, problem.fix)) from None


def check_axis(axis: object) -> None:
    """Raise an `InvalidSettingError` unless `axis` is the number of an axis, or None."""
    if axis is not None and (not _integer(axis) or axis < 0):  # type: ignore[operator]
        raise InvalidSettingError("axis", "an integer of at least 0", axis, "Count the axes from 0.")


def check_workers(workers: object) -> None:
    """Raise an `InvalidSettingError` unless `workers` is a list or tuple of distinct ranks, or None."""
    if workers is None:
        return
    if not isinstance(workers, list | tuple):
        raise InvalidSettingError("workers", "a list of ranks", workers, "Write a list, or null for all workers.")
    for worker in workers:
        if not _integer(worker) or worker < 0:
            raise InvalidSettingError(
                "workers", "ranks that are integers of at least 0", worker, "Count the workers from 0."
            )
        if workers.count(worker) > 1:
            raise InvalidSettingError("workers", "each rank once", worker, "Remove the repeated one.")
    if not workers:
        raise InvalidSettingError("workers", "at least one rank", workers, "Name one, or write null for all workers.")


def check_replicated(replicated: object) -> None:
    """Raise an `InvalidSettingError` unless `replicated` is a bool."""
    if not isinstance(replicated, bool):
        raise InvalidSettingError("replicated", "true or false", replicated, "Write one of them.")


def check_backward(backward: object) -> None:
    """Raise an `InvalidSettingError` unless `backward` can be the name of a signal, or is None."""
    if backward is not None and not (isinstance(backward, str) and backward):
        raise InvalidSettingError("backward", "the name of a signal", backward, "Write a name.")


def check_compile(value: object) -> None:
    """Raise an `InvalidSettingError` unless `value` is a bool or a mode of compilation."""
    if not isinstance(value, bool) and value not in MODES:
        expected = f"true, false or a mode ({', '.join(MODES)})"
        raise InvalidSettingError("compile", expected, value, nearest(value, MODES) or "Write one of them.")


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def nearest(name: object, names: Iterable[str]) -> str:
    """Return a question that suggests a similar name among `names`; empty if there is none.

    >>> nearest("foward", ["forward", "update"])
    "Did you mean 'forward'?"
    """
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def check_known(backward: str | None, names: Iterable[str]) -> None:
    """Raise an `InvalidSettingError` unless `backward` is one of the signals `names`, or None."""
    names = sorted(names)
    if backward is not None and backward not in names:
        fix = nearest(backward, names) or f"The signals are {', '.join(names) or 'none so far'}."
        raise InvalidSettingError("backward", "the name of a signal", backward, fix)


def _as_tuple(workers: object) -> object:
    return tuple(workers) if isinstance(workers, list) else workers


@attrs.frozen
class ShardConfig:
    """The layout of a region's arrays over the workers: split along an axis, or the same on each.

    Attributes:
        axis: the axis to split, counted from 0; None if replicated.
        workers: the participating ranks, in order; None: all.
        replicated: every worker holds the whole array.

    Raises:
        ConfigError: a value has the wrong type, is negative or repeated, or not exactly one layout is set.

    >>> ShardConfig(axis=0, workers=[0, 1])
    ShardConfig(axis=0, workers=(0, 1), replicated=False)
    """

    axis: int | None = None
    workers: tuple[int, ...] | None = attrs.field(default=None, converter=_as_tuple)
    replicated: bool = False

    def __attrs_post_init__(self) -> None:
        with at_user_line():
            check_axis(self.axis)
            check_workers(self.workers)
            check_replicated(self.replicated)
            check_layout(self.axis, self.replicated)


def check_layout(axis: int | None, replicated: bool) -> None:
    """Raise an `InvalidSettingError` unless exactly one of the two is set."""
    if replicated and axis is not None:
        raise InvalidSettingError(
            "shard", "either an axis or replicated: true", {"axis": axis, "replicated": True}, "Remove one."
        )
    if not replicated and axis is None:
        raise InvalidSettingError("shard", "an axis or replicated: true", None, "Add one of them.")


@attrs.frozen
class SignalConfig:
    """The meaning of a signal.

    Attributes:
        shard: the layout of the region's arrays; None: not sharded.
        backward_signal: the signal of the region's gradients; None: the same signal.
        compile: whether the region is a separate program; or the name of a mode of `gt.jit`.
        location: ``file:line`` of the signals file, for errors; None: it was made in Python.

    Raises:
        ConfigError: a value has the wrong type, or the mode is unknown.

    >>> SignalConfig(shard=ShardConfig(replicated=True), compile="max-autotune").compile
    'max-autotune'
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool | str = False
    location: str | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        with at_user_line():
            if self.shard is not None and not isinstance(self.shard, ShardConfig):
                raise InvalidSettingError("shard", "a gt.ShardConfig", self.shard, "Pass gt.ShardConfig(axis=...).")
            check_backward(self.backward_signal)
            check_compile(self.compile)
