"""The modules of ``jax.scipy``. Those without functions of their own are lines of a table."""

from gtrace.jax.adapt import namespace as _namespace
from gtrace.jax.adapt import public_modules as _public_modules
from gtrace.jax.adapt import submodules as _submodules
from gtrace.jax.scipy import linalg as linalg
from gtrace.jax.scipy import signal as signal
from gtrace.jax.scipy import special as special
from gtrace.numpy import sequences as _sequences
from gtrace.scipy import cluster as _cluster
from gtrace.scipy import fft as _fft
from gtrace.scipy import grids as _grids
from gtrace.scipy import optimize as _optimize
from gtrace.scipy import rotation as _rotation
from gtrace.scipy import sparse as _sparse
from gtrace.scipy import stats as _stats

_SOURCES = {
    "cluster": (), "cluster.vq": (_cluster,), "fft": (_fft,), "integrate": (_sequences,), "interpolate": (_grids,),
    "ndimage": (_grids,), "optimize": (_optimize,), "sparse": (),
    "sparse.linalg": (_sparse,), "spatial": (), "spatial.transform": (_rotation,), "stats": (_stats,),
}  # fmt: skip

_public_modules("jax.scipy", _SOURCES)
_submodules("jax.scipy.stats", _stats)

__getattr__, __dir__ = _namespace("jax.scipy")
