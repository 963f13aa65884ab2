"""``gtrace warmup SCRIPT``: run it, and wait until every hot program is compiled and kept on disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from gtrace.commands.run import execute_to_end, read
from gtrace.core.base.config import config
from gtrace.core.base.events import CompileFailed, CompileFinished, CompileStarted, Loaded, bus
from gtrace.core.base.locks import new_lock
from gtrace.core.base.units import printable
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.worker.client import worker
from gtrace.observe import progress


def warmup(script: str, args: Sequence[str], threshold: int | None, module: bool = False) -> int:
    """Run a script and wait for the worker.

    Args:
        threshold: repetitions that make a program hot; None: GT_HOTPATH_THRESHOLD, or 10 where it is not set.
        module: `script` is the name of a module, as after ``python -m``.

    Returns:
        The exit code: 2 if the script cannot be read or nothing can be kept, 1 if it raised or a compile failed.
    """
    source = read("warmup", script, module)
    if source is None:
        return 2
    if threshold is None:
        threshold = config.current.hot_threshold or 10
    config.update(background=True, auto_compile=True, hot_threshold=threshold)
    if artifacts.store is None:
        print("gtrace warmup: nothing is kept on disk while GT_CACHE_SIZE is 0. Unset it.", file=sys.stderr)
        return 2
    counts = {"started": 0, "finished": 0, "failed": 0, "loaded": 0}
    lock = new_lock()
    console = Console(stderr=True)
    what = "running the script"

    def show() -> None:
        done = counts["finished"] + counts["failed"]
        if console.is_terminal:
            progress.line.show_command(f"{what}: {done} of {counts['started']} programs compiled")

    def seen(event: CompileStarted | CompileFinished | CompileFailed | Loaded) -> None:
        kinds = {CompileStarted: "started", CompileFinished: "finished", CompileFailed: "failed", Loaded: "loaded"}
        with lock:
            counts[kinds[type(event)]] += 1
        show()

    stop = bus.subscribe(seen, CompileStarted, CompileFinished, CompileFailed, Loaded)
    try:
        show()
        code = execute_to_end(source, args)
        what = "compiling what was hot"
        show()
        while not worker.wait(0.2):
            pass
    finally:
        stop()
        progress.line.show_command("")
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    folder = printable(str(artifacts.store.folder))
    console.print(
        f"{counts['finished']} compiled, {counts['loaded']} found compiled{failed}: {folder}",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip
    return code or int(counts["failed"] > 0)
