"""Counting compiles: caching is proved, not assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs

from gtrace.core.base.events import CompileStarted, Loaded, Recompiling, bus


@attrs.define
class Compiles:
    """The compilations during a `count_compiles` block, which it counts until the block ends.

    Attributes:
        signatures: of the programs that a compile began of, here or in the worker.
        loaded: signatures of the programs that were found compiled on disk.
        changes: in what a program differs from one compiled before, where it is nearly the same.
    """

    signatures: list[str] = attrs.field(factory=list)
    loaded: list[str] = attrs.field(factory=list)
    changes: dict[str, str] = attrs.field(factory=dict)

    @property
    def count(self) -> int:
        """The number of compiles begun."""
        return len(self.signatures)

    @property
    def loads(self) -> int:
        """The number of programs loaded from disk."""
        return len(self.loaded)

    def _started(self, event: CompileStarted) -> None:
        self.signatures.append(event.signature)

    def _loaded(self, event: Loaded) -> None:
        self.loaded.append(event.signature)

    def _recompiling(self, event: Recompiling) -> None:
        self.changes[event.signature] = event.change


@contextlib.contextmanager
def count_compiles() -> Iterator[Compiles]:
    """Count the compiles that begin inside a ``with`` block, and the compiled programs loaded from disk.

    >>> f = gt.jit(lambda x: x * 2, backend="eager")
    >>> with count_compiles() as compiles:
    ...     for _ in range(3):
    ...         y = f(gt.ones(17))
    >>> compiles.count, compiles.loads
    (1, 0)
    """
    counted = Compiles()
    stops = [
        bus.subscribe(counted._started, CompileStarted),
        bus.subscribe(counted._loaded, Loaded),
        bus.subscribe(counted._recompiling, Recompiling),
    ]
    try:
        yield counted
    finally:
        for stop in stops:
            stop()


@contextlib.contextmanager
def assert_no_recompile() -> Iterator[None]:
    """Fail if a compile begins inside a ``with`` block; the message says what changed.

    Raises:
        AssertionError: at the end of the block.

    >>> f = gt.jit(lambda x: x + 2, backend="eager")
    >>> y = f(gt.ones(19))
    >>> with assert_no_recompile():
    ...     y = f(gt.ones(19))
    """
    with count_compiles() as compiles:
        yield
    if compiles.count:
        lines = [
            f"  {name}: {compiles.changes.get(name) or 'like no program compiled before'}"
            for name in compiles.signatures
        ]
        raise AssertionError(
            f"[assert_no_recompile] expected no compile, got {compiles.count}. gt.explain(signature) tells more.\n"
            + "\n".join(lines)
        )
