"""The programs of `sizes.py`: each call has sizes that did not come before. Each is written for gtrace and for torch.

Most are one text for both libraries. Models of text and speech are made of the layers of `gt.nn` and of `torch.nn`,
with the same weights. Training starts anew after a few calls, so that rounding does not grow and each call can be
compared.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from measuring.libraries import EAGER, UNDECORATED, Function, Names
from networks import RATE, fused_adam

import gtrace as gt
from gtrace import tree

EPISODE = 30
"""Calls after which training, and what moves, starts anew."""

Batch = tuple[np.ndarray, ...]
Call = Callable[..., list[float]]
"""From its number and its arrays to what somebody reads of the results."""


@attrs.frozen
class Program:
    """One program.

    Attributes:
        name: as tables show it.
        batch: from random numbers and the number of a call to its arrays, of sizes that are new.
        ours, theirs: from what compiles a function, or leaves it alone, to what a call does.
        needs: the library without which it is left out.
        threads: that call it at the same time.
    """

    name: str
    batch: Callable[[np.random.Generator, int], Batch]
    ours: Callable[[Function], Call]
    theirs: Callable[[Function], Call]
    needs: str = "torch"
    threads: int = 1


# -- names for programs that are one text


def _our_names() -> Names:
    names = UNDECORATED.names()
    names.segment_sum = gt.segments.segment_sum
    names.scan, names.stop = gt.scan, gt.stop_gradient
    return names


def _their_scan(function: Function, start: Any, xs: torch.Tensor) -> Any:
    rows = []
    for x in xs:
        start, y = function(start, x)
        rows.append(y)
    return start, torch.stack(rows)


def _their_names() -> Names:
    names = EAGER.names()
    names.segment_sum = lambda x, ids, num_segments: x.new_zeros(num_segments, *x.shape[1:]).index_add(0, ids, x)
    names.scan, names.stop = _their_scan, torch.Tensor.detach
    return names


# -- training


def _our_training(loss: Function, parameters: Any, wrap: Function) -> Call:
    optimizer = gt.optim.adam(RATE)

    @wrap
    def step(p: Any, state: Any, *data: Any) -> Any:
        value, slopes = gt.value_and_grad(loss)(p, *data)
        updates, state = optimizer.update(slopes, state, p)
        return gt.optim.apply_updates(p, updates), state, value

    first = now = (parameters, optimizer.init(parameters))

    def call(k: int, *data: np.ndarray) -> list[float]:
        nonlocal now
        *now, value = step(*(now if k % EPISODE else first), *map(gt.array, data))
        return [float(value)]

    return call


def _their_training(loss: Function, parameters: Sequence[torch.Tensor]) -> Call:
    first = [p.detach().clone() for p in parameters]
    optimizer = fused_adam(parameters)

    def call(k: int, *data: np.ndarray) -> list[float]:
        if not k % EPISODE:
            optimizer.state.clear()
            with torch.no_grad():
                for p, value in zip(parameters, first, strict=True):
                    p.copy_(value)
        value = loss(*map(torch.from_numpy, data))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return [value.item()]

    return call


def _trained(
    name: str, loss: Callable[..., Any], parameters: dict[str, tuple[int, ...]],
    batch: Callable[[np.random.Generator, int], Batch],
) -> Program:  # fmt: skip
    """Return the training of one text, `loss` of names, parameters and data, from the shapes of its parameters."""
    rng = np.random.default_rng(0)
    scaled = {key: rng.normal(size=shape) / math.sqrt(shape[0]) for key, shape in parameters.items()}
    arrays = {key: value.astype(np.float32) for key, value in scaled.items()}

    def ours(wrap: Function) -> Call:
        return _our_training(functools.partial(loss, _our_names()), tree.map(gt.array, arrays), wrap)

    def theirs(wrap: Function) -> Call:
        p = {key: torch.nn.Parameter(torch.from_numpy(value.copy())) for key, value in arrays.items()}
        return _their_training(wrap(functools.partial(loss, _their_names(), p)), list(p.values()))

    return Program(name, batch, ours, theirs)


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _graph_loss(lib: Names, p: Any, x: Any, source: Any, target: Any) -> Any:
    for k in range(3):
        sent = (x @ p[f"send{k}"])[source]
        x = x + lib.np.tanh(lib.segment_sum(sent, target, num_segments=x.shape[0]) + x @ p[f"keep{k}"])
    return (x**2).mean()


def _graph(rng: np.random.Generator, k: int) -> Batch:
    nodes = int(rng.integers(50, 250))
    edges = int(rng.integers(3 * nodes, 6 * nodes))
    return _floats(rng, nodes, 16), rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)


def _points_loss(lib: Names, p: Any, x: Any, kind: Any) -> Any:
    x = x - lib.np.mean(x, 0)
    h = lib.nn.relu(lib.nn.relu(x @ p["first"]) @ p["second"])
    near = h * lib.nn.sigmoid(lib.np.sum(x * x, -1))[:, None]
    scores = lib.np.max(near, 0) @ p["third"] + lib.np.mean(h, 0) @ p["fourth"]
    return -lib.np.sum(lib.nn.log_softmax(scores) * kind)


def _points(rng: np.random.Generator, k: int) -> Batch:
    return _floats(rng, int(rng.integers(200, 3000)), 3), np.eye(10, dtype=np.float32)[int(rng.integers(10))]


def _value_loss(lib: Names, p: Any, seen: Any, action: Any, reward: Any, then: Any) -> Any:
    def values(x: Any) -> Any:
        return lib.np.tanh(lib.np.tanh(x @ p["first"]) @ p["second"]) @ p["third"]

    chosen = lib.np.sum(values(seen) * lib.nn.one_hot(action, 4), -1)
    best = lib.stop(lib.np.max(values(then), -1))
    return ((chosen - reward - 0.99 * best) ** 2).mean()


def _replayed(rng: np.random.Generator, k: int) -> Batch:
    count = k + 1
    return _floats(rng, count, 8), rng.integers(0, 4, count), _floats(rng, count), _floats(rng, count, 8)


def _scan_loss(lib: Names, p: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = lib.np.tanh(x @ p["in"] + h @ p["again"])
        return h, h

    last, seen = lib.scan(step, xs[0] @ p["in"], xs)
    return (last**2).mean() + (seen @ p["out"]).mean()


def _sequences(rng: np.random.Generator, k: int) -> Batch:
    return (_floats(rng, 10 + k % 100, 1 + k // 100, 8),)


# -- what is not trained


def _moving(name: str, step: Callable[..., Any], start: Callable[[], Batch], batch: Any) -> Program:
    """Return a program whose arrays go from call to call: from names, state and data to the state and a number."""

    def made(lib: Names, convert: Function, wrap: Function) -> Call:
        first = now = tuple(map(convert, start()))
        function = wrap(functools.partial(step, lib))

        def call(k: int, *data: np.ndarray) -> list[float]:
            nonlocal now
            *now, value = function(*(now if k % EPISODE else first), *map(convert, data))
            return [float(value)]

        return call

    def theirs(wrap: Function) -> Call:
        return torch.no_grad()(made(_their_names(), torch.from_numpy, wrap))

    return Program(name, batch, lambda wrap: made(_our_names(), gt.array, wrap), theirs)


def _particles_step(lib: Names, x: Any, v: Any, born: Any) -> Any:
    gone = x.shape[0] // 3
    x, v = lib.np.concat([x, born])[gone:], lib.np.concat([v, 0 * born])[gone:]
    between = x[:, None] - x[None]
    near = lib.np.exp(-lib.np.sum(between**2, -1))
    v = 0.9 * v + 0.1 * lib.np.sum(near[..., None] * between, 1) - 0.05 * x
    return x + 0.1 * v, v, lib.np.mean(v**2) + lib.np.mean(near)


def _particles(rng: np.random.Generator, k: int) -> Batch:
    return (_floats(rng, int(rng.integers(5, 60)), 2),)


WIDTH, HEADS, WORDS, TEXT = 64, 4, 100, 200
"""Of models of text: their width, heads and vocabulary, and the tokens after which another text begins."""


def _decode(lib: Names, p: Any, keys: Any, values: Any, x: Any) -> Any:
    """One token of two layers, whose keys and values grow by a row."""
    kept, known = [], []
    for k in range(2):
        q, new, value = ((x @ p[f"{name}{k}"]).reshape((HEADS, 1, WIDTH // HEADS)) for name in "qkv")
        kept.append(lib.np.concat([keys[k], new], 1))
        known.append(lib.np.concat([values[k], value], 1))
        scores = (q * kept[-1]).sum(-1) / math.sqrt(WIDTH // HEADS)
        seen = (lib.nn.softmax(scores, axis=-1)[..., None] * known[-1]).sum(1)
        x = x + lib.np.tanh(seen.reshape((WIDTH,)) @ p[f"o{k}"])
    return lib.np.stack(kept), lib.np.stack(known), x


def _cached_generation() -> Program:
    rng = np.random.default_rng(0)
    arrays = {f"{name}{k}": _floats(rng, WIDTH, WIDTH) / 8 for name in "qkvo" for k in range(2)}

    def made(lib: Names, convert: Function, wrap: Function) -> Call:
        p = {key: convert(value) for key, value in arrays.items()}
        function = wrap(functools.partial(_decode, lib))
        empty = convert(np.zeros((2, HEADS, 0, WIDTH // HEADS), np.float32))
        now: Any = (empty, empty)

        def call(k: int, x: np.ndarray) -> list[float]:
            nonlocal now
            *now, out = function(p, *(now if k % TEXT else (empty, empty)), convert(x))
            return [float(out.max())]

        return call

    return Program(
        "generation, cache that grows", lambda rng, k: (_floats(rng, WIDTH),),
        lambda wrap: made(_our_names(), gt.array, wrap),
        lambda wrap: torch.no_grad()(made(_their_names(), torch.from_numpy, wrap)),
    )  # fmt: skip


# -- models of layers


def _torch_encoder(causal: bool = False) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True, norm_first=causal)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class TorchReader(torch.nn.Module):
    """An encoder of ragged texts, as BERT: words, two layers, the mean of what is no padding, two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.encoder = _torch_encoder()
        self.out = torch.nn.Linear(WIDTH, 2)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.words(ids), src_key_padding_mask=~seen)
        mean = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return torch.nn.functional.cross_entropy(self.out(mean), kind)


class Reader(gt.nn.Module):
    """The same in gtrace."""

    words: gt.nn.Embedding
    encoder: gt.nn.TransformerEncoder
    out: gt.nn.Linear

    def __init__(self) -> None:
        keys = gt.random.split(gt.random.key(0), 3)
        self.words = gt.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.encoder = gt.nn.TransformerEncoder(2, WIDTH, HEADS, 2 * WIDTH, dropout=0.0, key=keys[1])
        self.out = gt.nn.Linear(WIDTH, 2, key=keys[2])

    def __call__(self, ids: Any, seen: Any, kind: Any) -> Any:
        x = self.encoder(self.words(ids), mask=seen[:, None, None, :])
        mean = (x * seen[..., None]).sum(1) / seen.sum(1, keepdims=True)
        return gt.nn.cross_entropy(self.out(mean), kind)


def _texts(rng: np.random.Generator, k: int) -> Batch:
    texts, longest = int(rng.integers(4, 17)), int(rng.integers(5, 65))
    seen = np.arange(longest) < rng.integers(1, longest + 1, texts)[:, None]
    seen[0] = True
    return rng.integers(0, WORDS, (texts, longest)) * seen, seen, rng.integers(0, 2, texts)


class TorchListener(torch.nn.Module):
    """An LSTM whose outputs are compared with labels by CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(20, WIDTH, batch_first=True)
        self.out = torch.nn.Linear(WIDTH, 12)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, frames: Any, lengths: Any) -> torch.Tensor:
        scores = self.out(self.lstm(x)[0]).log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(scores, labels, frames, lengths, zero_infinity=True)


class Listener(gt.nn.Module):
    """The same in gtrace."""

    lstm: gt.nn.LSTM
    out: gt.nn.Linear

    def __init__(self) -> None:
        keys = gt.random.split(gt.random.key(0), 2)
        self.lstm, self.out = gt.nn.LSTM(20, WIDTH, key=keys[0]), gt.nn.Linear(WIDTH, 12, key=keys[1])

    def __call__(self, x: Any, labels: Any, frames: Any, lengths: Any) -> Any:
        scores = gt.nn.log_softmax(self.out(self.lstm(x)[0]), -1).swapaxes(0, 1)
        return gt.nn.ctc_loss(scores, labels, frames, lengths, zero_infinity=True)


def _speech(rng: np.random.Generator, k: int) -> Batch:
    longest, most = int(rng.integers(20, 80)), int(rng.integers(2, 9))
    frames, lengths = rng.integers(20, longest + 1, 4), rng.integers(1, most + 1, 4)
    frames[0], lengths[0] = longest, most
    return _floats(rng, 4, longest, 20), rng.integers(1, 12, (4, most)), frames, lengths


def _of_layers(name: str, make: Function, like: Function, batch: Any) -> Program:
    """Return the training of a module of torch and of one of `gt.nn` with the same weights."""

    def theirs(wrap: Function) -> Call:
        torch.manual_seed(0)
        model = make()
        return _their_training(wrap(model), list(model.parameters()))

    def ours(wrap: Function) -> Call:
        torch.manual_seed(0)
        model = gt.nn.load_state_dict(like(), make().state_dict())
        return _our_training(lambda model, *data: model(*data), model, wrap)

    return Program(name, batch, ours, theirs)


class TorchWriter(torch.nn.Module):
    """A language model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.encoder = _torch_encoder(causal=True)
        self.out = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        return self.out(self.encoder(self.words(ids), mask=later, is_causal=True)[:, -1])


class Writer(gt.nn.Module):
    """The same in gtrace."""

    words: gt.nn.Embedding
    encoder: gt.nn.TransformerEncoder
    out: gt.nn.Linear

    def __init__(self) -> None:
        keys = gt.random.split(gt.random.key(0), 3)
        options: dict[str, Any] = {"dropout": 0.0, "norm_first": True, "causal": True}
        self.words = gt.nn.Embedding(WORDS, WIDTH, key=keys[0])
        self.encoder = gt.nn.TransformerEncoder(2, WIDTH, HEADS, 2 * WIDTH, key=keys[1], **options)
        self.out = gt.nn.Linear(WIDTH, WORDS, key=keys[2])

    def __call__(self, ids: Any) -> Any:
        return self.out(self.encoder(self.words(ids))[:, -1])


def _writer() -> torch.nn.Module:
    torch.manual_seed(0)
    return TorchWriter().eval()


def _growing(rng: np.random.Generator, k: int) -> Batch:
    return (rng.integers(0, WORDS, (1 + k // TEXT, 4 + k % TEXT)),)


def _generating(name: str, model: Function, ours: Callable[[torch.nn.Module], Function], needs: str) -> Program:
    """Return generation without a cache: all of a text, longer by a token in each call, to the next word's scores."""

    def our_call(wrap: Function) -> Call:
        function = wrap(ours(model()))
        return lambda k, ids: [float(function(gt.array(ids)).max())]

    def their_call(wrap: Function) -> Call:
        function = wrap(model())
        return torch.no_grad()(lambda k, ids: [float(function(torch.from_numpy(ids)).max())])

    return Program(name, _growing, our_call, their_call, needs)


def _of_gt_nn(model: torch.nn.Module) -> Function:
    made = gt.nn.load_state_dict(Writer(), model.state_dict())
    return lambda ids: made(ids)


def _from_module(model: torch.nn.Module) -> Function:
    parameters, apply = gt.from_module(model)
    return lambda ids: apply(parameters, ids)


class _Scores(torch.nn.Module):
    """The scores of the next word by a model of transformers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(ids, use_cache=False).logits[:, -1]
        return scores


def _llama() -> torch.nn.Module:
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": HEADS, "vocab_size": WORDS}
    return _Scores(transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2, **sizes))).eval()


# -- a service


def _service() -> Program:
    rng = np.random.default_rng(0)
    shapes = ((64, 256), (256, 256), (256, 10))
    weights = [_floats(rng, *shape) / math.sqrt(shape[0]) for shape in shapes]

    def answer(lib: Names, *given: Any) -> Any:
        first, second, third, x = given
        x = (x - lib.np.mean(x, -1)[:, None]) / 2
        return lib.nn.softmax(lib.nn.relu(lib.nn.relu(x @ first) @ second) @ third, axis=-1)

    def made(lib: Names, convert: Function, wrap: Function) -> Call:
        p = list(map(convert, weights))
        function = wrap(lambda x: answer(lib, *p, x))
        return lambda k, x: [float(function(convert(x))[:, 0].sum())]

    def theirs(wrap: Function) -> Call:
        call = made(_their_names(), torch.from_numpy, wrap)
        return torch.no_grad()(call)

    return Program(
        "service, 8 threads", lambda rng, k: (_floats(rng, int(rng.integers(1, 41)), 64),),
        lambda wrap: made(_our_names(), gt.array, wrap), theirs, threads=8,
    )  # fmt: skip


REQUEST = gt.ShapeDtypeStruct(("rows", 64), "float32")
"""What a request to the service is, for those that export it."""

PROGRAMS = (
    _trained("graph network", _graph_loss, {f"{w}{k}": (16, 16) for w in ("send", "keep") for k in range(3)}, _graph),
    _trained("point cloud", _points_loss,
             {"first": (3, 64), "second": (64, 128), "third": (128, 10), "fourth": (128, 10)}, _points),
    _of_layers("ragged texts", TorchReader, Reader, _texts),
    _of_layers("LSTM with CTC", TorchListener, Listener, _speech),
    _generating("generation, gt.nn", _writer, _of_gt_nn, "torch"),
    _generating("generation, a module of torch", _writer, _from_module, "torch"),
    _generating("generation, transformers", _llama, _from_module, "transformers"),
    _cached_generation(),
    _trained("replayed batches", _value_loss, {"first": (8, 64), "second": (64, 64), "third": (64, 4)}, _replayed),
    _moving("particles", _particles_step, lambda: (np.zeros((1, 2), np.float32),) * 2, _particles),
    _trained("scan", _scan_loss, {"in": (8, 32), "again": (32, 32), "out": (32, 4)}, _sequences),
    _service(),
)  # fmt: skip
