"""A policy trained as in PPO on a small pole: rollouts in a scan, advantages backwards, shuffled minibatches."""

import jax
import jax.numpy as jnp
from jax import lax, nn, random


def reset(key):
    return random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def dynamics(state, action):
    x, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    part = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    push = part - 0.05 * turn * cos / 1.1
    new = jnp.stack([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn])
    return new, (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 0.2)


def init(key):
    keys = random.split(key, 3)
    sizes = [(4, 8), (8, 2), (8, 1)]
    names = ["hidden", "policy", "value"]
    make = nn.initializers.orthogonal(0.5)
    return {n: {"w": make(k, s), "b": jnp.zeros(s[1])} for n, k, s in zip(names, keys, sizes)}


def apply(params, state):
    h = jnp.tanh(state @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = h @ params["policy"]["w"] + params["policy"]["b"]
    return nn.log_softmax(logits), jnp.squeeze(h @ params["value"]["w"] + params["value"]["b"], axis=-1)


def rollout(params, key, length):
    def body(state, key):
        key_action, key_reset = random.split(key)
        log_probs, value = apply(params, state)
        action = random.categorical(key_action, log_probs)
        new, done = dynamics(state, action)
        nxt = lax.cond(done, lambda k: reset(k), lambda k: new, key_reset)
        return nxt, {
            "state": state, "action": action, "log_prob": log_probs[action], "value": value, "reward": 1.0, "done": done
        }  # fmt: skip

    key, first = random.split(key)
    return lax.scan(body, reset(first), random.split(key, length))[1]


def advantages(batch, gamma=0.99, decay=0.95):
    def body(carry, x):
        following, total = carry
        keep = 1.0 - x["done"]
        delta = x["reward"] + gamma * following * keep - x["value"]
        total = delta + gamma * decay * keep * total
        return (x["value"], total), total

    zero = jnp.zeros(())
    return lax.scan(body, (zero, zero), batch, reverse=True)[1]


def loss(params, batch, advantage, clip=0.2):
    log_probs, values = jax.vmap(apply, in_axes=(None, 0))(params, batch["state"])
    chosen = jnp.take_along_axis(log_probs, batch["action"][:, None], axis=1)[:, 0]
    ratio = jnp.exp(chosen - batch["log_prob"])
    normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * normal, jnp.clip(ratio, 1 - clip, 1 + clip) * normal).mean()
    error = jnp.square(values - (batch["value"] + advantage)).mean()
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    return -surrogate + 0.5 * error - 0.01 * entropy, {"entropy": entropy}


def iteration(params, key, length=16):
    key_rollout, key_shuffle = random.split(key)
    batch = rollout(params, key_rollout, length)
    advantage = lax.stop_gradient(advantages(batch))
    order = random.permutation(key_shuffle, length)
    parts = jax.tree.map(lambda x: x[order].reshape((2, length // 2) + x.shape[1:]), (batch, advantage))

    def update(params, part):
        (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(params, *part)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), (value, aux["entropy"])

    params, (values, entropies) = lax.scan(update, params, parts)
    return params, values, entropies, batch["done"].sum()


def main(wrap):
    params, values = init(random.PRNGKey(5)), []
    run = wrap(iteration)
    for k in range(2):
        params, value, entropy, ended = run(params, random.fold_in(random.PRNGKey(6), k))
        values.append(value)
    return {"losses": jnp.concatenate(values), "entropy": entropy, "ended": ended, "bias": params["policy"]["b"]}
