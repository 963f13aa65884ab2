"""Arrays over several processes as files, by ``torch.distributed.checkpoint``: each process writes its own parts.

Which parts there are follows from the arrays' shardings, so the planners take them from there; torch's own would need
a DTensor, which cuts a dimension that is split over two mesh axes in other places.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.base.errors import CheckpointError, message


@attrs.frozen(eq=False)
class SavedShard:
    """A part of an array.

    Attributes:
        tensor: the part.
        offsets: where it begins.
        shape: of the array.
        written: whether this process writes it, and not another one that holds the same part.
    """

    tensor: torch.Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    written: bool = True


@functools.cache
def _classes() -> tuple[Any, Any]:
    """Return the planners. The module that they are made with takes seconds to import."""
    library = importlib.import_module("torch.distributed.checkpoint")
    planner = importlib.import_module("torch.distributed.checkpoint.planner")
    metadata = importlib.import_module("torch.distributed.checkpoint.metadata")
    helpers = importlib.import_module("torch.distributed.checkpoint.planner_helpers")

    def chunk(part: SavedShard) -> Any:
        return metadata.ChunkStorageMetadata(torch.Size(part.offsets), part.tensor.shape)

    # the parts come to the planners by themselves: torch would look for tensors in a state_dict of them

    class SavePlanner(library.DefaultSavePlanner):  # type: ignore[name-defined]
        def __init__(self, parts: Mapping[str, SavedShard]) -> None:
            super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
            self.parts = parts

        def create_local_plan(self) -> Any:
            items = []
            for name, part in self.parts.items():
                if not part.written or not part.tensor.numel():
                    continue
                properties = metadata.TensorProperties.create_from_tensor(part.tensor)
                data = planner.TensorWriteData(chunk(part), properties, torch.Size(part.shape))
                index = metadata.MetadataIndex(name, torch.Size(part.offsets))
                items.append(planner.WriteItem(index, planner.WriteItemType.SHARD, tensor_data=data))
            self.plan = planner.SavePlan(items)
            return self.plan

        def resolve_data(self, write_item: Any) -> torch.Tensor:
            return self.parts[write_item.index.fqn].tensor.detach()

    class LoadPlanner(library.DefaultLoadPlanner):  # type: ignore[name-defined]
        def __init__(self, parts: Mapping[str, SavedShard]) -> None:
            super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
            self.parts = parts

        def create_local_plan(self) -> Any:
            saved = self.metadata.state_dict_metadata
            items = []
            for name, part in self.parts.items():
                if part.tensor.numel():
                    items += helpers.create_read_items_for_chunk_list(name, saved[name], [chunk(part)])
            return planner.LoadPlan(items)

        def resolve_tensor(self, read_item: Any) -> torch.Tensor:
            out = self.parts[read_item.dest_index.fqn].tensor
            for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
                out = out.narrow(dim, start, length)
            return out

    return SavePlanner, LoadPlanner


def prepare() -> None:
    """Import what saving needs, which takes seconds: not in a thread beside the program."""
    _classes()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let torch not warn that there are no other processes, or that they are not asked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def write_shards(folder: Path, parts: Mapping[str, SavedShard], group: Any) -> None:
    """Write the parts of all processes. All call it.

    Args:
        group: a process group of all of them, in which nothing else is sent meanwhile.
    """
    library = importlib.import_module("torch.distributed.checkpoint")
    writer, planner = library.FileSystemWriter(folder), _classes()[0](parts)
    with _alone():
        library.save({}, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)


def read_shards(folder: Path, parts: Mapping[str, SavedShard]) -> None:
    """Fill the tensors of `parts` with what was saved, by however many processes. Nothing is sent.

    Raises:
        CheckpointError: the files are damaged.
    """
    library = importlib.import_module("torch.distributed.checkpoint")
    reader = library.FileSystemReader(folder)
    try:
        with _alone():
            library.load({}, storage_reader=reader, planner=_classes()[1](parts), no_dist=True)
    except (library.CheckpointException, OSError, KeyError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[-1]
        fix = "Load an earlier step."
        raise CheckpointError(message("load_checkpoint", "the parts of arrays", f"{folder}: {reason}", fix)) from error
