"""``save_arrays`` and ``load_arrays``: pytrees of arrays as safetensors files, the format of many libraries."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import ArgumentError, CheckpointError, DtypeError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.base.whole_files import write_aside
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import lift, plain_tensor, received
from gtrace.core.trace.force import evaluate, whole
from gtrace.core.transform.arguments import is_array
from gtrace.distributed.placing import put
from gtrace.saving.agreement import agree, together, types
from gtrace.saving.names import check_names, check_type, check_written, expected_type, named_leaves

__all__ = ["load_arrays", "load_metadata", "save_arrays"]

PathLike = str | os.PathLike[str]

MAX_REASON = 300
"""The number of letters shown of another library's error."""


def save_arrays(path: PathLike, arrays: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write a pytree of arrays to a safetensors file.

    The name of a leaf is its key path with dots: ``{"layers": [{"w": x}]}`` has ``layers.0.w``. So names of torch's
    ``state_dict`` stay unchanged. The file is written aside and then moved to `path`, so readers find the old or the
    new file. It is read back before. Arrays over several processes are gathered: all processes must call, with the same
    names, and the first one writes.

    Args:
        arrays: arrays of any dtype except complex128; numbers are saved as arrays.
        metadata: texts by name.

    Raises:
        ArgumentError: a leaf is not an array, two leaves have one name, one is named ``__metadata__``, metadata is not
            text, or a text or the path is not UTF-8.
        DtypeError: an array is complex128.
        OSError: the file cannot be written, or has other content when it is read back.
        CheckpointError: another process failed, or has other names or types.

    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> gt.save_arrays(file, {"layers": [{"w": gt.ones(2)}]}, metadata={"made by": "an example"})
    >>> gt.load_arrays(file)
    {'layers.0.w': Array([1., 1.], dtype=float32)}
    """
    named, _ = named_leaves("save_arrays", arrays)
    lifted: dict[str, Array] = {}
    for name, leaf in named.items():
        if not is_array(leaf):
            got = f"{type(leaf).__name__} at {name!r}"
            raise ArgumentError(message("save_arrays", "arrays", got, "Text belongs into metadata."))
        lifted[name] = lift("save_arrays", leaf)
    texts = dict(metadata or {})
    if not all(isinstance(x, str) for pair in texts.items() for x in pair):
        raise ArgumentError(message("save_arrays", "metadata of texts by name", repr(texts), "Use str or json.dumps."))
    check_written("save_arrays", path, lifted, [text for pair in texts.items() for text in pair])
    # before values are computed: for other names, processes would send other tensors
    agree("save_arrays", types(lifted, shardings=False), _group_of(lifted))
    evaluate(list(lifted.values()), "save_arrays")
    group = _group_of(lifted)
    agree("save_arrays", types(lifted), group)
    tensors = together("save_arrays", lambda: {name: whole(x, "save_arrays") for name, x in lifted.items()}, group)

    def write() -> None:
        if group is None or processes.rank() == 0:
            write_tensors("save_arrays", Path(path), tensors, texts)

    together("save_arrays", write, group)  # a process that goes on finds the file


def _group_of(arrays: Mapping[str, Array]) -> Any:
    """Return the group of the processes that save together; None unless an array is divided among them."""
    divided = any(x.aval.sharding is not None for x in arrays.values())
    return processes.group_for_saving() if divided and processes.count() > 1 else None


def write_tensors(op: str, path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors to a safetensors file, and read it back before it takes the place of another.

    Raises:
        DtypeError: a tensor is complex128.
        OSError: the file cannot be written, or has other content when it is read back.
    """
    for name, tensor in tensors.items():
        if tensor.dtype is torch.complex128:
            fix = "Save x.real and x.imag, or x.astype(gt.complex64)."
            raise DtypeError(message(op, "a dtype that the format has", f"complex128 at {name!r}", fix))
    save_file = importlib.import_module("safetensors.torch").save_file
    library = importlib.import_module("safetensors")
    host = _separate(tensors)

    def write(aside: Path) -> None:
        save_file(host, aside, dict(metadata) or None)
        with library.safe_open(os.fspath(aside), framework="pt", device="cpu") as file:
            other = _other(file, host, metadata)
        if other:
            raise OSError(message(op, "to read back what was written", f"other {other} in {path}", "Check the disk."))

    try:
        write_aside(path, write)
    except library.SafetensorError as error:
        fix = "Make room on the disk, or see who may write there."
        raise OSError(message(op, "a file that can be written", f"{path}: {error}", fix)) from error


@without_modes
def _separate(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return dense tensors on the CPU that share no memory, as the format requires."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        host = tensor.detach().cpu().contiguous()
        if host.numel():
            place = host.untyped_storage().data_ptr()
            if place in seen:
                host = host.clone()
            seen.add(place)
        out[name] = host
    return out


@without_modes
def _other(file: Any, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> str:
    """Return what of an open file differs from what it was written from; empty if nothing does."""
    if set(file.keys()) != set(tensors) or (file.metadata() or {}) != metadata:
        return "names or metadata"
    for name, written in tensors.items():
        found = file.get_tensor(name)
        if (found.shape, found.dtype) != (written.shape, written.dtype):
            return f"shape or dtype of {name!r}"
        if not torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (found, written))):
            return f"elements of {name!r}"
    return ""


def load_arrays(path: PathLike, like: Any = None) -> Any:
    """Return the arrays of a safetensors file.

    The file is mapped into memory, and only the arrays that are used are read. Do not overwrite it in place while the
    Arrays live. `save_arrays` moves a new file to its path, which is safe.

    Args:
        like: a pytree of arrays or `ShapeDtypeStruct`: the expected names, shapes and dtypes, with device and sharding.

    Returns:
        A tree like `like`, or without it a dict of all arrays by name.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is not a safetensors file, or damaged.
        StructureError, ShapeError, DtypeError: the names, a shape or a dtype differ from `like`.

    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> gt.save_arrays(file, {"w": gt.zeros((2, 3)), "b": gt.ones(3)})
    >>> gt.load_arrays(file, like={"w": gt.ShapeDtypeStruct((2, 3), "float32"), "b": gt.zeros(3)})["b"]
    Array([1., 1., 1.], dtype=float32)
    """
    file = open_file("load_arrays", path)
    names = list(file.keys())
    if like is None:
        return {name: received(wrap(_tensor("load_arrays", path, file, name))) for name in sorted(names)}
    named, structure = named_leaves("load_arrays", like)
    check_names("load_arrays", named, dict.fromkeys(names))
    tensors = {name: _tensor("load_arrays", path, file, name) for name in named}
    return structure.unflatten([_fitted(name, leaf, tensors[name]) for name, leaf in named.items()])


def _fitted(name: str, leaf: Any, tensor: torch.Tensor) -> Array:
    """Return a tensor of a file as the Array that a leaf of `like` describes."""
    expected = expected_type("load_arrays", name, leaf)
    out = wrap(tensor)
    check_type("load_arrays", name, expected, out.aval)
    if expected.device != tensor.device:
        out = wrap(_moved(tensor, expected.device))
    return out if expected.sharding is None else put(out, expected.sharding)


@without_modes
def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device)


def load_metadata(path: PathLike) -> dict[str, str]:
    """Return the texts that `save_arrays` wrote beside the arrays, without reading the arrays.

    Raises:
        FileNotFoundError, CheckpointError: as for `load_arrays`.

    >>> import os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> gt.save_arrays(file, {"w": gt.ones(2)}, metadata={"epoch": "3"})
    >>> gt.load_metadata(file)
    {'epoch': '3'}
    """
    return dict(open_file("load_metadata", path).metadata() or {})


def open_file(op: str, path: PathLike) -> Any:
    """Return a safetensors file, mapped into memory.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is not a safetensors file, or damaged.
    """
    library = importlib.import_module("safetensors")
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait
        fix = "Name the file itself."
        raise CheckpointError(message(op, "a safetensors file", f"{path}, which is no plain file", fix))
    try:
        return library.safe_open(os.fspath(path), framework="pt", device="cpu")
    except FileNotFoundError:
        raise
    except (library.SafetensorError, OSError, ValueError) as error:
        fix = "It is damaged, or of another format: load it with the library that wrote it."
        raise CheckpointError(message(op, "a safetensors file", f"{path}: {_reason(error)}", fix)) from error


def _reason(error: Exception) -> str:
    """Return the text of an error; it may quote a whole damaged file, so only its beginning is returned."""
    text = str(error)
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def _tensor(op: str, path: PathLike, file: Any, name: str) -> torch.Tensor:
    """Return a tensor of an open file.

    Raises:
        CheckpointError: the file has no such name, or its dtype is not supported.
    """
    library = importlib.import_module("safetensors")
    try:
        return plain_tensor(op, file.get_tensor(name))
    except (library.SafetensorError, ArgumentError, DtypeError, KeyError, ValueError, RuntimeError) as error:
        fix = "It is damaged, or has what gtrace cannot hold: load it with the library that wrote it."
        got = f"{path}: {name!r}: {type(error).__name__}: {_reason(error)}"
        raise CheckpointError(message(op, "arrays of dtypes that gtrace has", got, fix)) from error


def read_tensor(
    op: str, path: PathLike, file: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor of an open file, exactly as it was saved.

    Raises:
        CheckpointError: the file has no tensor with this name, shape and dtype.
    """
    tensor = _tensor(op, path, file, name)
    if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
        expected, got = (f"{LONG[t]}{list(s)}" for t, s in ((dtype, shape), (tensor.dtype, tensor.shape)))
        fix = "The file is damaged, or of another checkpoint: load an earlier step."
        raise CheckpointError(message(op, f"{name!r} of {expected}", f"{got} in {path}", fix))
    return tensor
