"""``gt.from_module``: torch modules as pure functions, with torch's own initialization, against torch."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gtrace as gt
from gtrace.errors import ArgumentError
from gtrace.testing import assert_close


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.relu, self.head = nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Linear(8, 10)

    def forward(self, x):
        x = self.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(x + self.relu(self.second(x)), 2)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 7, num_layers=2, batch_first=True), nn.Linear(7, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.25, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


MODULES = {
    "residual": (Residual, (4, 3, 8, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (3, 5, 16)),
    "lstm": (Recurrent, (3, 6, 5)),
    "attention": (Attending, (3, 5, 16)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)), (4, 6)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    return make().double(), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("name", MODULES)
def test_outputs_and_gradients_are_those_of_torch(name):
    module, x = made(name)
    module.eval()
    params, apply = gt.from_module(module, gt.array(x))
    expected = module(x)
    np.testing.assert_allclose(apply(params, gt.array(x)), expected.detach(), rtol=1e-9, atol=1e-11)
    grads = gt.grad(lambda p: (apply(p, gt.array(x)) ** 2).sum())(params)
    (expected**2).sum().backward()
    for key, value in module.named_parameters():
        np.testing.assert_allclose(grads[key], value.grad, rtol=1e-7, atol=1e-9, err_msg=key)


class Residuals(nn.Module):
    """The residuals of a differential equation, with derivatives by the inputs that torch's autograd takes inside."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        u = self.net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 0].exp().sum(), x, create_graph=True)
        return slope[:, 1] - 0.1 * curve[:, 0] + u.tanh().detach()[:, 0] * u.exp().data[:, 0] * slope[:, 0]


def test_gradients_go_through_gradients_that_a_module_takes():
    torch.manual_seed(0)
    module = Residuals().double()
    x = torch.rand(6, 2, dtype=torch.float64)
    params, apply = gt.from_module(module)
    expected = module(x)
    (expected**2).mean().backward()
    grads = gt.grad(lambda p: (apply(p, gt.array(x)) ** 2).mean())(params)
    np.testing.assert_allclose(apply(params, gt.array(x)), expected.detach(), rtol=1e-9, atol=1e-11)
    for key, value in module.named_parameters():
        wanted = torch.zeros_like(value) if value.grad is None else value.grad
        np.testing.assert_allclose(grads[key], wanted, rtol=1e-7, atol=1e-9, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "lstm", "transformer"])
def test_transforms_go_through_a_module(name):
    module, x = made(name)
    params, apply = gt.from_module(module.eval())
    a = gt.array(x)
    y = apply(params, a)
    np.testing.assert_allclose(gt.vmap(lambda z: apply(params, z))(gt.stack([a, a * 2]))[0], y, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(gt.jit(apply)(params, a), y, rtol=1e-7, atol=1e-9)
    _, moved = gt.jvp(lambda z: apply(params, z).sum(), (a,), (a * 0.5,))
    (back,) = gt.grad(lambda z: apply(params, z).sum(), argnums=(0,))(a)
    assert abs(float(moved) - float((back * a * 0.5).sum())) < 1e-8


def test_running_statistics_come_in_and_go_out():
    module, x = made("residual")
    params, apply = gt.from_module(module)
    assert set(apply.state) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    module.train()
    state = apply.state
    for scale in (1.0, 2.0):
        expected = module(x * scale)
        y, state = apply(params, gt.array(x * scale), state=state, train=True)
        np.testing.assert_allclose(y, expected.detach(), rtol=1e-9, atol=1e-11)
        for key, value in module.named_buffers():
            assert_close(state[key], value, key)
    assert int(apply.state["norm.num_batches_tracked"]) == 0, "what was given is as it was"
    with pytest.raises(ArgumentError, match=r"expected a state.*running_mean.*state=apply.state"):
        apply(params, gt.array(x), train=True)
    grads = gt.grad(lambda p: (apply(p, gt.array(x), state=apply.state, train=True)[0] ** 2).sum())(params)
    module.zero_grad()
    (module(x) ** 2).sum().backward()
    np.testing.assert_allclose(grads["first.weight"], module.first.weight.grad, rtol=1e-6, atol=1e-9)


def test_a_module_keeps_its_own_values_and_mode():
    module, x = made("residual")
    params, apply = gt.from_module(module.train())
    before = {key: value.clone() for key, value in module.state_dict().items()}
    apply(params, gt.array(x), state=apply.state, train=True)
    apply(params, gt.array(x))
    assert module.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(7, 4), nn.BatchNorm1d(4), nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids) + self.shift))


def test_a_module_takes_its_weights_back_strictly():
    torch.manual_seed(0)
    params, apply = gt.from_module(Tied())
    ids = torch.arange(7)
    _, state = apply(params, ids, state=apply.state, train=True)
    params = {name: x + 0.5 for name, x in params.items()}
    other = Tied()
    other.load_state_dict(apply.state_dict(params, state), strict=True)
    assert other.head.weight is other.embedding.weight and int(other.norm.num_batches_tracked) == 1
    np.testing.assert_allclose(other.eval()(ids).detach(), apply(params, ids, state=state)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"with the 4 names of the module, got without 'head.bias'"):
        apply.state_dict({name: x for name, x in params.items() if name != "head.bias"})


def test_dropout_takes_a_key():
    module = nn.Sequential(nn.Linear(40, 50), nn.Dropout(0.25), nn.Linear(50, 50), nn.Dropout(0.25))
    params, apply = gt.from_module(module)
    x = gt.ones((200, 40))
    one, again, other = (apply(params, x, train=True, key=gt.random.key(k)) for k in (0, 0, 1))
    assert (one == again).all() and not (one == other).all()
    assert abs(float((one == 0).astype(gt.float32).mean()) - 0.25) < 0.02
    assert not (apply(params, x) == 0).any()
    with pytest.raises(ArgumentError, match=r"expected a key, got none.*key=gt.random.key"):
        apply(params, x, train=True)
    drawn = gt.vmap(lambda key: apply(params, x, train=True, key=key))(gt.random.split(gt.random.key(3), 2))
    assert not (drawn[0] == drawn[1]).all()


def test_attention_drops_with_a_key():
    module, x = made("attention")
    params, apply = gt.from_module(module)
    one, again, other = (apply(params, gt.array(x), train=True, key=gt.random.key(k)) for k in (0, 0, 1))
    assert (one == again).all() and not (one == other).all()


def test_wrong_use():
    params, apply = gt.from_module(nn.Linear(3, 2))
    with pytest.raises(ArgumentError, match=r"a torch.nn.Module, got function"):
        gt.from_module(lambda x: x)
    with pytest.raises(ArgumentError, match=r"params as a dict with the 2 names.*without 'bias'"):
        apply({"weight": params["weight"]}, gt.ones((1, 3)))
    with pytest.raises(ArgumentError, match=r"expected arguments that fit.*f32\[1,4\]"):
        apply(params, gt.ones((1, 4)))


def test_training_an_undecorated_loop_lowers_the_loss():
    torch.manual_seed(1)
    params, apply = gt.from_module(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)))
    x = gt.array(torch.randn(64, 2))
    y = (x[:, :1] * x[:, 1:]).astype(gt.float32)
    losses = []
    for _ in range(150):
        loss, grads = gt.value_and_grad(lambda p: ((apply(p, x) - y) ** 2).mean())(params)
        params = gt.tree_map(lambda p, g: p - 0.2 * g, params, grads)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2


class Branching(nn.Module):
    """Looks at its mask where it is not being compiled, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask):
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return self.layer(x)
        return self.layer(x).masked_fill(~mask[..., None], 0)


class Looking(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.filterwarnings("ignore:.Looking. is traced anew:gtrace.RetracingWarning")
def test_branches_on_values_are_left_out_or_named():
    torch.manual_seed(0)
    module = Branching()
    params, apply = gt.from_module(module)
    x, mask = torch.randn(3, 4), torch.tensor([True, False, True])
    for given in (mask, torch.ones(3, dtype=torch.bool)):
        found = apply(params, gt.array(x), gt.array(given))
        np.testing.assert_allclose(found, module(x, given).detach(), rtol=1e-6, atol=1e-7)
    assert not torch.compiler.is_compiling()
    params, apply = gt.from_module(Looking())
    line = Looking.forward.__code__.co_firstlineno + 1
    assert [apply(params, sign * gt.ones(3)).tolist() for sign in (1, -1)] == [[1.0] * 3] * 2
    for transform in (gt.jit, gt.vmap):
        with pytest.raises(
            gt.ConcretizationError, match=rf"looks at them at {__file__}:{line} .*or call it outside gt\.jit"
        ):
            transform(lambda x: apply(params, x))(gt.ones((2, 3)))


class Experts(nn.Module):
    """Tokens of width 8 go to some of 4 experts, in the ways of published models."""

    def __init__(self, way, dropout=0.0):
        super().__init__()
        self.gate, self.way, self.dropout = nn.Linear(8, 4, bias=False), way, nn.Dropout(dropout)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x):
        tokens = self.dropout(x.reshape(-1, 8))
        weights, chosen = torch.topk(self.gate(tokens).softmax(-1), 2)
        weights = weights / weights.sum(-1, keepdim=True)
        return self.way(self, tokens, weights, chosen).reshape(x.shape)

    def indexed(self, tokens, weights, chosen):
        out = torch.zeros_like(tokens)
        mask = nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            rank, token = torch.where(mask[expert].squeeze(0))
            found = self.experts[int(expert)](tokens[None, token].reshape(-1, 8))
            out.index_add_(0, token, found * weights[token, rank, None])
        return out

    def masked(self, tokens, weights, chosen):
        out = torch.zeros_like(tokens)
        for k, expert in enumerate(self.experts):
            mask = chosen[:, 0] == k
            if mask.any():
                out[mask] = expert(tokens[mask]) * weights[mask, :1]
        return out

    def sorted(self, tokens, weights, chosen):
        order, out, start = chosen.reshape(-1).argsort(stable=True), torch.zeros_like(tokens), 0
        for k, end in enumerate(torch.bincount(chosen.reshape(-1), minlength=4).cumsum(0).tolist()):
            part = order[start:end]
            found = self.experts[k](tokens[part // 2]) * weights.reshape(-1, 1)[part]
            out = out.scatter_add(0, (part // 2)[:, None].expand(-1, 8), found)
            start = end
        return out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.Experts. is traced anew:gtrace.RetracingWarning")
@pytest.mark.parametrize("way", [Experts.indexed, Experts.masked, Experts.sorted])
def test_tokens_routed_to_experts_train_as_in_torch(way):
    torch.manual_seed(0)
    module = Experts(way).double()
    params, apply = gt.from_module(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    x, y = torch.randn(3, 2, 3, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    for batch in x:
        optimizer.zero_grad()
        want = (module(batch) - y).square().mean()
        want.backward()
        optimizer.step()
        loss, grads = gt.value_and_grad(lambda p, x: ((apply(p, x) - gt.array(y)) ** 2).mean())(params, gt.array(batch))
        params = gt.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        assert_close(loss, want)
    for name, value in module.named_parameters():
        np.testing.assert_allclose(params[name], value.detach(), rtol=1e-8, atol=1e-10)


def test_routing_that_is_traced_at_each_call_warns_once_with_its_line():
    _, first = inspect.getsourcelines(Experts.masked)
    params, apply = gt.from_module(Experts(Experts.masked))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        apply(params, gt.ones((2, 3, 8)))
        assert not caught  # one call is not slow again
        for size in (2, 2, 4):
            apply(params, gt.ones((size, 3, 8)))
    (warning,) = caught
    assert warning.category is gt.RetracingWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert text.startswith("[Experts] is traced anew at each call")
    assert f"because it looks at values at {__file__}:{first + 4}. To have it traced once" in text


@pytest.mark.filterwarnings("ignore:.Experts. is traced anew:gtrace.RetracingWarning")
def test_routing_says_what_it_cannot_do():
    params, apply = gt.from_module(Experts(Experts.indexed, dropout=0.5))
    x = gt.ones((2, 3, 8))
    with pytest.raises(gt.ConcretizationError, match=r"keep all elements.*Or call it outside gt\.jit and gt\.vmap"):
        gt.jit(apply)(params, x)
    assert apply(params, x).shape == x.shape
    with pytest.raises(ArgumentError, match=r"looks at values or draws random numbers, got one that does both"):
        apply(params, x, key=gt.random.key(0), train=True)
    assert gt.grad(lambda p: apply(p, x, key=gt.random.key(0)).sum())(params)["gate.weight"].shape == (4, 8)


@pytest.mark.parametrize(
    ("network", "options", "loops"),
    [
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}, 4),
        (nn.LSTM, {"proj_size": 2, "bias": False, "batch_first": True}, 1),
        (nn.GRU, {"num_layers": 3}, 3),
        (nn.RNN, {"bidirectional": True, "bias": False}, 2),
        (nn.RNN, {"nonlinearity": "relu", "batch_first": True}, 1),
    ],
)
def test_recurrent_networks_are_loops(network, options, loops):
    """One for each layer and direction, and not the operations of each step."""
    torch.manual_seed(0)
    module = network(3, 4, **options).double()
    x = torch.randn(5, 7, 3, dtype=torch.float64)
    params, apply = gt.from_module(module)
    graph = gt.make_graph(apply)(params, x)
    assert [node.op.name for node in graph.nodes].count("scan") == loops and len(graph.nodes) < 60 * loops

    def loss(params, *args):
        found = apply(params, *args)
        return sum((one * one).sum() for one in gt.tree.leaves(found)), found

    state = module(x[0])[1]  # of one sequence, without the axis of the batch
    for args in ((x,), (x[1], gt.tree.map(lambda one: one.detach(), state))):
        module.zero_grad()
        expected = gt.tree.leaves(module(*args))
        sum((one * one).sum() for one in expected).backward()
        (_, found), grads = gt.value_and_grad(loss, has_aux=True)(params, *args)
        for ours, theirs in zip(gt.tree.leaves(found), expected, strict=True):
            assert_close(ours, theirs)
        for name, theirs in module.named_parameters():
            np.testing.assert_allclose(grads[name], theirs.grad, rtol=1e-9, atol=1e-12)


class Packed(nn.Module):
    def __init__(self, network, total=True, **options):
        super().__init__()
        self.network, self.total = network(3, 4, **options), total

    def forward(self, x, lengths):
        batch_first = self.network.batch_first
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        out, last = self.network(packed)
        total = x.shape[batch_first] if self.total else None
        out, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first, -2.0, total)
        return out, last, lengths


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (nn.LSTM, {"proj_size": 2, "bias": False}),
        (nn.GRU, {"bidirectional": True, "bias": False}),
        (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
    ],
)
def test_packed_sequences_are_those_of_torch(network, options):
    """Their lengths are values: other lengths are the same program."""
    torch.manual_seed(0)
    module = Packed(network, **options)
    params, apply = gt.from_module(module)
    x = torch.randn(3, 5, 3).swapaxes(0, 0 if options.get("batch_first") else 1)

    def loss(params, lengths):
        found = apply(params, x, lengths)
        return sum((one * one).sum() for one in gt.tree.leaves(found)[:-1]), found

    for lengths in (torch.tensor([2, 5, 1]), torch.tensor([4, 3, 3])):
        module.zero_grad()
        expected = gt.tree.leaves(module(x, lengths))
        sum((one * one).sum() for one in expected[:-1]).backward()
        (_, found), grads = gt.value_and_grad(loss, has_aux=True)(params, gt.array(lengths))
        for ours, theirs in zip(gt.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
        for name, theirs in module.named_parameters():
            np.testing.assert_allclose(grads[name], theirs.grad, rtol=1e-4, atol=1e-5)


class Unpacked(Packed):
    def __init__(self, look):
        super().__init__(nn.GRU)
        self.look = look

    def forward(self, x, lengths):
        return self.look(self.network(nn.utils.rnn.pack_padded_sequence(x, lengths))[0])


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            Packed(nn.GRU, total=False),
            r"pad_packed_sequence\] expected a total_length of at least 5, got none",
        ),
        (Unpacked(lambda packed: torch.relu(packed.data)), r"relu\] expected padded sequences, got the data of packed"),
        (Unpacked(lambda packed: packed.data.sum()), r"sum\] expected padded sequences"),
        (Unpacked(lambda packed: packed.batch_sizes.cumsum(0)), r"batch_sizes\] expected padded sequences"),
        (Unpacked(lambda packed: packed), r"expected padded sequences as results.*test_modules.py"),
    ],
)
def test_what_is_packed_cannot_be_looked_at(module, text):
    _, apply = made_apply(module)
    with pytest.raises(gt.ConcretizationError, match=text):
        apply(gt.ones((5, 2, 3)), [5, 2])


def test_what_torch_looks_at_is_named_with_what_to_pass():
    _, apply = made_apply(nn.LSTM(3, 4))
    with pytest.raises(gt.ConcretizationError, match=r"Sizes of packed sequences are values: pass padded ones and"):
        apply(nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)]))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_transformers_do_not_look_whether_a_mask_is_causal(kind):
    block = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    _, apply = made_apply(block)
    x, mask = torch.randn(2, 4, 8), block.generate_square_subsequent_mask(4)
    mask = mask < 0 if kind == "bool" else mask
    other = mask.clone()
    other[0, 1] = False  # not causal
    jitted = gt.jit(lambda x, mask: apply(x, x, tgt_mask=mask), backend="eager")
    for each in (mask, other):
        want = block(x, x, tgt_mask=each).detach()
        np.testing.assert_allclose(jitted(x, each), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(apply(x, x, tgt_mask=each, tgt_is_causal=None), want, rtol=1e-5, atol=1e-5)


def test_weights_that_a_module_computed_before_are_copied():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)))  # its weight has a history
    params, apply = gt.from_module(module)
    x = torch.randn(4, 3)
    np.testing.assert_allclose(apply(params, x), module(x).detach(), rtol=1e-5, atol=1e-6)
    doubled = {**params, "0.weight_g": 2 * params["0.weight_g"], "0.bias": 2 * params["0.bias"]}
    np.testing.assert_allclose(apply(doubled, x), 2 * module(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [lambda f: f, lambda f: gt.jit(f, backend="eager")], ids=["undecorated", "jitted"])
def test_normed_weights_may_be_transposed_in_memory(way):
    v, g = torch.randn(5, 3).t(), torch.rand(3, 1)
    want = torch._weight_norm(v, g, 0)
    found = way(lambda v, g: torch._weight_norm(v.T, g, 0))(gt.array(v.t()), gt.array(g))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_arguments_may_be_arrays_of_numpy():
    module = nn.Linear(3, 2)
    params, apply = gt.from_module(module)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(apply(params, x), module(torch.tensor(x)).detach(), rtol=1e-5, atol=1e-6)
    assert gt.lift(lambda x, y: x @ y)(params["weight"], x.T).shape == (2, 2)


class LogProbability(nn.Module):
    """Of actions, by distributions of torch that check their arguments."""

    def forward(self, x, action):
        found = torch.distributions.Normal(x, x.exp()).log_prob(action).sum(-1)
        return found + torch.distributions.Categorical(logits=x).log_prob(action[:, 0].abs().long())


def test_distributions_are_traced_without_their_checks():
    _, apply = made_apply(LogProbability())
    x, action = torch.randn(4, 3), torch.rand(4, 3)
    want = LogProbability()(x, action)
    np.testing.assert_allclose(gt.jit(apply, backend="eager")(x, action), want, rtol=1e-5, atol=1e-5)


WITH = torch.distributions
TWOS = torch.full((4000,), 2.0)
DRAWS = {
    "normal_": (lambda x: torch.empty_like(x).normal_(1.0, 3.0), 1, 3),
    "normal of tensors": (lambda x: torch.normal(x + 3, x), 5, 2),
    "normal of a mean": (lambda x: torch.normal(x, 0.1), 2, 0.1),
    "normal of a deviation": (lambda x: torch.normal(1.0, x), 1, 2),
    "normal of numbers": (lambda x: torch.normal(1.0, 3.0, (4000,)), 1, 3),
    "Normal": (lambda x: WITH.Normal(x + 3, x / 2).sample(), 5, 1),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "gumbel_softmax": (lambda x: nn.functional.gumbel_softmax(torch.stack([x, x], 1), hard=True)[:, 0], 0.5, 0.5),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([0.25, 0.75]), 4000, True).float(), 0.75, 0.433),
    "multinomial of different": (lambda x: torch.multinomial(torch.ones(500, 2), 2).float().mean(1), 0.5, 0),
    "Categorical": (lambda x: WITH.Categorical(torch.tensor([0.25, 0.75])).sample((4000,)).float(), 0.75, 0.433),
    "randint": (lambda x: torch.randint(2, 5, (4000,)).float(), 3, 0.816),
    "randint below": (lambda x: torch.randint(3, (4000,)).float(), 1, 0.816),
    "randint_like": (lambda x: torch.randint_like(x, 3), 1, 0.816),
    "randint_like from": (lambda x: torch.randint_like(x, 2, 5), 3, 0.816),
    "randperm": (lambda x: torch.randperm(5).sort().values.float(), 2, 1.414),
    "poisson": (lambda x: torch.poisson(x), 2, 1.414),
    "Gamma": (lambda x: WITH.Gamma(x, 2.0).sample(), 1, 0.707),
    "Beta": (lambda x: WITH.Beta(x, x).rsample(), 0.5, 0.2236),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_module_draws_has_torchs_distribution(name):
    draw, mean, deviation = DRAWS[name]

    class Draws(nn.Module):
        def forward(self, x):
            return draw(x)

    _, apply = made_apply(Draws())
    found = np.asarray(apply(TWOS, key=gt.random.key(0)))
    assert found.shape == tuple(draw(TWOS).shape)
    assert abs(found.mean() - mean) < 0.06 * deviation + 1e-6 and abs(found.std() - deviation) < 0.06 * deviation + 1e-3


def made_apply(module):
    params, apply = gt.from_module(module)
    return params, lambda *args, **kwargs: apply(params, *args, **kwargs)


def hooked(register):
    module = nn.Sequential(nn.Linear(3, 2))
    register(module[0])
    return module


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            lambda: hooked(lambda m: m.weight.register_hook(lambda g: 2 * g)),
            r"hooks on gradients, got one at '0.weight'",
        ),
        (
            lambda: hooked(lambda m: m.register_full_backward_hook(lambda *_: None)),
            r"hooks on gradients, got one at '0'",
        ),
        (lambda: nn.Sequential(nn.LazyLinear(3)), r"'0.weight' without one. Call the module once"),
    ],
)
def test_modules_of_which_something_would_be_left_out_are_refused(module, text):
    """Hooks on gradients were ignored, and so gradients were wrong."""
    with pytest.raises(ArgumentError, match=text):
        gt.from_module(module())


def test_hooks_of_the_forward_pass_are_part_of_it():
    module = hooked(lambda m: (m.register_forward_hook(lambda m, i, o: 2 * o), m.register_forward_pre_hook(shifted)))
    params, apply = gt.from_module(module)
    x = torch.randn(4, 3)
    np.testing.assert_allclose(apply(params, x), module(x).detach(), rtol=1e-5, atol=1e-6)


def shifted(module, args):
    return (args[0] + 1,)


def test_writing_to_an_argument_names_the_module_and_the_line():
    class Doubling(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    _, apply = made_apply(Doubling())
    with pytest.raises(ArgumentError, match=rf"\[Doubling\] .* writes to an argument, f32\[3\].*clone.*{__file__}"):
        apply(gt.ones(3))


WRITES = {
    "data": lambda w: w.data.clamp_(-1, 1),
    "no_grad": torch.no_grad()(lambda w: w.clamp_(-1, 1)),
    "copy": torch.no_grad()(lambda w: w.copy_(w.clamp(-1, 1))),
    "a part": torch.no_grad()(lambda w: w[1:].div_(2)),
}


class Clipping(nn.Module):
    """A module that writes to its parameter."""

    def __init__(self, write, look=False):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, 2.0, -3.0]))
        self.write, self.look = write, look

    def forward(self, x):
        if self.look and (x > 100).any():
            return x
        self.write(self.w)
        return self.w * self.w * x


@pytest.mark.filterwarnings("ignore::gtrace.RetracingWarning")
@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_a_parameter_lasts_for_the_call(write, look):
    module, x = Clipping(write, look), torch.tensor([1.0, 2.0, 3.0])
    params, apply = gt.from_module(module)
    with pytest.warns(UserWarning, match=r"\[Clipping\] writes to a parameter, and the write ends with the call"):
        found = apply(params, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        grad = gt.grad(lambda p: apply(p, x).sum())(params)
    np.testing.assert_array_equal(params["w"], [0.5, 2.0, -3.0])
    expected = module(x)
    expected.sum().backward()
    assert_close(found, expected.detach())
    assert_close(grad["w"], module.w.grad)


def test_an_assignment_to_data_is_refused():
    """It was ignored in silence."""

    def assign(w):
        w.data = w.data.clamp(-1, 1)

    params, apply = gt.from_module(Clipping(assign))
    with pytest.raises(
        ArgumentError, match=r"\[data\] expected .*, got an assignment to x\.data\. Write x\.data\.copy_"
    ):
        apply(params, gt.ones(3))


@pytest.mark.filterwarnings("ignore::gtrace.RetracingWarning")
def test_results_of_sizes_that_depend_on_values_need_no_derivative_outside_a_gradient():
    class Levels(torch.nn.Module):
        def __init__(self, constant):
            super().__init__()
            self.constant = constant
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            with torch.set_grad_enabled(not self.constant):
                levels = torch.unique(x)
            return self.scale * levels

    x = gt.array([3.0, 1.0, 3.0])
    for constant in (False, True):
        params, apply = gt.from_module(Levels(constant))
        for sign in (1, -1):
            np.testing.assert_array_equal(apply(params, sign * x), sorted({sign * 2.0, sign * 6.0}))
        grad = gt.grad(lambda params, apply=apply: apply(params, x).sum())
        if constant:
            np.testing.assert_array_equal(grad(params)["scale"], 4.0)
        else:
            with pytest.raises(gt.DtypeError, match=r"Call it under torch\.no_grad\(\)"):
                grad(params)


class Replacing(nn.Module):
    """Replaces two buffers by new tensors, one of them of another size."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("table", torch.zeros(2))

    def forward(self, x):
        self.seen = self.seen + x.detach().abs().max()
        if len(self.table) != len(x):
            self.table = torch.arange(len(x)) * 0.5
        return self.norm(x) / self.seen + self.table[:, None]


def test_buffers_that_a_module_replaces_are_in_its_new_state():
    module = Replacing()
    params, apply = gt.from_module(module)
    state = apply.state
    for size in (4, 4, 5):
        x = torch.randn(size, 3)
        found, state = apply(params, gt.array(x), state=state, train=True)
        assert_close(found, module(x).detach())
        assert set(state) == set(apply.state)
        for name, value in module.named_buffers():
            assert_close(state[name], value)
    with pytest.raises(ArgumentError, match=r"expected a state, .* writes to its buffers, got seen, table"):
        apply(params, gt.ones((4, 3)))


class Remembering(nn.Module):
    """Keeps a tensor made of its weight, then does what only torch's own tracer follows."""

    def __init__(self):
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.randn(3, 1, 1)), None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.weight.exp()
        return nn.functional.adaptive_avg_pool2d((x * self.kept).to(memory_format=torch.channels_last), 1)


def test_what_a_module_keeps_in_a_trace_that_failed_is_forgotten():
    module = Remembering()
    params, apply = gt.from_module(module)
    found, grads = gt.value_and_grad(lambda p: apply(p, gt.ones((2, 3, 4, 4))).sum())(params)
    expected = module(torch.ones(2, 3, 4, 4)).sum()
    expected.backward()
    assert_close(found, expected.detach())
    assert_close(grads["weight"], module.weight.grad)


class Converting(nn.Module):
    """Converts a layer to a dtype in each call, as routers do that compute in float32."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)


def test_a_layer_may_be_converted_to_the_dtype_that_it_has():
    module = Converting()
    params, apply = gt.from_module(module)
    x = torch.randn(4, 3)
    grads = gt.grad(lambda p: apply(p, gt.array(x)).sum())(params)
    module(x).sum().backward()
    assert_close(apply(params, gt.array(x)), module(x).detach())
    assert_close(grads["layer.weight"], module.layer.weight.grad)


class Cache:
    def __init__(self, sums):
        self.sums = sums


class Summing(nn.Module):
    """Adds to a cache in place, and returns it or not."""

    def __init__(self, returned):
        super().__init__()
        self.weight, self.returned = nn.Parameter(torch.tensor([2.0, 3.0])), returned

    def forward(self, x, cache):
        cache.sums[:, 1:].add_(x[:, 1:] * self.weight[1])
        cache.sums.mul_(2)
        out = cache.sums * self.weight
        return (out, cache) if self.returned else out


def test_a_cache_that_is_written_and_returned_has_the_new_values_in_the_result():
    module = Summing(True)
    params, apply = gt.from_module(module)
    x, own, old = torch.randn(3, 2), Cache(torch.ones(3, 2)), Cache(gt.ones((3, 2)))
    cache = old
    for _ in range(3):
        found, cache = apply(params, gt.array(x), cache)
        expected, own = module(x, own)
        assert_close(found, expected.detach())
        assert_close(cache.sums, own.sums.detach())
    assert_close(old.sums, torch.ones(3, 2))  # the argument is what it was
    grads = gt.grad(lambda p: apply(p, gt.array(x), Cache(gt.ones((3, 2))))[0].sum())(params)
    again = Summing(True)
    again(x, Cache(torch.ones(3, 2)))[0].sum().backward()
    assert_close(grads["weight"], again.weight.grad)


def test_a_cache_that_is_written_and_not_returned_is_refused():
    params, apply = gt.from_module(Summing(False))
    with pytest.raises(ArgumentError, match=r"writes to an argument, f32\[3,2\].*Return the object that it lies in"):
        apply(params, gt.ones((3, 2)), Cache(gt.ones((3, 2))))


class Named(nn.Module):
    """Calls layers by names that are made of values in tensors."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({f"layer_{k}": nn.Linear(3, 2) for k in range(3)})

    def forward(self, x, chosen):
        return sum(self.layers[f"layer_{k[0]}"](x) for k in (chosen > 0).nonzero())


def test_a_value_in_a_text_is_read():
    module = Named()
    params, apply = gt.from_module(module)
    x, chosen = torch.randn(4, 3), torch.tensor([1, 0, 1])
    assert_close(apply(params, gt.array(x), gt.array(chosen)), module(x, chosen).detach())
    with pytest.raises(gt.ConcretizationError):
        gt.jit(lambda x, chosen: apply(params, x, chosen))(gt.array(x), gt.array(chosen))
