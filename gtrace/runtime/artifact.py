"""Running ahead-of-time compiled code: a shared library and its runner, without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from gtrace.errors import CacheError
from gtrace.runtime.interpret import Program


def load(path: Path, device: torch.device) -> Program:
    """Return the program in a shared library (CPU) or a package (GPU) that AOTInductor made.

    The caller answers for sizes, strides and dtypes of the inputs: the code does not check them.

    Raises:
        CacheError: torch cannot load it.
    """
    try:
        if path.suffix == ".pt2":
            index = -1 if device.index is None else device.index
            call = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, index).boxed_run
        else:
            call = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run
    except RuntimeError as error:
        raise CacheError(f"torch cannot load {path}: {str(error).strip().splitlines()[0]}") from error
    aliases: list[int] | None = None

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal aliases
        outputs = call(list(tensors))
        if aliases is None:
            # which results are views of inputs follows from the program, and is the same in every call
            given = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
            aliases = [k for k, t in enumerate(outputs) if t.numel() and t.untyped_storage().data_ptr() in given]
        for k in aliases:
            outputs[k] = outputs[k].clone()
        return outputs

    return run
