"""Packed sequences in a torch function: traced as padded sequences with their lengths, which are values.

torch packs sequences of several lengths without what is beyond their ends, so the sizes of what is packed are values.
Here all steps are kept, and a recurrent layer changes nothing beyond the end of a sequence. What is packed goes from
``pack_padded_sequence`` to recurrent layers and to ``pad_packed_sequence``, and cannot be looked at in between.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import attrs
import torch

from gtrace import torch_internals as internals
from gtrace.errors import ConcretizationError, message

Tensor = torch.Tensor
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Sequence[Any]], State]


@contextlib.contextmanager
def padded() -> Iterator[None]:
    """Let this thread's packed sequences be `Packed`. One thread at a time may be in this context."""
    vf = internals.RECURRENT_FUNCTIONS.get()
    owner = threading.get_ident()
    packs = {"_pack_padded_sequence": _pack}
    takes: dict[str, Callable[..., Any]] = {"_pad_packed_sequence": _pad}
    takes.update({name: functools.partial(_run, name) for name in _STEPS})

    def changed(original: Callable[..., Any], own: Callable[..., Any], always: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            ours = isinstance(args[0], Packed) or (always and threading.get_ident() == owner)
            return (own if ours else original)(*args)

        return call

    for name, own in {**packs, **takes}.items():
        setattr(vf, name, changed(getattr(vf, name), own, name in packs))
    try:
        yield
    finally:
        for name in {**packs, **takes}:
            delattr(vf, name)


@attrs.frozen(eq=False)
class Packed:
    """A batch of sequences, padded, in the place of the data of a packed sequence.

    Attributes:
        steps: (length, batch, width); what is beyond the ends has no meaning.
        lengths: (batch,).
    """

    steps: Tensor
    lengths: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.steps.dtype

    @property
    def device(self) -> torch.device:
        return self.steps.device

    def dim(self) -> int:
        return 2

    def size(self, axis: int) -> int:
        """Return the width, which is the last axis of packed data."""
        return self.steps.shape[-1] if axis in (-1, 1) else _refuse("size")

    def running(self, step: int) -> Tensor:
        """Return which sequences have this step, (batch, 1)."""
        return (self.lengths > step)[:, None]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        _refuse(getattr(function, "__name__", repr(function)))

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


@attrs.frozen(eq=False)
class _Sizes:
    """In the place of the batch sizes of a packed sequence."""

    packed: Packed
    device = torch.device("cpu")

    def __getitem__(self, step: int) -> int:
        return self.packed.lengths.shape[0] if step == 0 else _refuse("batch_sizes")

    def size(self, axis: int) -> int:
        return _Longest(0)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse("batch_sizes")


class _Longest(int):
    """In the place of the length of the longest sequence, which is a value; no total length is less."""


def _refuse(name: str) -> NoReturn:
    fix = "Compute it before the sequences are packed, or after torch.nn.utils.rnn.pad_packed_sequence."
    raise ConcretizationError(message(name, "padded sequences", "the data of packed ones, whose sizes are values", fix))


def check_results(results: Sequence[Any]) -> None:
    """Refuse packed sequences among what a function returns.

    Raises:
        ConcretizationError: there is one.
    """
    if any(isinstance(x, (Packed, _Sizes)) for x in results):
        fix = "Return what torch.nn.utils.rnn.pad_packed_sequence gives, with total_length=."
        raise ConcretizationError(message("PackedSequence", "padded sequences as results", "packed ones", fix))


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Packed, _Sizes]:
    if x.dim() != 3:
        fix = "Pack sequences of vectors, as recurrent layers take them."
        raise ConcretizationError(message("pack_padded_sequence", "three axes", str(tuple(x.shape)), fix))
    packed = Packed(x.swapaxes(0, 1) if batch_first else x, lengths)
    return packed, _Sizes(packed)


def _pad(packed: Packed, sizes: _Sizes, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
    steps = packed.steps.shape[0]
    if isinstance(total, _Longest) or total < steps:
        fix = f"Pass total_length={steps}, the length that was packed: the longest of the sequences is a value."
        got = "none" if isinstance(total, _Longest) else str(total)
        raise ConcretizationError(message("pad_packed_sequence", f"a total_length of at least {steps}", got, fix))
    inside = torch.arange(steps)[:, None] < packed.lengths
    out = torch.where(inside[..., None], packed.steps, value)
    out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, total - steps), value=value)
    return (out.swapaxes(0, 1) if batch_first else out), packed.lengths


def _run(
    name: str,
    packed: Packed,
    sizes: _Sizes,
    initial: Any,
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
) -> tuple[Any, ...]:
    """Run a recurrent network; return its packed output, and the states at the ends of the sequences."""
    first: State = tuple(initial) if name == "lstm" else (initial,)
    directions = 2 if both else 1
    own = len(weights) // (layers * directions)
    last: list[State] = []
    for layer in range(layers):
        if layer and dropout and training:
            packed = Packed(torch.nn.functional.dropout(packed.steps, dropout), packed.lengths)
        outs = []
        for backward in range(directions):
            k = layer * directions + backward
            state = tuple(x[k] for x in first)
            used = weights[k * own : (k + 1) * own]
            out, state = _layer(_STEPS[name], packed, state, used, bias, bool(backward))
            outs.append(out)
            last.append(state)
        packed = Packed(torch.cat(outs, -1), packed.lengths)
    return packed, *(torch.stack(states) for states in zip(*last, strict=True))


def _layer(
    step: Step, packed: Packed, state: State, weights: Sequence[Tensor], bias: bool, backward: bool
) -> tuple[Tensor, State]:
    """Run one layer in one direction; return its outputs and the states at the ends."""
    from_input = torch.nn.functional.linear(packed.steps, weights[0], weights[2] if bias else None)
    outs: list[Tensor] = [packed.steps] * len(from_input)
    for k in reversed(range(len(from_input))) if backward else range(len(from_input)):
        new = step(from_input[k], state, (*weights[1:2], weights[3] if bias else None, *weights[4 if bias else 2 :]))
        state = tuple(torch.where(packed.running(k), x, old) for x, old in zip(new, state, strict=True))
        outs[k] = state[0]
    return torch.stack(outs), state


def _lstm(x: Tensor, state: State, weights: Sequence[Any]) -> State:
    h, c = state
    i, f, g, o = (x + torch.nn.functional.linear(h, weights[0], weights[1])).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if len(weights) == 2 else torch.nn.functional.linear(h, weights[2])), c


def _gru(x: Tensor, state: State, weights: Sequence[Any]) -> State:
    (h,) = state
    x_reset, x_update, x_new = x.chunk(3, -1)
    reset, update, new = torch.nn.functional.linear(h, weights[0], weights[1]).chunk(3, -1)
    new = (x_new + (x_reset + reset).sigmoid() * new).tanh()
    update = (x_update + update).sigmoid()
    return (new + update * (h - new),)


def _plain(activation: Callable[[Tensor], Tensor], x: Tensor, state: State, weights: Sequence[Any]) -> State:
    return (activation(x + torch.nn.functional.linear(state[0], weights[0], weights[1])),)


_STEPS: dict[str, Step] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": functools.partial(_plain, torch.tanh),
    "rnn_relu": functools.partial(_plain, torch.relu),
}
"""By the names of torch's functions: (input, state, weights) -> the next state; what it has first is the output."""
