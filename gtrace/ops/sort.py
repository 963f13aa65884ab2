"""Sorting and searching in sorted arrays."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.ir.aval import Aval
from gtrace.ir.op import BadSample, Sample, define
from gtrace.ops.index import take_along_axis
from gtrace.ops.promote import promote
from gtrace.ops.samples import rng, uniform
from gtrace.ops.shape import constant, normalize_axis, ravel
from gtrace.trace.array import Array
from gtrace.trace.bind import bind
from gtrace.trace.convert import lift

_PLACE = "the result is an index"
_PARAMS = ("axis", "descending")


def _sort_impl(x: torch.Tensor, axis: int, descending: bool) -> torch.Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=True).values


def _argsort_impl(x: torch.Tensor, axis: int, descending: bool) -> torch.Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=True).indices
