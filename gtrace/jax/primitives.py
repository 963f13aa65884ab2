"""``Primitive``: operations of other libraries, with rules from JAX's tables.

A call is recorded as a body with rules, as ``custom_jvp`` records its calls. The body is the library's implementation,
run on placeholders. Outside of traced and differentiated functions the implementation is called at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.extend import (
    ArgumentError,
    Array,
    Aval,
    KeyType,
    PRNGKeyArray,
    ShapeError,
    call_with_rules,
    capture,
    cast,
    is_array,
    is_empty,
    keys_of,
    lift,
    lift_numbers,
    message,
    note_token,
    of_user,
    ops,
    thread,
    transposed,
    user_location,
    with_rules,
)
from gtrace.ir import Op, Subgraph, subgraph
from gtrace.jax.avals import UndefinedPrimal, Zero, get_aval, tangent_aval

primitive_jvps: dict[Primitive, Callable[..., Any]] = {}
"""The tangent rules: (primals, tangents, **params) -> (results, their tangents)."""

primitive_transposes: dict[Primitive, Callable[..., Any]] = {}
"""The transposes: (cotangents, *operands, **params) -> a cotangent for each operand."""

primitive_batchers: dict[Primitive, Callable[..., Any]] = {}
axis_primitive_batchers: dict[Primitive, Callable[..., Any]] = {}
fancy_primitive_batchers: dict[Primitive, Callable[..., Any]] = {}
"""The batching rules. Each returns results and their axes.

The first kind takes (args, axes, **params), the second (size, name of the axis, None, args, axes, **params), and the
third (an `AxisData`, args, axes, **params).
"""

lowerings: dict[tuple[Primitive, str | None], Callable[..., Any]] = {}
"""What runs in traced functions, by primitive and platform: (ctx, *args, **params) -> list of results."""


class MissingRuleError(ArgumentError, NotImplementedError):
    """A primitive has no rule for what it is used in."""


def _missing(primitive: Primitive, what: str, fix: str) -> MissingRuleError:
    return MissingRuleError(message(primitive.name, what, "none", fix))


class Primitive:
    """An operation that a library defines by its rules.

    Attributes:
        name: for errors and prints.
        multiple_results: whether it returns a list.

    >>> import gtrace.jax as jax
    >>> from gtrace.jax.interpreters import ad
    >>> double = Primitive("double")
    >>> _ = double.def_impl(lambda x: 2 * x)
    >>> ad.deflinear(double, lambda ct: [2 * ct])
    >>> jax.jit(jax.grad(lambda x: double.bind(x) * x))(3.0)
    Array(12., dtype=float32)
    """

    multiple_results = False
    call_primitive = False
    map_primitive = False
    skip_canonicalization = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return str(self.name)

    def impl(self, *args: Any, **params: Any) -> Any:
        """Compute it. `def_impl` replaces this method; without one the lowering is the implementation.

        Raises:
            MissingRuleError: there is no lowering either.
        """
        results = _body(self, args, params, _abstract(self, args, params))
        return results if self.multiple_results else results[0]

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        """Return the shapes and dtypes of the results; `def_abstract_eval` replaces this method.

        Raises:
            MissingRuleError: always.
        """
        raise _missing(self, "a rule for shapes and dtypes", "Call def_abstract_eval.")

    def def_impl(self, impl: Callable[..., Any]) -> Callable[..., Any]:
        """Set the implementation, and return it."""
        self.impl = impl  # type: ignore[method-assign]
        return impl

    def def_abstract_eval(self, abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function from shapes and dtypes of the arguments to those of the results, and return it."""
        self.abstract_eval = abstract_eval  # type: ignore[method-assign]
        return abstract_eval

    def def_effectful_abstract_eval(self, effectful: Callable[..., Any]) -> Callable[..., Any]:
        """Set such a function that returns a pair of results and effects. The effects are ignored."""
        self.abstract_eval = lambda *avals, **params: effectful(*avals, **params)[0]  # type: ignore[method-assign]
        return effectful

    def def_custom_bind(self, bind: Callable[..., Any]) -> Callable[..., Any]:
        """Replace `bind`, and return the function."""
        self.bind = bind  # type: ignore[method-assign]
        return bind

    def get_bind_params(self, params: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return no functions, and the parameters."""
        return [], params

    def bind(self, *args: Any, **params: Any) -> Any:
        """Call it.

        Args:
            args: arrays, numbers and arrays of keys.
            params: of the rules: any Python values.

        Raises:
            ArgumentError: other arguments.
            MissingRuleError: nothing says how to compute it.
        """
        if thread.trace.tape is None and thread.trace.capture is None:
            return self.impl(*args, **params)
        results = _recorded(self, args, params)
        return results if self.multiple_results else results[0]


def apply_primitive(primitive: Primitive, *args: Any, **params: Any) -> Any:
    """Run a primitive by its lowering: the usual ``impl`` of primitives that have only that."""
    return Primitive.impl(primitive, *args, **params)


# -- a recorded call


@attrs.frozen
class ModuleContext:
    """What lowerings ask of the module around them."""

    platforms: tuple[str, ...] = ("cpu",)

    def add_keepalive(self, value: Any) -> None:
        """Do nothing: a recorded call keeps its function."""


@attrs.frozen(eq=False)
class LoweringContext:
    """The first argument of lowerings.

    Attributes:
        avals_in, avals_out: shapes and dtypes of the arguments and results.
    """

    primitive: Primitive
    avals_in: Sequence[Any]
    avals_out: Sequence[Any] | None
    module_context: ModuleContext = ModuleContext()


def _body(primitive: Primitive, args: Sequence[Any], params: dict[str, Any], avals: Sequence[Any] | None) -> list[Any]:
    """Return the results of the lowering or, without one, of the implementation."""
    rule = lowerings.get((primitive, "cpu")) or lowerings.get((primitive, None))
    if rule is not None:
        return list(rule(LoweringContext(primitive, [get_aval(x) for x in args], avals), *args, **params))
    if "impl" not in vars(primitive):
        raise _missing(primitive, "an implementation", "Call def_impl, or mlir.register_lowering.")
    found = primitive.impl(*args, **params)
    return list(found) if primitive.multiple_results else [found]


def _abstract(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> list[Any] | None:
    """Return the shapes and dtypes of the results by the library's rule; None if it has none."""
    if "abstract_eval" not in vars(primitive):
        return None
    found = primitive.abstract_eval(*[get_aval(x) for x in args], **params)
    return list(found) if primitive.multiple_results else [found]


def _value(x: Any) -> Any:
    """Return an argument or result of a call: an Array, keys, or None and ``float0`` as they are."""
    return x if x is None or isinstance(x, PRNGKeyArray) or is_empty(x) else lift("bind", x)


@attrs.frozen(eq=False)
class _Values:
    """The arguments or results of a call without their Arrays.

    Attributes:
        kinds: for each value `Array`, the dtype of keys, or a 1-tuple of what is no array.
        tangents: the shapes and dtypes of their tangents.
    """

    kinds: tuple[Any, ...]
    tangents: tuple[Any, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> tuple[_Values, list[Array]]:
        """Return the values without their Arrays, and these."""
        kinds = [x.dtype if isinstance(x, PRNGKeyArray) else Array if type(x) is Array else (x,) for x in values]
        arrays = [x._data if isinstance(kind, KeyType) else x for x, kind in zip(values, kinds, strict=True)]
        tangents = [None if x is None else tangent_aval(x) for x in values]
        return cls(tuple(kinds), tuple(tangents)), [x for x in arrays if type(x) is Array]

    def whole(self, arrays: Sequence[Array]) -> list[Any]:
        """Return the values with these Arrays."""
        rest = iter(arrays)
        return [
            next(rest) if kind is Array else keys_of(next(rest), kind) if isinstance(kind, KeyType) else kind[0]
            for kind in self.kinds
        ]

    def each(self, found: Sequence[Any]) -> list[Any]:
        """Return an entry for each value: the next one of `found` for those with Arrays, None for others."""
        rest = iter(found)
        return [None if isinstance(kind, tuple) else next(rest) for kind in self.kinds]

    def moving(self, found: Sequence[Any]) -> list[Any]:
        """Return tangents or cotangents of all values: those of `found`, and `Zero` for each None."""
        return [
            x if x is not None or t is None else Zero(t) for x, t in zip(self.each(found), self.tangents, strict=True)
        ]

    def of_arrays(self, entries: Sequence[Any]) -> list[Any]:
        """Return those of the entries for all values that stand at values with Arrays."""
        return [x for x, kind in zip(entries, self.kinds, strict=True) if not isinstance(kind, tuple)]


def _recorded(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Record a call of the body with the rules."""
    for k, x in enumerate(args):
        if not (x is None or is_array(x) or isinstance(x, PRNGKeyArray) or is_empty(x)):
            got = f"{type(x).__name__} as operand {k}"
            raise ArgumentError(message(primitive.name, "arrays or numbers", got, "Pass it by name."))
    values, operands = _Values.of([_value(x) for x in args])
    avals = _abstract(primitive, values.whole(operands), params)

    def run(inputs: Sequence[Array]) -> tuple[list[Array], _Values]:
        found = [_value(x) for x in _body(primitive, values.whole(inputs), params, avals)]
        if avals is not None:
            _check_agreed(primitive, found, avals)
        results, arrays = _Values.of(found)
        return arrays, results

    what = f"{primitive.name} called at {user_location()}"
    captured = capture(run, [x.aval for x in operands], what, repeated=True, tokens="if any")
    captured = lift_numbers(captured, primitive.name)
    call = PrimitiveCall(primitive, params, len(operands), values, captured.result)
    op = with_rules(call.vjp, call.jvp, call.batch)
    outs = call_with_rules(op, subgraph(captured.graph), [*operands, *captured.constants])
    if captured.token:
        note_token(*outs)
        outs = []
    return call.results.whole(outs)


def _check_agreed(primitive: Primitive, found: Sequence[Any], avals: Sequence[Any]) -> None:
    """Raise for results of other shapes and dtypes than the library's own rule says."""
    got = [x if x is None else get_aval(x) for x in found]
    fit = len(got) == len(avals) and all(
        x is None or (tuple(x.shape) == tuple(a.shape) and x.dtype == a.dtype) for x, a in zip(got, avals, strict=True)
    )
    if not fit:
        fix = "Let def_abstract_eval and def_impl agree."
        raise ShapeError(message(primitive.name, f"results like {list(avals)}", str(got), fix))


@attrs.frozen
class AxisData:
    """The axis of a batch, as the third kind of batching rules gets it."""

    name: Any
    size: int
    spmd_name: Any = None
    explicit_mesh_axis: Any = None


@attrs.frozen(eq=False)
class PrimitiveCall:
    """The rules of one call.

    Attributes:
        count: the number of operands that are arguments; the others are Arrays that the body closes over.
    """

    primitive: Primitive
    params: dict[str, Any]
    count: int
    arguments: _Values
    results: _Values

    @classmethod
    def of(cls, op: Op) -> PrimitiveCall | None:
        """Return the call that an operation is; None: it is another one, such as that of a batch."""
        found = getattr(op.rules.vjp, "__self__", None)
        return found if isinstance(found, PrimitiveCall) else None

    @property
    def takes_arrays_alone(self) -> bool:
        """Whether all arguments and results are Arrays: no keys, nothing that is no array."""
        return all(kind is Array for kind in (*self.arguments.kinds, *self.results.kinds))

    def jvp(self, ts: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
        """Return the tangents of the results, as `Rules.jvp` does."""
        self._refuse_constants([t is not None for t in ts], "differentiated")
        rule = primitive_jvps.get(self.primitive)
        if rule is None:
            raise _missing(self.primitive, "a rule for tangents", "Set interpreters.ad.primitive_jvps.")
        primals = self.arguments.whole(rest[: self.count])
        _, found = of_user(rule)(primals, self.arguments.moving(ts[: self.count]), **self.params)
        tangents = self._several("tangents of results", found, self.results)
        avals = body.graph.out_avals
        return [self._fitting("tangent", t, a) for t, a in zip(self.results.of_arrays(tangents), avals, strict=False)]

    def vjp(self, cts: Any, needed: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
        """Return the cotangents of the operands, as `Rules.vjp` does.

        The rule for tangents is transposed. In the linear function of tangents, its transpose is called.
        """
        self._refuse_constants(needed, "differentiated")
        rule = primitive_transposes.get(self.primitive) if thread.linear else None
        if rule is None:
            if self.primitive not in primitive_jvps:
                raise _missing(self.primitive, "a rule for tangents", "Set interpreters.ad.primitive_jvps.")
            return transposed(self.jvp, cts, needed, rest[:-1], body)
        operands = rest[: self.count]
        wanted = [flag and x.aval.floating for x, flag in zip(operands, needed, strict=False)]
        values = [
            UndefinedPrimal(get_aval(x)) if flag else x
            for x, flag in zip(self.arguments.whole(operands), self.arguments.each(wanted), strict=True)
        ]
        cotangents = self.results.moving(cts)
        given = cotangents if self.primitive.multiple_results else cotangents[0]
        found = of_user(rule)(given, *values, **self.params)
        if found is None or found is Zero or isinstance(found, Zero):
            return [None] * (len(rest) - 1)
        self._check_count("cotangents of arguments", found, self.arguments)
        grads = [
            self._fitting("cotangent", g, x.aval) if flag else None
            for g, x, flag in zip(self.arguments.of_arrays(found), operands, wanted, strict=True)
        ]
        return [*grads, *[None] * (len(rest) - 1 - self.count)]

    def batch(
        self, op: Op, size: int, batched: Sequence[bool], operands: Sequence[Array], body: Subgraph
    ) -> list[tuple[Array, bool]]:
        """Return the results of a batch, as `Rules.batch` does."""
        self._refuse_constants(batched, "batched")
        args = self.arguments.whole(operands[: self.count])
        axes = [0 if flag else None for flag in self.arguments.each(batched[: self.count])]
        name = thread.batched_axis
        if (rule := primitive_batchers.get(self.primitive)) is not None:
            found = of_user(rule)(args, axes, **self.params)
        elif (rule := axis_primitive_batchers.get(self.primitive)) is not None:
            found = of_user(rule)(size, name, None, args, axes, **self.params)
        elif (rule := fancy_primitive_batchers.get(self.primitive)) is not None:
            found = of_user(rule)(AxisData(name, size), args, axes, **self.params)
        else:
            raise _missing(self.primitive, "a rule for batches", "Set interpreters.batching.primitive_batchers.")
        values, places = found
        if not self.primitive.multiple_results:
            values, places = [values], [places]
        elif places is None or isinstance(places, int):
            places = [places] * len(values)
        self._check_count("batched results", values, self.results)
        self._check_count("axes of batched results", places, self.results)
        out = []
        for x, axis, a in zip(
            self.results.of_arrays(values), self.results.of_arrays(places), body.graph.out_avals, strict=False
        ):
            value = x._data if isinstance(x, PRNGKeyArray) else lift(self.primitive.name, x)
            whole = a.shape if axis is None else (size, *a.shape)
            value = value if axis is None else ops.moveaxis(value, axis, 0)
            if value.aval.shape != whole:
                fix = "Let the batching rule return the results of all examples, and their axes."
                raise ShapeError(message(self.primitive.name, f"a batch of shape {whole}", f"{value.aval!r}", fix))
            out.append((value, axis is not None))
        return out

    def _refuse_constants(self, flags: Sequence[bool], what: str) -> None:
        if any(flags[self.count :]):
            got = f"a value it closes over is being {what}"
            fix = "Pass it as an argument."
            raise ArgumentError(message(self.primitive.name, "a function of its arguments alone", got, fix))

    def _several(self, what: str, found: Any, values: _Values) -> Sequence[Any]:
        """Return what a rule found for each value, of which one `Zero` may stand for all."""
        if self.primitive.multiple_results and (found is Zero or isinstance(found, Zero)):
            return [None] * len(values.kinds)
        found = found if self.primitive.multiple_results else [found]
        self._check_count(what, found, values)
        return found

    def _check_count(self, what: str, found: Sequence[Any], values: _Values) -> None:
        if len(found) != len(values.kinds):
            expected = f"{len(values.kinds)} {what}"
            raise ArgumentError(message(self.primitive.name, expected, f"{len(found)}", "Return one for each."))

    def _fitting(self, what: str, x: Any, a: Aval) -> Array | None:
        """Return a tangent or cotangent as an Array of this shape and dtype; None if it is zero."""
        if x is None or x is Zero or isinstance(x, Zero) or is_empty(x) or not a.floating:
            return None
        found = lift(self.primitive.name, x)
        if found.aval.shape != a.shape or (found.aval.complex and not a.complex):
            fix = "Return one of the shape and dtype of the value."
            raise ShapeError(message(self.primitive.name, f"a {what} like {a!r}", repr(found.aval), fix))
        return cast(found, a.dtype)
