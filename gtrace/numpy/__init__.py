"""The array functions under their standard names: the Python array API (2024.12), and NumPy's that JAX users reach for.

``x.__array_namespace__()`` returns this module. docs/numpy.md says what differs from NumPy and what is missing.
"""

from gtrace.dtypes import *
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
from gtrace.ops.activations import *
from gtrace.ops.arrange import *
from gtrace.ops.bessel_functions import i0 as i0
from gtrace.ops.complex import *
from gtrace.ops.components import *
from gtrace.ops.create import *
from gtrace.ops.dtype_info import *
from gtrace.ops.elementwise import *
from gtrace.ops.extracts import compress as compress
from gtrace.ops.extracts import diagonal as diagonal
from gtrace.ops.extracts import ptp as ptp
from gtrace.ops.extracts import trace as trace
from gtrace.ops.floats import *
from gtrace.ops.floats import cbrt as cbrt
from gtrace.ops.floats import exp2 as exp2
from gtrace.ops.floats import fmod as fmod
from gtrace.ops.floats import gcd as gcd
from gtrace.ops.floats import lcm as lcm
from gtrace.ops.index import *
from gtrace.ops.linalg import *
from gtrace.ops.logic import *
from gtrace.ops.normalize import *
from gtrace.ops.one_hot import *
from gtrace.ops.parts import *
from gtrace.ops.scans import *
from gtrace.ops.shape import *
from gtrace.ops.unique import *
from gtrace.suggestions import suggesting as _suggesting
from gtrace.trace.array import Array as _Array
from gtrace.trace.convert import from_dlpack as from_dlpack

ndarray = _Array
__array_api_version__ = "2024.12"

__getattr__ = _suggesting("gtrace.numpy")
