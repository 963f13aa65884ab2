"""Tables by overload of handwritten rules, which replace rules traced from torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _pullback_of_floats(rule: Pullback) -> Pullback:
    def pullback(
        ct: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
    ) -> list[Array | None] | None:
        return rule(ct, needed, operands, args) if _are_floats(operands[:1]) else None

    return pullback


def _tangent_of_floats(rule: Tangent) -> Tangent:
    def tangent(
        tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
    ) -> Any:
        return rule(tangents, operands, out, overload, args) if _are_floats(operands[:1]) else None

    return tangent


def _batch_of_floats(rule: Batch) -> Batch:
    def batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
        plain = _are_floats(operands[:1]) and all(x.size for x in operands)
        return rule(overload, args, batched, operands) if plain else None

    return batch


def _are_floats(operands: Sequence[Array]) -> bool:
    return all(x.aval.dtype in FLOATS for x in operands)


def _pullback_of_matrices(rule: Pullback) -> Pullback:
    def pullback(
        ct: Any, needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
    ) -> list[Array | None] | None:
        return rule(ct, needed, operands, args) if _are_matrices(operands) else None

    return pullback


def _tangent_of_matrices(rule: Tangent) -> Tangent:
    def tangent(
        tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
    ) -> Any:
        return rule(tangents, operands, out, overload, args) if _are_matrices(operands) else None

    return tangent


def _are_matrices(operands: Sequence[Array]) -> bool:
    return operands[0].aval.dtype in REAL and all(x.size for x in operands)


_MATRICES = linear_systems, factorizations, matrix_functions

TYPES: dict[str, Type] = {**handwritten_layers.TYPES, **batch_norms.TYPES, **fourier.TYPES}

PULLBACKS: dict[str, Pullback] = {
    **{
        name: _pullback_of_floats(rule)
        for name, rule in {**handwritten_layers.PULLBACKS, **batch_norms.PULLBACKS}.items()
    },
    **fourier.PULLBACKS,
}

TANGENTS: dict[str, Tangent] = {
    **{
        name: _tangent_of_floats(rule) for name, rule in {**handwritten_layers.TANGENTS, **batch_norms.TANGENTS}.items()
    },
    **fourier.TANGENTS,
}

BATCHES: dict[str, Batch] = {
    **{
        name: _batch_of_floats(rule)
        for name, rule in {**handwritten_layers.BATCHES, **batched_windows.BATCHES, **batch_norms.BATCHES}.items()
    },
    **fourier.BATCHES,
}

for _module in _MATRICES:
    TYPES |= _module.TYPES
    PULLBACKS |= {name: _pullback_of_matrices(rule) for name, rule in _module.PULLBACKS.items()}
    TANGENTS |= {name: _tangent_of_matrices(rule) for name, rule in _module.TANGENTS.items()}
    BATCHES |= _module.BATCHES
