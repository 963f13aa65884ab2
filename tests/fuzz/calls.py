"""Generators of programs that are called again with other values: short floats, layers, sizes, places, loops."""

from __future__ import annotations

from random import Random

from fuzz import networks
from fuzz.drawing import floats, generator, tree, way
from fuzz.programs import Input, Lines, Program

OF_TORCH, OF_LAYERS = 4, 2
"""So many times torch's own error the programs of 16 bits, and of layers, may be off."""

REDUCED = [
    "m.mean({x}, {axis}, True)", "m.sum({x}, {axis}, True)", "m.logsumexp({x}, {axis}, True)",
    "m.var({x}, {axis}, True)",
    "m.max({x}, {axis}, True)", "m.lift(torch.linalg.vector_norm)({x}, dim={axis}, keepdim=True)",
    "m.sqrt(m.mean({x} * {x}, {axis}, True))", "m.lift(torch.nanmean)({x}, {axis}, True)",
    "m.lift(lambda a, w: (a * w).sum({axis}, keepdim=True) / w.sum({axis}, keepdim=True))({x}, m.abs(x) + 0.5)",
]  # fmt: skip
SPREAD = [
    "{x} - m.mean({x}, {axis}, True)", "m.softmax({x}, {axis})", "m.log_softmax({x}, {axis})", "m.cumsum({x}, {axis})",
    "m.take({x}, i, {axis})", "m.put({x}, i[:{rows}] % {rows}, {x} * 0.5, True)",
    "m.put({x} * 0.0, i[:{rows}] % 3 % {rows}, {x} * 0.0 + 1.0, True)",
    "m.lift(m.F.avg_pool1d)({x}[None], {pool}, ceil_mode=True)[0]", "m.lift(m.F.max_pool1d)({x}[None], {pool})[0]",
    "m.lift(lambda a, n: torch.zeros_like(a).index_add(0, n, a))({x}, i[:{rows}] % {rows})",
    "m.lift(m.F.adaptive_avg_pool1d)({x}[None], 3)[0]", "m.tanh({x}) * 0.5",
]  # fmt: skip


@generator
def short(r: Random) -> Program:
    """Sums, means, norms, pools and scatters of up to 70,000 numbers of 16 bits."""
    lines, n = Lines(), r.choice([5, 300, 2049, 66_000, 70_000])
    shape, axis = r.choice([((n,), "0"), ((2, n), "-1"), ((n, 2), "0")])
    filled = r.choice(["normal", "positive", "tenths", "about 1", "about 3"])
    inputs = (
        Input("x", shape, filled, r.choice(["float16", "bfloat16"]), seed=r.randrange(99)),
        Input("i", (n,), f"below {n}"),
    )
    y = "x"
    if r.random() < 0.6:
        forms = [one for one in SPREAD if len(shape) == 2 or "pool" not in one]
        y = lines(r.choice(forms).format(x=y, axis=axis, rows=shape[0], pool=r.choice([2, min(n, 1000), n])))
    z = lines(r.choice(REDUCED).format(x=y, axis=axis))
    return Program("short", inputs, tuple(lines.lines), (z, y)[: r.choice([1, 2])] if y != "x" else (z,), way(r),
                   calls=2, fresh=True, times=OF_TORCH)  # fmt: skip


LAYERS = [
    ("Conv2d(3, 4, 3); BatchNorm2d(4)", (4, 3, 6, 5)), ("Conv2d(3, 4, 3, padding=1); GroupNorm(2, 4); ReLU()",
    (2, 3, 5, 5)),
    ("Conv1d(2, 4, 3); BatchNorm1d(4); ReLU(); Conv1d(4, 2, 1); BatchNorm1d(2)", (3, 2, 9)), ("BatchNorm2d(3)",
    (4, 3, 5, 5)),
    ("Linear(6, 8); LayerNorm(8)", (5, 6)), ("LayerNorm((3, 6))", (2, 3, 6)), ("Linear(6, 8); RMSNorm(8)", (5, 6)),
    ("BatchNorm1d(5)", (33, 5)), ("Linear(6, 4); BatchNorm1d(4); Tanh(); Linear(4, 1)", (7, 6)), ("GroupNorm(1, 4)",
    (2, 4, 50)),
]  # fmt: skip
LOSSES = [
    "mse_loss(p, q)", "smooth_l1_loss(p, q)", "huber_loss(p, q)", "cosine_similarity(p.flatten(1), q.flatten(1))",
    "cross_entropy(p.flatten(1), q.flatten(1).softmax(-1))",
    "kl_div(p.log_softmax(-1), q.softmax(-1), reduction='batchmean')",
    "binary_cross_entropy_with_logits(p, q.sigmoid())", "poisson_nll_loss(p * 1e-3, q.abs())",
    "gaussian_nll_loss(p, q, q.abs() + 0.5)",
    "nll_loss(p.flatten(1).log_softmax(-1), torch.zeros(p.shape[0], dtype=torch.int64))",
]  # fmt: skip


@generator
def layers(r: Random) -> Program:
    """Layers in training, and losses, of values about 0, 1 and 1,000 standard deviations."""
    lines, (text, shape) = Lines(), r.choice(LAYERS)
    inputs = [Input("x", shape, f"about {r.choice([0, 1, 1000])}", seed=r.randrange(99))]
    inputs += [Input(f"p{k}", one, "normal", seed=k) for k, one in enumerate(networks.shapes(text))]
    if r.random() < 0.3:
        inputs = [inputs[0], Input("q", shape, inputs[0].values, seed=r.randrange(99))]
        outputs = (lines(f"m.lift(lambda p, q: m.F.{r.choice(LOSSES)})(x, q)"),)
    else:
        params = ", ".join(x.name for x in inputs[1:])
        found = lines(f"m.layers({text!r}, {r.choice(['from_module', 'gt.nn'])!r}, x, {params})")
        outputs = (f"*{found}",)
    return Program("layers", tuple(inputs), tuple(lines.lines), outputs, r.choice(["value", "grad", "grad"]),
                   calls=2, fresh=True, times=OF_LAYERS)  # fmt: skip


@generator
def training(r: Random) -> Program:
    """Loops of 25 steps: optimizers, schedules, accumulation, clipping, loss scaling."""
    inputs = [Input("x", (4, 5, 3), seed=r.randrange(99)), Input("y", (5, 2), seed=r.randrange(99)),
              Input("a", (3, 4), seed=1), Input("b", (4,), seed=2), Input("c", (4, 2), seed=3)]  # fmt: skip
    kinds = r.choice(list(networks.OPTIMIZERS)), r.choice(list(networks.SCHEDULES)), r.choice([1, 1, 2, 3])
    scaled = kinds[2] == 1 and r.random() < 0.4
    how = *kinds, r.choice([0.0, 0.1, 1.0]), scaled, r.choice(["loop", "jitted", "fori"])
    line = f"v0 = m.train({', '.join(map(repr, how))}, x, y, a, b, c)"
    return Program("training", tuple(inputs), (line,), ("*v0",), calls=r.choice([1, 2]), fresh=True)


@generator
def sizes(r: Random) -> Program:
    """Batches whose sizes change from call to call."""
    lines, cols = Lines(), r.choice([1, 4])
    ns = tuple(r.choice([1, 2, 3, 7, 16, 33]) for _ in range(3))
    ns = (*ns, r.choice(ns))
    inputs = [Input(name, (1, cols), floats(r), seed=k, sizes=ns) for k, name in enumerate("xy")]
    inputs.append(Input("w", (cols, cols), seed=7))
    names = ["x", "y"]
    for _ in range(r.randrange(2, 5)):
        a, b = r.choice(names), r.choice(names)
        names.append(lines(r.choice([
            tree(r, names, 2), f"{a} @ w", f"{a} - m.mean({b}, 0, True)", f"m.softmax({a}, {r.choice('01')})",
            f"m.cumsum({a}, 0)", f"m.concat([{a}[1:], {b}[:1]], 0)", f"m.flip({a}, 0)", f"m.sort({a}, 0)",
            f"{a} / (1.0 + m.sum({b} * {b}, {r.choice(['0', '1', '(0, 1)'])}, True))",
            f"m.tanh({a} @ m.swap({b}) @ {a})",
            f"m.concat([{a}, {b}], 0)[{a}.shape[0]:]", f"{a} * m.logsumexp({b}, 0, True)", f"m.roll({a}, 1, 0)",
            f"{a} * m.arange(0, {b}.shape[0], dtype={b}.dtype)[:, None]", f"{a} * (1.0 / {b}.shape[0])",
        ])))  # fmt: skip
    return Program(
        "sizes", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)), way(r), calls=4, fresh=True
    )


TRACED = ["x[k]", "x[k, None]", "m.put(x, k, 0.5)", "m.put(x, k, x[0] * 2.0)",
    "m.fori(0, k, lambda i, c: m.sin(c) + x[0], x[1])",
          "x * k", "x ** k", "m.clip(x, -k - 1, k + 1)", "m.where(x > k, x, 0.0)", "m.roll(x, k, 0)",
          "m.lift(lambda a, n: a * n)(x, k)", "m.take(x, i % (k + 1), 0)", "m.put(x, i % (k + 1), x[:4], True)",
          "m.switch(k, [lambda c: c, lambda c: m.sin(c), lambda c: c * 2.0], x)"]  # fmt: skip
READ = [
    "x[k:k + 2]", "x[:k]", "x[-k:]", "x[k::2]", "x[::k + 1]", "x[..., k:]", "x[k, k:]", "x[slice(k, None)]",
    "x[:, :k + 1][k:]",
    "m.put(x, slice(k, k + 2), 0.5)", "m.put(x, slice(k, None), x[k:] * 1.5)", "m.sum(x, k % 2, False)",
    "m.cumsum(x, k % 2)",
    "m.flip(x, k % 2)", "m.sort(x, k % 2)", "m.softmax(x, k % 2)", "m.concat([x, x], k % 2)", "m.expand(x, k)",
    "m.ones((k, 3), dtype=x.dtype) * x[0, 0]", "x.reshape((k + 1, -1))", "m.tril(x, k - 1)", "m.triu(x, k)",
    "m.arange(0, k, dtype=x.dtype) + x[0, 0]",
    "x[:int(k)]", "x * float(k)", "(x if k > 1 else m.sin(x))", "m.roll(x, 1, k % 2)", "m.max(x, k % 2)",
    "m.take(x, i, k % 2)[k:]",
    "m.scan(lambda c, t: (c + t, c), x[0], x[:k])[0]", "[x, x * 2.0, x * 3.0][k]", "m.sum(x, (0, k % 1 + 1), False)",
]  # fmt: skip
"""Uses of an integer `k` below 3, which is an array: those that a traced program may have, and those that read it."""


@generator
def places(r: Random) -> Program:
    """Arrays where Python numbers are read, with other values in each call."""
    lines, asked = Lines(), way(r)
    inputs = (Input("x", (6, 6), floats(r), seed=1), Input("i", (4,), "below 6", seed=2),
              Input("t", (), "below 3", seed=r.randrange(99)))  # fmt: skip
    lines.lines.append(f"k = m.number({r.choice(['t', 't', 't * 1', 't + 0'])})")
    forms = TRACED if r.random() < 0.5 else [*READ, *TRACED]
    forms = [one for one in forms if asked == "value" or "m.fori" not in one]
    found = [
        lines(r.choice(forms).replace("x", r.choice(["x", "x", "m.sin(x)"])) if k else r.choice(forms))
        for k in range(2)
    ]
    return Program("places", inputs, tuple(lines.lines), tuple(found), asked, calls=4, fresh=True)


def _body(r: Random, depth: int, reverse: bool) -> str:
    """Draw an expression of the carry `s`: floats, an integer, a boolean and an empty array."""
    if depth == 0 or r.random() < 0.1:
        c = r.choice(
            ["m.sin(s[0]) + w", "s[0] * 0.5", "m.where(s[2], s[0], w)", "s[0] + s[1] * 0.1", "m.tanh(s[0]) * m.sum(w)"]
        )
        k = r.choice(["s[1] + 1", "s[1]", "(s[1] * 3 + 1) % 7", "m.where(s[2], s[1], 2)"])
        b = r.choice(["s[2]", "m.sum(s[0]) > 0.5", "s[1] > 2", "s[1] % 2 == 0", "s[2] ^ (s[1] > 1)"])
        return f"({c}, {k}, {b}, {r.choice(['s[3]', 's[3] * 2.0', 'm.concat([s[3], s[3]], 0)'])})"
    inner = [f"lambda s: {_body(r, depth - 1, reverse)}" for _ in range(3)]
    f = f"({inner[0]})"
    n = r.choice([0, 1, 3])
    forms = [
        f"m.cond({r.choice(['s[2]', 's[1] > 1', 'm.sum(s[0]) > 0.0'])}, {inner[0]}, {inner[1]}, s)",
        f"m.switch(s[1] % 3, [{', '.join(inner)}], s)", f"m.fori(0, {n}, lambda i, s: {f}(s), s)",
        f"m.scan(lambda s, t: ({f}(s), t), s, xs[:{n}])[0]",
        f"m.scan(lambda s, t: ({f}((s[0] + t, *s[1:])), m.sum(s[0])), s, xs[:{n}])[0]",
        f"(lambda s: (m.scan(lambda c, t: (c, {f}((t, *s[1:]))[0]), s[1], xs)[1][{n}], *s[1:]))(s)",
    ]  # fmt: skip
    if not reverse:
        forms += [f"m.loop(lambda q: q[1] < {n}, lambda q: ({f}(q[0]), q[1] + 1), (s, s[1] * 0))[0]"] * 2
        forms.append(f"m.fori(0, s[1] % 4, lambda i, s: {f}(s), s)")
    return r.choice(forms)


@generator
def nested(r: Random) -> Program:
    """Loops in branches and branches in loops, with carries of integers, booleans and nothing."""
    asked, n = r.choice(["value", "value", "grad", "second"]), r.choice([1, 3])
    inputs = (Input("x", (n,), floats(r), seed=1), Input("xs", (4, n), seed=2), Input("w", (n,), seed=3),
              Input("k", (), "below 5", seed=r.randrange(9)), Input("p", (), "mask", seed=r.randrange(9)))  # fmt: skip
    line = f"v0 = (lambda s: {_body(r, r.choice([1, 2, 2, 3]), asked != 'value')})((x, k, p, x[:0] * 1.0))"
    return Program("nested", inputs, (line,), ("*v0",), asked, calls=2, fresh=True)
