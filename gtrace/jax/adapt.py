"""JAX's names over gtrace's functions: parameters under JAX's names, and errors for names that are missing.

``names.json`` lists JAX's public names with their parameters, as `inspect` gives them: ``x`` by position or name,
``x/`` by position alone, ``x=`` by name alone, ``*x`` and ``**x`` any number.
"""

from __future__ import annotations

import difflib
import dis
import functools
import importlib.machinery
import importlib.resources
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from gtrace.extend import ArgumentError, DType, message
from gtrace.jax.keys import taking_keys
from gtrace.jax.operand_checks import checked
from gtrace.jax.scalars import scalar_type
from gtrace.jax.weakness import with_weakness

__version_info__ = (0, 10, 2)
__version__ = "0.10.2"
"""The version of JAX whose results these are. Names and parameters that JAX 0.12 added are there as well."""

TABLE = "docs/jax-names.md"

JAX_NAMES: dict[str, dict[str, str | None]] = json.loads(
    importlib.resources.files("gtrace.jax").joinpath("names.json").read_text(encoding="utf-8")
)
"""The parameters of each public name by module; None for what has none."""

HINTS = frozenset(
    """
    _split_transpose accuracy algorithm allow_negative_indices assume_unique_indices batch_size bucket_size
    check_finite concrete debug enable_eigvec_derivs implementation indices_are_sorted is_stable jitted lapack_driver
    lwork manual_axis_type max_iterations max_squarings method mode_hint optimize out_sharding overwrite_a overwrite_b
    overwrite_c overwrite_input pin precision prevent_cse reduce_axes series_order sharding sort_eigenvalues
    split_transpose spmd_axis_name sum_match turbo unique_indices unroll upper_triangular use_magma
    """.split()
)
"""Parameters that only say how to compute or where: any value of theirs is accepted and ignored."""

INSTEAD = {
    "jax.smap": "Use jax.shard_map.",
    "jax.debug.breakpoint": "Arrays outside of traced functions have values: use breakpoint(), or jax.debug.print.",
    "jax.lax.rng_bit_generator": "Use jax.random.bits with a key.",
    "jax.lax.rng_uniform": "Use jax.random.uniform with a key.",
    "jax.lax.scaled_dot": "Multiply by the scales, and use lax.dot_general.",
    "jax.nn.scaled_dot_general": "Multiply by the scales, and use lax.dot_general.",
    "jax.nn.get_scaled_dot_general_config": "Multiply by the scales, and use lax.dot_general.",
    "jax.sharding.explicit_axes": "There are no explicit axes: use gt.with_sharding.",
    "jax.lax.psum_scatter_start": "Use lax.psum_scatter.",
    "jax.sharding.UnreducedKind": "Reductions over a mesh are always complete.",
    "jax.sharding.ManualAxisType": "Arrays do not say along which axes they vary.",
    "jax.ad_checkpoint.print_saved_residuals": "gt.explain and gt.memory say what a program keeps.",
    "jax.lax.psend": "Use lax.ppermute.",
    "jax.lax.precv": "Use lax.ppermute.",
    "jax.lax.ragged_all_to_all": "Use lax.all_to_all with padding.",
    "jax.lax.stage": "Use jax.jit.",
    "jax.ds": "Use slices, or lax.dynamic_slice.",
    "jax.ad": "Use jax.vjp and jax.jvp.",
    "jax.memory": "Arrays lie where jax.device_put puts them.",
}
"""Replacements for missing names."""

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "copy": (True,),
    "nan_policy": ("propagate",),
    "perturb_singular": (False,),
    "ndmin": (0,),
    "order": ("K", "C", "A"),
    "promote_integers": (True,),
    "wrap_negative_indices": (True,),
}
"""Values besides None and False that leave a parameter without effect."""


TRUE_ALREADY = frozenset(["symmetrize_input", "wrap_negative_indices"])
"""Parameters that are True by default, so that False has an effect."""


@attrs.frozen
class Difference:
    """The missing parameters of a JAX function.

    Attributes:
        refused: parameters that only their default is accepted for.
        renamed: JAX's parameters by ours.
    """

    refused: tuple[str, ...] = ()
    renamed: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class _Parameters:
    """JAX's parameters of a function.

    Attributes:
        positional: those that may be given by position, in their order.
        named: all that may be given by name.
        several: it takes any number of positions.
    """

    positional: tuple[str, ...]
    named: frozenset[str]
    several: bool

    @classmethod
    def parse(cls, text: str) -> _Parameters:
        words = text.split()
        plain = [w.rstrip("/") for w in words if not w.startswith("*") and not w.endswith("=")]
        named = [w.rstrip("=") for w in words if not w.startswith("*") and not w.endswith("/")]
        return cls(tuple(plain), frozenset(named), any(w.startswith("*") for w in words))


def compare(function: Any, text: str) -> Difference | None:
    """Return how a function's parameters differ from JAX's; None if they cannot be compared."""
    theirs = _Parameters.parse(text)
    try:
        ours = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    kinds = [p.kind for p in ours.values()]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return Difference()
    several = inspect.Parameter.VAR_POSITIONAL in kinds
    places = [p.name for p in ours.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    renamed = {}
    if places == ["x", "y"] and len(theirs.positional) == 2:  # names that say nothing but the order
        renamed = {name: own for name, own in zip(theirs.positional, places, strict=True) if name != own}
        return Difference((), renamed)
    for k, name in enumerate(theirs.positional):
        if name not in ours and k < len(places) and places[k] not in {*theirs.positional, *theirs.named}:
            renamed[name] = places[k]
    if several or theirs.several:
        return Difference((), renamed)
    wanted = [*theirs.positional, *sorted(theirs.named - set(theirs.positional))]
    refused = [name for name in wanted if name not in ours and name not in renamed and name not in HINTS]
    return Difference(tuple(refused), renamed)


def adapted(name: str, function: Any, text: str | None) -> Any:
    """Return `function` with JAX's parameters; the function itself if it has them already.

    Args:
        name: JAX's, for errors.
        text: JAX's parameters, or None for what has none.
    """
    if text is None or isinstance(function, type) or not callable(function) or not hasattr(function, "__name__"):
        return function
    difference = compare(function, text)
    if difference is None:
        return function
    theirs = _Parameters.parse(text)
    signature = inspect.signature(function).parameters
    places = [p.name for p in signature.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    only = [p.name for p in signature.values() if p.kind is p.POSITIONAL_ONLY]
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    several = theirs.several or any(p.kind is p.VAR_POSITIONAL for p in signature.values())
    renamed = difference.renamed
    ours = [renamed.get(n, n) for n in theirs.positional]
    # the arguments by position that mean the same here and there
    same = sys.maxsize if several else sum(1 for _ in _common(ours, places))
    if not renamed and same >= len(theirs.positional) and (any_keyword or theirs.named <= set(signature)):
        return function

    def keywords(given: Mapping[str, Any]) -> dict[str, Any]:
        out = {}
        for key, value in given.items():
            if renamed.get(key, key) in signature or any_keyword:
                out[renamed.get(key, key)] = value
            elif key not in theirs.named:
                raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
            elif not _idle(key, value):
                fix = f"See {TABLE} for what differs."
                raise ArgumentError(message(name, f"{key} left to its default", f"{key}={value!r}", fix))
        return out

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > same:
            if len(args) > len(ours):
                raise TypeError(f"{name}() takes {len(ours)} positional arguments but {len(args)} were given")
            kwargs.update(zip(theirs.positional[same:], args[same:], strict=False))
            args = args[:same]
        if not kwargs:
            return function(*args)
        found = keywords(kwargs)
        if only and any(n in found for n in only):
            args = (*args, *[found.pop(n) for n in only[len(args) :] if n in found])
        return function(*args, **found)

    return call


def documented(call: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """Return a function that was made for a name, under that name and with a text."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _common(a: list[str], b: list[str]) -> Any:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def _idle(key: str, value: Any) -> bool:
    if key in HINTS or value is None or (value is False and key not in TRUE_ALREADY):
        return True
    return any(type(value) is type(idle) and value == idle for idle in DEFAULTS.get(key, ()))


def missing(module: str, name: str, known: Iterable[str] = ()) -> Exception:
    """Return the error for a name that a module of JAX's does not have here."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    of_jax = name in JAX_NAMES.get(module, {})
    what = f"{module}.{name} is not part of gtrace" if of_jax else f"{module} has no name {name!r}"
    hint = f" The nearest name is {module}.{near[0]}." if near else ""
    use = INSTEAD.get(f"{module}.{name}")
    hint = hint if use is None else f" {use}"
    text = f"{what}.{hint} {TABLE} lists what there is, and what differs."
    # ``from module import name`` drops the message of an AttributeError
    frame = sys._getframe(2)
    imported = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]
    return ImportError(text, name=name) if imported else AttributeError(text, name=name)


def namespace(module: str, *sources: Any) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module under ``gtrace.jax``.

    A name of JAX's that the module does not define is looked up in `sources`, and gets JAX's parameters.

    Args:
        module: JAX's, such as ``"jax.numpy"``.
    """
    inner = {name.removeprefix(f"{module}."): None for name in JAX_NAMES if name.startswith(f"{module}.")}
    table = {**inner, **JAX_NAMES.get(module, {})}
    place = f"gtrace.{module}"

    def find(name: str) -> Any:
        for source in sources:
            value = source.get(name, missing) if isinstance(source, dict) else getattr(source, name, missing)
            if value is not missing and not isinstance(value, types.ModuleType):
                if value.__class__ is DType:
                    return scalar_type(value)
                full = f"{module}.{name}"
                return taking_keys(full, checked(full, with_weakness(full, adapted(full, value, table[name]))))
        return missing

    def get(name: str) -> Any:
        value = find(name) if name in table else missing
        if value is missing:
            if name.startswith("__"):
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            raise missing(module, name, names())
        setattr(sys.modules[place], name, value)
        return value

    def names() -> list[str]:
        own = vars(sys.modules[place])
        return sorted(name for name in table if name in own or find(name) is not missing)

    return get, names


def module_of_names(name: str, get: Callable[[str], Any], names: Callable[[], list[str]] = list) -> types.ModuleType:
    """Return a module under ``gtrace.jax`` that has no file, only names of JAX's. From now on it can be imported.

    Args:
        name: JAX's, such as ``"jax.scipy.stats.norm"``.
        get, names: its ``__getattr__`` and ``__dir__``.
    """
    made = types.ModuleType(f"gtrace.{name}", f"The names of ``{name}``.")
    made.__spec__ = importlib.machinery.ModuleSpec(made.__name__, None, is_package=True)  # it may have modules
    vars(made).update(__getattr__=get, __dir__=names, __path__=[])
    sys.modules[made.__name__] = made
    package, _, own = made.__name__.rpartition(".")
    setattr(sys.modules[package], own, made)
    return made


def public_modules(package: str, sources: Mapping[str, tuple[Any, ...]]) -> None:
    """Add the modules of a package of JAX's that only have names of `sources`, which are listed by module."""
    for name, own in sources.items():
        module_of_names(f"{package}.{name}", *namespace(f"{package}.{name}", *own))


def submodules(package: str, source: Any) -> None:
    """Add the modules of a package of JAX's that hold the methods of the objects of these names in `source`."""
    names = [full.rpartition(".")[2] for full in JAX_NAMES if full.rpartition(".")[0] == package]
    public_modules(package, {name: (getattr(source, name),) for name in names})


def internal(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module of JAX's internals that libraries import, and of which nothing is here."""

    def get(name: str) -> Any:
        fix = "gt.define_op defines operations."
        text = f"{module}.{name} is one of JAX's internals, which are not part of gtrace. {fix}"
        raise AttributeError(text, name=name)

    return get
