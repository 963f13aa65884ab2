"""Constants, classes of dtypes, and other names of dtypes."""

from __future__ import annotations

from math import e, inf, nan, pi

import torch
from numpy import floating, generic, inexact, integer, number, signedinteger, unsignedinteger

__all__ = [
    "bool_", "double", "e", "euler_gamma", "float_", "floating", "generic", "half", "inexact", "inf", "int_", "integer",
    "nan", "newaxis", "number", "pi", "signedinteger", "single", "unsignedinteger",
]  # fmt: skip

euler_gamma = 0.5772156649015329
newaxis = None
bool_, int_, float_ = torch.bool, torch.int64, torch.float32
half, single, double = torch.float16, torch.float32, torch.float64
