"""What runs in place of an executable while somebody measures: libraries, a profile, ranges of profilers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch.autograd.profiler import record_function

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction, interpreter
from gtrace.core.backends.interpreter.profile import run_profiled
from gtrace.core.backends.interpreter.result_strides import ordering
from gtrace.core.base.errors import user_location
from gtrace.core.base.torch_internals import profiler_enabled
from gtrace.core.ir.graph import Node
from gtrace.core.ir.signature import short
from gtrace.core.runtime.program import Program

Instrument = Callable[[Program, Executable], Executable]
"""A function of a program and its executable. It returns an executable that also measures something."""


def instrumented(program: Program, executable: Executable, instrument: Instrument | None) -> Executable:
    """Return an executable to run in place of the given one. An instrument and torch's profilers see its calls."""
    ranges, own = profiler_enabled(), executable
    if instrument is not None:
        executable = instrument(program, executable)
    elif ranges and executable.interprets:
        executable = attrs.evolve(executable, run=_ranged_interpreter(program))
    if executable.run is not own.run:
        executable = attrs.evolve(executable, run=_in_order(program, executable.run))
    return _with_range(program, executable) if ranges else executable


_orderings: weakref.WeakKeyDictionary[Program, tuple[Any, Any]] = weakref.WeakKeyDictionary()
"""The functions that give results the program's strides, with the graphs they were made from."""


def _in_order(program: Program, run: TensorFunction) -> TensorFunction:
    """Return `run` with results in the program's own strides. Other strides would make the next step a new program."""
    graph, order = _orderings.get(program, (None, None))
    if graph is not program.graph:
        order = ordering(program.graph, program.key.strides)
        _orderings[program] = program.graph, order
    return run if order is None else lambda tensors: order(run(tensors))


def measure_library_share(program: Program, executable: Executable) -> Executable:
    """Return what interprets a program and notes what of its time compiling cannot win: an instrument."""
    if not executable.interprets:
        return executable

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results, share = run_profiled(program.graph, tensors)
        program.ledger.learn_library_share(share)
        return results

    return attrs.evolve(executable, run=run)


def _with_range(program: Program, executable: Executable) -> Executable:
    """Return an executable whose calls are ranges for torch's profilers, with the signature and the user's line."""
    run = executable.run
    tier = "interpreted" if executable.interprets else "compiled"
    name = f"gtrace {short(program.signature.exact)} {tier} at {user_location()}"

    def ranged(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with record_function(name):
            return run(tensors)

    return attrs.evolve(executable, run=ranged)


_ranged: weakref.WeakKeyDictionary[Program, tuple[Any, TensorFunction]] = weakref.WeakKeyDictionary()
"""The interpreters with ranges, with the graphs they were made from."""


def _ranged_interpreter(program: Program) -> TensorFunction:
    """Return an interpreter each of whose operations is a range, with the user's line where it is known."""
    graph, run = _ranged.get(program, (None, None))
    if run is None or graph is not program.graph:
        run = interpreter(program.graph, _node_range)
        _ranged[program] = program.graph, run
    return run


def _node_range(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    name = f"gtrace {node.op.name}" + (f" at {node.location}" if node.location else "")

    def ranged(*operands: torch.Tensor) -> Any:
        with record_function(name):
            return function(*operands)

    return ranged
