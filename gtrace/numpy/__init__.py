"""The array functions under their standard names: the Python array API (2024.12), and NumPy's that JAX users reach for.

``x.__array_namespace__()`` returns this module. docs/numpy.md says what differs from NumPy and what is missing.
"""

import sys as _sys

from gtrace.core.base.dtypes import *
from gtrace.core.base.suggestions import suggesting as _suggesting
from gtrace.core.ops import methods as _methods
from gtrace.core.ops.activations import *
from gtrace.core.ops.complex_numbers import *
from gtrace.core.ops.complex_parts import *
from gtrace.core.ops.create import *
from gtrace.core.ops.cumulative import *
from gtrace.core.ops.dtype_info import *
from gtrace.core.ops.elementwise import *
from gtrace.core.ops.floats import *
from gtrace.core.ops.floats import cbrt as cbrt
from gtrace.core.ops.floats import exp2 as exp2
from gtrace.core.ops.floats import fmod as fmod
from gtrace.core.ops.floats import gcd as gcd
from gtrace.core.ops.floats import lcm as lcm
from gtrace.core.ops.index import *
from gtrace.core.ops.join_split import *
from gtrace.core.ops.linalg import *
from gtrace.core.ops.logic import *
from gtrace.core.ops.ndarray_methods import compress as compress
from gtrace.core.ops.ndarray_methods import diagonal as diagonal
from gtrace.core.ops.ndarray_methods import ptp as ptp
from gtrace.core.ops.ndarray_methods import trace as trace
from gtrace.core.ops.one_hot_vectors import *
from gtrace.core.ops.pad_tile import *
from gtrace.core.ops.shape import *
from gtrace.core.ops.softmax_functions import *
from gtrace.core.ops.trigonometry import *
from gtrace.core.ops.unique import *
from gtrace.core.trace.array import Array as _Array
from gtrace.core.trace.convert import from_dlpack as from_dlpack
from gtrace.numpy import fft as fft
from gtrace.numpy import linalg as linalg
from gtrace.numpy.arithmetic import *
from gtrace.numpy.bits import *
from gtrace.numpy.functional import *
from gtrace.numpy.grids import *
from gtrace.numpy.histograms import *
from gtrace.numpy.info import __array_namespace_info__ as __array_namespace_info__
from gtrace.numpy.nan_reductions import *
from gtrace.numpy.polynomials import *
from gtrace.numpy.predicates import *
from gtrace.numpy.products import *
from gtrace.numpy.quantiles import *
from gtrace.numpy.reductions import *
from gtrace.numpy.scalars import *
from gtrace.numpy.selection import *
from gtrace.numpy.sequences import *
from gtrace.numpy.sets import *
from gtrace.numpy.shapes import *
from gtrace.numpy.statistics import *
from gtrace.special.bessel_functions import i0 as i0

ndarray = _Array
__array_api_version__ = "2024.12"

__getattr__ = _suggesting("gtrace.numpy")
_methods.namespace = _sys.modules[__name__]
