"""Lays arrays out: at once if they have a value, otherwise as an operation of the program."""

from __future__ import annotations

import torch

from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import sharded
from gtrace.core.ir.sharding import ABSENT, NamedSharding, print_dims
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.bind import bind
from gtrace.core.trace.force import value_of
from gtrace.core.trace.record import thread
from gtrace.distributed.collectives import placed_op


def put(x: Array, sharding: NamedSharding, backward: NamedSharding | None = None) -> Array:
    """Return x laid out over processes.

    A value that each process holds whole is cut at once, unless a gradient or a capture must see the operation.

    Args:
        backward: the layout of the result's cotangent; None: it follows from the program.
    """
    watched = thread.trace.tape is not None or thread.trace.capture is not None
    value = value_of(x)
    if value is None or x.aval.sharding is not None or watched:
        return constrain(x, sharding, backward)
    return wrap_as(_part(value, sharding), sharded(x.aval, sharding))


@without_modes
def _part(tensor: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    if processes.rank() not in sharding.mesh.ranks:
        return tensor.new_empty(ABSENT)
    part = tensor[sharding.index(tuple(tensor.shape), processes.rank())]
    # a copy, so that a part does not keep the whole array alive
    return part if part.shape == tensor.shape else part.clone(memory_format=torch.contiguous_format)


def constrain(x: Array, sharding: NamedSharding | None, backward: NamedSharding | None = None) -> Array:
    """Record the layout of x, of its cotangent, or of both."""
    mesh = next(s.mesh for s in (sharding, backward) if s is not None)
    dims = [None if s is None else print_dims(s.dims(x.ndim)) for s in (sharding, backward)]
    return bind(placed_op, (x,), (str(mesh), *dims))
