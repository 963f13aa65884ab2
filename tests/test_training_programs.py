"""Training programs with modules of torch, beside the same in torch: losses, weights, buffers."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import gtrace as gt

STEPS = 6

WAYS = {"undecorated": lambda f: f, "jitted": lambda f: gt.jit(f, backend="eager")}


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def check(losses, expected, module, arrays):
    # torch's clipping adds 1e-6 to the norm
    np.testing.assert_allclose(losses, expected, rtol=1e-7, atol=1e-9)
    for name, value in chain(module.named_parameters(), module.named_buffers()):
        np.testing.assert_allclose(arrays[name], value.detach(), rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_a_critic_with_a_penalty_on_its_gradient(way):
    """WGAN-GP: second derivatives through one module, running statistics of the other, two optimizers in turn."""
    generator = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    weight_norm = nn.utils.parametrizations.weight_norm
    critic = nn.Sequential(
        weight_norm(nn.Linear(2, 8)), nn.LeakyReLU(0.2), nn.LayerNorm(8), nn.Softplus(), nn.Linear(8, 1)
    )
    g_params, g = gt.from_module(generator)
    c_params, c = gt.from_module(critic)
    noise, real, mix = torch.randn(STEPS, 6, 3), torch.randn(STEPS, 6, 2), torch.rand(STEPS, 6, 1)

    g_torch = torch.optim.RMSprop(generator.parameters(), 1e-2)
    c_torch = torch.optim.SGD(critic.parameters(), 1e-2, momentum=0.5)
    expected = []
    for k in range(STEPS):
        fake = generator(noise[k]).detach()
        x = (mix[k] * real[k] + (1 - mix[k]) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        c_loss = critic(fake).mean() - critic(real[k]).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        c_torch.zero_grad()
        c_loss.backward()
        c_torch.step()
        g_loss = -critic(generator(noise[k])).mean()
        g_torch.zero_grad()
        g_loss.backward()
        g_torch.step()
        expected.append([c_loss.item(), g_loss.item()])

    g_optimizer = gt.optim.rmsprop(1e-2, decay=0.99, eps_in_sqrt=False)
    c_optimizer = gt.optim.sgd(1e-2, momentum=0.5)

    def step(g_params, c_params, g_state, c_state, buffers, noise, real, mix):
        fake, buffers = g(g_params, noise, state=buffers, train=True)
        fake = fake.detach()
        x = mix * real + (1 - mix) * fake

        def c_loss(params):
            slope = gt.grad(lambda x: c(params, x).sum())(x)
            penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
            return c(params, fake).mean() - c(params, real).mean() + 10 * penalty

        c_value, grads = gt.value_and_grad(c_loss)(c_params)
        updates, c_state = c_optimizer.update(grads, c_state, c_params)
        c_params = gt.optim.apply_updates(c_params, updates)

        def g_loss(params):
            made, new = g(params, noise, state=buffers, train=True)
            return -c(c_params, made).mean(), new

        (g_value, buffers), grads = gt.value_and_grad(g_loss, has_aux=True)(g_params)
        updates, g_state = g_optimizer.update(grads, g_state, g_params)
        return gt.optim.apply_updates(g_params, updates), c_params, g_state, c_state, buffers, [c_value, g_value]

    run = g_params, c_params, g_optimizer.init(g_params), c_optimizer.init(c_params), g.state
    step, losses = WAYS[way](step), []
    for k in range(STEPS):
        *run, values = step(*run, gt.array(noise[k]), gt.array(real[k]), gt.array(mix[k]))
        losses.append([float(value) for value in values])
    check(losses, expected, generator, {**run[0], **run[4]})
    check(losses, expected, critic, run[1])


class Translator(nn.Module):
    """An encoder and a decoder with masks of padding and of the future, and tied embeddings."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8, padding_idx=0)
        self.blocks = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 12)
        self.out.weight = self.embedding.weight

    def forward(self, source, target):
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        padded = source == 0
        hidden = self.blocks(
            self.embedding(source), self.embedding(target), tgt_mask=future, src_key_padding_mask=padded,
            tgt_key_padding_mask=target == 0, memory_key_padding_mask=padded,
        )  # fmt: skip
        return self.out(hidden).flatten(0, 1)


class Quantizer(nn.Module):
    """VQ-VAE: a straight-through estimator, and codes used, counted in a buffer."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.codes = nn.Linear(5, 3), nn.Linear(3, 5), nn.Embedding(6, 3)
        self.register_buffer("used", torch.zeros(6))

    def forward(self, x):
        z = self.encoder(x)
        chosen = torch.cdist(z, self.codes.weight).argmin(-1)
        code = self.codes(chosen)
        distance = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        with torch.no_grad():
            self.used.mul_(0.9).add_(F.one_hot(chosen, 6).sum(0), alpha=0.1)
        return self.decoder(z + (code - z).detach()), distance


def translation_loss(model, source, target):
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits, target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


def quantizer_loss(model, x):
    out, distance = model(x)
    return (1 - F.cosine_similarity(out, x, dim=-1)).mean() + distance


def sentences(count):
    tokens = torch.randint(1, 12, (count, 6))
    for k in range(count):
        tokens[k, 3 + k % 3 :] = 0
    return tokens


PROGRAMS = {
    "translator": (Translator, translation_loss, lambda count: (sentences(count), sentences(count))),
    "quantizer": (Quantizer, quantizer_loss, lambda count: (torch.randn(count, 5),)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_training_with_clipping_and_a_smaller_last_batch(name, way):
    make, loss, batch = PROGRAMS[name]
    module, batches = make(), [batch(5), batch(3)]
    params, apply = gt.from_module(module)

    torchs = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9, nesterov=True)
    expected = []
    for k in range(STEPS):
        torchs.zero_grad()
        value = loss(module, *batches[k % 2])
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        torchs.step()
        expected.append(value.item())

    optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(0.5), gt.optim.sgd(0.05, momentum=0.9, nesterov=True))

    def step(params, state, buffers, *batch):
        def value_of(params):
            new = []

            def model(*args):
                out, changed = apply(params, *args, state=buffers, train=True)
                new.append(changed)
                return out

            return loss(model, *batch), new[0]

        (value, buffers), grads = gt.value_and_grad(value_of, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return gt.optim.apply_updates(params, updates), state, buffers, value

    run = params, optimizer.init(params), apply.state
    step, losses = WAYS[way](step), []
    for k in range(STEPS):
        *run, value = step(*run, *[gt.array(x) for x in batches[k % 2]])
        losses.append(float(value))
    check(losses, expected, module, {**run[0], **run[2]})
