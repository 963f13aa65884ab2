"""The compile worker: ``python -m gtrace.core.runtime.worker.server``, started by `gtrace.core.runtime.worker.client`.

It reads one job a line from its standard input and answers with one line each, both in JSON. When its input ends, its
program has ended. Then it finishes the job in progress, and those that the program had still requested, if the job
says for how long. It ends with the compilers that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gtrace  # noqa: F401 - declares every operation
from gtrace.core.backends.artifact import compile_artifact
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.errors import CompileError, GraphError
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.worker import afterwards


def answer(request: CompileRequest, folder: Path) -> dict[str, Any]:
    """Compile one request into a folder."""
    start = time.perf_counter()
    os.environ["TMPDIR"] = str(folder)  # of the compilers that torch starts
    try:
        path, guards = compile_artifact(request, folder)
    except CompileError as error:
        return {"error": type(error).__name__, "reason": str(error)}
    except GraphError as error:
        return {"error": "CompileError", "reason": f"GraphError: {error}"}
    except MemoryError:  # before or after the compiler
        return {"error": "TransientCompileError", "reason": "MemoryError: the worker ran out of memory"}
    return {"path": str(path), "guards": guards, "seconds": time.perf_counter() - start}


class Server:
    """Serves jobs until the program has ended, and then finishes what it may."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._job: dict[str, Any] = {}  # the latest one
        self._output = _private_output()

    def read(self) -> None:
        """Read jobs; at the end of the input, limit what is still to be done. Runs in a thread of its own."""
        for line in sys.stdin:
            self._job = json.loads(line)
            self._jobs.put(self._job)
        folder, after = Path(self._job.get("folder", os.devnull)), self._job.get("after")
        with contextlib.suppress(OSError):  # the program has removed the folder: it has the result
            if after and afterwards.take_over(folder, after):
                self._jobs.put(None)
                time.sleep(min(after["seconds"], threading.TIMEOUT_MAX))
        _end()

    def serve(self) -> None:
        """Answer jobs, and finish them when the program has ended."""
        job, reply = {}, {}
        while (following := self._jobs.get()) is not None:
            job, reply = following, answer(CompileRequest.from_json(following["request"]), Path(following["folder"]))
            line = json.dumps(reply)
            reply = json.loads(line)  # as the program gets it
            with contextlib.suppress(OSError):  # the program has ended
                rest = memoryview(line.encode() + b"\n")
                while rest:
                    rest = rest[os.write(self._output, rest) :]
        folder = Path(job["folder"])
        afterwards.keep(job["after"], reply)
        for number, late in enumerate(afterwards.late_of(folder)):
            if not afterwards.is_kept(late):
                inner = folder / f"late-{number}"
                inner.mkdir()
                made = answer(Manifest.from_json(late["manifest"]).request(), inner)
                afterwards.keep(late, json.loads(json.dumps(made)))
        shutil.rmtree(folder, ignore_errors=True)
        _end()


def _private_output() -> int:
    """Return the standard output, and lead what anything else prints to the standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def _end() -> None:
    """End this process, and the compilers that it started."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    # Ctrl-C is for the program, and so is the end of its terminal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tempfile.gettempdir()  # torch's own folders are there, not in that of the first job
    server = Server()
    threading.Thread(target=server.read, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
