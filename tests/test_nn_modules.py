"""gt.nn modules: values, gradients and names of parameters against torch.nn in float64; state, caches, transforms."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import assert_close, check_vmap

nn = gt.nn
KEY = gt.random.key(0)
WIDE = {"dtype": gt.float64, "key": KEY}


def filled(model, like):
    """Return the module with torch's parameters, which have the same names and shapes."""
    assert sorted(nn.state_dict(model)) == sorted(name for name, _ in like.named_parameters())
    return nn.load_state_dict(model, dict(like.named_parameters()))


def paths(model):
    return [gt.tree.keystr(path, simple=True, separator=".") for path, _ in gt.tree.leaves_with_path(model)]


def first(out):
    return out[0] if isinstance(out, tuple) else out


def check_equal(ours, theirs, *inputs, ours_call=None, theirs_call=None):
    """Compare the value of two modules with the same parameters, and its gradients by parameters and inputs."""
    ours_call = ours_call or (lambda model, *xs: model(*xs))
    theirs_call = theirs_call or (lambda model, *xs: first(model(*xs)))
    theirs.zero_grad()
    tensors = [torch.tensor(x, requires_grad=x.dtype == np.float64) for x in inputs]
    expected = theirs_call(theirs, *tensors)
    weights = np.linspace(0.5, 1.5, expected.numel()).reshape(expected.shape)
    (expected * torch.tensor(weights)).sum().backward()
    arrays = [gt.array(x) for x in inputs]
    np.testing.assert_allclose(ours_call(ours, *arrays).numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    places = tuple(k for k, x in enumerate(inputs) if x.dtype == np.float64)
    grads, *by_input = gt.grad(
        lambda model, *xs: (ours_call(model, *xs) * weights).sum(), (0, *[k + 1 for k in places])
    )(ours, *arrays)
    wanted = {name: x.grad.numpy() for name, x in theirs.named_parameters()}
    for name, g in nn.state_dict(grads).items():
        np.testing.assert_allclose(g.numpy(), wanted[name], rtol=1e-7, atol=1e-10, err_msg=name)
    for k, g in zip(places, by_input, strict=True):
        np.testing.assert_allclose(g.numpy(), tensors[k].grad.numpy(), rtol=1e-7, atol=1e-10)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-2.0, 2.0, shape)


LAYERS = [
    ("Linear", (3, 5), {}, (2, 4, 3)),
    ("Linear", (3, 5), {"bias": False}, (3,)),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 9)),
    ("Conv1d", (4, 6, 3), {"padding": "same", "dilation": 2, "bias": False}, (4, 9)),
    ("Conv2d", (2, 3, (3, 2)), {"stride": (2, 1), "padding": (1, 0)}, (2, 2, 7, 6)),
    ("Conv3d", (2, 3, 2), {}, (1, 2, 3, 4, 3)),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, (2, 4, 5)),
    ("ConvTranspose2d", (2, 3, 3), {"dilation": 2, "bias": False}, (2, 2, 4, 3)),
    ("ConvTranspose3d", (2, 3, 2), {"stride": 2}, (1, 2, 2, 2, 2)),
    ("LayerNorm", ((3, 4),), {"eps": 1e-3}, (2, 3, 4)),
    ("LayerNorm", (4,), {"bias": False}, (2, 4)),
    ("RMSNorm", (4,), {"eps": 1e-6}, (3, 4)),
    ("RMSNorm", (4,), {}, (3, 4)),
    ("GroupNorm", (2, 6), {}, (3, 6, 5)),
]


@pytest.mark.parametrize("case", LAYERS, ids=[f"{c[0]}-{k}" for k, c in enumerate(LAYERS)])
def test_layers_are_those_of_torch(case):
    name, args, options, shape = case
    theirs = getattr(torch.nn, name)(*args, **options, dtype=torch.float64)
    keyed = {"dtype": gt.float64} if "Norm" in name else WIDE
    for p in theirs.parameters():  # norms start with 1 and 0
        torch.nn.init.uniform_(p)
    check_equal(filled(getattr(nn, name)(*args, **options, **keyed), theirs), theirs, floats(*shape))


def test_embedding_is_that_of_torch():
    theirs = torch.nn.Embedding(7, 3, padding_idx=2, dtype=torch.float64)
    ours = nn.Embedding(7, 3, 2, **WIDE)
    assert float(abs(ours.weight[2]).sum()) == 0.0
    indices = np.array([[0, 2, 6], [2, 1, 1]])
    check_equal(filled(ours, theirs), theirs, indices)


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "Embedding", "LSTMCell", "MultiHeadAttention"])
def test_initial_values_have_the_spread_of_torchs(name):
    args = {"Linear": (200, 300), "Conv2d": (20, 30, 5), "Embedding": (200, 100), "LSTMCell": (100, 150)}
    given = args.get(name, (200, 4))
    torch.manual_seed(0)
    theirs = getattr(torch.nn, {"MultiHeadAttention": "MultiheadAttention"}.get(name, name))(*given)
    ours = getattr(nn, name)(*given, key=KEY)
    for path, x in zip(paths(ours), gt.tree.leaves(ours), strict=True):
        spread = float(dict(theirs.named_parameters())[path].detach().std())
        assert x.dtype == gt.float32
        assert float(x.std()) == pytest.approx(spread, rel=0.1, abs=1e-9), path


# -- attention


def attention_masks(rng, queries, keys):
    keep = rng.random((queries, keys)) < 0.7
    keep[:, 0] = True
    return keep


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["self", "memory", "three"])
@pytest.mark.parametrize("mask", ["none", "boolean", "added", "causal"])
def test_attention_is_that_of_torch(kind, mask, bias):
    theirs = torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, dtype=torch.float64)
    for p in theirs.parameters():
        torch.nn.init.uniform_(p, -0.5, 0.5)
    ours = filled(nn.MultiHeadAttention(12, 3, bias=bias, causal=mask == "causal", **WIDE), theirs)
    count = {"self": 1, "memory": 2, "three": 3}[kind]
    inputs = [floats(2, 4 if k == 0 else 5, 12, seed=k) for k in range(count)]
    queries, keys = 4, 4 if kind == "self" else 5
    keep = attention_masks(np.random.default_rng(0), queries, keys)
    ours_mask = theirs_mask = None
    if mask == "boolean":
        ours_mask, theirs_mask = gt.array(keep), torch.tensor(~keep)
    elif mask == "added":
        ours_mask, theirs_mask = gt.array(floats(queries, keys)), torch.tensor(floats(queries, keys))
    elif mask == "causal":
        theirs_mask = torch.tensor(np.arange(queries)[:, None] < np.arange(keys))

    def torch_call(model, *xs):
        xs = (xs * 3)[:3] if len(xs) != 2 else (xs[0], xs[1], xs[1])
        return model(*xs, attn_mask=theirs_mask, need_weights=False)[0]

    check_equal(ours, theirs, *inputs, ours_call=lambda m, *xs: m(*xs, mask=ours_mask), theirs_call=torch_call)


@given(st.integers(0, 2**31), st.sampled_from([(1, 1), (4, 2), (6, 1), (4, 4)]), st.integers(1, 6))
def test_grouped_queries_are_whole_attention_with_repeated_heads(seed, heads, length):
    queries, groups = heads
    ours = nn.MultiHeadAttention(queries * 2, queries, num_kv_heads=groups, dtype=gt.float64, key=gt.random.key(seed))
    q, k, v = np.split(ours.in_proj_weight.numpy(), [queries * 2, (queries + groups) * 2])
    wide = [np.repeat(w.reshape(groups, 2, -1), queries // groups, axis=0).reshape(queries * 2, -1) for w in (k, v)]
    whole = nn.MultiHeadAttention(queries * 2, queries, **WIDE).replace(
        in_proj_weight=gt.array(np.concatenate([q, *wide])), out_proj=ours.out_proj
    )
    x = gt.array(floats(2, length, queries * 2, seed=seed))
    np.testing.assert_allclose(ours(x).numpy(), whole(x).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_turns_pairs_as_complex_numbers(interleaved):
    x = floats(2, 3, 5, 8)
    positions = np.array([0, 3, 1, 7, 100])
    out = nn.rotary_embedding(gt.array(x), gt.array(positions), base=500.0, interleaved=interleaved).numpy()
    pairs = x.reshape(2, 3, 5, 4, 2) if interleaved else np.stack(np.split(x, 2, axis=-1), -1)
    turn = np.exp(1j * positions[:, None] * 500.0 ** (-np.arange(4) / 4))
    expected = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    got = out.reshape(2, 3, 5, 4, 2) if interleaved else np.stack(np.split(out, 2, axis=-1), -1)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], expected, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 50), st.integers(-20, 20), st.integers(0, 2**31))
def test_rotary_products_depend_on_the_distance(start, distance, seed):
    q, k = (gt.array(floats(1, 8, seed=seed + j)) for j in range(2))

    def product(place, other):
        a, b = (nn.rotary_embedding(x, gt.array([p])) for x, p in ((q, place), (k, other)))
        return float((a * b).sum())

    assert product(start + 20, start + 20 + distance) == pytest.approx(product(20, 20 + distance), rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans(), st.booleans(), st.integers(0, 100))
def test_a_cache_gives_what_the_whole_sequence_gives(parts, rotary, added, seed):
    """Whatever the parts that a sequence is fed in; with a mask of keys that never take part."""
    attention = nn.MultiHeadAttention(
        8, 4, num_kv_heads=2, causal=True, rotary_base=100.0 if rotary else None, dtype=gt.float64,
        key=gt.random.key(seed),
    )  # fmt: skip
    length, capacity = sum(parts), sum(parts) + 2
    x = gt.array(floats(2, length, 8, seed=seed))
    keep = np.random.default_rng(seed).random(capacity) < 0.7
    keep[0] = True
    mask = gt.where(gt.array(keep), 0.0, -math.inf) if added else gt.array(keep)
    whole = attention(x, mask=mask[:length])
    cache = attention.initial_cache(2, capacity)
    out, start = [], 0
    for count in parts:
        part, cache = attention(x[:, start : start + count], mask=mask, cache=cache)
        out.append(part)
        start += count
    np.testing.assert_allclose(gt.concat(out, axis=1).numpy(), whole.numpy(), rtol=1e-9, atol=1e-12)
    assert int(cache.length) == length


def test_a_full_cache_raises_and_every_step_is_one_program():
    attention = nn.MultiHeadAttention(4, 2, causal=True, key=KEY)
    step = gt.jit(lambda m, x, cache: m(x, cache=cache), backend="eager")
    cache = attention.initial_cache(1, 2)
    x = gt.ones((1, 1, 4))
    for _ in range(2):
        _, cache = step(attention, x, cache)
    assert len(step.programs()) == 1
    with pytest.raises(gt.ExecutionError):
        gt.eval(attention(x, cache=cache))
    with pytest.raises(gt.ArgumentError, match="self-attention"):
        attention(x, x, cache=cache)


def test_attention_drops_weights_only_with_a_key():
    attention = nn.MultiHeadAttention(4, 2, dropout=0.5, key=KEY)
    x = gt.array(floats(1, 6, 4).astype(np.float32))
    assert bool((attention(x) == attention(x)).all())
    assert not bool((attention(x, key=KEY) == attention(x)).all())
    keys = gt.random.split(KEY, 3000)
    mean = gt.vmap(lambda key: attention(x, key=key))(keys).mean(0)
    np.testing.assert_allclose(mean.numpy(), attention(x).numpy(), atol=0.03)


# -- recurrent networks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize("layers, both, bias", [(1, False, True), (2, True, True), (2, False, False)])
def test_recurrent_networks_are_those_of_torch(name, layers, both, bias):
    theirs = getattr(torch.nn, name)(3, 5, layers, bias=bias, batch_first=True, bidirectional=both, dtype=torch.float64)
    ours = filled(getattr(nn, name)(3, 5, layers, bias, bidirectional=both, **WIDE), theirs)
    x = floats(2, 4, 3)
    check_equal(ours, theirs, x, ours_call=lambda m, x: m(x)[0])
    start = [floats(layers * (1 + both), 2, 5, seed=k) for k in (1, 2)][: 2 if name == "LSTM" else 1]

    def last(model, x, *state):
        out = model(x, tuple(state) if name == "LSTM" else state[0])[1]
        return out[0] + out[1] if name == "LSTM" else out

    check_equal(ours, theirs, x, *start, ours_call=last, theirs_call=last)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_cells_are_those_of_torch(name):
    theirs = getattr(torch.nn, name)(3, 5, dtype=torch.float64)
    ours = filled(getattr(nn, name)(3, 5, **WIDE), theirs)
    count = 2 if name == "LSTMCell" else 1
    states = [floats(2, 5, seed=k) for k in range(count)]

    def call(model, x, *state):
        out = model(x, tuple(state) if count == 2 else state[0])
        return out[0] + out[1] if count == 2 else out

    check_equal(ours, theirs, floats(2, 3), *states, ours_call=call, theirs_call=call)


# -- transformers


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders_are_those_of_torch(norm_first, activation):
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 16, 0.0, activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    theirs = torch.nn.TransformerEncoder(
        layer, 2, torch.nn.LayerNorm(8, dtype=torch.float64), enable_nested_tensor=False
    )
    for p in theirs.parameters():
        torch.nn.init.uniform_(p, -0.5, 0.5)
    function = gt.relu if activation == "relu" else EXACT_GELU
    ours = nn.TransformerEncoder(
        2, 8, 2, 16, dropout=0.0, activation=function, norm_first=norm_first, norm=True, causal=True, **WIDE
    )
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    check_equal(filled(ours, theirs), theirs, floats(2, 5, 8), theirs_call=lambda m, x: m(x, mask=mask))


def EXACT_GELU(x):  # noqa: N802 - a constant: modules are told apart by their functions
    return gt.gelu(x, approximate=False)


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoders_are_those_of_torch(norm_first):
    layer = torch.nn.TransformerDecoderLayer(
        8, 2, 16, 0.0, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    theirs = torch.nn.TransformerDecoder(layer, 2)
    for p in theirs.parameters():
        torch.nn.init.uniform_(p, -0.5, 0.5)
    ours = filled(nn.TransformerDecoder(2, 8, 2, 16, dropout=0.0, norm_first=norm_first, **WIDE), theirs)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    x, memory = floats(2, 4, 8), floats(2, 6, 8, seed=1)
    check_equal(ours, theirs, x, memory, theirs_call=lambda m, x, memory: m(x, memory, tgt_mask=mask))
    cache = ours.initial_cache(2, 4)
    rows = []
    for k in range(4):
        row, cache = ours(gt.array(x[:, k : k + 1]), gt.array(memory), cache=cache)
        rows.append(row)
    expected = ours(gt.array(x), gt.array(memory)).numpy()
    np.testing.assert_allclose(gt.concat(rows, axis=1).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_transformer_dropout_needs_a_key_and_keeps_the_mean():
    model = nn.TransformerEncoder(2, 8, 2, 16, dropout=0.2, norm_first=True, key=KEY)
    x = gt.array(floats(1, 3, 8).astype(np.float32))
    assert bool((model(x) == model(x)).all())
    out = gt.vmap(lambda key: model(x, key=key))(gt.random.split(KEY, 2000))
    assert float(out.std(0).min()) > 0.05
    np.testing.assert_allclose(out.mean(0).numpy(), model(x).numpy(), atol=0.15)


# -- containers and state


def test_a_sequential_model_with_state_is_that_of_torch():
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, dtype=torch.float64),
        torch.nn.BatchNorm2d(4, dtype=torch.float64),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 2, dtype=torch.float64),
    )
    ours = nn.Sequential(
        nn.Conv2d(1, 4, 3, **WIDE),
        nn.BatchNorm(4, dtype=gt.float64),
        gt.relu,
        lambda x: x.reshape(x.shape[0], -1),
        nn.Linear(16, 2, **WIDE),
    )
    ours = filled(ours, theirs)
    state = ours.initial_state()
    for step in range(3):
        x = floats(3, 1, 4, 4, seed=step)
        expected = theirs(torch.tensor(x))
        out, state = ours(gt.array(x), state=state, training=True)
        np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    for name in ("running_mean", "running_var"):
        assert_close(getattr(state[1], name), getattr(theirs[1], name))
    loaded = nn.load_state_dict(ours.initial_state(), theirs.state_dict(), strict=False)
    assert_close(loaded[1].running_var, state[1].running_var)
    theirs.eval()
    check_equal(ours, theirs, x, ours_call=lambda m, x: m(x, state=state)[0])
    assert ours(gt.array(x), state=state)[1][1] is state[1]
    with pytest.raises(gt.ArgumentError, match="a state for BatchNorm"):
        ours(gt.array(x))


def test_sequential_gives_each_layer_a_key_of_its_own():
    drop = nn.Dropout(0.5)
    model = nn.Sequential(drop, nn.Sequential(drop, gt.relu))
    x = gt.ones(2000)
    assert bool((model(x) == x).all())
    assert float((model(x, key=KEY) > 0).mean()) == pytest.approx(0.25, abs=0.05)
    with pytest.raises(gt.ArgumentError, match=r"Sequential\(\*layers\)"):
        nn.Sequential([drop])


def test_mlp_is_linear_maps_with_activations():
    model = nn.MLP(3, 2, 5, 2, gt.tanh, **WIDE)
    x = floats(4, 3)
    want = x
    for k, layer in enumerate(model.layers):
        want = want @ layer.weight.numpy().T + layer.bias.numpy()
        want = np.tanh(want) if k < 2 else want
    assert_close(model(gt.array(x)), want)


# -- modules as pytrees


class Scaled(nn.Module):
    inner: nn.Linear
    scale: gt.Array
    times: int = nn.field(static=True, default=2)
    note: str = nn.field(static=True, default="none")

    def __init__(self, key):
        self.inner = nn.Linear(2, 2, key=key)
        self.scale = gt.array(1.5)
        self.note = "set"

    def __call__(self, x):
        for _ in range(self.times):
            x = self.scale * self.inner(x)
        return x


class Named(Scaled):
    name: str = nn.field(static=True, default="model")


class Pair(nn.Module):
    a: gt.Array
    b: gt.Array = None


def test_modules_are_frozen_pytrees():
    model = Scaled(KEY)
    assert model.times == 2 and model.note == "set"
    assert paths(model) == ["inner.weight", "inner.bias", "scale"]
    doubled = gt.tree.map(lambda x: x * 2, model)
    assert type(doubled) is Scaled and float(doubled.scale) == 3.0 and doubled.note == "set"
    with pytest.raises(gt.ImmutableError, match=r"replace\(scale=value\)"):
        model.scale = gt.array(2.0)
    with pytest.raises(gt.ImmutableError):
        del model.scale
    with pytest.raises(gt.ArgumentError, match="Declare it"):
        model.scael = 1
    assert float(model.replace(scale=gt.array(4.0)).scale) == 4.0
    with pytest.raises(gt.ArgumentError, match="declared fields"):
        model.replace(scael=1)
    with pytest.raises(AttributeError, match="bias2"):
        _ = model.inner.bias2
    assert model == model and model != Scaled(KEY) and {model: 1}[model] == 1
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert gt.tree.structure(again) == gt.tree.structure(model)
        assert bool((again.inner.weight == model.inner.weight).all())


def test_static_fields_are_part_of_the_structure():
    model = Scaled(KEY)
    structure = gt.tree.structure(model)
    assert gt.tree.structure(gt.tree.map(lambda x: x + 1, model)) == structure
    assert hash(gt.tree.structure(Scaled(KEY))) == hash(structure)
    assert gt.tree.structure(model.replace(times=3)) != structure
    assert gt.tree.structure(model.replace(times=2.0)) != structure
    assert gt.tree.map(lambda x: x, model.replace(times=3)).times == 3
    with pytest.raises(gt.StructureError):
        gt.tree.map(lambda a, b: a, model, model.replace(note="other"))

    class Early(nn.Module):
        weight: gt.Array
        size: int = nn.field(static=True, default=0)

        def __init__(self):
            self.weight = gt.ones(2)
            assert gt.tree.structure(self).num_leaves == 1
            self.size = 5

    assert gt.tree.map(lambda x: x, Early()).size == 5


def test_an_init_is_inherited_and_generated_ones_take_fields():
    assert Named(KEY).name == "model" and Named(KEY).times == 2
    assert Pair(gt.ones(1)).b is None
    with pytest.raises(TypeError):
        Pair()


def test_an_unset_field_is_named():
    class Forgetful(nn.Module):
        weight: gt.Array

        def __init__(self):
            pass

    with pytest.raises(AttributeError, match=r"'weight' to be set in __init__"):
        gt.tree.leaves(Forgetful())


def test_a_module_says_what_it_holds_and_computes_nothing():
    model = nn.Sequential(nn.Linear(2, 64, key=KEY), gt.relu, nn.Linear(64, 1, key=KEY))
    text = repr(model)
    assert text.splitlines()[2] == "    Linear(weight=float32[64,2], bias=float32[64]),"
    assert "Lambda(function=relu)" in text
    table = nn.summary({"net": model, "step": gt.array(0), "name": "x"})
    assert "['net'].layers[2].weight" in table and "258 numbers in 5 arrays" in table


def test_modules_go_through_transforms():
    model = Scaled(KEY)
    x = gt.array(floats(5, 2).astype(np.float32))

    def loss(model, x):
        return (model(x) ** 2).mean()

    plain = gt.grad(loss)(model, x)
    jitted = gt.jit(gt.grad(loss), backend="eager")(model, x)
    for a, b in zip(gt.tree.leaves(plain), gt.tree.leaves(jitted), strict=True):
        assert_close(a, b)
    assert type(jitted) is Scaled
    check_vmap(lambda x: model(x), (x,))
    many = gt.vmap(lambda key: Scaled(key))(gt.random.split(KEY, 3))
    assert many.inner.weight.shape == (3, 2, 2)
    out = gt.vmap(lambda m, x: m(x), in_axes=(0, None))(many, x)
    one = gt.tree.map(lambda leaf: leaf[1], many)
    expected = one(x).numpy()  # a sum that cancels has the rounding of its terms: that of the largest result
    np.testing.assert_allclose(out[1].numpy(), expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def test_weights_are_refused_that_do_not_fit():
    model = nn.Sequential(nn.Linear(2, 3, key=KEY), gt.relu, nn.Linear(3, 1, key=KEY))
    state = {name: x.numpy().astype(np.float64) for name, x in nn.state_dict(model).items()}
    again = nn.load_state_dict(model, {**state, "more": 1}, strict=False)
    assert again[2].weight.dtype == gt.float32 and bool((again[2].weight == model[2].weight).all())
    with pytest.raises(gt.ArgumentError, match=r"with more\. Or pass strict=False"):
        nn.load_state_dict(model, {**state, "more": 1})
    with pytest.raises(gt.ShapeError, match=r"0\.weight of shape \(3, 2\)"):
        nn.load_state_dict(model, {**state, "0.weight": state["0.weight"].T})
    del state["2.bias"]
    with pytest.raises(gt.ArgumentError, match=r"without 2\.bias"):
        nn.load_state_dict(model, state)
    mixed = {"net": [model], "name": "x", "steps": 3}
    assert next(iter(nn.state_dict(mixed))) == "net.0.0.weight"
    assert nn.load_state_dict(mixed, nn.state_dict(mixed))["steps"] == 3


# -- filters


LEAVES = st.one_of(
    st.just(None), st.booleans(), st.integers(-3, 3), st.text(max_size=3),
    st.sampled_from([np.float32(1.5), np.arange(3), gt.ones(2), gt.arange(2), gt.relu]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


@given(TREES)
def test_partition_and_combine_are_inverse(tree):
    for choose in (nn.is_array, nn.is_inexact_array, lambda x: isinstance(x, str)):
        chosen, rest = nn.partition(tree, choose)
        assert all(choose(x) for x in gt.tree.leaves(chosen))
        assert not any(choose(x) for x in gt.tree.leaves(rest))
        again = nn.combine(chosen, rest)
        assert gt.tree.structure(again) == gt.tree.structure(tree)
        assert all(a is b for a, b in zip(gt.tree.leaves(again), gt.tree.leaves(tree), strict=True))


class Mixed(nn.Module):
    weight: gt.Array
    count: gt.Array
    function: object
    name: str

    def __call__(self, x):
        return self.function(self.weight * x) * self.count


def test_filters_leave_alone_what_is_no_array():
    model = Mixed(gt.array([1.0, -2.0]), gt.array(3), gt.relu, "mixed")

    @nn.filter_jit(backend="eager")
    def step(model, x, *, power):
        (value, aux), grads = nn.filter_value_and_grad(lambda m, x: ((m(x) ** power).sum(), m.name), has_aux=True)(
            model, x
        )
        return value, aux, grads, model

    for _ in range(2):
        value, aux, grads, same = step(model, gt.array(2.0), power=2)
    assert float(value) == 36.0 and aux == "mixed"
    assert grads.count is None and grads.function is None and grads.weight.tolist() == [72.0, 0.0]
    assert same.function is gt.relu and same.name == "mixed"
    assert float(step(model, gt.array(2.0), power=1)[0]) == 6.0
    grads, aux = nn.filter_grad(lambda m: (m.weight.sum(), "aux"), has_aux=True)(model)
    assert grads.weight.tolist() == [1.0, 1.0] and aux == "aux"
    with pytest.raises(gt.ArgumentError, match=r"set at \[0\]\[0\]"):
        step({1}, gt.array(2.0), power=1)


def test_partition_takes_a_pytree_of_choices():
    model = nn.Linear(2, 2, key=KEY)
    chosen, rest = nn.partition(model, model.replace(weight=True, bias=False))
    assert chosen.bias is None and rest.weight is None and rest.bias is model.bias


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(2, 2), lambda: nn.MLP(2, 2, 2, 1), lambda: nn.LSTM(2, 2), lambda: nn.Conv1d(1, 1, 1),
             lambda: nn.TransformerEncoder(1, 4, 2)]
)  # fmt: skip
def test_initial_values_need_a_key(make):
    with pytest.raises(gt.ArgumentError, match=r"key=gt.random.key\(0\)"):
        make()


def test_wrong_sizes_are_refused():
    with pytest.raises(gt.ArgumentError, match="num_heads that divide"):
        nn.MultiHeadAttention(6, 4, key=KEY)
    with pytest.raises(gt.ShapeError, match="embed_dim 4"):
        nn.MultiHeadAttention(4, 2, key=KEY)(gt.ones((3, 5)))
    with pytest.raises(gt.ShapeError, match="input_size 3"):
        nn.LSTM(3, 2, key=KEY)(gt.ones((3, 5)))
    with pytest.raises(gt.ArgumentError, match="a cache for each of 2 layers"):
        nn.TransformerEncoder(2, 4, 2, 8, key=KEY)(gt.ones((1, 1, 4)), cache=())
    with pytest.raises(gt.ShapeError, match="even depth"):
        nn.rotary_embedding(gt.ones((2, 3)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Dropout(1.5), r"\[nn.Dropout\] expected a number in \[0, 1\] as p, got 1.5"),
        (lambda: nn.GroupNorm(8, 4), "divides the channels, got 8 of 4. The first argument is the number of groups"),
        (lambda: nn.Sequential(nn.Linear(2, 2, key=KEY), nn.Dropout), r"got the class Dropout. Make one: Dropout\("),
        (lambda: nn.MLP(2, 2, 2, 1, activation="relu", key=KEY), "a function as activation, got 'relu'"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="gelu", key=KEY), "a function as activation, got 'gelu'"),
        (lambda: nn.LSTM(3, 2, key=KEY)(gt.ones((2, 5, 3)), gt.ones((1, 2, 2))), r"expected a pair \(h, c\) as state"),
        (
            lambda: nn.LSTM(3, 2, key=KEY)(gt.ones((2, 5, 3)), (gt.ones((2, 1, 2)),) * 2),
            r"shape \(1, 2, 2\), got f32\[2,1,2",
        ),
        (
            lambda: nn.GRU(3, 2, key=KEY)(gt.ones((2, 5, 3)), gt.ones((2, 2))),
            r"states of shape \(1, 2, 2\), got f32\[2,2\]",
        ),
        (lambda: nn.LSTMCell(3, 2, key=KEY)(gt.ones((2, 3)), gt.ones((2, 2))), r"expected a pair \(h, c\) as state"),
        (
            lambda: nn.MultiHeadAttention(4, 2, key=KEY)(gt.ones((1, 3, 4)), mask=gt.array([1, 1, 0])),
            r"a boolean or a floating mask, got i64\[3\]. Pass mask != 0",
        ),
        (lambda: gt.optim.adam({"w": gt.ones(2)}, 1e-3), "as learning_rate, got dict. Parameters go to optimizer.init"),
        (lambda: gt.optim.sgd("0.1"), "as learning_rate, got str"),
    ],
)
def test_mistakes_that_gave_wrong_numbers_or_late_errors_are_named(make, text):
    with pytest.raises(gt.GtraceError, match=text) as raised:
        make()
    assert "test_nn_modules.py" in str(raised.value)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("train eval", "Pass a key to calls that train"),
        ("parameters named_parameters", r"gt.tree.leaves\(model\)"),
        ("to cuda half", "gt.tree.map"),
        ("state_dict load_state_dict", "gt.nn.load_state_dict"),
        ("zero_grad", "gt.grad"),
        ("width", "no attribute 'width'$"),
    ],
)
def test_methods_of_torchs_modules_say_what_to_use(names, text):
    model = gt.nn.LayerNorm(3)
    for name in names.split():
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match=text):
            getattr(model, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ReLU", "mean 'relu'"), ("CrossEntropyLoss", "mean 'cross_entropy'"), ("MaxPool2d", "mean 'max_pool2d'"),
        ("MSELoss", "mean 'mse_loss'"), ("Parameter", "gt.Array"), ("Flatten", "reshape"), ("ModuleList", "a list"),
        ("functional", "in gt.nn itself"),
    ],
)  # fmt: skip
def test_torchs_names_say_what_to_use(name, text):
    with pytest.raises(AttributeError, match=text):
        getattr(gt.nn, name)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_networks_take_inputs_of_another_dtype(name):
    layer = getattr(gt.nn, name)(3, 4, key=gt.random.key(0))
    x = gt.random.normal(gt.random.key(1), (2, 5, 3)).astype(gt.bfloat16)
    out, last = layer(x)
    assert out.dtype == gt.float32 and all(s.dtype == gt.float32 for s in gt.tree.leaves(last))
    np.testing.assert_allclose(out, layer(x.astype(gt.float32))[0], rtol=1e-5, atol=1e-6)
    low = gt.tree.map(lambda p: p.astype(gt.bfloat16), layer)
    assert low(x)[0].dtype == gt.bfloat16


@pytest.mark.parametrize(
    "layer, args, text",
    [
        ("Conv2d", {"groups": 2}, "groups that divide the channels"),
        ("Conv2d", {"groups": 0}, "groups that divide the channels"),
        ("ConvTranspose2d", {"groups": 3}, "groups that divide the channels"),
        ("ConvTranspose2d", {"stride": 2, "output_padding": 2}, "an output_padding below the stride"),
    ],
)
def test_convolutions_refuse_what_torch_refuses(layer, args, text):
    with pytest.raises((ValueError, RuntimeError), match=r"groups|output"):
        found = getattr(torch.nn, layer)(3, 4, 3, **args)
        found(torch.ones(1, 3, 5, 5))
    with pytest.raises(gt.ArgumentError, match=text):
        getattr(gt.nn, layer)(3, 4, 3, **args, key=gt.random.key(0))
