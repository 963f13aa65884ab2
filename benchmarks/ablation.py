"""What each mechanism of gtrace gains: the steps of a program with everything on, and with one mechanism off.

    python benchmarks/ablation.py [--program WORD ...] [--mechanism NAME ...] [--rounds 15] [--json FILE] [--page FILE]

A program is a training loop of models.py, modules.py or handwritten.py, or calls of a program of peers.py. A process
with everything on says which mechanisms it uses. Each of them gets a process that goes without it (GT_DISABLE), with
empty caches. They all run until nothing is left to compile. Then they take turns of a tenth of a second, round after
round, so that what else slows the machine slows them alike. A sample is the median step without a mechanism divided by
the median step with it, in one round. A second process with everything on shows the noise.

`--page` writes the table from files of figures: the lines of code of a mechanism, the program that gains most, and the
geometric mean over all programs. Those that do not use it count as 1.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import handwritten
import models
import modules
import peers
from measuring.libraries import UNDECORATED, available
from measuring.processes import start
from measuring.results import BenchmarkError, Figure, Run, load, parser, report, rounds

import gtrace as gt
from gtrace import tree
from gtrace.core.base.mechanisms import MECHANISMS
from gtrace.core.runtime.worker.client import worker

FOLDER = Path(__file__).resolve().parent
PACKAGE = Path(gt.__file__).resolve().parent
TURN = 0.1
"""Seconds of a turn."""
SETTLING = 4.0
"""Seconds of steps before the first turn, and at most so many for the worker after each of four parts."""
TOGETHER = 12
"""Processes that take turns at a time."""
NOISE = "noise"
"""The side of a second process with everything on."""
PLACES = {
    "frozen_imports": "core/base/garbage",
    "kept_memory": "core/base/allocator",
    "templates": "core/trace/replayable core/trace/replayed_trees",
    "lifted_scalars": "core/runtime/lifted_scalars",
    "donation": "core/trace/donation core/ir/aliasing",
    "draws_apart": "core/passes/draws",
    "repeated_parts": "core/passes/repeats",
    "open_sizes": "core/backends/symbolic core/backends/guards",
    "native_programs": "core/backends/native/*",
    "native_loops": "core/backends/native/loops core/backends/native/operator core/backends/native/functions",
    "inductor": "core/backends/inductor/driver core/backends/fx"
    " core/backends/inductor/failures core/backends/inductor/folders",
    "comparisons": "core/runtime/comparisons core/runtime/agreement core/backends/interpreter/reference",
    "store": "core/runtime/cache/*",
    "fold": "core/ir/simplify:fold,_evaluate,_with_scalars",
    "join_parts": "core/ir/simplify:_Parts,_part,join_parts,_joined",
    "order_operands": "core/ir/simplify:order_operands",
    "cse": "core/ir/simplify:cse,_operand_order",
    "merge_batches": "core/ir/simplify:merge_batches,_with_shared,_sums_batches",
    "move_transposes": "core/ir/simplify:move_transposes",
    "merge_calls": "core/passes/subgraph_calls:merge_calls",
    "narrow_calls": "core/passes/subgraph_calls:narrow_calls",
    "einsum_matmul": "core/passes/contractions:multiply_matrices",
    "named_calls": "core/passes/named_calls core/transform/named",
    "norm_fusion": "core/passes/norms core/passes/rowwise core/passes/norm_operators",
    "attention_fusion": "core/passes/attention core/passes/masks core/passes/contractions",
    "direct_calls": "core/backends/interpreter/interpreter:direct_impl",
    "row_indexing": "core/backends/interpreter/row_indexing",
    "batched_matmul": "core/backends/interpreter/matmul:batched_matmul,_stacked",
    "matmul_library": "core/backends/interpreter/matmul",
    "channels_last": "core/passes/channels_last",
    "shared_cores": "core/runtime/worker/sharing",
    "periods": "core/trace/segmentation",
    "row_views": "core/ops/index:_part,_rows_of,_rows_at",
    "code_motion": "core/transform/control/code_motion",
    "open_rules": "core/transform/open_pullbacks core/trace/open_programs",
    "loops_in_blocks": "core/backends/long_loops core/runtime/loop_blocks core/transform/control/blocks",
    "own_tracer": "interop/aten/tracer interop/aten/traced_tensor interop/aten/memory interop/aten/views",
    "operator_rules": "interop/aten/handwritten_layers interop/aten/linear_systems interop/aten/factorizations"
    " interop/aten/matrix_functions interop/aten/fourier interop/aten/rule_tables",
    "as_recorded": "core/runtime/first_calls",
    "partly_compiled": "core/runtime/forms:PartialForm",
    "overtaken": "core/runtime/observed_calls",
    "reviews": "core/runtime/trials",
    "lstm_kernel": "core/backends/interpreter/lstm interop/lstm",
    "row_kernels": "core/backends/inductor/row_kernels core/backends/native/rows.h",
    "pooling_kernel": "core/backends/inductor/pooling core/backends/native/pooling.h",
    "shared_bodies": "core/backends/inductor/loop_bodies",
    "short_build": "core/backends/inductor/launcher",
    "long_sums": "core/backends/interpreter/matmul:has_long_sums,matmul_in_blocks",
    "accurate_functions": "core/backends/inductor/accuracy",
    "double_sums": "core/backends/inductor/exactness:sum_in_double_precision",
    "small_integers": "core/backends/inductor/exactness:_widen",
    "short_floats": "core/backends/inductor/exactness:_round,in_single_precision,_single",
    "held_values": "core/backends/inductor/exactness:_hold",
    "ceil_mode_pooling": "core/backends/inductor/mended:_pooling",
    "reduction_tiling": "core/backends/inductor/mended:_along_one_axis",
    "extreme_places": "core/backends/inductor/mended:_with_places",
    "nearest_by_scales": "core/backends/inductor/refused:_is_nearest_by_scales",
}
"""The modules of each mechanism, or functions of a module after a colon."""


@attrs.frozen
class Program:
    """A program to time.

    Attributes:
        family: the file in benchmarks/ that has it.
        name: within its file.
        side: how gtrace runs it: "gtrace" for undecorated, or "gt.jit, wait=True".
    """

    family: str
    name: str
    side: str

    @property
    def title(self) -> str:
        return f"{self.family} {self.name}, {self.side}"


JITTED = "gt.jit, wait=True"


def programs(quick: bool) -> list[Program]:
    """Return the programs that are timed."""
    found = [Program("models", name, side) for name in models.MODELS for side in ("gtrace", JITTED)]
    found += [Program("modules", name, "gtrace") for name in modules.MODELS]
    found += [Program("handwritten", name, "gtrace") for name in handwritten.PROGRAMS]
    found += [Program("peers", one.name, side) for one in peers.programs(quick) for side in ("gtrace", JITTED)]
    return found


def step_of(program: Program, quick: bool) -> Callable[[], object]:
    """Return what runs a step of a program in this process."""
    if program.family == "models":
        made = models.model(program.name, 2 if quick else 6, quick)
        arrays = made.parameters(), made.data()
        return models.functional(program.side, lambda lib: models.training_step(lib, made.loss), arrays)
    if program.family == "modules":
        return modules.gtrace_step(*modules.made(program.name, quick))
    if program.family == "handwritten":
        return handwritten.step_of(program.side, program.name, quick)()
    (side,), _ = available(["gt.jit" if program.side == JITTED else UNDECORATED.name])
    workload = next(one for one in peers.programs(quick) if one.name == program.name)
    args, function = tree.map(side.convert, workload.arrays()), workload.function(side)
    return lambda: side.wait(function(*args))


def take_turns(program: Program, quick: bool) -> None:
    """Run steps whenever the parent asks for some seconds of them, and print how long each took."""
    step = step_of(program, quick)
    for line in sys.stdin:
        if line.strip() == "worker":
            worker.wait(SETTLING)
            print("[]", flush=True)
            continue
        seconds: list[float] = []
        end = time.perf_counter() + float(line)
        while not seconds or time.perf_counter() < end:
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), flush=True)


class Variant:
    """A process that runs a program without a mechanism, or with all."""

    def __init__(self, program: Program, off: str, quick: bool, stack: contextlib.ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.name, self._log = off, Path(folder) / "mechanisms"
        arguments = [program.family, program.name, program.side, str(int(quick))]
        variables = {"GT_DISABLE": "" if off == NOISE else off, "GT_MECHANISM_LOG": str(self._log)}
        self._process = start(str(FOLDER / "ablation.py"), arguments, folder, **variables)
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, what: str) -> list[float]:
        """Return the seconds of the steps of a turn."""
        process = self._process
        assert process.stdout is not None and process.stderr is not None, "pipes were asked for"
        with contextlib.suppress(BrokenPipeError):
            print(what, file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise BenchmarkError(f"A process without {self.name or 'nothing'} ended:\n{process.stderr.read()}")
        return list(json.loads(answer))

    def settle(self, quick: bool) -> None:
        """Run until nothing is left to compile."""
        for _ in range(1 if quick else 4):
            self.ask("0" if quick else str(SETTLING / 4))
            self.ask("worker")

    def used(self) -> list[str]:
        """Return the mechanisms that it used."""
        names = set(self._log.read_text(encoding="utf-8").split()) if self._log.exists() else set()
        return [name for name in MECHANISMS if name in names]


def compare(program: Program, wanted: Sequence[str], options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the samples of each mechanism that a program uses."""
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        base = Variant(program, "", options.quick, stack)
        base.settle(options.quick)
        names = [name for name in base.used() if not wanted or name in wanted]
        for first in range(0, len(names), TOGETHER):
            with contextlib.ExitStack() as group:
                variants = [
                    Variant(program, name, options.quick, group)
                    for name in [NOISE, *names[first : first + TOGETHER]]
                ]  # fmt: skip
                for one in variants:
                    one.settle(options.quick)
                for _ in range(rounds(options)):
                    known = statistics.median(base.ask(str(TURN)))
                    for one in variants:
                        found.setdefault(one.name, []).append(statistics.median(one.ask(str(TURN))) / known)
    return found


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    chosen = [
        one for one in programs(options.quick)
        if not options.program or any(word in one.title for word in options.program)
    ]  # fmt: skip
    if not chosen:
        raise BenchmarkError(f"expected words of programs, got {', '.join(options.program)}: there is none.")
    figures = []
    for program in chosen:
        began = time.perf_counter()
        found = compare(program, options.mechanism, options)
        figures += [Figure(program.title, name, tuple(samples), "x") for name, samples in found.items()]
        shown = ", ".join(f"{name} {statistics.median(samples):.2f}" for name, samples in found.items())
        print(f"{program.title}, {time.perf_counter() - began:.0f} s: {shown}", file=sys.stderr, flush=True)
    return figures, []


def lines_of(name: str) -> int:
    """Return the lines of code of a mechanism."""
    count = 0
    for place in PLACES[name].split():
        module, _, functions = place.partition(":")
        for path in sorted(PACKAGE.glob(module if module.endswith(".h") else f"{module}.py")):
            text = path.read_text(encoding="utf-8")
            if not functions:
                count += len(text.splitlines())
                continue
            for node in ast.parse(text).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in functions.split(","):
                    count += (node.end_lineno or node.lineno) - node.lineno + 1
    return count


def page(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the table of mechanisms."""
    yield "| name | lines | programs | best program | gain there | geometric mean | processor |"
    yield "|---|---|---|---|---|---|---|"
    for run in runs:
        processor = run.machine.get("processor", "unknown")
        noise = {figure.workload: figure.median for figure in run.figures if figure.side == NOISE}
        for one in MECHANISMS.values():
            found = [figure for figure in run.figures if figure.side == one.name]
            if not found:
                yield f"| `{one.name}` | {lines_of(one.name)} | 0 | | | | {processor} |"
                continue
            best = max(found, key=lambda figure: figure.median)
            mean = math.exp(sum(math.log(figure.median) for figure in found) / len(noise))
            yield (
                f"| `{one.name}` | {lines_of(one.name)} | {len(found)} | {best.workload} |"
                f" {best.median:.2f} (noise {noise[best.workload]:.2f}) | {mean:.3f} | {processor} |"
            )


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    options.add_argument("--program", metavar="WORD", nargs="+", default=[], help="names that contain one of these")
    options.add_argument("--mechanism", metavar="NAME", nargs="+", default=[], choices=MECHANISMS, help="only these")
    options.add_argument(
        "--page", metavar="FILE", nargs="+", help="print the table of these figures, and measure nothing"
    )
    options.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        *program, quick = given.child
        take_turns(Program(*program), bool(int(quick)))
        return
    if given.page:
        print("\n".join(page([run for file in given.page for run in load(file) if run.program == "ablation"])))
        return
    report("ablation", given, measure)


if __name__ == "__main__":
    main()
