"""Generators of programs of models: norms, attention, optimizers, losses, convolutions."""

from __future__ import annotations

from random import Random

from fuzz.drawing import NUMBERS, floats, generator, way
from fuzz.programs import Input, Lines, Program


def scaled(r: Random, y: str, cols: int, inputs: list[Input], lines: Lines) -> str:
    """Multiply by a scale and add a shift, as layers of norms have them, and as they nearly do."""
    kind = r.choice(["array", "array", "number", "one plus", "negative", "none", "twice"])
    if kind == "number":
        y = lines(f"{y} * {r.choice(NUMBERS)}")
    elif kind != "none":
        inputs.append(Input("w", (cols,), seed=r.randrange(99)))
        scale = {"one plus": "(1.0 + w)", "negative": "(-w)", "twice": "w * w"}.get(kind, "w")
        y = lines(f"{y} * {scale}")
    if r.random() < 0.7:
        if r.random() < 0.8:
            inputs.append(Input("b", (cols,), seed=r.randrange(99)))
            y = lines(f"{y} {r.choice('+-')} b")
        else:
            y = lines(f"{y} + {r.choice(NUMBERS)}")
    return y


@generator
def norms(r: Random) -> Program:
    compares = r.random() < 0.4  # a usual norm, with a constant row, and what tells that from others
    lines, rows, cols = Lines(), r.choice([1, 3, 5]), r.choice([2, 7, 16] if compares else [1, 2, 7, 16])
    shape = (rows, cols) if r.random() < 0.6 else (2, rows, cols)
    filled = "rows" if r.random() < (0.7 if compares else 0.3) else floats(r)
    inputs = [Input("x", shape, filled, seed=r.randrange(99), layout=r.choice(["dense", "dense", "swapped"]))]
    plain = r.random() < (
        0.8 if compares else 0.5
    )  # a norm as it is usually written, so that what changes is beside it
    axis = "-1" if plain else r.choice(["-1", "0", f"{len(shape) - 1}", "(0, 1)"])
    n = {"0": shape[0], "(0, 1)": shape[0] * shape[1]}.get(axis, cols)
    x = "x" if r.random() < 0.7 else lines(r.choice(["x + 1.0", "x * 2.0", "x + x", "m.tanh(x)"]))
    total = r.choice(
        [f"m.mean({x}, {axis}, True)", f"m.sum({x}, {axis}, True) / {n}", f"m.sum({x}, {axis}, True) * {1 / n!r}"]
    )
    centred = x
    if plain or r.random() < 0.75:
        centred = lines(f"{x} - {lines(total)}")
    form = r.randrange(2 if plain else 4)
    if form == 0:
        var = lines(f"m.mean({centred} * {centred}, {axis}, True)")
    elif form == 1:
        var = lines(f"m.mean({centred} ** 2, {axis}, True)")
    elif form == 2:
        var = lines(f"m.var({x}, {axis}, True)")
    else:
        var = lines(f"m.sum({centred} * {centred}, {axis}, True) / {r.choice([n, n, max(n - 1, 1)])}")
    if r.random() < 0.15:
        var = lines(f"m.maximum({var}, 0.0)")
    eps = r.choice(["1e-5", "1e-5", "1e-2", "1.0", "1e-3 * 2"])
    usual = [f"{centred} / m.sqrt({var} + {eps})", f"{centred} * m.rsqrt({var} + {eps})"]
    y = lines(r.choice(usual if plain else [
        *usual, f"{centred} * ({var} + {eps}) ** -0.5", f"{centred} / (m.sqrt({var} + {eps}) + {eps})",
        f"m.rsqrt({eps} + {var}) * {centred}",
    ]))  # fmt: skip
    outputs = [scaled(r, y, cols, inputs, lines)]
    if r.random() < 0.3:
        outputs.append(r.choice([var, centred, y]))
    if compares:
        of = r.choice([var, var, var, centred])
        compared = f"{of} {r.choice(['>', '>', '<=', '=='])} {r.choice(['0.0', '0.0', '0.0', '0.5'])}"
        chosen, product = f"m.where({compared}, {outputs[0]}, {r.choice(['0.0', x])})", f"{outputs[0]} * ({compared})"
        outputs[0] = lines(r.choice([chosen, product, product]))
    if r.random() < 0.4:
        outputs[0] = lines(f"m.{r.choice(['tanh', 'sin', 'relu'])}({outputs[0]})")
    if r.random() < 0.3:
        inputs.append(Input("u", (cols, 3), seed=r.randrange(99)))
        outputs.append(lines(f"m.tanh({x} @ u)"))
        if r.random() < 0.6:  # the gradient adds an array and a number to the norm's
            outputs.append(lines(f"0.5 * m.sum({x})"))
    if r.random() < 0.4:
        outputs.append(
            lines(r.choice([f"m.sum({x})", f"{x} * 2.0", f"m.sum({x} * {x})", f"m.mean({x}, -1)", f"{x} + {y}"]))
        )
    return Program("norms", tuple(inputs), tuple(lines.lines), tuple(outputs), way(r), weighted=r.random() < 0.5)


@generator
def attention(r: Random) -> Program:
    lines, wide, large = Lines(), r.choice([2, 4, 8]), r.random() < 0.5
    if large:  # what becomes torch's kernel
        n = many = r.choice([32, 33])
        lead: tuple[int, ...] = r.choice([(4,), (2, 2), (1, 4), (2, 3)])
    else:
        n, lead = r.choice([1, 3, 6, 20]), r.choice([(), (2,), (2, 3), (2, 2), (1, 2)])
        many = n if r.random() < 0.7 else r.choice([2, 5])
    q = Input("q", (*lead, n, wide), seed=1)
    k, v = Input("k", (*lead, many, wide), seed=2), Input("v", (*lead, many, wide), seed=3)
    inputs = [q, k, v]
    score = lines("q @ m.swap(k)")
    if r.random() < 0.8:
        factor = r.choice([f"{wide**-0.5!r}", "0.3", "-0.5", "-0.1", "2.0"])
        score = lines(r.choice([f"{score} * {factor}", f"{factor} * {score}", f"{score} / {wide**0.5!r}"]))
    kind = r.choice(["none", "causal", "causal", "mask", "bias", "strict", "anti"])
    hidden = r.choice(["-inf", "-inf", "-inf", "-1e9", "-1e30", "0.0", "nan"])
    if kind == "bias":
        inputs.append(Input("bias", (n, many), r.choice(["normal", "normal", "special"]), seed=r.randrange(99)))
        score = lines(f"{score} + bias")
    elif kind != "none":
        if kind == "mask":
            inputs.append(Input("mask", (n, many), "mask", seed=5))
        ones = f"m.ones(({n}, {many}))"
        shown = {
            "mask": "mask", "causal": f"m.tril({ones}) > 0", "strict": f"m.tril({ones}) < 1",
            "anti": f"m.triu({ones}) > 0",
        }[kind]  # fmt: skip
        score = lines(f"m.where({shown}, {score}, {hidden})")
    if r.random() < 0.6:
        p = lines(f"m.softmax({score}, -1)")
    else:
        shift = r.choice([f"m.max({score}, -1, True)", f"m.stop(m.max({score}, -1, True))"])
        e = lines(f"m.exp({score} - {shift})")
        p = lines(f"{e} / m.sum({e}, -1, True)")
    if r.random() < 0.2:
        p = lines(r.choice([f"{p} * 0.5", f"{p} + 0.1", f"{p} * {p}"]))
    outputs = [lines(f"{p} @ v")]
    if r.random() < 0.3:
        outputs.append(r.choice([p, score]))
    return Program("attention", tuple(inputs), tuple(lines.lines), tuple(outputs), r.choice(["value", "grad"]))


@generator
def optimizers(r: Random) -> Program:
    """Updates as they are written by hand, several steps with the state carried."""
    lines, shape = Lines(), r.choice([(3,), (4, 5), (70, 60)])
    inputs = [Input(name, shape, kind, seed=k) for k, (name, kind) in enumerate(
        [("p", "normal"), ("mu", "zeros"), ("nu", "zeros"), ("target", "normal")])]  # fmt: skip
    g = lines(r.choice(["p - target", "2.0 * (p - target)", "m.sin(p) - target", "p * 0 + target"]))
    decay, rate = r.choice(["0.0", "0.01", "0.1"]), r.choice(["0.1", "1e-3", "0.01 * 2"])
    if r.random() < 0.25:
        g = lines(f"{g} + {decay} * p")
    if r.random() < 0.2:
        g = lines(f"m.maximum(m.minimum({g}, 1.0), -1.0)")
    b1, b2 = r.choice([0.9, 0.5]), r.choice([0.999, 0.99])
    mu = lines(r.choice([f"{b1} * mu + {1 - b1!r} * {g}", f"mu * {b1} + {g}", f"mu + {1 - b1!r} * ({g} - mu)"]))
    nu = lines(
        r.choice([f"{b2} * nu + {1 - b2!r} * {g} * {g}", f"{b2} * nu + {1 - b2!r} * {g} ** 2", f"nu + {g} ** 2"])
    )
    kind = r.choice(["adam", "adam", "adamw", "added", "sgd", "rmsprop", "centred", "lion"])
    average = f"{mu} / (m.sqrt({nu}) + 1e-8)"
    corrected = f"{mu} / {1 - b1!r} / (m.sqrt({nu} / {1 - b2!r}) + {r.choice(['1e-8', '1e-3'])})"
    direction = {
        "sgd": mu, "lion": f"m.sign({mu})", "rmsprop": f"{g} / (m.sqrt({nu}) + 1e-8)",
        "centred": f"{g} / m.sqrt(m.maximum({nu} - {mu} * {mu}, 0.0) + 1e-3)",
    }.get(kind, r.choice([average, corrected]))  # fmt: skip
    step = lines(direction)
    if kind == "adamw":
        p = lines(f"p - {rate} * ({step} + {decay} * p)")
    elif kind == "added":
        change = lines(r.choice([f"-{rate} * ({step} + {decay} * p)", f"-{rate} * {step} - {rate} * {decay} * p"]))
        p = lines(f"p + {change}")
        step = r.choice([change, lines(f"m.sum({change} ** 2)")])
    else:
        p = lines(
            r.choice([f"p - {rate} * {step}", f"p + (-{rate}) * {step}", f"p * {1 - 0.1 * 0.01!r} - {rate} * {step}"])
        )
    outputs = [p, mu, nu]
    if r.random() < 0.3:
        outputs.append(r.choice([g, step, step, lines(f"m.sum(({p} - p) ** 2)")]))
    return Program("optimizers", tuple(inputs), tuple(lines.lines), tuple(outputs), carry=3, calls=r.choice([1, 3, 6]))


@generator
def losses(r: Random) -> Program:
    """A network of two layers with cross entropy, or a squared error, as it is written by hand."""
    lines, rows, wide, classes = Lines(), r.choice([1, 4, 9]), r.choice([3, 8]), r.choice([2, 5])
    inputs = [
        Input("x", (rows, wide), floats(r), seed=1),
        Input("w", (wide, classes), seed=2),
        Input("b", (classes,), seed=3),
    ]
    h = lines("x @ w + b")
    if r.random() < 0.5:
        inputs.append(Input("w2", (classes, classes), seed=4))
        h = lines(f"m.{r.choice(['tanh', 'relu', 'sigmoid', 'softplus'])}({h}) @ w2")
    kind = r.choice(["gather", "soft", "logsumexp", "squared", "binary"])
    if kind == "gather":
        inputs.append(Input("labels", (rows,), f"below {classes}", seed=6))
        chosen = lines(f"m.along(m.log_softmax({h}, -1), m.expand(labels, 1), 1)")
        out = lines(r.choice([f"-m.mean({chosen})", f"-m.sum({chosen}) / {rows}", f"-m.sum({chosen} * {chosen})"]))
    elif kind == "soft":
        inputs.append(Input("t", (rows, classes), "positive", seed=5))
        out = lines(f"-m.mean(m.sum(t * m.log_softmax({h}, -1), -1))")
    elif kind == "logsumexp":
        out = lines(f"m.mean(m.logsumexp({h}, -1) - m.sum({h} * {h}, -1))")
    elif kind == "squared":
        out = lines(f"m.mean(({h} - 0.5) ** 2)")
    else:
        inputs.append(Input("t", (rows, classes), "mask", seed=5))
        out = lines(f"m.mean(m.where(t, m.softplus(-{h}), m.softplus({h})))")
    outputs = (out, h) if r.random() < 0.4 else (out,)
    return Program("losses", tuple(inputs), tuple(lines.lines), outputs, way(r))


@generator
def convolutions(r: Random) -> Program:
    lines, channels, wide = Lines(), r.choice([1, 3]), r.choice([1, 4])
    inputs = [Input("x", (2, channels, 7, 6), floats(r), seed=1), Input("w", (wide, channels, 3, 3), seed=2)]
    stride, padding = r.choice([1, 2]), r.choice([0, 1])
    y = lines(f"m.lift(m.F.conv2d)(x, w, stride={stride}, padding={padding})")
    for _ in range(r.randrange(1, 4)):
        mean, mode = f"m.mean({y}, (0, 2, 3), True)", r.choice(["nearest", "bilinear"])
        y = lines(r.choice([
            f"m.relu({y})", f"({y} - {mean}) * m.rsqrt(m.var({y}, (0, 2, 3), True) + 1e-5)", f"{y} + {mean}",
            f"m.lift(m.F.avg_pool2d)({y}, 2, ceil_mode={r.choice(['True', 'False'])}, padding={r.choice('01')})",
            f"m.lift(m.F.max_pool2d)({y}, 2, ceil_mode={r.choice(['True', 'False'])})", f"m.tanh({y}) * 2.0",
            f"m.lift(m.F.interpolate)({y}, scale_factor={r.choice(['2.0', '1.7'])}, mode='{mode}')",
        ]))  # fmt: skip
    return Program("convolutions", tuple(inputs), tuple(lines.lines), (y,), r.choice(["value", "grad"]))
