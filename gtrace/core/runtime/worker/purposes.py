"""What requests are for: what the store keeps beside their code, so that the worker can put it there by itself."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable

import attrs

from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.signature import Signature
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.cache.store import Store


@attrs.frozen
class Purpose:
    """What a request is for. It does not keep the request alive.

    Attributes:
        store: where its code is kept.
        family: the name of the program's family, if sizes are open; otherwise empty.
        signature: of the program.
        constants: with open sizes, the scalars that hold for all of them.
        weight: returns the seconds that the program has cost so far.
        others: the other requests of the program. It is found in the store only if they are there too.
    """

    store: Store
    family: str
    signature: Signature
    constants: tuple[Scalar | None, ...]
    weight: Callable[[], float]
    others: tuple[weakref.ref[CompileRequest], ...] = ()

    def name(self, request: CompileRequest) -> str:
        """Return the name under which the code is kept."""
        return f"{self.family}-{request.name}" if self.family else request.name

    def manifest(self, request: CompileRequest) -> Manifest:
        """Return the manifest of the code that is to be made. Guards and seconds are not known yet."""
        return Manifest.of_request(
            request,
            name=self.name(request),
            program=self.signature.exact,
            structural=self.signature.structural,
            constants=self.constants,
            device=request.device,
            toolchain=toolchain(),
            created=time.time(),
        )


_purposes: weakref.WeakKeyDictionary[CompileRequest, Purpose] = weakref.WeakKeyDictionary()


def note(requests: Iterable[CompileRequest], purpose: Purpose) -> None:
    """Note what the requests of one program are for."""
    together = list(requests)
    for request in together:
        others = tuple(weakref.ref(other) for other in together if other is not request)
        _purposes[request] = attrs.evolve(purpose, others=others)


def purpose_of(request: CompileRequest) -> Purpose | None:
    """Return what a request is for; None if nobody noted it, because nothing is kept."""
    return _purposes.get(request)


def by_weight(requests: Iterable[CompileRequest]) -> list[tuple[CompileRequest, Purpose]]:
    """Return the requests whose code can be kept, and the other requests of their programs; the costliest first."""
    known: dict[CompileRequest, Purpose] = {}
    for request in requests:
        purpose = purpose_of(request)
        for one in () if purpose is None else (request, *(other() for other in purpose.others)):
            if one is not None and (its := purpose_of(one)) is not None:
                known[one] = its
    return sorted(known.items(), key=lambda found: -found[1].weight())
