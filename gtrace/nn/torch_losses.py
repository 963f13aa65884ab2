"""Losses of torch on Arrays that gtrace computes itself, with lengths as arrays: other lengths are the same program."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.extend import OWN_FUNCTIONS, Array, custom_jvp, ops
from gtrace.nn.sequence_losses import ctc_loss


@custom_jvp
def _normalized(x: Array) -> Array:
    """Return x, whose derivative is that of ``log_softmax``: torch's CTC takes it that x came from there."""
    return x


@_normalized.defjvp
def _normalized_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return x, t - ops.sum(ops.exp(x) * t, -1, keepdims=True)


def _ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: Any = "mean",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Compute torch's CTC by gtrace's; what torch may refuse is left to it."""
    x, named = ops.asarray(log_probs), _REDUCTIONS.get(reduction)
    if x.aval.dtype not in (torch.float32, torch.float64) or x.ndim not in (2, 3) or not x.size or named is None:
        return NotImplemented
    lengths = [_known(z) for z in (input_lengths, target_lengths)]
    for length, most in zip(lengths, (x.shape[0], None), strict=True):
        if isinstance(length, numpy.ndarray):
            beyond = most is not None and length.size and length.max() > most
            if length.dtype.kind not in "iu" or not length.size or length.min() < 0 or beyond:
                return NotImplemented
    labels = ops.asarray(targets)
    given, counts = lengths
    if labels.aval.dtype not in (torch.int32, torch.int64) or not 0 <= blank < x.shape[-1]:
        return NotImplemented
    return ctc_loss(_normalized(x), labels, given, counts, blank, named, zero_infinity)


def _known(lengths: Any) -> Any:
    """Return lengths as NumPy arrays if they are known without a program."""
    if isinstance(lengths, Array):
        return lengths
    return lengths.cpu().numpy() if isinstance(lengths, torch.Tensor) else numpy.asarray(lengths)


_REDUCTIONS = {name: name for name in ("none", "mean", "sum")} | {0: "none", 1: "mean", 2: "sum"}
"""By torch's names, and by the numbers that ``torch.ctc_loss`` takes."""

OWN_FUNCTIONS[torch.ctc_loss] = OWN_FUNCTIONS[torch.nn.functional.ctc_loss] = _ctc_loss
