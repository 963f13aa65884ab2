"""The compile worker: ``python -m gtrace.runtime.worker``, started by `gtrace.runtime.background`.

It reads one job a line from its standard input and answers with one line each, both in JSON. It runs at low priority in
a process group of its own, and ends, with the compilers it started, when its input ends: when its parent does.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import gtrace  # noqa: F401 - declares every operation
from gtrace.errors import CompileError, GraphError
from gtrace.runtime.inductor import compile_artifact
from gtrace.runtime.unit import Unit

NICE = 10
"""Added to the niceness that the parent has; see also `gtrace.runtime.background.beside_worker`."""


_folders: list[str] = []
"""Where the current job's files are."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one unit into the folder that the job names."""
    start = time.perf_counter()
    _folders[:] = [job["folder"]]
    try:
        path, conditions = compile_artifact(Unit.read(job["unit"]), Path(job["folder"]))
    except (CompileError, GraphError) as error:
        return {"failed": str(error)}
    except MemoryError:
        return {"failed": "MemoryError: the compiler ran out of memory", "passing": True}
    return {"path": str(path), "conditions": conditions, "seconds": time.perf_counter() - start}


def _read(jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _private_output() -> TextIO:
    """Return the standard output, and lead what anything else prints to the standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


def main() -> None:
    os.nice(NICE)
    output = _private_output()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        print(json.dumps(answer(jobs.get())), file=output, flush=True)


if __name__ == "__main__":
    main()
