"""Programs as data: JAX's equations, which can be read, rewritten, bound and run again."""

import numpy
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.core.ir.op import REGISTRY
from gtrace.core.transform.eval_shape import capture_like
from gtrace.jax.equation_rules import RULES, SAME
from gtrace.jax.equations import program_of
from gtrace.jax.expanded_operations import EXPANDED
from gtrace.jax.extend import core
from gtrace.testing import assert_close
from gtrace.testing.samples import arrays_in, caller


@pytest.fixture(autouse=True)
def _as_jax():
    with gt.config(x64=False, jax_results=True):
        yield


TESTED = sorted({*SAME, *RULES, *EXPANDED, "hypot", "index_put", "scatter_reduce", "sort"} & {
    name for name, op in REGISTRY.items() if op.cases.samples is not None
} - {"psum", "pmax", "pmin"})  # fmt: skip


def _run(jaxpr, consts, args):
    """Run a program equation by equation, as JAX's page on interpreters does."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        out = eqn.primitive.bind(*map(read, eqn.invars), **eqn.params)
        results = out if eqn.primitive.multiple_results else [out]
        for v, x in zip(eqn.outvars, results, strict=True):
            assert (v.aval.shape, v.aval.dtype) == (x.shape, x.dtype), eqn
            env[v] = x
    return [read(v) for v in jaxpr.outvars]


@pytest.mark.parametrize("name", TESTED)
def test_every_operation_runs_as_equations(name):
    op = REGISTRY[name]
    for sample in op.cases.samples():
        arrays = [gt.array(x) for x in arrays_in(sample.args)]
        call = caller(op, sample)
        closed = program_of(capture_like("test", call, tuple(arrays), {}))
        assert str(closed).startswith("{ lambda")
        expected = gt.tree.leaves(call(*arrays))
        for got, want in zip(_run(closed.jaxpr, closed.consts, arrays), expected, strict=True):
            assert_close(
                got, want, steps=64, scale=float(numpy.nanmax(numpy.abs(want.astype(complex).numpy()), initial=1))
            )


def ones(*shape):
    return numpy.ones(shape, "f")


TABLE = ones(3)

TEXTS = {
    "scalars": (lambda x: jnp.sin(x) * 2, (ones(2),), """
{ lambda ; a:f32[2]. let b:f32[2] = sin a; c:f32[2] = mul b 2.0:f32[] in (c,) }"""),
    "several lines": (lambda x: jnp.sin(x) * 2 + x, (1.0,), """
{ lambda ; a:f32[]. let
    b:f32[] = sin a
    c:f32[] = mul b 2.0:f32[]
    d:f32[] = add c a
  in (d,) }"""),
    "ranks": (lambda x, y: x + y, (ones(2, 3), ones(3)), """
{ lambda ; a:f32[2,3] b:f32[3]. let
    c:f32[1,3] = broadcast_in_dim[broadcast_dimensions=(1,)] b
    d:f32[2,3] = add a c
  in (d,) }"""),
    "products": (lambda x, y: x @ y, (ones(5, 2, 3), ones(5, 3, 4)), """
{ lambda ; a:f32[5,2,3] b:f32[5,3,4]. let
    c:f32[5,2,4] = dot_general[
      dimension_numbers=(([2], [1]), ([0], [0]))
      preferred_element_type=float32
    ] a b
  in (c,) }"""),
    "jit": (jax.jit(lambda x, y: jnp.sin(y) * x), (1.0, 2.0), """
{ lambda ; a:f32[] b:f32[]. let
    c:f32[] = jit[
      name=<lambda>
      jaxpr={ lambda ; a:f32[] b:f32[]. let
          d:f32[] = sin b
          c:f32[] = mul d a
        in (c,) }
    ] a b
  in (c,) }"""),
    "branches": (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), (1.0,), """
{ lambda ; a:f32[]. let
    b:bool[] = gt a 0.0:f32[]
    c:i32[] = convert_element_type[new_dtype=int32 weak_type=False] b
    d:f32[] = cond[
      branches=(
        { lambda ; e:f32[]. let f:f32[] = cos e in (f,) }
        { lambda ; g:f32[]. let h:f32[] = sin g in (h,) }
      )
    ] c a
  in (d,) }"""),
    "loops": (lambda x: jax.lax.while_loop(lambda x: x < 10.0, lambda x: x * 2, x), (1.0,), """
{ lambda ; a:f32[]. let
    b:f32[] = while[
      body_jaxpr={ lambda ; c:f32[]. let d:f32[] = mul c 2.0:f32[] in (d,) }
      body_nconsts=0
      cond_jaxpr={ lambda ; e:f32[]. let f:bool[] = lt e 10.0:f32[] in (f,) }
      cond_nconsts=0
    ] a
  in (b,) }"""),
    "reductions": (lambda x: x.sum(0, keepdims=True) + x.mean(), (ones(3, 2),), """
{ lambda ; a:f32[3,2]. let
    b:f32[2] = reduce_sum[axes=(0,) out_sharding=None] a
    c:f32[1,2] = broadcast_in_dim[broadcast_dimensions=(1,)] b
    d:f32[] = reduce_sum[axes=(0, 1) out_sharding=None] a
    e:f32[] = div d 6.0:f32[]
    f:f32[1,2] = add c e
  in (f,) }"""),
    "shapes": (lambda x: x.reshape(-1)[:, None].T, (ones(3, 2),), """
{ lambda ; a:f32[3,2]. let
    b:f32[6] = reshape[dimensions=None new_sizes=(6,) sharding=None] a
    c:f32[6,1] = broadcast_in_dim[broadcast_dimensions=(0,)] b
    d:f32[1,6] = transpose[permutation=(1, 0)] c
  in (d,) }"""),
    "slices": (lambda x: x[1], (ones(3, 2),), """
{ lambda ; a:f32[3,2]. let
    b:f32[1,2] = slice[limit_indices=(2, 2) start_indices=(1, 0) strides=None] a
    c:f32[2] = squeeze[dimensions=(0,)] b
  in (c,) }"""),
    "constants": (lambda x: (x * TABLE, x * numpy.float32(3), 1.0), (ones(3),), """
{ lambda a:f32[3]; b:f32[3]. let
    c:f32[3] = mul b a
    d:f32[3] = mul b 3.0:f32[]
  in (c, d, 1.0:f32[]) }"""),
    "unused": (lambda x: (x * 2, x)[1], (ones(3),), """
{ lambda ; a:f32[3]. let _:f32[3] = mul a 2.0:f32[] in (a,) }"""),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(x)), (1.0,), """
{ lambda ; a:f32[]. let
    b:f32[] = remat2[
      differentiated=False
      jaxpr={ lambda ; c:f32[]. let d:f32[] = sin c in (d,) }
      policy=None
      prevent_cse=True
    ] a
  in (b,) }"""),
}  # fmt: skip
"""Functions, their arguments, and what JAX 0.10.2 prints for them."""


@pytest.mark.parametrize("name", TEXTS)
def test_programs_read_as_in_jax(name):
    f, args, text = TEXTS[name]
    assert "\n" + str(jax.make_jaxpr(f)(*args)) == text


@jax.custom_jvp
def five(x):
    return jnp.sin(x)


five.defjvp(lambda primals, tangents: (five(primals[0]), 5 * tangents[0]))


@jax.custom_vjp
def seven(x):
    return jnp.sin(x)


seven.defvjp(lambda x: (seven(x), None), lambda kept, ct: (7 * ct,))


@jax.jit
def pair(x, y):
    return x * y, x + 1, x


@jax.jit
def around(x, y):
    first, second, third = pair(x, y)
    return second + first * y, third


PROGRAMS = {
    "nested jit": lambda x: around(x, 3.0)[0] + pair(x, 2.0)[1], "jit in grad": lambda x: jax.grad(
        lambda x: pair(jnp.sin(x), x)[0]
    )(x),
    "scan": lambda x: jax.lax.scan(lambda c, s: (c * jnp.sin(s) + x, c), x, jnp.arange(3.0)),
    "scan without inputs": lambda x: jax.lax.scan(lambda c, _: (c * x, c), x, None, length=2),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x + i, x), "custom_jvp": five, "custom_vjp": seven,
    "while": lambda x: jax.lax.while_loop(lambda c: c < 9.0 * x, lambda c: c * 2, x),
    "switch": lambda x: jax.lax.switch(jnp.int32(x), [jnp.sin, jnp.cos, lambda x: x], x),
    "key": lambda x: jax.random.normal(jax.random.PRNGKey(3), (2,)) * x, "keys": lambda x: x * jax.random.uniform(
        jax.random.split(jax.random.key(jnp.int32(x)))[0]
    ),
    "tree": lambda x: {"a": x, "b": (x + 1, jnp.ones(2))}, "linalg": lambda x: jnp.linalg.cholesky(jnp.eye(2) * x),
    "update": lambda x: jnp.ones(3).at[jnp.array([0, 1])].add(x), "checkpoint": jax.checkpoint(jnp.sin),
    "callback": lambda x: jax.pure_callback(numpy.sin, jax.ShapeDtypeStruct((), "float32"), x),
    "vmap": lambda x: jax.vmap(lambda y: around(y, x)[0])(jnp.arange(2.0)), "integers": lambda x: jnp.int32(x) // 2,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_equation_by_equation(name):
    f = PROGRAMS[name]
    closed = jax.make_jaxpr(f)(1.5)
    expected = gt.tree.leaves(f(1.5))
    again = jax.make_jaxpr(lambda x: _run(closed.jaxpr, closed.consts, [x]))(1.5)
    for got in (
        _run(closed.jaxpr, closed.consts, [1.5]), closed.jaxpr.replace().run(closed.consts, [1.5]),
        jax.core.eval_jaxpr(closed.jaxpr, closed.consts, 1.5), _run(again.jaxpr, again.consts, [1.5]),
    ):  # fmt: skip
        for x, want in zip(got, expected, strict=True):
            assert_close(x, want, steps=32, scale=10.0)


def test_rules_of_users_are_kept():
    for f, factor in ((five, 5.0), (seven, 7.0)):
        closed = jax.make_jaxpr(lambda x, f=f: f(x) * 2)(1.0)
        again = core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr.replace(), closed.consts))
        assert float(jax.grad(lambda x, again=again: again(x)[0])(1.0)) == 2 * factor
        batch = jax.vmap(jax.grad(lambda x, again=again: again(x)[0]))(jnp.ones(2))
        assert batch.tolist() == [2 * factor] * 2


def test_functions_are_inverted_by_their_equations():
    inverses = {jax.lax.exp_p: jnp.log, jax.lax.tanh_p: jnp.arctanh}
    closed = jax.make_jaxpr(lambda x: jnp.exp(jnp.tanh(x)))(1.0)

    def inverse(y):
        env = dict(zip(closed.jaxpr.outvars, [y], strict=True))
        for eqn in closed.jaxpr.eqns[::-1]:
            env[eqn.invars[0]] = inverses[eqn.primitive](*[env[v] for v in eqn.outvars])
        return env[closed.jaxpr.invars[0]]

    y = jnp.exp(jnp.tanh(0.5))
    for f in (inverse, jax.jit(inverse)):
        assert_close(f(y), jnp.float32(0.5), steps=32, scale=10.0)
    assert jax.vmap(inverse)(jnp.ones(2)).tolist() == [0.0, 0.0]


def test_programs_can_be_rewritten():
    closed = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0)
    sin, mul = closed.jaxpr.eqns
    assert (mul.invars[1].val, str(mul.invars[1]), mul.params) == (2.0, "2.0:f32[]", {})
    other = closed.jaxpr.replace(eqns=[sin, mul.replace(primitive=jax.lax.add_p)])
    assert float(jax.core.eval_jaxpr(other, closed.consts, 0.0)[0]) == 2.0
    x, y = core.Var(closed.in_avals[0]), core.Var(closed.in_avals[0])
    own = core.Jaxpr([], [x], [y], [core.new_jaxpr_eqn([x], [y], jax.lax.integer_pow_p, {"y": 3})])
    assert str(own) == "{ lambda ; a:f32[]. let b:f32[] = integer_pow[y=3] a in (b,) }"
    assert float(jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(own, ())))(2.0)[0]) == 8.0
    with pytest.raises(gt.errors.ArgumentError, match="an operation that gtrace has"):
        jax.lax.no_such_operation_p.bind(1.0)


def test_inner_programs_are_found():
    closed = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, s: (around(c, s)[0], c), x, jnp.ones(3)))(1.0)
    (eqn,) = [e for e in closed.eqns if e.primitive is jax.lax.scan_p]
    assert (eqn.params["length"], eqn.params["num_consts"], eqn.params["num_carry"]) == (3, 0, 1)
    assert eqn.params["jaxpr"].in_avals[0].shape == () and len(jax.core.subjaxprs(closed.jaxpr)) == 1
    assert eqn.source_info.name_stack == "" and "test_jax_equations" in eqn.source_info.traceback
