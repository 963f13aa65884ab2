"""jax.export: symbolic sizes, functions traced for them, and functions as bytes for another process."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import gtrace as gt
from gtrace.errors import ArgumentError, DtypeError, ExportError, ShapeError


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-6)


# -- symbolic sizes


def test_sizes_are_polynomials_in_one_form(jax):
    a, b = jax.export.symbolic_shape("a, b")
    found = (
        a + b,
        a * b,
        a - 1,
        2 * a - b,
        a // 2,
        a % 3,
        -a,
        a - a,
        (a + 1) * (b + 2),
        a * a,
        a // b,
        (4 * a + 1) // 2,
    )
    text = "b + a|a*b|a - 1|- b + 2*a|floordiv(a, 2)|mod(a, 3)|- a|0|a*b + b + 2*a + 2|a^2|floordiv(a, b)|2*a"
    assert "|".join(map(str, found)) == text
    assert a * b == b * a and hash(a * b) == hash(b * a) and a != b and not a == 3
    assert divmod(6 * a + 4, 3) == (2 * a + 1, 1) and (a % b) == a - (a // b) * b
    values = {"a": 7, "b": 3}
    assert [x if isinstance(x, int) else x.evaluate(values) for x in found] == [
        10,
        21,
        6,
        11,
        3,
        1,
        -7,
        0,
        40,
        49,
        2,
        14,
    ]


def test_sizes_read_from_text(jax):
    shape = jax.export.symbolic_shape
    assert str(shape("(b, 2*b + 1, ...)", like=(3, 4, 5))) == "(b, 2*b + 1, 5)"
    assert (
        str(shape("a, _, max(a, 3), a^2 - floordiv(a, 2)", like=(1, 2, 3, 4)))
        == "(a, 2, max(a, 3), a^2 - floordiv(a, 2))"
    )
    assert shape(None, like=(2, 3)) == (2, 3) and shape("()") == ()
    for text in ("a b", "a,,b", "3a", "a > 2", "..."):
        with pytest.raises(ValueError, match="symbolic_shape"):
            shape(text)
    with pytest.raises(ArgumentError, match="as many sizes"):
        shape("a, b", like=(1,))


def test_comparisons_are_decided_by_what_is_known(jax):
    shape = jax.export.symbolic_shape
    (a,) = shape("a")
    assert a >= 1 and a > 0 and not a < 1 and a + 1 > a and bool(a)
    with pytest.raises(jax.errors.InconclusiveDimensionOperation, match="a >= 2"):
        _ = a >= 2
    with pytest.raises(jax.errors.InconclusiveDimensionOperation, match="an integer"):
        range(a)
    c, d = shape("c, d", constraints=["c >= 4", "d <= 2*c", "mod(c, 4) == 0"])
    assert c >= 4 and 2 * c >= 8 and 2 * c - d >= 0 and c % 4 == 0 and not c < 4
    with pytest.raises(ArgumentError, match="one scope"):
        _ = a + c
    assert jax.export.is_symbolic_dim(a + 1) and not jax.export.is_symbolic_dim(3)


def test_specifications_for_arguments(jax):
    args = (np.ones((2, 3), "float32"), {"k": np.ones((4, 5, 6))})
    specs = jax.export.symbolic_args_specs(args, ("a, ...", {"k": "b, ..."}))
    assert str(specs[0]) == "ShapeDtypeStruct(shape=(a, 3), dtype=float32)"
    assert str(specs[1]["k"]) == "ShapeDtypeStruct(shape=(b, 5, 6), dtype=float32)"
    assert str(jax.export.symbolic_args_specs(args[0], "c, ...").shape) == "(c, 3)"
    assert jax.export.symbolic_args_specs(args, ("a, ...", None))[1]["k"].shape == (4, 5, 6)


def test_shapes_of_results(jax):
    jnp = jax.numpy
    a, b = jax.export.symbolic_shape("a, b")
    x, w = jax.ShapeDtypeStruct((a, 3), "float32"), jax.ShapeDtypeStruct((3, b), "float32")

    def f(x, w):
        both = jnp.concatenate([x, x[1:]])
        steps = jax.lax.scan(lambda c, row: (c + row, c), x[0], x)[1]
        return x[1:], x.reshape(-1), both, x[::2], x @ w, x.sum(0), jnp.arange(x.shape[0]), steps, jnp.zeros((a, b))

    shapes = [str(leaf.shape) for leaf in jax.eval_shape(f, x, w)]
    expected = "(a - 1, 3)|(3*a,)|(2*a - 1, 3)|(floordiv(a + 1, 2), 3)|(a, b)|(3,)|(a,)|(a, 3)|(a, b)"
    assert "|".join(shapes) == expected
    assert jax.eval_shape(lambda x: x, np.ones(2, "float32")).shape == (2,)
    with pytest.raises(ExportError, match=r"does the same for all of them, got mod\(a, 5\)"):
        jax.eval_shape(lambda x: [x] * (x.shape[0] % 5), x)
    with pytest.raises(ArgumentError, match=r"jax\.export"):
        gt.eval_shape(lambda x: x, x)


# -- functions as bytes


def layer(x, p):
    return {"y": gt.tanh(x) @ p["w"] + p["b"]}


@pytest.fixture
def exported(jax):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, 3"), "float32")
    p = {"w": jax.ShapeDtypeStruct((3, 2), "float32"), "b": jax.ShapeDtypeStruct((2,), "float32")}
    return jax.export.export(jax.jit(layer))(x, p)


P = {"w": np.arange(6, dtype="float32").reshape(3, 2), "b": np.ones(2, "float32")}


def test_an_exported_function_says_what_it_takes(jax, exported):
    assert sorted(map(str, exported.in_avals)) == ["float32[2]", "float32[3,2]", "float32[a,3]"]
    assert (
        str(exported.out_avals) == "(ShapedArray(float32[a,2]),)" and str(exported) == "Exported(fun_name=layer, ...)"
    )
    assert str(exported.out_tree) == "PyTreeDef({'y': *})" and exported.platforms == ("cpu",)
    assert exported.nr_devices == 1 and exported.uses_global_constants and exported.has_vjp()
    x = np.ones((2, 3), "float32")
    with pytest.raises(ShapeError, match=r"float32\[a,3\].*args\[0\].*Here a=2"):
        exported.call(np.ones((2, 4), "float32"), P)
    with pytest.raises(ShapeError, match="at least 1"):
        exported.call(x[:0], P)
    with pytest.raises(DtypeError, match=r"i32.*astype"):
        exported.call(x.astype("int32"), P)
    with pytest.raises(ValueError, match="structure"):
        exported.call(x)
    with pytest.raises(ArgumentError, match="a jitted function"):
        jax.export.export(layer)
    with pytest.raises(ExportError, match="platforms"):
        jax.export.export(jax.jit(layer), platforms=["tpu"])


def test_calls_are_recorded_and_have_derivatives(jax, exported):
    read = jax.export.deserialize(exported.serialize())
    for each in (exported, read):
        for rows in (1, 2, 31):
            x = np.linspace(-1, 1, 3 * rows, dtype="float32").reshape(rows, 3)
            expected = np.tanh(x) @ P["w"] + P["b"]
            close(each.call(x, P)["y"], expected)
            close(jax.jit(lambda x, each=each: each.call(x, P)["y"])(x), expected)
            slopes = (1 - np.tanh(x) ** 2) * P["w"].sum(1)
            close(jax.grad(lambda x, each=each: each.call(x, P)["y"].sum())(gt.array(x)), slopes)
            stacked = jax.vmap(lambda x, each=each: each.call(x, P)["y"])(np.stack([x, 2 * x]))
            close(stacked[0], expected)
    back = read.vjp()
    assert [str(a) for a in back.out_avals] == [str(a) for a in read.in_avals]
    x, ct = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    found = back.call(x, P["b"], P["w"], ct)
    close(found[0], (1 - np.tanh(x) ** 2) * P["w"].sum(1))


def test_loops_constants_and_sizes_as_numbers(jax):
    jnp = jax.numpy
    table = jnp.array([[1.5, 2.0], [3.0, -1.0]], "bfloat16")

    def f(x, n):
        total = jax.lax.fori_loop(0, n, lambda k, c: c + x.sum(), 0.0)
        _, sums = jax.lax.scan(lambda c, row: (c + row, c + row), jnp.zeros(2), x)
        return (
            total,
            sums / x.shape[0],
            x.shape[0] * jnp.ones(2, "int32"),
            table,
            jax.lax.cond(n > 2, jnp.sin, jnp.cos, x),
        )

    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2"), "float32")
    made = jax.export.export(jax.jit(f, static_argnums=()))(x, jax.ShapeDtypeStruct((), "int32"))
    read = jax.export.deserialize(bytes(made.serialize()))
    for rows in (1, 3, 40):
        data = np.linspace(0, 1, 2 * rows, dtype="float32").reshape(rows, 2)
        total, sums, count, same, branch = read.call(data, 3)
        close(total, 3 * data.sum())
        close(sums, data.cumsum(0) / rows)
        close(branch, np.sin(data))
        assert count.tolist() == [rows] * 2 and same.dtype == "bfloat16" and same.tolist() == table.tolist()


def test_related_sizes_and_constraints(jax):
    n, _ = shape = jax.export.symbolic_shape("n, 2*n + 1", constraints=["n >= 3", "mod(n, 2) == 0"])
    f = jax.jit(lambda x, y: x[: x.shape[0] // 2] + y)
    spec = jax.ShapeDtypeStruct(shape[:1], "float32"), jax.ShapeDtypeStruct((n // 2,), "float32")
    exported = jax.export.export(f)(*spec)
    assert str(exported.out_avals) == "(ShapedArray(float32[floordiv(n, 2)]),)"
    assert exported.call(np.ones(4, "float32"), np.ones(2, "float32")).tolist() == [2.0, 2.0]
    for sizes in ((5, 2), (2, 1), (4, 3)):
        with pytest.raises(ShapeError):
            exported.call(*[np.ones(n, "float32") for n in sizes])
    odd = jax.export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct(shape[1:], "float32"))
    assert odd.call(np.ones(9, "float32")).shape == (9,)
    with pytest.raises(ShapeError):
        odd.call(np.ones(10, "float32"))


DECIDING = {
    "branch": lambda x: x * 2 if x.shape[0] > 10 else x * 3, "even": lambda x: x if x.shape[0] % 2 else -x,
    "maximum": lambda x: x / max(x.shape[0], 8), "minimum": lambda x: x[: min(x.shape[0], 5)].sum(),
    "loop": lambda x: sum(x[k] for k in range(x.shape[0])), "length": lambda x: x * len(x),
    "root": lambda x: x / x.shape[0] ** 0.5, "text": lambda x: x * len(str(x.shape)),
    "table": lambda x: x * {2: 5.0}.get(x.shape[0], 1.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", DECIDING)
def test_code_that_decides_by_a_size_is_refused_and_decided_by_constraints(jax, kind):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), "float32")
    with pytest.raises(ExportError):
        jax.export.export(jax.jit(DECIDING[kind]))(x)
    if kind in ("branch", "maximum", "minimum"):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b", constraints=["b >= 12"]), "float32")
        made = jax.export.export(jax.jit(DECIDING[kind]))(x)
        data = np.arange(13, dtype="float32")
        close(made.call(data), np.asarray(DECIDING[kind](data)))
        with pytest.raises(ShapeError):
            made.call(data[:4])


def test_sizes_that_are_taken_for_unequal_are_refused_where_they_are_equal(jax):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, c"), "float32")
    made = jax.export.export(jax.jit(lambda x: x.T if x.shape[0] == x.shape[1] else x))(x)
    made = jax.export.deserialize(made.serialize())
    data = np.arange(6, dtype="float32").reshape(2, 3)
    close(made.call(data), data)
    with pytest.raises(ShapeError, match="!= 0"):
        made.call(data[:, :2])


def test_what_cannot_be_exported_says_so(jax):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), "float32")
    export = jax.export.export
    with pytest.raises(ExportError, match="needs no Python"):
        export(jax.jit(lambda x: jax.pure_callback(np.sin, x, x)))(jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(ExportError, match="does the same for all of them, got b"):
        export(jax.jit(lambda x: x / (x.shape[0] + 0.5)))(x)
    with pytest.raises(ExportError, match="key_data"):
        export(jax.jit(jax.random.normal))(jax.random.key(0))
    outside = [jax.numpy.full((3,), n, "float32") for n in range(100)]
    left = iter(outside)
    with pytest.raises(ExportError, match="closed-over arrays"):
        export(jax.jit(lambda x: x + next(left)[0]))(x)
    with pytest.raises(ExportError, match="code that runs for all of them, got IndexError"):
        export(jax.jit(lambda x: x + outside[x.shape[0]][0]))(x)
    (b,) = x.shape
    for closed in (lambda x: x * 2 if b > 10 else x, lambda x: x * int(b), lambda x: sum(x[k] for k in range(b))):
        with pytest.raises(jax.errors.InconclusiveDimensionOperation):
            export(jax.jit(closed))(x)
    with pytest.raises(ExportError, match="bytes of"):
        jax.export.deserialize(b"something else")
    good = export(jax.jit(lambda x: x + outside[3][0]))(x).serialize()
    with pytest.raises(ExportError, match="too early"):
        jax.export.deserialize(good[:-2])


def test_rules_of_users_are_no_text(jax):
    @jax.custom_vjp
    def f(x):
        return 2 * x

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (100 * ct,))
    spec = jax.ShapeDtypeStruct((2,), "float32")
    exported = jax.export.export(jax.jit(f))(spec)
    x = jax.numpy.ones(2)
    assert exported.call(x).tolist() == [2.0, 2.0] and not exported.has_vjp()
    with pytest.raises(ArgumentError, match="before it becomes text"):
        jax.grad(lambda x: exported.call(x).sum())(x)
    slope = jax.export.export(jax.jit(jax.grad(lambda x: f(x).sum())))(spec)
    assert slope.call(x).tolist() == [100.0, 100.0]


class Point(NamedTuple):
    x: object
    y: object


class Box:
    def __init__(self, inside, label):
        self.inside, self.label = inside, label


def test_nodes_of_users_need_registered_names(jax):
    spec = jax.ShapeDtypeStruct((2,), "float32")
    exported = jax.export.export(jax.jit(lambda p: Point(p.y, [p.x, None])))(Point(spec, spec))
    with pytest.raises(ExportError, match="Point"):
        exported.serialize()
    jax.export.register_namedtuple_serialization(Point, serialized_name="tests.Point")
    with pytest.raises(ArgumentError, match="once"):
        jax.export.register_namedtuple_serialization(Point, serialized_name="tests.Point")
    out = jax.export.deserialize(exported.serialize()).call(Point(np.zeros(2, "float32"), np.ones(2, "float32")))
    assert isinstance(out, Point) and out.x.tolist() == [1.0, 1.0] and out.y[1] is None
    jax.tree_util.register_pytree_node(Box, lambda b: ((b.inside,), b.label), lambda label, inner: Box(*inner, label))
    jax.export.register_pytree_node_serialization(
        Box, serialized_name="tests.Box", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
    )
    boxed = jax.export.export(jax.jit(lambda b: Box(b.inside * 2, b.label)))(Box(spec, "red"))
    out = jax.export.deserialize(boxed.serialize()).call(Box(np.ones(2, "float32"), "red"))
    assert out.label == "red" and out.inside.tolist() == [2.0, 2.0]


def test_another_process_reads_it(jax, exported, tmp_path):
    (tmp_path / "layer").write_bytes(exported.serialize())
    program = f"""
import gtrace.jax as jax, numpy
f = jax.export.deserialize(open({str(tmp_path / "layer")!r}, "rb").read())
p = {{"w": numpy.arange(6, dtype="float32").reshape(3, 2), "b": numpy.ones(2, "float32")}}
print(f.call(numpy.zeros((2, 3), "float32"), p)["y"].tolist(), f.fun_name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == "[[1.0, 1.0], [1.0, 1.0]] layer".split()
