"""Write optax.json: parameters after updates by optax, for test_optim.py to compare with. With optax 0.2.8 and jax:

    JAX_PLATFORMS=cpu python tests/data/make_optax.py

A case is an expression in the names of optax; those of optax.contrib are in gtrace.optim too. The parameters and
the gradients are those of `parameters` and `gradients` in test_optim.py, in float64.
"""

import json
from pathlib import Path

import jax
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

STEPS = (1, 2, 6)
CASES = [
    "sgd(0.1)",
    "sgd(0.1, momentum=0.9)",
    "sgd(0.1, momentum=0.9, nesterov=True)",
    "adam(0.1)",
    "adam(0.1, b1=0.8, b2=0.99, eps=1e-3, eps_root=1e-4)",
    "adam(0.1, nesterov=True)",
    "adamw(0.1)",
    "adamw(0.1, weight_decay=0.05, mask={'w': True, 'b': False, 's': False})",
    "adamw(linear_schedule(0.1, 0.01, 4), weight_decay=0.05, nesterov=True)",
    "lion(0.01)",
    "lion(0.01, b1=0.8, b2=0.9, weight_decay=0.1)",
    "rmsprop(0.1)",
    "rmsprop(0.1, decay=0.8, eps=1e-3, initial_scale=1.0, eps_in_sqrt=False)",
    "rmsprop(0.1, centered=True, momentum=0.5, nesterov=True)",
    "rmsprop(0.1, bias_correction=True)",
    "rmsprop(0.1, eps=1e-2, centered=True, bias_correction=True)",
    "adafactor(0.1)",
    "adafactor(0.1, min_dim_size_to_factor=3)",
    "adafactor(0.1, min_dim_size_to_factor=3, clipping_threshold=None, multiply_by_parameter_scale=False)",
    "adafactor(min_dim_size_to_factor=3, momentum=0.9, weight_decay_rate=0.01, decay_offset=-2)",
    "contrib.muon(0.1)",
    "contrib.muon(0.1, nesterov=False, weight_decay=0.1, adam_weight_decay=0.05, consistent_rms=0.2)",
    "contrib.muon(0.1, ns_steps=3, beta=0.8, adam_learning_rate=0.01)",
    "contrib.muon(0.1, muon_weight_dimension_numbers=NUMBERS)",
    "chain(clip_by_global_norm(0.5), sgd(0.1))",
    "chain(clip_by_global_norm(50.0), sgd(0.1))",
    "chain(clip(0.3), adam(0.1))",
    "chain(clip_by_block_rms(0.3), sgd(0.1))",
    "chain(identity(), add_decayed_weights(0.1), scale(-0.5))",
    "chain(add_decayed_weights(linear_schedule(0.1, 0.0, 4)), sgd(0.1))",
    "chain(trace(0.9), ema(0.5), scale(-0.1))",
    "chain(ema(0.5, debias=False), scale_by_learning_rate(exponential_decay(0.1, 2, 0.5)))",
    "masked(sgd(0.1), {'w': True, 'b': False, 's': True})",
    "masked(set_to_zero(), lambda params: {'w': True, 'b': False, 's': False})",
    "chain(scale_by_param_block_rms(), scale(-0.1))",
    "MultiSteps(adam(0.1), 2)",
    "MultiSteps(sgd(0.1, momentum=0.9), 3, use_grad_mean=False)",
    "MultiSteps(sgd(0.1), lambda step: 1 + step % 2)",
]
SCHEDULES = [
    "constant_schedule(0.3)",
    "linear_schedule(1.0, 0.1, 6)",
    "linear_schedule(0.1, 1.0, 6, 3)",
    "polynomial_schedule(1.0, 0.1, 2, 6, 1)",
    "piecewise_constant_schedule(1.0, {3: 0.5, 7: 0.1})",
    "exponential_decay(1.0, 4, 0.5)",
    "exponential_decay(1.0, 3, 0.5, 2, True, 0.3)",
    "exponential_decay(1.0, 3, 1.5, end_value=2.0)",
    "cosine_decay_schedule(1.0, 8)",
    "cosine_decay_schedule(1.0, 8, 0.1, 2.0)",
    "warmup_cosine_decay_schedule(0.1, 1.0, 4, 10, 0.05)",
    "warmup_cosine_decay_schedule(0.0, 1.0, 3, 12, exponent=1.5)",
    "join_schedules([linear_schedule(0.0, 1.0, 3), constant_schedule(0.5)], [4])",
]


def parameters():
    return {
        "w": np.linspace(-1.5, 2.0, 24).reshape(4, 6),
        "b": np.array([0.5, -2.0, 0.01]),
        "s": np.array(1.25),
    }


def gradients(params, step):
    return {name: jnp.cos(params[name] * (step + 1)) + 0.1 * params[name] for name in params}


def run(text):
    numbers = optax.contrib.MuonDimensionNumbers(1, 0)
    names = {**vars(optax), "NUMBERS": lambda params: {"w": numbers, "b": None, "s": None}}
    opt = eval(text, names)
    params = {name: jnp.asarray(x) for name, x in parameters().items()}
    state = opt.init(params)
    stored = []
    for step in range(max(STEPS)):
        updates, state = opt.update(gradients(params, step), state, params)
        params = optax.apply_updates(params, updates)
        if step + 1 in STEPS:
            stored.append({name: np.asarray(x).tolist() for name, x in params.items()})
    return stored


if __name__ == "__main__":
    data = {
        "optax": optax.__version__,
        "steps": STEPS,
        "cases": {text: run(text) for text in CASES},
        "schedules": {text: [float(eval(text, vars(optax))(jnp.asarray(k))) for k in range(13)] for text in SCHEDULES},
    }
    path = Path(__file__).parent / "optax.json"
    path.write_text(json.dumps(data, indent=None, separators=(",", ":")).replace('],"', '],\n"') + "\n")
