"""Compilers of each kind that a test plants: at once done, with code that is slow or fast. Run as one of several processes.

Their code is a file with the request, which later processes load from the store as they load real code. Slow code sleeps.
Fast code has computed its results before. The script takes one JSON argument, and prints what it has seen as JSON.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
import time
from pathlib import Path

import torch

import gtrace as gt
from gtrace.core.backends import toolchain as toolchains
from gtrace.core.backends.executable import Executable, interpreted
from gtrace.core.backends.fx import lower
from gtrace.core.runtime import policy
from gtrace.core.runtime.cache import artifact_cache
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.worker import client
from gtrace.core.runtime.worker.lane import Outcome

SLEEP = 0.002
LAST = 20
"""Calls of a case that are looked at, when all trials should be over."""

OPERATIONS = gt.sin, gt.cos, gt.tanh, gt.sinh, gt.arctan


def kind_of(request):
    return "open" if request.relations is not None else "native" if request.native else "inductor"


class Planted:
    """Compilers that are told which kinds of code are slow.

    Attributes:
        slow: these kinds.
        compiled: the kinds that were compiled, in order.
        ran: how often code of each kind ran.
    """

    def __init__(self):
        self.slow, self.compiled, self.ran = (), [], collections.Counter()
        client.WorkerLane.compile = client.NativeLane.compile = self.in_lane
        artifact_cache.compile_artifact = self.compile
        artifact_cache.load = self.load
        artifact_cache.check_library = lambda path: None

    def in_lane(self, request, folder, timeout):
        return Outcome(*self.compile(request, folder), seconds=1e-4)

    def compile(self, request, folder):
        self.compiled.append(kind_of(request))
        given = {"name": "-", "program": "-", "structural": "-", "device": request.device, "toolchain": {}, "created": 0.0}
        path = Path(folder) / f"made{'.loop' if request.native else '.so'}"
        path.write_text(Manifest.of_request(request, **given).to_json())
        guards = () if request.relations is None else lowered(request).guards()
        return path, guards

    def load(self, path, device, origin):
        request = Manifest.from_json(path.read_bytes()).request()
        kind = kind_of(request)
        run = lowered(request).module if kind == "open" else interpreted(request.graph, request.strides).run
        seconds, known = SLEEP * (kind in self.slow), []

        def call(tensors):
            self.ran[kind] += 1
            if seconds:
                time.sleep(seconds)
            if kind == "open":
                return list(run(*tensors))
            if seconds or not known:
                known[:] = run(tensors)
            return [result.clone() for result in known]

        return Executable(call, origin, device)


def lowered(request):
    return lower(request.graph, request.strides, None, request.relations)


def function(number, extra):
    """Return a function with a structure of its own for each number, and one operation more if the program changed."""
    chosen = next(itertools.islice(itertools.permutations(OPERATIONS), number, None))

    def call(x):
        for operation in (*chosen, *chosen[:extra]):
            x = operation(x * 0.5)
        return x

    return call


def run(planted, case):
    """Make the calls of a case in its mode; return what was compiled, and what ran and was known at the end."""
    planted.slow, planted.compiled = case["slow"], []
    policy.CostModel.predict = lambda self, ops: case.get("cost", 1e-4)
    made = function(case["number"], case.get("extra", 0))
    called = {"undecorated": made, "jit": gt.jit(made), "wait": gt.jit(made, wait=True)}[case["mode"]]
    xs = [gt.from_torch(torch.linspace(0.0, 1.0, size)) for size in case["sizes"]]
    with gt.config(native=case.get("native", True)):
        for x in xs:
            for k in range(case["calls"]):
                if k == case["calls"] - LAST:
                    client.worker.wait(10.0)
                    planted.ran.clear()
                gt.eval(called(x))
    return {"compiled": planted.compiled, "ran": sorted(planted.ran)}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("machine"):
        known = toolchains.instruction_set()
        toolchains.instruction_set = lambda: f"{known} {given['machine']}"
    if given.get("version"):
        toolchains.__version__ = given["version"]
    policy.LOOP_SECONDS = policy.NATIVE_OP_SECONDS = 1e-5
    planted = Planted()
    print(json.dumps([run(planted, case) for case in given["cases"]]))
    sys.stdout.flush()
