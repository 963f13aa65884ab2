"""The compile worker: ``python -m gtrace.core.runtime.worker.server``, started by `gtrace.core.runtime.worker.client`.

Its argument is the niceness that it adds to that of its parent. It reads one job a line from its standard input and
answers with one line each, both in JSON. It ends, with the compilers it started, when its input ends: when its parent
does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import gtrace  # noqa: F401 - declares every operation
from gtrace.core.backends.artifact import compile_artifact
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.errors import CompileError, GraphError


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one request into the folder that the job names."""
    start = time.perf_counter()
    os.environ["TMPDIR"] = job["folder"]  # of the compilers that torch starts
    try:
        path, guards = compile_artifact(CompileRequest.from_json(job["request"]), Path(job["folder"]))
    except CompileError as error:
        return {"error": type(error).__name__, "reason": str(error)}
    except GraphError as error:
        return {"error": "CompileError", "reason": f"GraphError: {error}"}
    except MemoryError:  # before or after the compiler
        return {"error": "TransientCompileError", "reason": "MemoryError: the worker ran out of memory"}
    return {"path": str(path), "guards": guards, "seconds": time.perf_counter() - start}


def _read(jobs: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)


def _private_output() -> TextIO:
    """Return the standard output, and lead what anything else prints to the standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


def main() -> None:
    os.nice(int(sys.argv[1]))
    # Ctrl-C is for the parent; the worker ends when the parent does
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.gettempdir()  # torch's own folders are there, not in that of the first job
    output = _private_output()
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        print(json.dumps(answer(jobs.get())), file=output, flush=True)


if __name__ == "__main__":
    main()
