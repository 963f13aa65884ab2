"""Tables by overload of handwritten rules, which replace rules traced from torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gtrace.core.base.dtypes import FLOATS
from gtrace.core.base.mechanisms import OPERATOR_RULES
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


Applies = Callable[[Sequence[Array]], bool]


def _switched(rules: Mapping[str, Any], place: int = 0, applies: Applies | None = None) -> dict[str, Any]:
    """Return rules that the mechanism `operator_rules` switches; they apply if an argument fulfils a condition.

    Args:
        place: that of the argument, the operands of the call.
    """

    def switched(rule: Callable[..., Any]) -> Callable[..., Any]:
        def applied(*given: Any) -> Any:
            if applies is not None and not applies(given[place]):
                return None
            OPERATOR_RULES.used()
            return rule(*given)

        return applied

    return {overload: switched(rule) for overload, rule in rules.items()} if OPERATOR_RULES.on else {}


def _floats(operands: Sequence[Array]) -> bool:
    return operands[0].aval.dtype in FLOATS


def _whole_floats(operands: Sequence[Array]) -> bool:
    return _floats(operands) and all(x.size for x in operands)


def _whole_matrices(operands: Sequence[Array]) -> bool:
    return operands[0].aval.dtype in REAL and all(x.size for x in operands)


_LAYERS = handwritten_layers, batch_norms
_MATRICES = linear_systems, factorizations, matrix_functions

TYPES: dict[str, Type] = {}
PULLBACKS: dict[str, Pullback] = _switched(fourier.PULLBACKS)
TANGENTS: dict[str, Tangent] = {
    **_switched(batch_norms.TANGENTS, 1, _floats),
    **_switched(matrix_functions.TANGENTS, 1, _whole_matrices),
    **_switched(fourier.TANGENTS),
}
BATCHES: dict[str, Batch] = _switched(fourier.BATCHES)

for _typed in (handwritten_layers, batch_norms, fourier, linear_systems):
    TYPES |= _switched(_typed.TYPES)
for _module in _LAYERS:
    PULLBACKS |= _switched(_module.PULLBACKS, 2, _floats)
for _module in (*_LAYERS, batched_windows):
    BATCHES |= _switched(_module.BATCHES, 3, _whole_floats)
for _module in _MATRICES:
    PULLBACKS |= _switched(_module.PULLBACKS, 2, _whole_matrices)
    BATCHES |= _switched(_module.BATCHES)
