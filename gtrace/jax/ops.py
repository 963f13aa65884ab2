"""The names of ``jax.ops``. The data are broadcast to the shape of their segments, which may have several axes."""

from collections.abc import Callable
from typing import Any

from gtrace import segments
from gtrace.extend import Array, lift, ops
from gtrace.jax.adapt import namespace


def _broadcasting(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def segmented(data: Any, segment_ids: Any, num_segments: int | None = None, *, mode: str | None = None) -> Array:
        x, ids = lift(reduce.__name__, data), lift(reduce.__name__, segment_ids)
        if ids.ndim != 1 or x.shape[:1] != ids.shape:
            x = ops.broadcast_to(x, (*ids.shape, *x.shape[1:]))
            x, ids = ops.reshape(x, (ids.size, *x.shape[ids.ndim :])), ops.ravel(ids)
        return reduce(x, ids, num_segments, mode=mode)

    segmented.__doc__ = reduce.__doc__
    segmented.__name__ = segmented.__qualname__ = reduce.__name__
    return segmented


__getattr__, __dir__ = namespace("jax.ops", {name: _broadcasting(getattr(segments, name)) for name in segments.__all__})
