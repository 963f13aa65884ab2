"""Settings: one frozen record, read from the environment once and changed only by ``gt.config``."""

from __future__ import annotations

import contextlib
import difflib
import math
import operator
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs

from gtrace.core.base.errors import ConfigError, ConfigWarning

__all__ = ["config"]

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("0 or 1")


def _integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        expected = f"an integer of at least {least}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(expected) from None
        if value < least:
            raise ValueError(expected)
        return value

    return parse


def _level(text: str) -> int:
    if text.strip() in ("0", "1", "2"):
        return int(text)
    raise ValueError("0 (silent), 1 (one line per event) or 2 (with the compiler's traceback)")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?(?:([kmgt])(i?)b?|b)?", text.strip().lower())
    if match is None:
        raise ValueError("a number of bytes, such as 0, 500MB or 2GiB")
    unit = " kmgt".index(match[2] or " ")
    return int(match[1]) * (1024 if match[3] else 1000) ** unit


def _number(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise ValueError(expected)
        return value

    return parse


_fraction = _number("a fraction from 0 to 1", lambda value: 0 <= value <= 1)
_seconds = _number("a number of seconds, such as 0, 2.5 or inf", lambda value: value >= 0)


def _path(text: str) -> str:
    if not text:
        raise ValueError("a path")
    return text


def _names(text: str) -> str:
    if re.fullmatch(r"[a-z_0-9, ]*", text) is None:
        raise ValueError("names with commas between them, such as norm_fusion,cse")
    return text


def _device(text: str) -> str:
    if re.fullmatch(r"cpu|cuda(:\d+)?", text.strip()) is None:
        raise ValueError('"cpu", "cuda" or a GPU by number, such as "cuda:1"')
    return text.strip()


def process_rank() -> int:
    """Return the rank of this process as the launcher sets it in RANK; 0 without a launcher."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def _setting(
    default: Any, variable: str, parse: Callable[[str], Any], kinds: tuple[type, ...], fixed: bool = False
) -> Any:
    metadata = {"variable": variable, "parse": parse, "kinds": kinds, "fixed": fixed}
    return attrs.field(default=default, metadata=metadata)


@attrs.frozen(kw_only=True)
class Config:
    """The settings at one moment.

    Attributes:
        auto_compile: compile programs that run often (GT_AUTO_COMPILE).
        compile: compile every program before its first call, and wait for it (GT_COMPILE).
        hot_threshold: calls before a program compiles; None: a cost model decides (GT_HOTPATH_THRESHOLD).
        min_seq: the shortest program worth compiling, in operations (GT_HOTPATH_MIN_SEQ).
        signals: path of the YAML signals file, or None (GT_CONFIG).
        debug_compile: how much of the compile log goes to stderr: 0, 1 or 2 (GT_DEBUG_COMPILE).
        instruction_log: path of the instruction stream log, or None (GT_INSTRUCTION_LOG).
        trace: path without suffix of the detailed logs of ``gtrace trace``, or None. This process writes them, and the
            processes that it starts (GT_TRACE).
        trace_seconds: seconds after which such a log ends (GT_TRACE_SECONDS).
        status: let ``gtrace top`` ask this process what it is doing (GT_STATUS).
        eager: run each operation as it is recorded, and loops and branches in Python, for debugging (GT_EAGER).
        debug_nans: raise at the operation that first produced a NaN or an infinity (GT_DEBUG_NANS).
        window: operations that are searched for a period, in a program that forces nothing (GT_HOTPATH_WINDOW).
        max_pending: pending operations at which the recorder forces (GT_MAX_PENDING).
        max_pending_bytes: bytes of inputs that only pending operations keep alive, at which the recorder forces
            (GT_MAX_PENDING_BYTES).
        program_memory: approximate bytes of memory for programs and their tables. Dropped entries are made again
            when needed (GT_PROGRAM_MEMORY, which takes units: 500MB, 2GiB).
        background: compile in a worker process and keep the code on disk. Otherwise this process compiles, waits, and
            keeps the code until it ends (GT_BACKGROUND).
        native: compile short programs by the C++ compiler alone, without Inductor. False affects programs that are
            new from then on (GT_NATIVE).
        cache_dir: folder of the cache on disk; None: the user's cache folder (GT_CACHE_DIR).
        cache_size: limit of that folder in bytes; 0 keeps nothing (GT_CACHE_SIZE, which takes units: 500MB, 2GiB).
        compile_after: seconds that the worker may go on when this process has ended, to finish what it compiles; 0: it
            ends at once (GT_COMPILE_AFTER).
        compile_timeout: seconds after which a compiler is ended. Its program stays interpreted (GT_COMPILE_TIMEOUT).
        compile_share: the fraction of its time that a program may lose to the worker. Above it the worker pauses
            (GT_COMPILE_SHARE).
        jit_wait: seconds that a jitted function waits for the compiler. Then it is interpreted until its code is
            ready; inf: it waits for the code (GT_JIT_WAIT).
        audit: the fraction of a run's time for comparing later calls with the recorded program; 1: every call is
            compared. First calls always are (GT_AUDIT).
        debug_key_reuse: raise if a random key is used twice (GT_DEBUG_KEY_REUSE).
        collective_timeout: seconds after which a process stops waiting for others (GT_COLLECTIVE_TIMEOUT).
        deterministic: equal runs on the same mesh give equal bits. Every program runs as it was recorded, operation by
            operation, and torch uses deterministic algorithms. Sums over processes are added in the order of the ranks
            (GT_DETERMINISTIC).
        verify_passes: verify a graph after each pass (GT_VERIFY_PASSES).
        x64: integers are int64 and NumPy's float64 stays; False: JAX's rules of 32 bits (GT_X64; False by default
            once ``gtrace.jax`` is imported).
        device: torch's name of the device of new arrays: zeros, lists, NumPy arrays, numbers, keys. Numbers and host
            data beside an array go to the device of that array (GT_DEVICE).
        disable: names of mechanisms to switch off, separated by commas. Importing gtrace reads it; it cannot change
            afterwards (GT_DISABLE).
        mechanism_log: path of a file for the names of mechanisms that changed a program; or None. It cannot change
            after the import either (GT_MECHANISM_LOG).
        jax_results: follow JAX in what results look like. Dicts have sorted keys, Arrays and dtypes print as in JAX,
            and out-of-range numbers in index arrays act as in JAX. Floats follow `x64`, numbers beside integers give
            weak results, and updates of a wider dtype are cast (GT_JAX_RESULTS; True by default once ``gtrace.jax``
            is imported).
        check_static_indices: with `jax_results`, a Python integer outside its axis raises, as it does without
            (GT_CHECK_STATIC_INDICES).
        threefry_partitionable: an element of a random array depends on its key and its place alone. False: draws and
            splits as in JAX before 0.5, where it also depends on the size (GT_THREEFRY_PARTITIONABLE).
    """

    auto_compile: bool = _setting(True, "GT_AUTO_COMPILE", _flag, (bool, int))
    compile: bool = _setting(False, "GT_COMPILE", _flag, (bool, int))
    hot_threshold: int | None = _setting(None, "GT_HOTPATH_THRESHOLD", _integer(1), (int, type(None)))
    min_seq: int = _setting(3, "GT_HOTPATH_MIN_SEQ", _integer(1), (int,))
    signals: str | None = _setting(None, "GT_CONFIG", _path, (str, type(None)))
    debug_compile: int = _setting(0, "GT_DEBUG_COMPILE", _level, (int,))
    instruction_log: str | None = _setting(None, "GT_INSTRUCTION_LOG", _path, (str, type(None)))
    trace: str | None = _setting(None, "GT_TRACE", _path, (str, type(None)))
    trace_seconds: float = _setting(math.inf, "GT_TRACE_SECONDS", _seconds, (int, float))
    status: bool = _setting(False, "GT_STATUS", _flag, (bool, int))
    eager: bool = _setting(False, "GT_EAGER", _flag, (bool, int))
    debug_nans: bool = _setting(False, "GT_DEBUG_NANS", _flag, (bool, int))
    window: int = _setting(60000, "GT_HOTPATH_WINDOW", _integer(1), (int,))
    max_pending: int = _setting(20000, "GT_MAX_PENDING", _integer(1), (int,))
    max_pending_bytes: int = _setting(2**30, "GT_MAX_PENDING_BYTES", _integer(1), (int,))
    program_memory: int = _setting(256 * 2**20, "GT_PROGRAM_MEMORY", _bytes, (int, str))
    background: bool = _setting(True, "GT_BACKGROUND", _flag, (bool, int))
    native: bool = _setting(True, "GT_NATIVE", _flag, (bool, int))
    cache_dir: str | None = _setting(None, "GT_CACHE_DIR", _path, (str, type(None)))
    cache_size: int = _setting(2 * 2**30, "GT_CACHE_SIZE", _bytes, (int, str))
    compile_timeout: int = _setting(600, "GT_COMPILE_TIMEOUT", _integer(1), (int,))
    compile_after: float = _setting(60.0, "GT_COMPILE_AFTER", _seconds, (int, float))
    compile_share: float = _setting(0.1, "GT_COMPILE_SHARE", _fraction, (int, float))
    jit_wait: float = _setting(2.0, "GT_JIT_WAIT", _seconds, (int, float))
    audit: float = _setting(0.01, "GT_AUDIT", _fraction, (int, float))
    debug_key_reuse: bool = _setting(False, "GT_DEBUG_KEY_REUSE", _flag, (bool, int))
    collective_timeout: int = _setting(300, "GT_COLLECTIVE_TIMEOUT", _integer(1), (int,))
    deterministic: bool = _setting(False, "GT_DETERMINISTIC", _flag, (bool, int))
    verify_passes: bool = _setting(False, "GT_VERIFY_PASSES", _flag, (bool, int))
    x64: bool = _setting(True, "GT_X64", _flag, (bool, int))
    device: str = _setting("cpu", "GT_DEVICE", _device, (str,))
    disable: str | None = _setting(None, "GT_DISABLE", _names, (str, type(None)), fixed=True)
    mechanism_log: str | None = _setting(None, "GT_MECHANISM_LOG", _path, (str, type(None)), fixed=True)
    jax_results: bool = _setting(False, "GT_JAX_RESULTS", _flag, (bool, int))
    check_static_indices: bool = _setting(False, "GT_CHECK_STATIC_INDICES", _flag, (bool, int))
    threefry_partitionable: bool = _setting(True, "GT_THREEFRY_PARTITIONABLE", _flag, (bool, int))

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Read every GT_ variable of `env`; an empty one counts as unset.

        An unknown variable with a name similar to a setting's warns. Other variables are ignored.

        >>> Config.from_env({"GT_COMPILE": "1"}).compile
        True
        """
        known = {field.metadata["variable"]: field for field in attrs.fields(cls)}
        # without the common prefix, which makes all names similar
        stems = [variable.removeprefix("GT_") for variable in known]
        values = {}
        for variable, text in env.items():
            if not variable.startswith("GT_") or not text:
                continue
            if variable not in known:
                near = difflib.get_close_matches(variable.removeprefix("GT_"), stems, n=1, cutoff=0.75)
                if near:
                    text = f"{variable} is not a gtrace setting; did you mean GT_{near[0]}?"
                    warnings.warn(text, ConfigWarning, stacklevel=2)
                continue
            field = known[variable]
            try:
                values[field.name] = field.metadata["parse"](text)
            except ValueError as error:
                raise ConfigError(
                    f"[{variable}] expected {error}, got {text!r}. Set it to a valid value or unset it."
                ) from None
        return cls(**values)

    def replaced(self, changes: Mapping[str, Any]) -> Config:
        """Return a copy with `changes`; checks each name and type."""
        fields = {field.name: field for field in attrs.fields(type(self))}
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in fields:
                near = difflib.get_close_matches(name, fields, n=1)
                hint = f"Did you mean {near[0]}?" if near else f"The settings are {', '.join(fields)}."
                raise ConfigError(f"[gt.config] expected the name of a setting, got {name!r}. {hint}")
            if fields[name].metadata["fixed"] and value != getattr(self, name):
                fix = f"Set {fields[name].metadata['variable']} before gtrace is imported."
                raise ConfigError(f"[gt.config] expected a setting that can change, got {name!r}. {fix}")
            kinds = fields[name].metadata["kinds"]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
                raise ConfigError(f"[gt.config] expected {wanted} for {name}, got {value!r}. Pass such a value.")
            values[name] = value
            if value is not None:
                text = str(int(value)) if isinstance(value, int) else str(value)
                try:
                    values[name] = fields[name].metadata["parse"](text)
                except ValueError as error:
                    raise ConfigError(
                        f"[gt.config] expected {error} for {name}, got {value!r}. Pass a valid value."
                    ) from None
        return attrs.evolve(self, **values)


class ConfigHolder:
    """The current settings, readable as attributes; ``gt.config`` is the one instance.

    ``update`` changes the settings of the process. A ``with`` block changes them for its own context, which is the
    thread or the asyncio task that runs it. Inside a block, ``update`` lasts until the end of the block. A thread that
    starts inside a block begins with the settings of the process.

    Attributes:
        process: the settings of the process.
        blocks: returns None outside of any block. Every call of a program reads the settings, and
            ``config.process if config.blocks() is None else config.current`` takes a third of the time of ``current``.
    """

    def __init__(self, config: Config, given: Iterable[str] = ()) -> None:
        self.process = config
        self._given = set(given)  # the settings of the process that the environment or `update` set
        self._blocks: ContextVar[tuple[dict[str, Any], ...]] = ContextVar("gtrace blocks", default=())
        self._made: ContextVar[tuple[Config, Config] | None] = ContextVar("gtrace settings", default=None)
        self.blocks = self._made.get
        self._watchers: list[Callable[[Config], None]] = []

    @property
    def current(self) -> Config:
        """The settings of this context."""
        made = self._made.get()
        if made is None:
            return self.process
        # the settings of the process may have changed since the block was entered: apply its changes to the new ones
        return made[1] if made[0] is self.process else self._remake()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def watch(self, watcher: Callable[[Config], None]) -> None:
        """Call `watcher` now and after every change. If it raises, the change is undone.

        It gets the settings of the context that changed. Resources of the whole process, such as the cache folder,
        follow the last change.
        """
        watcher(self.current)
        self._watchers.append(watcher)

    def update(self, **changes: Any) -> None:
        """Change settings until the end of the surrounding ``with`` block; outside of any, for the process.

        Raises:
            ConfigError: an unknown name, or a value of the wrong type.
        """
        self.current.replaced(changes)  # check them before anything changes
        blocks = self._blocks.get()
        with contextlib.ExitStack() as undo:
            undo.callback(self._restore, self.process, blocks)
            if blocks:
                self._enter((*blocks[:-1], {**blocks[-1], **changes}))
            else:
                self.process = self.process.replaced(changes)
                self._notify()
                self._given |= set(changes)
            undo.pop_all()  # no watcher raised

    def default(self, **changes: Any) -> None:
        """Change settings of the process that neither the environment nor `update` set."""
        changes = {name: value for name, value in changes.items() if name not in self._given}
        if changes:
            self.process = self.process.replaced(changes)
            self._notify()

    def _restore(self, process: Config, blocks: tuple[dict[str, Any], ...]) -> None:
        self.process = process
        self._enter(blocks)

    @contextlib.contextmanager
    def __call__(self, **changes: Any) -> Iterator[Config]:
        """Change settings inside a ``with`` block, for the thread or task that runs it.

        >>> with config(min_seq=5):
        ...     config.min_seq
        5
        """
        before = self._blocks.get()
        self.current.replaced(changes)  # check them before anything changes
        try:
            self._enter((*before, changes))
            yield self.current
        finally:
            self._enter(before)

    def _enter(self, blocks: tuple[dict[str, Any], ...]) -> None:
        self._blocks.set(blocks)
        if blocks:
            self._remake()
        else:
            self._made.set(None)
        self._notify()

    def _remake(self) -> Config:
        process = self.process
        settings = process
        for changes in self._blocks.get():
            settings = settings.replaced(changes)
        self._made.set((process, settings))
        return settings

    def _notify(self) -> None:
        for watcher in self._watchers:
            watcher(self.current)


for _field in attrs.fields(Config):
    # a `__getattr__` in the class would slow all its attributes down
    setattr(ConfigHolder, _field.name, property(operator.attrgetter(f"current.{_field.name}")))

config = ConfigHolder(
    Config.from_env(os.environ),
    [field.name for field in attrs.fields(Config) if os.environ.get(field.metadata["variable"])],
)
