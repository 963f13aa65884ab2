"""The functions that drawn programs call, as torch has them and as gtrace has them, under one name."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch.nn import functional

import gtrace as gt
import gtrace.numpy
from fuzz import networks
from gtrace.jax import dtypes, lax

gt.config.update(x64=True, jax_results=False)  # importing gtrace.jax changes these

SAME = (
    "exp log sin cos sinh cosh tanh asinh acosh atanh atan2 sqrt rsqrt abs sign erf log1p expm1 sigmoid relu".split()
    + "where einsum tril triu real".split()
)
"""Functions with one name and one meaning in both, for arrays alone."""


def _number(x: torch.Tensor, y: Any) -> torch.Tensor:
    return y if isinstance(y, torch.Tensor) else torch.tensor(y, dtype=x.dtype)


def _torch_reduction(function: Any) -> Any:
    def run(x: torch.Tensor, axis: Any = None, keepdims: bool = False) -> torch.Tensor:
        axes = tuple(range(x.ndim)) if axis is None else axis
        return function(x, axes, keepdim=keepdims)

    return run


def _gtrace_reduction(function: Any) -> Any:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


def _torch_scan(f: Any, init: Any, xs: torch.Tensor) -> Any:
    kept = []
    for x in xs:
        init, y = f(init, x)
        kept.append(y)
    if not kept:
        y = f(init, xs.new_zeros(xs.shape[1:]))[1]
    return init, torch.stack(kept) if kept else y.new_zeros((0, *y.shape))


def _torch_fori(start: int, stop: int, f: Any, x: Any) -> Any:
    for i in range(start, stop):
        x = f(i, x)
    return x


def _torch_while(condition: Any, f: Any, x: Any) -> Any:
    while condition(x):
        x = f(x)
    return x


def _torch_put(x: torch.Tensor, index: Any, value: Any, add: bool = False) -> torch.Tensor:
    if add:  # a place that comes twice is added to twice
        return x.index_put((index,), value, accumulate=True)
    out = x.clone()
    out[index] = value
    return out


def _torch_along(x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    """Gather; places beyond the end, and shapes that other libraries broadcast, are refused."""
    if x.shape[:axis] != index.shape[:axis]:
        raise ValueError("shapes that are broadcast")
    return torch.gather(x, axis, index)


def _ramp(library: Any, x: Any) -> Any:
    size = 1
    for n in x.shape:
        size *= n
    return library.sin(library.arange(1, size + 1, dtype=x.dtype)).reshape(tuple(x.shape))


def _torch_norms(x: torch.Tensor) -> torch.Tensor:
    """Return the norm of each matrix: NaN for those that torch refuses."""
    missing = x.new_full((), float("nan"))
    return torch.stack([torch.linalg.matrix_norm(a, 2) if a.isfinite().all() else missing for a in x])


def _torch_apply(x: torch.Tensor, index: torch.Tensor, f: Any) -> torch.Tensor:
    rows = list(x)
    for k in index.tolist():
        rows[k] = f(rows[k])
    return torch.stack(rows)


def _torch_pullback(f: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    x = x.clone() if x.requires_grad else x.detach().requires_grad_()  # what `f` closes over stays as it is
    out = f(x, *rest)
    (found,) = torch.autograd.grad((out * _ramp(torch, out)).sum(), x, create_graph=True)
    return found


def _torch_pushforward(f: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return a derivative in the direction of the ramp, as that of a pullback by its cotangent."""
    x = x.clone() if x.requires_grad else x.detach().requires_grad_()  # what `f` closes over stays as it is
    out = f(x, *rest)
    cotangent = torch.zeros_like(out).requires_grad_()
    (pulled,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    (found,) = torch.autograd.grad(pulled, cotangent, _ramp(torch, x), create_graph=True)
    return found


def _gtrace_pullback(f: Any, x: Any, *rest: Any) -> Any:
    out, pullback = gt.vjp(f, x, *rest)
    return pullback(_ramp(gt, out))[0]


def _tangents(x: Any, rest: Any) -> tuple[Any, ...]:
    return _ramp(gt, x), *[numpy.zeros(one.shape, dtypes.float0) for one in rest]


def _damped(library: Any, a: Any) -> Any:
    return library.tanh(a) * 0.3 + library.eye(a.shape[0], dtype=a.dtype) * 2.0


def _gtrace_solve(a: Any, b: Any) -> Any:
    """Solve by functions that close over the matrix."""
    a = _damped(gt, a)
    return lax.custom_linear_solve(
        lambda x: a @ x, b, lambda _, y: gt.linalg.solve(a, y), lambda _, y: gt.linalg.solve(gt.moveaxis(a, 0, 1), y)
    )


def _through_numpy(x: Any) -> Any:
    """Return a value by way of NumPy; what is differentiated or traced is refused, as it would lose its derivative."""
    try:
        return gt.array(numpy.asarray(x), dtype=x.dtype)
    except gt.ArrayConcretizationError:
        return x


def _looking(f: Any) -> Any:
    """Return a function of torch that reads values, if it may: a jitted one has none."""

    def call(*arrays: Any) -> Any:
        try:
            return gt.lift(lambda *xs: f(*xs, True))(*arrays)
        except gt.ConcretizationError:
            return gt.lift(lambda *xs: f(*xs, False))(*arrays)

    return call


def _now(x: Any) -> Any:
    """Return a value that is computed before what follows is recorded; in a jitted function it is not."""
    try:
        return gt.eval(x)
    except gt.ConcretizationError:
        return x


def _chosen(library: Any) -> Any:
    return lambda x, number: library.where(x > 1, x, number)


_OF_NUMBERS = {
    "closed over": lambda x, number: gt.jit(lambda x: _chosen(gt)(x, number))(x),
    "static": gt.jit(_chosen(gt), static_argnums=1),
    "argument": gt.jit(_chosen(gt)),
    "lifted": gt.lift(_chosen(torch)),
}
"""Ways of handing a number to a function of an array and a number."""


_GIVEN_AWAY: Any = gt.jit(lambda x: x + 1.0, donate_argnums=0)
_COPIES: dict[str, Any] = {
    "array": gt.array,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "method": lambda x: x.copy(),
}


def _survivor(x: Any, how: str) -> Any:
    """Return a copy of a value and what was computed of the original, whose memory was given away."""
    x = x * 1.0
    kept = _COPIES[how](x)
    return _GIVEN_AWAY(x) * kept


TORCH = SimpleNamespace(
    **{name: getattr(torch, name) for name in SAME},
    sum=_torch_reduction(torch.sum), mean=_torch_reduction(torch.mean), max=_torch_reduction(torch.amax),
    min=_torch_reduction(torch.amin), logsumexp=_torch_reduction(torch.logsumexp),
    var=_torch_reduction(lambda x, axes, keepdim: torch.var(x, axes, correction=0, keepdim=keepdim)),
    maximum=lambda x, y: torch.maximum(x, _number(x, y)), minimum=lambda x, y: torch.minimum(x, _number(x, y)),
    softmax=lambda x, axis: torch.softmax(x, axis), log_softmax=lambda x, axis: torch.log_softmax(x, axis),
    cumsum=lambda x, axis: torch.cumsum(x, axis), softplus=functional.softplus, swap=lambda x: x.transpose(-1, -2),
    concat=lambda xs, axis: torch.cat(xs, axis), flip=lambda x, axis: torch.flip(x, (axis,)),
    roll=lambda x, k, axis: torch.roll(x, k, axis), take=lambda x, i, axis: torch.index_select(x, axis, i),
    along=_torch_along, expand=lambda x, axis: torch.unsqueeze(x, axis),
    sort=lambda x, axis: torch.sort(x, axis).values, stop=lambda x: x.detach(),
    astype=lambda x, name: x.to(getattr(torch, name)), put=_torch_put, scan=_torch_scan, fori=_torch_fori,
    loop=_torch_while, cond=lambda p, f, g, *xs: f(*xs) if p else g(*xs),
    vmap=lambda f, x: torch.stack([f(row) for row in x]), checkpoint=lambda f: f,
    argmin=lambda x, axis: torch.argmin(x, axis), clip=torch.clamp,
    median=lambda x: torch.quantile(x, 0.5), norm2=_torch_norms, inv=torch.linalg.inv,
    ramp=lambda x: _ramp(torch, x), lift=lambda f: f, F=functional, ones=torch.ones, apply=_torch_apply,
    pullback=_torch_pullback, pushforward=_torch_pushforward, linear=_torch_pushforward,
    solve=lambda a, b: torch.linalg.solve(_damped(torch, a), b), through_numpy=lambda x: x,
    survivor=lambda x, how: (x + 1.0) * x, looking=lambda f: lambda *xs: f(*xs, True),
    chosen=lambda x, number, how: _chosen(torch)(x, number), now=lambda x: x, number=int,
    switch=lambda k, branches, *xs: branches[k](*xs), arange=torch.arange, layers=networks.torch_layers,
    train=networks.torch_train,
)  # fmt: skip
"""The functions of torch. An axis of a reduction may be a tuple."""

GTRACE = SimpleNamespace(
    **{name: getattr(gt, name) for name in SAME},
    **{name: _gtrace_reduction(getattr(gt, name)) for name in "sum mean max min var logsumexp".split()},
    **{name: getattr(gt, name) for name in "maximum minimum softmax log_softmax".split()},
    **{name: getattr(gt, name) for name in "cumsum softplus concat flip roll take sort".split()},
    **{name: getattr(gt, name) for name in "scan cond checkpoint lift".split()},
    swap=lambda x: gt.moveaxis(x, -1, -2), along=lambda x, i, axis: gt.take_along_axis(x, i, axis),
    expand=lambda x, axis: gt.expand_dims(x, axis=axis), stop=gt.stop_gradient,
    astype=lambda x, name: x.astype(name), fori=gt.fori_loop, loop=gt.while_loop,
    put=lambda x, index, value, add=False: x.at[index].add(value) if add else x.at[index].set(value),
    argmin=lambda x, axis: gt.argmin(x, axis=axis), clip=gt.clip,
    median=gtrace.numpy.median, norm2=lambda x: gtrace.numpy.linalg.matrix_norm(x, ord=2), inv=gtrace.numpy.linalg.inv,
    vmap=lambda f, x: gt.vmap(f)(x), ramp=lambda x: _ramp(gt, x), F=functional, ones=gt.ones,
    apply=lambda x, index, f: x.at[index].apply(f), pullback=_gtrace_pullback,
    pushforward=lambda f, x, *rest: gt.jvp(f, (x, *rest), _tangents(x, rest))[1],
    linear=lambda f, x, *rest: gt.linearize(f, x, *rest)[1](*_tangents(x, rest)),
    solve=_gtrace_solve, through_numpy=_through_numpy, survivor=_survivor, looking=_looking,
    chosen=lambda x, number, how: _OF_NUMBERS[how](x, number), now=_now, number=lambda x: x, switch=gt.switch,
    arange=gt.arange, layers=networks.gtrace_layers, train=networks.gtrace_train,
)  # fmt: skip
"""The functions of gtrace."""
