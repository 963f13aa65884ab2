"""Compilers of each kind that a test plants, which are done at once and make slow code, or fast one.

Their code is a file with the request. Later processes load it from the store as they load real code. Slow code sleeps.
Fast code returns what it computed before. As a script, this is one of several processes that share a store: it takes
cases as JSON, and prints what it saw of them.
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
from gtrace.core.runtime import first_calls, policy
from gtrace.core.runtime.cache import artifact_cache
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.worker import client
from gtrace.core.runtime.worker.lane import Outcome

SLEEP = 0.002
LAST = 20
"""Calls of a case that are looked at, when all trials should be over."""

SHARE, OPENING = first_calls.SHARE, first_calls.OPENING

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
        names = dict.fromkeys(("name", "program", "structural"), "-")
        path = Path(folder) / f"made{'.loop' if request.native else '.so'}"
        path.write_text(
            Manifest.of_request(request, **names, device=request.device, toolchain={}, created=0.0).to_json()
        )
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
    """Make the calls of a case; return the kinds that were compiled, that ran, and that still ran at the end.

    A case has a mode and a number, sizes, and how often each is called. `cost` is what Inductor seems to take. `open`
    says that a route for open sizes is looked for early.
    """
    planted.slow, planted.compiled, planted.ran = case["slow"], [], collections.Counter()
    policy.CostModel.predict = lambda self, ops: case.get("cost", 1e-4)
    first_calls.SHARE, first_calls.OPENING = (0, 0) if case.get("open") else (SHARE, OPENING)
    made = function(case["number"], case.get("extra", 0))
    called = {"undecorated": made, "jit": gt.jit(made), "wait": gt.jit(made, wait=True)}[case["mode"]]
    xs = [gt.from_torch(torch.linspace(0.0, 1.0, size)) for size in case["sizes"]]
    calls = [x for x in xs for _ in range(case["calls"])]
    with gt.config(native=case.get("native", True)):
        for k, x in enumerate(calls):
            if k == len(calls) - LAST:
                before = planted.ran.copy()
            gt.eval(called(x))
            if client.worker.pending:
                client.worker.wait(10.0)
    return {"compiled": planted.compiled, "ran": sorted(planted.ran), "still": sorted(planted.ran - before)}


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
