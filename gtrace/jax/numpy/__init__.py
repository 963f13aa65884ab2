"""The names of ``jax.numpy``: those of ``gtrace.numpy``, with JAX's parameters."""

from gtrace import numpy as _ours
from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.numpy import fft as fft
from gtrace.jax.numpy import linalg as linalg
from gtrace.jax.numpy._differing import array as array
from gtrace.jax.numpy._differing import asarray as asarray
from gtrace.jax.numpy._differing import frompyfunc as frompyfunc
from gtrace.jax.numpy._differing import iterable as iterable
from gtrace.jax.numpy._differing import printoptions as printoptions
from gtrace.jax.numpy._differing import set_printoptions as set_printoptions
from gtrace.jax.numpy._differing import where as where

__getattr__, __dir__ = _namespace("jax.numpy", _ours)
