"""The names of ``jax.numpy``: those of ``gtrace.numpy``, with JAX's parameters."""

from gtrace import numpy as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.numpy import fft as fft
from gtrace.jax.numpy import linalg as linalg
from gtrace.jax.numpy._differing import ComplexWarning as ComplexWarning
from gtrace.jax.numpy._differing import array as array
from gtrace.jax.numpy._differing import array_repr as array_repr
from gtrace.jax.numpy._differing import array_str as array_str
from gtrace.jax.numpy._differing import asarray as asarray
from gtrace.jax.numpy._differing import einsum_path as einsum_path
from gtrace.jax.numpy._differing import frombuffer as frombuffer
from gtrace.jax.numpy._differing import fromfile as fromfile
from gtrace.jax.numpy._differing import fromiter as fromiter
from gtrace.jax.numpy._differing import frompyfunc as frompyfunc
from gtrace.jax.numpy._differing import fromstring as fromstring
from gtrace.jax.numpy._differing import get_printoptions as get_printoptions
from gtrace.jax.numpy._differing import iterable as iterable
from gtrace.jax.numpy._differing import load as load
from gtrace.jax.numpy._differing import maximum as maximum
from gtrace.jax.numpy._differing import minimum as minimum
from gtrace.jax.numpy._differing import place as place
from gtrace.jax.numpy._differing import printoptions as printoptions
from gtrace.jax.numpy._differing import save as save
from gtrace.jax.numpy._differing import savez as savez
from gtrace.jax.numpy._differing import set_printoptions as set_printoptions
from gtrace.jax.numpy._differing import transpose as transpose
from gtrace.jax.numpy._differing import where as where
from gtrace.jax.numpy._products import convolve as convolve
from gtrace.jax.numpy._products import correlate as correlate
from gtrace.jax.numpy._products import dot as dot
from gtrace.jax.numpy._products import einsum as einsum
from gtrace.jax.numpy._products import inner as inner
from gtrace.jax.numpy._products import matmul as matmul
from gtrace.jax.numpy._products import tensordot as tensordot
from gtrace.jax.numpy._products import vdot as vdot
from gtrace.jax.numpy._products import vecdot as vecdot

__getattr__, __dir__ = _namespace("jax.numpy", _ours)
