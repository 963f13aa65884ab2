"""Modules and lifted functions at sizes that never repeat: one trace serves all, and nothing grows."""

import copy
import gc
import math
import pickle
import threading

import attrs
import pytest
import torch

import gtrace as gt
from gtrace.core.base.bounded_tables import budget
from gtrace.core.transform import named
from gtrace.interop.aten import derive, open_sizes, single_calls
from gtrace.interop.aten.open_sizes import Opened
from gtrace.interop.aten.traced_tensor import TracedTensor
from gtrace.interop.aten.tracer import Tracer

F = torch.nn.functional


@pytest.fixture
def traces(monkeypatch):
    """Lists the traces of torch code: for each, whether its sizes were open."""
    found, original = [], derive.trace

    def trace(*args, opened=None, **kwargs):
        found.append(opened is not None)
        return original(*args, opened=opened, **kwargs)

    monkeypatch.setattr(derive, "trace", trace)
    return found


def rows(n):
    return (torch.randn(n, 4, generator=torch.Generator().manual_seed(n)),)


def batches(n):
    return (torch.randn(2, n, 4, generator=torch.Generator().manual_seed(n)),)


def causal(x):
    n = x.shape[1]
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
    scores = (x @ x.transpose(1, 2) / n**0.5).masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ x


def reshaped(x):
    batch, n, d = x.shape
    return x.reshape(batch * n, d).view(batch, n, 2, d // 2).permute(0, 2, 1, 3).reshape(batch, 2 * n, d // 2)


def written(x):
    out = torch.zeros(x.shape[0], 4)
    out[1:] = x[:-1]
    out[0] = 1
    return out


def reflections(x):
    n = x.shape[0]
    return torch.linalg.householder_product(torch.eye(n) + x @ x.t() / (10 * n), x.mean(1) / 4)


FUNCTIONS = {
    "a mask from sizes": (causal, batches),
    "reshape": (reshaped, batches),
    "expand": (lambda x: torch.ones(1, 4).expand(x.shape[0], -1) + x, rows),
    "arange": (lambda x: x + torch.arange(x.shape[0]).unsqueeze(1) / x.shape[0], rows),
    "an arange downwards": (lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)], rows),
    "cat": (lambda x: torch.cat([x, x[1:], x[:-1]]), rows),
    "chunks": (lambda x: sum(part.sum(0) for part in x.chunk(2)), rows),
    "arithmetic": (lambda x: x * (-(-x.shape[0] // 3)) + x.shape[0] % 4 + x.size(0) ** -0.5 + 2 ** x.shape[0], rows),
    "numel": (lambda x: x.sum() / x.numel(), rows),
    "full": (lambda x: x + torch.full((x.shape[0], 1), x.shape[0]), rows),
    "writes": (written, rows),
    "unfold": (lambda x: x.unfold(0, 2, 1).sum(-1), rows),
    "pad": (lambda x: F.pad(x, (0, 0, 0, 20 - x.shape[0])), rows),
    "repeat": (lambda x: x.repeat(2, 1) + x.repeat_interleave(2, 0), rows),
    "diagonal": (lambda x: (x @ x.t()).diagonal(), rows),
    "sizes that are no rule's": (lambda x: x.cumsum(0).sort(0)[0].logcumsumexp(1), rows),
    "running products": (lambda x: x.cumprod(0) + torch.cumprod(x, 1), rows),
    "a derivative with operations for each place": (reflections, rows),
    "fft": (lambda x: torch.fft.rfft(x, dim=0).abs(), rows),
    "where": (lambda x: torch.where(torch.arange(x.shape[0])[:, None] > 2, x, x / x.shape[0]), rows),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
        batches,
    ),
    "sizes in the result": (lambda x: x.sum() * sum(x.shape), rows),
    "upsampling to sizes": (lambda x: F.interpolate(x.t()[None], size=2 * x.shape[0]), rows),
    "upsampling by a scale": (lambda x: F.interpolate(x[None], scale_factor=1.5, mode="linear"), rows),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 4), rows),
}

SIZES = 5, 6, 8, 7, 4, 3, 9, 2, 1, 11, 8, 5


@pytest.mark.slow
@pytest.mark.parametrize("least", [1, single_calls.LEAST_CALLS])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_equal_torch_at_each_size(name, least, monkeypatch):
    monkeypatch.setattr(single_calls, "LEAST_CALLS", least)
    function, operands = FUNCTIONS[name]
    lifted = gt.lift(function)
    slope = gt.grad(lambda x: (lifted(x) ** 2).sum())
    for n in SIZES:
        (x,) = operands(n)
        if name in ("chunks", "unfold", "sizes that are no rule's") and n == 1:
            continue
        x.requires_grad_()
        expected = function(x)
        (expected**2).sum().backward()
        torch.testing.assert_close(lifted(gt.array(x)).to_torch(), expected.detach(), check_dtype=False)
        torch.testing.assert_close(slope(gt.array(x)).to_torch(), x.grad)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_traced_for_all_sizes(name, traces):
    function, operands = FUNCTIONS[name]
    lifted = gt.lift(function)
    for n in (5, 6, 7, 8):
        lifted(*map(gt.array, operands(n)))
    traces.clear()
    for n in (9, 10, 11, 12, 13, 17):
        lifted(*map(gt.array, operands(n)))
    assert traces == []


def encoder():
    return torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)


def convolutions():
    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(4, 4, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1))


MODULES = {
    "linear": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)), rows),
    "encoder, length": (encoder, lambda n: (torch.randn(2, n, 16),)),
    "encoder, batch": (encoder, lambda n: (torch.randn(n, 3, 16),)),
    "attention": (lambda: torch.nn.MultiheadAttention(16, 2), lambda n: (torch.randn(n, 2, 16),) * 3),
    "convolutions, batch": (convolutions, lambda n: (torch.randn(n, 3, 8, 8),)),
    "convolutions, image": (convolutions, lambda n: (torch.randn(2, 3, n + 4, 2 * n),)),
    "lstm": (lambda: torch.nn.LSTM(4, 8, batch_first=True), batches),
    "gru": (lambda: torch.nn.GRU(4, 8, bidirectional=True), batches),
    "embedding": (lambda: torch.nn.Embedding(9, 4), lambda n: (torch.arange(n) % 9,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_a_bound_trace_records_what_a_fresh_one_does(name, train):
    make, operands = MODULES[name]
    module = make()

    def texts(pair, xs):
        params, apply = pair

        def loss(p, *xs):
            out, _ = apply(p, *xs, state=apply.state, train=train)
            return sum(y.sum() for y in gt.tree.leaves(out))

        return str(gt.make_graph(gt.value_and_grad(loss))(params, *xs))

    lasting = gt.from_module(module)
    for n in (5, 6, 8, 7, 4, 9, 12):
        xs = [gt.array(x) for x in operands(n)]
        assert texts(lasting, xs) == texts(gt.from_module(module), xs)


@pytest.fixture
def singles(monkeypatch):
    """Lists how calls of torch at new sizes run: alone, or once for the call and its gradient."""
    found = []

    def kernel(avals, settings, own=single_calls._NAMED.kernel):
        run = own(avals, settings)
        return lambda *tensors: found.append("alone") or run(*tensors)

    def pair(self, own=single_calls._Gradient.pair):
        found.append("both")
        return own(self)

    def gradient(self, *tensors, own=single_calls._Gradient.__call__):
        found.append("gradient")
        return own(self, *tensors)

    monkeypatch.setitem(named._functions, "torch", single_calls._NAMED)  # put back at the end
    attrs.evolve(single_calls._NAMED, kernel=kernel)
    monkeypatch.setattr(single_calls._Gradient, "pair", pair)
    monkeypatch.setattr(single_calls._Gradient, "__call__", gradient)
    return found


def grads_of(module, loss, *xs):
    module.zero_grad()
    loss(module(*xs)).backward()
    return {name: x.grad for name, x in module.named_parameters()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gtrace.errors.CompileWarning")  # of recurrent networks
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules_equal_torch_at_ever_new_sizes(name, jitted, monkeypatch):
    monkeypatch.setattr(single_calls, "LEAST_CALLS", 1)
    make, operands = MODULES[name]
    module = make().eval()
    params, apply = gt.from_module(module)

    def loss(p, *xs):
        results = gt.tree.leaves(apply(p, *xs))
        return sum((x.astype(gt.float64) ** 2).mean() for x in results)

    both = gt.value_and_grad(loss)
    both = gt.jit(both) if jitted else both
    for n in (5, 6, 8, 7, 4, 9, 12, 3, 10):
        xs = operands(n)
        value, grads = both(params, *map(gt.array, xs))
        expected = grads_of(module, lambda result: sum((x.double() ** 2).mean() for x in tensors_of(result)), *xs)
        with torch.no_grad():
            results = tensors_of(module(*xs))
        assert float(value) == pytest.approx(float(sum((x.double() ** 2).mean() for x in results)), rel=1e-5)
        for key, g in expected.items():
            torch.testing.assert_close(grads[key].to_torch(), g, rtol=2e-4, atol=2e-5)


def tensors_of(result):
    return [x for x in gt.tree.leaves(result) if isinstance(x, torch.Tensor)]


def test_a_call_at_a_new_size_is_one_operation_and_its_gradient_another(singles):
    module = encoder().eval()
    params, apply = gt.from_module(module)
    both = gt.value_and_grad(lambda p, x: (apply(p, x) ** 2).mean())
    for n in range(5, 12):
        singles.clear()
        (x,) = (torch.randn(2, n, 16),)
        _, grads = both(params, gt.array(x))
        gt.eval(grads)
        expected = grads_of(module, lambda y: (y**2).mean(), x)
        torch.testing.assert_close({k: g.to_torch() for k, g in grads.items()}, expected, rtol=1e-4, atol=1e-5)
        if n > 8:
            assert singles == ["both"], "nothing is computed twice"


def test_a_call_keeps_nothing_for_a_gradient_that_nobody_takes(singles):
    params, apply = gt.from_module(encoder().eval())
    for n in range(5, 12):
        singles.clear()
        float(apply(params, gt.array(torch.randn(2, n, 16))).sum())
    assert singles == ["alone"]


def test_transformations_of_single_operations(monkeypatch):
    """Second derivatives, forward derivatives and batches read the body."""
    monkeypatch.setattr(single_calls, "LEAST_CALLS", 1)

    def function(x):
        return torch.tanh(x @ x.t() / x.shape[0]).sum(1)

    lifted = gt.lift(function)
    for n in (3, 4, 6, 5, 7, 9):
        x = torch.randn(n, 4, dtype=torch.float64)
        v, y = torch.randn_like(x), gt.array(x)

        def total(x):
            return (lifted(x) ** 2).sum()

        hvp = gt.grad(lambda y, v=v: (gt.grad(total)(y) * gt.array(v)).sum())(y)
        own = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((function(own) ** 2).sum(), own, create_graph=True)
        (expected,) = torch.autograd.grad((slope * v).sum(), own)
        torch.testing.assert_close(hvp.to_torch(), expected)
        pushed = gt.jvp(lifted, (y,), (gt.array(v),))[1]
        inner = torch.tanh(x @ x.t() / n)
        torch.testing.assert_close(pushed.to_torch(), ((1 - inner**2) * (v @ x.t() + x @ v.t()) / n).sum(1))
        many = torch.stack([x, v, x + v])
        expected = torch.stack([function(x) for x in many])
        torch.testing.assert_close(gt.vmap(lifted)(gt.array(many)).to_torch(), expected)


def test_several_results_have_gradients(monkeypatch):
    monkeypatch.setattr(single_calls, "LEAST_CALLS", 1)

    def function(x):
        with torch.no_grad():
            scale = x.abs().mean()
        return x.sin() * scale, x.cos().cumsum(0), x.argmax(0), x

    lifted = gt.lift(function)
    for n in (3, 4, 6, 5, 7, 9):
        x = torch.randn(n, 4, requires_grad=True)
        first, second, third, fourth = function(x)
        ((first**2).sum() + (second * first).sum() + (third * fourth[0]).sum()).backward()

        def loss(x):
            first, second, third, fourth = lifted(x)
            return (first**2).sum() + (second * first).sum() + (third * fourth[0]).sum()

        torch.testing.assert_close(gt.grad(loss)(gt.array(x.detach())).to_torch(), x.grad)
        assert lifted(y := gt.array(x.detach()))[3].shape == y.shape


def test_a_training_step_on_new_batches_is_not_traced(traces):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    params, apply = gt.from_module(module)
    step = gt.value_and_grad(lambda p, x: (apply(p, x) ** 2).mean())

    def check(n):
        (x,) = rows(n)
        loss, grads = step(params, gt.array(x))
        module.zero_grad()
        expected = (module(x) ** 2).mean()
        expected.backward()
        torch.testing.assert_close(loss.to_torch(), expected.detach())
        for key, parameter in module.named_parameters():
            torch.testing.assert_close(grads[key].to_torch(), parameter.grad)

    for n in range(8, 40):  # rules of derivatives are traced once some of the sizes are prepared
        check(n)
    traces.clear()
    for n in range(40, 60):
        check(n)
    assert traces == []


def test_both_branches_on_a_size_are_kept(traces):
    function = gt.lift(lambda x: x * 2 if x.shape[0] > 6 else -x)
    for n in (3, 4, 8):
        function(gt.ones((n, 2)))
    traces.clear()
    for n in (5, 9, 2, 7, 6, 10):
        assert function(gt.ones((n, 2)))[0, 0] == (2 if n > 6 else -1)
    assert traces == []


def test_equal_sizes_that_mean_different_things():
    function = gt.lift(lambda x, y: x.reshape(-1, y.shape[0]).sum(1) + y.shape[1])
    for n, d in ((4, 4), (5, 4), (5, 5), (6, 3), (4, 6), (3, 3)):
        x, y = torch.randn(2 * n, 2 * d), torch.randn(d, n)
        expected = x.reshape(-1, d).sum(1) + n
        torch.testing.assert_close(function(gt.array(x), gt.array(y)).to_torch(), expected)


def test_integers_among_the_arguments_are_sizes(traces):
    function = gt.lift(lambda x, n: x[:n].sum(0) * n)
    x = torch.randn(20, 3)
    for n in (3, 4, 5):
        function(gt.array(x), n)
    traces.clear()
    for n in (6, 9, 15):
        torch.testing.assert_close(function(gt.array(x), n).to_torch(), x[:n].sum(0) * n)
    assert traces == []


@pytest.mark.parametrize(
    "factor",
    [
        lambda n: 2 if isinstance(n, int) and n > 6 else 3,
        lambda n: {5: 2.0, 7: 4.0}.get(n, 3.0),
        lambda n: float(f"{n}"),
        lambda n: math.sqrt(n),
        lambda n: torch.tensor(n),
        lambda n: sum(range(n)),
        lambda n: 2 if copy.deepcopy([n])[0] > 6 else 3,
        lambda n: pickle.loads(pickle.dumps(n)),
        lambda n: divmod(n, 3)[0],
        lambda n: int(n * 0.3),
        lambda n: n & 3,
        lambda n: 5 if torch.arange(n).max() > 6 else 7,
    ],
)
def test_what_python_does_with_a_size(factor):
    function = gt.lift(lambda x: x * factor(x.shape[0]))
    for n in SIZES:
        (x,) = rows(n)
        torch.testing.assert_close(function(gt.array(x)).to_torch(), x * factor(n))


def test_tables_that_a_module_keeps_by_length():
    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.length, self.table = 0, None

        def forward(self, x):
            if x.shape[0] > self.length:
                self.length = x.shape[0]
                self.table = torch.arange(self.length)[:, None] * 0.5
            return x + self.table[: x.shape[0]]

    params, apply = gt.from_module(Positions())
    for n in SIZES:
        (x,) = rows(n)
        torch.testing.assert_close(apply(params, gt.array(x)).to_torch(), x + torch.arange(n)[:, None] * 0.5)


def test_dropout_at_new_sizes_draws_by_the_key():
    params, apply = gt.from_module(torch.nn.Dropout(0.5))
    fresh = [gt.from_module(torch.nn.Dropout(0.5)) for _ in SIZES]
    for n, (_, other) in zip(SIZES, fresh, strict=True):
        key = gt.random.key(n)
        found = apply(params, gt.ones((n, 4)), key=key, train=True)
        assert (found == other(params, gt.ones((n, 4)), key=key, train=True)).all()


def test_batches_of_a_traced_operator():
    rule = gt.vmap(lambda x: gt.lift(torch.logcumsumexp)(x, 0))
    for n in SIZES:
        x = torch.randn(n, n + 1)
        torch.testing.assert_close(rule(gt.array(x)).to_torch(), torch.logcumsumexp(x, 1))


def test_two_threads_at_new_sizes():
    params, apply = gt.from_module(torch.nn.Linear(4, 4))
    found = []

    def run(start):
        for n in range(start, start + 60, 2):
            found.append((n, apply(params, gt.ones((n, 4))).shape))

    threads = [threading.Thread(target=run, args=(start,)) for start in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(n, (n, 4)) for n in range(2, 62)]


# -- what stays


def alive():
    gc.collect()
    kinds = TracedTensor, Tracer, torch.fx.Graph, Opened
    return sum(isinstance(x, kinds) for x in gc.get_objects() if type(x) in kinds)


class Failing(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y[0].add_(1)
        raise ValueError("no result")


def test_a_trace_leaves_no_tensors_and_no_graph():
    params, apply = gt.from_module(torch.nn.Sequential(encoder(), torch.nn.Linear(16, 2)))
    step = gt.value_and_grad(lambda p, x: (apply(p, x) ** 2).mean())
    failing = gt.from_module(Failing())[1]
    before = alive()
    for n in range(2, 12):
        float(step(params, gt.ones((2, n, 16)))[0])
        with pytest.raises(gt.errors.ArgumentError):
            failing({}, gt.ones((n, 2)))
    # torch's engine keeps the mode of the last backward pass that was traced, with one trace and one graph
    assert alive() - before <= 2


@pytest.mark.slow
def test_many_sizes_stay_within_the_memory_for_programs():
    function = gt.lift(lambda x: x * {3: 1.0}.get(x.shape[0], 2.0))  # traced at each size
    open_one = gt.lift(lambda x: torch.tanh(x) / x.shape[0])
    with gt.config(program_memory=2_000_000):
        for n in range(2, 500):
            function(gt.ones((n, 2)))
            open_one(gt.ones((n, 2)))
        assert budget.held < 2_500_000


# -- open numbers


def test_a_program_computes_numbers_and_checks_conditions():
    opened = Opened()
    n, d = opened.open(6), opened.open(4)
    assert (n * d).node.value == 24
    assert n > d
    program = opened.sizes.program([(n * d).node, (n // 2).node, (n / d).node, n.node.wrap_int(7)])
    assert program(6, 4) == [24, 3, 1.5, 7]
    assert program(10, 3) == [30, 5, 10 / 3, 7]
    assert program(3, 4) is None


@pytest.mark.parametrize(
    "look",
    [int, str, repr, float, range, lambda n: [0] * n, lambda n: isinstance(n, int), lambda n: n.__class__],
)
def test_what_fixes_a_size(look):
    opened = Opened()
    n = opened.open(6)
    with open_sizes.classes_noticed(opened.sizes):
        look(n)
    program = opened.sizes.program([])
    assert program(6) == []
    assert program(7) is None


def test_quotients_of_negative_numbers_fix_the_sizes():
    opened = Opened()
    n = opened.open(6)
    n.node.sub(n.node.wrap_int(9)).floordiv(n.node.wrap_int(2))  # as C++ divides, which rounds towards zero
    assert opened.sizes.program([])(7) is None


def test_memory_of_open_sizes():
    opened = Opened()
    n = opened.open(6)
    x = torch.empty((n, 4), device="meta")
    assert x.is_contiguous()
    assert not x.t().is_contiguous()
    images = torch.empty((n, 3, 5, n), device="meta").contiguous()
    assert not images.is_contiguous(memory_format=torch.channels_last)
    assert opened.sizes.program([])(9) == []
    assert opened.sizes.program([])(1) is None
