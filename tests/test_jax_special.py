"""Special points, results of integers, and functions of hard arrays beside those of JAX (tests/data/jax_special.json).

The points where gtrace differs are in docs/jax-differences.md, and tested here by what they give.
"""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
import re
import sys

import pytest

import gtrace as gt

DATA = pathlib.Path(__file__).parent / "data"
TABLE = json.loads((DATA / "jax_special.json").read_text())


def maker(monkeypatch):
    """Return the module that made the table, with gtrace.jax in the place of JAX."""
    import gtrace.jax

    spec = importlib.util.spec_from_file_location("make_jax_special", DATA / "make_jax_special.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "jax", gtrace.jax)
    spec.loader.exec_module(module)
    return module


def number(word):
    try:
        return complex(word)
    except ValueError:
        return None


def same(ours, theirs, tolerance=1e-4):
    words, others = ours.split(), theirs.split()
    if len(words) != len(others):
        return False
    for a, b in zip(words, others, strict=True):
        x, y = number(a.rstrip(";")), number(b.rstrip(";"))
        if x is None or y is None:
            if a != b:
                return False
        elif not (close(x.real, y.real, y, tolerance) and close(x.imag, y.imag, y, tolerance)):
            return False
    return True


def close(a, b, size, tolerance):
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * max(1.0, abs(size))


def zeros(text):
    """Return the zeros in a text, with their signs."""
    return [word for word in text.replace(";", "").split() if word in ("0.0", "-0.0")]


def test_values_and_derivatives_at_special_points_are_those_of_jax(monkeypatch):
    made = maker(monkeypatch)
    wrong = []
    with gt.config(x64=False, jax_results=True):
        for entry in TABLE["points"]:
            for at, theirs in entry["cases"]:
                ours = made.points(made.jax.numpy, entry["f"], at)
                if not same(ours, theirs):
                    wrong.append((entry["f"], at, theirs, ours))
    assert not wrong


@pytest.mark.parametrize("bits", ["32", "64"])
def test_integers_compute_as_those_of_jax(monkeypatch, bits):
    made = maker(monkeypatch)
    jax, wrong = made.jax, []
    with gt.config(x64=bits == "64", jax_results=True):
        names = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, **made.integers(jax.numpy)}
        for expression, theirs in TABLE[bits].items():
            ours = made.text(eval(expression, names))
            if not same(ours, theirs):
                wrong.append((expression, theirs, ours))
    assert not wrong


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.one_hot. expected integers:DeprecationWarning")
def test_functions_of_hard_arrays_compute_as_those_of_jax(monkeypatch):
    made = maker(monkeypatch)
    for name in ("cluster.vq", "fft", "linalg", "signal", "special", "stats"):
        importlib.import_module(f"gtrace.jax.scipy.{name}")
    wrong = []
    with gt.config(x64=False, jax_results=True, auto_compile=False):
        names = made.hard(made.jax.numpy)
        for expression, theirs in TABLE["hard"].items():
            ours = made.text(eval(expression, names))
            rounded = re.search("linalg|fft|conv|poly|cov|corr", expression)  # zeros may be roundings
            if not same(ours, theirs, 1e-5) or not (rounded or zeros(ours) == zeros(theirs)):
                wrong.append((expression, theirs, ours))
    assert not wrong


def test_kinks_where_gtrace_has_another_derivative():
    import gtrace.jax as jax

    jnp = jax.numpy
    zero = jnp.zeros(())
    assert jax.grad(jnp.abs)(zero) == 0 and jax.grad(lambda x: jnp.hypot(x, 0.0))(zero) == 0  # JAX: 1 and 0.5
    assert jax.grad(lambda x: jnp.copysign(x, 1.0))(zero) == 0  # JAX: 1
    assert jnp.isinf(jax.grad(jax.scipy.special.ndtri)(zero))  # JAX: 0


def test_errors_have_the_classes_that_programs_for_jax_catch():
    import gtrace.jax as jax

    jnp, lax, x = jax.numpy, jax.lax, jax.numpy.ones((2, 3))
    with gt.config(x64=False, jax_results=True):
        for kind, call in (
            (OverflowError, lambda: jnp.array(2**40)),
            (OverflowError, lambda: jnp.uint8(300)),
            (OverflowError, lambda: x.astype(int) + 2**40),
            (NameError, lambda: lax.psum(x, "rows")),
            (NameError, lambda: jax.vmap(lambda v: lax.axis_index("j"), axis_name="i")(x)),
            (IndexError, lambda: x[jnp.ones(5, bool)]),
            (TypeError, lambda: int(x)),
            (ValueError, lambda: int(x)),
            (ValueError, lambda: jax.random.normal(jax.random.PRNGKey(0), (2,), int)),
            (AttributeError, lambda: jax.config.update("jax_unknown", True)),
            (RuntimeError, lambda: jax.devices("abacus")),
            (jax.errors.TracerIntegerConversionError, lambda: jax.jit(lambda n: jnp.eye(n))(3)),
        ):
            with pytest.raises(kind):
                call()


def test_the_largest_of_complex_numbers_is_by_real_and_then_imaginary_parts():
    import gtrace.jax as jax

    jnp = jax.numpy
    z = jnp.array([1 + 2j, 1 + 3j, -1j])
    assert jnp.max(z) == 1 + 3j and jnp.min(z) == -1j and jax.jit(jnp.max)(z) == 1 + 3j
    assert jnp.max(z.reshape(3, 1), axis=0, keepdims=True).tolist() == [[1 + 3j]]
