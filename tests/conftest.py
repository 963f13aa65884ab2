"""Settings are the same in every test, whatever the environment or another test says.

`--large` runs the tests marked `long` too, and widens searches.

Programs compile in the process of the test, which waits for them; what the worker does has tests of its own.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import tempfile

import attrs
import launch
import pytest
from hypothesis import HealthCheck, settings

import gtrace as gt
from gtrace.core.backends.executable import Compiled, Executable, interpreted
from gtrace.core.backends.fx import lower
from gtrace.core.base.bounded_tables import budget
from gtrace.core.base.config import Config
from gtrace.core.ir.op import _instrs as instructions
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.first_calls import NewSizes
from gtrace.core.runtime.worker.client import worker

# scripts, and what tests run
collect_ignore = [
    "data",
    "ecosystem",
    "jax_suite",
    "array_api_suite",
    "fuzz",
    "ports",
    "conformance.py",
    "compat.py",
    "dist.py",
    "launched_sharding.py",
]

NATIVE = gt.config.native  # with GT_NATIVE=0 Inductor compiles what the C++ of our own would, in tests too

settings.register_profile("small", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("large", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))


def pytest_addoption(parser):
    parser.addoption("--background", action="store_true", help="compile in the worker, and keep it, as programs do")
    parser.addoption("--large", action="store_true", help="search for counterexamples for much longer")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # as in a shell's background job: the processes that tests start would ignore Ctrl-C too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # for the processes that tests start: never the user's own programs on disk
    os.environ["GT_BACKGROUND"] = "0"
    os.environ["GT_COMPILE_AFTER"] = "0"  # no test leaves a process behind
    os.environ["GT_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"gtrace-tests-{os.getpid()}")
    # what calls exported code compiles faster; its own code is as users have it
    os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"
    settings.load_profile("large" if config.getoption("--large") else "small")
    config.addinivalue_line("markers", "inductor: Inductor compiles its programs, short ones too")
    config.addinivalue_line("markers", "slow: takes about a second or more; make test leaves it out")
    config.addinivalue_line("markers", "native: the C++ of our own compiles short ones, whatever GT_NATIVE says")
    config.addinivalue_line("markers", "long: takes long and is run by --large only")


# the files that take longest first, so that none is left for the end when one process has nothing else to do
LONGEST = """
    registry worker docs matmul processes control bench open_sizes timelines sharding planted_bugs export jit
    native_loops sharing cli cache_cli partitioner example_digits random torch_internals testing derived_on_disk
    jax store hotpath repeats native_operations regions ports torch_modes interrupts streams modules canonical
    torch_functions launcher rules
""".split()


def pytest_collection_modifyitems(config, items):
    rank = {f"test_{name}.py": k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    if not config.getoption("--large"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long; see --large"))


def pytest_collection_finish():
    # a collection by a test looks at what tests made, not at torch's modules and ours
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def forked_processes():
    # where tests run: the process that hands them out starts others as it does
    launch.install()


@pytest.fixture(autouse=True, scope="module")
def young_heap():
    # tables do not become full in the middle of a test by what earlier modules left in them
    budget.shrink(gt.config.program_memory // 4)
    # nor does a collection look at that: collecting it takes longer than most tests that collect
    gc.collect()
    gc.freeze()


@pytest.fixture
def large(request) -> bool:
    return request.config.getoption("--large")


@pytest.fixture
def change_op():
    """A function that changes a field of a declared operation, its rules or its test cases, until the test ends."""
    undo = []

    def change(op, field, value):
        part = next((name for name in ("rules", "cases") if hasattr(getattr(op, name), field)), None)
        name, new = (field, value) if part is None else (part, attrs.evolve(getattr(op, part), **{field: value}))
        undo.append((op, name, getattr(op, name)))
        forget(op)
        object.__setattr__(op, name, new)

    def forget(op):
        # what was inferred and made with other rules
        engine.recordings.clear()
        engine.forms.clear()
        engine.programs.clear()
        op.table.clear()
        op.dtypes.clear()
        op.types.clear()
        for key in [key for key in instructions._refs if key[0] is op]:
            del instructions._refs[key]

    yield change
    for op, name, value in reversed(undo):
        object.__setattr__(op, name, value)
        forget(op)


@pytest.fixture
def symbols(monkeypatch):
    """The engine with torch's symbolic sizes, but without Inductor: the lowered program runs as it is."""
    engine.recordings.clear()  # other tests may have compiled the same structures
    engine.programs.clear()
    gc.collect()
    found = []

    def compile_(name, unit, *args):
        if unit.relations is None:
            return Compiled(interpreted(unit.graph, unit.strides))
        lowered = lower(unit.graph, unit.strides, None, unit.relations)
        found.append(lowered)
        executable = Executable(lambda tensors: lowered.module(*tensors), "process", unit.device)
        return Compiled(executable, lowered.guards())

    monkeypatch.setattr(artifacts, "compile", compile_)
    return found


@pytest.fixture(autouse=True)
def default_settings(request):
    background = request.config.getoption("--background")
    kept = os.environ["GT_CACHE_DIR"] if background else None
    # a worker that gives way to programs would take long on a machine that runs other tests beside
    changed = {"compile_share": 1.0, "compile_after": 0.0, "jit_wait": math.inf, "verify_passes": True}
    changed["disable"] = gt.config.disable  # GT_DISABLE=fold pytest ... says what a mechanism is needed for
    by_inductor, by_native = (request.node.get_closest_marker(name) is not None for name in ("inductor", "native"))
    changed["native"] = (NATIVE or by_native) and not by_inductor
    settings = attrs.asdict(Config(background=background, cache_dir=kept, **changed))
    gt.config.update(**settings)
    engine.tiering.warnings.forget()
    engine.sizes = NewSizes(engine)  # what programs other tests ran makes no difference
    assert not background or worker.wait(300), "the worker is idle when a test begins"
    yield
    gt.config.update(**settings)
