"""Generators of programs, one for each kind of work. Each takes a `random.Random` and returns a `Program`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzz.programs import Input, Lines, Program

Generator = Callable[[Random], Program]
GENERATORS: dict[str, Generator] = {}

UNARY = "exp sin cos tanh sigmoid relu erf softplus abs".split()
NUMBERS = ["0.5", "2.0", "-1.0", "1e-3", "3", "0.0", "-0.75"]


def generator(function: Generator) -> Generator:
    GENERATORS[function.__name__] = function
    return function


def way(r: Random) -> str:
    return r.choice(["value", "grad", "grad", "second"])


def floats(r: Random) -> str:
    return r.choice(["normal"] * 4 + ["rows", "positive", "small", "zeros"])


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
    lines, rows, cols = Lines(), r.choice([1, 3, 5]), r.choice([1, 2, 7, 16])
    shape = (rows, cols) if r.random() < 0.6 else (2, rows, cols)
    filled = "rows" if r.random() < 0.3 else floats(r)
    inputs = [Input("x", shape, filled, seed=r.randrange(99), layout=r.choice(["dense", "dense", "swapped"]))]
    axis = r.choice(["-1", "-1", "-1", "0", f"{len(shape) - 1}", "(0, 1)"])
    n = {"0": shape[0], "(0, 1)": shape[0] * shape[1]}.get(axis, cols)
    x = "x" if r.random() < 0.7 else lines(r.choice(["x + 1.0", "x * 2.0", "x + x", "m.tanh(x)"]))
    total = r.choice(
        [f"m.mean({x}, {axis}, True)", f"m.sum({x}, {axis}, True) / {n}", f"m.sum({x}, {axis}, True) * {1 / n!r}"]
    )
    centred = x
    if r.random() < 0.75:
        centred = lines(f"{x} - {lines(total)}")
    form = r.randrange(4)
    if form == 0:
        var = lines(f"m.mean({centred} * {centred}, {axis}, True)")
    elif form == 1:
        var = lines(f"m.mean({centred} ** 2, {axis}, True)")
    elif form == 2:
        var = lines(f"m.var({x}, {axis}, True)")
    else:
        var = lines(f"m.sum({centred} * {centred}, {axis}, True) / {r.choice([n, n, max(n - 1, 1)])}")
    eps = r.choice(["1e-5", "1e-5", "1e-2", "1.0", "1e-3 * 2"])
    y = lines(r.choice([
        f"{centred} / m.sqrt({var} + {eps})", f"{centred} * m.rsqrt({var} + {eps})",
        f"{centred} * ({var} + {eps}) ** -0.5", f"{centred} / (m.sqrt({var} + {eps}) + {eps})",
        f"m.rsqrt({eps} + {var}) * {centred}",
    ]))  # fmt: skip
    outputs = [scaled(r, y, cols, inputs, lines)]
    if r.random() < 0.3:
        outputs.append(r.choice([var, centred, y]))
    if r.random() < 0.3:
        compared = f"{r.choice([var, centred])} {r.choice(['>', '<='])} {r.choice(['0.0', '0.5'])}"
        outputs[0] = lines(
            r.choice([f"m.where({compared}, {outputs[0]}, {r.choice(['0.0', x])})", f"{outputs[0]} * ({compared})"])
        )
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
    lines, n, wide = Lines(), r.choice([1, 3, 6, 20, 32, 32]), r.choice([2, 4, 8])
    many = n if r.random() < 0.7 else r.choice([2, 5])
    lead = r.choice([(), (2,), (2, 3), (2, 2), (1, 2)])
    q = Input("q", (*lead, n, wide), seed=1)
    k, v = Input("k", (*lead, many, wide), seed=2), Input("v", (*lead, many, wide), seed=3)
    inputs = [q, k, v]
    score = lines("q @ m.swap(k)")
    if r.random() < 0.8:
        factor = r.choice([f"{wide**-0.5!r}", "0.3", "-0.5", "-0.1", "2.0"])
        score = lines(r.choice([f"{score} * {factor}", f"{factor} * {score}", f"{score} / {wide**0.5!r}"]))
    kind = r.choice(["none", "causal", "causal", "mask", "bias", "strict", "anti"])
    hidden = r.choice(["-inf", "-inf", "-inf", "-1e9", "-1e30", "0.0"])
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


def tree(r: Random, names: list[str], depth: int) -> str:
    """Draw an expression of arrays of one shape."""
    if depth == 0 or r.random() < 0.15:
        return r.choice(names) if r.random() < 0.85 else r.choice(NUMBERS)
    kind = r.randrange(8)
    a = tree(r, names, depth - 1)
    if kind < 3:
        return f"({a} {r.choice('+-*')} {tree(r, names, depth - 1)})"
    if a in NUMBERS:
        a = r.choice(names)
    if kind == 3:
        return f"({a} / (1.5 + {r.choice(names)} * {r.choice(names)}))"
    if kind == 4:
        compared = f"{r.choice(names)} {r.choice(['>', '<=', '>='])} {r.choice(['0.0', '0.5', *names])}"
        return f"m.where({compared}, {a}, {r.choice(names)})"
    if kind == 5:
        return f"m.{r.choice(['maximum', 'minimum'])}({r.choice(names)}, {r.choice([a, '0.5'])})"
    if kind == 6:
        return f"({r.choice(names)}) ** {r.choice(['2', '3', '2.0'])}"
    if r.random() < 0.1:  # slopes of infinity before a selection
        return f"m.sqrt(m.relu({a}))"
    return f"m.{r.choice(UNARY)}({r.choice(names) if a.startswith('m.exp') else a})"


@generator
def elementwise(r: Random) -> Program:
    lines, shape = Lines(), r.choice([(1,), (5,), (3, 17), (0, 3), (2, 3, 4)])
    values = r.choice(["special", "large"]) if r.random() < 0.3 else floats(r)
    inputs = [Input(name, shape, values, seed=r.randrange(99)) for name in "xy"]
    names = ["x", "y"]
    for _ in range(r.randrange(2, 7)):
        e = tree(r, names, r.randrange(1, 4))
        if "x" in e or "y" in e or "v" in e:
            names.append(lines(e))
    if values == "large":
        names.append(lines(f"m.{r.choice(['sinh', 'cosh', 'exp', 'tanh', 'expm1', 'softplus'])}({r.choice('xy')})"))
    if not lines.lines:
        names.append(lines("x + y"))
    outputs = tuple(dict.fromkeys([names[-1], r.choice(names[2:])]))
    return Program("elementwise", tuple(inputs), tuple(lines.lines), outputs,
                   "value" if values in ("special", "large") else way(r), weighted=r.random() < 0.5)  # fmt: skip


@generator
def reductions(r: Random) -> Program:
    lines, shape = Lines(), r.choice([(4, 6), (3, 1), (1, 5), (2, 3, 4), (130, 3), (2, 33)])
    inputs = [Input("x", shape, floats(r), seed=r.randrange(99), layout=r.choice(["dense", "swapped"]))]
    names = ["x"]
    for _ in range(r.randrange(2, 6)):
        x, axis = r.choice(names), r.choice(["-1", "0", "1", "(0, 1)"])
        kept = r.choice([
            f"m.{r.choice(['sum', 'mean', 'max', 'min', 'logsumexp', 'var'])}({x}, {axis}, True)",
            f"m.{r.choice(['softmax', 'log_softmax', 'cumsum'])}({x}, {r.choice(['-1', '0'])})",
            f"m.sum({x} * {x}, {axis}, True)", f"m.log(m.sum(m.exp({x}), {axis}, True))",
        ])  # fmt: skip
        y = lines(kept)
        names.append(y)
        if r.random() < 0.7:
            names.append(
                lines(r.choice([f"x - {y}", f"x * {y}", f"m.tanh({y})", f"x / (1.0 + {y} * {y})", f"{y} + 1.0"]))
            )
    if r.random() < 0.5:
        names.append(lines(f"m.{r.choice(['sum', 'mean', 'max'])}({names[-1]})"))
    return Program("reductions", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names[1:])), way(r),
                   weighted=r.random() < 0.5)  # fmt: skip


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


PLACES = ["0", "-1", "slice(1, 3)", "slice(None, None, 2)", "i[:1]"]


@generator
def indexing(r: Random) -> Program:
    lines, rows, cols = Lines(), r.choice([3, 6]), r.choice([1, 4])
    inputs = [
        Input("x", (rows, cols), floats(r), seed=1, layout=r.choice(["dense", "swapped"])),
        Input("i", (5,), f"below {rows}", seed=r.randrange(9)), Input("y", (rows, cols), seed=3),
    ]  # fmt: skip
    names = ["x", "y"]
    for _ in range(r.randrange(2, 7)):
        a, b = r.choice(names), r.choice(names)
        names.append(lines(r.choice([
            f"{a} + m.flip({b}, {r.choice('01')})", f"m.roll({a}, {r.choice(['1', '-2'])}, {r.choice('01')})",
            f"m.put({a}, {r.choice(PLACES)}, {r.choice(['0.0', '1.5'])})",
            f"m.put({a}, i, m.take({b}, i, 0), True)", f"m.put({a}, slice(1, 3), {b}[:2])",
            f"m.concat([{a}[1:], {b}[:1]], 0)", f"m.concat([{a}[::2], {b}[1::2]], 0)[:{rows}]",
            f"m.take({a}, m.concat([i, i], 0)[:{rows}], 0)", f"m.where({a} > 0.0, {b}, {a})",
            f"m.swap(m.tril(m.swap({a})))", f"m.cumsum({a}, 0)", f"{a} * {b}[0]", f"m.sort({a}, {r.choice('01')})",
        ])))  # fmt: skip
    return Program("indexing", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)), way(r))


@generator
def control(r: Random) -> Program:
    lines, n = Lines(), r.choice([1, 3])
    inputs = [Input("x", (n,), floats(r), seed=1), Input("xs", (4, n), seed=2), Input("w", (n,), seed=3)]
    names = ["x", "w"]
    for _ in range(r.randrange(1, 4)):
        a, b = r.choice(names), r.choice(names)
        e, f = tree(r, ["c", "t"], 2), tree(r, ["c", b], 2)
        e, f = f"(c * 0.5 + 0.1 * m.tanh({e} + c))", f"(0.3 * m.sin({f} + c))"
        # NaN where the other branch is taken
        edge = r.choice(["m.log(m.sum(c))", "m.sqrt(m.sum(c))", "m.rsqrt(m.sum(c))"])
        names.append(lines(r.choice([
            f"m.scan(lambda c, t: ({e}, c * t), {a}, xs)[0]",
            f"m.sum(m.scan(lambda c, t: ({e}, c + {b}), {a}, xs)[1], 0)",
            f"m.fori(0, {r.choice('135')}, lambda i, c: {f} + {b}, {a})",
            f"m.cond(m.sum({a}) > {r.choice(['0.0', '100.0'])}, lambda c: {f}, lambda c: c * {b}, {b})",
            f"m.checkpoint(lambda c: {f} * {b})({a})",
            f"m.sum(m.vmap(lambda c: m.cond(m.sum(c) > 0.0, lambda c: {edge} * {b}, lambda c: {f}, c), xs), 0)",
            f"m.sum(m.vmap(lambda c: {f} * {b}, xs), 0)",
            f"m.sum(m.vmap(lambda c: m.where(c > 0.0, {f}, c * c), xs) * xs, 0)",
        ])))  # fmt: skip
    return Program("control", tuple(inputs), tuple(lines.lines), (names[-1],), way(r))


@generator
def mixed(r: Random) -> Program:
    """Values that are rounded to 16 bits on the way."""
    lines, shape, name = Lines(), r.choice([(5,), (3, 17)]), r.choice(["bfloat16", "float16"])
    inputs = [Input("x", shape, r.choice(["normal", "positive"]), seed=1), Input("y", shape, seed=2)]
    a = lines(f"m.astype(x, '{name}')")
    b = lines(f"m.astype(y, '{name}')")
    names = [a, b]
    for _ in range(r.randrange(1, 4)):
        names.append(
            lines(tree(r, names, 2)) if r.random() < 0.7 else lines(f"{r.choice(names)} * {r.choice(NUMBERS)}")
        )
    out = (
        lines(f"m.astype({names[-1]}, 'float32') {r.choice(['- x', '* y', '+ 1.0'])}")
        if r.random() < 0.5
        else names[-1]
    )
    return Program("mixed", tuple(inputs), tuple(lines.lines), (out,), r.choice(["value", "grad"]))


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


@generator
def writes(r: Random) -> Program:
    """A function of torch that writes to views."""
    inputs = [Input("x", (4, 6), floats(r), seed=1, layout=r.choice(["dense", "swapped"])), Input("y", (4, 6), seed=2)]
    # memory that is read by strides: as gtrace has no layouts, of a dense copy
    body, dense = [r.choice(["z = x.clone()", "z = x.clone(memory_format=torch.contiguous_format)"])], []
    if "contiguous" in body[0]:
        dense = ["z[1:].as_strided((2, 2), (6, 1), 7)", "z.as_strided((3, 2), (1, 6))"]
    for k in range(r.randrange(1, 5)):
        view = r.choice(
            ["z[1:]", "z[:, ::2]", "z.t()", "z[0]", "z.view(6, 4)", "z[:, 1:5]", "z.diagonal()", "z", *dense]
        )
        value = r.choice(["2.0", "0.5", "y.mean()", "x.sum()", "z.sum()"])
        body.append(f"u{k} = {view}" if k % 2 else f"u{k} = {view}; q = u{k} * 1.0")
        body.append(r.choice([f"u{k}.add_({value})", f"u{k}.mul_({value})", f"u{k}.copy_(u{k}.sin() + {value})",
                              f"u{k}.clamp_(-1.0, 1.5)", f"u{k}.sub_(u{k} * 0.25)"]))  # fmt: skip
    if r.random() < 0.3:
        body.append(r.choice(["with torch.no_grad(): z.mul_(0.5)", "with torch.no_grad(): z[0].copy_(y[1])"]))
    body.append(r.choice(["return z + y", "return z * y, u0.sum()", "return z, z.clone() + u0.mean()"]))
    indented = "\n".join(f"        {line}" for line in body)
    text = f"def inner(x, y):\n{indented}"
    lines = "out = m.lift(inner)(x, y)", "v0 = out[0] if isinstance(out, tuple) else out"
    return Program("writes", tuple(inputs), lines, ("v0",), r.choice(["value", "grad"]), definitions=(text,))


@generator
def integers(r: Random) -> Program:
    lines, name = Lines(), r.choice(["int8", "uint8", "int16", "int32", "int64"])
    inputs = [Input("i", (7,), "below 200", seed=1), Input("j", (7,), "below 9", seed=2)]
    names = [lines(f"m.astype(i, '{name}')"), lines(f"m.astype(j, '{name}')")]
    for _ in range(r.randrange(2, 6)):
        a, b = r.choice(names), r.choice(names)
        names.append(lines(r.choice([
            f"{a} + {b}", f"{a} * {b}", f"{a} - {b}", f"m.where({a} > {b}, {a}, {b})", f"m.maximum({a}, {b})",
            f"m.minimum({a}, {b})", f"{a} // ({b} * 0 + 3)", f"{a} % ({b} * 0 + 5)", f"{a} * 3", f"{a} & {b}",
            f"{a} ^ {b}", f"m.abs({a})", f"{a} - 1", f"m.sort({a}, 0)", f"m.flip({a}, 0)",
            f"m.clip({a}, 1, 5)", f"m.astype(m.argmin({a}, 0), '{name}') + {b}",
        ])))  # fmt: skip
    out = [names[-1], lines(f"m.{r.choice(['max', 'min'])}({names[-1]}, 0, True)")]
    return Program("integers", tuple(inputs), tuple(lines.lines), tuple(out))


@generator
def constants(r: Random) -> Program:
    """Numbers that are equal and differ by type or sign, each in the same operations."""
    lines, pairs = Lines(), [("2", "2.0"), ("1", "True"), ("0.0", "-0.0"), ("0", "-0.0"), ("1.0", "True"), ("3", "3.0")]
    inputs = [Input("x", (4,), r.choice(["normal", "zeros", "special"]), seed=1), Input("i", (4,), "below 9", seed=2)]
    outputs = []
    for _ in range(r.randrange(1, 4)):
        pair, a = r.choice(pairs), r.choice(["x", "i"])
        form = r.choice(["{a} * {n}", "{a} + {n}", "{n} - {a}", "m.where({a} > 1, {a}, {n})", "1.0 / (x * 0.0 * {n})",
                         "m.put(x, 0, {n})"])  # fmt: skip
        outputs += [lines(form.format(a=a, n=number)) for number in r.sample(pair, 2)]
    return Program("constants", tuple(inputs), tuple(lines.lines), tuple(outputs), "value")


@generator
def long(r: Random) -> Program:
    """Sums of a million float32 and more, where one accumulator loses digits."""
    lines, shape = Lines(), r.choice([(1 << 20,), (3_000_000,), (1 << 20, 2), (3, 700_000)])
    inputs = [Input("x", shape, r.choice(["normal", "positive"]), seed=r.randrange(9))]
    a = lines(r.choice(["x * 1.5", "m.tanh(x)", "m.abs(x) + 0.5", "x * x"]))
    out = [lines(r.choice([f"m.sum({a}, 0)", f"m.sum({a})", f"m.mean({a}, 0)", f"m.var({a}, 0)",
                           f"m.cumsum({a}, 0)[-3:]", f"m.sqrt(m.sum({a} * {a}, 0))"]))]  # fmt: skip
    return Program("long", tuple(inputs), tuple(lines.lines), tuple(out), "value")


@generator
def hard_inputs(r: Random) -> Program:
    """Statistics and matrices with NaN, and columns that are nearly constant."""
    lines = Lines()
    inputs = [Input("x", (9,), r.choice(["special", "normal"]), seed=r.randrange(99)),
              Input("a", (3, 4, 4), r.choice(["special", "normal"]), seed=r.randrange(99))]  # fmt: skip
    out = [lines(r.choice(["m.median(x)", "m.norm2(a)", "m.inv(a)", "m.sort(x, 0)", "m.cumsum(x, 0)", "m.max(a, -1)",
                           "m.sqrt(m.var(x * 0.0 + 1e4 + 0.1, 0))", "m.argmin(x, 0)"])) for _ in range(2)]  # fmt: skip
    return Program("hard_inputs", tuple(inputs), tuple(lines.lines), tuple(out), "value")
