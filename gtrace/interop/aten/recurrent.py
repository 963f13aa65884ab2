"""torch's recurrent networks: each layer and direction is traced as one call, and recorded as a loop.

torch splits them into the operations of every step. Such a program has thousands of operations, takes long to record
and compile, and hides the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals

Tensor = torch.Tensor
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Sequence[Any]], State]

_library = torch.library.Library("gtrace", "FRAGMENT")
_library.define(
    "recurrent_layer(str kind, Tensor x, Tensor[] state, Tensor weight, Tensor? bias, Tensor? projection,"
    " Tensor? lengths, bool reverse) -> Tensor[]"
)
_library.define(
    "lstm_layer(Tensor x, Tensor h, Tensor c, Tensor of_input, Tensor of_state, Tensor? by_input, Tensor? by_state,"
    " bool reverse) -> Tensor[]"
)

LAYER = "gtrace.recurrent_layer.default"
"""The operator of one layer in one direction, between torch's tracer and the recording.

Arguments: the name of torch's function; the input's part of the gates, (length, batch, gates); the first state; the
weight of the state, (gates, state), and its bias; the projection of an LSTM; the lengths of the sequences, if they
differ. It returns the outputs of the steps, and the state at the ends of the sequences.
"""

LSTM_LAYER = "gtrace.lstm_layer.default"
"""The operator of one layer of a plain LSTM in one direction; see `gtrace.core.backends.interpreter.lstm.FORWARD`."""


def run_network(
    name: str,
    x: Tensor,
    lengths: Tensor | None,
    initial: Any,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
) -> tuple[Tensor, ...]:
    """Return a recurrent network's outputs, and its states at the ends of the sequences; see ``torch.nn.LSTM``.

    Args:
        name: the name of torch's function.
        x: (length, batch, width).
        lengths: the lengths of the sequences, (batch,); None: the length of `x`.
        both: run both directions.
    """
    first: State = tuple(initial) if name == "lstm" else (initial,)
    # decompose the calls that torch itself differentiates or maps over
    apart = internals.TRANSFORM.get()() is not None or any(one.requires_grad for one in (x, *first, *weights))
    call = _run_layer if apart else torch.ops.gtrace.recurrent_layer
    directions = 2 if both else 1
    own = len(weights) // (layers * directions)
    last: list[State] = []
    for layer in range(layers):
        if layer and dropout and training:
            x = torch.nn.functional.dropout(x, dropout)
        outs = []
        for backward in range(directions):
            k = layer * directions + backward
            of_input, of_state, *rest = weights[k * own : (k + 1) * own]
            by_input, by_state = rest[:2] if bias else (None, None)
            state = [each[k] for each in first]
            projection = rest[-1] if len(rest) % 2 else None
            if name == "lstm" and projection is None and lengths is None and not apart:
                out, *state = torch.ops.gtrace.lstm_layer(
                    x, *state, of_input, of_state, by_input, by_state, bool(backward)
                )
            else:
                gates = torch.nn.functional.linear(x, of_input, by_input)
                out, *state = call(name, gates, state, of_state, by_state, projection, lengths, bool(backward))
            outs.append(out)
            last.append(tuple(state))
        x = torch.cat(outs, -1) if both else outs[0]
    return x, *(torch.stack(states) for states in zip(*last, strict=True))


def _run_layer(
    kind: str, x: Tensor, state: Sequence[Tensor], weight: Tensor, bias: Tensor | None, projection: Tensor | None,
    lengths: Tensor | None, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    step, now = NETWORKS[kind], tuple(state)
    outs: list[Tensor] = [x] * len(x)
    for k in reversed(range(len(x))) if reverse else range(len(x)):
        new = step(x[k], now, (weight, bias, projection))
        if lengths is not None:
            inside = (lengths > k)[:, None]
            new = tuple(torch.where(inside, one, old) for one, old in zip(new, now, strict=True))
        now = new
        outs[k] = now[0]
    return [torch.stack(outs), *(one.clone() for one in now)]


def _types(kind: str, x: Tensor, state: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    return [x.new_empty((x.shape[0], *state[0].shape)), *(x.new_empty(one.shape) for one in state)]


def _run_lstm(
    x: Tensor, h: Tensor, c: Tensor, of_input: Tensor, of_state: Tensor, by_input: Tensor | None,
    by_state: Tensor | None, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    gates = torch.nn.functional.linear(x, of_input, by_input)
    return _run_layer("lstm", gates, (h, c), of_state, by_state, None, None, reverse)


def _types_of_lstm(x: Tensor, h: Tensor, c: Tensor, *rest: Any) -> list[Tensor]:
    return _types("lstm", x, (h, c))


_library.impl("lstm_layer", _run_lstm, "CompositeExplicitAutograd")
_library.impl("lstm_layer", _types_of_lstm, "Meta")
_library.impl("recurrent_layer", _run_layer, "CompositeExplicitAutograd")
_library.impl("recurrent_layer", _types, "Meta")


def _lstm(x: Tensor, state: State, weights: Sequence[Any]) -> State:
    h, c = state
    i, f, g, o = (x + torch.nn.functional.linear(h, weights[0], weights[1])).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if weights[2] is None else torch.nn.functional.linear(h, weights[2])), c


def _gru(x: Tensor, state: State, weights: Sequence[Any]) -> State:
    (h,) = state
    x_reset, x_update, x_new = x.chunk(3, -1)
    reset, update, new = torch.nn.functional.linear(h, weights[0], weights[1]).chunk(3, -1)
    new = (x_new + (x_reset + reset).sigmoid() * new).tanh()
    update = (x_update + update).sigmoid()
    return (new + update * (h - new),)


def _plain(activation: Callable[[Tensor], Tensor], x: Tensor, state: State, weights: Sequence[Any]) -> State:
    return (activation(x + torch.nn.functional.linear(state[0], weights[0], weights[1])),)


NETWORKS: dict[str, Step] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": functools.partial(_plain, torch.tanh),
    "rnn_relu": functools.partial(_plain, torch.relu),
}
"""By torch's names: (gates, state, (weight, bias, projection)) -> the next state, the output first."""
