"""A slice of what `make fuzz` runs, and that a difference is found and reduced."""

from __future__ import annotations

import attrs
import pytest
from fuzz import check as checks
from fuzz.__main__ import drawn
from fuzz.check import COMPILED, FORMS, check
from fuzz.generators import GENERATORS
from fuzz.near_misses import smallest

import gtrace as gt

PROGRAMS = 12
BY_INDUCTOR = ("mixed", "integers", "convolutions")
"""Inductor takes seconds for each: the generators where it was wrong."""


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_every_form_gives_what_torch_gives(generator):
    for seed in range(1 if generator == "long" else PROGRAMS):
        program = drawn(generator, seed)
        left_out = COMPILED if seed else () if generator in BY_INDUCTOR else ("inductor",)
        forms = [form for form in FORMS if form not in left_out]
        assert check(program, forms) is None, f"seed {seed}\n{program.text()}"


def test_a_difference_is_found_and_reduced(monkeypatch):
    """A tanh that is a little off, in one program among those that a generator draws."""
    monkeypatch.setattr(checks.GTRACE, "tanh", lambda x: gt.tanh(x) * (1 + 1e-6))
    for seed in range(200):
        program = attrs.evolve(drawn("elementwise", seed), way="value")
        if "m.tanh" in program.text() and check(program, ["float64"]):
            break
    else:
        raise AssertionError("it is not found")
    program = smallest(program, lambda candidate: "tanh" in candidate.text() and bool(found(candidate)))
    assert len(program.lines) <= 2 and "m.tanh" in program.text()


def found(program):
    try:
        return check(program, ["float64"])
    except (checks.NoProgramError, SyntaxError, NameError):
        return None
