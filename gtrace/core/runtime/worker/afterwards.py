"""Compiles that outlive their program: what the worker needs to finish them alone, and who else is at the same one.

The worker finishes the compile in progress when the program has ended, and then those that were still requested. It
marks the folder of its files, and locks it as the program did. So other processes see what is under way.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.whole_libraries import check_library
from gtrace.core.base.config import config
from gtrace.core.base.errors import CompileError
from gtrace.core.base.workspace import IN_USE, PREFIX
from gtrace.core.runtime.cache.manifest import Manifest, Verdict, VerdictKind
from gtrace.core.runtime.cache.store import Store
from gtrace.core.runtime.worker.lane import Outcome
from gtrace.core.runtime.worker.purposes import Purpose, by_weight, purpose_of

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no locks of this kind
    fcntl = None  # type: ignore[assignment]

MARK, LATE = "finishing", "late.json"
"""Files in the folder of a compile: who finishes it since when, and what else was requested."""

MOST_LATE = 16
"""Requests that a program leaves to the worker at its end, beside the one in progress. Each takes 1 ms to write."""

POLL_SECONDS = 0.2
"""How often a process looks whether what it waits for is there."""


# -- the program's side


def terms(request: CompileRequest) -> dict[str, Any] | None:
    """Return what the worker must know to keep the code of a request by itself; None: it must not."""
    purpose, seconds = purpose_of(request), config.current.compile_after
    if purpose is None or not seconds:
        return None
    if not purpose.store.folder.exists():
        # made here: the worker keeps nothing in a folder that somebody has removed since
        with contextlib.suppress(OSError):
            purpose.store.check()
    return _terms(request, purpose, seconds)


def _terms(request: CompileRequest, purpose: Purpose, seconds: float) -> dict[str, Any]:
    store = {"store": str(purpose.store.given), "limit": purpose.store.limit}
    return {**store, "seconds": seconds, "manifest": purpose.manifest(request).to_json()}


def leave(folder: Path, current: CompileRequest, waiting: Iterable[CompileRequest], seconds: float) -> None:
    """Write down what is to be compiled after the request that is compiled in a folder."""
    found = [each for each in by_weight([current, *waiting]) if each[0] is not current]
    # what the program of the request in progress lacks comes first
    others = () if (purpose := purpose_of(current)) is None else [other() for other in purpose.others]
    found.sort(key=lambda each: each[0] not in others)
    late = [_terms(request, purpose, seconds) for request, purpose in found[:MOST_LATE]]
    with contextlib.suppress(OSError):  # then these are lost
        (folder / LATE).write_text(json.dumps(late))


def from_earlier(request: CompileRequest, stopped: Callable[[], bool], timeout: float) -> Outcome | None:
    """Wait for the worker of a program that has ended, if it is at the same request; returns what came of it.

    Args:
        stopped: whether nobody waits any more.
        timeout: seconds to wait.
    """
    purpose = purpose_of(request)
    if purpose is None or not is_finishing(purpose.store, purpose.name(request)):
        return None
    name, end = purpose.name(request), time.monotonic() + timeout
    while is_finishing(purpose.store, name) and purpose.store.find(name) is None:
        if stopped() or time.monotonic() > end:
            return None
        time.sleep(POLL_SECONDS)
    manifest = purpose.store.find(name)
    if manifest is None:
        return None
    if manifest.verdict is not None:
        return Outcome(None, error=CompileError(manifest.verdict.reason))
    path = purpose.store.code(manifest)
    return None if path is None else Outcome(path, manifest.guards, manifest.compile_seconds)


def is_finishing(store: Store, name: str) -> bool:
    """Whether the worker of a program that has ended is at a request, or will be."""
    return any(mark["store"] == str(store.given) and name in mark["names"] for mark in _marks())


def _marks() -> Iterator[dict[str, Any]]:
    """Yield what workers finish whose programs have ended."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError, ValueError):  # it has none, or has just ended
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        mark = json.loads(Path(entry.path, MARK).read_bytes())
                        if _in_use(Path(entry.path)):
                            yield mark


def _in_use(folder: Path) -> bool:
    handle = os.open(folder / IN_USE, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


# -- the worker's side


def take_over(folder: Path, job: dict[str, Any]) -> bool:
    """Lock and mark the folder of a compile whose program has ended; False if another worker was at it before.

    Raises:
        OSError: the folder is gone.
    """
    if fcntl is not None:
        # not closed: the lock ends with this process
        fcntl.flock(os.open(folder / IN_USE, os.O_RDWR | os.O_NOFOLLOW), fcntl.LOCK_EX)
    names = [Manifest.from_json(each["manifest"]).name for each in (job, *late_of(folder))]
    mark = {"store": job["store"], "names": names, "since": [time.time(), folder.name]}
    aside = folder / f"{MARK}.new"
    aside.write_text(json.dumps(mark))
    aside.rename(folder / MARK)
    # each has marked its folder before it looks, so one of them goes on
    others = (other for other in _marks() if other["store"] == mark["store"] and names[0] in other["names"])
    return not any(other["since"] < mark["since"] for other in others)


def late_of(folder: Path) -> list[dict[str, Any]]:
    """Return what else the program had requested, in the order of `leave`."""
    try:
        return list(json.loads((folder / LATE).read_bytes()))
    except (OSError, ValueError):  # there is none, or the program was killed while it wrote
        return []


def is_kept(job: dict[str, Any]) -> bool:
    """Whether the store has what a job is to make."""
    store, manifest = _destination(job)
    return store.find(manifest.name) is not None


def keep(job: dict[str, Any], answer: dict[str, Any]) -> None:
    """Put into the store what became of a job, as its program would have done."""
    store, manifest = _destination(job)
    if not store.given.exists() or store.find(manifest.name) is not None:
        return
    if "error" in answer:
        if answer["error"] == CompileError.__name__:  # about the program
            store.put(attrs.evolve(manifest, verdict=Verdict(VerdictKind.FAILED, answer["reason"])))
        return
    with contextlib.suppress(OSError):  # nothing that could be kept
        check_library(Path(answer["path"]))
        made = {"guards": tuple(answer["guards"]), "compile_seconds": answer["seconds"], "created": time.time()}
        store.put(attrs.evolve(manifest, **made), Path(answer["path"]))


def _destination(job: dict[str, Any]) -> tuple[Store, Manifest]:
    return Store(Path(job["store"]), job["limit"]), Manifest.from_json(job["manifest"])
