"""Typed keys of ``gtrace.jax``, beside those of JAX (tests/data/jax_keys.json, of tests/key_programs.py)."""

from __future__ import annotations

import collections
import copy
import functools
import json
import pathlib
import pickle
import warnings

import numpy as np
import pytest
from key_programs import described, programs

import gtrace as gt
import gtrace.jax
from gtrace.errors import DtypeError, KeyReuseError, ShapeError

EXPECTED = json.loads((pathlib.Path(__file__).parent / "data" / "jax_keys.json").read_text())

HALVED = json.loads((pathlib.Path(__file__).parent / "data" / "jax_halved.json").read_text())
"""Draws with ``jax_threefry_partitionable=False``, by tests/data/make_jax_halved.py."""


@pytest.fixture
def jax():
    with gt.config(x64=False, jax_results=True):
        yield gtrace.jax


def close(found, expected):
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    return abs(found - expected) < 2e-5 * (1 + abs(expected)) if isinstance(expected, float) else found == expected


def test_every_program_has_its_result():
    assert sorted(programs(gtrace.jax, gtrace.jax.jit)) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_programs_with_keys_give_jaxs_results(jax, name):
    program = programs(jax, functools.partial(jax.jit, backend="eager"))[name]
    found = json.loads(json.dumps(described(jax, program())))
    assert close(found, EXPECTED[name]), found


@pytest.mark.slow
def test_typed_keys_draw_what_their_words_draw(jax):
    random, jnp = jax.random, jax.numpy
    draws = {
        "binomial": (10, 0.4), "gamma": (2.0,), "dirichlet": (jnp.ones(3),), "multinomial": (10, jnp.ones(3) / 3),
        "poisson": (4.0,), "orthogonal": (2,), "ball": (3,), "permutation": (7,), "bits": (), "t": (3.0,),
    }  # fmt: skip
    for name, args in draws.items():
        draw = getattr(random, name)
        assert np.array_equal(draw(random.key(3), *args), draw(random.PRNGKey(3), *args)), name


def test_keys_print_as_jaxs(jax):
    keys = jax.random.split(jax.random.key(0), 2)
    assert repr(keys) == (
        "Array((2,), dtype=key<fry>) overlaying:\n[[1797259609 2579123966]\n [ 928981903 3453687069]]"
    )
    assert str(jax.eval_shape(jax.random.key, 0)) == "ShapeDtypeStruct(shape=(), dtype=key<fry>)"
    seen = []
    jax.jit(lambda keys: [seen.append(repr(keys)), keys][1], backend="eager")(keys)
    assert seen == ["Traced(key<fry>[2])"]


@pytest.mark.parametrize(
    "use",
    [
        lambda jnp, key: key + 1,
        lambda jnp, key: 1 - key,
        lambda jnp, key: jnp.ones(()) * key,
        lambda jnp, key: -key,
        lambda jnp, key: float(key),
        lambda jnp, key: bool(key),
        lambda jnp, key: key < key,
        lambda jnp, key: np.asarray(key),
        lambda jnp, key: jnp.sum(key),
        lambda jnp, key: jnp.sort(key),
        lambda jnp, key: jnp.exp(key),
        lambda jnp, key: key.sum(),
        lambda jnp, key: key.astype("uint32"),
        lambda jnp, key: key.at[...].add(1),
        lambda jnp, key: gt.sum(key),
        lambda jnp, key: jnp.asarray(key, jnp.uint32),
    ],
)
def test_keys_are_no_numbers_and_errors_name_key_data(jax, use):
    with pytest.raises((TypeError, AttributeError), match="key_data"):
        use(jax.numpy, jax.random.key(0))


@pytest.mark.parametrize(
    "use",
    [
        lambda jnp, key: key == 1,
        lambda jnp, key: jnp.where(True, key, 0),
        lambda jnp, key: jnp.stack([key, jnp.zeros((), jnp.int32)]),
        lambda jnp, key: key[None].at[0].set(jnp.zeros((), jnp.int32)),
    ],
)
def test_keys_do_not_meet_numbers(jax, use):
    with pytest.raises(DtypeError, match="an array of keys, key<fry>"):
        use(jax.numpy, jax.random.key(0))


def test_functions_of_one_key_refuse_several(jax):
    keys = jax.random.split(jax.random.key(0), 3)
    for draw in (jax.random.normal, jax.random.split, lambda key: jax.random.fold_in(key, 1)):
        with pytest.raises(ShapeError, match=r"a single key, got keys of shape \(3,\)"):
            draw(keys)
    with pytest.raises(TypeError, match="0-d"):
        len(keys[0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(keys)
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Keys", (jax.Array,), {})


def test_keys_are_arrays_and_leaves_of_trees(jax):
    key = jax.random.key(0)
    assert isinstance(key, jax.Array) and not isinstance(key, jax.core.Tracer)
    assert jax.tree.leaves({"key": key, "x": [1]}) == [key, 1] and jax.tree_util.all_leaves([key, 2])
    assert jax.tree.structure({"key": key, "x": 1}) == jax.tree.structure({"key": 0, "x": 1})
    assert jax.numpy.result_type(key) == key.dtype == jax.random.key_dtype() == pickle.loads(pickle.dumps(key.dtype))
    assert (copy.deepcopy(key) == key).all() and jax.device_get({"key": key})["key"] is key
    assert key.dtype == "key<fry>" and all(
        key.dtype != x for x in ("uint32", jax.numpy.int32, np.int32, np.dtype(int), 1)
    )
    assert jax.random.key_impl(key) == "threefry2x32" and key.nbytes == key.itemsize == 8
    seen = []
    jax.jit(lambda key: seen.append(isinstance(key, jax.core.Tracer)), backend="eager")(key)
    assert seen == [True]


def test_keys_where_libraries_cast_and_compare(jax):
    keys, np_ = jax.random.split(jax.random.key(0)), jax.numpy
    assert np_.array_equal(np_.astype(keys, keys.dtype), keys)
    assert np_.isclose(keys, keys[::-1]).tolist() == [False, False]
    assert np_.allclose(keys, keys) and not np_.allclose(keys, keys[0])
    assert isinstance(jax.typeof(keys), jax.core.AbstractValue) and not isinstance(keys, jax.core.AbstractValue)
    with pytest.raises(DtypeError, match="key_data"):
        np_.astype(keys, "float32")


def test_words_as_keys_are_warned_of_or_refused(jax):
    words, key = jax.random.PRNGKey(0), jax.random.key(0)
    for draw in (lambda k: jax.random.normal(k), lambda k: jax.random.split(key=k)):
        with jax.legacy_prng_key("error"):
            draw(key)
            with pytest.raises(ValueError, match="expected a typed key, got words"):
                draw(words)
        with jax.legacy_prng_key("warn"), pytest.warns(UserWarning, match="expected a typed key, got words"):
            draw(words)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            draw(words)
    with pytest.raises(ValueError, match="allow, warn, error"):
        jax.config.update("jax_legacy_prng_key", "never")


def test_descriptions_of_keys_are_compared(jax):
    one, two = (jax.ShapeDtypeStruct.like(jax.random.split(jax.random.key(0), n)) for n in (1, 2))
    assert jax.eval_shape(lambda key: key, one) == one and one != two
    assert jax.eval_shape(lambda key: jax.random.split(key[0], 2), one) == two


def test_a_key_is_used_once_with_debug_key_reuse(jax):
    key = jax.random.key(0)
    with gt.config(debug_key_reuse=True):
        jax.random.normal(jax.random.clone(key))
        jax.random.normal(key)
        with pytest.raises(KeyReuseError, match="used by normal"):
            jax.random.uniform(key)


def test_keys_are_saved_with_checkpoints(jax, tmp_path):
    state = {"keys": jax.random.split(jax.random.key(3), 2), "w": jax.numpy.ones(2)}
    gt.save_arrays(tmp_path / "state", state)
    found = gt.load_arrays(tmp_path / "state", like=jax.tree.map(jax.numpy.zeros_like, state))
    assert (found["keys"] == state["keys"]).all()


Point = collections.namedtuple("Point", "x y")


@gt.tree.register_pytree_node_class
class Pair:
    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, ("k", 1)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@pytest.mark.parametrize(
    ("tree", "text"),  # as jax 0.10 prints them
    [
        (1, "*"),
        (None, "None"),
        ((), "()"),
        ((1,), "(*,)"),
        ([1, None], "[*, None]"),
        ({}, "{}"),
        ({"a": 1, "b": (1, 2)}, "{'a': *, 'b': (*, *)}"),
        ({2: 1, 1: 0}, "{1: *, 2: *}"),
        (Point(1, {"a": None}), "CustomNode(namedtuple[Point], [*, {'a': None}])"),
        (Pair(1, [2]), "CustomNode(Pair[('k', 1)], [*, [*]])"),
        (collections.OrderedDict(b=1, a=2), "CustomNode(OrderedDict[('b', 'a')], [*, *])"),
        (
            collections.defaultdict(list, {"b": 1}),
            "CustomNode(defaultdict[(<class 'list'>, ('b',))], [*])",
        ),
        (gt.tree.Partial(Point, 1, k=2), "CustomNode(Partial[<class 'test_jax_keys.Point'>], [(*,), {'k': *}])"),
    ],
)
def test_structures_print_as_jaxs(jax, tree, text):
    found = jax.tree.structure(tree)
    assert repr(found) == str(found) == f"PyTreeDef({text})"
    assert isinstance(found, jax.tree_util.PyTreeDef)
    leaves, same = jax.tree_util.tree_flatten(tree)
    assert same == found == gt.tree.structure(tree) and hash(same) == hash(found)
    assert jax.tree.structure(jax.tree.unflatten(found, leaves)) == found == pickle.loads(pickle.dumps(found))
    assert (found == jax.tree.structure([tree])) is False


def test_structures_are_taken_apart_and_put_together(jax):
    util = jax.tree_util
    whole = jax.tree.structure({"a": 1, "b": (1, 2)})
    assert repr(whole.children()) == "[PyTreeDef(*), PyTreeDef((*, *))]" == repr(util.treedef_children(whole))
    assert (whole.num_leaves, whole.num_nodes) == (3, 5) and util.treedef_is_leaf(whole.children()[0])
    assert repr(whole.compose(jax.tree.structure([0]))) == "PyTreeDef({'a': [*], 'b': ([*], [*])})"
    assert repr(util.treedef_tuple([whole, whole.children()[0]])) == "PyTreeDef(({'a': *, 'b': (*, *)}, *))"
    assert whole.node_data() == (dict, ["a", "b"]) and whole.children()[0].node_data() is None
    assert jax.tree.structure(Pair(1)).node_data() == (Pair, ("k", 1))
    assert jax.tree.structure(Point(1, 2)).node_data() == (Point, None)
    assert whole.flatten_up_to({"a": [1, 2], "b": (3, None)}) == [[1, 2], 3, None]
    assert whole.walk(lambda children, data: (children, data), lambda x: -x, [1, 2, 3]) == (
        (-1, ((-2, -3), None)),
        ["a", "b"],
    )
    assert jax.tree.transpose(whole, jax.tree.structure([0, 0]), {"a": [1, 2], "b": ([3, 4], [5, 6])}) == [
        {"a": 1, "b": (3, 5)},
        {"a": 2, "b": (4, 6)},
    ]
    assert util.tree_flatten_with_path({"a": (1,)})[1] == jax.tree.structure({"a": (0,)})


@pytest.mark.parametrize("name", ["float32", "int32", "uint8", "bool_", "complex64"])
def test_tables_by_dtypes_find_what_they_find_in_jax(jax, name):
    jnp = jax.numpy
    kind, scalar, theirs = getattr(jnp, name), getattr(np, name), np.dtype(getattr(np, name))
    dtype = jnp.zeros(2, kind).dtype
    # as JAX 0.10 has them: classes of scalars find NumPy's, dtypes find NumPy's dtypes, and neither finds the other
    assert {scalar: 1}[kind] == {kind: 1}[scalar] == {kind: 1}[kind] == {theirs: 1}[dtype] == {dtype: 1}[theirs] == 1
    assert {jnp.dtype(kind): 1}[dtype] == {kind.dtype: 1}[dtype] == {np.dtype(kind): 1}[dtype] == 1
    assert kind not in {theirs: 1} and dtype not in {kind: 1} and dtype not in {scalar: 1}
    assert dtype in (scalar, kind) and kind == scalar and scalar == kind and kind == dtype == kind and kind == theirs
    assert kind != jnp.float16 and isinstance(kind, type) and kind.__name__ == jnp.dtype(kind).name
    assert jax.dtypes.canonicalize_dtype(kind) is jax.dtypes.canonicalize_dtype(dtype) is theirs
    assert (dtype.char, dtype.num, dtype.str) == (theirs.char, theirs.num, theirs.str)
    assert np.zeros(2, kind).dtype == theirs and kind(1).dtype == theirs and not isinstance(kind(1), kind)
    assert pickle.loads(pickle.dumps(kind)) is kind and repr(kind) == f"<class 'jax.numpy.{kind.__name__}'>"


def test_dtypes_by_name_follow_x64(jax):
    jnp, canonical = jax.numpy, jax.dtypes.canonicalize_dtype
    assert canonical("float64") is canonical(jnp.float64) is np.dtype("float32")
    assert jnp.zeros(2, jnp.int64).dtype == jnp.int32 and jnp.issubdtype(jnp.int64, jnp.integer)
    assert jax.ShapeDtypeStruct((2,), jnp.float32).dtype == jnp.float32 == jnp.result_type(jnp.float32, jnp.bfloat16)
    with gt.config(x64=True):
        assert canonical(jnp.float64) is np.dtype("float64") and jnp.zeros(2, jnp.int64).dtype == jnp.int64


@pytest.mark.parametrize("call", HALVED)
def test_draws_of_the_older_form_are_jaxs(jax, call):
    with jax.threefry_partitionable(False), jax.enable_x64("64'" in call):
        found = eval(call, {"jax": jax, "R": jax.random})
    assert close(found.tolist(), HALVED[call]), found


def test_jitted_draws_follow_the_form(jax):
    f = jax.jit(lambda key: jax.random.normal(key, (3,)), backend="eager")
    key = jax.random.key(12)
    newer = f(key).tolist()
    jax.config.update("jax_threefry_partitionable", False)
    try:
        older = f(key).tolist()
        assert close(older, HALVED["jax.jit(lambda k: R.normal(k, (3,)))(R.key(12))"])
        assert older == jax.random.normal(key, (3,)).tolist() and jax.config.jax_threefry_partitionable is False
    finally:
        jax.config.update("jax_threefry_partitionable", True)
    assert f(key).tolist() == newer == jax.random.normal(key, (3,)).tolist() != older
