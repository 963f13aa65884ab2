"""Methods with losses or updates of their own, as people write them for JAX, and as torch's users do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from handwritten_networks import Batch, Program, affine_layers, linear, mlp, normal, torch_linear
from measuring.libraries import Function, Names
from models import torch_training, with_moments
from networks import adam, fused_adam
from torch.nn import functional as F  # noqa: N812

from gtrace import tree

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
OBSERVED, ACTIONS = 17, 6
"""Numbers that are observed, and of which an action consists."""


# -- proximal policy optimization


class Ppo(Program):
    """An actor and a critic by a clipped objective (Schulman et al., 2017); the norm of gradients is clipped."""

    batches = 4
    clip, limit = 0.2, 0.5

    def __init__(self, width: int = 64, batch: int = 256) -> None:
        self.width, self.batch = width, batch

    def parameters(self) -> Any:
        rng, width = np.random.default_rng(0), self.width
        return {
            "actor": affine_layers(rng, OBSERVED, width, width, ACTIONS), "spread": np.zeros(ACTIONS, np.float32),
            "critic": affine_layers(rng, OBSERVED, width, width, 1),
        }  # fmt: skip

    def data(self) -> Batch:
        """Return observations, actions, logarithms of their former densities, advantages and returns."""
        rng = np.random.default_rng(1)
        shape = (self.batches, self.batch)
        actions = normal(rng, *shape, ACTIONS)
        densities = (-0.5 * actions**2 - HALF_LOG_TAU).sum(-1) + 0.1 * normal(rng, *shape)
        return normal(rng, *shape, OBSERVED), actions, densities.astype("f4"), normal(rng, *shape), normal(rng, *shape)

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        x, actions, old, advantages, returns = data
        np_, spread = lib.np, p["spread"]
        distance = (actions - mlp(p["actor"], x, np_.tanh)) / np_.exp(spread)
        density = (-0.5 * distance**2 - spread - HALF_LOG_TAU).sum(-1)
        ratio = np_.exp(density - old)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        gain = np_.minimum(ratio * advantages, np_.clip(ratio, 1 - self.clip, 1 + self.clip) * advantages).mean()
        error = ((mlp(p["critic"], x, np_.tanh)[:, 0] - returns) ** 2).mean()
        entropy = (spread + 0.5 + HALF_LOG_TAU).sum()
        return 0.5 * error - gain - 0.01 * entropy

    def step(self, lib: Names) -> Function:
        def step(p: Any, m: Any, v: Any, t: Any, *data: Any) -> Any:
            value, g = lib.value_and_grad(lambda p: self.loss(lib, p, *data))(p)
            size = lib.np.sqrt(sum((one**2).sum() for one in lib.tree.leaves(g)))
            scale = lib.np.minimum(1.0, self.limit / (size + 1e-6))
            g = lib.tree.map(lambda one: one * scale, g)
            return *adam(lib, p, m, v, g, t), value

        return step

    def torch_loss(self, p: Any, *data: Any) -> Any:
        x, actions, old, advantages, returns = data
        spread = p["spread"]
        distance = (actions - mlp(p["actor"], x, torch.tanh, torch_linear)) / spread.exp()
        density = (-0.5 * distance**2 - spread - HALF_LOG_TAU).sum(-1)
        ratio = (density - old).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages).mean()
        error = F.mse_loss(mlp(p["critic"], x, torch.tanh, torch_linear)[:, 0], returns)
        entropy = (spread + 0.5 + HALF_LOG_TAU).sum()
        return 0.5 * error - gain - 0.01 * entropy

    def torch_step(self, p: Any) -> Function:
        return torch_training(lambda *data: self.torch_loss(p, *data), tree.leaves(p), self.limit)


# -- a physics-informed network


class Pinn(Program):
    """Burgers' equation by a network whose derivatives are asked to satisfy it (Raissi et al., 2017)."""

    viscosity = 0.01 / math.pi

    def __init__(self, width: int = 32, points: int = 512, edge: int = 64) -> None:
        self.width, self.points, self.edge = width, points, edge

    def parameters(self) -> Any:
        return affine_layers(np.random.default_rng(0), 2, *[self.width] * 4, 1)

    def data(self) -> Batch:
        """Return times and places inside, then those of the beginning and of both ends with what is known there."""
        rng = np.random.default_rng(1)
        times, places = rng.random(self.points), rng.uniform(-1, 1, self.points)
        first, late = rng.uniform(-1, 1, self.edge), rng.random(self.edge)
        edge_times = np.concatenate([np.zeros(self.edge), late])
        edge_places = np.concatenate([first, np.sign(rng.uniform(-1, 1, self.edge))])
        known = np.concatenate([-np.sin(math.pi * first), np.zeros(self.edge)])
        return tuple(a.astype(np.float32) for a in (times, places, edge_times, edge_places, known))

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        times, places, edge_times, edge_places, known = data

        def u(t: Any, x: Any) -> Any:
            return mlp(p, lib.np.stack([t, x]), lib.np.tanh)[0]

        def residual(t: Any, x: Any) -> Any:
            u_t, u_x = lib.grad(u, 0)(t, x), lib.grad(u, 1)(t, x)
            u_xx = lib.grad(lib.grad(u, 1), 1)(t, x)
            return u_t + u(t, x) * u_x - self.viscosity * u_xx

        inside = lib.vmap(residual)(times, places)
        edge = lib.vmap(u)(edge_times, edge_places) - known
        return (inside**2).mean() + (edge**2).mean()

    def torch_loss(self, p: Any, *data: Any) -> Any:
        times, places, edge_times, edge_places, known = data

        def u(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return mlp(p, torch.stack([t, x], -1), torch.tanh, torch_linear)[:, 0]

        t, x = times.detach().requires_grad_(), places.detach().requires_grad_()
        value = u(t, x)
        ones = torch.ones_like(value)
        u_t, u_x = torch.autograd.grad(value, (t, x), ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        inside = u_t + value * u_x - self.viscosity * u_xx
        return (inside**2).mean() + F.mse_loss(u(edge_times, edge_places), known)


# -- a normalizing flow


class Flow(Program):
    """RealNVP: affine couplings of the halves of a vector, in turn (Dinh et al., 2016)."""

    def __init__(self, layers: int = 6, width: int = 64, size: int = 16, batch: int = 256) -> None:
        self.layers, self.width, self.size, self.batch = layers, width, size, batch

    def parameters(self) -> Any:
        rng = np.random.default_rng(0)
        sizes = (self.size // 2, self.width, self.width, self.size)
        return [affine_layers(rng, *sizes) for _ in range(self.layers)]

    def data(self) -> Batch:
        rng = np.random.default_rng(1)
        return (np.sin(normal(rng, self.batch, self.size) @ normal(rng, self.size, self.size)),)

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        (x,) = data
        half = self.size // 2
        a, b, volume = x[:, :half], x[:, half:], 0.0
        for layers in p:
            out = mlp(layers, a, lib.nn.relu)
            scale = lib.np.tanh(out[:, :half])
            a, b = b * lib.np.exp(scale) + out[:, half:], a
            volume = volume + scale.sum(-1)
        z = lib.np.concatenate([a, b], axis=-1)
        return ((0.5 * z**2 + HALF_LOG_TAU).sum(-1) - volume).mean()

    def torch_loss(self, p: Any, *data: Any) -> Any:
        (x,) = data
        a, b = x.chunk(2, -1)
        volume: Any = 0.0
        for layers in p:
            scale, shift = mlp(layers, a, F.relu, torch_linear).chunk(2, -1)
            scale = scale.tanh()
            a, b = b * scale.exp() + shift, a
            volume = volume + scale.sum(-1)
        z = torch.cat([a, b], -1)
        return ((0.5 * z**2 + HALF_LOG_TAU).sum(-1) - volume).mean()


# -- meta-learning


class Maml(Program):
    """Parameters from which one step of descent learns a sinusoid (Finn et al., 2017)."""

    batches = 4
    rate = 0.01

    def __init__(self, width: int = 40, tasks: int = 10, points: int = 10) -> None:
        self.width, self.tasks, self.points = width, tasks, points

    def parameters(self) -> Any:
        return affine_layers(np.random.default_rng(0), 1, self.width, self.width, 1)

    def data(self) -> Batch:
        """Return points of each task and what they are mapped to: those to learn from, and those to be tested on."""
        rng = np.random.default_rng(1)
        tasks = (self.batches, self.tasks, 1, 1)
        heights, phases = rng.uniform(0.1, 5, tasks), rng.uniform(0, math.pi, tasks)
        xs = [rng.uniform(-5, 5, (*tasks[:2], self.points, 1)) for _ in range(2)]
        return tuple(a.astype(np.float32) for x in xs for a in (x, heights * np.sin(x - phases)))

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        def error(p: Any, x: Any, y: Any) -> Any:
            return ((mlp(p, x, lib.nn.relu) - y) ** 2).mean()

        def task(x: Any, y: Any, x_test: Any, y_test: Any) -> Any:
            g = lib.grad(error)(p, x, y)
            return error(lib.tree.map(lambda p, g: p - self.rate * g, p, g), x_test, y_test)

        return lib.vmap(task)(*data).mean()

    def torch_loss(self, p: Any, *data: Any) -> Any:
        def error(p: Any, x: Any, y: Any) -> Any:
            return F.mse_loss(mlp(p, x, F.relu, linear), y)

        def task(x: Any, y: Any, x_test: Any, y_test: Any) -> Any:
            g = torch.func.grad(error)(p, x, y)
            return error(tree.map(lambda p, g: p - self.rate * g, p, g), x_test, y_test)

        return torch.func.vmap(task)(*data).mean()


# -- soft actor-critic


class Sac(Program):
    """Two critics, an actor and a temperature, each by a loss of its own (Haarnoja et al., 2018)."""

    batches = 4
    discount, kept = 0.99, 0.995

    def __init__(self, width: int = 128, batch: int = 128) -> None:
        self.width, self.batch = width, batch

    def parameters(self) -> Any:
        rng, width = np.random.default_rng(0), self.width
        return {
            "actor": affine_layers(rng, OBSERVED, width, width, 2 * ACTIONS),
            "critics": [affine_layers(rng, OBSERVED + ACTIONS, width, width, 1) for _ in range(2)],
            "temperature": np.zeros((), np.float32),
        }  # fmt: skip

    def data(self) -> Batch:
        """Return observations, actions, rewards, later observations, ends, and noise for actions at both times."""
        rng = np.random.default_rng(1)
        shape = (self.batches, self.batch)
        return (
            normal(rng, *shape, OBSERVED), np.tanh(normal(rng, *shape, ACTIONS)), normal(rng, *shape),
            normal(rng, *shape, OBSERVED), (rng.random(shape) < 0.1).astype(np.float32),
            normal(rng, *shape, ACTIONS), normal(rng, *shape, ACTIONS),
        )  # fmt: skip

    def state(self, lib: Names, p: Any) -> list[Any]:
        return [*with_moments(lib, p), p["critics"]]

    def step(self, lib: Names) -> Function:
        np_ = lib.np

        def act(actor: Any, x: Any, noise: Any) -> tuple[Any, Any]:
            out = mlp(actor, x, lib.nn.relu)
            spread = np_.clip(out[:, ACTIONS:], -5.0, 2.0)
            before = out[:, :ACTIONS] + np_.exp(spread) * noise
            density = -0.5 * noise**2 - spread - HALF_LOG_TAU
            squashed = 2 * (math.log(2) - before - lib.nn.softplus(-2 * before))
            return np_.tanh(before), (density - squashed).sum(-1)

        def worth(critics: Any, x: Any, action: Any) -> list[Any]:
            both = np_.concatenate([x, action], axis=-1)
            return [mlp(critic, both, lib.nn.relu)[:, 0] for critic in critics]

        def step(p: Any, m: Any, v: Any, targets: Any, t: Any, *data: Any) -> Any:
            x, action, reward, later, end, noise, later_noise = data
            alpha = np_.exp(p["temperature"])
            later_action, density = act(p["actor"], later, later_noise)
            least = np_.minimum(*worth(targets, later, later_action))
            wanted = reward + self.discount * (1 - end) * (least - alpha * density)

            def critic_loss(critics: Any) -> Any:
                return sum(((one - wanted) ** 2).mean() for one in worth(critics, x, action))

            def actor_loss(actor: Any) -> Any:
                chosen, density = act(actor, x, noise)
                return (alpha * density - np_.minimum(*worth(new["critics"][0], x, chosen))).mean(), density

            def temperature_loss(temperature: Any) -> Any:
                return -(np_.exp(temperature) * (density - ACTIONS)).mean()

            def updated(name: str, g: Any) -> Any:
                return adam(lib, p[name], m[name], v[name], g, t)

            first, g = lib.value_and_grad(critic_loss)(p["critics"])
            new = {"critics": updated("critics", g)}
            (second, density), g = lib.value_and_grad(actor_loss, has_aux=True)(p["actor"])
            new["actor"] = updated("actor", g)
            third, g = lib.value_and_grad(temperature_loss)(p["temperature"])
            new["temperature"] = updated("temperature", g)
            targets = lib.tree.map(lambda a, b: self.kept * a + (1 - self.kept) * b, targets, new["critics"][0])
            state = ({name: parts[k] for name, parts in new.items()} for k in range(3))
            return *state, targets, first + second + third

        return step

    def torch_step(self, p: Any) -> Function:
        actor, critics, temperature = p["actor"], p["critics"], p["temperature"]
        targets = tree.map(lambda one: one.detach().clone(), critics)
        groups = [tree.leaves(one) for one in (critics, actor, temperature)]
        optimizers = [fused_adam(group) for group in groups]

        def act(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mean, spread = mlp(actor, x, F.relu, torch_linear).chunk(2, -1)
            spread = spread.clamp(-5.0, 2.0)
            before = mean + spread.exp() * noise
            density = -0.5 * noise**2 - spread - HALF_LOG_TAU
            squashed = 2 * (math.log(2) - before - F.softplus(-2 * before))
            return before.tanh(), (density - squashed).sum(-1)

        def worth(critics: Any, x: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
            both = torch.cat([x, action], -1)
            return [mlp(critic, both, F.relu, torch_linear)[:, 0] for critic in critics]

        def descend(k: int, loss: torch.Tensor) -> None:
            optimizers[k].zero_grad()
            loss.backward(inputs=groups[k])
            optimizers[k].step()

        def step(*data: torch.Tensor) -> float:
            x, action, reward, later, end, noise, later_noise = data
            with torch.no_grad():
                alpha = temperature.exp()
                later_action, density = act(later, later_noise)
                least = torch.minimum(*worth(targets, later, later_action))
                wanted = reward + self.discount * (1 - end) * (least - alpha * density)
            a, b = worth(critics, x, action)
            first = F.mse_loss(a, wanted) + F.mse_loss(b, wanted)
            descend(0, first)
            chosen, density = act(x, noise)
            second = (alpha * density - torch.minimum(*worth(critics, x, chosen))).mean()
            descend(1, second)
            third = -(temperature.exp() * (density.detach() - ACTIONS)).mean()
            descend(2, third)
            with torch.no_grad():
                torch._foreach_lerp_(tree.leaves(targets), groups[0], 1 - self.kept)
            return (first + second + third).item()

        return step
