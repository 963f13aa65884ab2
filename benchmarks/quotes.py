"""The tables of figures that pages quote: which sides of which workloads stand in them, by name.

``python benchmarks/page.py`` writes them into the pages, from the files in benchmarks/results.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Row:
    """A row of a quoted table: a side of gtrace beside a peer in one workload.

    Attributes:
        what: the row's name on the page.
        file, program, workload: where the figures are found.
        ours, peer: the two sides.
        detail: the figure to quote in place of the median, such as "first call, s".
    """

    what: str
    file: str
    program: str
    workload: str
    ours: str = "gt.jit"
    peer: str = "jax.jit"
    detail: str = ""


@attrs.frozen
class Ratios:
    """A quoted table of ratios: a row for each model, a column for each kind of run.

    Attributes:
        file, program: where the figures are found.
        models: names in the results, and on the page.
        kinds: ends of the workloads' names, and heads of the columns.
    """

    file: str
    program: str
    models: dict[str, str]
    kinds: dict[str, str]


INTEL, AVX512, ZEN4 = "two_cores_sapphire_rapids", "two_cores", "two_cores_zen4"
MLP = "value_and_grad, MLP 4x8"
RNN = "gradient of an RNN scanned over 1,000 steps, 32 x 64"
SIXTY = "60 training steps, caches empty"
HESSIAN = "Hessian of a function of 64 parameters"
PER_EXAMPLE = "vmap of the gradient of a 64-wide MLP, 256 examples"
SECOND = "second process: import done to first compiled step"
RUNS = {"20 steps, cold": "20 steps", "120 steps, cold": "120 steps", "600 steps, cold": "600 steps"}

TABLES: dict[str, tuple[Row, ...] | Ratios] = {
    "summary": (
        Row("record one elementwise operation; torch runs it", INTEL, "dispatch",
            "record one elementwise operation (torch: run it)", "gtrace", "torch eager"),
        Row("jitted `value_and_grad` of an MLP 4x8", INTEL, "dispatch", MLP),
        Row("the same, undecorated, hot", INTEL, "dispatch", MLP, "gtrace", "torch eager"),
        Row("gradient of an RNN scanned over 1,000 steps", INTEL, "transforms", RNN),
        Row(f"CNN, {SIXTY}, undecorated", INTEL, "models", "cnn, 60 steps, cold", "gtrace", "torch"),
        Row(f"transformer of 6 layers, {SIXTY}, undecorated", INTEL, "models", "transformer, 60 steps, cold", "gtrace",
            "torch"),
        Row("the same with `gt.jit(wait=True)`", INTEL, "models", "transformer, 60 steps, cold", "gt.jit, wait=True",
            "torch.compile"),
        Row("second process, from imports to the first compiled step", INTEL, "warmstart", SECOND, "gtrace",
            "torch.compile"),
    ),
    "calls": (
        Row("record one elementwise operation; torch runs it", AVX512, "dispatch",
            "record one elementwise operation (torch: run it)", "gtrace", "torch eager"),
        Row(f"jitted {MLP}", AVX512, "dispatch", MLP, peer="torch.compile"),
        Row(f"jitted {MLP}", AVX512, "dispatch", MLP, peer="torch.compile of torch.func"),
        Row(f"jitted {MLP}", AVX512, "dispatch", MLP),
        Row(f"undecorated {MLP}, hot", AVX512, "dispatch", MLP, "gtrace", "torch eager"),
        Row(f"jitted {PER_EXAMPLE}", AVX512, "transforms", PER_EXAMPLE, peer="torch.compile of torch.func"),
        Row(f"jitted {PER_EXAMPLE}", AVX512, "transforms", PER_EXAMPLE),
        Row(f"jitted {HESSIAN}", AVX512, "transforms", HESSIAN, peer="torch.compile of torch.func"),
        Row(f"jitted {HESSIAN}", AVX512, "transforms", HESSIAN),
        Row(f"jitted {RNN}", AVX512, "transforms", RNN, peer="torch eager"),
        Row(f"jitted {RNN}", AVX512, "transforms", RNN),
    ),
    "loops": tuple(Row(name, AVX512, "loops", name) for name in (
        "scan, 10,000 Euler steps of the Lorenz system", "gradient of 2,000 such steps",
        "while_loop, 5,000 iterations of a counter and a scalar", "fori_loop of 200 over a fori_loop of 50",
        "vmap of a while_loop, 256 examples of 3", "adaptive RK45 of a stiff system",
        "HMC, 1,000 samples of 20 leapfrog steps", "Kalman filter, 1,000 steps, 4 x 4", "64 particles, 1,000 steps",
        "PPO, 10 updates of 16 environments", "gradient of an LSTM over 200 steps, 128 x 256",
    )),
    "first_calls": (
        Row("transformer, undecorated, caches empty", ZEN4, "models", "transformer, 60 steps, cold", "gtrace", "torch",
            "first step, s"),
        Row("transformer, `gt.jit(wait=True)`, caches empty", ZEN4, "models", "transformer, 60 steps, cold",
            "gt.jit, wait=True", "torch.compile", "first step, s"),
        Row("transformer, `gt.jit(wait=True)`, caches warm", ZEN4, "models", "transformer, 60 steps, warm",
            "gt.jit, wait=True", "torch.compile", "first step, s"),
        Row("transformer, `gt.jit(wait=True)`, caches warm", ZEN4, "models", "transformer, 60 steps, warm",
            "gt.jit, wait=True", "jax.jit", "first step, s"),
        Row("a network of two layers, second process", AVX512, "warmstart", SECOND, "gtrace", "torch.compile"),
        Row("a network of two layers, second process", AVX512, "warmstart", SECOND, "gtrace", "jax.jit"),
    ),
    "modules": Ratios(ZEN4, "modules", {
        "resnet": "ResNet, group norms", "resnet_bn": "ResNet, batch norms", "unet": "U-Net",
        "vit": "vision transformer", "gpt": "small GPT", "gru": "GRU", "wavenet": "WaveNet",
        "graph": "graph network", "vae": "VAE", "mlp": "MLP",
    }, RUNS),
    "models": Ratios(ZEN4, "models", {
        "transformer": "transformer of 6 layers", "lstm": "LSTM", "cnn": "CNN", "llama": "Llama", "vae": "VAE",
        "small transformer": "small transformer",
    }, RUNS),
    "handwritten": Ratios(ZEN4, "handwritten", {
        "ppo": "PPO", "pinn": "physics-informed network", "flow": "normalizing flow",
        "dropout": "transformer with dropout", "diffusion": "diffusion, a U-Net", "maml": "MAML",
        "sac": "soft actor-critic", "mixer": "MLP-Mixer",
        "gcn": "graph network", "mlp": "MLP with dropout",
    }, {**RUNS, "600 steps, warm": "600 again"}),
}  # fmt: skip
"""The tables that pages quote, by name."""
