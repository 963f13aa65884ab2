"""The artifact cache: compiled code, kept in the store for later processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from gtrace.core.backends.artifact import compile_artifact, load
from gtrace.core.backends.executable import Compiled
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.schedule import Results
from gtrace.core.backends.symbolic import SymbolicProgram, SymbolicSizes
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.backends.whole_libraries import check_library
from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import CacheError, CompileError, TransientCompileError, UnsupportedTorchError
from gtrace.core.base.locks import new_lock
from gtrace.core.base.mechanisms import OPEN_SIZES, STORE
from gtrace.core.base.workspace import workspace
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.signature import Signature, short
from gtrace.core.passes.subgraph_calls import count_operations, has_calls
from gtrace.core.runtime.cache.folder import default_folder
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Manifest, Verdict, VerdictKind
from gtrace.core.runtime.cache.store import Store
from gtrace.core.runtime.worker.client import worker
from gtrace.core.runtime.worker.lane import Outcome, always


class RefusedError(CompileError):
    """Code is neither to be used nor to be made again: an earlier process tried.

    Attributes:
        kind: what it found.
    """

    def __init__(self, manifest: Manifest, verdict: Verdict) -> None:
        again = f"`gtrace cache retry {short(manifest.program)}` tries again"
        super().__init__(f"{verdict.kind.meaning} in an earlier run: {verdict.reason}; {again}")
        self.kind = verdict.kind


Names = Mapping[str, CompileRequest]
"""Requests, by the names under which their compiled form is kept."""

Done = Callable[["Results | CompileError", float], None]
"""Gets all compiled forms, or why there are none, and the seconds that the compiler worked."""

OnArrival = Callable[[Results], None]
"""Gets the compiled forms that there are."""


class ArtifactCache:
    """Finds compiled code in the store, and compiles what is missing, here or in the worker."""

    def __init__(self) -> None:
        self.store: Store | None = None
        self._earlier: Mapping[str, LedgerEntry] | None = None
        config.watch(self._configure)

    def _configure(self, settings: Config) -> None:
        if not settings.background or not settings.cache_size or not STORE.on:
            self.store = None
            return
        folder = default_folder() if settings.cache_dir is None else Path(settings.cache_dir).absolute()
        store = self.store  # another thread may be setting it
        if store is None or (store.folder, store.limit) != (folder, settings.cache_size):
            self.store = Store(folder, settings.cache_size)
            self._earlier = None

    # -- finding

    @property
    def empty(self) -> bool:
        """Whether the store is empty. Then skip lookups: their names take 2 ms to make."""
        return self.store is None or self.store.empty()

    def find(self, names: Names) -> Results | None:
        """Return the compiled form of every request; None unless all are there.

        Raises:
            RefusedError: one is not to be used.
            UnsupportedTorchError: this torch cannot load them.
        """
        found = self._found(names)
        # no requests: the bodies of its loops are too short to compile
        return found if found and len(found) == len(names) else None

    def _found(self, names: Names) -> dict[CompileRequest, Compiled]:
        """Return the compiled forms that there are; for the errors see `find`."""
        loaded = {request: self._load(name) for name, request in names.items()}
        return {request: compiled for request, compiled in loaded.items() if compiled is not None}

    def find_symbolic(self, family: str, shape: SymbolicSizes) -> SymbolicProgram | None:
        """Return a program for open sizes that can run `shape`, from an earlier process.

        Args:
            family: the name of its family.

        Raises:
            UnsupportedTorchError: this torch cannot load it.
        """
        if self.store is None or not OPEN_SIZES.on:
            return None
        for manifest in self.store.family(family):
            if manifest.verdict is not None or manifest.relations is None:
                continue
            if not SymbolicProgram.matches(manifest.relations, manifest.constants, manifest.guards, shape):
                continue
            compiled = self._load(manifest.name)
            if compiled is not None:
                return SymbolicProgram(compiled, manifest.relations, manifest.constants)
        return None

    def open_verdict(self, family: str) -> Verdict | None:
        """Return why an earlier process gave up compiling a family for open sizes; None: none did."""
        kept = () if self.store is None else self.store.family(family)
        return next((manifest.verdict for manifest in kept if manifest.verdict is not None), None)

    def earlier(self, signature: Signature) -> LedgerEntry:
        """Return what earlier processes measured of a program; an empty entry if none did."""
        return self._ledger().get(signature.exact) or LedgerEntry()

    def compiled_before(self) -> list[tuple[int, float]]:
        """Return (operations, seconds) of the compiles of earlier processes."""
        return [(entry.nodes, entry.compile_seconds) for entry in self._ledger().values() if entry.compile_seconds]

    def _ledger(self) -> Mapping[str, LedgerEntry]:
        if self._earlier is None:
            self._earlier = {} if self.store is None else self.store.ledger()
        return self._earlier

    def _load(self, name: str) -> Compiled | None:
        """Return a compiled form, if it is there. Whoever runs or makes code comes by here, so verdicts hold for all.

        Raises:
            RefusedError: it is not to be used.
            UnsupportedTorchError: this torch cannot load it.
        """
        if self.store is None:
            return None
        manifest = self.store.find(name)
        if manifest is None:
            return None
        if manifest.verdict is not None:
            raise RefusedError(manifest, manifest.verdict)
        path = self.store.code(manifest)
        if path is None:
            return None
        try:
            executable = load(path, manifest.device, "cache")
        except CacheError as error:
            self.store.refuse(name, error)
            return None
        return Compiled(attrs.evolve(executable, identity=path.name), manifest.guards)

    # -- making

    def compile(
        self, name: str, request: CompileRequest, signature: Signature, constants: tuple[Scalar | None, ...]
    ) -> Compiled:
        """Compile a request in this thread, unless it is in the store; see `request` for the arguments.

        Raises:
            CompileError: it could not be compiled, or is not to be.
        """
        known = self._load(name)
        if known is not None:
            return known
        start = time.perf_counter()
        with contextlib.ExitStack() as files:
            try:
                with compiler_errors():
                    folder = files.enter_context(workspace())
                path, guards = compile_artifact(request, folder)
            except CompileError as error:
                outcome = Outcome(None, error=error)
            else:
                outcome = Outcome(path, guards, time.perf_counter() - start)
            result = self._keep(_manifest(name, request, signature, constants, outcome), request, outcome, "process")
        if isinstance(result, CompileError):
            raise result
        return result

    def request(
        self,
        names: Names,
        signature: Signature,
        constants: tuple[Scalar | None, ...],
        done: Done,
        part: OnArrival,
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Have the worker compile what is not there yet.

        Args:
            signature: of the program that the requests are for.
            constants: with open sizes, the scalars that hold for all of them.
            done: called in another thread, or at once if everything is there.
            part: called so with what is there before everything is.
            wanted: called in another thread before a compiler begins: whether somebody still waits. If not, nothing
                more is compiled, and neither `done` nor `part` is called.
        """
        timeout = config.current.compile_timeout  # that of the thread that asks
        try:
            found = self._found(names)
        except CompileError as error:
            done(error, 0.0)
            return
        missing: dict[bool, list[tuple[str, CompileRequest]]] = {True: [], False: []}
        for name, request in names.items():
            if request not in found:
                missing[request.native].append((name, request))
        # long loops gain the most
        missing[True].sort(key=lambda named: (not has_calls(named[1].graph), -count_operations(named[1].graph)))
        lock = new_lock()
        spent, failed = 0.0, False

        # native loops and the rest have a compiler each; one request of each kind at a time, as other programs wait too
        def compile_next(native: bool) -> None:
            if missing[native]:
                name, request = missing[native].pop(0)
                worker.submit(request, lambda outcome: received(name, request, outcome), timeout, wanted)

        def received(name: str, request: CompileRequest, outcome: Outcome) -> None:
            nonlocal spent, failed
            manifest = _manifest(name, request, signature, constants, outcome)
            result = self._keep(manifest, request, outcome, "worker")
            with lock:
                if failed:
                    return
                spent += outcome.seconds
                if isinstance(result, CompileError):
                    failed = True
                else:
                    found[request] = result
                complete = len(found) == len(names)
            if isinstance(result, CompileError):
                done(result, spent)
            elif complete:
                done(found, spent)
            else:
                part(found.copy())
                compile_next(request.native)

        if len(found) == len(names):
            done(found, spent)
            return
        if found:
            part(found.copy())
        compile_next(True)
        compile_next(False)

    def _keep(
        self, manifest: Manifest, request: CompileRequest, outcome: Outcome, origin: str
    ) -> Compiled | CompileError:
        """Put what was compiled into the store, and load it."""
        if outcome.error is not None:
            if self.store is not None and type(outcome.error) is CompileError:  # about the program
                failed = Verdict(VerdictKind.FAILED, str(outcome.error))
                self.store.put(attrs.evolve(manifest, verdict=failed))
            return outcome.error
        assert outcome.path is not None
        try:
            check_library(outcome.path)  # before it is kept: a compiler may end well and have written nothing
        except CacheError as error:
            return TransientCompileError(str(error))
        path = self.store.put(manifest, outcome.path) if self.store is not None else None
        try:
            try:
                executable = load(path or outcome.path, request.device, origin)
            except CacheError:
                if path is None or path.exists():
                    raise
                path = None  # another process has just removed it
                executable = load(outcome.path, request.device, origin)
        except UnsupportedTorchError as error:
            return error
        except CacheError as error:
            return CompileError(str(error))
        # a name in the store has the checksum of the code in it
        return Compiled(attrs.evolve(executable, identity="" if path is None else path.name), outcome.guards)

    # -- verdicts

    def set_verdict(self, names: Iterable[str], verdict: Verdict | None) -> None:
        """Note why artifacts are not to be used, or, with None, that they are."""
        if self.store is not None:
            for name in names:
                self.store.set_verdict(name, verdict)

    def symbolic_names(self, family: str, relations: Any, constants: Any) -> list[str]:
        """Return the names under which a program for open sizes is kept."""
        kept = () if self.store is None else self.store.family(family)
        return [m.name for m in kept if m.relations == relations and m.constants == constants]


def _manifest(
    name: str, request: CompileRequest, signature: Signature, constants: tuple[Scalar | None, ...], outcome: Outcome
) -> Manifest:
    return Manifest.of_request(
        request,
        name=name,
        program=signature.exact,
        structural=signature.structural,
        constants=constants,
        guards=outcome.guards,
        device=request.device,
        toolchain=toolchain(),
        compile_seconds=outcome.seconds,
        created=time.time(),
    )


artifacts = ArtifactCache()
"""The artifact cache of this process."""
