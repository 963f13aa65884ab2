"""A character transformer on the text of Python's own language reference, which ships with every Python.

    python examples/char_transformer.py [--quick]

A causal `gt.nn.TransformerEncoder` learns to predict the next character; text is then sampled with a key-value cache,
one character a step. The result is compared with the entropy of characters, and of characters after a given one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from itertools import pairwise
from pydoc_data import topics
from typing import Any

import numpy as np

import gtrace as gt

CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 128, 12, 96, 4, 2
STEPS, RATE = 600, 4e-3


class Model(gt.nn.Module):
    embed: gt.nn.Embedding
    blocks: gt.nn.TransformerEncoder
    head: gt.nn.Linear

    def __init__(self, vocabulary: int, key: gt.Array) -> None:
        keys = gt.random.split(key, 3)
        self.embed = gt.nn.Embedding(vocabulary, WIDTH, key=keys[0])
        self.blocks = gt.nn.TransformerEncoder(
            LAYERS, WIDTH, HEADS, 4 * WIDTH, activation=gt.gelu, causal=True, norm_first=True, norm=True,
            rotary_base=10000.0, key=keys[1],
        )  # fmt: skip
        self.head = gt.nn.Linear(WIDTH, vocabulary, key=keys[2])

    def __call__(self, tokens: Any, cache: Any = None) -> Any:
        """Return logits of the next characters; with a cache, those and the cache with these characters."""
        if cache is None:
            return self.head(self.blocks(self.embed(tokens)))
        hidden, cache = self.blocks(self.embed(tokens), cache=cache)
        return self.head(hidden), cache


def loss(model: Model, text: gt.Array) -> gt.Array:
    """Return the mean cross entropy of the characters after the first, in nats."""
    return gt.nn.cross_entropy(model(text[:, :-1]), text[:, 1:], axis=-1)


def sample(model: Model, prompts: gt.Array, count: int, key: gt.Array, temperature: float = 0.6) -> np.ndarray:
    """Return `count` characters after each prompt, drawn one by one, each by one step of the model."""

    def step(cache: Any, tokens: gt.Array, key: gt.Array) -> tuple[Any, gt.Array, gt.Array]:
        draw, key = gt.random.split(key)
        logits, cache = model(tokens, cache)
        return cache, gt.random.categorical(draw, logits[:, -1] / temperature)[:, None], key

    cache = model.blocks.initial_cache(prompts.shape[0], prompts.shape[1] + count)
    out, tokens = [], prompts
    for _ in range(count):
        cache, tokens, key = step(cache, tokens, key)
        out.append(tokens.numpy()[:, 0])
    return np.stack(out, axis=1)


def entropies(text: str) -> tuple[float, float]:
    """Return the entropy of a character, and of one after a known one, in bits."""
    pairs, firsts = Counter(pairwise(text)), Counter(text[:-1])
    total = sum(firsts.values())
    single = -sum(n / total * math.log2(n / total) for n in firsts.values())
    return single, -sum(n / total * math.log2(n / firsts[a]) for (a, _), n in pairs.items())


def main(quick: bool = False) -> float:
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = sorted(set(text))
    codes = np.array([characters.index(c) for c in text])
    cut = len(codes) * 9 // 10
    train, held = codes[:cut], codes[cut:]
    model = Model(len(characters), gt.random.key(0))
    steps = 5 if quick else STEPS
    schedule = gt.optim.warmup_cosine_decay_schedule(0.0, RATE, max(steps // 20, 1), steps, RATE / 10)
    optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(1.0), gt.optim.adamw(schedule, weight_decay=0.01))
    state = optimizer.init(model)
    rng = np.random.default_rng(0)

    def step(model: Model, state: Any, batch: gt.Array) -> tuple[Model, Any, gt.Array]:
        value, grads = gt.value_and_grad(loss)(model, batch)
        updates, state = optimizer.update(grads, state, model)
        return gt.optim.apply_updates(model, updates), state, value

    start = time.perf_counter()
    for number in range(steps):
        places = rng.integers(0, len(train) - CONTEXT - 1, BATCH)
        batch = gt.array(np.stack([train[p : p + CONTEXT + 1] for p in places]))
        model, state, value = step(model, state, batch)
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number:4}  loss {float(value) / math.log(2):.3f} bits  {time.perf_counter() - start:.0f} s")
    places = np.arange(0, len(held) - CONTEXT - 1, CONTEXT)[: 8 if quick else 256]
    rows = np.stack([held[p : p + CONTEXT + 1] for p in places])
    bits = np.mean([float(loss(model, gt.array(part))) for part in np.array_split(rows, 8)]) / math.log(2)
    prompt = "The statement"
    prompts = gt.array([[characters.index(c) for c in prompt]] * 4)
    start = time.perf_counter()
    drawn = sample(model, prompts, 5 if quick else CONTEXT - len(prompt), gt.random.key(1))
    rate = drawn.size / (time.perf_counter() - start)
    for row in drawn:
        print("|", prompt + "".join(characters[c] for c in row).replace("\n", "\n  "))
    single, after_one = entropies(text)
    print(f"characters: {single:.2f} bits; after a known one: {after_one:.2f} bits; {rate:.0f} characters a second")
    print(f"held-out text: {bits:.3f} bits a character")
    return float(bits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
