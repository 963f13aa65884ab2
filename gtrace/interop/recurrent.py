"""Recurrent layers: the steps of torch's cells, and the loop that records a module's layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gtrace.core import ops
from gtrace.core.trace.array import Array
from gtrace.core.transform.control.scan import scan
from gtrace.interop.aten.recurrent import LAYER
from gtrace.interop.aten.translate import RECORDED

State = tuple[Array, ...]


def by_weight(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return ``x @ weight.T + bias``."""
    product = ops.matmul(x, weight.mT)
    return product if bias is None else ops.add(product, bias)


def lstm_step(gates: Array, state: State, weight: Array, bias: Array | None, projection: Array | None = None) -> State:
    """Return the next (h, c) of a long short-term memory (Hochreiter and Schmidhuber, 1997).

    Args:
        gates: the input's part, in the order input, forget, cell, output.
        weight: (4 * hidden_size, size of h).
        bias: (4 * hidden_size,).
        projection: (size of h, hidden_size), or None (Sak, Senior and Beaufays, 2014).
    """
    h, c = state
    i, f, g, o = ops.split(gates + by_weight(h, weight, bias), 4, -1)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    h = ops.sigmoid(o) * ops.tanh(c)
    return (h if projection is None else by_weight(h, projection, None)), c


def gru_step(gates: Array, h: Array, weight: Array, bias: Array | None) -> Array:
    """Return the next state of a gated recurrent unit (Cho et al., 2014).

    Args:
        gates: the input's part, in the order reset, update, new.
        weight: (3 * hidden_size, hidden_size).
        bias: (3 * hidden_size,).
    """
    reset, update, new = ops.split(gates, 3, -1)
    of_reset, of_update, of_new = ops.split(by_weight(h, weight, bias), 3, -1)
    z = ops.sigmoid(update + of_update)
    candidate = ops.tanh(new + ops.sigmoid(reset + of_reset) * of_new)
    return candidate + z * (h - candidate)


def _plain(activation: Callable[[Array], Array]) -> Callable[..., State]:
    def step(gates: Array, state: State, weight: Array, bias: Array | None, projection: None) -> State:
        return (activation(gates + by_weight(state[0], weight, bias)),)

    return step


_STEPS: dict[str, Callable[..., State]] = {
    "lstm": lstm_step,
    "gru": lambda gates, state, weight, bias, projection: (gru_step(gates, state[0], weight, bias),),
    "rnn_tanh": _plain(ops.tanh),
    "rnn_relu": _plain(ops.relu),
}


def record_layer(
    kind: str, x: Array, state: Sequence[Array], weight: Array, bias: Array | None, projection: Array | None,
    lengths: Array | None, reverse: bool,
) -> list[Array]:  # fmt: skip
    """Record a layer of a recurrent network as a loop; see `LAYER`."""
    step = _STEPS[kind]
    inside = (
        None if lengths is None else ops.expand_dims(ops.arange(x.shape[0]), (1, 2)) < ops.expand_dims(lengths, (0, 2))
    )

    def body(state: State, given: tuple[Array, Array | None]) -> tuple[State, Array]:
        gates, inside = given
        new = step(gates, state, weight, bias, projection)
        if inside is not None:
            new = tuple(ops.where(inside, one, old) for one, old in zip(new, state, strict=True))
        return new, new[0]

    last, outs = scan(body, tuple(state), (x, inside), reverse=reverse)
    return [outs, *last]


RECORDED[LAYER] = record_layer
