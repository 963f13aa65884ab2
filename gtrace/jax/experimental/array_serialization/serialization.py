"""``jax.experimental.array_serialization.serialization``: arrays in zarr files, by the package tensorstore.

The files are those of JAX: each package reads what the other wrote.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import gtrace as gt
from gtrace.extend import ArgumentError, lift, message
from gtrace.jax.device_functions import device_put
from gtrace.jax.meshes import make_array_from_callback
from gtrace.sharding import NamedSharding

__all__ = [
    "GlobalAsyncCheckpointManager", "GlobalAsyncCheckpointManagerBase", "async_deserialize", "async_serialize",
    "get_tensorstore_spec", "run_deserialization", "run_serialization",
]  # fmt: skip

Spec = dict[str, Any]

REMOTE = {"gs": "gcs", "s3": "s3"}
"""The drivers of stores, by the beginning of their addresses."""

LIMITS = {
    "file_io_concurrency": {"limit": 128}, "data_copy_concurrency": {"limit": 128},
    "cache_pool": {"total_bytes_limit": 10**10},
}  # fmt: skip
"""What tensorstore may use at once."""


def _library() -> Any:
    try:
        return importlib.import_module("tensorstore")
    except ImportError as error:
        fix = "Install tensorstore, or use gt.save."
        raise ArgumentError(message("array_serialization", "the package tensorstore", "none", fix)) from error


@functools.cache
def _shared() -> Any:
    return _library().Context(LIMITS)


def __getattr__(name: str) -> Any:
    if name == "TS_CONTEXT":
        return _shared()
    raise AttributeError(f"module 'jax.experimental.array_serialization.serialization' has no attribute {name!r}")


def get_tensorstore_spec(ckpt_path: str | os.PathLike[str], ocdbt: bool = False, driver: str = "zarr") -> Spec:
    """Return where and how an array is stored, as tensorstore takes it.

    Args:
        ckpt_path: the folder of the array; with `ocdbt`, its last part is the name of the array in a database.

    >>> get_tensorstore_spec("/tmp/a/")
    {'driver': 'zarr', 'kvstore': {'driver': 'file', 'path': '/tmp/a'}}
    """
    kind, _, rest = str(ckpt_path).partition("://")
    place = os.path.normpath(rest if kind in REMOTE else str(ckpt_path))
    name = ""
    if ocdbt:
        place, name = os.path.split(place)
    if kind in REMOTE:
        bucket, _, inner = place.partition("/")
        store: Spec = {"driver": REMOTE[kind], "bucket": bucket, "path": inner}
    else:
        if ocdbt and not os.path.isabs(place):
            raise ArgumentError(message("get_tensorstore_spec", "an absolute path", repr(place), "Pass one."))
        store = {"driver": "file", "path": place}
    return {"driver": driver, "kvstore": {"driver": "ocdbt", "base": store, "path": name} if ocdbt else store}


def _described(spec: Spec, x: Any) -> Spec:
    """Return a specification with the shape and dtype of an array, unless it has them."""
    if "metadata" in spec or any("metadata" in part for part in spec.values() if isinstance(part, dict)):
        return spec
    chunks = [max(size, 1) for size in x.shape]
    if spec["driver"] == "zarr3":
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        own = {"shape": list(x.shape), "data_type": x.dtype.name, "chunk_grid": grid, "codecs": []}
        return {**spec, "metadata": own}
    own = {"shape": list(x.shape), "chunks": chunks, "compressor": {"id": "zstd"}}
    return {"dtype": x.dtype.name, **spec, "metadata": own}


async def async_serialize(
    arr_inp: Any, tensorstore_spec: Spec, commit_future: list[Any] | None = None, context: Any = None,
    chunk_layout: Any = None, primary_host: int | None = None, replica_id: int = 0, transaction: Any = None,
) -> None:  # fmt: skip
    """Write an array.

    Args:
        commit_future: a list that gets what ends when the array is written; by default this function waits for it.
        chunk_layout: how tensorstore cuts the array; by default it is one piece.
        primary_host, replica_id: without effect, as this process writes the whole array.
        transaction: of tensorstore's, that the writing belongs to.
    """
    host = numpy.asarray(lift("async_serialize", arr_inp))
    own = _shared() if context is None else context
    spec = _library().Spec(_described(tensorstore_spec, host))
    options = {"context": own, "chunk_layout": chunk_layout, "transaction": transaction}
    store = await _library().open(spec, create=True, open=True, **options)
    written = store.write(host)
    if commit_future is None:
        await written.commit
    else:
        commit_future.append(written.commit)
        await written.copy


async def async_deserialize(
    in_type: Any, tensorstore_spec: Spec, global_shape: Sequence[int] | None = None, dtype: Any = None,
    byte_limiter: Any = None, context: Any = None, chunk_layout: Any = None, assume_metadata: bool = False,
) -> gt.Array:  # fmt: skip
    """Read an array.

    Args:
        in_type: the layout of the array, or a `ShapeDtypeStruct` with one.
        global_shape: a shape to cut the array to, or to fill it up to with zeros.
        dtype: to convert to.
        byte_limiter: without effect: a store is read at once.
    """
    layout = in_type
    if isinstance(in_type, gt.ShapeDtypeStruct):
        layout, dtype = in_type.sharding, in_type.dtype if dtype is None else dtype
    store = await _library().open(
        tensorstore_spec, open=True, assume_metadata=assume_metadata, context=_shared() if context is None else context,
        chunk_layout=chunk_layout,
    )  # fmt: skip
    shape = tuple(store.shape if global_shape is None else global_shape)
    common = tuple(slice(0, min(a, b)) for a, b in zip(shape, store.shape, strict=True))
    found = numpy.zeros(shape, store.dtype.numpy_dtype)
    found[common] = await store[common].read()
    if isinstance(layout, NamedSharding):
        return make_array_from_callback(shape, layout, lambda place: gt.array(found[place]), dtype)
    return device_put(gt.array(found, dtype), layout)


def run_serialization(arrays: Sequence[Any], tensorstore_specs: Sequence[Spec]) -> None:
    """Write arrays, and wait until they are written."""
    _write(arrays, tensorstore_specs, None)


def _write(arrays: Sequence[Any], specs: Sequence[Spec], transaction: Any) -> None:
    async def write() -> None:
        pairs = zip(arrays, specs, strict=True)
        await asyncio.gather(*[async_serialize(x, spec, transaction=transaction) for x, spec in pairs])

    asyncio.run(write())


def run_deserialization(
    shardings: Sequence[Any], tensorstore_specs: Sequence[Spec], global_shapes: Sequence[Any] | None = None,
    dtypes: Sequence[Any] | None = None, concurrent_gb: int = 32,
) -> list[gt.Array]:  # fmt: skip
    """Read arrays."""
    count = len(tensorstore_specs)
    shapes, kinds = global_shapes or [None] * count, dtypes or [None] * count

    async def read() -> list[gt.Array]:
        return await asyncio.gather(*map(async_deserialize, shardings, tensorstore_specs, shapes, kinds))

    return asyncio.run(read())


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """The base class of what writes arrays while the program goes on."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raise the error of the last writing, if it failed."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Wait until everything is written."""

    @abc.abstractmethod
    def serialize(self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None]) -> None:
        """Write arrays."""

    @abc.abstractmethod
    def deserialize(
        self, shardings: Sequence[Any], tensorstore_specs: Sequence[Spec], global_shapes: Any = None,
        dtypes: Any = None,
    ) -> Any:  # fmt: skip
        """Read arrays."""


class GlobalAsyncCheckpointManager(GlobalAsyncCheckpointManagerBase):
    """Writes arrays by tensorstore. `serialize` returns when they are written, so there is no thread.

    Args:
        timeout_secs: without effect: there is no other process to wait for.
    """

    def __init__(self, timeout_secs: int = 300) -> None:
        """Do nothing."""

    def check_for_errors(self) -> None:
        """Do nothing: `serialize` has raised the error."""

    def wait_until_finished(self) -> None:
        """Do nothing: everything is written."""

    def serialize(
        self, arrays: Sequence[Any], tensorstore_specs: Sequence[Spec], *,
        on_commit_callback: Callable[[], None] | None = None, transaction: Any = None,
    ) -> None:  # fmt: skip
        """Write arrays.

        Args:
            on_commit_callback: what to call when they are written.
        """
        _write(arrays, tensorstore_specs, transaction)
        if on_commit_callback is not None:
            on_commit_callback()

    def serialize_with_paths(
        self, arrays: Sequence[Any], paths: Sequence[str], *, on_commit_callback: Callable[[], None] | None = None,
        transaction: Any = None,
    ) -> None:  # fmt: skip
        """Write arrays to folders."""
        specs = [get_tensorstore_spec(path) for path in paths]
        self.serialize(arrays, specs, on_commit_callback=on_commit_callback, transaction=transaction)

    def deserialize(
        self, shardings: Sequence[Any], tensorstore_specs: Sequence[Spec], global_shapes: Any = None,
        dtypes: Any = None, concurrent_gb: int = 32,
    ) -> list[gt.Array]:  # fmt: skip
        """Read arrays."""
        return run_deserialization(shardings, tensorstore_specs, global_shapes, dtypes)

    def deserialize_with_paths(
        self, shardings: Sequence[Any], paths: Sequence[str], global_shapes: Any = None, dtypes: Any = None,
        concurrent_gb: int = 32,
    ) -> list[gt.Array]:  # fmt: skip
        """Read arrays from folders."""
        return self.deserialize(shardings, [get_tensorstore_spec(p) for p in paths], global_shapes, dtypes)
