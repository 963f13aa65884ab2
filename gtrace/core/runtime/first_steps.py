"""Compares a program by the first steps of its loops, where the recorded program would take too long as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import thread_time

import attrs
import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.reference import visit
from gtrace.core.backends.runs import EndedError, during, ended_once
from gtrace.core.backends.schedule import CallSequence
from gtrace.core.ir.graph import Graph, subgraphs
from gtrace.core.runtime.agreement import Comparison
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.routes import Parts, Route
from gtrace.core.runtime.taken_inputs import Taken

STEPS = (2, 8, 32, 128)
"""Steps that loops are cut to, in one comparison after the other."""

GROWTH = 8.0
"""How many times as long the next comparison may take. It is not made if less time is left."""

OPERATION_SECONDS = 1e-6
"""What an operation of the reference takes, at least."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within the block, interpreted programs of this thread take so many seconds of processor time, at most.

    Raises:
        TimeoutError: they take longer. It is an `OSError` too. A run that is ended for another reason stays ended.
    """
    end, limit = thread_time() + seconds, object()
    try:
        with ended_once(lambda: thread_time() > end, limit):  # a busy machine is no reason not to compare
            yield
    except EndedError as error:
        if error.of is not limit:
            raise
        raise TimeoutError from None


def least_seconds(graph: Graph) -> float:
    """Return what the reference of a program takes, at least. A loop with a condition may have one step."""
    seconds = 0.0
    for node in graph.nodes:
        inside = [least_seconds(sub.graph) for sub in subgraphs(node.params)]
        if node.op.loop:
            seconds += node.attributes.get("length", 1) * sum(inside)
        else:  # of branches one runs
            seconds += OPERATION_SECONDS + min(inside, default=0.0)
    return seconds


@attrs.frozen
class FirstSteps:
    """What comparing the first steps of loops came to.

    Attributes:
        steps: that loops were cut to.
        problem: what is wrong with the form, in words.
        apart: how far apart the results were, in words.
    """

    steps: int
    problem: str
    apart: str

    @property
    def found(self) -> str:
        """What was found, in words."""
        return f"of its loops the first {self.steps} steps were compared: {self.apart}"


def compare_first_steps(
    graph: Graph,
    inputs: Taken,
    form: Callable[[], list[torch.Tensor]],
    seconds: float,
    worse: float,
    numbers: Sequence[int] = STEPS,
) -> FirstSteps:
    """Compare a form with the reference, with the loops of both cut to more and more steps as long as there is time.

    Args:
        graph: the program.
        form: runs the form again, on the same inputs.
        seconds: of processor time that the reference may take, which comparing takes too if the results agree.
        worse: see `Comparison`.
        numbers: of steps, in ascending order.

    Raises:
        TimeoutError: the fewest steps take too long.
    """
    end = thread_time() + seconds
    found: FirstSteps | None = None
    for most in numbers:
        start = thread_time()
        try:
            with during(most_steps=most):
                with time_limit(end - start):
                    made = Comparison(graph, form(), inputs.spill, worse)
                    visit(graph, inputs.copies, made.look, inputs.spill)
                problem = inputs.overwritten() or made.problem(inputs.copies)
        except TimeoutError:
            if found is None:
                raise
            return found
        found = FirstSteps(most, problem, made.apart)
        now = thread_time()
        if problem or GROWTH * (now - start) > end - now:
            break
    assert found is not None, "there are steps to compare"
    return found


def as_it_runs(route: Route | Parts, ran: Mapping[Program, Executable]) -> TensorFunction:
    """Return what makes the calls of a route without counting them.

    Args:
        ran: the forms of programs; of others it is the one that runs now.
    """
    if isinstance(route, Parts):
        calls = route.calls
        assert isinstance(calls, CallSequence), "only programs of several processes have other calls"
        steps = [
            attrs.evolve(step, run=as_it_runs(way, ran)) for step, way in zip(calls.steps, route.routes, strict=True)
        ]
        return attrs.evolve(calls, steps=tuple(steps)).run
    program = route.program

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given, results = list(tensors), []
        if program is not None:
            executable = ran.get(program) or program.forms.executable
            results = executable.run([given[k] for k in route.inputs])
        return [results[k] if k >= 0 else given[-1 - k] for k in route.outputs]

    return run
