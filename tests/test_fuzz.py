"""A slice of what `make fuzz` runs, and that differences are found and reduced."""

from __future__ import annotations

import attrs
import pytest
from fuzz import check as checks
from fuzz import networks
from fuzz.__main__ import drawn
from fuzz.check import COMPILED, FORMS, check, check_together
from fuzz.generators import GENERATORS
from fuzz.near_misses import smallest
from fuzz.plants import PACKAGE, PLANTS
from fuzz.programs import Input, Program

import gtrace as gt
from gtrace.core.base.mechanisms import MECHANISMS
from gtrace.core.passes import driver
from gtrace.core.passes.norm_operators import LayerNorm
from gtrace.core.trace import replayable

PROGRAMS = 12
BY_INDUCTOR = ("mixed", "integers", "convolutions")
"""Inductor takes seconds for each: the generators where it was wrong."""


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_every_form_gives_what_torch_gives(generator):
    for seed in range(1 if generator == "long" else PROGRAMS):
        program, reference = drawn(generator, seed)
        left_out = COMPILED if seed else () if generator in BY_INDUCTOR else ("inductor",)
        forms = [form for form in FORMS if form not in left_out]
        assert check(program, forms, reference=reference) is None, f"seed {seed}\n{program.text()}"


def test_a_difference_is_found_and_reduced(monkeypatch):
    """A tanh that is a little off, in one program among those that a generator draws."""
    monkeypatch.setattr(checks.GTRACE, "tanh", lambda x: gt.tanh(x) * (1 + 1e-6))
    for seed in range(200):
        program = attrs.evolve(drawn("elementwise", seed)[0], way="value")
        if "m.tanh" in program.text() and check(program, ["float64"]):
            break
    else:
        raise AssertionError("it is not found")
    program = smallest(program, lambda candidate: "tanh" in candidate.text() and bool(found(candidate)))
    assert len(program.lines) <= 2 and "m.tanh" in program.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generator", "within"), [("short", 40), ("layers", 20), ("training", 20), ("sizes", 20), ("places", 40)]
)
def test_a_fault_is_found_within_so_many_programs(monkeypatch, generator, within):
    """Each is of a kind that users met, and that programs of few float32 numbers and a single call do not show."""
    _plant(monkeypatch, generator)
    assert any(found(drawn(generator, seed)[0], "interpreted") for seed in range(within))


def _plant(monkeypatch, generator):
    if generator == "short":  # a count above 65,504 is infinite in float16

        def mean(x, axis, keepdims=False):
            total = gt.sum(x.astype("float32"), axis=axis, keepdims=keepdims)
            return (total / gt.array(x.size // total.size).astype(x.dtype)).astype(x.dtype)

        monkeypatch.setattr(checks.GTRACE, "mean", mean)
    elif generator == "layers":  # running variances over n, not over n - 1

        def layers(text, how, x, *params):
            out, *kept = networks.gtrace_layers(text, how, x, *params)
            kept[1::2] = [(v - 0.9) * (1 - x.shape[1] / x.size) + 0.9 for v in kept[1::2]]
            return [out, *kept]

        monkeypatch.setattr(checks.GTRACE, "layers", layers)
    elif generator == "training":  # decay that is left out
        made = gt.optim.adamw
        monkeypatch.setattr(gt.optim, "adamw", lambda rate, **kept: made(rate, **kept | {"weight_decay": 0.0}))
    elif generator == "sizes":  # a mean by the number of rows of the first call
        rows = []

        def mean(x, axis, keepdims=False):
            rows.append(x.shape[0])
            return gt.sum(x, axis=axis, keepdims=keepdims) / rows[0]

        monkeypatch.setattr(checks.GTRACE, "mean", mean)
    else:  # a slice that keeps the bounds of the first call
        honest = replayable._filled

        def filled(values, arrays, sizes=None):
            own = [x if type(x) is slice else honest([x], arrays, sizes)[0] for x in values]
            return own if type(values) is list else tuple(own)

        monkeypatch.setattr(replayable, "_filled", filled)


def found(program, form="float64"):
    try:
        return check(program, [form])
    except (checks.NoProgramError, SyntaxError, NameError):
        return None


def test_a_difference_is_found_among_programs_that_run_as_one(monkeypatch):
    monkeypatch.setattr(checks.GTRACE, "sinh", lambda x: gt.sinh(x) * (1 + 1e-3))
    lines = [("v0 = x * 2.0",), ("v0 = m.sinh(x)", "v1 = v0 + 1.0"), ("v0 = m.tanh(x)",)]
    inputs = (Input("x", (5,)),)
    references = [checks.Reference(Program("", inputs, given, (f"v{len(given) - 1}",))) for given in lines]
    assert check_together(references, "interpreted") == ([1], "")


def test_a_wrong_form_is_found_though_results_are_those_of_the_recorded_program(monkeypatch):
    honest = LayerNorm.forward

    def forward(self, make, given, *others):
        return honest(self, make, attrs.evolve(given, eps=given.eps + 100.0), *others)

    monkeypatch.setattr(LayerNorm, "forward", forward)
    monkeypatch.setattr(driver, "computes", lambda *args, **kwargs: True)
    lines = "v0 = x - m.mean(x, -1, True)", "v1 = v0 / m.sqrt(m.mean(v0 * v0, -1, True) + 3e-5)"
    what = check(Program("", (Input("x", (3, 16)),), lines, ("v1",)), ["interpreted"])
    assert what[1].startswith("AuditWarning")


@pytest.mark.parametrize(
    ("part", "outputs", "is_found"),
    [(2.0**-23, ("v2",), False), (2.0**-23, ("v2", "(v2 == 0.0)"), False), (2.0**-12, ("v2",), True)],
)
def test_a_rounding_that_torch_was_spared_is_no_difference(monkeypatch, part, outputs, is_found):
    """Equal elements minus their mean: 0 by torch, and a rounding of the mean where it is computed otherwise."""
    lines = "v0 = x * 500.0", "v1 = v0 * v0 * 0.001", "v2 = v1 - m.sum(v1, -1, True) / 7"
    program = Program("", (Input("x", (1, 7), "rows"),), lines, outputs)
    monkeypatch.setattr(checks.GTRACE, "sum", lambda x, axis, kept: gt.sum(x, axis=axis, keepdims=kept) * (1 + part))
    assert not checks.Reference(program).own[0].any()
    assert (check(program, ["interpreted"]) is not None) == is_found


@pytest.mark.parametrize("part", [0.0, 2.0**-12])
def test_a_rounding_that_torch_is_spared_in_most_runs_is_no_difference(monkeypatch, part):
    """A gradient minus its mean, times 949: 0 by torch, as seven equal numbers have the mean that they should have."""
    lines = ("v0 = m.sum(x, -1, True) / 7", "v1 = x - v0", "v2 = m.mean(v1 * v1, -1, True)",
             "v3 = v1 / m.sqrt(v2 + 1e-5)", "v4 = m.tanh((v3 * 3 - -0.75) * -1.0)")  # fmt: skip
    program = Program("", (Input("x", (1, 7), "rows"),), lines, ("v4",), "grad", weighted=False)
    assert not checks.Reference(program).own[0].any()
    total = checks.GTRACE.sum
    monkeypatch.setattr(checks.GTRACE, "sum", lambda *args: total(*args) * (1 + part))
    assert (check(program, ["interpreted"]) is not None) == bool(part)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_rounding_that_is_left_out_is_found(monkeypatch, name):
    """One that is far within the bound of programs of 16 bits."""
    lines = f"v0 = m.astype(x, '{name}')", "v1 = m.sin(v0)", "v2 = m.astype(v1, 'float32')"
    program = Program("", (Input("x", (3, 17)),), lines, ("v2",))
    assert check(program, ["interpreted"]) is None
    monkeypatch.setattr(checks.GTRACE, "sin", lambda x: gt.sin(x.astype("float32")))
    assert str(check(program, ["interpreted"])).endswith("(rounded otherwise)')")


def test_plants_take_out_what_gtrace_has():
    for name, plant in PLANTS.items():
        for file, old, new in plant.edits:
            assert old in (PACKAGE / file).read_text(encoding="utf-8") and old != new, f"{name}: {file}"
        assert plant.generator in GENERATORS, name
        assert set(filter(None, plant.off.split(","))) <= set(MECHANISMS), name
