"""Running ahead-of-time compiled code: a shared library and its runner, without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import CacheError
from gtrace.core.base.workspace import Unpacked


def load(path: Path, device: torch.device, origin: str) -> Executable:
    """Return an executable for a shared library (CPU) or a package (GPU) that AOTInductor made.

    The code does not check its inputs: the caller must pass the sizes, strides and dtypes that it was compiled for.

    Args:
        origin: see `Executable`.

    Raises:
        CacheError: torch cannot load it.
        UnsupportedTorchError: this version of torch has another loader.
    """
    package = path.suffix == ".pt2"
    loader = internals.PACKAGE_LOADER.get() if package else internals.CPU_RUNNER.get()
    try:
        if package:
            index, files = -1 if device.index is None else device.index, Unpacked()
            with files.unpacking():
                boxed = loader(str(path), "model", False, 1, index).boxed_run
            if device.type == "cpu":  # a library needs no file once it is loaded; kernels of a GPU are read later
                files.remove()
            call = lambda tensors, files=files: boxed(list(tensors))  # noqa: E731 - it empties the list
        else:
            call = loader(str(path), 1).run  # which takes any sequence
    except OSError as error:
        raise CacheError(f"there is no place for the files of {path}: {error}") from error
    except RuntimeError as error:
        raise CacheError(f"torch cannot load {path}: {str(error).strip().splitlines()[0]}") from error
    aliases: list[int] | None = None

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal aliases
        outputs = call(tensors)
        if aliases is None:
            # the program decides which results are views of inputs, so it is enough to look once
            given = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
            aliases = [k for k, t in enumerate(outputs) if t.numel() and t.untyped_storage().data_ptr() in given]
        if aliases:
            for k in aliases:
                outputs[k] = outputs[k].clone()
        return outputs

    return Executable(run, origin, device, memory=path.stat().st_size)
