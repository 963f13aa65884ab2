"""Layers of long short-term memory by oneDNN, as two operators: all steps of a layer, and their gradient.

It is what ``torch.nn.LSTM`` runs on the CPU.
"""

from __future__ import annotations

import functools

import torch

from gtrace.core.base.mechanisms import LSTM_KERNEL
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval

Tensor = torch.Tensor

_library = torch.library.Library("gtrace", "FRAGMENT")
_LAYER = "Tensor x, Tensor h, Tensor c, Tensor of_input, Tensor of_state, Tensor? by_input, Tensor? by_state"
_library.define(f"lstm({_LAYER}, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"lstm_backward({_LAYER}, Tensor out, Tensor last_h, Tensor last_c, Tensor kept, Tensor? ct, Tensor? ct_h,"
    " Tensor? ct_c, bool reverse) -> Tensor[]"
)

FORWARD = "gtrace.lstm.default"
"""(x, h, c, of_input, of_state, by_input, by_state, reverse) -> (out, last h, last c, kept): all steps of a layer.

x is (length, batch, width), the states are (batch, size), the weights (4 * size, width) and (4 * size, size), and the
biases, which may both be None, (4 * size,), with the gates in this order: input, forget, cell, output. What is kept for
the gradient is bytes, whose number only oneDNN knows.
"""

BACKWARD = "gtrace.lstm_backward.default"
"""(operands of `FORWARD`, its results, cotangents of all but the last of these, or None, reverse) -> cotangents of x,
the states, the weights, and, if there are biases, either of them."""

OPERATORS = frozenset((FORWARD, BACKWARD))

_LSTM = 2  # torch's number of the kind of network


def has_kernel(avals: tuple[Aval, ...]) -> bool:
    """Whether oneDNN runs layers of operands of these types."""
    if not LSTM_KERNEL.on or not torch.backends.mkldnn.is_available():
        return False
    LSTM_KERNEL.used()
    return all(a.dtype is torch.float32 and a.device.type == "cpu" and a.size for a in avals)


def _arranged(
    x: Tensor, h: Tensor, c: Tensor, of_input: Tensor, of_state: Tensor, biases: tuple[Tensor | None, ...]
) -> list[Tensor]:
    """Return what oneDNN takes, in its order. It is given addresses only, no strides."""
    given = (x, of_input, of_state, *(of_input.new_zeros(len(of_input)) if b is None else b for b in biases), h, c)
    return [one.contiguous() for one in given]


def _run(
    x: Tensor, h: Tensor, c: Tensor, of_input: Tensor, of_state: Tensor, by_input: Tensor | None,
    by_state: Tensor | None, reverse: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    return torch.ops.aten.mkldnn_rnn_layer.default(
        *_arranged(x, h, c, of_input, of_state, (by_input, by_state)), reverse, [], _LSTM, h.shape[-1], 1,
        by_input is not None, False, False, True,
    )  # fmt: skip


def _run_backward(
    x: Tensor, h: Tensor, c: Tensor, of_input: Tensor, of_state: Tensor, by_input: Tensor | None,
    by_state: Tensor | None, out: Tensor, last_h: Tensor, last_c: Tensor, kept: Tensor, ct: Tensor | None,
    ct_h: Tensor | None, ct_c: Tensor | None, reverse: bool,
) -> list[Tensor]:  # fmt: skip
    cts = [None if one is None else one.contiguous() for one in (ct, ct_h, ct_c)]
    by_x, by_weight, by_state_weight, by_bias, _, by_h, by_c = torch.ops.aten.mkldnn_rnn_layer_backward.default(
        *_arranged(x, h, c, of_input, of_state, (by_input, by_state)),
        *(one.contiguous() for one in (out, last_h, last_c)), *cts, reverse, _LSTM, h.shape[-1], 1,
        by_input is not None, True, False, [], False, kept,
    )  # fmt: skip
    return [by_x, by_h, by_c, by_weight, by_state_weight, *([] if by_input is None else [by_bias])]


_library.impl("lstm", _run, "CPU")
_library.impl("lstm_backward", _run_backward, "CPU")


@functools.lru_cache(maxsize=4096)
@without_modes
def bytes_kept(length: int, batch: int, width: int, size: int) -> int:
    """Return how many bytes a layer of these sizes keeps for its gradient, by running one."""
    x, state = torch.zeros(length, batch, width), torch.zeros(batch, size)
    weights = torch.zeros(4 * size, width), torch.zeros(4 * size, size)
    return _run(x, state, state, *weights, None, None, False)[3].numel()
