"""The modules of ``jax.scipy``."""

from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.scipy import cluster as cluster
from gtrace.jax.scipy import fft as fft
from gtrace.jax.scipy import integrate as integrate
from gtrace.jax.scipy import interpolate as interpolate
from gtrace.jax.scipy import linalg as linalg
from gtrace.jax.scipy import ndimage as ndimage
from gtrace.jax.scipy import optimize as optimize
from gtrace.jax.scipy import signal as signal
from gtrace.jax.scipy import sparse as sparse
from gtrace.jax.scipy import spatial as spatial
from gtrace.jax.scipy import special as special
from gtrace.jax.scipy import stats as stats

__getattr__, __dir__ = _namespace("jax.scipy")
