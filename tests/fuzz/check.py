"""Run a program by torch and by gtrace in each form, and compare.

A result of gtrace may be a few times as far from torch's in float64 as torch's own result in the program's dtypes is,
and a few roundings of its largest value more. So rounding raises no alarm, and a lost term does. One rounding may be a
lucky one: torch's own error is the largest of those with the inputs, and with inputs beside them and roundings by
chance. In float64, a result that has no digit left in float32 is left out: steps that amplify roundings do not tell how
many digits are due. So is an integer or boolean that a rounding decides.
"""

from __future__ import annotations

import collections
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._inductor import metrics

import gtrace as gt
from fuzz.programs import LOWER, Program
from fuzz.roundings import ByChance
from fuzz.vocabulary import GTRACE, TORCH
from gtrace.core.base.events import CompileFinished, Event, Loaded, bus
from gtrace.core.runtime.engine import engine

FORMS = ("float64", "interpreted", "jitted", "hot", "inductor")
"""In float64 and interpreted; in the program's dtypes interpreted, jitted, undecorated until compiled, by Inductor.

A jitted program goes to the store, from where a second process loads it; it is first, as what was compiled before is
not stored again."""

COMPILED = ("jitted", "hot", "inductor")
COUNTS = collections.Counter[str]()
"""Of the runs in compiled forms: how many were compiled natively, by Inductor, or loaded from the store."""

ROUNDINGS = 64
TIMES = 16
BESIDE = 2
"""Inputs beside the program's, with roundings by chance, for which torch's own error is found too, if need be."""

CHANCES = 16
"""Runs with the program's inputs and roundings by chance, if need be. A few may all be lucky: a sum of seven equal
numbers, divided by seven, is the number again in two of three."""

ROUNDINGS_OF_A_RESULT = 2
"""That a program of strict bounds may have beside its part of torch's own error."""

LEAST_ROUNDED, MOST_ROUNDED = 4, 0.5
"""Elements of 16 bits that differ by a rounding: so many at least, and this part of all, are no chance."""


class NoProgramError(Exception):
    """torch refuses the program, or its results say nothing."""


def _floats(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if v.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]


def _total(m: Any, values: Sequence[Any], dtype: str, weighted: bool) -> Any:
    total = None
    for k, v in enumerate(values):
        v = m.astype(v, dtype)
        term = m.sum(v * m.ramp(v) if weighted and v.shape else v) * (1.0 + 0.5 * k)
        total = term if total is None else total + term
    return total


def _by_torch(program: Program, wide: bool, beside: int = 0) -> list[torch.Tensor]:
    """Return torch's results; `beside` is the number of a run with inputs beside the program's, or 0."""
    function = program.function()
    tensors: list[torch.Tensor] = [x.tensor(wide) for x in program.inputs]
    if beside:
        tensors = [x * (1 + beside * 2.0**-12) if x.dtype.is_floating_point else x for x in tensors]
    exact, kept = "float64" if wide else "float32", []
    for call in range(program.calls):
        if program.fresh and call:
            tensors = [x.tensor(wide, call) for x in program.inputs]
        places = [k for k, x in enumerate(program.inputs) if x.is_float] if program.way != "value" else []
        tensors = [x.detach().requires_grad_(k in places) for k, x in enumerate(tensors)]
        out = list(function(TORCH, *tensors))
        if places:
            wanted = [tensors[k] for k in places]
            for _ in range(2 if program.way == "second" else 1):
                total = _total(TORCH, _floats(out)[:4], exact, program.weighted)
                if total is None or not total.requires_grad:
                    raise NoProgramError("nothing to differentiate")
                found = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
                grads = [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True)]
                out = [*grads, *out]
        tensors = [*out[: program.carry], *tensors[program.carry :]]
        kept = [*(kept if program.fresh else []), *out]
    return [x.detach() for x in kept]


def _step(program: Program, wide: bool) -> Callable[..., list[Any]]:
    """Return a call of a program by gtrace, from its inputs to its results and what they are differentiated to."""
    function = program.function()
    exact = "float64" if wide else "float32"
    places = tuple(k for k, x in enumerate(program.inputs) if x.is_float)

    def values(*arrays: Any) -> list[Any]:
        return list(function(GTRACE, *arrays))

    def differentiated(f: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            out = f(*arrays)
            return _total(GTRACE, _floats(out)[:4], exact, program.weighted), out

        def run(*arrays: Any) -> list[Any]:
            grads, out = gt.grad(loss, argnums=places, has_aux=True)(*arrays)
            return [*grads, *out]

        return run

    step: Callable[..., list[Any]] = values
    for _ in range({"value": 0, "grad": 1, "second": 2}[program.way]):
        step = differentiated(step)
    return step


def _by_gtrace(
    programs: Sequence[Program], wide: bool, wrap: Callable[[Any], Any] = lambda f: f, times: int = 1
) -> list[list[Any]]:
    """Return the results of programs that are computed as one."""
    steps = [_step(program, wide) for program in programs]

    def all_steps(*groups: Any) -> list[list[Any]]:
        return [step(*arrays) for step, arrays in zip(steps, groups, strict=True)]

    call = wrap(all_steps)
    out: list[list[Any]] = [[] for _ in programs]
    for _ in range(times):
        arrays = [[gt.from_torch(x.tensor(wide)) for x in program.inputs] for program in programs]
        for k in range(max(program.calls for program in programs)):
            found = gt.eval(call(*arrays))
            for j, program in enumerate(programs):
                if k < program.calls:
                    out[j] = [*(out[j] if program.fresh and k else []), *found[j]]
                    arrays[j] = [*found[j][: program.carry], *arrays[j][program.carry :]]
                if program.fresh and k + 1 < program.calls:
                    arrays[j] = [gt.from_torch(x.tensor(wide, k + 1)) for x in program.inputs]
    return out


def run_form(programs: Sequence[Program], form: str, stored: bool = False) -> list[list[torch.Tensor]]:
    """Return the results of a form of programs. They are one program in that form.

    Args:
        stored: whether jitted programs go to the store, and come from there.
    """
    jit = lambda f: gt.jit(f, wait=True)  # noqa: E731
    settings: dict[str, Any] = {"auto_compile": False, "background": False}
    if form in COMPILED:
        settings |= {"auto_compile": True, "native": form != "inductor", "background": stored and form != "hot"}
        settings["jit_wait"] = math.inf
        _forget()
    if form == "hot":
        settings |= {"hot_threshold": 2, "min_seq": 1}
    events: list[Event] = []
    kernels = metrics.ir_nodes_pre_fusion
    unsubscribe = bus.subscribe(events.append, CompileFinished, Loaded)
    try:
        with warnings.catch_warnings(), gt.config(**settings):
            warnings.simplefilter("ignore", RuntimeWarning)
            warnings.simplefilter("error", gt.CompileWarning)
            warnings.simplefilter("error", gt.AuditWarning)  # the form is wrong, and its results are not
            if form == "float64":
                found = _by_gtrace([program.wide() for program in programs], True)
            elif form == "hot":
                found = _by_gtrace(programs, False, times=4)
            elif form == "interpreted":
                found = _by_gtrace(programs, False)
            else:
                found = _by_gtrace(programs, False, jit)
    finally:
        unsubscribe()
    if form in COMPILED:
        ways = {"loaded" for event in events if isinstance(event, Loaded)}
        if len(events) > sum(isinstance(event, Loaded) for event in events):
            ways.add("inductor" if metrics.ir_nodes_pre_fusion > kernels else "native")
        COUNTS.update([f"{form}, {way}" for way in ways or {"interpreted"}] * len(programs))
    return [[x.to_torch() for x in out] for out in found]


def _forget() -> None:
    """Forget programs; else one that another form compiled would run."""
    for known in (engine.recordings, engine.forms, engine.programs):
        known.clear()


def takes_inductor(program: Program) -> bool:
    """Whether Inductor compiles some of a program, which the C++ compiler alone does not."""
    _forget()
    run_form([program], "interpreted")
    return any(not made.natively for made in engine.programs.values())


def traceable(program: Program) -> bool:
    """Whether a program is traced without values of its inputs, which some programs read."""
    arrays = [gt.from_torch(x.tensor(False)) for x in program.inputs]
    try:
        gt.eval_shape(_step(program, False), *arrays)
    except gt.ConcretizationError:
        return False
    except Exception:  # noqa: BLE001 - which the compiled forms report
        return True
    return True


class Reference:
    """torch's results of a program, in float64 and in the program's dtypes."""

    def __init__(self, program: Program) -> None:
        wide = program.wide()
        try:
            self.exact, self.own = _by_torch(wide, True), _by_torch(program, False)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise NoProgramError(str(error)) from error
        if program.way != "value" and any(x.isnan().any() for x in _floats(self.exact)):
            raise NoProgramError("derivatives at NaN are conventions")
        self.program = program
        self.errors = list(map(_error, self.exact, self.own))
        given = [x.tensor(True) for x in program.inputs if x.is_float]
        # values in between may be larger than the results, and as large as this
        self.between = max([1.0, *[float(x.abs().nan_to_num(0.0, 1.0).max()) for x in given if x.numel()]])
        lower = [name for name in LOWER if name in program.text()]
        self.unit = 2.0**-7 if lower else max([_unit(x) for x in self.own], default=0.0)
        self.rounds = bool(lower) and program.way == "value"

    @functools.cached_property
    def errors_beside(self) -> list[float]:
        """The largest of torch's own errors with the inputs and with inputs beside them.

        They are infinite if roundings decide a comparison, as whether a variance is 0.
        """
        found = [self.errors]
        with ByChance(0) as own:
            _by_torch(self.program, False)
        exact = [self.exact, *[_by_torch(self.program.wide(), True, k) for k in range(1, BESIDE + 1)]]
        for seed in range(1, CHANCES + BESIDE + 1):
            beside = max(seed - CHANCES, 0)
            with ByChance(seed) as by_chance:
                found.append(list(map(_error, exact[beside], _by_torch(self.program, False, beside))))
            if not all(map(torch.equal, own.decided, by_chance.decided)):
                return [math.inf] * len(self.errors)
        return list(map(max, zip(*found, strict=True)))

    def difference(self, form: str, found: Sequence[torch.Tensor]) -> str | None:
        """Say where results differ from torch's; None if they do not."""
        # the larger bounds take longer to find, and are seldom needed
        return self._beyond(self.errors, form, found) and self._beyond(self.errors_beside, form, found)

    def _beyond(self, errors: Sequence[float], form: str, found: Sequence[torch.Tensor]) -> str | None:
        for k, (got, exact, own) in enumerate(zip(found, self.exact, self.own, strict=True)):
            unit, error = self.unit, errors[k]
            if not exact.dtype.is_floating_point:
                # where torch's own results differ, a rounding decides
                if got.dtype is not own.dtype or got.shape != own.shape or not (error or torch.equal(got, own)):
                    return f"result {k}: expected {_first(own)}, got {_first(got)}"
                continue
            if form == "float64" and exact.dtype is torch.float64:  # integers and numbers give float32
                if unit and error * TIMES >= _largest(exact):
                    continue
                own, error, unit = exact, (error / unit if unit else 0.0) * 2.0**-52 + self.between * 2.0**-40, 2.0**-52
            elif not self.program.times:
                error += self.between * unit / 4
            if got.shape != exact.shape or got.dtype != own.dtype:
                expected, came = ((str(x.dtype), tuple(x.shape)) for x in (own, got))
                return f"result {k}: expected {expected}, got {came}"
            if self.program.times and form != "float64":
                said = _apart(got, exact, own, _unit(own), error, self.program.times, ROUNDINGS_OF_A_RESULT)
            else:
                said = _apart(got, exact, own, unit, error)
            if not said and self.rounds and form != "float64":
                said = _rounded_otherwise(got, own)
            if said:
                return f"result {k}: {said}"
        return None


def _unit(x: torch.Tensor) -> float:
    return float(torch.finfo(x.dtype).eps) if x.dtype.is_floating_point else 0.0


def _largest(x: torch.Tensor) -> float:
    return float(x.double().nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0


def _error(exact: torch.Tensor, own: torch.Tensor) -> float:
    a, b = (np.asarray(x.double()) for x in (exact, own))
    settled = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[settled] - b[settled]).max()) if settled.any() else 0.0


def _first(x: torch.Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}, {x.flatten()[:6].tolist()}"


def _apart(
    got: torch.Tensor, exact: torch.Tensor, own: torch.Tensor, unit: float, own_error: float, times: int = TIMES,
    roundings: int = ROUNDINGS,
) -> str | None:  # fmt: skip
    a, b, c = (np.asarray(x.double()) for x in (got, exact, own))
    # what rounds to an infinity is one, although torch may have lost so much on the way that its own result is finite
    beyond = np.isfinite(b) & (a == np.asarray(exact.to(own.dtype).double())) & np.isinf(a)
    settled = np.isfinite(b) & np.isfinite(c) & ~beyond
    broken = (np.isnan(b) & np.isnan(c)) | (np.isinf(b) & np.isinf(c) & (b == c))
    wrong = (broken & ~((a == b) | (np.isnan(a) & np.isnan(b)))) | (settled & ~np.isfinite(a))
    if wrong.any():
        return f"expected {b[wrong][:4].tolist()}, got {a[wrong][:4].tolist()}"
    if not settled.any():
        return None
    least = float(torch.finfo(own.dtype).smallest_normal) * (unit if own.dtype is torch.float16 else 1.0)
    bound = times * own_error + roundings * (unit * float(np.abs(b[settled]).max()) + least)
    error = np.abs(a[settled] - b[settled])
    if error.max() <= bound:
        return None
    place = int(error.argmax())
    values = f"expected {float(b[settled][place])!r}, got {float(a[settled][place])!r}"
    return f"{values} (bound {bound:.3g}, torch's own error {own_error:.3g})"


def _rounded_otherwise(got: torch.Tensor, own: torch.Tensor) -> str | None:
    """Say whether most of what was rounded to 16 bits on the way, an element at a time, has other bits than torch's."""
    a, b = got.double().flatten(), own.double().flatten()
    apart = (a != b) & ~(a.isnan() & b.isnan())
    if int(apart.sum()) < LEAST_ROUNDED or float(apart.double().mean()) <= MOST_ROUNDED:
        return None
    return f"expected {b[apart][:4].tolist()}, got {a[apart][:4].tolist()} (rounded otherwise)"


def check(
    program: Program, forms: Sequence[str] = FORMS, stored: bool = False, reference: Reference | None = None
) -> tuple[str, str] | None:
    """Return the first form whose results differ from torch's, and how; None if none does.

    Args:
        reference: of the program, if it was made already.

    Raises:
        NoProgramError: torch refuses the program, or gtrace does so rightly.
    """
    reference = Reference(program) if reference is None else reference
    for form in forms:
        try:
            said = reference.difference(form, run_form([program], form, stored)[0])
        except gt.ConcretizationError:  # a traced program has no values
            if form not in ("jitted", "inductor"):
                raise
            continue
        except Exception as error:
            # torch's loops and gathers take some shapes that gtrace refuses
            if isinstance(error, gt.ShapeError) or "The carry keeps its structure" in str(error):
                raise NoProgramError(str(error)) from error
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if said:
            return form, said
    return None


def check_together(references: Sequence[Reference], form: str, stored: bool = False) -> tuple[list[int], str]:
    """Return the places of programs whose results differ, run as one program, and why it raises, if it does.

    Inductor takes seconds for a program of a few operations, and little longer for one of a few hundred. What a single
    program raises is raised.
    """
    try:
        found = run_form([reference.program for reference in references], form, stored)
    except Exception as error:
        if len(references) == 1:
            raise
        return [], str(error) or type(error).__name__
    return [k for k, reference in enumerate(references) if reference.difference(form, found[k])], ""
