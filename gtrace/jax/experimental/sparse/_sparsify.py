"""`sparsify`: a function of dense arrays, for sparse ones. Its program runs equation by equation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace.extend import tree
from gtrace.jax.equations import make_jaxpr
from gtrace.jax.experimental.sparse import _arithmetic as arithmetic
from gtrace.jax.experimental.sparse import _axes as axes
from gtrace.jax.experimental.sparse._base import JAXSparse, is_sparse, refuse
from gtrace.jax.experimental.sparse._coordinates import BCOO
from gtrace.jax.experimental.sparse._products import bcoo_dot_general
from gtrace.jax.experimental.sparse._rows import BCSR
from gtrace.jax.jaxprs import ClosedJaxpr, Literal

LINEAR = frozenset("conj copy copy_p imag neg real".split())
"""Additive functions of elements."""

KEEPING = frozenset(
    """
    abs asin asinh atan atanh bessel_i1e expm1 log1p sign sin sinh sqrt square tan tanh convert_element_type cbrt erf
    """.split()
)
"""Further functions of elements that are zero at zero."""


def _of_elements(eqn: Any, x: BCOO) -> BCOO:
    function = functools.partial(eqn.primitive.bind, **eqn.params)
    return arithmetic.of_elements(function, x, eqn.primitive.name in LINEAR)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda eqn, *operands: function(*operands)


def _with(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    return lambda eqn, *operands: function(*operands, **{name: eqn.params[name] for name in names})


def _stack(eqn: Any, *operands: Any) -> Any:
    axis, shape = eqn.params["axis"], operands[0].shape
    places = [d + (d >= axis) for d in range(len(shape))]
    grown = [
        axes.bcoo_broadcast_in_dim(x, shape=(*shape[:axis], 1, *shape[axis:]), broadcast_dimensions=places)
        for x in operands
    ]
    return axes.bcoo_concatenate(grown, dimension=axis)


def _cond(eqn: Any, index: Any, *operands: Any) -> Any:
    branches = [functools.partial(lambda b, *given: _run_plain(b, given), b) for b in eqn.params["branches"]]
    return gt.switch(index, branches, *map(_unmarked, operands))


def _while(eqn: Any, *operands: Any) -> Any:
    p = eqn.params
    tests, rest = operands[: p["cond_nconsts"]], operands[p["cond_nconsts"] :]
    consts, state = rest[: p["body_nconsts"]], rest[p["body_nconsts"] :]
    return gt.while_loop(
        lambda s: _run_plain(p["cond_jaxpr"], [*tests, *s])[0],
        lambda s: _run_plain(p["body_jaxpr"], [*consts, *s]), list(map(_unmarked, state)),
    )  # fmt: skip


def _scan(eqn: Any, *operands: Any) -> Any:
    p = eqn.params
    n, m = p["num_consts"], p["num_consts"] + p["num_carry"]
    consts, state, xs = operands[:n], list(map(_unmarked, operands[n:m])), list(operands[m:])
    if any(map(is_sparse, xs)):
        refuse("sparsify", "a scan over dense arrays", "one over a sparse array", "Use todense() for it.")

    def step(s: Any, x: Any) -> Any:
        out = _run_plain(p["jaxpr"], [*consts, *s, *x])
        return out[: m - n], out[m - n :]

    state, ys = gt.scan(step, state, xs, p["length"], p["reverse"])
    return [*state, *ys]


def _unmarked(x: Any) -> Any:
    """Return a sparse array without what is known of its places, so that loops keep one structure."""
    return BCOO((x.data, x.indices), shape=x.shape) if isinstance(x, BCOO) else x


def _run_plain(program: Any, operands: Sequence[Any]) -> list[Any]:
    return [_unmarked(x) for x in _run(program, operands)]


def _inner(name: str) -> Callable[..., Any]:
    return lambda eqn, *operands: _run(eqn.params[name], operands)


def _integer_pow(eqn: Any, x: BCOO) -> BCOO:
    return arithmetic.power(x, eqn.params["y"])


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*LINEAR, *KEEPING), _of_elements),
    "add": _plain(arithmetic.add), "add_any": _plain(arithmetic.add), "sub": _plain(arithmetic.subtract),
    "mul": _plain(arithmetic.multiply), "div": _plain(arithmetic.divide), "integer_pow": _integer_pow,
    "broadcast_in_dim": _with(axes.bcoo_broadcast_in_dim, "shape", "broadcast_dimensions"),
    "concatenate": lambda eqn, *xs: axes.bcoo_concatenate(xs, **eqn.params),
    "dot_general": _with(bcoo_dot_general, "dimension_numbers"),
    "dynamic_slice": lambda eqn, x, *starts: axes.bcoo_dynamic_slice(x, starts, eqn.params["slice_sizes"]),
    "reshape": lambda eqn, x: axes.bcoo_reshape(
        x, new_sizes=eqn.params["new_sizes"], dimensions=eqn.params.get("dimensions")
    ),
    "rev": _with(axes.bcoo_rev, "dimensions"),
    "slice": _with(axes.bcoo_slice, "start_indices", "limit_indices", "strides"),
    "squeeze": _with(axes.bcoo_squeeze, "dimensions"), "transpose": _with(axes.bcoo_transpose, "permutation"),
    "reduce_sum": lambda eqn, x: arithmetic.total(x, eqn.params["axes"]), "stack": _stack,
    "jit": _inner("jaxpr"), "closed_call": _inner("call_jaxpr"), "core_call": _inner("call_jaxpr"),
    "cond": _cond, "while": _while, "scan": _scan,
}  # fmt: skip
"""For each of JAX's operations, what it does with sparse operands."""


def _apply(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    name, several = eqn.primitive.name, eqn.primitive.multiple_results
    if not any(map(is_sparse, operands)):
        functions, params = eqn.primitive.get_bind_params(eqn.params)
        found = eqn.primitive.bind(*functions, *operands, **params)
        return list(found) if several else [found]
    rule = RULES.get(name)
    if rule is None:
        refuse("sparsify", "functions that keep zeros", f"the operation {name} of a sparse array")
    rows = any(isinstance(x, BCSR) for x in operands)
    given = [x.to_bcoo() if isinstance(x, BCSR) else x for x in operands]
    found = rule(eqn, *given)
    out = list(found) if several else [found]
    if not rows:
        return out
    return [BCSR.from_bcoo(x) if isinstance(x, BCOO) and x.n_sparse == 2 else x for x in out]


def _run(program: Any, operands: Sequence[Any]) -> list[Any]:
    """Run a program of which some operands are sparse."""
    jaxpr, consts = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _apply(eqn, [read(x) for x in eqn.invars]), strict=True))
    return [read(x) for x in jaxpr.outvars]


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Return a function of dense arrays as one that takes sparse arrays too, and may return them.

    It can use functions that keep zeros, arithmetic, products, sums, slices and changes of shape.

    Args:
        use_tracer: without effect.

    Raises:
        ArgumentError: when called, for an operation whose result would not be sparse.

    >>> import gtrace.jax.numpy as jnp
    >>> m = BCOO(([1., 3.], [[0, 1], [1, 0]]), shape=(2, 2))
    >>> sparsify(lambda m, v: 2 * m.T @ v + 1)(m, jnp.array([1., 2.])).tolist()
    [13.0, 3.0]
    """

    @functools.wraps(f)
    def call(*args: Any, **params: Any) -> Any:
        leaves, structure = tree.flatten(args, is_leaf=is_sparse)
        dense = [gt.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, JAXSparse) else x for x in leaves]
        results: list[Any] = []

        def flat(*given: Any) -> Any:
            out = f(*structure.unflatten(given), **params)
            found, own = tree.flatten(out)
            results[:] = [own]
            return found

        if not any(map(is_sparse, leaves)):
            return f(*args, **params)
        program = make_jaxpr(flat)(*dense)
        return results[0].unflatten(_run(program, leaves))

    return call


def todense(x: Any) -> Any:
    """Return sparse arrays of a pytree as dense ones.

    >>> todense([BCOO(([1.], [[0]]), shape=(2,)), 3])[0].tolist()
    [1.0, 0.0]
    """
    return tree.map(lambda leaf: leaf.todense() if is_sparse(leaf) else leaf, x, is_leaf=is_sparse)
