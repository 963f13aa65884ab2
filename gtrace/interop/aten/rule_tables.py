"""Tables by overload of handwritten rules, which replace rules traced from torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gtrace.core.base.dtypes import FLOATS
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.trace.array import Array
from gtrace.interop.aten import (
    batch_norms,
    batched_windows,
    factorizations,
    fourier,
    handwritten_layers,
    linear_systems,
    matrix_functions,
)
from gtrace.interop.aten.handwritten_layers import Pullback, Tangent
from gtrace.interop.aten.matrix_common import REAL

Type = Callable[[Sequence[Aval], tuple[Any, ...]], "Aval | Bundle | None"]
"""(types of the operands, constants of the call) -> type of the results. None, here and below: no rule applies."""

Batch = Callable[[str, tuple[Any, ...], Sequence[bool], Sequence[Array]], Any]
"""(overload, constants, flags of operands with a batch on axis 0, operands) -> results, as in batching rules."""


def _guarded(rules: Mapping[str, Any], place: int, applies: Callable[[Sequence[Array]], bool]) -> dict[str, Any]:
    """Return rules that apply if their argument at this place, the operands, fulfils a condition."""

    def guarded(rule: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: rule(*given) if applies(given[place]) else None

    return {overload: guarded(rule) for overload, rule in rules.items()}


def _floats(operands: Sequence[Array]) -> bool:
    return operands[0].aval.dtype in FLOATS


def _whole_floats(operands: Sequence[Array]) -> bool:
    return _floats(operands) and all(x.size for x in operands)


def _whole_matrices(operands: Sequence[Array]) -> bool:
    return operands[0].aval.dtype in REAL and all(x.size for x in operands)


_LAYERS = handwritten_layers, batch_norms
_MATRICES = linear_systems, factorizations, matrix_functions

TYPES: dict[str, Type] = {**handwritten_layers.TYPES, **batch_norms.TYPES, **fourier.TYPES, **linear_systems.TYPES}
PULLBACKS: dict[str, Pullback] = {**fourier.PULLBACKS}
TANGENTS: dict[str, Tangent] = {
    **_guarded(batch_norms.TANGENTS, 1, _floats),
    **_guarded(matrix_functions.TANGENTS, 1, _whole_matrices),
    **fourier.TANGENTS,
}
BATCHES: dict[str, Batch] = {**fourier.BATCHES}

for _module in _LAYERS:
    PULLBACKS |= _guarded(_module.PULLBACKS, 2, _floats)
for _module in (*_LAYERS, batched_windows):
    BATCHES |= _guarded(_module.BATCHES, 3, _whole_floats)
for _module in _MATRICES:
    PULLBACKS |= _guarded(_module.PULLBACKS, 2, _whole_matrices)
    BATCHES |= _module.BATCHES
