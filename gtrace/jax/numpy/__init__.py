"""The names of ``jax.numpy``: those of ``gtrace.numpy``, with JAX's parameters."""

from gtrace import numpy as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.complex_order import argmax as argmax
from gtrace.jax.complex_order import argmin as argmin
from gtrace.jax.complex_order import fmax as fmax
from gtrace.jax.complex_order import fmin as fmin
from gtrace.jax.complex_order import greater as greater
from gtrace.jax.complex_order import greater_equal as greater_equal
from gtrace.jax.complex_order import less as less
from gtrace.jax.complex_order import less_equal as less_equal
from gtrace.jax.complex_order import lexsort as lexsort
from gtrace.jax.complex_order import sort as sort
from gtrace.jax.division import divmod as divmod
from gtrace.jax.division import floor_divide as floor_divide
from gtrace.jax.division import fmod as fmod
from gtrace.jax.division import remainder as mod
from gtrace.jax.division import remainder as remainder
from gtrace.jax.numpy import fft as fft
from gtrace.jax.numpy import linalg as linalg
from gtrace.jax.numpy._creation import *
from gtrace.jax.numpy._dtypes import *
from gtrace.jax.numpy._padding import *
from gtrace.jax.numpy._places import *
from gtrace.jax.numpy._products import *
from gtrace.jax.numpy._reductions import *
from gtrace.jax.numpy._ufuncs import *
from gtrace.jax.numpy._variants import *
from gtrace.jax.numpy._variants import absolute as abs
from gtrace.jax.scalars import DEFAULTS as _DEFAULTS
from gtrace.jax.scalars import WITHOUT_TORCH as _WITHOUT_TORCH

__getattr__, __dir__ = _namespace("jax.numpy", _DEFAULTS, _WITHOUT_TORCH, _ours)
