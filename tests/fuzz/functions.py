"""Generators of programs of functions of arrays: their values, types, places, loops and derivatives."""

from __future__ import annotations

from random import Random

from fuzz.drawing import floats, generator, tree, way
from fuzz.programs import Input, Lines, Program


@generator
def elementwise(r: Random) -> Program:
    lines, shape = Lines(), r.choice([(1,), (5,), (3, 17), (0, 3), (2, 3, 4)])
    values = r.choice(["special", "large", "small"]) if r.random() < 0.45 else floats(r)
    inputs = [Input(name, shape, values, seed=r.randrange(99)) for name in "xy"]
    names = ["x", "y"]
    for _ in range(r.randrange(2, 7)):
        e = tree(r, names, r.randrange(1, 4))
        if "x" in e or "y" in e or "v" in e:
            names.append(lines(e))
    if values == "large":
        names.append(lines(f"m.{r.choice(['sinh', 'cosh', 'exp', 'tanh', 'expm1', 'softplus'])}({r.choice('xy')})"))
    if values == "small":  # where a difference of large terms has no digits
        f = r.choice(["sinh", "expm1", "expm1", "log1p", "tanh", "erf", "erf", "atanh", "atanh", "asinh"])
        names.append(lines(f"m.{f}({r.choice('xy')}) * 1e4"))
    if values == "special" and r.random() < 0.5:
        names.append(lines(f"m.lift(torch.{r.choice(['remainder', 'floor_divide', 'fmod'])})(x, y)"))
    if not lines.lines:
        names.append(lines("x + y"))
    outputs = tuple(dict.fromkeys([names[-1], r.choice(names[2:])]))
    return Program("elementwise", tuple(inputs), tuple(lines.lines), outputs,
                   "value" if values in ("special", "large") else way(r), weighted=r.random() < 0.5)  # fmt: skip


COMPUTED = [
    "m.exp({x})", "m.sin({x})", "m.erf({x} * 0.5)", "m.atan2({x}, x + 3.0)", "m.log1p({x} * {x})", "m.sigmoid({x})",
]  # fmt: skip
"""Values that compilers may compute twice, to other bits. Derivatives at the origin of atan2 are conventions."""


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
            f"m.{r.choice(['max', 'min'])}({r.choice(COMPUTED).format(x=x)}, {r.choice(['-1', '0'])}, True)",
            f"m.var({x} + 1e3, {axis}, True)",
        ])  # fmt: skip
        y = lines(kept)
        names.append(y)
        if r.random() < 0.7:
            names.append(
                lines(r.choice([f"x - {y}", f"x * {y}", f"m.tanh({y})", f"x / (1.0 + {y} * {y})", f"{y} + 1.0"]))
            )
    if r.random() < 0.5:
        names.append(lines(f"m.{r.choice(['sum', 'mean', 'max'])}({names[-1]})"))
    outputs = [names[-1], r.choice(names[1:])]
    if r.random() < 0.3:  # places among all elements, which compilers read in other orders
        x = r.choice(["x", "m.swap(x)", "m.swap(x) * 1.5", "m.sin(m.swap(x))", f"{names[-1]} * x"])
        outputs.append(lines(f"m.argmin({x}, None)"))
    return Program("reductions", tuple(inputs), tuple(lines.lines), tuple(outputs), way(r),
                   weighted=r.random() < 0.5)  # fmt: skip


PLACES = ["0", "-1", "slice(1, 3)", "slice(None, None, 2)", "i[:1]"]


@generator
def indexing(r: Random) -> Program:
    lines, rows, cols = Lines(), r.choice([3, 6]), r.choice([1, 4])
    inputs = [
        Input("x", (rows, cols), floats(r), seed=1, layout=r.choice(["dense", "swapped"])),
        Input("i", (5,), f"below {rows}", seed=r.randrange(9)), Input("y", (rows, cols), seed=3),
    ]  # fmt: skip
    names, asked = ["x", "y"], way(r)
    # derivatives of functions of repeated places ask for places that have values
    applied = ["m.apply({a}, i, lambda v: v * 0.5 + 1.0)", "m.apply({a}, i, lambda v: m.sin(v) - {b}[0])"]
    for _ in range(r.randrange(2, 7)):
        a, b = r.choice(names), r.choice(names)
        names.append(lines(r.choice([
            *[one.format(a=a, b=b) for one in (applied if asked == "value" else [])],
            f"{a} + m.flip({b}, {r.choice('01')})", f"m.roll({a}, {r.choice(['1', '-2'])}, {r.choice('01')})",
            f"m.put({a}, {r.choice(PLACES)}, {r.choice(['0.0', '1.5'])})",
            f"m.put({a}, i, m.take({b}, i, 0), True)", f"m.put({a}, slice(1, 3), {b}[:2])",
            f"m.concat([{a}[1:], {b}[:1]], 0)", f"m.concat([{a}[::2], {b}[1::2]], 0)[:{rows}]",
            f"m.take({a}, m.concat([i, i], 0)[:{rows}], 0)", f"m.where({a} > 0.0, {b}, {a})",
            f"m.swap(m.tril(m.swap({a})))", f"m.cumsum({a}, 0)", f"{a} * {b}[0]", f"m.sort({a}, {r.choice('01')})",
        ])))  # fmt: skip
    return Program("indexing", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)), asked)


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


ROUNDED_NUMBERS = ["0.3", "1.7", "0.1", "0.75", "2.0"]
"""Of which the first three have other values in 16 bits. Operators of gtrace round them; those of torch do not."""


@generator
def mixed(r: Random) -> Program:
    """Values that are rounded to 16 bits on the way."""
    lines, shape, name = Lines(), r.choice([(5,), (3, 17)]), r.choice(["bfloat16", "float16"])
    inputs = [Input("x", shape, r.choice(["normal", "positive"]), seed=1), Input("y", shape, seed=2)]
    a = lines(f"m.astype(x, '{name}')")
    b = lines(f"m.astype(y, '{name}')")
    names = [a, b]
    for _ in range(r.randrange(1, 4)):
        v, number, short = r.choice(names), r.choice(ROUNDED_NUMBERS), r.choice(ROUNDED_NUMBERS[3:])
        beside = [f"{v} * {short}", f"{v} + {short}", f"m.lift(lambda t: torch.fmod(t, {number}))({v})",
                  f"m.lift(lambda t: torch.remainder(t, {number}))({v})", f"m.clip({v}, -{number}, {number})",
                  f"m.where({v} > {number}, {v}, {r.choice(names)})"]  # fmt: skip
        names.append(lines(tree(r, names, 2) if r.random() < 0.5 else r.choice(beside)))
    out = (
        lines(f"m.astype({names[-1]}, 'float32') {r.choice(['- x', '* y', '+ 1.0'])}")
        if r.random() < 0.5
        else names[-1]
    )
    return Program("mixed", tuple(inputs), tuple(lines.lines), (out,), r.choice(["value", "value", "grad"]))


@generator
def writes(r: Random) -> Program:
    """A function of torch that writes to views."""
    inputs = [Input("x", (4, 6), floats(r), seed=1, layout=r.choice(["dense", "swapped"])), Input("y", (4, 6), seed=2)]
    # memory that is read by strides: as gtrace has no layouts, of a dense copy
    body, dense = [r.choice(["z = x.clone()", "z = x.clone(memory_format=torch.contiguous_format)"])], []
    looks = r.random() < 0.2  # then torch traces it with its values, and refuses writes to such memory
    if "contiguous" in body[0] and not looks:
        dense = ["z[1:].as_strided((2, 2), (6, 1), 7)", "z.as_strided((3, 2), (1, 6))",
                 "z.t().as_strided((4, 3), (6, 1))", "z[1:].as_strided((3, 2), (6, 2))",
                 "z[:, 2:].as_strided((2, 3), (12, 1))"]  # fmt: skip
    for k in range(r.randrange(1, 5)):
        view = r.choice(
            ["z[1:]", "z[:, ::2]", "z.t()", "z[0]", "z.view(6, 4)", "z[:, 1:5]", "z.diagonal()", "z", *dense]
        )
        value = r.choice(["2.0", "0.5", "y.mean()", "x.sum()", "z.sum()"])
        body.append(f"u{k} = {view}" if k % 2 else f"u{k} = {view}; q = u{k} * 1.0")
        body.append(r.choice([f"u{k}.add_({value})", f"u{k}.mul_({value})", f"u{k}.copy_(u{k}.sin() + {value})",
                              f"u{k}.clamp_(-1.0, 1.5)", f"u{k}.sub_(u{k} * 0.25)"]))  # fmt: skip
    if r.random() < 0.5:
        body.append(r.choice(["with torch.no_grad(): z.mul_(0.5)", "with torch.no_grad(): z[0].copy_(y[1])",
                              "with torch.no_grad(): u0.add_(1.0)", "z.detach().mul_(0.5)", "z.detach()[1:].add_(y[0])",
                              "with torch.no_grad(): z.t().clamp_(-0.5, 0.5)"]))  # fmt: skip
    if looks:
        body.insert(1, "if looks and float(x.detach().sum()) > 1e9: return z")
    body.append(r.choice(["return z + y", "return z * y, u0.sum()", "return z, z.clone() + u0.mean()"]))
    indented = "\n".join(f"        {line}" for line in body)
    text = f"def inner(x, y{', looks' if looks else ''}):\n{indented}"
    lines = f"out = m.{'looking' if looks else 'lift'}(inner)(x, y)", "v0 = out[0] if isinstance(out, tuple) else out"
    return Program("writes", tuple(inputs), lines, ("v0",), r.choice(["value", "grad"]), definitions=(text,))


@generator
def integers(r: Random) -> Program:
    lines, name = Lines(), r.choice(["int8", "uint8", "int16", "int32", "int64"])
    shape = r.choice([(7,), (3, 40)])
    inputs = [Input("i", shape, "below 200", seed=r.randrange(9)), Input("j", shape, "below 9", seed=2)]
    place = "m.{}({}, -1)" if len(shape) == 1 else "m.expand(m.{}({}, -1), 1)"
    names = [lines(f"m.astype(i, '{name}')"), lines(f"m.astype(j, '{name}')")]
    for _ in range(r.randrange(2, 6)):
        a, b = r.choice(names), r.choice(names)
        names.append(lines(r.choice([
            f"{a} + {b}", f"{a} * {b}", f"{a} - {b}", f"m.where({a} > {b}, {a}, {b})", f"m.maximum({a}, {b})",
            f"m.minimum({a}, {b})", f"{a} // ({b} * 0 + 3)", f"{a} % ({b} * 0 + 5)", f"{a} * 3", f"{a} & {b}",
            f"{a} ^ {b}", f"m.abs({a})", f"{a} - 1", f"m.sort({a}, -1)", f"m.flip({a}, -1)",
            f"m.clip({a}, 1, 5)", f"m.astype({place.format('argmin', a)}, '{name}') + {b}",
            f"m.lift(lambda t: {r.choice('23')} ** (t * 0 + t % 5))({b})",
            f"m.{r.choice(['max', 'min'])}({a}, -1, True) + {b}",
        ])))  # fmt: skip
    out = [names[-1], lines(f"m.{r.choice(['max', 'min'])}({names[-1]}, -1, True)")]
    return Program("integers", tuple(inputs), tuple(lines.lines), tuple(out))


OF_A_NUMBER = [
    "{a} * {n}", "{a} + {n}", "{n} - {a}", "m.where({a} > 1, {a}, {n})", "1.0 / (x * 0.0 * {n})", "m.put(x, 0, {n})",
    "m.lift(lambda t: torch.full_like(t, {n}))(x)", "m.lift(lambda t: torch.copysign(t, {n}))({a})",
    "m.lift(lambda t: torch.where(t > 1, t, {n}))({a})", "m.lift(lambda t: t.masked_fill(t > 1, {n}))(x)",
    "m.lift(lambda t: torch.pow(t, {n}))({a})", "m.lift(lambda t: torch.pow({n}, t))({a})",
    "m.lift(lambda t: torch.add(t, t, alpha={n}))({a})", "m.lift(lambda t: torch.addcmul(t, t, t, value={n}))(x)",
    "m.lift(lambda t: torch.clamp(t, max={n}))({a})", "m.lift(lambda t: torch.fmod(t, {n}))({a})",
    "m.lift(lambda t: torch.remainder(t, {n}))({a})", "m.lift(lambda t: m.F.leaky_relu(t, {n}))(x)",
    "m.lift(lambda t: m.F.threshold(t, 0.5, {n}))(x)", "m.lift(lambda t: m.F.pad(t, (1, 1), value={n}))(x)",
]  # fmt: skip
"""Functions of an array `a` and a number `n`, which is an operand in some and an attribute in others."""

HANDED = ["closed over", "static", "argument", "lifted"]


@generator
def constants(r: Random) -> Program:
    """Numbers that are equal and differ by type or sign, each in the same operations."""
    lines, pairs = Lines(), [("2", "2.0"), ("1", "True"), ("0.0", "-0.0"), ("0", "-0.0"), ("1.0", "True"), ("3", "3.0")]
    inputs = [Input("x", (4,), r.choice(["normal", "zeros", "special"]), seed=1), Input("i", (4,), "below 9", seed=2)]
    apart = "m.now({})" if r.random() < 0.4 else "{}"  # programs that differ by numbers alone
    outputs = []
    for _ in range(r.randrange(1, 4)):
        pair, a = r.choice(pairs), r.choice(["x", "i"])
        form = r.choice(OF_A_NUMBER) if r.random() < 0.6 else f"m.chosen({{a}}, {{n}}, '{r.choice(HANDED)}')"
        if r.random() < 0.3:  # which shows the sign of a zero
            form = f"1.0 / ({form})"
        if r.random() < 0.1:
            pair = "2j", "complex(-0.0, 2.0)"
            form = r.choice(["1.0 / m.lift(lambda t: torch.view_as_real(t * {n}))(x)",
                             "1.0 / m.real(m.where(x > 1e30, x * 1j, {n}))"])  # fmt: skip
        outputs += [lines(apart.format(form).format(a=a, n=number)) for number in r.sample(pair, 2)]
    return Program("constants", tuple(inputs), tuple(lines.lines), tuple(outputs), "value")


@generator
def long(r: Random) -> Program:
    """Sums of hundreds of thousands of float32, where one accumulator loses digits."""
    lines, shape = Lines(), r.choice([(1 << 20,), (300_000, 3), (1 << 20, 2), (2, 1 << 19)])
    inputs = [Input("x", shape, r.choice(["normal", "positive", "tenths", "tenths"]), seed=r.randrange(9))]
    if len(shape) == 1:
        a, product = lines(r.choice(["x * 1.5", "m.tanh(x)", "m.abs(x) + 0.5", "x * x"])), "{a} @ {a}"
    else:
        a = lines(r.choice(["x * 1.5", "m.tanh(x)", "m.abs(x) + 0.5", "m.swap(x) * 1.5"]))
        tall = (shape[0] > shape[1]) != ("swap" in lines.lines[0])
        product = "m.swap({a}) @ {a}" if tall else "{a} @ m.swap({a})"
    out = [lines(r.choice([f"m.sum({a}, 0)", f"m.sum({a})", f"m.mean({a}, 0)", f"m.var({a}, 0)",
                           f"m.cumsum({a}, 0)[-3:]", f"m.cumsum({a}, -1)[-3:]", f"m.sum({a}, -1)",
                           f"m.sqrt(m.sum({a} * {a}, 0))", product.format(a=a)]))]  # fmt: skip
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


OF_TWO = [
    "m.sin(m.take(p, j, 0)) * m.sum(p)", "m.take(p * p, j, 0)", "p * m.sum(m.take({z}, j, 0))", "m.tanh(p) * {z}",
    "m.take(m.put(p, j, m.take({z}, j, 0) * 2.0, True), j, 0)",
]  # fmt: skip
"""Functions of an array `p` and of places `j` in it."""


@generator
def derivatives(r: Random) -> Program:
    """Derivatives in the program: with integers among the arguments, of solutions, of what NumPy is handed."""
    lines, names = Lines(), ["x"]
    inputs = [Input("x", (4,), floats(r), seed=r.randrange(99)), Input("a", (3, 3), seed=r.randrange(99)),
              Input("i", (3,), "below 4", seed=r.randrange(9))]  # fmt: skip
    for _ in range(r.randrange(1, 4)):
        y, z = r.choice(names), r.choice(names)
        f = f"lambda p, j: {r.choice(OF_TWO).format(z=z)}"
        names.append(lines(r.choice([
            f"m.pullback({f}, {y}, i)", f"{z} * m.sum(m.pushforward({f}, {y}, i))",
            f"{z} + m.sum(m.linear({f}, {y}, i))", f"m.concat([m.solve(a, {y}[:3]), {z}[3:]], 0)",
            f"m.sin(m.through_numpy({y} * 2.0))", f"{z} * m.through_numpy({y})",
        ])))  # fmt: skip
    return Program("derivatives", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)), way(r),
                   weighted=r.random() < 0.5)  # fmt: skip


@generator
def copies(r: Random) -> Program:
    """Copies of values whose memory is given away."""
    lines, names = Lines(), ["x", "y"]
    inputs = [Input(name, (4,), floats(r), seed=r.randrange(99)) for name in names]
    for _ in range(r.randrange(1, 4)):
        a, b, how = r.choice(names), r.choice(names), r.choice(["array", "copy", "deepcopy", "method"])
        kept = f"m.survivor({a}, '{how}')"
        names.append(lines(r.choice([kept, f"{b} - {kept}", f"m.sin({a}) + {b}"])))
    return Program("copies", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)))


OF_TORCH = [
    "torch.exp(p * 1j).real", "torch.exp(q * (0.1 + 0.5j)).imag", "(p * 2j * q).imag", "torch.abs(p * (0.5 + 2j))",
    "torch.complex(p, q).conj().imag * p", "torch.view_as_real(p * 1j)[..., 1]", "(torch.sin(p) * (1j * q)).imag",
    "F.gelu(p)", "F.gelu(p, approximate='tanh')", "torch.erfinv(torch.sin(p) * 0.9)", "torch.div(p, 0.7) * q",
    "torch.sign(p) * q", "torch.pow(2, i) * p", "torch.pow(2.0, -i) * q", "torch.where(p > q, p, 0) * 2",
    "torch.addcmul(p, q, p, value=0.5)", "torch.lerp(p, q, 0.25)", "torch.clamp(p, min=-0.5) - q",
]  # fmt: skip
"""Functions of torch of two arrays of floats and one of integers, where conventions or types are torch's own."""


@generator
def torch_functions(r: Random) -> Program:
    lines, names, asked = Lines(), ["x", "y"], way(r)
    filled = "special" if asked == "value" and r.random() < 0.3 else floats(r)
    inputs = [Input("x", (5,), filled, seed=r.randrange(99)), Input("y", (5,), seed=r.randrange(99)),
              Input("n", (5,), "below 6", seed=r.randrange(9))]  # fmt: skip
    for _ in range(r.randrange(1, 4)):
        body = r.choice(OF_TORCH).replace("F.", "m.F.")
        names.append(lines(f"m.lift(lambda p, q, i: {body})({r.choice(names)}, {r.choice(names)}, n)"))
    return Program("torch_functions", tuple(inputs), tuple(lines.lines), (names[-1], r.choice(names)), asked)
