"""Proximal policy optimization (Schulman et al., 2017) balances a pole on a cart, an environment in plain Python.

    python examples/ppo_pole.py [--quick]

The environment knows nothing of arrays: each step looks at the actions that the policy drew, and hands numbers back.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from typing import Any

import numpy as np

import gtrace as gt

nn = gt.nn
CARTS, LENGTH, ROUNDS, EPOCHS, PARTS = 16, 128, 40, 6, 4
GAMMA, DECAY, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-3
LONGEST = 500  # steps of an episode


class Cart:
    """A pole on a cart (Barto, Sutton and Anderson, 1983): pushed left or right in steps of 20 ms."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.reset()

    def reset(self) -> list[float]:
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return self.state

    def step(self, action: int) -> tuple[list[float], bool, bool]:
        """Return the new state, whether the pole fell, and whether the episode ended."""
        x, v, angle, spin = self.state
        sin, cos = math.sin(angle), math.cos(angle)
        part = ((10.0 if action else -10.0) + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        push = part - 0.05 * turn * cos / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn]
        self.steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095
        return self.state, fell, fell or self.steps >= LONGEST


class Agent(nn.Module):
    policy: nn.MLP
    value: nn.MLP

    def __init__(self, key: gt.Array) -> None:
        one, other = gt.random.split(key)
        self.policy = nn.MLP(4, 2, 64, 2, gt.tanh, key=one)
        self.value = nn.MLP(4, 1, 64, 2, gt.tanh, key=other)


def act(agent: Agent, states: gt.Array, key: gt.Array) -> tuple[gt.Array, gt.Array, gt.Array]:
    """Return actions, the logarithms of their probabilities, and the values of the states."""
    logs = nn.log_softmax(agent.policy(states))
    actions = gt.random.categorical(key, logs)
    return actions, gt.take_along_axis(logs, actions[:, None], axis=1)[:, 0], agent.value(states)[:, 0]


def loss(agent: Agent, batch: dict[str, gt.Array]) -> gt.Array:
    logs = nn.log_softmax(agent.policy(batch["states"]))
    chosen = gt.take_along_axis(logs, batch["actions"][:, None], axis=1)[:, 0]
    ratio = gt.exp(chosen - batch["logs"])
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    gain = gt.minimum(ratio * advantages, gt.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
    error = nn.mse_loss(agent.value(batch["states"])[:, 0], batch["returns"])
    entropy = -(gt.exp(logs) * logs).sum(-1).mean()
    return -gain + 0.5 * error - 0.01 * entropy


def rollout(agent: Agent, carts: list[Cart], key: gt.Array, length: int) -> tuple[dict[str, np.ndarray], list[int]]:
    """Return what happened in `length` steps of all carts, and the lengths of the episodes that ended."""
    rows: dict[str, list[Any]] = {name: [] for name in ("states", "actions", "logs", "values", "ended", "rewards")}
    ended: list[int] = []
    for k in range(length):
        states = np.array([cart.state for cart in carts], np.float32)
        actions, logs, values = (x.numpy() for x in act(agent, gt.array(states), gt.random.fold_in(key, k)))
        rewards, ends = [], []
        for cart, action in zip(carts, actions.tolist(), strict=True):
            _, fell, over = cart.step(action)
            rewards.append(0.0 if fell else 0.1)
            ends.append(over)
            if over:
                ended.append(cart.steps)
                cart.reset()
        for name, row in zip(rows, (states, actions, logs, values, ends, rewards), strict=True):
            rows[name].append(row)
    batch = {name: np.array(row) for name, row in rows.items()}
    last = act(agent, gt.array(np.array([cart.state for cart in carts], np.float32)), key)[2].numpy()
    return {**batch, **advantages(batch, last)}, ended


def advantages(batch: dict[str, np.ndarray], last: np.ndarray) -> dict[str, np.ndarray]:
    """Return generalized advantages (Schulman et al., 2015), and what values should have been."""
    out, total, following = np.zeros_like(batch["values"]), 0.0, last
    for k in reversed(range(len(out))):
        goes_on = 1.0 - batch["ended"][k]
        delta = batch["rewards"][k] + GAMMA * following * goes_on - batch["values"][k]
        total = delta + GAMMA * DECAY * goes_on * total
        out[k], following = total, batch["values"][k]
    return {"advantages": out, "returns": out + batch["values"]}


def main(quick: bool = False) -> float:
    agent = Agent(gt.random.key(0))
    carts = [Cart(seed) for seed in range(CARTS)]
    rounds, length = (1, 8) if quick else (ROUNDS, LENGTH)
    schedule = gt.optim.linear_schedule(RATE, 0.0, rounds * EPOCHS * PARTS)
    optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(0.5), gt.optim.adam(schedule))
    state = optimizer.init(agent)

    def update(agent: Agent, state: Any, batch: dict[str, gt.Array]) -> tuple[Agent, Any]:
        grads = gt.grad(loss)(agent, batch)
        updates, state = optimizer.update(grads, state)
        return gt.optim.apply_updates(agent, updates), state

    rng, start = np.random.default_rng(0), time.perf_counter()
    for number in range(rounds):
        batch, ended = rollout(agent, carts, gt.random.fold_in(gt.random.key(1), number), length)
        names = ("states", "actions", "logs", "advantages", "returns")
        flat = {name: batch[name].reshape(-1, *batch[name].shape[2:]) for name in names}
        for _ in range(EPOCHS):
            for part in np.array_split(rng.permutation(CARTS * length), PARTS):
                agent, state = update(agent, state, {name: gt.array(x[part]) for name, x in flat.items()})
            gt.eval(agent, state)
        if number % 5 == 4 or number == rounds - 1:
            mean = np.mean(ended) if ended else math.nan
            print(f"round {number + 1:3}  episodes of {mean:5.1f} steps  {time.perf_counter() - start:.0f} s")
    lengths: list[int] = []
    trials = [Cart(1000 + seed) for seed in range(20)]
    while trials and not quick:  # the likeliest action, until each episode has ended
        actions = gt.argmax(agent.policy(gt.array(np.array([c.state for c in trials], np.float32))), axis=-1).tolist()
        over = [cart.step(action)[2] for cart, action in zip(trials, actions, strict=True)]
        lengths += [cart.steps for cart, end in zip(trials, over, strict=True) if end]
        trials = [cart for cart, end in zip(trials, over, strict=True) if not end]
    result = float(np.mean(lengths)) if lengths else math.nan
    print(f"mean length of 20 new episodes: {result:.1f} of {LONGEST}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
