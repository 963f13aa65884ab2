"""The devices of ``jax``: objects with JAX's attributes for torch's devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from gtrace import config
from gtrace.distributed.sharding import NamedSharding, with_sharding
from gtrace.errors import GtraceError
from gtrace.extend import Array, as_device, message, ops, tree
from gtrace.version import __version__


class PlatformError(GtraceError, RuntimeError):
    """A platform without devices."""


@attrs.frozen
class Memory:
    """Where arrays of a device lie.

    Attributes:
        device: the device.
        kind: its name.
    """

    device: Device
    kind: str = "device"


@attrs.frozen(repr=False, eq=False)
class Device:
    """A device under JAX's names of its properties.

    Attributes:
        platform: ``"cpu"`` or ``"gpu"``.
        torch: torch's name of it.
    """

    platform: str
    id: int
    torch: str

    @property
    def device_kind(self) -> str:
        """The name of the device."""
        return torch.cuda.get_device_name(self.id) if self.platform == "gpu" else "cpu"

    @property
    def client(self) -> Backend:
        """The platform that the device is of."""
        return Backend(self.platform)

    @property
    def process_index(self) -> int:
        """The process that has the device: this one."""
        return 0

    @property
    def type(self) -> str:
        """Torch's name of the platform."""
        return self.torch.partition(":")[0]

    @property
    def index(self) -> int | None:
        """Torch's number of the device: None for the CPU."""
        return None if self.platform == "cpu" else self.id

    def default_memory(self) -> Memory:
        """Return where its arrays lie."""
        return Memory(self)

    def addressable_memories(self) -> list[Memory]:
        """Return the memories of the device: one.

        >>> import gtrace.jax as jax
        >>> [memory.kind for memory in jax.devices("cpu")[0].addressable_memories()]
        ['device']
        """
        return [Memory(self)]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, torch.device):  # as Arrays have it
            return (other.type, other.index or 0) == (self.torch.partition(":")[0], self.id)
        return isinstance(other, Device) and self.torch == other.torch

    def __hash__(self) -> int:
        return hash(self.torch)

    def __repr__(self) -> str:
        return f"{'Cpu' if self.platform == 'cpu' else 'Cuda'}Device(id={self.id})"

    def __str__(self) -> str:
        return f"{self.type}:{self.id}"


del Device.__attrs_attrs__  # dm-tree takes instances of attrs classes apart


@attrs.frozen
class Backend:
    """A platform.

    Attributes:
        platform: ``"cpu"`` or ``"gpu"``.
        runtime_type: what runs its programs.
    """

    platform: str
    runtime_type = "gtrace"

    @property
    def platform_version(self) -> str:
        """The version of what runs its programs."""
        return f"gtrace {__version__}"

    def devices(self) -> list[Device]:
        """Return the devices of the platform."""
        return devices(self.platform)

    local_devices = devices

    def device_count(self) -> int:
        """Return the number of devices."""
        return len(self.devices())

    local_device_count = device_count


def devices(backend: str | None = None) -> list[Device]:
    """Return the devices of a platform: ``"cpu"``, ``"gpu"``, or by default the one that arrays are made on.

    Raises:
        PlatformError: another platform, or no device of it.
    """
    platform = default_backend() if backend is None else backend
    if platform == "cpu":
        return [Device("cpu", 0, "cpu")]
    if platform in ("gpu", "cuda"):
        found = [Device("gpu", k, f"cuda:{k}") for k in range(torch.cuda.device_count())]
        if not found:
            fix = "Unknown backend: use jax.devices() for those that there are; `gtrace doctor` says what torch finds."
            raise PlatformError(message("devices", "a GPU that torch can use", "none", fix))
        return found
    fix = "Unknown backend: torch's devices of these kinds are supported."
    raise PlatformError(message("devices", "cpu or gpu", repr(backend), fix))


def default_backend() -> str:
    """Return the platform that arrays are made on, ``"cpu"`` or ``"gpu"``, as the setting `device` says."""
    return "cpu" if as_device(None).type == "cpu" else "gpu"


@contextlib.contextmanager
def default_device(new_val: Any = None) -> Iterator[None]:
    """Return a block, or a decorator: arrays are made on a device, of `devices` or as torch names it; None: as before.

    >>> import gtrace.jax as jax
    >>> with jax.default_device(jax.devices("cpu")[0]):
    ...     jax.numpy.ones(2).devices()
    {CpuDevice(id=0)}
    >>> print(jax.devices("cpu")[0])
    cpu:0
    """
    with contextlib.nullcontext() if new_val is None else config(device=device_name(new_val)):
        yield


def device_name(device: Any) -> str:
    """Return torch's name of a device, one of `devices` or a name of JAX's or torch's."""
    place = getattr(device, "device", device)  # the device of a SingleDeviceSharding
    return place.torch if isinstance(place, Device) else "cuda" if place == "gpu" else str(place)


def device_count(backend: str | None = None) -> int:
    """Return the number of `devices`."""
    return len(devices(backend))


def process_index(backend: str | None = None) -> int:
    """Return the number of this process, 0."""
    return 0


def process_count(backend: str | None = None) -> int:
    """Return the number of processes, 1."""
    return 1


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """Return `devices`: they all belong to this process."""
    return devices(backend)


local_device_count = device_count
host_id, host_count = process_index, process_count


def process_indices(backend: str | None = None) -> list[int]:
    """Return the numbers of all processes: this one's."""
    return [0]


host_ids = process_indices


def each_with_layout(place: Callable[[Any, Any], Any], x: Any, layouts: Any) -> Any:
    """Call a function with a pytree and its layout, or with the parts of it that a pytree of layouts has one for."""
    given = tree.leaves(layouts)
    if layouts is None or (len(given) == 1 and given[0] is layouts):
        return place(x, layouts)
    return tree.map(place, x, tree.broadcast(layouts, x))


def device_put(x: Any, device: Any = None, **options: Any) -> Any:
    """Return a pytree with Arrays on a device, one of `devices` or as torch names it, or in a layout.

    Args:
        device: None leaves them in place. A pytree has a device or layout for each array of `x`, or for a part of it.

    >>> import gtrace.jax as jax
    >>> layout = jax.NamedSharding(jax.make_mesh((1,), "data"), jax.P("data"))
    >>> moved = jax.device_put({"w": jax.numpy.ones(2), "b": jax.numpy.ones(1)}, {"w": layout, "b": jax.devices()[0]})
    >>> moved["w"].sharding.spec
    P('data')
    """
    return each_with_layout(_put, x, device)


def _put(x: Any, device: Any) -> Any:
    device = getattr(device, "sharding", device)  # that of a Format
    device = getattr(device, "device", device)  # the device of a SingleDeviceSharding
    if isinstance(device, NamedSharding):
        return tree.map(lambda leaf: with_sharding(ops.array(leaf), device), x)
    place = device.torch if isinstance(device, Device) else device

    def put(leaf: Any) -> Array:
        return ops.array(leaf, device=place)

    return tree.map(put, x)
