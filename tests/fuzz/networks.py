"""Layers in training and whole training loops, by torch and by gtrace: `layers` and `train` of the vocabulary."""

from __future__ import annotations

from typing import Any

import torch

import gtrace as gt
import gtrace.nn

STEPS, DECAYED, SPOILED = 25, 20, 7
"""Steps of a loop, those in which a schedule falls, and of how many steps one has an infinite loss, if it is scaled."""

NAMES = {"BatchNorm1d": "BatchNorm", "BatchNorm2d": "BatchNorm"}
"""What gt.nn calls otherwise."""


def modules(text: str) -> torch.nn.Sequential:
    """Return layers of torch from their text, as "Linear(3, 4); LayerNorm(4)"."""
    return torch.nn.Sequential(*(eval(f"nn.{one.strip()}", {"nn": torch.nn}) for one in text.split(";")))


def shapes(text: str) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of layers."""
    return [tuple(x.shape) for x in modules(text).parameters()]


def torch_layers(text: str, how: str, x: torch.Tensor, *params: torch.Tensor) -> list[torch.Tensor]:
    """Return what layers give in training, and their new statistics."""
    made = modules(text).to(x.dtype).train()
    names = [name for name, _ in made.named_parameters()]
    buffers = {name: value.clone() for name, value in made.named_buffers()}
    out = torch.func.functional_call(made, (dict(zip(names, params, strict=True)), buffers), (x,))
    return [out, *[value for value in buffers.values() if value.is_floating_point()]]


def gtrace_layers(text: str, how: str, x: Any, *params: Any) -> list[Any]:
    """Return the same, of the torch module, or of the layers of gt.nn."""
    if how == "from_module":
        made = modules(text).to(x.aval.dtype)
        names, apply = gt.from_module(made)
        out, state = apply(dict(zip(names, params, strict=True)), x, state=apply.state, train=True)
        return [out, *[value for value in state.values() if value.aval.dtype.is_floating_point]]
    left, kept = list(params), []
    for theirs, one in zip(modules(text), text.split(";"), strict=True):
        name, _, arguments = one.strip().partition("(")
        if not list(theirs.parameters()):
            x = getattr(gt.nn, name.lower())(x)
            continue
        key = {"key": gt.random.key(0)} if name in ("Linear", "Conv1d", "Conv2d") else {}
        layer = eval(f"make({arguments[:-1]}, **key)", {"make": getattr(gt.nn, NAMES.get(name, name)), "key": key})
        layer = layer.replace(**{name: left.pop(0) for name, _ in theirs.named_parameters()})
        if "BatchNorm" in name:
            x, state = layer(x, layer.initial_state(), training=True)
            kept += [gt.stop_gradient(state.running_mean), gt.stop_gradient(state.running_var)]  # as torch's are
        else:
            x = layer(x)
    return [x, *kept]


def _network(library: Any, x: Any, params: Any) -> Any:
    return library.tanh(x @ params[0] + params[1]) @ params[2]


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.05), lambda rate: gt.optim.sgd(rate)),
    "momentum": (lambda p: torch.optim.SGD(p, 0.05, 0.9), lambda rate: gt.optim.sgd(rate, 0.9)),
    "nesterov": (
        lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True), lambda rate: gt.optim.sgd(rate, 0.9, nesterov=True)
    ),
    "adam": (lambda p: torch.optim.Adam(p, 0.05, eps=1e-3), lambda rate: gt.optim.adam(rate, eps=1e-3)),
    "adamw": (
        lambda p: torch.optim.AdamW(p, 0.05, eps=1e-3), lambda rate: gt.optim.adamw(rate, eps=1e-3, weight_decay=1e-2)
    ),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, 0.05, eps=1e-3),
        lambda rate: gt.optim.rmsprop(rate, 0.99, 1e-3, eps_in_sqrt=False),
    ),
}  # fmt: skip
SCHEDULES = {
    "constant": (lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0), lambda: 0.05),
    "linear": (
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, DECAYED),
        lambda: gt.optim.linear_schedule(0.05, 0.005, DECAYED),
    ),
    "cosine": (
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS),
        lambda: gt.optim.cosine_decay_schedule(0.05, STEPS),
    ),
    "exponential": (
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), lambda: gt.optim.exponential_decay(0.05, 1, 0.9)
    ),
}  # fmt: skip
"""With one start, 0.05, by torch and by gtrace."""


def torch_train(
    name: str, schedule: str, every: int, clip: float, scaled: bool, how: str, x: torch.Tensor, y: torch.Tensor,
    *params: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the parameters after 25 steps of a network of two layers, and the last loss.

    Args:
        every: batches for each update, by the mean of their gradients.
        clip: the largest norm of all gradients; 0: they are not clipped.
        scaled: whether the loss is scaled, and some steps are left out as it is infinite.
        how: of gtrace's loop.
    """
    own = [p.detach().clone().requires_grad_() for p in params]
    optimizer = OPTIMIZERS[name][0](own)
    rates = SCHEDULES[schedule][0](optimizer)
    with torch.enable_grad():
        for k in range(STEPS):
            loss = ((_network(torch, x[k % len(x)], own) - y) ** 2).mean()
            grads = torch.autograd.grad(loss, own)
            if scaled and k % SPOILED == 3:
                continue
            for p, g in zip(own, grads, strict=True):
                p.grad = g / every if p.grad is None else p.grad + g / every
            if every == 1 or k % every == every - 1:
                norm = torch.stack([p.grad.norm() for p in own]).norm()
                if clip and norm > clip:
                    for p in own:
                        p.grad = p.grad * (clip / norm)
                optimizer.step()
                rates.step()
                optimizer.zero_grad()
    return [*[p.detach() for p in own], loss.detach()]


def gtrace_train(
    name: str, schedule: str, every: int, clip: float, scaled: bool, how: str, x: Any, y: Any, *params: Any
) -> list[Any]:
    """Return the same; `how` is "loop" (steps one by one), "jitted" (a jitted step) or "fori" (a traced loop)."""
    rate: Any = SCHEDULES[schedule][1]()
    if callable(rate) and x.aval.dtype is torch.float64:  # schedules of counts are of the default dtype
        optimizer: Any = OPTIMIZERS[name][1](lambda count: rate(count.astype("float64")))
    else:
        optimizer = OPTIMIZERS[name][1](rate)
    optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(clip), optimizer) if clip else optimizer
    optimizer = gt.optim.MultiSteps(optimizer, every, accumulator_dtype=x.dtype) if every > 1 else optimizer

    def step(k: Any, carry: Any) -> Any:
        params, state, scale, _ = carry

        def loss(params: Any) -> Any:
            found = gt.mean((_network(gt, x[k % x.shape[0]], params) - y) ** 2)
            spoiled = gt.where(k % SPOILED == 3, float("inf"), 1.0).astype(found.dtype) if scaled else 1.0
            return scale.scale(found * spoiled), found

        grads, found = gt.grad(loss, has_aux=True)(params)
        grads = scale.unscale(grads)
        finite = gt.nn.all_finite(grads)
        updates, new = optimizer.update(grads, state, params)
        stepped = gt.optim.apply_updates(params, updates), new
        if scaled:
            stepped, scale = gt.nn.select_tree(finite, stepped, (params, state)), scale.adjust(finite)
        return *stepped, scale, found

    own = tuple(gt.stop_gradient(p) for p in params)
    carry: Any = own, optimizer.init(own), gt.nn.DynamicLossScale(2.0**10, period=5), gt.sum(x) * 0.0
    if how == "fori":
        carry = gt.fori_loop(0, STEPS, step, carry)
    else:
        step = gt.jit(step) if how == "jitted" else step
        for k in range(STEPS):
            carry = step(gt.array(k), carry)
    return [*carry[0], carry[3]]
