"""What libraries on JAX's names rely on beyond the names: who answers an operator, what has a value and when, rules."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import operator
import os
import subprocess
import sys

import numpy as np
import pytest

import gtrace as gt
from gtrace.errors import ArgumentError, ConcretizationError, LeakError
from gtrace.testing import assert_close


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


# -- operands of other classes

ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
COMPARISONS = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class Foreign:
    """Answers each operator with its name."""


for _name in [f"__{side}{name}__" for name in [*ARITHMETIC, "divmod"] for side in ("", "r")]:
    setattr(Foreign, _name, lambda self, other, name=_name: name)
for _name in COMPARISONS:
    setattr(Foreign, f"__{_name}__", lambda self, other, name=_name: name)


def called(name):
    return divmod if name == "divmod" else getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("name", [*ARITHMETIC, "divmod", *COMPARISONS])
def test_another_class_answers_operators_with_its_own(name, dtype):
    x, seen = gt.ones(2, dtype=dtype), []
    expected = COMPARISONS.get(name) or f"__r{name}__"
    assert called(name)(x, Foreign()) == expected
    gt.jit(lambda x: (seen.append(called(name)(x, Foreign())), x)[1], backend="eager")(x)
    gt.vmap(lambda x: (seen.append(called(name)(x, Foreign())), x)[1])(x)
    assert seen == [expected] * 2


@pytest.mark.parametrize("name", [*ARITHMETIC, "divmod", "lt", "ge"])
def test_data_that_is_no_array_stays_an_error(name):
    for other in ([1.0, 2.0], (1.0,), {}, set(), "text", None, object()):
        for pair in ((gt.ones(2), other), (other, gt.ones(2))):
            if (name, pair[0]) != ("mod", "text"):  # of a text, it is formatting
                with pytest.raises(TypeError):
                    called(name)(*pair)
    assert (gt.ones(2) == object()) is False and (gt.ones(2) != object()) is True


class Parameter:
    """Stands for an array, as parameters of flax do."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


def test_functions_take_objects_that_stand_for_arrays(jax):
    jnp = jax.numpy
    x = jnp.array([[0.5, 0.25], [0.125, 0.75]])
    calls = [
        jnp.sin, jnp.mean, jnp.diag, jnp.unique, jnp.cov, jax.lax.exp, jax.nn.softmax, jnp.linalg.inv, jnp.fft.fft,
        lambda p: jnp.dot(x, p), lambda p: jnp.where(x > 0.3, p, 0.0), lambda p: jnp.stack([x, p]), jnp.shape,
        lambda p: jax.jit(lambda y: jnp.matmul(p, y))(x), lambda p: jnp.asarray(p, "float16"),
    ]  # fmt: skip
    for call in calls:
        assert_close(call(Parameter(x)), call(x))
    assert_close(jax.grad(lambda y: jnp.sin(Parameter(y)).sum())(x), jnp.cos(x))


@pytest.mark.parametrize("name", [*ARITHMETIC, "divmod", *COMPARISONS])
def test_an_object_that_stands_for_an_array_is_an_operand(name, jax):
    dtype = "int32" if name in ("and", "or", "xor", "lshift", "rshift") else "float32"
    x, y = jax.numpy.array([[1, 2], [3, 4]], dtype), jax.numpy.array([[2, 1], [1, 2]], dtype)
    for wrap in (lambda f: f, functools.partial(gt.jit, backend="eager"), gt.vmap):
        for found, expected in (
            (wrap(lambda x, y: called(name)(x, Parameter(y)))(x, y), called(name)(x, y)),
            (wrap(lambda x, y: called(name)(Parameter(x), y))(x, y), called(name)(x, y)),
        ):
            if name != "matmul" or wrap is not gt.vmap:
                np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_arrays_are_made_of_objects_that_stand_for_them(jax):
    jnp, p = jax.numpy, Parameter(jax.numpy.arange(3.0))
    for made in (jnp.asarray(p), jnp.array(p), jax.jit(lambda v: jnp.asarray(Parameter(v)), backend="eager")(p.value)):
        assert made.tolist() == [0.0, 1.0, 2.0]
    assert jnp.array([p, p.value]).shape == (2, 3) and jnp.asarray([[p], [p]]).shape == (2, 1, 3)
    assert jax.grad(lambda v: (v @ Parameter(v)) + jnp.array([Parameter(v)]).sum())(p.value).tolist() == [1.0, 3.0, 5.0]


# -- what has a value while a function is traced

KEPT = {}


def scaled(jax, x):
    if "table" not in KEPT:
        with jax.ensure_compile_time_eval():
            KEPT["table"] = jax.numpy.cumsum(jax.numpy.arange(4.0))
            assert bool(KEPT["table"][-1] > 5)
    return x * KEPT["table"][-1]


TRACING = {
    "jit": lambda jax, f: jax.jit(f, backend="eager")(1.0),
    "scan": lambda jax, f: jax.lax.scan(lambda c, v: (c + f(v), None), 0.0, jax.numpy.ones(1))[0],
    "while": lambda jax, f: jax.lax.while_loop(lambda c: c < 1, lambda c: f(c + 1), 0.0),
    "cond": lambda jax, f: jax.lax.cond(jax.numpy.array(True), f, lambda x: x, 1.0),
    "grad": lambda jax, f: jax.grad(f)(1.0),
    "grad of jit": lambda jax, f: jax.grad(jax.jit(f, backend="eager"))(1.0),
    "jit of grad": lambda jax, f: jax.jit(jax.grad(f), backend="eager")(1.0),
    "vmap": lambda jax, f: jax.vmap(f)(jax.numpy.ones(1))[0],
    "jvp": lambda jax, f: jax.jvp(f, (1.0,), (1.0,))[1],
    "checkpoint": lambda jax, f: jax.grad(jax.checkpoint(f))(1.0),
    "eager": lambda jax, f: f(1.0),
}


@pytest.mark.parametrize("way", TRACING)
def test_what_is_computed_at_once_in_a_traced_function_is_a_constant(jax, way):
    KEPT.clear()
    f = functools.partial(scaled, jax)
    assert float(TRACING[way](jax, f)) == 6.0
    assert not isinstance(KEPT["table"], jax.core.Tracer) and float(f(1.0)) == 6.0


def test_what_follows_from_placeholders_is_recorded_beside_what_is_computed_at_once(jax):
    jnp, pending = jax.numpy, gt.ones(2) * 3

    def f(x):
        with jax.ensure_compile_time_eval():
            large = jnp.ones(3).sum() > 2
            slope = float(jax.grad(lambda v: (v * pending).sum() ** 2)(gt.ones(2))[0])
            return x * slope if large else x

    assert [float(jax.jit(f, backend="eager")(1.0)), float(jax.jit(jax.grad(f), backend="eager")(1.0))] == [36.0] * 2
    assert jax.vmap(f)(jnp.ones(2)).tolist() == [36.0] * 2 and (pending + 1).tolist() == [4.0] * 2

    def looked(x):
        with jax.ensure_compile_time_eval():
            return x * 2 if x > 0 else x

    def after(x):
        with jax.ensure_compile_time_eval():
            pass
        return x * float(jnp.ones(3).sum())

    for g in (looked, after):
        with pytest.raises(ConcretizationError, match="expected a value"):
            jax.jit(g, backend="eager")(1.0)

    def followed(w):  # a gradient around the traced function sees what the block computes
        def inner(x):
            with jax.ensure_compile_time_eval():
                y = w * 2
                assert float(y) == 6.0
            return x * y

        return jax.jit(inner, backend="eager")(1.0)

    assert float(jax.grad(followed)(3.0)) == 2.0


def test_what_depends_on_no_example_has_a_value_under_vmap(jax):
    jnp, kept = jax.numpy, []
    outside = jnp.arange(3.0) + 1

    def f(x):
        table = jnp.concatenate([jnp.ones(1), outside]) * 2.0
        kept.append(table)
        assert not isinstance(table, jax.core.Tracer) and isinstance(x, jax.core.Tracer)
        assert jax.core.is_concrete(table)
        return x * 3.0 if table.sum() > 2.0 else x

    assert jax.vmap(f)(jnp.arange(2.0)).tolist() == [0.0, 3.0]
    assert kept[-1].tolist() == [2.0, 2.0, 4.0, 6.0] and (kept[-1] + 1).sum().item() == 18.0
    assert jax.vmap(jax.grad(f))(jnp.arange(2.0)).tolist() == [3.0, 3.0]
    assert jax.vmap(jax.vmap(f))(jnp.ones((2, 1))).tolist() == [[3.0], [3.0]]
    assert jax.vmap(lambda x: x * float(jnp.sum(outside)))(jnp.ones(2)).tolist() == [6.0, 6.0]
    assert jax.jacfwd(f)(jnp.ones(2)).tolist() == [[3.0, 0.0], [0.0, 3.0]]
    with pytest.raises(ConcretizationError):
        jax.vmap(lambda x: x if x > 0 else -x)(jnp.ones(2))
    with pytest.raises(ConcretizationError):  # as in JAX, the function around decides
        jax.jit(jax.vmap(lambda x: x if jnp.ones(3).sum() > 2.0 else -x), backend="eager")(jnp.arange(2.0))
    with pytest.raises(ConcretizationError):
        jax.vmap(lambda x: x + float(jax.lax.axis_index("i") * 2), axis_name="i")(jnp.ones(2))
    leaked = []
    jax.vmap(lambda x: (leaked.append(x + 1), x)[1])(jnp.ones(2))
    with pytest.raises(LeakError):
        leaked[0] + 1


def test_looking_at_a_value_under_vmap_leaves_derivatives_as_they_are(jax):
    jnp = jax.numpy

    def f(w, look):
        def example(x):
            y = jnp.sin(w) * 2
            if look:
                assert float(y) > 1 and isinstance(y, jax.core.Tracer)
            return x * y

        return jax.vmap(example)(jnp.arange(3.0)).sum()

    found, expected = jax.grad(f)(1.0, True), jax.grad(f)(1.0, False)
    assert float(found) == float(expected) == pytest.approx(6 * np.cos(1.0), rel=1e-6)
    # an inner derivative by a constant
    inner = lambda x: x * jax.grad(lambda v: v * v if v > 1 else v)(jnp.float32(2.0))  # noqa: E731
    assert jax.vmap(inner)(jnp.ones(2)).tolist() == [4.0, 4.0]


def test_what_is_differentiated_is_a_tracer(jax):
    seen, jnp = [], jax.numpy

    def f(x):
        seen.append(
            (
                isinstance(x, jax.core.Tracer),
                isinstance(x * 2, jax.core.Tracer),
                isinstance(3 * jnp.ones(1), jax.core.Tracer),
            )
        )
        return (x * 2.0).sum()

    for way in (
        lambda: jax.grad(f)(1.0), lambda: jax.value_and_grad(f)(1.0), lambda: jax.jvp(f, (1.0,), (1.0,)),
        lambda: jax.linearize(f, 1.0), lambda: jax.vjp(f, 1.0), lambda: jax.jacfwd(f)(1.0), lambda: jax.jacrev(f)(1.0),
        lambda: jax.vmap(f)(jnp.ones(2)), lambda: jax.hessian(f)(jnp.ones(2)),
        lambda: jax.grad(lambda w: jax.grad(lambda v: f(v) * w)(2.0))(1.0),
    ):  # fmt: skip
        seen.clear()
        way()
        assert seen and set(seen) == {(True, True, False)}
    seen.clear()
    f(jnp.ones(2))
    jax.grad(lambda a, b: a * f(b))(1.0, jnp.ones(2))
    jax.grad(lambda a: f(jax.lax.stop_gradient(a)) * a)(1.0)
    assert set(seen) == {(False, False, False)}
    jax.jit(f, backend="eager")(1.0)
    assert seen[-1][:2] == (True, True)
    keys = []
    jax.vmap(lambda k: (keys.append(isinstance(k, jax.core.Tracer)), jax.random.bits(k))[1])(
        jax.random.split(jax.random.key(0))
    )
    assert keys == [True] and not isinstance(jax.random.key(0), jax.core.Tracer)


# -- rules that call their own function


def own_rules(jax):
    """Return linear functions whose rules apply functions with rules to the tangent, with their slopes at 1."""

    @jax.custom_jvp
    def double(x):
        return x * 2.0

    double.defjvp(lambda primals, tangents: (double(*primals), double(*tangents)))

    @jax.custom_jvp
    def twice(x):
        return x + x

    @jax.custom_jvp
    def again(x):
        return 2.0 * x

    twice.defjvp(lambda primals, tangents: (again(*primals), again(*tangents)))
    again.defjvp(lambda primals, tangents: (twice(*primals), twice(*tangents)))

    @jax.custom_jvp
    def looped(x):
        return jax.lax.scan(lambda c, _: (c + x, None), x * 0.0, None, 2)[0]

    def steps(t):
        return jax.lax.scan(lambda c, _: (looped(c) / 2.0, None), t, None, 3)[0] * 2.0

    looped.defjvp(lambda primals, tangents: (looped(*primals), steps(*tangents)))

    @jax.custom_jvp
    def marked(x):
        return x * 2.0

    @marked.defjvp
    def rule(primals, tangents):
        # of the tangent, its body is transposed: the slope is 2 * 2, and not 2 * 7
        return marked(*primals), marked(*tangents) * 2.0

    return {
        "itself": (double, 2.0),
        "one another": (twice, 2.0),
        "in a loop": (looped, 2.0),
        "another slope": (marked, 4.0),
    }


SLOPES = {
    "grad": lambda jax, f: jax.grad(f)(1.0),
    "jit": lambda jax, f: jax.jit(jax.grad(f), backend="eager")(1.0),
    "grad of jit": lambda jax, f: jax.grad(jax.jit(f, backend="eager"))(1.0),
    "vjp": lambda jax, f: jax.vjp(f, 1.0)[1](1.0)[0],
    "jvp": lambda jax, f: jax.jvp(f, (1.0,), (1.0,))[1],
    "linearize": lambda jax, f: jax.linearize(f, 1.0)[1](1.0),
    "jacrev": lambda jax, f: jax.jacrev(f)(jax.numpy.ones(2))[1, 1],
    "vmap of grad": lambda jax, f: jax.vmap(jax.grad(f))(jax.numpy.ones(2))[1],
    "grad of vmap": lambda jax, f: jax.grad(lambda x: jax.vmap(f)(x).sum())(jax.numpy.ones(2))[1],
    "checkpoint": lambda jax, f: jax.grad(jax.checkpoint(f))(1.0),
    "scan": lambda jax, f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 1)[0])(1.0),
}


@pytest.mark.parametrize("way", SLOPES)
def test_rules_may_apply_functions_with_rules_to_the_tangent(jax, way):
    for kind, (f, slope) in own_rules(jax).items():
        assert float(SLOPES[way](jax, f)) == slope, kind
        if way == "grad":
            assert float(jax.grad(jax.grad(f))(1.0)) == 0.0, kind


def test_a_batched_rule_gets_zeros_of_an_example_for_results_that_nobody_uses():
    @gt.custom_vjp
    def pair(x):
        return x.sum(), x * 2

    pair.defvjp(lambda x: (pair(x), None), lambda _, cts: (cts[0] + cts[1] * 2,))
    x = gt.ones((3, 2))
    assert gt.grad(lambda x: gt.vmap(pair)(x)[0].sum())(x).tolist() == [[1.0] * 2] * 3
    assert gt.grad(lambda x: gt.vmap(pair)(x)[1].sum())(x).tolist() == [[2.0] * 2] * 3


# -- settings


def test_settings_of_keys(jax):
    with pytest.raises(ArgumentError, match="expected jax_default_prng_impl"):
        jax.config.update("jax_default_prng_impl", "philox4x32")
    with jax.enable_custom_prng(True):
        assert str(jax.random.PRNGKey(0).dtype) == "key<fry>"
        assert str(jax.random.PRNGKey(0, impl="rbg").dtype) == "key<rbg>"
    assert jax.random.PRNGKey(0).dtype == "uint32"


@pytest.mark.parametrize(("name", "args"), [
    ("numpy_rank_promotion", ("raise",)), ("enable_x64", (True,)), ("debug_nans", (True,)), ("checking_leaks", ()),
    ("numpy_dtype_promotion", ("strict",)), ("default_matmul_precision", ("float32",)), ("disable_jit", ()),
    ("threefry_partitionable", (True,)), ("log_compiles", (False,)), ("default_device", (None,)),
    ("transfer_guard", ("allow",)), ("ensure_compile_time_eval", ()), ("enable_checks", (True,)),
])  # fmt: skip
def test_settings_are_blocks_and_decorators(jax, name, args):
    @getattr(jax, name)(*args)
    def f(x):
        "doc"
        return x + 1

    assert [float(f(1)), float(f(2)), f.__name__, f.__doc__] == [2.0, 3.0, "f", "doc"]
    with getattr(jax, name)(*args):
        assert float(f(1)) == 2.0


def test_settings_read_back_what_was_set(jax):
    with jax.numpy_rank_promotion("raise"):
        assert jax.config.jax_numpy_rank_promotion == "raise"
    assert jax.config.jax_numpy_rank_promotion == "allow"
    wide = jax.enable_x64(True)(lambda: jax.numpy.ones(1).dtype)
    assert wide() == "float64" and jax.numpy.ones(1).dtype == "float32"


CHECKS = {
    "JAX_ENABLE_X64=1": "jax.numpy.ones(2).dtype == 'float64' and jax.config.jax_enable_x64",
    "JAX_ENABLE_X64=True GT_X64=0": "jax.numpy.ones(2).dtype == 'float32'",
    "JAX_DEBUG_NANS=1 JAX_DEBUG_INFS=0": "gt.config.debug_nans",
    "JAX_DISABLE_JIT=yes JAX_PLATFORMS=cpu": "gt.config.eager and jax.config.jax_platforms == 'cpu'",
    "JAX_NUMPY_DTYPE_PROMOTION=strict": "raises(lambda: jax.numpy.ones(2) + jax.numpy.arange(2))",
    "JAX_NUMPY_RANK_PROMOTION=raise": "raises(lambda: jax.numpy.ones(2) + jax.numpy.ones((2, 2)))",
    "JAX_DEFAULT_PRNG_IMPL=rbg": "jax.random.PRNGKey(0).shape == (4,)",
    "JAX_ENABLE_CUSTOM_PRNG=1": "jax.random.PRNGKey(0) == jax.random.key(0)",
    "JAX_DEBUG_INFS=1": "jax.config.jax_debug_infs and raises(lambda: jax.block_until_ready(1 / jax.numpy.zeros(1)))",
    "JAX_THREEFRY_PARTITIONABLE=0": "not jax.config.jax_threefry_partitionable",
    "JAX_NUM_CPU_DEVICES=2 JAX_LOG_COMPILES=": "jax.config.jax_num_cpu_devices - jax.config.jax_log_compiles == 2",
}  # fmt: skip
REFUSED = {
    "JAX_ENABLE_X64=perhaps": r"[JAX_ENABLE_X64] expected one of 1, t, ", "JAX_NUM_CPU_DEVICES=two": "a number",
    "JAX_DEFAULT_PRNG_IMPL=philox": "jax_default_prng_impl among",
    "JAX_NUMPY_DTYPE_PROMOTION=strickt": "expected jax_numpy_dtype_promotion among standard, strict",
}  # fmt: skip
RAISES = """
import gtrace as gt, gtrace.jax as jax
def raises(call):
    try:
        call()
    except (gt.errors.DtypeError, gt.errors.ShapeError, FloatingPointError):
        return True
"""


def started(variables, program):
    environment = {**os.environ, **dict(pair.split("=") for pair in variables.split())}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("variables", CHECKS)
def test_settings_take_their_first_values_from_the_environment(variables):
    done = started(variables, f"{RAISES}assert {CHECKS[variables]}")
    assert not done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("variables", REFUSED)
def test_variables_that_no_setting_takes_are_refused(variables):
    done = started(variables, "import gtrace.jax")
    assert done.returncode and REFUSED[variables] in done.stderr.splitlines()[-1]


def test_texts_of_the_command_line_are_values(jax, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", "--jax_default_prng_impl=rbg", "--jax_log_compiles"])
    jax.config.parse_flags_with_absl()
    assert jax.config.jax_default_prng_impl == "rbg" and jax.config.jax_log_compiles is True
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    jax.config.update("jax_log_compiles", False)


# -- functions, callbacks, structures


class Named:
    """A function whose name is something else than text."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, x):
        return x * 2.0


@pytest.mark.parametrize("name", [None, 3, property(len)], ids=["None", "number", "property"])
def test_names_of_functions_may_be_anything(jax, name):
    f, x = Named(name), jax.numpy.ones(2)
    total = lambda y: y.sum()  # noqa: E731
    for way in (
        jax.vmap(f), jax.jit(f, backend="eager"), jax.checkpoint(f), jax.jacrev(f), jax.jacfwd(f),
        jax.numpy.vectorize(f),
        lambda x: jax.eval_shape(f, x), lambda x: jax.linear_transpose(f, x)(x), jax.custom_jvp(f).__class__,
        lambda x: jax.custom_gradient(lambda x: (f(x), f))(x), lambda x: jax.make_jaxpr(f)(x), gt.nn.filter_jit(f),
        lambda x: jax.lax.map(f, x), lambda x: total(f(x)),
    ):  # fmt: skip
        way(x if way is not jax.custom_jvp(f).__class__ else f)
    assert float(jax.grad(f)(1.0)) == 2.0 and float(jax.value_and_grad(f)(1.0)[0]) == 2.0


def test_jitted_functions_have_the_attributes_of_the_function(jax):
    def f(x: int) -> int:
        "doc"
        return x + 1

    jitted = jax.jit(f, backend="eager")
    names = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__wrapped__")
    assert all(getattr(jitted, name) == getattr(f, name, f) for name in names)
    jitted(1.0), jitted(jax.numpy.ones(2))
    assert jitted._cache_size() == 2
    jitted.clear_cache()
    assert jitted._cache_size() == 0 and float(jitted(1.0)) == 2.0
    assert jitted.eval_shape(jax.numpy.ones((2, 3))).shape == (2, 3)
    lowered = jitted.lower(1.0)
    assert float(lowered.compile({})(1.0)) == float(lowered.compile(compiler_options={})(1.0)) == 2.0


def test_callbacks_get_arrays_for_numbers(jax):
    seen, result = [], jax.ShapeDtypeStruct((), "float32")
    from gtrace.jax.experimental import io_callback

    def call(*args, **kwargs):
        seen.extend(args)
        seen.extend(kwargs.values())
        return np.float32(1)

    given = 3, 2.5, True, np.float32(1), np.ones(2)
    calls = (
        lambda x: jax.pure_callback(call, result, *given, x, flag=False),
        lambda x: io_callback(call, result, *given, x, flag=False),
        lambda x: (jax.debug.callback(call, *given, x, flag=False), x.sum())[1],
        lambda x: jax.vmap(lambda y: jax.pure_callback(call, result, *given, y, flag=False, vmap_method="sequential"))(
            x
        ),
    )
    for f in calls:
        for way in (f, jax.jit(f, backend="eager")):
            seen.clear()
            jax.block_until_ready(way(jax.numpy.ones(2)))
            assert len(seen) in (7, 14) and all(type(x) is np.ndarray for x in seen)
            assert [x.dtype.name for x in seen[:4]] == ["int32", "float32", "bool", "float32"] and seen[1].item() == 2.5
    texts = []
    jax.debug.callback(lambda x, name: texts.append(name), 1, "text")
    assert texts == ["text"]


def test_structures_are_results_and_arguments_like_arrays(jax):
    jnp, like = jax.numpy, jax.ShapeDtypeStruct((2, 3), "float32")
    assert jax.eval_shape(lambda: like) == like
    found = jax.eval_shape(lambda x: {"a": like, "b": x * 2, "c": jax.eval_shape(jnp.sin, x)}, like)
    assert found == {"a": like, "b": like, "c": like}
    assert jnp.result_type(like, jnp.int32) == "float32" and jnp.iscomplexobj(like) is False
    assert (jnp.shape(like), jnp.ndim(like), jnp.size(like)) == ((2, 3), 2, 6) and jnp.issubdtype(
        like.dtype, jnp.floating
    )
    for name, total in (("zeros_like", 0.0), ("ones_like", 6.0)):
        assert float(getattr(jnp, name)(like).sum()) == total
    assert float(jnp.full_like(like, 2.0).sum()) == 12.0 and jnp.empty_like(like).shape == (2, 3)


def test_programs_can_be_run_again(jax):
    jnp, core = jax.numpy, importlib.import_module("gtrace.jax.extend.core")
    table = jnp.arange(2.0)
    make = jax.make_jaxpr(lambda x, k, y: {"a": jnp.sin(x) * k + table, "b": y}, static_argnums=1, return_shape=True)
    closed, shape = make(jnp.ones(2), 2, 3.0)
    assert isinstance(closed, core.ClosedJaxpr) and isinstance(closed.jaxpr, core.Jaxpr)
    assert sorted(shape) == ["a", "b"] and shape["a"].shape == (2,)
    assert [a.shape for a in closed.in_avals] == [(2,), ()] and [str(v.aval.dtype) for v in closed.jaxpr.outvars] == [
        "float32"
    ] * 2
    for found in (
        jax.core.eval_jaxpr(closed.jaxpr, closed.consts, jnp.ones(2), 3.0), core.jaxpr_as_fun(closed)(jnp.ones(2), 3.0),
        jax.jit(core.jaxpr_as_fun(closed), backend="eager")(jnp.ones(2), 3.0),
    ):  # fmt: skip
        np.testing.assert_allclose(found[0].numpy(), 2 * np.sin(1) + np.arange(2), rtol=1e-6)
    assert float(jax.grad(lambda x: core.jaxpr_as_fun(closed)(x, 3.0)[0].sum())(jnp.zeros(2))[0]) == 2.0
    assert (
        float(jax.jit(lambda c, x: core.jaxpr_as_fun(c)(x, 3.0)[1], static_argnums=0, backend="eager")(closed, table))
        == 3.0
    )
    assert [e.primitive.name for e in closed.eqns] == ["sin", "mul", "add"]
    with pytest.raises(ArgumentError, match="2 arguments and 1 constants"):
        core.jaxpr_as_fun(closed)(1.0)


# -- functions of jax.numpy, arrays, devices


def test_keys_are_mapped_by_vectorize(jax):
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    plain = jax.numpy.vectorize(lambda key: jax.random.uniform(key, (4,)).sum())(keys)
    core = jax.numpy.vectorize(lambda key, n: jax.random.uniform(key, (4,)) * n, signature="(),()->(k)")(
        keys, jax.numpy.arange(3)
    )
    assert plain.shape == (2, 3) and core.shape == (2, 3, 4)
    expected = jax.random.uniform(keys[1, 2], (4,))
    np.testing.assert_allclose(core[1, 2].numpy(), expected.numpy() * 2)
    np.testing.assert_allclose(plain[1, 2].numpy(), expected.sum().numpy(), rtol=1e-6)
    made = jax.numpy.vectorize(lambda key: jax.random.fold_in(key, 1), signature="()->()")(keys)
    assert made.shape == (2, 3) and bool((made[1, 2] == jax.random.fold_in(keys[1, 2], 1)).all())


def test_small_differences_of_functions(jax):
    jnp = jax.numpy
    assert jnp.shape(None) == () and jnp.ndim(None) == 0 and jnp.size(None) == 1
    assert jnp.arange(np.array(3, np.int8)).tolist() == [0, 1, 2]
    assert jnp.arange(np.array(1.0), np.array(2.0), np.array(0.5)).tolist() == [1.0, 1.5]
    a = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    raw, factors = jnp.linalg.qr(a, mode="raw")
    for k in range(2):
        ours = np.linalg.qr(a[k], mode="raw")
        np.testing.assert_allclose(raw[k].numpy(), ours[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(factors[k].numpy(), ours[1], rtol=1e-4, atol=1e-5)
    for x in (jnp.ones(2), np.ones(2, np.float32), jnp.float32, "float32", np.dtype("float32"), np.float32):
        assert float(jnp.finfo(x).eps) == np.finfo("float32").eps
    assert jnp.iinfo(jnp.ones(2, "int8")).max == 127 and jnp.iinfo(np.int16).max == 32767


def test_members_of_arrays_and_devices(jax):
    x, device = jax.numpy.array([3.0, 1.0, 2.0]), jax.devices("cpu")[0]
    assert x.argpartition(1)[0].item() == 1 and jax.numpy.array([1, 0]).choose([x[:2], x[1:]]).tolist() == [1.0, 1.0]
    assert x.tobytes() == np.asarray(x).tobytes() and len(x.global_shards) == 1
    assert x.unsafe_buffer_pointer() == x.numpy().__array_interface__["data"][0]
    assert x.to_device(device).tolist() == x.tolist() and jax.numpy.zeros(2, device=device).tolist() == [0.0, 0.0]
    assert device.client.platform == "cpu" and device.client.device_count() == 1
    axis_types = (jax.sharding.AxisType.Auto,)
    for mesh in (
        jax.sharding.Mesh(np.array([device]), ("s",), axis_types=axis_types), jax.make_mesh((1,), ("s",)),
        jax.sharding.AbstractMesh((1,), ("s",), axis_types),
    ):  # fmt: skip
        assert mesh.axis_types == axis_types and mesh.axis_names == ("s",)


def test_rules_by_jaxs_names_of_parameters(jax):
    f = jax.custom_vjp(fun=lambda x: x)
    f.defvjp(fwd=lambda x: (x, None), bwd=lambda _, ct: (ct * 3,))
    g = jax.custom_jvp(fun=lambda n, x: x * n, nondiff_argnums=(0,))
    g.defjvp(jvp=lambda n, primals, tangents: (g(n, *primals), tangents[0] * 5))
    assert float(jax.grad(f)(1.0)) == 3.0 and float(jax.grad(functools.partial(g, 2))(1.0)) == 5.0


INTERNALS = """
_src.api_util: infer_argnums_and_argnames
_src.checkify: Error JaxException Out checkify user_checks
_src.core: Primitive ShapedArray Tracer physical_aval
_src.dtypes: DType ExtendedDType TypePromotionError extended finfo supports_inf to_complex_dtype
_src.ad_util: SymbolicZero Zero add_tangents instantiate_zeros stop_gradient_p zeros_like_aval
_src.array: ArrayImpl
_src.compiler: __getattr__
_src.distributed: global_state
_src.earray: EArray
_src.lax.control_flow: cond cond_p fori_loop scan scan_p while_loop while_p
_src.lax.lax: add convert_element_type dot_general
_src.literals: LiteralArray TypedComplex TypedFloat TypedInt TypedNdArray
_src.nn.functions: glu relu softmax
_src.numpy.lax_numpy: einsum_path where
_src.pjit: auto_axes jit_p pjit_p
_src.random: normal
_src.scipy.special: gammaln
_src.sharding_impls: NamedSharding UNSPECIFIED UnspecifiedValue canonicalize_sharding
_src.source_info_util: register_exclusion
_src.state: AbstractRef
_src.typing: Array ArrayLike DTypeLike Shape SupportsDType
_src.util: merge_lists partition_list safe_map safe_zip split_list unzip2 unzip3 wraps
_src.xla_bridge: _backends get_backend
_src.interpreters.pxla: global_result_handlers
_src.state.types: AbstractRef
_src.tree_util: _registry prefix_errors tree_map
api_util: shaped_abstractify
core: Effects eval_context no_effects
core: Effect ensure_compile_time_eval find_top_trace get_aval mapped_aval pytype_aval_mappings unmapped_aval
experimental: MutableArray cur_qdd
experimental.hijax: AbstractValue AvalMutableQDD AvalQDD HiPrimitive MutableHiType Zero aval_method aval_property
experimental.hijax: control_flow_allowed_effects instantiate_zeros is_undefined_primal register_hitype
experimental.mesh_utils: create_device_mesh create_hybrid_device_mesh
experimental.multihost_utils: global_array_to_host_local_array host_local_array_to_global_array
extend.backend: backends
extend.core: Effect find_top_trace mapped_aval unmapped_aval
extend.linear_util: merge_linear_aux
profiler: start_server stop_server
interpreters.ad: JVPTracer UndefinedPrimal Zero instantiate_zeros is_undefined_primal
interpreters.ad: primitive_jvps primitive_transposes
interpreters.batching: axis_primitive_batchers fancy_primitive_batchers not_mapped primitive_batchers
interpreters.batching: register_vmappable
interpreters.mlir: lower_fun register_lowering
interpreters.xla: pytype_aval_mappings
lib: __version__
lib.xla_extension: XlaRuntimeError
stages: ArgInfo Compiled CompilerOptions Lowered Traced
"""
"""Names that libraries import without using them, or only write to, or ask for with ``isinstance``."""


@pytest.mark.parametrize("line", INTERNALS.split("\n")[1:-1])
def test_names_that_libraries_only_import_are_there(line):
    module, names = line.split(":")
    found = importlib.import_module(f"gtrace.jax.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_private_places_hold_the_public_functions_and_refuse_the_rest(jax):
    from gtrace.jax._src.lax.control_flow import scan

    assert scan is jax.lax.scan and jax._src.scipy.special.gammaln is jax.scipy.special.gammaln
    assert jax._src.lax.lax is importlib.import_module("gtrace.jax._src.lax.lax")
    with pytest.raises(AttributeError, match=r"jax\._src\.lax\.nothing is one of JAX's internals"):
        _ = jax._src.lax.nothing
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("gtrace.jax._src.nothing")
    mesh = jax.make_mesh((1,), ("data",))
    assert mesh.explicit_axes == mesh.manual_axes == () and mesh.auto_axes == ("data",)


def test_parts_of_internals_that_do_something(jax):
    infer = importlib.import_module("gtrace.jax._src.api_util").infer_argnums_and_argnames
    signature = inspect.signature(lambda x, y: None)
    assert infer(signature, 1, None) == ((1,), ("y",)) and infer(signature, None, "x") == ((0,), ("x",))
    assert infer(signature, None, None) == ((), ()) and infer(signature, 0, "y") == ((0,), ("y",))
    internals = importlib.import_module("gtrace.jax._src.tree_util")
    assert gt.nn.Linear in internals._registry and dict in internals._registry and int not in internals._registry
    keys = {"a": jax.random.key(0), "b": [1]}  # an array of keys is a leaf, and so a prefix of anything
    (error,) = internals.prefix_errors(keys, {"a": (1, 2), "b": 1})
    assert "in_axes['b']" in str(error("in_axes")) and not internals.prefix_errors(keys, keys)
    with pytest.raises(ArgumentError, match="HiPrimitive 'p'"):
        importlib.import_module("gtrace.jax.experimental.hijax").HiPrimitive("p").bind(1)


# -- integers, and the stages of jitted functions


def test_gradients_by_integers_have_no_values(jax):
    jnp = jax.numpy
    given = {"n": 3, "x": 2.0}

    def f(d):
        return d["n"] * d["x"]

    for found in (
        jax.grad(f, allow_int=True)(given), jax.value_and_grad(f, allow_int=True)(given)[1],
        jax.jit(lambda x: jax.grad(f, allow_int=True)({"n": 3, "x": x})["x"], backend="eager")(2.0),
    ):  # fmt: skip
        if isinstance(found, dict):
            assert found["n"].dtype == jax.float0 and found["n"].shape == ()
            found = found["x"]
        assert float(found) == 3.0
    first, second = jax.grad(lambda n, x: (n * x).sum(), (0, 1), allow_int=True)(jnp.arange(2), jnp.ones(2))
    assert (first.dtype, first.shape, second.tolist()) == (jax.float0, (2,), [0.0, 1.0])
    rows = jax.jacrev(f, allow_int=True)({"n": jnp.arange(2), "x": jnp.ones(2)})
    assert (str(rows["n"].dtype), rows["n"].tolist()) == ("int32", [[0, 0], [0, 0]])
    assert rows["x"].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    for transform in (jax.grad, jax.value_and_grad, jax.jacrev):
        with pytest.raises(TypeError, match="floating inputs"):
            transform(f)(given)


def test_stages_say_what_a_function_costs(jax):
    jnp = jax.numpy
    traced = jax.jit(lambda x: {"a": jnp.sin(x) @ x}, backend="eager").trace(jnp.ones((4, 4)))
    compiled = traced.lower().compile(compiler_options={})
    for stage in (traced.lower(), compiled):
        cost = stage.cost_analysis()
        assert (cost["flops"], cost["transcendentals"]) == (128.0, 16.0) and cost["bytes accessed"] >= 128.0
    memory = compiled.memory_analysis()
    assert (memory.argument_size_in_bytes, memory.output_size_in_bytes) == (64, 64)
    assert memory.temp_size_in_bytes >= 0
    for stage in (traced, traced.lower(), compiled):
        assert stage.out_info["a"].shape == (4, 4) and stage.out_tree.num_leaves == 1
    assert [e.primitive.name for e in traced.jaxpr.eqns] == ["sin", "dot_general"]
    assert isinstance(compiled.as_text(), str)


def test_nodes_that_are_flattened_into_something_else(jax):
    for found in ("hello", (2, 3, 4), (7, 7)):

        class Node:
            pass

        jax.tree_util.register_pytree_node(Node, lambda _, found=found: found, lambda aux, children: Node())
        with pytest.raises(ValueError, match=r"flatten of Node.*children.*got"):
            jax.tree.leaves(Node())


def test_static_nodes_are_compared_by_their_own_rule(jax):
    @jax.tree_util.register_static
    @dataclasses.dataclass
    class Box:
        value: int

        def __hash__(self):
            return 0

        def __eq__(self, other):
            return isinstance(other, Box)

    f = jax.jit(lambda x, box: x + box.value)
    assert f(1, Box(2)) == 3 and f(3, Box(1)) == 5
    assert jax.tree.structure(Box(1)) == jax.tree.structure(Box(2))


def test_copy_by_position_is_deprecated(jax):
    with pytest.warns(DeprecationWarning, match="by name"):
        assert jax.numpy.array([1], None, True, "K", 2).shape == (1, 1)


def test_lists_and_tuples_are_updates(jax):
    jnp = jax.numpy
    x, places = jnp.zeros(3), jnp.array([0, 2])
    for values in ([1.0, 2.0], (1, 2), [jnp.float32(1), 2.0], (jnp.ones(()), 2)):
        assert x.at[places].set(values).tolist() == x.at[places].add(values).tolist() == [1.0, 0.0, 2.0]
        assert (x + 3).at[places].multiply(values).tolist() == [3.0, 3.0, 6.0]
        assert (x + 1.5).at[places].min(values).tolist() == [1.0, 1.5, 1.5]
    rows = jnp.zeros((2, 2)).at[jnp.array([0, 1])].set([jnp.ones(2), [2.0, 3.0]])
    assert rows.tolist() == [[1.0, 1.0], [2.0, 3.0]]
    assert jax.grad(lambda u: jnp.sum(x.at[:2].set([u, 2 * u]) * jnp.arange(1.0, 4.0)))(1.0).item() == 5.0
    assert gt.zeros(2).at[0:2].set([1, 2]).tolist() == [1.0, 2.0]


def test_classes_that_stand_for_dtypes_are_no_arrays(jax):
    jnp = jax.numpy
    for kind in (jnp.float16, np.float16, np.dtype("float16"), "float16"):
        found = jax.vmap(lambda x, kind: x.astype(kind), in_axes=(0, None))(jnp.ones(3), kind)
        assert found.dtype == "float16" and found.shape == (3,)
    with pytest.raises(ArgumentError, match="a batch axis"):
        jax.vmap(lambda x, kind: x)(jnp.ones(3), jnp.float16)


def test_a_uniform_number_takes_the_axes_of_bounds_of_one_element(jax):
    jnp, key = jax.numpy, jax.random.key(0)
    plain = jax.random.uniform(key, minval=0.0, maxval=4.0)
    for low, high, shape in ((jnp.zeros((1,)), 4.0, (1,)), (0.0, jnp.full((1, 1), 4.0), (1, 1))):
        found = jax.random.uniform(key, (), minval=low, maxval=high)
        assert found.shape == shape and found.item() == plain.item()
    assert jax.random.uniform(key, (2, 3), minval=jnp.zeros(3), maxval=jnp.ones((2, 1))).shape == (2, 3)
    for bounds in (jnp.zeros((1, 1)), jnp.zeros(3)):
        with pytest.raises(ValueError, match="uniform"):
            jax.random.uniform(key, (2,), minval=bounds)


def test_softmax_of_complex_numbers(jax):
    jnp = jax.numpy
    x = jnp.array([1 + 2j, 3 - 1j, 0.5j])
    expected = [-0.15139878 + 0.0339361j, 1.14288555 - 0.09037619j, 0.00851331 + 0.05644009j]
    logarithms = [-1.8633269 + 2.92108703j, 0.13667308 - 0.078913j, -2.86332703 + 1.42108703j]
    slopes = [0.17864595 - 0.00526537j, -0.17732507 + 0.01402236j, -0.00132089 - 0.008757j]
    np.testing.assert_allclose(jax.nn.softmax(x), expected, atol=1e-6)
    np.testing.assert_allclose(jax.nn.log_softmax(x), logarithms, atol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda z: jnp.abs(jax.nn.softmax(z)[0]))(x), slopes, atol=1e-6)
    size, sign = jax.scipy.special.logsumexp(x, return_sign=True)
    np.testing.assert_allclose([size, sign], [np.log(abs(np.exp(x).sum())), 0.60495496 - 0.7962597j], atol=1e-6)
    kept = jax.nn.softmax(x, where=jnp.array([True, False, True]))
    np.testing.assert_allclose(kept.sum(), 1, atol=1e-6)
    assert kept[1] == 0


def test_layouts_and_avals_print_as_in_jax(jax):
    x = jax.numpy.ones((2, 3))
    text = "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"
    assert str(x.sharding) == repr(x.sharding) == text and x.sharding.memory_kind == "device"
    assert jax.typeof(x).sharding.spec == jax.P(None, None) and jax.typeof(x).sharding.mesh.empty
    assert str(x.aval) == "float32[2,3]" and str(jax.numpy.asarray(1).aval) == "int32[]"
    with gt.config(jax_results=False):
        assert str(gt.ones(2).aval) == "f32[2]"
