"""The text of a function in C++: lines, fresh names, memory, loop nests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence

from gtrace.core.backends.native.tuned import GRAIN, MOST_PARTS, POLL_AFTER, SQUARE
from gtrace.core.backends.native.values import Uniform, Value, View, c_type, collapse, dense, memory_type, spread
from gtrace.core.ir.aval import Aval, contiguous_strides

ALIGNMENT = 64
"""Bytes at which each buffer begins."""


class Writer:
    """Collects the C++ of one function.

    Attributes:
        lines: of its body.
        constants: lines that come before the body and run once a call.
        computed: a number for each thing that loops compute of their operands, equal ones having the same.
        scratch: bytes of memory that a call needs.
        most: additions that the straight-line operations of a step may take.
        part: additions in a part of a line, at least.
        names: all that were made.
        types: of the names that loops may read, wherever these stand.
        sizes: those of them that are sizes.
        nests: where loops begin and end in the body, and the names that are theirs alone.
    """

    def __init__(self, most: float, part: int) -> None:
        self.most = most
        self.part = part
        self.lines: list[str] = []
        self.constants: list[str] = []
        self.names: set[str] = set()
        self.types: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.nests: list[tuple[int, int, frozenset[str]]] = []
        self.computed: dict[Hashable, int] = {}
        self.scratch = 0
        self._places: dict[str, tuple[int, int]] = {}  # of buffers: where they begin, and their bytes
        self._free: list[tuple[int, int]] = []
        self._depth = 1
        self._shared = False
        self._nested: list[str] | None = None  # names of the loops that are being written
        self._count = 0

    def name(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        name = f"{prefix}{self._count}"
        self.names.add(name)
        if self._nested is not None:
            self._nested.append(name)
        return name

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " * self._depth + text)

    @contextlib.contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Put the lines of the block into braces after `head`."""
        self.line(head + " {")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def constant(self, kind: str, name: str, text: str) -> None:
        """Declare a name before the body."""
        self.types[name] = kind
        self.constants.append(f"  {kind} {name} = {text};")

    def local(self, a: Aval, text: str) -> Uniform:
        """Assign an expression to a new variable."""
        name, kind = self.name("v"), f"const {c_type(a.dtype)}"
        self.types[name] = kind
        self.line(f"{kind} {name} = {text};")
        return Uniform(name)

    def buffer(self, a: Aval) -> View:
        """Return memory of this call for an array."""
        name, own = self.name("b"), memory_type(a.dtype)
        nbytes = -(-max(a.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        # the smallest free place that is large enough, and not so large that much of it would be lost
        fits = [place for place in self._free if nbytes <= place[1] <= 2 * nbytes]
        if fits:
            start, nbytes = min(fits, key=lambda place: place[1])
            self._free.remove((start, nbytes))
        else:
            start = self.scratch
            self.scratch += nbytes
        self._places[name] = start, nbytes
        self.constant(f"{own}* const", name, f"reinterpret_cast<{own}*>(scratch + {start})")
        return dense(name, a)

    def free(self, base: str) -> None:
        """Let later buffers have the memory of one that the lines so far have read for the last time."""
        place = self._places.pop(base, None)
        if place is not None:
            self._free.append(place)

    def nest(
        self,
        shape: Sequence[int],
        strides: Sequence[Sequence[int]],
        body: Callable[[list[str]], None],
        ordered: bool = False,
        cost: int = 0,
        grain: int = GRAIN,
    ) -> None:
        """Write loops over all elements of a shape. Threads share them if they take long.

        Args:
            strides: of each view that the body reads or writes.
            body: takes the offset of the current element in each view, and writes what is done with it.
            ordered: whether the compiler must keep the order of the steps.
            cost: additions that the loops take. 0: steps depend on the steps before them.
            grain: elements, or rows, of which each part has a multiple.
        """
        sizes, steps = collapse(shape, strides)

        def some(first: str, last: str) -> None:
            self.loops(sizes, steps, body, first, last, ordered)

        self.divide(sizes, cost, some, grain)

    def loops(
        self, sizes: Sequence[int], steps: Sequence[Sequence[int]], body: Callable[[list[str]], None],
        first: str, last: str, ordered: bool = False,
    ) -> None:  # fmt: skip
        """Write loops, of which the outermost runs from `first` to `last`; see `nest`."""
        names = [self.name("i") for _ in sizes]

        def inner(axis: int) -> None:
            if axis == len(sizes):
                body([offset(names, own) for own in steps])
                return
            if axis == len(sizes) - 1 and not ordered:
                self.line("#pragma GCC ivdep")
            i = names[axis]
            begin, end = (first, last) if axis == 0 else ("0", str(sizes[axis]))
            with self.braces(f"for (int64_t {i} = {begin}; {i} < {end}; ++{i})"):
                inner(axis + 1)

        inner(0)

    def divide(self, sizes: Sequence[int], cost: int, body: Callable[[str, str], None], grain: int = GRAIN) -> None:
        """Write loops over `sizes`, of which the outermost is divided among threads if they take long.

        Args:
            cost: additions that the loops take.
            body: writes the loops, given where the outermost begins and ends.
            grain: of the only loop, each part has a multiple of so many steps.
        """
        grain = grain if len(sizes) == 1 else 1
        units = -(-sizes[0] // grain) if sizes else 1
        parts = min(self.parts(cost), units)
        length, among = str(sizes[0] if sizes else 1), str(parts) if parts > 1 else None
        if self._nested is not None:
            self._divide(length, among, grain, body)
            return
        if sizes and self._depth == 1:
            length = self._size(sizes[0])
        if among is not None and self._depth == 1:
            among = self._size(parts)
        start, self._nested = len(self.lines), []
        self._divide(length, among, grain, body)
        self.nests.append((start, len(self.lines), frozenset(self._nested)))
        self._nested = None

    def _size(self, n: int) -> str:
        """Return the name of a size, so that loops of other sizes are the same function."""
        name = self.name("n")
        self.sizes[name] = n
        self.constant("const int64_t", name, str(n))
        return name

    def _divide(self, length: str, parts: str | None, grain: int, body: Callable[[str, str], None]) -> None:
        """Write the loops of `divide`, of which the outermost ends at `length`; parts: in how many, None: in one."""
        if parts is None:
            body("0", length)
            return
        units = f"({length} + {grain - 1}) / {grain}" if grain > 1 else length
        part, first, end, last = (self.name("p") for _ in range(4))
        places = [f"{units} * {k} / {parts}{f' * {grain}' if grain > 1 else ''}" for k in (part, f"({part} + 1)")]
        with self.shared(parts, part):
            self.line(f"const int64_t {first} = {places[0]}, {end} = {places[1]};")
            self.line(f"const int64_t {last} = {end} < {length} ? {end} : {length};")
            body(first, last)

    def parts(self, cost: int) -> int:
        """Return into how many parts a line is divided that takes so many additions."""
        return 1 if self._shared else max(1, min(MOST_PARTS, cost // self.part))

    @contextlib.contextmanager
    def shared(self, parts: str, part: str) -> Iterator[None]:
        """Put the lines of the block into a function of the number of a part, which threads call for all parts.

        It has copies of all variables, so that none of them is in memory that the elements it writes might share.
        """
        self.line(f"team.run({parts}, [=, any = &refused](int64_t {part}) {{")
        self._depth += 1
        self._shared = True
        self.line("bool refused = false;")
        yield
        self.line("if (refused) __atomic_store_n(any, true, __ATOMIC_RELAXED);")
        self._shared = False
        self._depth -= 1
        self.line("});")

    def read(self, value: Value, index: str) -> str:
        """Return the C++ of an element of a value at an offset."""
        return value.text if isinstance(value, Uniform) else value.at(index)

    def copy(self, value: Value, a: Aval, target: View) -> int:
        """Write a value to memory, in row-major order, unless it is there already; returns how many elements."""
        if value == target:
            return 0
        own = contiguous_strides(a.shape)
        given = spread(a, value.strides, a.shape) if isinstance(value, View) else (0,) * len(own)
        beside = crossed(a.shape, given)
        if isinstance(value, View) and beside is not None:
            self._copy_by_blocks(value, a, target, beside)
            return a.size
        if isinstance(value, View) and given == spread(a, own, a.shape) and a.size > 1:
            self.line(f"__builtin_memcpy({target.pointer()}, {value.pointer()}, {a.nbytes});")
            return a.size
        self.nest(
            a.shape, [given, own], lambda at: self.line(f"{target.at(at[1])} = {self.read(value, at[0])};"), cost=a.size
        )
        return a.size

    def _copy_by_blocks(self, value: View, a: Aval, target: View, beside: int) -> None:
        """Write a view of which the neighbours in memory lie along the axis `beside`, and not along the last axis."""
        own, last = contiguous_strides(a.shape), len(a.shape) - 1
        given = spread(a, value.strides, a.shape)
        rest = [k for k in range(last) if k != beside]
        blocks = -(-a.shape[beside] // SQUARE)

        def some(first: str, end: str) -> None:
            block, i, j, column = (self.name("i") for _ in range(4))
            others = [self.name("i") for _ in rest]
            with contextlib.ExitStack() as loops:
                for name, low, high, step in (
                    (block, first, end, 1),
                    *((name, "0", a.shape[k], 1) for name, k in zip(others, rest, strict=True)),
                    (column, "0", a.shape[last], SQUARE),
                    (j, column, _least(f"{column} + {SQUARE}", a.shape[last]), 1),
                    (i, f"{block} * {SQUARE}", _least(f"({block} + 1) * {SQUARE}", a.shape[beside]), 1),
                ):
                    head = f"for (int64_t {name} = {low}; {name} < {high}; {name} += {step})"
                    loops.enter_context(self.braces(head))
                places = {beside: i, last: j, **dict(zip(rest, others, strict=True))}
                to, source = (offset([places[k] for k in range(last + 1)], steps) for steps in (own, given))
                self.line(f"{target.at(to)} = {value.at(source)};")

        self.divide([blocks], 4 * a.size, some, 1)

    def dense(self, value: Value, a: Aval) -> View:
        """Return a value in memory in row-major order, copied there unless it is."""
        if isinstance(value, View) and spread(a, value.strides, a.shape) == spread(
            a, contiguous_strides(a.shape), a.shape
        ):
            return View(value.base, contiguous_strides(a.shape), value.offset)
        target = self.buffer(a)
        self.copy(value, a, target)
        return target

    def poll(self, cost: int) -> None:
        """Let Python handle signals now and then in a loop whose step takes `cost` additions."""
        self.line(f"if ((ticks += {cost}) > {POLL_AFTER}) {{")
        self.line("  ticks = 0;")
        self.line("  if (signals.poll()) return INTERRUPTED;")
        self.line("  if (refused) return REFUSED;")
        self.line("}")


def crossed(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the axis along which elements are neighbours, of an array that is better copied by blocks; else None."""
    if len(shape) < 2 or shape[-1] < SQUARE or strides[-1] in (0, 1):
        return None
    return next((k for k in range(len(shape) - 1) if strides[k] == 1 and shape[k] >= SQUARE), None)


def _least(text: str, most: int) -> str:
    return f"({text} < {most} ? {text} : {most})"


def offset(indices: Sequence[str], strides: Sequence[int]) -> str:
    """Return the C++ of the offset of an element, in elements."""
    terms = [i if s == 1 else f"{i} * {s}" for i, s in zip(indices, strides, strict=True) if s]
    return " + ".join(terms)
