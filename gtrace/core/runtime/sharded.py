"""Programs of several processes: the part that this process runs, and the check that all are about to run the same."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence

import attrs
import torch

from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.errors import DivergenceError, GraphError, ShardingWarning, message, user_location, warn_at
from gtrace.core.base.events import Divided, bus
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.difference import difference
from gtrace.core.ir.edit import renumber
from gtrace.core.ir.graph import Graph, Node, print_graph
from gtrace.core.ir.op import REGISTRY, Leaf
from gtrace.core.ir.sharding import ABSENT, Mesh, print_dims
from gtrace.core.ir.text import parse_graph
from gtrace.core.partitioner import processes
from gtrace.core.partitioner.partition import find_meshes
from gtrace.core.partitioner.partitioned import Partitioned
from gtrace.core.partitioner.stages import divide
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.subgraph_calls import count_operations
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.programs import MAX_PROGRAMS
from gtrace.core.runtime.routes import Parts, Route

_BITS = 62

LEAST_KEPT = 100
"""Operations from which on dividing a program takes longer than reading what an earlier process has kept of it."""


class Placed(list[torch.Tensor]):
    """The local parts of results.

    Attributes:
        avals: the types of the whole results, with their shardings.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], avals: Sequence[Aval]) -> None:
        super().__init__(tensors)
        self.avals = avals


def placed(tensors: list[torch.Tensor], avals: Sequence[Aval] | None) -> list[torch.Tensor]:
    """Return results with their types, if these have shardings."""
    return tensors if avals is None else Placed(tensors, avals)


_warned: set[tuple[str, str | None]] = set()


def localize(graph: Graph) -> Partitioned:
    """Return the program of this process, and warn of operations that are not divided.

    Raises:
        ShardingError: a mesh has processes that do not run.
    """
    for mesh in find_meshes(graph):
        processes.check_mesh(mesh)
    made = _divided(CANONICAL.run(graph))
    for name, location in made.gathered:
        if (name, location) not in _warned:
            _warned.add((name, location))
            warn_at(
                f"[{name}] has no rule for divided operands: they are gathered, and every worker computes all of it."
                " Use operations that can be divided, or lay its operands out as replicated to make that explicit.",
                location or user_location(),
                ShardingWarning,
            )
    return made


def _divided(graph: Graph) -> Partitioned:
    """Return the program of this process, which an earlier run may have kept."""
    store = artifacts.store
    if store is None or count_operations(graph) < LEAST_KEPT:
        return divide(graph, processes.count(), processes.rank())
    place = f"{processes.count()} {processes.rank()} {toolchain()['gtrace']}"
    text = f"{print_graph(renumber(graph), locations=True)}\n{place}"
    name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    record = store.find_divided(name)
    if record is not None:
        try:
            return Partitioned.from_record(record)
        except (GraphError, ValueError) as error:
            store.refuse_divided(name, error)
    made = divide(graph, processes.count(), processes.rank())
    store.keep_divided(made.to_record(name))
    return made


def gathering(a: Aval) -> Graph:
    """Return the program that returns the whole of its input on each process."""
    assert a.sharding is not None
    mesh = a.sharding.mesh
    if mesh.size < processes.count():
        mesh = Mesh(range(processes.count()), "all")
    params = str(mesh), print_dims(((),) * len(a.shape)), None
    instr = REGISTRY["with_sharding"].instr(params, (a,))
    return Graph((0,), (a,), (Node(instr, (0,), 1),), (1,))


class Gathers:
    """Makes whole arrays of parts.

    Args:
        cut: returns the route of a program for inputs of these strides.
        call: calls a route.
    """

    def __init__(
        self,
        cut: Callable[..., Route | Parts],
        call: Callable[[Route | Parts, Sequence[torch.Tensor]], list[torch.Tensor]],
    ) -> None:
        self._cut, self._call = cut, call
        self._routes: BoundedTable[Hashable, Route | Parts] = BoundedTable(
            MAX_PROGRAMS, stale=lambda route: route.stale
        )

    @without_modes
    def whole(self, kind: Leaf, tensor: torch.Tensor) -> torch.Tensor:
        """Return the whole of an array, of which this process has a part.

        Args:
            kind: the type of the array, and the strides of the part.
        """
        route = self._routes.get(kind)
        if route is None:
            route = self._cut(gathering(kind.aval), [kind.strides], passes=())
            self._routes.remember(kind, route)
        return self._call(route, [tensor])[0]


Basis = dict[str, list[str]]
"""What decides about the collectives of a process besides its program, by name."""


@attrs.frozen(eq=False)
class AgreedCalls:
    """The program of this process, which runs if all processes are about to run the same program.

    Attributes:
        text: the program of all processes.
        basis: see `Basis`.
        digest: of the text and the basis.
        call: runs the part of this process.
        made: that part.
        compared: whether to compare; a program that does not communicate may run on some processes only.
    """

    text: str
    basis: Basis
    digest: int
    call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    made: Partitioned
    compared: bool

    @classmethod
    def of(
        cls, graph: Graph, call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]], made: Partitioned
    ) -> AgreedCalls:
        """Return the calls of the program `graph` of all processes."""
        text = print_graph(renumber(CANONICAL.run(graph)))
        basis = _basis(made)
        both = repr((text, basis)).encode()
        digest = int.from_bytes(hashlib.blake2b(both, digest_size=8).digest(), "little") >> (64 - _BITS)
        return cls(text, basis, digest, call, made, bool(made.transfers) and processes.count() > 1)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program.

        Raises:
            DivergenceError: another process is about to run another program.
        """
        # the setting may change between two calls of one program
        deterministic = config.current.deterministic
        if self.compared and not processes.compare(self.digest ^ deterministic):
            basis = self.basis | {"GT_DETERMINISTIC": [str(deterministic)]}
            raise _divergence(processes.exchange((self.text, basis)))
        if Divided in bus.wanted:
            bus.emit(Divided(self.digest, self.made))
        return results(self.made, self.call(tensors))


def results(made: Partitioned, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a divided program, of all that its local program returns.

    What stands for an absent array is a tensor of its own, because recording tells inputs apart by their tensors.
    """
    found = list(tensors[: len(made.avals)])
    for k, a in enumerate(made.avals):
        if a.sharding is not None and a.sharding.mesh.size < processes.count():
            if processes.rank() not in a.sharding.mesh.ranks:
                found[k] = found[k].new_empty(ABSENT)
    return found


def _basis(made: Partitioned) -> Basis:
    """Return the basis of a program, without settings that may change between its calls.

    The store may have kept the division, and each process reads its own settings and packages.
    """
    sent = [str(attrs.evolve(one, location=None)) for one in made.transfers]
    known = toolchain()
    return {"gtrace": [known["gtrace"]], "torch": [known["torch"]], "collectives": sent}


def _divergence(found: Sequence[tuple[str, Basis]]) -> DivergenceError:
    """Return the error for processes with different programs. It names the first one that differs from process 0."""
    text, basis = found[0]
    other = next(k for k, one in enumerate(found) if one != found[0])
    others, others_basis = found[other]
    if others != text:
        change = difference(parse_graph(text), parse_graph(others)) or "their operands differ"
        got = f"another one at rank {other} than at rank 0: {change}"
        fix = (
            "All workers must compute the same in the same order: look for code that depends on the rank, on time or on"
            " random numbers, and for values that only some workers look at."
        )
        return DivergenceError(message("workers", "all workers to run one program", got, fix))
    name = next(name for name in basis if basis[name] != others_basis[name])
    pairs = itertools.zip_longest(others_basis[name], basis[name], fillvalue="none")
    theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
    got = f"{theirs} at rank {other} and {ours} at rank 0"
    fix = (
        "Start all workers with one environment and the same packages; empty the store (GT_CACHE_DIR) if it was copied."
    )
    return DivergenceError(message("workers", f"all workers to have the same {name}", got, fix))
