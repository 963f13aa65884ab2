"""Abstract values: shape, dtype and device of an array without its data. Interned: equal ones are one object."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.core.base.devices import CPU
from gtrace.core.base.dtypes import COMPLEX, DTYPES, INEXACT, LONG, SHORT, DType
from gtrace.core.base.errors import DtypeError, ShapeError, message
from gtrace.core.ir.interning import InternTable
from gtrace.core.ir.sharding import NamedSharding, parse_sharding


@attrs.frozen(eq=False, repr=False)
class Aval:
    """Shape, dtype and device of an array; `weak` if it comes from a Python scalar. Make one with `aval`.

    Attributes:
        floating: the dtype is floating, real or complex, so the array is differentiable.
        sharding: the part of it that each process holds; None: this process has all of it. Only values and inputs have
            one. Results get theirs when their program is partitioned.
        kind: a number that avals share if they differ in their sizes only, in this process; 0 with a sharding.

    >>> gt.ir.aval((2, 3), gt.float32)
    f32[2,3]
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    weak: bool
    floating: bool
    sharding: NamedSharding | None = None
    kind: int = attrs.field(init=False)

    @kind.default
    def _made_kind(self) -> int:
        if self.sharding is not None:
            return 0
        # one call finds or enters a number, so threads agree
        return _kinds.setdefault((self.dtype, len(self.shape), self.device, self.weak), next(_new_kinds))

    @property
    def plain(self) -> Aval:
        """The same aval without a sharding."""
        return self if self.sharding is None else aval(self.shape, self.dtype, self.device, self.weak)

    @property
    def complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype in COMPLEX

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        text = f"{SHORT[self.dtype]}[{','.join(map(str, self.shape))}]"
        if self.device != CPU:
            text += f"@{self.device}"
        text += "~" if self.weak else ""
        return text if self.sharding is None else f"{text}{{{self.sharding.text}}}"

    def __reduce__(self) -> Any:
        if self.sharding is not None:
            return sharded, (self.plain, self.sharding)
        return aval, (self.shape, self.dtype, self.device, self.weak)


_kinds: dict[tuple[torch.dtype, int, torch.device, bool], int] = {}
_new_kinds = itertools.count(1)

_interned: InternTable[Aval] = InternTable()
_recent = _interned.recent


def aval(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU, weak: bool = False) -> Aval:
    """Return the interned `Aval` with these fields; `dtype` may also be one of gtrace's, such as ``gt.float32``.

    Raises:
        DtypeError: the dtype is not in `DTYPES`.

    >>> aval((), torch.float32, weak=True) is aval((), torch.float32, weak=True)
    True
    """
    key = (shape, dtype, device, weak)
    found = _recent.get(key)
    if found is None:
        if dtype.__class__ is DType:  # equal to torch's dtype, so the look-up above found any known type
            return aval(shape, dtype.torch, device, weak)
        if dtype not in SHORT:
            known = ", ".join(LONG.values())
            raise DtypeError(message("array", f"a dtype among {known}", str(dtype), "Convert the data first."))
        found = _interned.intern(key, lambda: Aval(shape, dtype, device, weak, dtype in INEXACT))
    return found


_sharded: InternTable[Aval] = InternTable()


def sharded(a: Aval, sharding: NamedSharding) -> Aval:
    """Return the interned `Aval` of an array of type `a` with this sharding.

    Raises:
        ShardingError: the sharding has more entries than `a` has dimensions.

    >>> parse_aval("f32[8,4]{data,-|data=4}").sharding
    NamedSharding(mesh=Mesh(data=4), spec=P('data', None))
    """
    full = sharding.padded(len(a.shape))
    plain = a.plain
    return _sharded.intern((plain, full), lambda: attrs.evolve(plain, sharding=full))


@attrs.frozen(eq=False, repr=False)
class Bundle:
    """The type of a value that consists of several arrays: the result of an operation with sub-graphs, such as a loop.

    Only ``project`` takes a bundle as its operand; it returns one of the arrays. Make one with `bundle`.

    >>> gt.ir.bundle((gt.ir.aval((2,), gt.float32), gt.ir.aval((), gt.int64)))
    (f32[2], i64[])
    """

    avals: tuple[Aval, ...]
    floating: bool
    weak: bool = False

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.avals)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.avals))})"

    def __reduce__(self) -> Any:
        return bundle, (self.avals,)


_bundles: InternTable[Bundle] = InternTable()


def bundle(avals: tuple[Aval, ...]) -> Bundle:
    """Return the interned `Bundle` of these avals.

    >>> bundle(()) is bundle(())
    True
    """
    return _bundles.intern(avals, lambda: Bundle(avals, any(a.floating for a in avals)))


_AVAL = re.compile(
    r"(?P<dtype>\w+)\[(?P<shape>(?:\d+(?:,\d+)*)?)\](?:@(?P<device>[\w:]+))?(?P<weak>~?)(?:\{(?P<sharding>.*)\})?",
    re.ASCII,
)


def broadcast(op: str, avals: Sequence[Aval]) -> tuple[int, ...]:
    """Return the shape of operands that broadcast against each other."""
    shapes = {a.shape for a in avals}
    if len(shapes) == 1:
        return avals[0].shape
    if len(shapes) == 2:  # numpy takes ten times as long
        found = joint_shape(*shapes)
        if found is not None:
            return found
    try:
        return numpy.broadcast_shapes(*shapes)
    except ValueError:
        fix = "Sizes must be equal or 1, counted from the right."
        raise ShapeError(message(op, "shapes that broadcast", avals, fix)) from None


def joint_shape(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of two operands that broadcast; None if they do not."""
    if len(x) < len(y):
        x, y = y, x
    first = len(x) - len(y)
    sizes = list(x[:first])
    for n, m in zip(x[first:], y, strict=True):
        if n != m and n != 1 and m != 1:
            return None
        sizes.append(m if n == 1 else n)
    return tuple(sizes)


def parse_type(text: str) -> Aval | Bundle:
    """Read an aval or a bundle, as `repr` prints it."""
    if not text.startswith("("):
        return parse_aval(text)
    return bundle(tuple(parse_aval(part) for part in text[1:-1].split(", ") if part))


def parse_aval(text: str) -> Aval:
    """Read an aval as `Aval.__repr__` prints it."""
    match = _AVAL.fullmatch(text)
    if match is None or match["dtype"] not in DTYPES:
        raise ValueError(f"expected an aval such as f32[2,3], got {text!r}")
    shape = tuple(int(n) for n in match["shape"].split(",")) if match["shape"] else ()
    try:
        device = torch.device(match["device"]) if match["device"] else CPU
    except RuntimeError as error:
        raise ValueError(f"expected a device such as cuda:0, got {match['device']!r}") from error
    made = aval(shape, DTYPES[match["dtype"]], device, bool(match["weak"]))
    return made if match["sharding"] is None else sharded(made, parse_sharding(match["sharding"]))


def layout(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axes of a dense tensor from outermost to innermost; None if it is not dense.

    >>> from gtrace.core.ir.aval import layout
    >>> layout((2, 3), (3, 1)), layout((2, 3), (1, 2)), layout((2, 3), (6, 1))
    ((0, 1), (1, 0), None)
    """
    if 0 in shape:
        return tuple(range(len(shape)))
    order = sorted(range(len(shape)), key=lambda k: (-strides[k], k))
    step = 1
    for k in reversed(order):
        if shape[k] > 1 and strides[k] != step:
            return None
        step *= max(shape[k], 1)
    return tuple(order)


def place_of(avals: Iterable[Aval]) -> torch.device:
    """Return where a program with these inputs runs: on the CPU, unless one of them is elsewhere."""
    return next((a.device for a in avals if a.device.type != "cpu"), CPU)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides that torch gives a dense row-major tensor."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
