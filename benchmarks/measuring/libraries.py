"""gtrace, torch and JAX under one set of names, so that a program is written once. Also the sides that run it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import numpy
import torch

import gtrace
import gtrace.lax
import gtrace.numpy
import gtrace.random
from gtrace.core.base import tree
from measuring.machine import installed

Names = SimpleNamespace
"""The names for programs: np, nn, lax, random, tree, and the transforms grad, value_and_grad, vmap, hessian and jit."""

Function = Callable[..., Any]


@attrs.frozen
class Side:
    """One way to run a program.

    Attributes:
        name: as tables show it.
        library: that it needs.
        names: returns what programs may use.
        wrap: compiles a program's function, or returns it as it is.
        convert: makes a NumPy array one of the library's.
        wait: returns when a result is ready.
        transforms_only: of no interest to programs without gradients and batches.
        compiles_losses: programs with gradients are not compiled as a whole; `value_and_grad` compiles its loss.
    """

    name: str
    library: str
    names: Callable[[], Names]
    wrap: Function
    convert: Callable[[Any], Any]
    wait: Callable[[Any], Any]
    transforms_only: bool = False
    compiles_losses: bool = False


# -- gtrace and JAX


def gtrace_names() -> Names:
    """Return gtrace's names."""
    return Names(
        np=gtrace.numpy, nn=gtrace.nn, lax=gtrace.lax, random=gtrace.random, tree=tree, grad=gtrace.grad,
        value_and_grad=gtrace.value_and_grad, vmap=gtrace.vmap, hessian=gtrace.hessian, jit=gtrace.jit,
    )  # fmt: skip


def jax_names() -> Names:
    """Return JAX's names."""
    jax = importlib.import_module("jax")
    return Names(
        np=importlib.import_module("jax.numpy"), nn=jax.nn, lax=jax.lax, random=jax.random, tree=jax.tree,
        grad=jax.grad, value_and_grad=jax.value_and_grad, vmap=jax.vmap, hessian=jax.hessian, jit=jax.jit,
    )  # fmt: skip


def _array(value: Any) -> Any:
    return gtrace.array(value, device=device())


def _wait(result: Any) -> Any:
    return _torch_wait(gtrace.eval(result))


def _jax_jit(function: Function) -> Function:
    return importlib.import_module("jax").jit(function)


def _jax_array(value: Any) -> Any:
    return importlib.import_module("jax.numpy").asarray(value)


def _jax_wait(result: Any) -> Any:
    return importlib.import_module("jax").block_until_ready(result)


# -- torch


class _TorchNumpy:
    """torch's functions, with NumPy's names for what torch calls otherwise."""

    permute_dims = staticmethod(torch.permute)
    max = staticmethod(torch.amax)
    split = staticmethod(torch.tensor_split)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


_TORCH_NN = Names(
    softmax=lambda x, axis=-1: torch.softmax(x, axis),
    log_softmax=lambda x, axis=-1: torch.log_softmax(x, axis),
    gelu=lambda x, approximate=True: torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none"),
    relu=torch.relu,
    sigmoid=torch.sigmoid,
    silu=torch.nn.functional.silu,
    one_hot=lambda y, n: torch.nn.functional.one_hot(y, n).to(torch.get_default_dtype()),
)


def torch_names(value_and_grad: Function) -> Names:
    """Return torch's names, with one of its ways to make gradients."""
    return Names(
        np=_TorchNumpy(), nn=_TORCH_NN, tree=tree, value_and_grad=value_and_grad, vmap=torch.func.vmap,
        grad=lambda loss, argnums=0: torch.func.grad(loss, argnums), hessian=torch.func.hessian,
    )  # fmt: skip


def reference_names() -> Names:
    """Return torch's names with torch.func's transforms, and loops as plain loops of Python: slow, and simple."""
    names = torch_names(functional)
    names.lax = Names(scan=_scan, while_loop=_while_loop, fori_loop=_fori_loop)
    return names


def _scan(f: Function, carry: Any, xs: Any, length: int | None = None, reverse: bool = False) -> Any:
    count = length if xs is None else len(tree.leaves(xs)[0])
    assert count is not None
    outputs = []
    for k in reversed(range(count)) if reverse else range(count):
        carry, y = f(carry, tree.map(lambda leaf, k=k: leaf[k], xs))
        outputs.append(y)
    if reverse:
        outputs.reverse()
    return carry, tree.map(lambda *ys: torch.stack([torch.as_tensor(y) for y in ys]), *outputs)


def _while_loop(condition: Function, body: Function, state: Any) -> Any:
    while condition(state):
        state = body(state)
    return tree.map(torch.as_tensor, state)


def _fori_loop(start: int, end: int, body: Function, state: Any) -> Any:
    for k in range(start, end):
        state = body(k, state)
    return state


def autograd(loss: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """Return a function that makes the value and the gradients of `loss` by torch's autograd."""
    chosen = (argnums,) if isinstance(argnums, int) else argnums

    def value_and_grad(*args: Any) -> Any:
        given = list(args)
        for k in chosen:
            given[k] = tree.map(lambda leaf: leaf.detach().requires_grad_(), args[k])
        value = loss(*given)
        wanted = [given[k] for k in chosen]
        leaves, structure = tree.flatten(wanted)
        grads = tree.unflatten(structure, list(torch.autograd.grad(value, leaves)))
        return value.detach(), grads[0] if isinstance(argnums, int) else tuple(grads)

    return value_and_grad


def functional(loss: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """Return a function that makes the value and the gradients of `loss` by torch.func."""
    made = torch.func.grad_and_value(loss, argnums)

    def value_and_grad(*args: Any) -> Any:
        grads, value = made(*args)
        return value, grads

    return value_and_grad


def device() -> torch.device:
    """Return the GPU if torch has one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _torch_array(value: Any) -> torch.Tensor:
    return torch.from_numpy(numpy.array(value)).to(device())


def _torch_wait(result: Any) -> Any:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result


def _as_it_is(function: Function) -> Function:
    return function


def _compiled_side(name: str, mode: str | None) -> Side:
    def wrap(function: Function) -> Function:
        return torch.compile(function, mode=mode)

    def value_and_grad(loss: Function, argnums: int | tuple[int, ...] = 0) -> Function:
        # as people write it: a compiled loss, and autograd around it
        return autograd(wrap(loss), argnums)

    return Side(name, "torch", lambda: torch_names(value_and_grad), wrap, _torch_array, _torch_wait,
                compiles_losses=True)  # fmt: skip


EAGER = Side("torch eager", "torch", lambda: torch_names(autograd), _as_it_is, _torch_array, _torch_wait)
COMPILED = _compiled_side("torch.compile", None)
JITTED = Side("gt.jit", "gtrace", gtrace_names, lambda f: gtrace.jit(f, wait=True), _array, _wait)
UNDECORATED = Side("gtrace", "gtrace", gtrace_names, _as_it_is, _array, _wait)
SIDES = (
    JITTED,
    UNDECORATED,
    EAGER,
    COMPILED,
    Side("torch.compile of torch.func", "torch", lambda: torch_names(functional), torch.compile, _torch_array,
         _torch_wait, transforms_only=True),
    Side("jax.jit", "jax", jax_names, _jax_jit, _jax_array, _jax_wait),
)  # fmt: skip
GPU_SIDES = (
    _compiled_side("torch.compile, reduce-overhead", "reduce-overhead"),
    _compiled_side("torch.compile, max-autotune", "max-autotune"),
)


def available(wanted: list[str] | None = None) -> tuple[list[Side], list[str]]:
    """Return the sides whose library is installed, and a line for each of the others.

    Args:
        wanted: names of sides; None: all.
    """
    every = [*SIDES, *(GPU_SIDES if torch.cuda.is_available() else ())]
    chosen = [side for side in every if wanted is None or side.name in wanted]
    lines = [
        f"left out: {side.name}, because {side.library} is not installed (pip install 'gtrace[bench]')"
        for side in chosen
        if not installed(side.library)
    ]
    return [side for side in chosen if installed(side.library)], lines


def add_sides(parser: argparse.ArgumentParser, default: list[str] | None = None) -> None:
    """Add the option that chooses sides."""
    names = [side.name for side in (*SIDES, *GPU_SIDES)]
    parser.add_argument("--sides", metavar="SIDE", nargs="+", choices=names, default=default,
                        help=f"some of: {', '.join(names)}")  # fmt: skip
