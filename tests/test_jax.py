"""``gtrace.jax``: scripts that import jax, number rules of 32 bits, dtypes, trees, and arguments of JAX's."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.errors import ArgumentError, DtypeError, LeakError, PromotionWarning, StructureError

DATA = Path(__file__).parent / "data"


@pytest.fixture
def jax():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def run(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- import jax


@pytest.mark.slow
def test_a_script_that_imports_jax_runs_unchanged(tmp_path):
    (tmp_path / "library.py").write_text("from jax import lax, tree_util\nimport jax.scipy.special as special\n")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        import jax, jax.numpy as jnp
        from jax.nn.initializers import zeros
        from jax import jit, random
        import library
        assert library.tree_util is jax.tree_util and jax.__name__ == "gtrace.jax"
        print(jnp.arange(3).dtype, sys.argv[1], jit(lambda x: x + 1, backend="eager")(1), jax.config.jax_enable_x64)
        try:
            import jax.experimental.jax2tf
        except ModuleNotFoundError as error:
            print("gtrace.export" in str(error))
    """)
    )
    assert run("-m", "gtrace", "run", "--quiet", "--jax", str(script), "7").split() == [
        "int32",
        "7",
        "2",
        "False",
        "True",
    ]


@pytest.mark.slow
def test_installing_is_for_good_and_in_time():
    program = """
        import sys, types, gtrace.jax
        gtrace.jax.install(); gtrace.jax.install()
        import jax, jax.numpy, jax.scipy.stats.norm, jax.interpreters.ad
        assert jax is gtrace.jax and jax.numpy is gtrace.jax.numpy and sys.modules["jax.numpy"] is jax.numpy
        assert sys.modules["jax.scipy.stats.norm"] is gtrace.jax.scipy.stats.norm, "it has no file"
        gtrace.jax.uninstall()
        assert "jax" not in sys.modules
        sys.modules["jax"] = types.ModuleType("jax")
        try:
            gtrace.jax.install()
        except gtrace.ArgumentError as error:
            print("before anything imports jax" in str(error))
    """
    assert run("-c", textwrap.dedent(program)).strip() == "True"


@pytest.mark.slow
def test_gtrace_does_not_import_its_jax_and_jax_sets_the_rules_unless_the_process_has():
    program = "import gtrace as gt, sys; a = 'gtrace.jax' in sys.modules, gt.config.x64;"
    program += " import gtrace.jax; print(a, gt.config.x64)"
    assert run("-c", program).strip() == "(False, True) False"
    assert run("-c", program, GT_X64="1").strip() == "(False, True) True"
    assert run("-c", f"import gtrace; gtrace.config.update(x64=True); {program}").strip() == "(False, True) True"


# -- numbers of 32 bits


def test_input_and_counts_are_of_32_bits(jax):
    jnp = jax.numpy
    assert jnp.asarray(np.ones(2)).dtype == jnp.array(np.float64(1)).dtype == "float32"
    assert jnp.array(np.array([1, 2])).dtype == jnp.array([1, 2]).dtype == jnp.arange(3).dtype == "int32"
    assert gt.from_torch(torch.arange(3)).dtype == "int32" and gt.from_numpy(np.ones(2, complex)).dtype == "complex64"
    assert jnp.zeros(2, jnp.float64).dtype == jnp.zeros(2).astype("complex128").real.dtype == "float32"
    assert jnp.zeros(2, torch.float64).dtype == "float64", "torch's dtypes are taken at their word"
    x = jnp.array([3, 1, 2])
    counts = [
        x.sum(), x.prod(), x.cumsum(), x.argmax(), jnp.argsort(x), jnp.nonzero(x)[0], jnp.count_nonzero(x),
        (x > 1).sum(),
        jnp.searchsorted(x, x), jnp.unique(x, return_counts=True)[1], jnp.bincount(x), jnp.flatnonzero(x),
        jax.lax.top_k(x, 2)[1], jnp.indices((2, 2)), jnp.tril_indices(2)[0], jnp.unravel_index(x, (2, 2))[0],
        jnp.digitize(x, x), jnp.array(True) + 1,
    ]  # fmt: skip
    assert {y.dtype.name for y in counts} == {"int32"}
    assert jnp.array([1], jnp.uint8).sum().dtype == "uint32" and jnp.array([1], jnp.int8).sum().dtype == "int32"
    key = jax.random.PRNGKey(0)
    draws = [
        jax.random.randint(key, (2,), 0, 5),
        jax.random.permutation(key, 3),
        jax.random.categorical(key, jnp.ones(3)),
    ]
    assert {y.dtype.name for y in draws} == {"int32"} and jax.random.key_data(key).dtype == "uint32"
    with pytest.raises(DtypeError, match=r"values from -2147483648 to 2147483647 for int32, got 1099511627776"):
        jnp.asarray(np.array([2**40]))


def test_each_rule_has_its_own_program(jax):
    f = gt.jit(lambda x: (gt.argmax(x), gt.arange(2), x + np.ones(2)), backend="eager")
    x = gt.array([1.0, 2.0])
    for wide in (False, True, False):
        with gt.config(x64=wide):
            assert [y.dtype.name for y in f(x)] == (
                ["int64", "int64", "float64"] if wide else ["int32", "int32", "float32"]
            )


def test_transforms_record_the_same_whatever_the_rules_are(jax):
    def f(x):
        order = gt.argsort(x)
        return (gt.take(x, order) * gt.arange(3)).sum() + gt.cumsum(x).max() + gt.sort(x)[0]

    x = gt.array([2.0, 3.0, 1.0])
    batch = gt.stack([x, x + 1])
    found = {}
    for wide in (False, True):
        with gt.config(x64=wide):
            found[wide] = gt.grad(f)(x).tolist(), gt.vmap(gt.grad(f))(batch).tolist(), gt.jvp(f, (x,), (x,))[1].item()
            carry, ys = gt.scan(lambda c, row: (c + 1, gt.argmax(row)), 0, batch)
            assert carry.dtype == ys.dtype == ("int64" if wide else "int32")
            places = gt.vmap(lambda row: gt.scan(lambda c, v: (c + gt.argmax(row), v), 0, row)[0])(batch)
            assert places.tolist() == [3, 3] and places.dtype == carry.dtype
    assert found[False] == found[True]


def test_a_users_rule_follows_the_settings(jax):
    seen = []

    @gt.custom_vjp
    def f(x):
        return x * 2

    def backward(residuals, ct):
        seen.append(gt.arange(2).dtype)
        return (ct * 2,)

    f.defvjp(lambda x: (f(x), None), backward)
    gt.grad(lambda x: f(x).sum())(gt.ones(2))
    assert seen == ["int32"]


TABLES = json.loads((DATA / "jax_promotion.json").read_text(encoding="utf-8"))
NAMES = list(TABLES["32"]["arrays"])
SCALARS = {"bool": True, "int": 1, "float": 1.0, "complex": 1j}


@pytest.mark.parametrize("a", NAMES)
def test_promotion_is_jaxs_with_32_bits(a, jax):
    for b, expected in TABLES["32"]["arrays"][a].items():
        assert gt.result_type(gt.numpy.dtype(a), gt.numpy.dtype(b)) == expected, (a, b)
    x = gt.zeros(2, dtype=a)
    for kind, expected in TABLES["32"]["scalars"][a].items():
        assert gt.result_type(x, SCALARS[kind]) == expected, (a, kind)


@pytest.mark.parametrize("a", NAMES)
def test_promotion_is_jaxs_with_64_bits_but_for_what_is_documented(a):
    """A float beside integers is float32, where JAX's is float64; wide unsigned integers meet no other integers."""
    unsigned = ("uint16", "uint32", "uint64")
    for b, expected in TABLES["64"]["arrays"][a].items():
        if a == b or not ({a, b} & set(unsigned)) or "float" in a + b or "complex" in a + b or "bool" in (a, b):
            assert gt.result_type(gt.numpy.dtype(a), gt.numpy.dtype(b)) == expected, (a, b)
    for kind, expected in TABLES["64"]["scalars"][a].items():
        ours = {"float64": "float32", "complex128": "complex64"} if "float" not in a and "complex" not in a else {}
        assert gt.result_type(gt.zeros(2, dtype=a), SCALARS[kind]) == ours.get(expected, expected), (a, kind)


@pytest.mark.slow
def test_numpys_float64_that_takes_over_is_noticed_once():
    program = """
        import warnings, numpy, gtrace as gt
        w = gt.ones(2)
        x = gt.array(numpy.ones(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = w * x
            z = w @ x
        print([(c.lineno, c.category.__name__, str(c.message).split("came in at ")[1].split(". ")[0]) for c in caught])
        print("asfloat" not in str(caught[0].message) and ".astype(numpy.float32)" in str(caught[0].message), y.dtype)
    """
    first, second = run("-c", textwrap.dedent(program)).splitlines()
    assert first == "[(7, 'PromotionWarning', '<string>:4')]" and second == "True float64"
    assert issubclass(PromotionWarning, UserWarning)


# -- dtypes


def test_dtypes_equal_those_of_torch_and_numpy_and_their_names():
    x = gt.ones(2)
    for same in (np.float32, np.dtype("float32"), torch.float32, "float32", "f4", "f32", gt.float32, float):
        assert x.dtype == same and same == x.dtype and not x.dtype != same
    others = (np.float64, np.dtype("int32"), torch.float16, "float64", gt.int32, int, None, 3, "flaot32", np.floating)
    for other in others:
        assert x.dtype != other and not x.dtype == other
    assert {torch.float32: 1}[x.dtype] == 1 and x.dtype in {gt.float32} and x.dtype == gt.ones(1).dtype
    assert str(x.dtype) == x.dtype.name == f"{x.dtype}" == "float32" and repr(x.dtype) == "gtrace.float32"


def test_dtypes_convert():
    for name in ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"):
        dtype = gt.zeros(1, dtype=name).dtype
        assert np.zeros(3, dtype).dtype == torch.zeros(3, dtype=dtype.torch).numpy().dtype == np.dtype(name) == dtype
        assert np.dtype(name) == dtype and getattr(torch, name) == dtype and dtype.kind == np.dtype(name).kind
        assert pickle.loads(pickle.dumps(dtype)) is dtype and dtype.itemsize == np.dtype(name).itemsize
        assert np.issubdtype(dtype, np.dtype(name).type) and gt.numpy.issubdtype(dtype, np.dtype(name).type)
        assert dtype(1).dtype == dtype and dtype([1, 0]).shape == (2,)
    with pytest.raises(DtypeError, match=r"a dtype that NumPy has, got bfloat16"):
        np.zeros(3, gt.bfloat16)
    assert gt.bfloat16 == torch.bfloat16 == gt.ones(1, dtype="bfloat16").dtype and gt.bfloat16 != np.float32
    with pytest.raises(DtypeError, match=r"unambiguous"):
        gt.zeros(1, dtype="i8")
    with pytest.raises(DtypeError, match=r"one of bool, .*got 'float33'"):
        gt.zeros(1, dtype="float33")


# -- trees

Pair = namedtuple("Pair", "a b")


def test_key_paths_and_maps_with_them(jax):
    tree_util = jax.tree_util

    @tree_util.register_pytree_with_keys_class
    class Box:
        def __init__(self, x):
            self.x = x

        def tree_flatten_with_keys(self):
            return ((tree_util.GetAttrKey("x"), self.x),), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    class Bag(list):
        pass

    tree_util.register_pytree_node(Bag, lambda bag: (list(bag), len(bag)), lambda n, xs: Bag(xs))
    value = {"a": [1, (2, None)], "b": Pair(3, Box(4)), "c": Bag([5])}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(value)]
    assert paths == ["['a'][0]", "['a'][1][0]", "['b'].a", "['b'].b.x", "['c'][<flat index 0>]"]
    doubled = tree_util.tree_map_with_path(lambda path, x, y: (len(path), x + y), value, value)
    assert doubled["b"].b.x == (3, 8) and doubled["c"][0] == (2, 10)
    assert tree_util.keystr(tree_util.tree_leaves_with_path(value)[2][0], simple=True, separator="/") == "b/a"
    with pytest.raises(ValueError, match="Bag"):
        tree_util.register_pytree_node(Bag, lambda bag: (list(bag), None), lambda _, xs: Bag(xs))


def test_leaves_are_where_is_leaf_says(jax):
    value = {"a": [1, 2], "b": None}
    assert jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, list)) == [[1, 2]]
    assert jax.tree.leaves(value, is_leaf=lambda x: x is None) == [1, 2, None]
    assert jax.tree.map(lambda x: x is None, value, is_leaf=lambda x: x is None) == {"a": [False, False], "b": True}
    assert jax.tree.reduce(lambda a, b: a + b, value) == 3 and jax.tree.reduce(max, value, 7) == 7
    assert jax.tree.all({"a": True, "b": [True]}) and not jax.tree.all([True, False])
    outer, inner = jax.tree.structure([0, 0]), jax.tree.structure({"x": 0})
    assert jax.tree.transpose(outer, inner, [{"x": 1}, {"x": 2}]) == {"x": [1, 2]}
    assert jax.tree.broadcast((1, 2), (0, {"a": 0, "b": 0})) == (1, {"a": 2, "b": 2})
    assert jax.tree_util.treedef_is_leaf(jax.tree.structure(0)) and jax.tree_util.all_leaves([1, 2])
    with pytest.raises(StructureError, match="one structure"):
        jax.tree.map(lambda x, y: x, {"a": 1}, {"b": 1})
    flat, unravel = jax.flatten_util.ravel_pytree({"a": gt.ones((2, 2)), "b": gt.zeros(3, dtype=gt.int32)})
    assert flat.shape == (7,) and unravel(flat)["b"].dtype == "int32"
    add = jax.tree_util.Partial(lambda a, b: a + b, gt.array(1.0))
    assert gt.jit(lambda f, x: f(x), backend="eager")(add, 2.0).item() == 3.0


# -- arguments


def test_arguments_that_only_advise_are_accepted(jax):
    lax, jnp = jax.lax, jax.numpy
    f = jax.jit(lambda x, y: x + y, donate_argnums=(0,), inline=True, backend="cpu", keep_unused=True)
    assert f.lower(gt.ones(2), gt.ones(2)) is not None
    assert lax.cond(True, lambda x: x + 1, lambda x: x, operand=1).item() == 2
    assert lax.switch(1, [lambda x: x, lambda x: x * 3], operand=2).item() == 6
    with pytest.raises(ArgumentError, match="by position or by name"):
        lax.cond(True, lambda x: x, lambda x: x, 1, operand=1)
    assert lax.fori_loop(0, 3, lambda i, x: x + i, 0, unroll=True).item() == 3
    assert lax.scan(lambda c, x: (c + x, None), 0, jnp.arange(3), unroll=2)[0].item() == 3
    assert (
        lax.dot_general(jnp.ones((2, 2)), jnp.ones((2, 2)), (((1,), (0,)), ((), ())), lax.Precision.HIGHEST).sum() == 8
    )
    assert jax.checkpoint(lambda x, n: x * n, static_argnums=(1,), prevent_cse=False)(2.0, 3) == 6.0
    assert (
        jax.grad(jax.remat(lambda x, n: x**n, static_argnums=1, policy=jax.checkpoint_policies.everything_saveable))(
            3.0, 2
        )
        == 6
    )


def test_carries_take_the_dtype_that_the_body_gives(jax):
    carry, _ = jax.lax.scan(lambda c, x: (c + x, None), 0, gt.ones(3))
    assert carry.dtype == "float32" and carry.item() == 3.0
    carry, _ = jax.lax.scan(lambda c, x: (c + x, None), 0, gt.array([1, 2], dtype=gt.int8))
    assert carry.dtype == "int8"
    start = gt.array(0, dtype=gt.int32)
    assert jax.lax.scan(lambda c, x: (c + x.sum(), None), start, gt.array([[1, 2]]))[0].dtype == "int32"
    assert jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, 1))[1].item() == 0.125


def test_linspace_takes_a_traced_end(jax):
    f = jax.jit(lambda end: jax.numpy.linspace(0.0, end, 5), backend="eager")
    assert f(2.0).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert jax.grad(lambda end: jax.numpy.linspace(0.0, end, 5).sum())(2.0).item() == 2.5


def test_a_placeholder_in_nondiff_argnums_is_named():
    from functools import partial

    @partial(gt.custom_vjp, nondiff_argnums=(0,))
    def scaled(n, x):
        return x * n

    scaled.defvjp(lambda n, x: (x * n, None), lambda n, residuals, ct: (ct * n,))

    def loss(x):
        return gt.scan(lambda c, k: (scaled(k, c), None), x, gt.array([2.0, 3.0]))[0]

    with pytest.raises(LeakError, match="nondiff_argnums"):
        gt.grad(loss)(1.0)


def test_rules_by_closures(jax):
    scale = gt.array(3.0)

    @gt.custom_gradient
    def f(x, y):
        return x * y, lambda ct: (ct * 10, ct * 20)

    assert [g.item() for g in gt.grad(f, (0, 1))(1.0, 2.0)] == [10.0, 20.0]
    named = gt.custom_vjp(lambda x, n: x * n, nondiff_argnames="n")
    named.defvjp(lambda x, n: (x * n, None), lambda n, residuals, ct: (ct * n * 2,))
    assert gt.grad(named)(1.0, 3).item() == 6.0

    def gradient(s):
        converted, consts = gt.closure_convert(lambda x: s * x, 1.0)
        return converted(2.0, *consts)

    assert gt.grad(gradient)(scale).item() == 2.0


def test_dtypes_of_arrays_have_what_programs_ask_of_numpy_dtypes(jax):
    for name in ("float32", "int32", "bool", "complex64"):
        ours, theirs = jax.numpy.ones(2, name).dtype, np.dtype(name)
        assert ours == theirs and theirs == ours and ours == theirs.type and theirs.type == ours
        assert np.dtype(ours) is theirs and isinstance(ours, jax.numpy.dtype)
        assert {theirs: 1}[ours] == 1 and theirs in {ours} and str(ours) == str(theirs)
        for attribute in set(dir(theirs)) - set(dir(object)):
            if not attribute.startswith("_") and attribute != "newbyteorder":
                assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    assert np.issubdtype(ours, np.complexfloating) and np.zeros(2, ours).dtype is theirs


def test_closure_convert_returns_what_a_gradient_may_follow(jax):
    offset, places = gt.ones(2), gt.arange(2)

    def convert(scale, x):
        return jax.closure_convert(lambda y: (scale * y + offset) * places, x)

    def value(scale, x):
        converted, values = convert(scale, x)
        counts.append(len(values))
        return converted(x * 2, *values).sum()

    counts = []
    scale, x = gt.array([3.0, 4.0]), gt.ones(2)
    converted, values = convert(scale, x)
    assert values == [] and converted(x).tolist() == [0.0, 5.0]
    assert gt.grad(value)(scale, x).tolist() == [0.0, 2.0]
    assert float(gt.jit(value, backend="eager")(scale, x)) == 9.0
    assert gt.jit(gt.grad(value), backend="eager")(scale, x).tolist() == [0.0, 2.0]
    assert gt.vmap(value, (0, None))(gt.ones((3, 2)), x).tolist() == [3.0] * 3
    assert gt.grad(lambda s: gt.vmap(lambda x: value(s, x))(gt.ones((3, 2))).sum())(scale).tolist() == [0.0, 6.0]
    assert gt.jvp(lambda s: value(s, x), (scale,), (gt.ones(2),))[1].item() == 2.0
    assert set(counts) == {1}


def test_values_meet_python_outside_of_traces(jax, capsys):
    jax.debug.print("x = {} {y}", gt.ones(1), y=gt.array(2))
    assert capsys.readouterr().out == "x = [1.] 2\n"
    seen = []
    jax.debug.callback(lambda x: seen.append(x), gt.ones(1))
    assert type(seen[0]) is np.ndarray
    spec = gt.ShapeDtypeStruct(2, gt.float32)
    assert gt.pure_callback(lambda x: np.sort(x), spec, gt.array([2.0, 1.0])).tolist() == [1.0, 2.0]
    with pytest.raises(gt.ShapeError):
        gt.pure_callback(lambda x: np.ones(3), spec, gt.ones(2))


def test_settings_of_jax(jax):
    with gt.config():
        jax.config.update("jax_debug_nans", True)
        assert gt.config.debug_nans and jax.config.jax_debug_nans and not jax.config.x64_enabled
        jax.config.update("jax_platform_name", "cpu")
        with jax.enable_x64():
            assert gt.config.x64 and gt.arange(2).dtype == "int64"
        with pytest.raises(gt.ConfigError, match="jax_debug_nons"):
            jax.config.update("jax_debug_nons", True)
    device = jax.devices()[0]
    assert device.platform == jax.default_backend() == "cpu" and jax.local_device_count() == 1
    assert jax.device_put({"a": np.ones(2)}, device)["a"].dtype == "float32"
    assert type(jax.device_get([gt.ones(1)])[0]) is np.ndarray and jax.block_until_ready(gt.ones(1)) == 1


def test_a_name_that_gtrace_has_not_suggests_one():
    for module, name, near in (
        (gt, "arrange", "arange"), (gt.numpy, "meshgird", "meshgrid"), (gt.nn, "rellu", "relu"),
        (gt.lax, "scann", "scan"), (gt.random, "unifrom", "uniform"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute '{name}'.*{near}"):
            getattr(module, name)
    with pytest.raises(AttributeError, match=r"gtrace\.jax"):
        _ = gt.tree_util


# -- results as JAX's


def test_results_have_their_keys_in_order_and_classes_keep_what_is_their_own(jax):
    @jax.tree_util.register_pytree_node_class
    class Tagged:
        def __init__(self, content, tag):
            self.content, self.tag = content, tag

        def tree_flatten(self):
            return (self.content,), self.tag

        @classmethod
        def tree_unflatten(cls, tag, children):
            return cls(*children, tag)

    given = {"b": 1.0, "a": [{"z": 2.0, "y": 3.0}]}
    for f in (lambda x: jax.tree.map(lambda v: v, x), jax.jit(lambda x: x, backend="eager"), jax.grad(sum_of(jax))):
        found = f(given)
        assert list(found) == ["a", "b"] and list(found["a"][0]) == ["y", "z"]
    for tag in (1, True, 1.0):  # equal, and not the same
        found = jax.tree.map(lambda v: v, Tagged({"b": 0, "a": 1}, tag))
        assert type(found.tag) is type(tag) and list(found.content) == ["a", "b"]
    with gt.config(jax_results=False):
        assert list(jax.tree.map(lambda v: v, given)) == ["b", "a"]


def sum_of(jax):
    return lambda x: sum(jax.tree.leaves(x))


def test_arrays_and_dtypes_print_as_in_jax(jax):
    jnp = jax.numpy
    assert repr(jnp.array(1.5)) == "Array(1.5, dtype=float32, weak_type=True)"
    assert repr([jnp.zeros((2, 0)), jnp.ones(2).dtype]) == "[Array([], shape=(2, 0), dtype=float32), dtype('float32')]"
    assert "..." not in repr(jnp.arange(300)) and repr(jax.devices("cpu")) == "[CpuDevice(id=0)]"


def test_numbers_outside_an_axis_are_taken_as_index_arrays_are(jax):
    x = jax.numpy.array([1.0, 2.0, 3.0])
    assert (x[7].item(), x[-9].item(), x.at[7].get(mode="fill", fill_value=-1.0).item()) == (3.0, 1.0, -1.0)
    assert x.at[7].set(9.0).tolist() == [1.0, 2.0, 3.0]
    assert jax.numpy.isnan(jax.numpy.take(x, 7)).item()
    with gt.config(jax_results=False), pytest.raises(IndexError, match="expected an index"):
        x[7]


def test_64_bits_are_the_default_of_floats_with_x64(jax):
    jnp, key = jax.numpy, jax.random.PRNGKey(0)
    made = lambda: (jnp.zeros(1), jnp.arange(2) / 2, jax.random.normal(key), jnp.eye(1), jnp.array([1.0]), jnp.sqrt(2))  # noqa: E731
    assert {str(x.dtype) for x in made()} == {"float32"}
    with jax.enable_x64(True):
        assert {str(x.dtype) for x in made()} == {"float64"}
        assert jax.jit(lambda: jnp.ones(2), backend="eager")().dtype == "float64"
    with gt.config(x64=True, jax_results=False):
        assert gt.zeros(1).dtype == "float32"
