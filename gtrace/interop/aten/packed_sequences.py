"""Packed sequences in a torch function, traced as padded sequences with their lengths.

torch packs sequences without the padding beyond their ends, so packed sizes depend on values. Here all steps are kept,
and a recurrent layer changes nothing beyond the end of a sequence. Packed data pass from ``pack_padded_sequence``
through recurrent layers to ``pad_packed_sequence``; they cannot be read in between.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import ConcretizationError, message
from gtrace.interop.aten.recurrent import NETWORKS, run_network

Tensor = torch.Tensor


@contextlib.contextmanager
def padded() -> Iterator[None]:
    """Replace this thread's packed sequences by `Packed`, and its recurrent networks by calls of layers.

    One thread at a time may be in this context.
    """
    if not internals.PACKED_SEQUENCES.available():
        yield
        return
    vf = internals.RECURRENT_FUNCTIONS.get()
    owner = threading.get_ident()
    # by name: for this thread's tensors, and for packed data
    own: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {
        "_pack_padded_sequence": (_pack, _pack),
        "_pad_packed_sequence": (None, _pad),
        **{name: (functools.partial(_run_padded, name), functools.partial(_run, name)) for name in NETWORKS},
    }

    def changed(
        original: Callable[..., Any], for_tensors: Callable[..., Any] | None, for_packed: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if isinstance(args[0], Packed):
                return for_packed(*args)
            if for_tensors is None or threading.get_ident() != owner:
                return original(*args)
            return for_tensors(*args)

        return call

    for name, functions in own.items():
        setattr(vf, name, changed(getattr(vf, name), *functions))
    try:
        yield
    finally:
        for name in own:
            delattr(vf, name)


@attrs.frozen(eq=False)
class Packed:
    """A padded batch of sequences that replaces the data of a packed sequence.

    Attributes:
        steps: (length, batch, width); values beyond the ends have no meaning.
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

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        _refuse(getattr(function, "__name__", repr(function)))

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


@attrs.frozen(eq=False)
class _Sizes:
    """Replaces the batch sizes of a packed sequence."""

    packed: Packed
    device = torch.device("cpu")

    def __getitem__(self, step: int) -> int:
        return self.packed.lengths.shape[0] if step == 0 else _refuse("batch_sizes")

    def size(self, axis: int) -> int:
        return _Longest(0)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse("batch_sizes")


class _Longest(int):
    """Replaces the unknown length of the longest sequence; no total length is less."""


def _refuse(name: str) -> NoReturn:
    fix = "Compute it before the sequences are packed, or after torch.nn.utils.rnn.pad_packed_sequence."
    raise ConcretizationError(message(name, "padded sequences", "the data of packed ones, whose sizes are values", fix))


def check_results(results: Sequence[Any]) -> None:
    """Raise for packed sequences among a function's results.

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


def _run(name: str, packed: Packed, sizes: _Sizes, *rest: Any) -> tuple[Any, ...]:
    """Run a recurrent network; return its packed output, and the states at the ends of the sequences."""
    steps, *states = run_network(name, packed.steps, packed.lengths, *rest)
    return Packed(steps, packed.lengths), *states


def _run_padded(name: str, x: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    """Run a recurrent network on sequences of one length."""
    *rest, batch_first = settings
    steps, *states = run_network(name, x.swapaxes(0, 1) if batch_first else x, None, *rest)
    return (steps.swapaxes(0, 1) if batch_first else steps), *states
