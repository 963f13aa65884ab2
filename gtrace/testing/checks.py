"""Checks of Python functions: derivatives, batching, compiled forms, and programs that must be one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import optree
import torch

import gtrace as gt
from gtrace.core.backends.tuned import MIN_OPS
from gtrace.core.base import tree
from gtrace.core.ir.difference import differences
from gtrace.core.ir.graph import print_graph
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.runtime.program import Program
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.transform.jit import Jitted
from gtrace.testing.closeness import assert_close

STEP = 1e-6


# -- derivatives


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = ("fwd", "rev"),
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Compare the derivatives of a function with central differences, and those of the modes with one another.

    Everything is computed in float64, along a fixed direction in each floating argument. The derivative of order k + 1
    is checked as the derivative of the exact one of order k. Each composition of modes is checked.

    Args:
        f: from pytrees to a pytree; its floating outputs are differentiated.
        args: where; floating leaves are converted to float64, others are held fixed.
        order: 1 for first derivatives, 2 for those of these too, ...
        modes: of "fwd" (`gt.jvp`) and "rev" (`gt.grad`).
        rtol, atol: for first derivatives, ten times as much for each further order; `atol` is scaled with the values.

    Raises:
        AssertionError: which derivative, in which mode, by which argument.
        ValueError: no floating argument or output, or an unknown mode.

    >>> check_grads(lambda p: gt.sin(p["w"]) * p["x"], ({"w": gt.array([0.1, 0.2]), "x": gt.array(3.0)},))
    """
    unknown = set(modes) - {"fwd", "rev"}
    if unknown or not modes:
        raise ValueError(f'[check_grads] expected modes among "fwd" and "rev", got {tuple(modes)}.')
    with gt.config(auto_compile=False):
        leaves, structure = tree.flatten(tuple(args))
        arrays = [lift("check_grads", leaf) for leaf in leaves]
        places = [k for k, x in enumerate(arrays) if x.aval.floating]
        if not places:
            raise ValueError("[check_grads] expected a floating argument, got none. Pass one to differentiate by.")
        paths = [tree.paths(tuple(args))[k] for k in places]
        wide = [arrays[k].astype(torch.float64) for k in places]

        def floats(*values: Array) -> list[Array]:
            given = list(arrays)
            for k, value in zip(places, values, strict=True):
                given[k] = value
            rebuilt: Any = structure.unflatten(given)
            return [y for y in map(_lifted, tree.leaves(f(*rebuilt))) if y.aval.floating]

        outputs = floats(*wide)
        if not outputs:
            raise ValueError("[check_grads] expected a floating output, got none. Return what is to be differentiated.")
        weights = [_fixed(y.shape, 3 + k) for k, y in enumerate(outputs)]

        def weighted_sum(*values: Array) -> Array:
            return _inner(floats(*values), weights)

        _check_derivative(weighted_sum, wide, paths, order, modes, rtol, atol, "")


def _lifted(x: Any) -> Array:
    return lift("check_grads", x)


def _check_derivative(
    function: Callable[..., Array],
    values: list[Array],
    paths: list[str],
    order: int,
    modes: Sequence[str],
    rtol: float,
    atol: float,
    of: str,
) -> None:
    """Check the derivatives of a scalar function, and then those of its derivative."""
    directions = [_fixed(x.shape, 50 + k) for k, x in enumerate(values)]
    numeric = [_central(function, values, k, u) for k, u in enumerate(directions)]
    scale = max(1.0, abs(float(function(*values))), *map(abs, numeric)) if numpy.isfinite(numeric).all() else 1.0
    argnums = tuple(range(len(values)))
    totals = {}
    for mode in modes:
        name = f"{mode}{of}"
        if mode == "rev":
            found = [float((g * u).sum()) for g, u in zip(gt.grad(function, argnums)(*values), directions, strict=True)]
            for path, got, expected in zip(paths, found, numeric, strict=True):
                _compare(f"{name} by args{path}", got, expected, "central differences", rtol, atol * scale)
            totals[mode] = sum(found)
        else:
            totals[mode] = float(gt.jvp(function, values, directions)[1])
            _compare(name, totals[mode], sum(numeric), "central differences", rtol, atol * scale)
    if len(totals) == 2:
        _compare(f"fwd{of}", totals["fwd"], totals["rev"], "rev", 1e-8, 1e-10 * scale)
    if order > 1:
        for mode in modes:
            along = _along(function, mode, directions)
            _check_derivative(along, values, paths, order - 1, modes, 10 * rtol, 10 * atol, f" of {mode}{of}")


def _along(function: Callable[..., Array], mode: str, directions: list[Array]) -> Callable[..., Array]:
    """Return the derivative of a scalar function along the directions, as a function."""
    if mode == "fwd":
        return lambda *values: gt.jvp(function, values, directions)[1]
    argnums = tuple(range(len(directions)))
    return lambda *values: _inner(gt.grad(function, argnums)(*values), directions)


def _central(function: Callable[..., Array], values: list[Array], place: int, direction: Array) -> float:
    ends = []
    for sign in (STEP, -STEP):
        moved = list(values)
        moved[place] = values[place] + sign * direction
        ends.append(float(function(*moved)))
    return (ends[0] - ends[1]) / (2 * STEP)


def _compare(name: str, got: float, expected: float, than: str, rtol: float, atol: float) -> None:
    if not numpy.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True):
        raise AssertionError(f"[check_grads] expected the derivative {name} to be {expected!r} by {than}, got {got!r}.")


def _inner(xs: Sequence[Array], ys: Sequence[Array]) -> Array:
    total = gt.zeros((), dtype=torch.float64)
    for x, y in zip(xs, ys, strict=True):
        total = total + (x * y).sum()
    return total


def _fixed(shape: tuple[int, ...], seed: int) -> Array:
    return gt.array(numpy.asarray(numpy.random.default_rng(seed).normal(size=shape)))


# -- batching


def check_vmap(
    f: Callable[..., Any],
    args: Sequence[Any],
    in_axes: Any = 0,
    out_axes: int = 0,
    *,
    steps: int | None = None,
    scale: Any = None,
) -> None:
    """Compare ``gt.vmap(f)(*args)`` with the stacked results of a loop over the batch.

    Args:
        f: a function of one example, over pytrees.
        args: the batch.
        in_axes: as for `gt.vmap`.
        out_axes: where all outputs get the batch.
        steps, scale: of the rounding, as for `assert_close`.

    Raises:
        AssertionError: structure, shape, dtype or values differ.

    >>> check_vmap(lambda x, w: gt.tanh(x @ w), (gt.ones((5, 2)), gt.ones((2, 3))), in_axes=(0, None))
    """
    with gt.config(auto_compile=False):
        got = gt.vmap(f, in_axes, out_axes)(*args)
        spec: Any = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        whole: Any = tuple(args)
        expanded: list[Any] = optree.broadcast_prefix(spec, whole, none_is_leaf=True, namespace=tree.NAMESPACE)
        places: list[Any] = optree.tree_leaves(whole, none_is_leaf=True, namespace=tree.NAMESPACE)
        axes = [axis for axis, leaf in zip(expanded, places, strict=True) if leaf is not None]
        leaves, structure = tree.flatten(tuple(args))
        arrays = [lift("check_vmap", leaf) for leaf in leaves]
        size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
        rows = []
        for i in range(size):
            example: Any = structure.unflatten(
                [x if axis is None else _taken(x, axis, i) for x, axis in zip(arrays, axes, strict=True)]
            )
            rows.append(tree.map(_lifted, f(*example)))
        if rows:
            expected = tree.map(lambda *column: gt.stack(column, axis=out_axes), *rows)
            assert_close(got, expected, "vmap", steps=steps, scale=scale)


def _taken(x: Array, axis: int, index: int) -> Array:
    return gt.from_torch(x.to_torch().select(axis, index).clone())


# -- compiled forms


def uncompiled(jitted: Jitted) -> list[Program]:
    """Return the programs of a jitted function that should be compiled and are not."""
    programs = jitted.programs()
    return [p for p in programs if p.tier != "compiled" and (len(p.graph.nodes) >= MIN_OPS or len(programs) == 1)]


def check_jit(
    f: Callable[..., Any],
    args: Sequence[Any],
    *,
    export: bool = True,
    steps: int | None = None,
    scale: Any = None,
) -> None:
    """Compare what a function returns undecorated and interpreted, jitted and interpreted, compiled, and exported.

    Args:
        f, args: over pytrees of arrays.
        export: also write the function to a file, load it and run that.
        steps, scale: of the rounding, as for `assert_close`.

    Raises:
        AssertionError: the forms differ, or the program could not be compiled.

    >>> check_jit(lambda x: gt.tanh(x) + 1, (gt.ones(3),))  # doctest: +SKIP
    """
    with gt.config(auto_compile=False):
        expected = gt.eval(tree.map(_lifted, f(*args)))
        graph = canonicalize(gt.make_graph(f)(*args)).graph
        forms = [("jitted, interpreted", gt.jit(f, backend="eager")), ("compiled", gt.jit(f))]
        for what, jitted in forms:
            assert_close(jitted(*args), expected, what, steps=steps, scale=scale)
            failed = uncompiled(jitted)
            if failed:
                raise AssertionError(f"[check_jit] expected a compiled program, got a {failed[0].tier} one.")
        if export and graph.nodes:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "function.gtx")
                gt.export(f, *args).save(path)
                assert_close(gt.load(path)(*args), expected, "exported and loaded", steps=steps, scale=scale)


def assert_same_program(f: Callable[..., Any], g: Callable[..., Any], *args: Any) -> None:
    """Fail unless two functions record the same program for arguments like the given ones.

    Programs are the same if their canonical forms are: then they share one compiled form.

    Raises:
        AssertionError: in what they differ, and both programs.

    >>> assert_same_program(lambda x: x * 2.0 + x, lambda x: x + 2.0 * x, gt.ones(3))
    """
    one, other = (canonicalize(gt.make_graph(h)(*args)).graph for h in (f, g))
    if one != other:
        found = [f"  {line}" for line in differences(one, other)] or ["  the programs return other values"]
        raise AssertionError(
            "[assert_same_program] expected one program, got two. What was in the first, and is now in the second:\n"
            + "\n".join([*found, print_graph(one), print_graph(other)])
        )
