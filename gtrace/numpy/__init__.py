"""The array functions under their standard names: those of the Python array API (2024.12) that gtrace has so far.

``x.__array_namespace__()`` returns this module. A name of the standard that is missing here is not supported yet.
"""

from math import e, inf, nan, pi

from torch import bfloat16, bool, float16, float32, float64, int8, int16, int32, int64, uint8

from gtrace.ops.arrange import pad, repeat, roll, tile, tril, triu
from gtrace.ops.create import (
    arange,
    array,
    asarray,
    astype,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    one_hot,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from gtrace.ops.elementwise import (
    absolute,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    ceil,
    clip,
    cos,
    cosh,
    divide,
    erf,
    exp,
    expm1,
    floor,
    floor_divide,
    gelu,
    log,
    log1p,
    log2,
    log10,
    maximum,
    minimum,
    multiply,
    power,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tan,
    tanh,
    trunc,
)
from gtrace.ops.elementwise import neg as negative
from gtrace.ops.index import take, take_along_axis
from gtrace.ops.linalg import dot, einsum, matmul, outer, tensordot, vecdot
from gtrace.ops.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    signbit,
    where,
)
from gtrace.ops.normalize import log_softmax, softmax
from gtrace.ops.parts import concat, flip, split, stack, unstack
from gtrace.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumsum,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from gtrace.ops.shape import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    squeeze,
    swapaxes,
    transpose,
)
from gtrace.ops.sort import argsort, searchsorted, sort
from gtrace.trace.array import Array as ndarray
from gtrace.trace.convert import from_dlpack

abs = absolute
acos, acosh, asin, asinh, atan, atan2, atanh = arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh
concatenate = concat
newaxis = None
pow = power
