"""Faults that are planted in a copy of gtrace, to see after how many programs the fuzzer finds them.

    python tests/fuzz/plants.py
    python tests/fuzz/plants.py causal_negative nan_mask --seed 600000 --programs 2000

A plant takes out what mended a fault, or switches it off. Plants in Inductor's lowerings are found by Inductor's form
alone. It takes seconds for a program, so programs without the functions that a plant concerns are only counted there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

TESTS = Path(__file__).resolve().parent.parent
PACKAGE = TESTS.parent / "gtrace"
TOGETHER = 3
"""Programs that Inductor compiles as one."""

LIMIT = 3600.0
"""Seconds that the search for a plant may take."""


@attrs.frozen
class Plant:
    """A planted fault.

    Attributes:
        what: the fault, as it is named in docs/accuracy.md.
        edits: files of gtrace, what they hold, and what stands there instead.
        off: mechanisms that are switched off.
        forms: those that may show it.
        has: a pattern that programs have which Inductor compiles.
    """

    generator: str
    what: str
    edits: tuple[tuple[str, str, str], ...] = ()
    off: str = ""
    forms: tuple[str, ...] = ("float64", "interpreted")
    has: str = ""


def _native(generator: str, what: str, *edits: tuple[str, str, str], off: str = "") -> Plant:
    return Plant(generator, what, edits, off, ("jitted",))


def _inductor(generator: str, what: str, *edits: tuple[str, str, str], off: str = "", has: str = "") -> Plant:
    return Plant(generator, what, edits, off, ("inductor",), has)


_PASSES, _INDUCTOR, _NATIVE = "core/passes", "core/backends/inductor", "core/backends/native"
_WIDENED = 'name = name_of(node) if SMALL_INTEGERS.on else ""'
_KEPT = "kept = kept or view.detached or view.call is torch.ops.aten.detach.default"
_BELIEVED = f"{_PASSES}/driver.py", "        if not computes(", "        if False and not computes("
"""Without it, what a search finds by mistake is replaced: both forms are no longer evaluated."""

PLANTS = {
    # patterns that are nearly what a rewrite looks for
    "norm_constant": Plant("norms", "a norm that loses a constant in its gradient", (
        (f"{_PASSES}/norms.py",
         "            if isinstance(value, Scalar):\n                terms.append(value)\n                continue",
         "            if isinstance(value, Scalar):\n                continue"),
        _BELIEVED,
    )),
    "norm_comparison": Plant("norms", "a norm that forgets a comparison of its variance", (
        (f"{_PASSES}/rowwise.py", "if self._rows > 1:", "if False:"),
        (f"{_PASSES}/rowwise.py", "            self.cases.append(node.ins[0])", "            len([node.ins[0]])"),
        _BELIEVED,
    )),
    "causal_negative": Plant("attention", "causal attention with a negative scale", (
        (f"{_PASSES}/attention.py", "if not (0.0 < self.scale < math.inf and self._masks.is_exact(self.mask)):",
         "if not self._masks.is_exact(self.mask):"), _BELIEVED,
    )),
    "nan_mask": Plant("attention", "a NaN mask counts as hidden", (
        (f"{_PASSES}/masks.py", "if len(numbers) > 1 or not max(numbers) <= HIDDEN:",
         "if len(numbers) > 1 or max(numbers) > HIDDEN:"), _BELIEVED,
    )),
    # constants that compare equal
    "constants": Plant("constants", "constants that compare equal, everywhere", (
        ("core/base/exact_keys.py", "        return kind, repr(value)", "        return value"),
        ("core/base/exact_keys.py", "    if isinstance(value, (float, complex, numpy.inexact)) and is_other_nan(value):"
         "\n        return kind, _bits(value)\n", ""),
    )),
    "constants_scalar": Plant("constants", "the same, in numbers beside arrays", (
        ("core/trace/record.py", "ExactComplex(", "complex("),
    )),
    "constants_template": Plant("constants", "the same, in library functions that are recorded once", (
        ("core/trace/replayable.py", "x if x and x == x else exact_key(x)", "x"),
    )),
    "constants_aten": Plant("constants", "the same, in calls of torch's operators", (
        ("interop/aten/operation.py", '"aten", _call, numbers=True', '"aten", _call, numbers=False'),
    )),
    "constants_static": Plant("constants", "the same, in static arguments of jit", (
        ("core/transform/jit_options.py", "own = exact_key(value)", "own = value"),
    )),
    "constants_caller": Plant("constants", "the same, in functions that call torch's operators", (
        ("interop/aten/overloads.py", "@remembered(4096, key=exact_key)\ndef caller", "@remembered(4096)\ndef caller"),
    )),
    "constants_lift": Plant("constants", "the same, in what lifted functions close over", (
        ("interop/calls.py", "    return exact_key(value)\n", "    return value\n"),
    )),
    # selection and gradients
    "vmap_cond": Plant("control", "a branch that is not taken makes NaN under vmap", ((
        "core/transform/control/branches.py",
        "if any(floating(sub.graph.out_avals)) and not has_effects(sub.graph):",
        "if False and not has_effects(sub.graph):",
    ),)),
    "relu_infinite": Plant("elementwise", "relu times an infinite cotangent", (
        ("core/ops/activations.py", "return torch.where(x > 0, g, 0)",
         "return torch.ops.aten.leaky_relu_backward(g, x, 0.0, False)"),
    )),
    "integer_primals": Plant("derivatives", "integer primals", (
        ("core/transform/vjp.py", ", integers=True", ""), ("core/transform/jvp.py", ", integers=True", ""),
    )),
    "linear_solve": Plant("derivatives", "`custom_linear_solve` that closes over values", ((
        "jax/lax/_variants.py",
        "    if thread.trace.tape is None and thread.trace.capture is None:  # it may look at values", "    if True:",
    ),)),
    # a derivative that is lost
    "asarray": Plant("derivatives", "a derivative lost by `np.asarray`", (
        ("core/trace/force.py", "if followers and x.aval.floating and followed(x):", "if False:"),
    )),
    "no_grad_write": Plant("writes", "writes under `no_grad` drop gradients", (
        ("interop/aten/tracer.py", "chain, kept = [], not torch.is_grad_enabled()", "chain, kept = [], False"),
        ("interop/aten/tracer.py", _KEPT, "kept = False"),
    )),
    "no_grad_detach": Plant("writes", "writes to detached views drop gradients", (
        ("interop/aten/tracer.py", _KEPT, "kept = kept or view.detached"),
    )),
    "no_grad_values": Plant("writes", "writes under `no_grad`, where values are looked at", ((
        "interop/aten/trace_effects.py",
        "    followed = torch.is_grad_enabled() and not any(id(x) in observing.bases for x in targets)",
        "    followed = True",
    ),)),
    # sums one by one
    "sums_leading": _native("long", "sums over leading axes, one by one", (
        f"{_NATIVE}/tuned.py", "SUMMED_ROWS = 16\n", "SUMMED_ROWS = 1 << 40\n",
    )),
    "sums_rows": _native(
        "long", "sums of rows, one by one",
        (f"{_NATIVE}/loop.h", "LONGEST = 1 << 8;", "LONGEST = int64_t(1) << 40;"),
        (f"{_NATIVE}/loop.h", "  if (count >= LANES) {\n    A lanes", "  if (count < 0) {\n    A lanes"),
    ),
    "sums_cumulative": _native("long", "cumulative sums, one by one", (
        f"{_NATIVE}/reductions.py", 'wide = "double" if own == "float" else own', "wide = own",
    )),
    "long_dots": Plant("long", "long dots, by torch's matmul", off="long_sums"),
    # Inductor's lowerings
    "tiling": _inductor("reductions", "memory written beyond an array", off="reduction_tiling"),
    "pow_number": _inductor("integers", "`pow(number, integers)`", (
        f"{_INDUCTOR}/accuracy.py",
        "return {**table, torch.ops.aten.pow.Scalar: _power_of_number(own.get(torch.ops.aten.pow.Scalar))}",
        "return table",
    ), has=r"\*\* \(t"),
    "small_integers": _inductor(
        "integers", "small integers that do not wrap", (f"{_INDUCTOR}/exactness.py", _WIDENED, 'name = ""'),
        has=r"'u?int8'",
    ),
    "small_extremes": _inductor("integers", "minima, maxima and places of integers of 8 bits", (
        f"{_INDUCTOR}/exactness.py", _WIDENED, 'name = name_of(node) if name_of(node) not in _EXTREMES else ""',
    ), has=r"(?s)'u?int8'.*m\.(max|min|argmin)\("),
    "short_number": _inductor("mixed", "a number beside 16 bits that is not rounded", (
        f"{_INDUCTOR}/exactness.py", "return float(torch.tensor(x, dtype=dtype)) if isinstance(x, float) else x",
        "return x",
    ), has="fmod|remainder|clip|where"),
    "short_rounding": _inductor("mixed", "a rounding to 16 bits that is left out", (
        f"{_INDUCTOR}/exactness.py", '    node.meta["low_precision_pointwise_barrier"] = True\n', "",
    )),
    "single_precision": _inductor("mixed", "roundings to 16 bits within a function", (
        f"{_INDUCTOR}/exactness.py",
        "return {op: _single(op, f) for op, f in table.items()} if SHORT_FLOATS.on else dict(table)",
        "return dict(table)",
    ), has="erf|softplus"),
    "held": _inductor("reductions", "a value that is computed twice and compared", (
        f"{_INDUCTOR}/exactness.py", "    if not HELD_VALUES.on:\n        return", "    return",
    ), has=r"m\.(max|min)\(m\."),
    "variances": _inductor("reductions", "variances that lose their digits", (
        f"{_INDUCTOR}/accuracy.py",
        "    for op in _VARIANCES:\n        table[op] = _in_double_precision(op, own.get(op))\n", "",
    ), has=r"m\.var\("),
    "places": _inductor("reductions", "places of extremes in an order of its own", off="extreme_places", has="argmin"),
    "ceil_pooling": _inductor(
        "convolutions", "average pooling in ceil mode", off="ceil_mode_pooling", has="avg_pool2d.*ceil_mode=True"
    ),
    "nearest": _inductor(
        "convolutions", "nearest interpolation by scales", off="nearest_by_scales", has="interpolate.*nearest"
    ),
    "sinh": _inductor("elementwise", "sinh near the largest number", (
        f"{_INDUCTOR}/accuracy.py",
        "    torch.ops.aten.sinh.default: _sinh,\n    torch.ops.aten.cosh.default: _cosh,\n", "",
    ), has="sinh|cosh"),
    "small_arguments": _inductor("elementwise", "expm1 and atanh of small numbers", (
        f"{_INDUCTOR}/accuracy.py",
        "    torch.ops.aten.expm1.default: _expm1,\n    torch.ops.aten.atanh.default: _atanh,\n", "",
    ), has="expm1|atanh"),
    "erf": _inductor("elementwise", "erf of small numbers", (
        f"{_INDUCTOR}/accuracy.py", "    torch.ops.aten.erf.default: _erf,\n", "",
    ), has="erf.*1e4"),
    "remainder": _inductor("elementwise", "remainders by infinities", (
        f"{_INDUCTOR}/accuracy.py",
        "    torch.ops.aten.remainder.Tensor: _remainder,\n    torch.ops.aten.remainder.Scalar: _remainder,\n", "",
    ), has="remainder"),
    "floor_divide": _inductor(
        "elementwise", "quotients, rounded down, of infinities",
        (f"{_INDUCTOR}/accuracy.py",
         "    torch.ops.aten.floor_divide.default: _floor_divide,\n"
         "    torch.ops.aten.floor_divide.Scalar: _floor_divide,\n", ""),
        (f"{_INDUCTOR}/accuracy.py", "        table[op] = _with_mode(own.get(op))\n", "        pass\n"),
        has="floor_divide",
    ),
    # torch's functions
    "as_strided": Plant("writes", "views by `as_strided`", (
        ("interop/aten/memory.py", "    x, *rest = args\n    count = 1 if", "    return None\n    x, *rest = args\n"
         "    count = 1 if"),
    )),
    "complex_products": Plant("torch_functions", "complex numbers in products", ((
        "interop/aten/translate.py",
        "    return cast(x, a.dtype) if isinstance(x, Array) else full_like_scalar(x, a.dtype, (), a.device)",
        "    return cast(x, a.dtype)",
    ),)),
    # copies, and functions of NumPy
    "copies": Plant("copies", "a copy that dies with its donated original", (
        ("core/ops/create.py", "    found = another(x)\n    return identity(x) if found is None else found",
         "    return x"),
    )),
    "variance": Plant("hard_inputs", "variances that rounding makes negative", ((
        "core/ops/variance.py",
        "    return divide(reduce.sum(squared_magnitude(deviation), axes, keepdims=keepdims), count)",
        "    squares = divide(reduce.sum(squared_magnitude(x), axes, keepdims=keepdims), count)\n"
        "    return subtract(squares, squared_magnitude(reduce.mean(x, axes, keepdims)))",
    ),)),
    "nan_sorted": Plant("hard_inputs", "NaN in sorted data", (
        ("numpy/quantiles.py", "        out = ops.where(ops.isnan(last), math.nan, out)\n", "        pass\n"),
    )),
    "nan_matrix": Plant("hard_inputs", "NaN in one matrix of a batch", (
        ("numpy/linalg/arguments.py", "results = function(ops.where(known, x, 0.0))", "results = function(x)"),
    )),
    "short_count": Plant("short", "counts of float16 that overflow", (
        ("core/ops/reduce.py", "if is_short(x.aval.dtype):  # its sums overflow", "if False:  # its sums overflow"),
    )),
    "stale_slice": Plant("places", "a slice that keeps the bounds of the first call", (
        ("core/trace/replayable.py", "        elif kind is slice:\n            filled.append(",
         "        elif sizes is not None and kind is slice:\n            filled.append("),
    )),
    "repeated_places": Plant("indexing", "repeated places", (
        ("core/ops/indexed_updates.py", "if unique_indices or most == 1:", "if True:"),
    )),
}  # fmt: skip


def planted(plant: Plant, folder: Path) -> None:
    """Copy gtrace to a folder, with a fault.

    Raises:
        LookupError: gtrace has no longer what the plant takes out.
    """
    shutil.copytree(PACKAGE, folder / "gtrace", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in plant.edits:
        path = folder / "gtrace" / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if old not in text:
            raise LookupError(f"{name} does not have {old!r}")
        path.write_text(text.replace(old, new), encoding="utf-8")


def find(name: str, first: int, count: int) -> str:
    """Draw programs until one differs; return what was found. gtrace is the copy with the fault."""
    from fuzz.__main__ import drawn
    from fuzz.check import NoProgramError, Reference, check, check_together

    plant = PLANTS[name]

    def differs(reference: Reference) -> bool:
        try:
            return check(reference.program, plant.forms, reference=reference) is not None
        except NoProgramError:
            return False

    group: list[tuple[int, Reference]] = []
    for drawn_so_far in range(1, count + 1):
        program, reference = drawn(plant.generator, first + drawn_so_far - 1)
        if plant.forms != ("inductor",):
            print(f"at {drawn_so_far}", flush=True)
            if differs(reference):
                return f"found at {drawn_so_far}"
            continue
        if re.search(plant.has, program.text()):
            group.append((drawn_so_far, reference))
        if len(group) == TOGETHER or (group and drawn_so_far == count):
            print(f"at {group[-1][0]}", flush=True)
            bad, raised = check_together([one for _, one in group], "inductor")
            places = [k for k in range(len(group)) if differs(group[k][1])] if raised else bad
            if places:
                return f"found at {group[places[0]][0]}"
            group = []
    return f"not in {count}"


def search(name: str, first: int, count: int) -> str:
    """Plant a fault and search for it, in a process of its own; return what came of it."""
    plant = PLANTS[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        planted(plant, folder)
        path = os.pathsep.join([made, str(TESTS)])
        own = {
            "PYTHONPATH": path,
            "GT_CACHE_DIR": str(folder / "cache"),
            "GT_DISABLE": plant.off,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--within", name, "--seed", str(first), "--programs", str(count)]
        done = subprocess.run(command, env=os.environ | own, cwd=made, capture_output=True, text=True, timeout=LIMIT)
    said = [line for line in done.stdout.splitlines() if line.startswith(("at ", "found at ", "not in "))]
    if done.returncode < 0:  # it wrote to memory that is not its own
        return f"the process ended with {done.returncode} {said[-1] if said else ''}"
    if done.returncode or not said:
        raise RuntimeError(done.stderr)
    return said[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz/plants.py", description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *PLANTS], help="which ones; else all")
    parser.add_argument("--seed", type=int, default=600_000, help="the first seed")
    parser.add_argument("--programs", type=int, default=2000, help="so many of each generator, at most")
    parser.add_argument("--within", choices=sorted(PLANTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.within:
        print(find(options.within, options.seed, options.programs), flush=True)
        return 0
    missed = 0
    for name in options.names or PLANTS:
        came = search(name, options.seed, options.programs)
        missed += came.startswith("not in")
        print(f"{name:20}{PLANTS[name].generator:16}{came}", flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    sys.exit(main())
